"""While a client reads the tail, many replaying clients take one step in each event loop turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from typing import Any, cast

import pytest
from calm_replay import BATCH_BYTES, BATCH_OFFSETS, PlainReader, Replay, now, run_replay
from network import Conditions
from virtual_loop import VirtualTimeLoop

from fetchproxy.config.schema import KiB, RemoteFetchConfig
from fetchproxy.reading import segment_loads
from fetchproxy.reading.chunk_cache import Chunk
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.serving import session as client_session

BATCHES = 200
READERS = 16
PARTITIONS = 5  # the last one is the tail
# The cache is small, so the readers share little: each reads its data from the store.
CONFIG = RemoteFetchConfig(chunk_cache_bytes_max=32 * KiB)
READING = ReadingLimits(chunk_bytes=16 * KiB)
# Equal latency: requests sent together arrive together, so answers are due in the same turn.
EVEN = Conditions(latency_s_min=0.001, latency_s_max=0.001)


def counted_steps(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Count, by turn of the loop, the answers written and the chunks checked."""
    steps: Counter[int] = Counter()
    write_step, check_chunk = client_session.write_step, segment_loads.check_chunk

    def step() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        steps[loop.turns] += 1

    def counted_write(transport: asyncio.Transport, pieces: list[memoryview]) -> list[memoryview]:
        step()
        return write_step(transport, pieces)

    def counted_check(*arguments: Any) -> Generator[None, None, Chunk]:
        checks = check_chunk(*arguments)
        while True:
            step()
            try:
                next(checks)
            except StopIteration as ended:
                return cast(Chunk, ended.value)
            yield

    monkeypatch.setattr(client_session, "write_step", counted_write)
    monkeypatch.setattr(segment_loads, "check_chunk", counted_check)
    return steps


@pytest.mark.parametrize("tail_is_read", [True, False])
def test_replay_takes_one_step_a_turn_beside_a_tail(
    tail_is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = counted_steps(monkeypatch)

    async def main(replay: Replay) -> None:
        *archived, tail = (log.tp for log in replay.logs)
        readers = [PlainReader(f"{n}", [archived[n % len(archived)]]) for n in range(READERS)]
        end = now() + 60.0
        async with asyncio.TaskGroup() as group:
            if tail_is_read:
                of_tail = PlainReader("tail", [tail])
                reading = group.create_task(of_tail.read(end))
                await asyncio.sleep(1.0)  # the tail reader has had a response
            replaying = [
                group.create_task(reader.read(end, BATCHES * BATCH_OFFSETS)) for reader in readers
            ]
            await asyncio.wait(replaying)
            if tail_is_read:
                reading.cancel()
        assert [reader.size() for reader in readers] == [BATCHES * BATCH_BYTES] * READERS

    run_replay(
        CONFIG,
        main,
        partitions=PARTITIONS,
        batches=BATCHES,
        tail_batches=BATCHES,
        conditions=EVEN,
        reading=READING,
    )
    assert steps.total() > READERS
    if tail_is_read:
        assert max(steps.values()) == 1
    else:
        assert max(steps.values()) > 2, "nobody is held back where there is no tail"
