"""A real socket gets a response's pieces unchanged and in order, whatever it takes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.serving.transport import (
    SENT_BYTES_MAX,
    first_bytes,
    join_small,
    without_first,
    write_step,
)

PIECES = st.lists(st.binary(max_size=20), max_size=8)


@given(PIECES, st.integers(0, 100))
def test_the_first_bytes_and_the_others(pieces: list[bytes], size: int) -> None:
    views, whole = list(map(memoryview, pieces)), b"".join(pieces)
    assert b"".join(first_bytes(views, size)) == whole[:size]
    assert b"".join(without_first(views, size)) == whole[size:]


@given(st.lists(st.sampled_from([b"a" * 10, b"b" * 40_000, b"c" * 200_000]), max_size=6))
def test_only_small_neighbours_are_joined(pieces: list[bytes]) -> None:
    joined = list(join_small(pieces))
    assert b"".join(joined) == b"".join(pieces)
    assert [each for each in joined if len(each) >= 32 * 1024] == [
        each for each in pieces if len(each) >= 32 * 1024
    ]


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.Transport, asyncio.StreamReader]]:
    """A transport, and a reader at its other end."""
    ends: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(
        lambda reader, writer: ends.put_nowait((reader, writer)), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    transport, _ = await asyncio.get_running_loop().create_connection(
        asyncio.Protocol, "127.0.0.1", port
    )
    reader, writer = await ends.get()
    try:
        yield cast(asyncio.Transport, transport), reader
    finally:
        transport.abort()
        writer.close()
        server.close()
        await asyncio.sleep(0)


async def test_a_large_answer_goes_in_steps() -> None:
    rng = Random(1)
    pieces = [rng.randbytes(size) for size in (30, 3_000_000, 40, 5_000_000, 7)]
    async with connection() as (transport, reader):
        pieces_left = [memoryview(piece) for piece in pieces]
        received = b""
        while pieces_left:
            before = sum(map(len, pieces_left))
            pieces_left = write_step(transport, pieces_left)
            assert before - sum(map(len, pieces_left)) <= SENT_BYTES_MAX + 256 * 1024
            while len(received) < sum(map(len, pieces)) - sum(map(len, pieces_left)):
                received += await reader.read(1 << 20)
    assert received == b"".join(pieces)


@pytest.mark.parametrize("size", [1, 40_000, 300_000, 3_000_000])
async def test_a_slow_reader_gets_every_byte_in_order(size: int) -> None:
    """Pieces of any size, more than one system call takes, and a socket that is often full."""
    rng = Random(size)
    pieces = [rng.randbytes(rng.randint(1, size)) for _ in range(max(5, min(3_000, 2**25 // size)))]
    whole = b"".join(pieces)
    async with connection() as (transport, reader):
        received = bytearray()

        async def read() -> None:
            while len(received) < len(whole):
                received.extend(await reader.read(rng.randint(1, 1 << 20)))
                await asyncio.sleep(rng.choice([0, 0, 0.001]))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            pieces_left = [memoryview(piece) for piece in pieces]
            while pieces_left:
                pieces_left = write_step(transport, pieces_left)
                while transport.get_write_buffer_size() > 64 * 1024:  # noqa: ASYNC110 - nobody is told
                    await asyncio.sleep(0)
        assert received == whole


async def test_nothing_overtakes_what_waits() -> None:
    async with connection() as (transport, reader):
        waits = bytes(64 * 1024 * 1024)
        transport.write(waits)
        assert transport.get_write_buffer_size() > 0
        assert write_step(transport, [memoryview(b"later")]) == []
        assert await reader.readexactly(len(waits) + 5) == waits + b"later"
