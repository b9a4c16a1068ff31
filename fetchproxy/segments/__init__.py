"""What a segment is, in bytes and fields. No I/O; knows no store and no broker."""
