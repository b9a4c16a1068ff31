"""An answer in pieces: joined where they are small, and sent from where they lie."""

from __future__ import annotations

import os
from asyncio import Transport
from collections.abc import Iterable, Iterator

from fetchproxy.gateway.record_pipe import plain_socket
from protocol.primitives import Buffer

_JOINED_BYTES_MAX = 32 * 1024  # a system call costs as much as copying about this
# In one step, well below a millisecond: an answer with 1 MiB of records, as consumers ask of a
# partition, is one.
SENT_BYTES_MAX = 2 * 1024 * 1024
_GIVEN_BYTES_MAX = 256 * 1024  # at a time: a transport copies what it cannot send at once
_SENT_PIECES_MAX = 1000  # Linux takes 1024 (IOV_MAX)


def join_small(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes with neighbours below `_JOINED_BYTES_MAX` in one piece."""
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
    """The first `size` bytes of `pieces`."""
    found: list[memoryview] = []
    for piece in pieces:
        if size <= 0:
            break
        found.append(piece[:size])
        size -= len(piece)
    return found


def without_first(pieces: list[memoryview], size: int) -> list[memoryview]:
    """What is left of `pieces` behind their first `size` bytes."""
    for number, piece in enumerate(pieces):
        if size < len(piece):
            return [piece[size:], *pieces[number + 1 :]]
        size -= len(piece)
    return []


def write_step(transport: Transport, pieces: list[memoryview]) -> list[memoryview]:
    """Write some of `pieces` and return the others, to be written when the transport is writable.

    What the socket takes of SENT_BYTES_MAX goes in one system call; where it is full, and under
    TLS, the transport is given the next piece.
    """
    left = _sent_at_once(transport, pieces)
    if left and sum(map(len, pieces)) - sum(map(len, left)) < SENT_BYTES_MAX:
        given = left[0][:_GIVEN_BYTES_MAX]
        transport.write(given)
        left = without_first(left, len(given))
    return left


def _sent_at_once(transport: Transport, pieces: list[memoryview]) -> list[memoryview]:
    """Nothing is sent in front of bytes that wait. Errors of the socket are the transport's."""
    plain = plain_socket(transport)
    if plain is None or transport.get_write_buffer_size():
        return pieces
    try:
        sent = os.writev(plain.fileno(), first_bytes(pieces, SENT_BYTES_MAX)[:_SENT_PIECES_MAX])
    except OSError:
        return pieces
    return without_first(pieces, sent)
