"""The first response for an archived partition has records, however short the client's wait is."""

from __future__ import annotations

import pytest
from calm_replay import BATCH_OFFSETS, PlainReader, Replay, now, run_replay

from fetchproxy.config.schema import KiB, RemoteFetchConfig
from fetchproxy.reading.limits import ReadingLimits

BATCHES = 40


@pytest.mark.parametrize("wait_ms", [0, 1, 100])
def test_no_answer_is_empty(wait_ms: int) -> None:
    """kafka-go takes an empty response for a broken one and reconnects, so it makes no progress."""

    async def main(replay: Replay) -> None:
        reader = PlainReader("short", [replay.logs[0].tp], wait_ms=wait_ms)
        await reader.read(now() + 60, ends=BATCHES * BATCH_OFFSETS)
        assert reader.positions[replay.logs[0].tp] == BATCHES * BATCH_OFFSETS
        assert reader.responses == len(reader.taken)

    reading = ReadingLimits(chunk_bytes=16 * KiB, read_ahead_chunks_max=0)
    run_replay(
        RemoteFetchConfig(), main, partitions=1, batches=BATCHES, latency_s=0.04, reading=reading
    )
