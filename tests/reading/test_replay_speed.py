"""The speed of a replay from a store 50 ms away, in virtual time: round trips and bandwidth."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from faulty_store import Faults
from hypothesis import given, settings
from hypothesis import strategies as st
from read_side import BATCH_BYTES, BATCH_OFFSETS, QUICK, ReadSide, batches, changed, now, read_side
from virtual_loop import run_virtual

from fetchproxy.model import IsolationLevel
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.reading.read_ahead import WINDOW_BESIDE_OTHERS_MAX
from fetchproxy.reading.segment_reader import CompletionReason

ROUND_TRIP_S = 0.05
FAR = Faults(latency_s_min=ROUND_TRIP_S, latency_s_max=ROUND_TRIP_S)
CHUNK_OFFSETS = 4 * BATCH_OFFSETS
# Read-ahead may take half of the places for reads.
IN_FLIGHT = ReadingLimits().fetcher_tasks_max // 2


async def replay(side: ReadSide, chunks: int, pause_s: float = 0.0, offset: int = 0) -> list[float]:
    """Read chunk after chunk as a consumer with pauses; return the time of each chunk."""
    at = []
    for _ in range(chunks):
        fetch = side.watch(side.request(offset, 4 * BATCH_BYTES), wait_s=30)
        await fetch.completed.wait()
        assert fetch.results()[0].size_bytes == 4 * BATCH_BYTES
        offset += CHUNK_OFFSETS
        at.append(now())
        await asyncio.sleep(pause_s)
    return at


@settings(max_examples=12, deadline=None)
@given(pause_ms=st.integers(0, 60), chunks_each=st.sampled_from([1, 3, 120]))
def test_a_sequential_reader_soon_has_the_bandwidth_of_parallel_reads(
    pause_ms: int, chunks_each: int
) -> None:
    """It takes ten chunks, whatever the segments' size and the reader's own pace."""

    async def main() -> None:
        async with read_side(limits=replace(QUICK, read_ahead_chunks_max=16)) as side:
            await side.history(480, 4 * chunks_each)
            side.store.faults = FAR
            at = await replay(side, 120, pause_ms / 1000)
            requests = 100 * (1 + 1 / chunks_each)  # each segment has an index to read
            parallel_s = requests / IN_FLIGHT * ROUND_TRIP_S
            # If each third read is an index, chunks wait for indexes.
            share = 0.85 if chunks_each > 3 else 0.65
            assert at[110] - at[10] <= max(parallel_s, 100 * pause_ms / 1000) / share

    run_virtual(main)


def test_the_room_for_reading_ahead_is_shared_by_streams() -> None:
    """Sixteen replays and room for twenty chunks: each gets some, and none waits much longer."""

    async def main() -> None:
        limits = replace(QUICK, read_ahead_chunks_max=16, fetcher_tasks_max=16)
        async with read_side(changed(chunk_cache_bytes_max=40 * 4_700), limits=limits) as side:
            await side.history(16 * 80)
            side.store.faults = FAR
            began_at = now()
            async with asyncio.TaskGroup() as tasks:
                replays = [
                    tasks.create_task(replay(side, 20, 0.01, 20 * CHUNK_OFFSETS * n))
                    for n in range(16)
                ]
            times = [task.result()[-1] - began_at for task in replays]
            assert max(times) <= 1.5 * min(times)
            assert side.log_reads() <= 1.1 * 16 * 20

    run_virtual(main)


def test_a_reader_whose_fetches_others_answer_gets_its_window_too() -> None:
    """The first partition is in memory, so fetches do not wait for the second; its reader does."""

    async def main() -> None:
        async with read_side(limits=replace(QUICK, read_ahead_chunks_max=16)) as side:
            await side.history(480)
            await side.watch(side.request(0, 4 * BATCH_BYTES)).completed.wait()
            side.store.faults = FAR
            offset, at = CHUNK_OFFSETS, [now()]
            while len(at) < 110:
                first, second = side.request(0, BATCH_BYTES), side.request(offset, 4 * BATCH_BYTES)
                fetch = side.watch(first, second)
                assert fetch.reason is CompletionReason.DATA
                if 1 in fetch.results():
                    offset += CHUNK_OFFSETS
                    at.append(now())
                await asyncio.sleep(0.001)
            assert at[-1] - at[10] <= 100 / WINDOW_BESIDE_OTHERS_MAX * ROUND_TRIP_S / 0.85

    run_virtual(main)


@pytest.mark.parametrize("cached", [False, True])
def test_the_first_record_after_a_cold_seek_takes_two_round_trips_and_one_with_the_index(
    cached: bool,
) -> None:
    async def main() -> None:
        async with read_side(limits=replace(QUICK, read_ahead_chunks_max=16)) as side:
            await side.segment(batches(side.rng, 0, 400))
            if cached:
                await side.watch(side.request(3_000)).completed.wait()
            side.store.faults = FAR
            reads = len(side.store.reads)
            began_at = now()
            fetch = side.watch(side.request(1_234))
            await fetch.completed.wait()
            assert fetch.results()[0].size_bytes > 0
            trips = (now() - began_at) / ROUND_TRIP_S
            assert trips == pytest.approx(1 if cached else 2)
            assert len(side.store.reads) - reads == round(trips)

    run_virtual(main)


def test_a_warm_seek_takes_none() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 40))
            await side.watch(side.request(123)).completed.wait()
            side.store.faults = FAR
            reads = len(side.store.reads)
            fetch = side.watch(side.request(130))
            assert fetch.results()[0].size_bytes > 0  # within the same step of the loop
            assert len(side.store.reads) == reads

    run_virtual(main)


def test_a_hundred_readers_of_one_history_cost_one_download() -> None:
    async def main() -> None:
        async with read_side(limits=replace(QUICK, read_ahead_chunks_max=16)) as side:
            await side.segment(batches(side.rng, 0, 400))
            side.store.faults = FAR
            async with asyncio.TaskGroup() as tasks:
                for n in range(100):
                    tasks.create_task(replay(side, 100, 0.001 * (n % 7)))
            assert side.log_reads() == 100
            assert max(side.store.same_in_flight_max.values()) == 1

    run_virtual(main)


def test_a_random_reader_reads_little_that_it_does_not_ask_for() -> None:
    async def main() -> None:
        async with read_side(limits=replace(QUICK, read_ahead_chunks_max=16)) as side:
            await side.history(2_000)
            side.store.faults = FAR
            for _ in range(200):
                chunk = side.rng.randrange(0, 500)
                await replay(side, 1, offset=chunk * CHUNK_OFFSETS)
                await asyncio.sleep(1)
            assert side.log_reads() <= 200

    run_virtual(main)


def test_the_next_segments_aborted_list_is_there_before_its_reader() -> None:
    async def main() -> None:
        async with read_side(limits=replace(QUICK, read_ahead_chunks_max=4)) as side:
            await side.segment(batches(side.rng, 0, 40))
            second = batches(side.rng, 400, 40)
            await side.segment(second, aborted=[(7, 410, 450)])
            side.store.faults = FAR
            waited = []
            for n in range(20):
                request = side.request(40 * n, 4 * BATCH_BYTES, IsolationLevel.READ_COMMITTED)
                fetch = side.watch(request)
                waited.append(fetch.reason is None)
                await fetch.completed.wait()
                await asyncio.sleep(1)
            assert waited == [True, True] + [False] * 18

    run_virtual(main)


def test_nothing_is_read_ahead_when_the_read_side_is_closed() -> None:
    async def main() -> None:
        async with read_side(limits=replace(QUICK, read_ahead_chunks_max=4)) as side:
            await side.segment(batches(side.rng, 0, 40))
            await side.watch(side.request(0, BATCH_BYTES)).completed.wait()
            purgatory: RemoteFetchPurgatory = side.purgatory
            await purgatory.__aexit__(None, None, None)
            reads = len(side.store.reads)
            assert side.in_memory(side.request(10, BATCH_BYTES)) is None
            await asyncio.sleep(1)
            assert len(side.store.reads) == reads

    run_virtual(main)
