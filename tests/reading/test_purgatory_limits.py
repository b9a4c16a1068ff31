"""Limits of entries, bytes, caches and read-ahead."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from faulty_store import HANG
from read_side import (
    BATCH_BYTES,
    QUICK,
    SLOW,
    at_rest,
    batches,
    changed,
    fetched,
    read_side,
)
from reads_under_way import cached_bytes, under_way
from virtual_loop import run_virtual

from fetchproxy.config.schema import KiB
from fetchproxy.reading.segment_reader import CompletionReason


@pytest.mark.parametrize(
    ("bytes_max", "sizes"),
    [
        (1, {0: 1000}),
        (1999, {0: 1000}),
        (2000, {0: 1000, 1: 1000}),
        (10_000, {0: 1000, 1: 1000, 2: 1000}),
    ],
)
def test_bytes_are_bounded_across_the_partitions_of_a_fetch(
    bytes_max: int, sizes: dict[int, int]
) -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 12))
            for offset in (0, 40, 80):
                await fetched(side, offset)
            requests = [side.request(offset, BATCH_BYTES) for offset in (0, 40, 80)]
            fetch = side.watch(*requests, bytes_max=bytes_max)
            assert {i: r.size_bytes for i, r in fetch.results().items()} == sizes

    run_virtual(main)


def test_no_more_is_read_than_the_answer_could_hold() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 40))
            requests = [side.request(40 * n, 1_000) for n in range(10)]
            fetch = side.watch(*requests, bytes_max=3_000)
            await fetch.completed.wait()
            await asyncio.sleep(5)
            assert side.log_reads() == 3

    run_virtual(main)


def test_a_full_purgatory_waits_and_does_not_fail() -> None:
    async def main() -> None:
        async with read_side(limits=replace(QUICK, purgatory_entries_max=2)) as side:
            await side.segment(batches(side.rng, 0, 40))
            side.store.faults = SLOW
            waiting = [side.watch(side.request(40 * n), wait_s=3) for n in range(4)]
            status = under_way(side.purgatory)
            assert (status.entries, status.fetches_waiting_for_place) == (2, 2)
            patient = side.watch(side.request(160), wait_s=60)
            for fetch in waiting:
                await fetch.completed.wait()
            assert [fetch.reason for fetch in waiting] == [CompletionReason.DEADLINE] * 4
            await patient.completed.wait()
            assert patient.reason is CompletionReason.DATA
            await asyncio.sleep(60)
            assert at_rest(side)

    run_virtual(main)


def test_reads_that_nobody_watches_are_bounded_the_oldest_goes() -> None:
    async def main() -> None:
        async with read_side(limits=replace(QUICK, purgatory_entries_max=3)) as side:
            await side.segment(batches(side.rng, 0, 40))
            side.store.faults = HANG
            for n in range(10):
                side.purgatory.warm(side.request(n))
            await asyncio.sleep(1)
            assert under_way(side.purgatory).pending_reads == 3

    run_virtual(main)


def test_a_crowded_cache_takes_nothing_from_who_waits_for_it() -> None:
    async def main() -> None:
        async with read_side(changed(chunk_cache_bytes_max=5 * KiB)) as side:
            await side.segment(batches(side.rng, 0, 40))
            side.store.faults = SLOW
            waiting = [
                side.watch(side.request(40 * n, 4 * BATCH_BYTES), wait_s=30) for n in range(10)
            ]
            for fetch in waiting:
                await fetch.completed.wait()
                assert fetch.results()[0].size_bytes == 4 * BATCH_BYTES
            assert side.log_reads() == 10

    run_virtual(main)


def test_a_cache_that_holds_nothing_still_serves() -> None:
    async def main() -> None:
        async with read_side(changed(chunk_cache_bytes_max=0)) as side:
            stored = batches(side.rng, 0, 40)
            await side.segment(stored)
            side.store.faults = SLOW
            served, offset = b"", 0
            while offset < 400:
                fetch = await fetched(side, offset)
                for result in fetch.results().values():
                    served += b"".join(result.records)
                offset = 10 * (len(served) // BATCH_BYTES)
            assert served == b"".join(b.content for b in stored)

    run_virtual(main)


def test_a_sequential_reader_finds_its_chunks_read_ahead_across_segments() -> None:
    async def main() -> None:
        async with read_side(limits=replace(QUICK, read_ahead_chunks_max=2)) as side:
            stored = batches(side.rng, 0, 40)
            for n in range(4):
                await side.segment(stored[10 * n : 10 * n + 10])
            waited = []
            for n in range(40):
                request = side.request(10 * n, BATCH_BYTES)
                fetch = side.watch(request)
                waited.append(fetch.reason is None)
                await fetch.completed.wait()
                assert fetch.results()[0].records[0] == stored[n].content
                await asyncio.sleep(1)
            assert waited == [True] + [False] * 39
            assert side.log_reads() == 12

    run_virtual(main)


def test_read_ahead_leaves_half_of_the_cache_to_others() -> None:
    async def main() -> None:
        limits = replace(QUICK, read_ahead_chunks_max=50)
        async with read_side(changed(chunk_cache_bytes_max=40 * KiB), limits=limits) as side:
            await side.segment(batches(side.rng, 0, 200))
            for n in range(6):
                await fetched(side, 40 * n)
                await fetched(side, 40 * n + 20)
                await asyncio.sleep(1)
            assert cached_bytes(side.purgatory) <= 40 * KiB
            # 6 chunks were used; the unused ones never took more than 20 KiB at a time.
            assert side.log_reads() <= 6 + 5 + 1

    run_virtual(main)


def test_several_readers_share_the_room_for_reading_ahead() -> None:
    async def main() -> None:
        limits = replace(QUICK, read_ahead_chunks_max=4)
        async with read_side(changed(chunk_cache_bytes_max=40 * KiB), limits=limits) as side:
            await side.segment(batches(side.rng, 0, 400))
            for step in range(2):
                for reader in range(4):
                    for half in (0, 20):
                        request = side.request(1000 * reader + 40 * step + half, 2 * BATCH_BYTES)
                        await side.watch(request).completed.wait()
                await asyncio.sleep(1)
            assert side.log_reads() <= 8 + 5

    run_virtual(main)
