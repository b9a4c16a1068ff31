"""Receives and sends bytes: one receive buffer, and responses in pieces.

asyncio asks for a buffer, fills it and hands it back in one uninterrupted step. So connections
can share the buffer, and an idle connection costs none. A protocol copies the bytes that it
keeps. A transport that could not send all bytes at once may keep a view of the buffer (asyncio
from 3.12 on, and uvloop, keep the view itself). In that case a new buffer is made.

Of a response, small pieces are joined, and large ones are sent without a copy.
"""

from __future__ import annotations

import asyncio
import os
import select
from asyncio import Transport
from asyncio.trsock import TransportSocket
from collections.abc import Iterable, Iterator
from enum import Enum

from fetchproxy_protocol.primitives import Buffer

_RECEIVE_BYTES = 256 * 1024
_JOINED_BYTES_MAX = 32 * 1024  # a system call costs about as much as copying this many bytes
# Most bytes sent in one step, well below a millisecond. A response with 1 MiB of records, as
# consumers ask of a partition, takes one step.
SENT_BYTES_MAX = 2 * 1024 * 1024
_GIVEN_BYTES_MAX = 256 * 1024  # at a time: a transport copies bytes that it cannot send at once
_SENT_PIECES_MAX = 1000  # Linux takes 1024 (IOV_MAX)
# The other side sends no more. Other systems than Linux tell it only to who reads or writes.
_ENDED: int = getattr(select, "POLLRDHUP", 0)


class ReceiveBuffer:
    def __init__(self) -> None:
        self.view = memoryview(bytearray(_RECEIVE_BYTES))

    def release(self, transport: asyncio.WriteTransport | None) -> None:
        """Called after views of the buffer were written to `transport`."""
        if transport is not None and transport.get_write_buffer_size():
            self.view = memoryview(bytearray(_RECEIVE_BYTES))


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
    views: list[memoryview] = []
    for piece in pieces:
        if size <= 0:
            break
        views.append(piece[:size])
        size -= len(piece)
    return views


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
    pieces_left = _sent_at_once(transport, pieces)
    if pieces_left and sum(map(len, pieces)) - sum(map(len, pieces_left)) < SENT_BYTES_MAX:
        piece = pieces_left[0][:_GIVEN_BYTES_MAX]
        transport.write(piece)
        pieces_left = without_first(pieces_left, len(piece))
    return pieces_left


def _sent_at_once(transport: Transport, pieces: list[memoryview]) -> list[memoryview]:
    """Send nothing while the transport has unsent bytes. The transport reports socket errors."""
    plain = plain_socket(transport)
    if plain is None or transport.get_write_buffer_size():
        return pieces
    try:
        size = os.writev(plain.fileno(), first_bytes(pieces, SENT_BYTES_MAX)[:_SENT_PIECES_MAX])
    except OSError:
        return pieces
    return without_first(pieces, size)


class OtherSide(Enum):
    """What the kernel knows of a connection's other side."""

    THERE = "there"
    ENDED = (
        "ended"  # it sends no more; whether it still reads, nobody knows before it is written to
    )
    GONE = "gone"  # reset, or both directions have ended


def other_side(transport: asyncio.BaseTransport) -> OtherSide:
    """For connections that asyncio does not read, and so not watch: whatever is still unread."""
    raw_socket: TransportSocket | None = transport.get_extra_info("socket")
    if raw_socket is None:
        return OtherSide.THERE
    look = select.poll()
    # An error, and a hang-up of both directions, are reported in any case.
    look.register(raw_socket, _ENDED)
    events = [event for _, event in look.poll(0)]
    if not events:
        return OtherSide.THERE
    return OtherSide.ENDED if events == [_ENDED] else OtherSide.GONE


def plain_socket(transport: Transport) -> TransportSocket | None:
    """The socket whose bytes the peer sees unchanged; None: under TLS, or without a socket."""
    if transport.get_extra_info("sslcontext") is not None:
        return None
    raw_socket: TransportSocket | None = transport.get_extra_info("socket")
    return raw_socket
