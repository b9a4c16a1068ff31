"""Receives and sends bytes: one receive buffer, answers in pieces, and records that stay in the
kernel.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
from asyncio import Transport
from asyncio.trsock import TransportSocket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from fetchproxy_protocol.primitives import Buffer

# One receive buffer for all connections of a loop.
#
# asyncio asks for a buffer, fills it and hands it back in one uninterrupted step. So connections
# can share the buffer, and an idle connection costs none. A protocol copies the bytes that it
# keeps. A transport that could not send all bytes at once may keep a view of the buffer (asyncio
# from 3.12 on, and uvloop, keep the view itself). In that case a new buffer is made.

RECEIVE_BYTES = 256 * 1024


class ReceiveBuffer:
    def __init__(self) -> None:
        self.view = memoryview(bytearray(RECEIVE_BYTES))

    def release(self, transport: asyncio.WriteTransport | None) -> None:
        """Called after views of the buffer were written to `transport`."""
        if transport is not None and transport.get_write_buffer_size():
            self.view = memoryview(bytearray(RECEIVE_BYTES))


# Moves records from the broker's socket to the client's within the kernel: Linux's splice(2).
#
# The proxy does not read the records of a response that passes. So it need not copy them into this
# process and out again, which is most of the cost of a relayed byte. splice(2) moves bytes between
# a socket and a pipe, so all connections of a loop share one pipe. It is filled and emptied in one
# uninterrupted step. Bytes that the client's socket does not take come back, and are then written
# to the client's transport as usual.

_PIPE_BYTES = 1024 * 1024  # any user may have this much; of a socket's pages it holds even more
# Bytes still received beside a splice: the loop reads before it reports that bytes have arrived.
PEEK_BYTES = 4 * 1024


class Moved(NamedTuple):
    """`taken` bytes have left the source. `not_sent`: the last of them, not taken by the target."""

    taken: int
    not_sent: Buffer


NOTHING = Moved(0, b"")


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

    def move(self, source: TransportSocket, target: TransportSocket, size: int) -> Moved:
        """Move up to `size` bytes, as far as available. A socket's transport reports its errors."""
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
    """None: it is not wanted (0), or the system has no splice."""
    return RecordPipe(bytes_min) if bytes_min and hasattr(os, "splice") else None


def plain_socket(transport: Transport) -> TransportSocket | None:
    """The socket whose bytes the peer sees unchanged; None: under TLS, or without a socket."""
    if transport.get_extra_info("sslcontext") is not None:
        return None
    found: TransportSocket | None = transport.get_extra_info("socket")
    return found


# A response in pieces: small pieces are joined, large ones are sent without a copy.

_JOINED_BYTES_MAX = 32 * 1024  # a system call costs about as much as copying this many bytes
# Most bytes sent in one step, well below a millisecond. A response with 1 MiB of records, as
# consumers ask of a partition, takes one step.
SENT_BYTES_MAX = 2 * 1024 * 1024
_GIVEN_BYTES_MAX = 256 * 1024  # at a time: a transport copies bytes that it cannot send at once
_SENT_PIECES_MAX = 1000  # Linux takes 1024 (IOV_MAX)


def join_small(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes; neighbouring pieces smaller than `_JOINED_BYTES_MAX` become one piece."""
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < _JOINED_BYTES_MAX:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield piece
    if small:
        yield b"".join(small)


def first_bytes(pieces: list[memoryview], size: int) -> list[memoryview]:
    found: list[memoryview] = []
    for piece in pieces:
        if size <= 0:
            break
        found.append(piece[:size])
        size -= len(piece)
    return found


def without_first(pieces: list[memoryview], size: int) -> list[memoryview]:
    for number, piece in enumerate(pieces):
        if size < len(piece):
            return [piece[size:], *pieces[number + 1 :]]
        size -= len(piece)
    return []


def write_step(transport: Transport, pieces: list[memoryview]) -> list[memoryview]:
    """Write some of `pieces` and return the others, to be written when the transport is writable.

    One system call gives the socket up to SENT_BYTES_MAX. If the socket is full, and under TLS, the
    transport gets the next piece.
    """
    left = _sent_at_once(transport, pieces)
    if left and sum(map(len, pieces)) - sum(map(len, left)) < SENT_BYTES_MAX:
        given = left[0][:_GIVEN_BYTES_MAX]
        transport.write(given)
        left = without_first(left, len(given))
    return left


def _sent_at_once(transport: Transport, pieces: list[memoryview]) -> list[memoryview]:
    """Send nothing while the transport has unsent bytes. The transport reports socket errors."""
    plain = plain_socket(transport)
    if plain is None or transport.get_write_buffer_size():
        return pieces
    try:
        sent = os.writev(plain.fileno(), first_bytes(pieces, SENT_BYTES_MAX)[:_SENT_PIECES_MAX])
    except OSError:
        return pieces
    return without_first(pieces, sent)


# Finds clients that are gone without asyncio's notice.


def is_reset(transport: asyncio.BaseTransport) -> bool:
    """True: the other side is gone. For connections that asyncio does not read, and so not watch.

    A client that has only ended its sending is still there.
    """
    found: TransportSocket | None = transport.get_extra_info("socket")
    if found is None:
        return False
    look = select.poll()
    look.register(found, 0)  # always reported: an error, and a hang-up of both directions
    return bool(look.poll(0))
