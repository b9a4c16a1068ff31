"""Moves records from the broker's socket to the client's within the kernel: Linux's splice(2).

The proxy does not read the records of a response that passes. So it need not copy them into this
process and out again, which is most of the cost of a relayed byte. splice(2) moves bytes between
a socket and a pipe, so all connections of a loop share one pipe. It is filled and emptied in one
uninterrupted step. Bytes that the client's socket does not take come back, and are then written
to the client's transport as usual.
"""

from __future__ import annotations

import fcntl
import os
from asyncio.trsock import TransportSocket
from contextlib import suppress
from typing import NamedTuple

from fetchproxy_protocol.primitives import Buffer

_PIPE_BYTES = 1024 * 1024  # any user may have this much; of a socket's pages it holds even more
# Bytes still received beside a splice: the loop reads before it reports that bytes have arrived.
PEEK_BYTES = 4 * 1024


class _Moved(NamedTuple):
    """`moved_bytes` have left the source. `not_sent`: the last of them, not taken by the target."""

    moved_bytes: int
    not_sent: Buffer


NOTHING_MOVED = _Moved(0, b"")


class RecordPipe:
    """After `move`, the caller must write `not_sent`. `bytes_min`: fewer bytes are not moved."""

    def __init__(self, bytes_min: int) -> None:
        self.bytes_min = bytes_min
        self._read_end, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with suppress(PermissionError):  # the user has too many pipes: a move takes more steps
            fcntl.fcntl(self._write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def close(self) -> None:
        os.close(self._read_end)
        os.close(self._write_end)

    def move(self, source: TransportSocket, target: TransportSocket, size: int) -> _Moved:
        """Move up to `size` bytes, as far as available. A socket's transport reports its errors."""
        if source.fileno() < 0 or target.fileno() < 0:
            return NOTHING_MOVED
        flags = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE
        try:
            count = os.splice(source.fileno(), self._write_end, min(size, _PIPE_BYTES), flags=flags)
        except OSError:
            return NOTHING_MOVED
        bytes_left = count
        with suppress(OSError):
            while bytes_left:
                bytes_left -= os.splice(self._read_end, target.fileno(), bytes_left, flags=flags)
        return _Moved(count, self._rest(bytes_left))

    def _rest(self, size: int) -> bytes:
        pieces = []
        while size:
            pieces.append(os.read(self._read_end, size))
            size -= len(pieces[-1])
        return b"".join(pieces)


def open_record_pipe(bytes_min: int) -> RecordPipe | None:
    """None: it is not wanted (0), or the system has no splice."""
    return RecordPipe(bytes_min) if bytes_min and hasattr(os, "splice") else None
