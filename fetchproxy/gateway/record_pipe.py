"""Records go from the broker's socket to the client's within the kernel: Linux's splice(2).

Nobody looks at the records of an answer that passes, so they need not be copied into this process
and out again, which is most of what a relayed byte costs. A socket only gives its bytes to a pipe,
so there is one, for all connections of a loop: it is filled and emptied in one uninterrupted step,
and what the client would not take comes back as bytes, to wait where all that is written waits.
"""

from __future__ import annotations

import fcntl
import os
from asyncio import Transport
from asyncio.trsock import TransportSocket
from contextlib import suppress
from typing import NamedTuple

from protocol.primitives import Buffer

_PIPE_BYTES = 1024 * 1024  # what any user may have; a socket's pages fill it by more than that
# What is still received beside a splice: the loop reads before it says that there is something.
PEEK_BYTES = 4 * 1024


class Moved(NamedTuple):
    """`taken` bytes have left the source; `not_sent`, the last of them, not for the target."""

    taken: int
    not_sent: Buffer


NOTHING = Moved(0, b"")


class RecordPipe:
    """`move` must be followed by a write of what was not sent. `bytes_min`: less is not moved."""

    def __init__(self, bytes_min: int) -> None:
        self.bytes_min = bytes_min
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(PermissionError):  # of a user with many: then it takes more steps
            fcntl.fcntl(self._write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def close(self) -> None:
        os.close(self._read_end)
        os.close(self._write_end)

    def move(self, source: TransportSocket, target: TransportSocket, size: int) -> Moved:
        """As much of `size` bytes as there is. Errors of a socket are left to its transport."""
        if source.fileno() < 0 or target.fileno() < 0:
            return NOTHING
        flags = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
        try:
            taken = os.splice(source.fileno(), self._write_end, min(size, _PIPE_BYTES), flags=flags)
        except OSError:
            return NOTHING
        left = taken
        with suppress(OSError):
            while left:
                left -= os.splice(self._read_end, target.fileno(), left, flags=flags)
        return Moved(taken, self._rest(left))

    def _rest(self, size: int) -> bytes:
        pieces = []
        while size:
            pieces.append(os.read(self._read_end, size))
            size -= len(pieces[-1])
        return b"".join(pieces)


def open_record_pipe(bytes_min: int) -> RecordPipe | None:
    """None where it is not wanted (0), or the system has no splice."""
    return RecordPipe(bytes_min) if bytes_min and hasattr(os, "splice") else None


def plain_socket(transport: Transport) -> TransportSocket | None:
    """Whose bytes are what the peer sees; None under TLS, and where there is no socket."""
    if transport.get_extra_info("sslcontext") is not None:
        return None
    found: TransportSocket | None = transport.get_extra_info("socket")
    return found
