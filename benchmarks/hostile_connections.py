"""Hostile connections without credentials, in a process of their own.

`python -m benchmarks.hostile_connections HOST:PORT COUNT` runs until its standard input ends, with
a low priority, for which it needs a session of its own. Then it prints how often each attack was
made. Each connection repeats one kind of attack. If the server refuses or closes a connection, the
attack continues on a new one.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

# The bytes that one connection sends in a second are limited, so that the sender does not use a
# whole core. The machine's other clients would suffer from that even without a proxy.
PAUSE_S = 0.05
PIECE_BYTES = 64 * 1024
FETCH, LIST_OFFSETS, METADATA, PRODUCE, API_VERSIONS = 1, 2, 3, 0, 18
SASL_HANDSHAKE, DELETE_RECORDS, EPOCHS, SASL_AUTHENTICATE = 17, 21, 23, 36
MIB = 1024 * 1024
_NICENESS = 10
_AUTOGROUP = Path("/proc/self/autogroup")

Pieces = Iterator[bytes]


def head(size: int, api_key: int, version: int) -> bytes:
    return struct.pack(">ihhih", size, api_key, version, 7, -1)


def _in_pieces(data: bytes, size: int = PIECE_BYTES) -> Pieces:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def endless_header() -> Pieces:
    """Empty tagged fields: first 1 MiB of them, then one byte at a time."""
    yield head(90 * MIB, METADATA, 12) + b"\xff\xff\xff\xff\x07"
    yield from _in_pieces(bytes(MIB))
    for _ in range(100):
        yield b"\x00"


def half_a_frame() -> Pieces:
    """Most of a Fetch of 90 MiB, in small pieces."""
    yield head(90 * MIB, FETCH, 11)
    for _ in range(20 * MIB // PIECE_BYTES):
        yield bytes(PIECE_BYTES)


def many_partitions() -> Pieces:
    """A Fetch v4 of 120,000 partitions, the largest that the proxy may hold."""
    entries = b"".join(struct.pack(">iqi", number, 0, 1) for number in range(120_000))
    body = struct.pack(">iiiibi", -1, 0, 0, 1, 0, 1) + struct.pack(">h", 1) + b"t"
    body += struct.pack(">i", 120_000) + entries
    yield head(10 + len(body), FETCH, 4)
    yield from _in_pieces(body)


def ten_thousand_partitions() -> Pieces:
    """A legal Fetch v12."""
    entry = struct.Struct(">iiqiqiB")
    entries = b"".join(entry.pack(n, -1, 0, -1, 0, 1, 0) for n in range(10_000))
    body = b"\x00" + struct.pack(">iiiiBii", -1, 0, 0, 1, 0, 0, -1)
    body += b"\x02\x02t\x91\x4e" + entries + b"\x00\x01\x01\x00"
    yield head(10 + len(body), FETCH, 12)
    yield from _in_pieces(body)


def tagged_partitions() -> Pieces:
    """A Fetch v12 whose partition has a million empty tagged fields."""
    body = b"\x00" + struct.pack(">iiiiBii", -1, 0, 0, 1, 0, 0, -1) + b"\x02\x02t\x02"
    body += struct.pack(">iiqiqi", 0, -1, 0, -1, 0, 1) + b"\xc0\x84\x3d" + bytes(3 * MIB // 2)
    yield head(10 + len(body), FETCH, 12)
    yield from _in_pieces(body)


def many_look_ups() -> Pieces:
    entries = b"".join(struct.pack(">iq", number, -2) for number in range(100_000))
    body = struct.pack(">ii", -1, 1) + struct.pack(">h", 1) + b"t"
    body += struct.pack(">i", 100_000) + entries
    yield head(10 + len(body), LIST_OFFSETS, 1)
    yield from _in_pieces(body)


def many_epochs() -> Pieces:
    entries = b"".join(struct.pack(">iii", number, -1, 0) for number in range(60_000))
    body = struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", 60_000) + entries
    yield head(10 + len(body), EPOCHS, 2)
    yield from _in_pieces(body)


def many_deletions() -> Pieces:
    entries = b"".join(struct.pack(">iq", number, 1) for number in range(10_000))
    body = struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", 10_000) + entries
    body += struct.pack(">i", 1_000)
    yield head(10 + len(body), DELETE_RECORDS, 1)
    yield from _in_pieces(body)


def guessed_password() -> Pieces:
    """A PLAIN login with a guessed password, once per connection."""
    yield head(17, SASL_HANDSHAKE, 1) + struct.pack(">h", 5) + b"PLAIN"
    token = b"\0alice\0guess"
    yield head(14 + len(token), SASL_AUTHENTICATE, 0) + struct.pack(">i", len(token)) + token


def a_byte_at_a_time() -> Pieces:
    """A legal request whose header arrives one byte at a time."""
    yield head(200, METADATA, 1)
    for _ in range(100):
        yield b"\x00"


def endless_transaction() -> Pieces:
    """A Produce whose transactional id is 80 MiB long."""
    yield head(90 * MIB, PRODUCE, 9) + b"\x00\x81\x80\x80\x28"
    for _ in range(5 * MIB // PIECE_BYTES):
        yield bytes(PIECE_BYTES)


def pipelined() -> Pieces:
    """Ten thousand requests, while the client reads no response."""
    one = head(10, API_VERSIONS, 0)
    for _ in range(100):
        yield one * 100


def nothing() -> Pieces:
    """Connects and closes."""
    yield b""


HARMS: tuple[Callable[[], Pieces], ...] = (
    endless_header,
    half_a_frame,
    many_partitions,
    ten_thousand_partitions,
    tagged_partitions,
    many_look_ups,
    many_epochs,
    many_deletions,
    guessed_password,
    a_byte_at_a_time,
    endless_transaction,
    pipelined,
    nothing,
)


@cache
def _made(harm: Callable[[], Pieces]) -> list[bytes]:
    """Built once: it stands for clients on other machines, so it must use little CPU here."""
    return list(harm())


async def _pieces(harm: Callable[[], Pieces]) -> AsyncIterator[bytes]:
    for piece in _made(harm):
        yield piece
        await asyncio.sleep(PAUSE_S)


async def do(harm: Callable[[], Pieces], host: str, port: int) -> None:
    """Makes one attack on a connection of its own. Raises OSError if the other side closed it."""
    reader, writer = await asyncio.open_connection(host, port)
    # The connection is reset on close: a port that lingers is not available to the next connection.
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    try:
        async for piece in _pieces(harm):
            writer.write(piece)
            async with asyncio.timeout(1.0):
                await writer.drain()
            if reader.at_eof():
                return
        if harm is not pipelined:
            async with asyncio.timeout(1.0):
                await reader.read(PIECE_BYTES)
    finally:
        writer.close()


async def _again_and_again(number: int, host: str, port: int, done: Counter[str]) -> None:
    harm = HARMS[number % len(HARMS)]
    while True:
        done[harm.__name__] += 1  # counted at its start: a slow one may outlast a short measurement
        with suppress(OSError, TimeoutError):  # refused, as it should be, or no longer read
            await do(harm, host, port)
        await asyncio.sleep(PAUSE_S)


async def main(bootstrap: str, count: int) -> Counter[str]:
    host, _, port = bootstrap.rpartition(":")
    done: Counter[str] = Counter()
    async with asyncio.TaskGroup() as group:
        harming = [
            group.create_task(_again_and_again(number, host, int(port), done))
            for number in range(count)
        ]
        await asyncio.to_thread(sys.stdin.read)
        for task in harming:
            task.cancel()
    return done


def yield_to_others() -> None:
    """These clients stand for some on other machines, so everybody else on this one goes first.

    Where Linux groups processes by session (autogroup), a niceness only counts among those of one
    session, and each server of a benchmark has its own. There the session's group has a niceness.
    """
    os.nice(_NICENESS)
    with suppress(FileNotFoundError, ProcessLookupError):
        _AUTOGROUP.write_text(str(_NICENESS))


if __name__ == "__main__":
    yield_to_others()
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2])))))
