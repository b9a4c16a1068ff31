"""What all attacks are made of: the family's signature, and connections that send and listen."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from victims import Victim, open_tcp

# An attack that waits this long for a response goes on without it.
RESPONSE_S_MAX = 5.0


class Attack(NamedTuple):
    """`what`: in one line, for the person who reads of it."""

    what: str
    run: Callable[[Victim], Awaitable[None]]


# The same seed and kind of victim make the same attack.
Family = Callable[[random.Random, Victim], Attack]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def heard(reader: asyncio.StreamReader, responses: int) -> int:
    """How many frames came before the connection ended or was silent for long. Reads them all."""
    count = 0
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        while count < responses:
            async with asyncio.timeout(RESPONSE_S_MAX):
                (bytes_left,) = struct.unpack(">i", await reader.readexactly(4))
                while bytes_left > 0:
                    bytes_left -= len(piece := await reader.read(min(bytes_left, 1 << 20)))
                    if not piece:
                        return count
            count += 1
    return count


async def send(writer: asyncio.StreamWriter, frames: Iterable[bytes]) -> None:
    """Gives up if the other side takes nothing for long, or closes."""
    with contextlib.suppress(OSError, TimeoutError):
        for frame in frames:
            if writer.is_closing():
                return
            writer.write(frame)
            async with asyncio.timeout(RESPONSE_S_MAX):
                await writer.drain()


async def exchange(victim: Victim, frames: list[bytes], pause_s: float = 0.0) -> int:
    """Sends all on one connection and hears the answers; how many came."""
    connection = await opened(victim)
    if connection is None:
        return 0
    reader, writer = connection
    sending = asyncio.create_task(send(writer, frames))
    count = await heard(reader, len(frames))
    sending.cancel()
    if pause_s:
        await asyncio.sleep(pause_s)
    reset(writer)
    return count


async def opened(victim: Victim) -> Connection | None:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(RESPONSE_S_MAX):
            return await open_tcp(victim)
    return None


async def open_many(victim: Victim, count: int) -> list[Connection]:
    connections: list[Connection] = []
    for _ in range(0, count, 100):
        made = await asyncio.gather(
            *(opened(victim) for _ in range(min(100, count - len(connections))))
        )
        connections += [each for each in made if each is not None]
    return connections


def reset(writer: asyncio.StreamWriter) -> None:
    """On close, so that no port lingers."""
    writer.transport.abort()


def close_all(connections: Iterable[Connection]) -> None:
    for _, writer in connections:
        reset(writer)
