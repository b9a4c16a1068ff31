"""How many modules one fetch passes, and how often one calls another.

The test limits how much code a reader has to follow. It counts in a proxy without faults, for a
fetch that follows four others of the same kind.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import pytest
from calm_replay import BATCH_OFFSETS, VERSION, PlainReader, Replay, now, run_replay
from client_connection import FETCH_RESPONSE, ClientFetchSession, FetchEntry

from fetchproxy.config.schema import KiB, RemoteFetchConfig
from fetchproxy.reading.limits import ReadingLimits

PRODUCT_PREFIXES = ("fetchproxy.", "fetchproxy_protocol.")
VIEWS = "fetchproxy.metadata.store_backed"
LIMITS = {"max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
PARTITION_BYTES = 4 * KiB


@dataclass(slots=True)
class Walk:
    """`calls`: direct calls from one of our modules into another."""

    modules: set[str] = field(default_factory=set)
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def both_ways(self) -> list[tuple[str, str]]:
        return sorted((a, b) for a, b in self.calls if a < b and (b, a) in self.calls)

    def description(self) -> str:
        return "\n".join(
            [
                f"{len(self.modules)} modules, {self.calls.total()} calls; "
                f"both ways: {self.both_ways()}",
                *(f"{n:3} {a} -> {b}" for (a, b), n in self.calls.most_common()),
            ]
        )


@contextmanager
def walking(walk: Walk) -> Iterator[None]:
    frames_seen: set[FrameType] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        # A resumed generator or coroutine is entered again: that is not a new call.
        if event != "call" or not name.startswith(PRODUCT_PREFIXES) or frame in frames_seen:
            return
        frames_seen.add(frame)
        walk.modules.add(name)
        caller = frame.f_back
        asked_by = "" if caller is None else caller.f_globals.get("__name__", "")
        if asked_by.startswith(PRODUCT_PREFIXES) and asked_by != name:
            walk.calls[asked_by, name] += 1

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


async def walk_of_a_fetch(replay: Replay, partition: int, first: int) -> Walk:
    """The walk of the fifth fetch in a row; each of them gets records."""
    log = replay.logs[partition]
    connection = await PlainReader("walker", [log.tp]).dial()
    session, position, walk = ClientFetchSession(False), first, Walk()
    for number in range(5):
        if log.high_watermark == position:
            log.write(1)
            log.replicate(now())
        entries = {log.tp: FetchEntry(position, PARTITION_BYTES)}
        request, _ = session.request(entries, VERSION, LIMITS)
        if number == 4:
            with walking(walk):
                response = await connection.ask(request, FETCH_RESPONSE, VERSION)
        else:
            response = await connection.ask(request, FETCH_RESPONSE, VERSION)
        size = sum(
            len(part.records or b"")
            for topic in response.message.responses
            for part in topic.partitions
        )
        if not size:  # the first fetch is caught
            assert number == 0
            await asyncio.sleep(1)
        position += BATCH_OFFSETS * (size // 1_000)
    await connection.close()
    return walk


def walk_of(partition: int, first: int) -> Walk:
    walks: list[Walk] = []

    async def main(replay: Replay) -> None:
        walks.append(await walk_of_a_fetch(replay, partition, first))

    reading = ReadingLimits(chunk_bytes=256 * KiB)
    run_replay(
        RemoteFetchConfig(), main, partitions=2, batches=200, tail_batches=1, reading=reading
    )
    return walks[0]


@pytest.mark.parametrize(
    ("partition", "first", "modules_max", "calls_max"),
    [(1, 0, 12, 29), (0, 0, 24, 94)],
    ids=["tail", "archive"],
)
def test_a_walk_is_short(partition: int, first: int, modules_max: int, calls_max: int) -> None:
    walk = walk_of(partition, first)
    assert len(walk.modules) <= modules_max, walk.description()
    assert walk.calls.total() <= calls_max, walk.description()
    # The view of an archived partition is looked up once.
    assert sum(n for (_, called), n in walk.calls.items() if called == VIEWS) == (partition == 0)
    # GatewaySession subclasses the client session, and each calls methods of the other.
    assert walk.both_ways() == [
        ("fetchproxy.serving.gateway.session", "fetchproxy.serving.session")
    ]
