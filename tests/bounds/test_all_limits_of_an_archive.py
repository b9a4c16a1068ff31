"""An archive-only process at all its limits at once stays within its memory plan, and still serves.

With 20,000 partitions, silent TLS clients, handshakes that do not end, readers that take nothing,
groups and commits up to their limits, halves of requests, large requests, look-ups by time of what
unpacks to much, and forged lists of aborted transactions. `tls/test_all_limits_at_once.py` does the
same with the relay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import pytest
from attack_parts import Connection, exchange
from blown_messages import Shape, request
from bomb_archive import BOMBS, FORGED, packed_batch, plant
from certificates import Authority
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.headers import request_header
from memory_object_store import MemoryObjectStore
from planted_archive import PlantedArchive
from victims import MEMORY_BYTES_MAX, Bystander, Victim, open_tcp
from wire_attacks import _commit, _fetch_of_all

from fetchproxy.config.memory_plan import TLS_HANDSHAKES_MAX
from fetchproxy.config.schema import MiB
from fetchproxy.model import TopicIdPartition

BULKY = "bulky"
BULKY_PARTITIONS = 60  # each a segment of 4 MiB: more than all that reads may keep
BATCH_BYTES = 1 * MiB
CHUNKS, ANSWERS = "remote_fetch.chunk_cache_bytes_max", "gateway.remote_answers_bytes_max"
FULL = 20  # MiB, where each of the two has some 40
LOG_DIRS = request_header(ApiKey.DESCRIBE_LOG_DIRS, 1, 7, "all") + struct.pack(">i", -1)


async def plant_bulky(folder: Path) -> None:
    planted = PlantedArchive(MemoryObjectStore())
    packed = bytes(BATCH_BYTES - 100)
    for number in range(BULKY_PARTITIONS):
        tp = TopicIdPartition(UUID(int=500), BULKY, number)
        await planted.add([packed_batch(base, 0, packed, 1) for base in range(4)], tp=tp)
    async for stored_object in planted.store.list(""):
        file = folder / stored_object.key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(await planted.store.get(stored_object.key))


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def fetch_bulky(first: int) -> bytes:
    """Of four partitions, as many bytes as a response may have."""
    numbers = [(first + n) % BULKY_PARTITIONS for n in range(4)]
    rows = b"".join(struct.pack(">iqi", number, 0, 16 * MiB) for number in numbers)
    body = struct.pack(">iiiib", -1, 500, 1, 16 * MiB, 0) + struct.pack(">ih", 1, len(BULKY))
    head = request_header(ApiKey.FETCH, 4, 7, f"slow-{first}")
    return framed(head + body + BULKY.encode() + struct.pack(">i", len(numbers)) + rows)


def fetches_of_bulky(first: int) -> bytes:
    """One after the other: the first responses fit into the buffers of sockets."""
    return b"".join(fetch_bulky(first + 11 * n) for n in range(8))


def join(number: int) -> bytes:
    """A member that brings 900 KB, which the group keeps."""
    head = request_header(ApiKey.JOIN_GROUP, 1, 7, "member")
    group, brought = f"group-{number}".encode(), bytes(900_000)
    body = struct.pack(">h", len(group)) + group + struct.pack(">iih", 30_000, 60_000, 0)
    body += struct.pack(">h", 8) + b"consumer" + struct.pack(">ih", 1, 5) + b"range"
    return framed(head + body + struct.pack(">i", len(brought)) + brought)


def half_a_request() -> bytes:
    """One that is accumulated, but for its last bytes."""
    return struct.pack(">ihhih", 1_000_000, ApiKey.FETCH, 4, 7, -1) + bytes(900_000)


def by_time(topic: str) -> bytes:
    fixed = {"Timestamp": 200_007, "PartitionIndex": 0}
    return request(ApiKey.LIST_OFFSETS, 5, Shape(names="known", known=topic, fixed=fixed))


def committed_read(topic: str) -> bytes:
    fixed = {"FetchOffset": 10, "Partition": 0, "IsolationLevel": 1, "PartitionMaxBytes": MiB}
    return request(ApiKey.FETCH, 4, Shape(names="known", known=topic, fixed=fixed))


async def opened(victim: Victim, count: int) -> list[Connection]:
    """A few at a time: each client waits for its handshake alone."""
    at_once = asyncio.Semaphore(8)

    async def one() -> Connection:
        async with at_once:
            return await open_tcp(victim)

    return await asyncio.gather(*(one() for _ in range(count)))


def throw(connections: Iterable[Connection], frame: Callable[[int], bytes]) -> None:
    """Send without waiting. Nobody reads the responses."""
    for number, (reader, writer) in enumerate(connections):
        transport = writer.transport
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        if not transport.is_closing():
            writer.write(frame(number))


@asynccontextmanager
async def archive_victim(folder: Path, connections: int) -> AsyncIterator[Victim]:
    await plant(folder / "store")
    await plant_bulky(folder / "store")
    certificate = Authority(folder / "tls").issue("node")
    options = ["--store", (folder / "store" / "archive").as_uri(), "--archive-only"]
    for setting in (
        f"archive_only.offsets_file={folder / 'offsets.json'}",
        f"gateway.tls_certificate_file={certificate}",
        f"gateway.connections_max={connections}",
    ):
        options += ["--set", setting]
    victim = Victim("archive", options, folder, tls=True)
    await victim.start()
    try:
        yield victim
    finally:
        await victim.stop()


async def reached(victim: Victim) -> dict[str, int]:
    """MiB in use of each part that says so."""
    _, text = await victim.get("/metrics")
    name = 'fetchproxy_memory_used_bytes{part="'
    lines = [line.removeprefix(name) for line in text.splitlines() if line.startswith(name)]
    return {line.partition('"')[0]: int(float(line.split()[-1])) >> 20 for line in lines}


async def everything_at_once(victim: Victim, silent: int, handshakes: int) -> dict[str, int]:
    """Returns the most that each part has had in use, in MiB."""
    most: dict[str, int] = {}

    async def watch() -> None:
        while True:
            for part, used in (await reached(victim)).items():
                most[part] = max(most.get(part, 0), used)
            await asyncio.sleep(0.2)

    watching = asyncio.create_task(watch())
    await opened(victim, silent)
    for _ in range(handshakes):
        _, writer = await victim.connected(victim.port)
        writer.write(b"\x16\x03\x01\x02\x00\x01")  # a hello that goes on
    # Commits up to their number, members up to the memory of groups.
    for number in range(5):
        await exchange(victim, [_commit(f"commits-{number}", number)])
    slow, joining, halves, many = [await opened(victim, n) for n in (40, 70, 80, 12)]
    throw(slow, fetches_of_bulky)
    async with asyncio.timeout(120):
        while most.get(ANSWERS, 0) < FULL:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    throw(joining, join)
    throw(halves, lambda _: half_a_request())
    throw(many, lambda _: _fetch_of_all())
    others = [exchange(victim, [framed(LOG_DIRS)]) for _ in range(2)]
    others += [exchange(victim, [by_time(topic)]) for topic in BOMBS]
    others += [exchange(victim, [committed_read(topic)]) for topic in FORGED]
    others += [exchange(victim, [_commit("crowd", n)]) for n in range(3)]
    await asyncio.gather(*others)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError, OSError, TimeoutError):
        await watching
    assert victim.running
    victim.close_what_is_open()
    await asyncio.sleep(0)  # in which transports close their sockets
    return most


async def within_the_plan(folder: Path, silent: int, handshakes: int) -> None:
    async with archive_victim(folder, silent + handshakes + 400) as victim:
        victim.forget_peak()
        most = await everything_at_once(victim, silent, handshakes)
        figures = await victim.figures()
        print(f"at most {figures.peak_bytes >> 20} MiB of {MEMORY_BYTES_MAX >> 20}; {most}")
        bystander = Bystander(victim)
        serves = asyncio.create_task(bystander.run())
        async with asyncio.timeout(60):
            while not bystander.requests:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        serves.cancel()
        assert figures.peak_bytes <= MEMORY_BYTES_MAX
        assert not figures.bad
        assert most[CHUNKS] >= FULL, most


def test_all_limits_of_an_archive_at_once(tmp_path: Path) -> None:
    asyncio.run(within_the_plan(tmp_path, 200, 100))


@pytest.mark.slow
def test_all_limits_of_an_archive_with_thousands_of_clients(tmp_path: Path) -> None:
    silent = int(os.environ.get("SILENT_CLIENTS", 1_500))
    asyncio.run(within_the_plan(tmp_path, silent, TLS_HANDSHAKES_MAX - 1))
