"""Waiting fetches: when they complete, with which result and how often; work that goes on after."""

from __future__ import annotations

import asyncio

import pytest
from faulty_store import HANG
from read_side import (
    BATCH_BYTES,
    SLOW,
    SMALL,
    at_rest,
    batches,
    fetched,
    read_side,
)
from reads_under_way import under_way
from virtual_loop import run_virtual

from fetchproxy.config.schema import KiB
from fetchproxy.errors import OffsetLost, OffsetNotArchived
from fetchproxy.model import IsolationLevel
from fetchproxy.reading.segment_reader import CompletionReason
from fetchproxy.runtime.cooperative import at_once
from fetchproxy.segments.aborted_index import txn_starts


def test_data_completes_it_and_memory_answers_the_next_one_at_once() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored)
            assert side.in_memory(side.request(15)) is None
            fetch = await fetched(side, 15)
            assert fetch.reason is CompletionReason.DATA
            result = fetch.results()[0]
            assert b"".join(result.records) == b"".join(b.content for b in stored[1:4])
            assert (result.size_bytes, result.error) == (3 * BATCH_BYTES, None)
            reads = len(side.store.reads)
            again = side.watch(side.request(15))
            assert again.reason is CompletionReason.DATA
            assert again.results() == fetch.results()
            assert side.in_memory(side.request(15)) == result
            assert len(side.store.reads) == reads
            await again.completed.wait()
            assert at_rest(side)

    run_virtual(main)


@pytest.mark.parametrize(("bytes_max", "count"), [(1, 1), (1000, 1), (1999, 1), (2000, 2)])
def test_whole_batches_the_first_one_in_any_case(bytes_max: int, count: int) -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored)
            fetch = side.watch(side.request(10, bytes_max))
            await fetch.completed.wait()
            assert b"".join(fetch.results()[0].records) == b"".join(
                b.content for b in stored[1 : 1 + count]
            )

    run_virtual(main)


def test_a_read_goes_on_into_chunks_and_segments_that_are_in_memory() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 12)
            await side.segment(stored[:6])
            await side.segment(stored[6:])
            for offset in (0, 40, 60, 100):
                await fetched(side, offset)
            everything = side.in_memory(side.request(35))
            assert everything is not None
            assert b"".join(everything.records) == b"".join(b.content for b in stored[3:])
            assert len(everything.records) == 4
            limited = side.in_memory(side.request(35, 2_500))
            assert limited is not None
            assert b"".join(limited.records) == b"".join(b.content for b in stored[3:5])

    run_virtual(main)


def test_a_read_never_crosses_a_recorded_gap() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored[:3])
            await side.segment(stored[5:], start_offset=50)
            await fetched(side, 50)
            fetch = await fetched(side, 0)
            assert fetch.results()[0].size_bytes == 3 * BATCH_BYTES
            lost = await fetched(side, 30)
            assert lost.reason is CompletionReason.DATA
            first, last = stored[2].last_offset + 1, 49
            assert lost.results()[0].skipped == (first, last)
            assert b"".join(lost.results()[0].records) == b"".join(b.content for b in stored[5:])
            beyond = await fetched(side, 500)
            assert isinstance(beyond.results()[0].error, OffsetNotArchived)

    run_virtual(main)


def test_who_would_rather_stop_has_an_error_in_a_recorded_gap() -> None:
    async def main() -> None:
        async with read_side(skips_gaps=False) as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored[:3])
            await side.segment(stored[5:], start_offset=50)
            lost = await fetched(side, 30)
            assert lost.reason is CompletionReason.ERROR
            assert isinstance(lost.results()[0].error, OffsetLost)
            assert lost.results()[0].records == []
            assert (await fetched(side, 50)).results()[0].size_bytes

    run_virtual(main)


def test_a_hole_between_segments_that_is_no_gap_is_passed_over() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored[:3])
            await side.segment(stored[5:], start_offset=30)  # start offset 30, first batch at 50
            fetch = await fetched(side, 31)
            assert b"".join(fetch.results()[0].records) == b"".join(b.content for b in stored[5:])

    run_virtual(main)


def test_polls_at_one_place_share_one_read() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = SLOW
            waiting = [side.watch(side.request(n), wait_s=9) for n in (0, 0, 5, 12, 39)]
            for fetch in waiting:
                await fetch.completed.wait()
                assert fetch.reason is CompletionReason.DATA
            # One chunk, and no index.
            assert len([r for r in side.store.reads if r[0].endswith((".log", ".index"))]) == 1

    run_virtual(main)


def test_a_fetch_with_a_deadline_that_has_passed_begins_the_work() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            fetch = side.watch(side.request(0), wait_s=0)
            assert (fetch.reason, fetch.results()) == (CompletionReason.DEADLINE, {})
            await asyncio.sleep(1)
            assert side.in_memory(side.request(0)) is not None

    run_virtual(main)


def test_what_is_ready_does_not_wait_for_the_rest_and_the_rest_is_on_its_way() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 8))
            await fetched(side, 0)
            fetch = side.watch(side.request(40), side.request(0))
            assert fetch.reason is CompletionReason.DATA
            assert list(fetch.results()) == [1]
            await asyncio.sleep(1)
            assert side.in_memory(side.request(40)) is not None

    run_virtual(main)


