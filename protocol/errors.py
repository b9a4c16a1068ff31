"""What a peer can do wrong on the wire. Every function of `protocol` raises these and nothing else.

WireError
├── FrameTooLarge      a size prefix beyond the limit, or negative
├── Truncated          the bytes end before the message does
└── MalformedMessage   a length, count or type that no valid message has
"""

from __future__ import annotations


class WireError(Exception):
    """The message names what was wrong and where in the bytes."""


class FrameTooLarge(WireError):
    pass


class Truncated(WireError):
    pass


class MalformedMessage(WireError):
    pass
