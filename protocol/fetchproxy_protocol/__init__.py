"""The wire: bytes in, values out. No sockets, no clock, and no knowledge of fetchproxy."""
