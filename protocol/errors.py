"""What a peer can do wrong on the wire. Every function of `protocol` raises these and nothing else.

WireError
├── FrameTooLarge      a size prefix beyond a limit, or negative
├── Truncated          the bytes end before the message does
└── MalformedMessage   a length, count or type that no valid message has
"""

from __future__ import annotations


class WireError(Exception):
    """The message names what was wrong and where in the bytes."""


class FrameTooLarge(WireError):
    """`limit` is the name of the one that it is beyond."""

    def __init__(self, message: str, limit: str = "frame_bytes_max") -> None:
        super().__init__(message)
        self.limit = limit


class Truncated(WireError):
    pass


class MalformedMessage(WireError):
    pass
