"""The wire: bytes in, values out. Knows no sockets, no clock and nothing of fetchproxy."""
