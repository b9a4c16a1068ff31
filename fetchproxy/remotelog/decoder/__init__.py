"""From stored bytes to Arrow columns, by compiled code."""
