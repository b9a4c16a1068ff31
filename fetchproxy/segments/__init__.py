"""The bytes and fields of a segment. No I/O; knows no store and no broker."""