def test_read_committed_lists_what_overlaps_the_returned_bytes_once() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            aborted = [(7, 5, 20), (8, 35, 70), (9, 62, 75)]
            await side.segment(stored[:4], aborted=aborted)
            await side.segment(stored[4:], aborted=aborted)
            committed = IsolationLevel.READ_COMMITTED
            for offset in (0, 40):
                fetch = side.watch(side.request(offset, isolation=committed))
                await fetch.completed.wait()

            def listed(offset: int, bytes_max: int) -> list[tuple[int, int]]:
                result = side.in_memory(side.request(offset, bytes_max, committed))
                assert result is not None
                return at_once(txn_starts(result.aborted))

            assert listed(0, 1000) == [(5, 7)]
            assert listed(21, 1000) == [(5, 7)]  # the batch begins at 20, where the marker is
            assert listed(30, 1000) == [(35, 8)]
            assert listed(30, 9000) == [(35, 8), (62, 9)]
            assert listed(70, 1000) == [(35, 8), (62, 9)]
            plain = side.in_memory(side.request(0))
            assert plain is not None
            assert plain.aborted == []

    run_virtual(main)


def test_aborted_transactions_larger_than_the_memory_of_indexes_are_read_once() -> None:
    """The index and the list of a segment stay in memory side by side, or neither is of use."""
    little = SMALL.model_copy(update={"index_cache_bytes_max": 64 * KiB})

    async def main() -> None:
        async with read_side(little) as side:
            aborted = [(producer, 5, 20) for producer in range(3_000)]
            await side.segment(batches(side.rng, 0, 4), aborted=aborted)
            committed = side.request(0, isolation=IsolationLevel.READ_COMMITTED)
            fetch = side.watch(committed, wait_s=30)
            await fetch.completed.wait()
            assert fetch.reason is CompletionReason.DATA
            assert fetch.results()[0].txns == len(aborted)
            assert sum(key.endswith(".txn") for key, _ in side.store.reads) == 1

    run_virtual(main)


def test_a_fetch_that_is_answered_otherwise_does_not_end_the_read() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = SLOW
            fetch = side.watch(side.request(0), wait_s=30)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await fetch.completed.wait()
            fetch.cancel()
            assert (fetch.reason, fetch.results()) == (CompletionReason.CANCELLED, {})
            assert under_way(side.purgatory).entries == 0
            fetch.cancel()
            await asyncio.sleep(10)
            assert fetch.reason is CompletionReason.CANCELLED
            assert side.in_memory(side.request(0)) is not None

    run_virtual(main)


def test_the_read_of_a_client_that_is_gone_ends() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 8))
            side.store.faults = HANG
            fetch = side.watch(side.request(0), wait_s=300)
            await asyncio.sleep(1)
            assert side.store.in_flight == 1
            fetch.cancel(client_gone=True)
            assert fetch.reason is CompletionReason.CANCELLED
            await asyncio.sleep(0.001)
            assert side.store.in_flight == 0
            assert at_rest(side)

    run_virtual(main)


@pytest.mark.parametrize("other", ["waits", "comes again", "warms"])
def test_the_read_of_another_client_goes_on(other: str) -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 8))
            side.store.faults = SLOW
            anothers = side.request(0)._replace(client="another")
            if other == "warms":
                side.purgatory.warm(anothers)
            else:
                side.watch(anothers, wait_s=30 if other == "waits" else 0.1)
            gone = side.watch(side.request(0)._replace(client="gone"), wait_s=30)
            await asyncio.sleep(0.5)
            gone.cancel(client_gone=True)
            await asyncio.sleep(10)
            assert side.in_memory(side.request(0)) is not None
            assert side.log_reads() == 1

    run_virtual(main)


def test_a_client_that_comes_again_and_goes_ends_its_read() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 8))
            side.store.faults = HANG
            request = side.request(0)._replace(client="gone")
            for _ in range(3):
                fetch = side.watch(request, wait_s=0.5)
                await fetch.completed.wait()
            assert (fetch.reason, side.store.in_flight) == (CompletionReason.DEADLINE, 1)
            side.watch(request, wait_s=300).cancel(client_gone=True)
            await asyncio.sleep(0.001)
            assert side.store.in_flight == 0
            assert at_rest(side)

    run_virtual(main)


def test_a_fetch_completes_once() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            fetch = side.watch(side.request(0))
            assert not fetch.completed.is_set()
            await fetch.completed.wait()
            await fetch.completed.wait()
            await asyncio.sleep(10)
            assert (fetch.completed.is_set(), fetch.reason) == (True, CompletionReason.DATA)
            with pytest.raises(AssertionError, match="twice"):
                fetch.complete(CompletionReason.DEADLINE, {})

    run_virtual(main)


@pytest.mark.parametrize("closed_after_s", [0.0, 1e-9, 0.2, 1.0, 3.0, 100.0])
def test_closing_cancels_who_waits_and_leaves_no_task(closed_after_s: float) -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 40))
            side.store.faults = HANG if closed_after_s > 10 else SLOW
            waiting = [side.watch(side.request(40 * n), wait_s=200) for n in range(5)]
            side.purgatory.warm(side.request(250))
            if closed_after_s:
                await asyncio.sleep(closed_after_s)
        for fetch in waiting:
            assert fetch.reason in (CompletionReason.CANCELLED, CompletionReason.DATA)
        assert at_rest(side)
        late = side.watch(side.request(0))
        assert late.reason is CompletionReason.CANCELLED

    run_virtual(main)
