"""Fetches that wait: when they complete, with what, how often; and what goes on without them."""

from __future__ import annotations

import asyncio

import pytest
from faulty_store import HANG, NO_FAULTS, OUTAGE, Faults
from read_side import BATCH_BYTES, SMALL, ReadSide, batches, now, read_side
from virtual_loop import run_virtual

from fetchproxy.config.sections import KiB, RemoteFetchConfig
from fetchproxy.errors import CorruptSegment, OffsetNotArchived, StorageUnavailable
from fetchproxy.metadata.segment_json import encode_segment
from fetchproxy.model import IsolationLevel, RemoteLogSegmentState
from fetchproxy.remote_fetch.api import CompletionReason
from fetchproxy.remote_fetch.delayed_fetch import DelayedRemoteFetch
from fetchproxy.storage.layout import SegmentFile

SLOW = Faults(latency_s_min=2.0, latency_s_max=2.0)


def changed(**options: object) -> RemoteFetchConfig:
    return RemoteFetchConfig(**{**SMALL.model_dump(), **options})


async def fetched(side: ReadSide, offset: int, wait_s: float = 0.5) -> DelayedRemoteFetch:
    fetch = side.watch(side.request(offset), wait_s=wait_s)
    await fetch.wait()
    return fetch


def at_rest(side: ReadSide) -> bool:
    status = side.purgatory.status()
    return (
        status.entries + status.entries_unwatched + status.pending_reads == 0
        and status.store_reads + status.store_reads_waiting + status.inflight_bytes == 0
    )


def test_data_completes_it_and_memory_answers_the_next_one_at_once() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored)
            assert side.purgatory.try_read(side.request(15)) is None
            fetch = await fetched(side, 15)
            assert fetch.reason is CompletionReason.DATA
            result = fetch.results()[0]
            assert b"".join(result.records) == b"".join(b.content for b in stored[1:4])
            assert (result.size_bytes, result.error) == (3 * BATCH_BYTES, None)
            reads = len(side.store.reads)
            again = side.watch(side.request(15))
            assert again.reason is CompletionReason.DATA
            assert again.results() == fetch.results()
            assert side.purgatory.try_read(side.request(15)) == result
            assert len(side.store.reads) == reads
            await again.wait()
            assert at_rest(side)

    run_virtual(main)


@pytest.mark.parametrize(("bytes_max", "count"), [(1, 1), (1000, 1), (1999, 1), (2000, 2)])
def test_whole_batches_the_first_one_in_any_case(bytes_max: int, count: int) -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored)
            fetch = side.watch(side.request(10, bytes_max))
            await fetch.wait()
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
            everything = side.purgatory.try_read(side.request(35))
            assert everything is not None
            assert b"".join(everything.records) == b"".join(b.content for b in stored[3:])
            assert len(everything.records) == 4
            limited = side.purgatory.try_read(side.request(35, 2_500))
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
            assert lost.reason is CompletionReason.ERROR
            assert isinstance(lost.results()[0].error, OffsetNotArchived)
            assert lost.results()[0].records == ()

    run_virtual(main)


def test_a_hole_between_segments_that_is_no_gap_is_passed_over() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored[:3])
            await side.segment(stored[5:], start_offset=30)  # read from 30 on, found from 50 on
            fetch = await fetched(side, 31)
            assert b"".join(fetch.results()[0].records) == b"".join(b.content for b in stored[5:])

    run_virtual(main)


def test_not_archived_is_said_at_once_but_only_by_a_fresh_view() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored[:4])
            await asyncio.sleep(5)
            # Archived by somebody else: this view does not know it yet.
            metadata = await side.segment(stored[4:])
            stale = side.rlmm.view(side.tip)
            assert stale is not None
            await side.store.inner.delete(side.rsm.object_key(metadata, SegmentFile.METADATA))
            await asyncio.sleep(1)
            await side.rlmm.refresh(side.tip, now())
            await side.store.inner.put(
                side.rsm.object_key(metadata, SegmentFile.METADATA), encode_segment(metadata)
            )
            await asyncio.sleep(5)
            view = side.rlmm.view(side.tip)
            assert view is not None
            assert view.log_end_offset == 40
            fetch = await fetched(side, 40)
            assert fetch.results()[0].size_bytes == 4 * BATCH_BYTES
            began = now()
            beyond = await fetched(side, 80, wait_s=100)
            assert beyond.reason is CompletionReason.ERROR
            assert isinstance(beyond.results()[0].error, OffsetNotArchived)
            assert now() - began < 1

    run_virtual(main)


def test_an_outage_is_never_out_of_range() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = OUTAGE
            await asyncio.sleep(1)
            fetch = await fetched(side, 999)
            assert (fetch.reason, fetch.results()) == (CompletionReason.DEADLINE, {})

    run_virtual(main)


def test_the_reply_is_time_boxed_the_work_is_not() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = SLOW
            began = now()
            fetch = await fetched(side, 0)
            assert (fetch.reason, fetch.results()) == (CompletionReason.DEADLINE, {})
            assert now() == pytest.approx(began + 0.5)
            assert side.purgatory.status().pending_reads == 1
            await asyncio.sleep(10)  # index and chunk, 2 s each
            assert side.purgatory.try_read(side.request(0)) is not None
            assert at_rest(side)

    run_virtual(main)


def test_polls_at_one_place_share_one_read() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = SLOW
            waiting = [side.watch(side.request(n), wait_s=9) for n in (0, 0, 5, 12, 39)]
            for fetch in waiting:
                await fetch.wait()
                assert fetch.reason is CompletionReason.DATA
            # One index, one chunk.
            assert len([r for r in side.store.reads if r[0].endswith((".log", ".index"))]) == 2

    run_virtual(main)


def test_a_fetch_with_a_deadline_that_has_passed_begins_the_work() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            fetch = side.watch(side.request(0), wait_s=0)
            assert (fetch.reason, fetch.results()) == (CompletionReason.DEADLINE, {})
            await asyncio.sleep(1)
            assert side.purgatory.try_read(side.request(0)) is not None

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
            assert side.purgatory.try_read(side.request(40)) is not None

    run_virtual(main)


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
            await fetch.wait()
            await asyncio.sleep(5)
            assert side.log_reads() == 3

    run_virtual(main)


def test_a_full_purgatory_waits_and_does_not_fail() -> None:
    async def main() -> None:
        async with read_side(changed(purgatory_entries_max=2)) as side:
            await side.segment(batches(side.rng, 0, 40))
            side.store.faults = SLOW
            waiting = [side.watch(side.request(40 * n), wait_s=3) for n in range(4)]
            status = side.purgatory.status()
            assert (status.entries, status.entries_unwatched) == (2, 2)
            patient = side.watch(side.request(160), wait_s=60)
            for fetch in waiting:
                await fetch.wait()
            assert [fetch.reason for fetch in waiting] == [CompletionReason.DEADLINE] * 4
            await patient.wait()
            assert patient.reason is CompletionReason.DATA
            await asyncio.sleep(60)
            assert at_rest(side)

    run_virtual(main)


def test_reads_that_nobody_watches_are_bounded_the_oldest_goes() -> None:
    async def main() -> None:
        async with read_side(changed(purgatory_entries_max=3)) as side:
            await side.segment(batches(side.rng, 0, 40))
            side.store.faults = HANG
            for n in range(10):
                side.purgatory.warm(side.request(n))
            await asyncio.sleep(1)
            assert side.purgatory.status().pending_reads == 3

    run_virtual(main)


def test_a_read_goes_on_after_an_outage_while_somebody_asks() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = OUTAGE
            began = now()
            while now() < began + 50:
                fetch = await fetched(side, 0)
                assert (fetch.reason, fetch.results()) == (CompletionReason.DEADLINE, {})
            side.store.faults = NO_FAULTS
            fetch = await fetched(side, 0, wait_s=5)
            assert fetch.reason is CompletionReason.DATA
            assert now() < began + 50 + 1.5  # the longest pause, and the reads
            assert side.purgatory.health().up

    run_virtual(main)


def test_a_failing_read_that_nobody_asks_for_ends() -> None:
    async def main() -> None:
        async with read_side(changed(unasked_read_max_ms=10_000)) as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = OUTAGE
            await fetched(side, 0)
            await asyncio.sleep(9)
            assert side.purgatory.status().pending_reads == 1
            await asyncio.sleep(3)
            assert at_rest(side)
            reads = len(side.store.reads)
            await asyncio.sleep(100)
            assert len(side.store.reads) == reads

    run_virtual(main)


@pytest.mark.parametrize("faults", [OUTAGE, HANG])
def test_an_outage_is_an_error_only_when_it_is_long_and_only_at_the_deadline(
    faults: Faults,
) -> None:
    async def main() -> None:
        async with read_side(
            changed(remote_error_after_ms=60_000, chunk_read_max_ms=3_000)
        ) as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = faults
            began = now()
            first_error = None
            while now() < began + 70:
                asked = now()
                fetch = await fetched(side, 0)
                assert fetch.reason is CompletionReason.DEADLINE
                assert now() == pytest.approx(asked + 0.5)
                if fetch.results():
                    assert isinstance(fetch.results()[0].error, StorageUnavailable)
                    first_error = first_error or now()
                else:
                    assert first_error is None
            assert first_error is not None
            assert first_error - began == pytest.approx(60, abs=0.6)
            health = side.purgatory.health()
            assert not health.up
            assert health.failing_for_s == pytest.approx(70, abs=1)
            # A client that comes late is told as soon as there is fresh evidence.
            other = await fetched(side, 20, wait_s=8)
            assert isinstance(other.results()[0].error, StorageUnavailable)

    run_virtual(main)


def test_an_old_outage_is_no_evidence() -> None:
    async def main() -> None:
        async with read_side(changed(remote_error_after_ms=1_000)) as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = OUTAGE
            await fetched(side, 0)
            await asyncio.sleep(3600)
            assert not side.purgatory.health().up
            side.store.faults = SLOW
            fetch = await fetched(side, 0)
            assert (fetch.reason, fetch.results()) == (CompletionReason.DEADLINE, {})

    run_virtual(main)


def test_a_storage_error_never_travels_with_data() -> None:
    async def main() -> None:
        async with read_side(changed(remote_error_after_ms=0)) as side:
            await side.segment(batches(side.rng, 0, 8))
            await fetched(side, 0)
            side.store.faults = OUTAGE
            fetch = side.watch(side.request(40), wait_s=0.5)
            await fetch.wait()
            assert isinstance(fetch.results()[0].error, StorageUnavailable)
            fetch = side.watch(side.request(40), side.request(0))
            assert {i: r.error for i, r in fetch.results().items()} == {1: None}

    run_virtual(main)


def test_a_segment_that_retention_deletes_is_out_of_range() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            gone = await side.segment(stored[:4])
            await side.segment(stored[4:])
            await side.rsm.delete_log_segment_data(gone)
            await asyncio.sleep(1)
            view = side.rlmm.view(side.tip)
            assert view is not None
            assert view.log_start_offset == 0  # not known yet
            fetch = await fetched(side, 0)
            assert fetch.reason is CompletionReason.ERROR
            assert isinstance(fetch.results()[0].error, OffsetNotArchived)

    run_virtual(main)


@pytest.mark.parametrize("file", [SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.TXN])
def test_a_lost_object_is_damage_and_not_out_of_range(file: SegmentFile) -> None:
    async def main() -> None:
        async with read_side() as side:
            metadata = await side.segment(batches(side.rng, 0, 4), aborted=[(1, 0, 30)])
            assert metadata.has_aborted_txns
            await side.store.inner.delete(side.rsm.object_key(metadata, file))
            request = side.request(0, isolation=IsolationLevel.READ_COMMITTED)
            fetch = side.watch(request)
            await fetch.wait()
            assert fetch.reason is CompletionReason.DEADLINE
            assert isinstance(fetch.results()[0].error, CorruptSegment)
            # Who does not need the list is served without it.
            uncommitted = await fetched(side, 0)
            assert (uncommitted.reason is CompletionReason.DATA) is (file is SegmentFile.TXN)

    run_virtual(main)


def test_damage_is_read_twice_then_said_at_the_deadline_and_never_served() -> None:
    async def main() -> None:
        async with read_side(changed(corrupt_retry_ms=60_000)) as side:
            stored = batches(side.rng, 0, 8)
            metadata = await side.segment(stored)
            right = await side.store.inner.get(side.log_key(metadata))
            wrong = bytearray(right)
            wrong[5_500] ^= 1
            await side.store.inner.put(side.log_key(metadata), bytes(wrong))
            for _ in range(10):
                began = now()
                fetch = await fetched(side, 45)
                assert fetch.reason is CompletionReason.DEADLINE
                assert now() == pytest.approx(began + 0.5)
                assert isinstance(fetch.results()[0].error, CorruptSegment)
                assert fetch.results()[0].records == ()
            assert side.log_reads() == 2
            # The chunk before it is whole, and a read of it ends where the damage begins.
            fetch = await fetched(side, 0)
            assert fetch.results()[0].size_bytes == 4 * BATCH_BYTES
            await side.store.inner.put(side.log_key(metadata), right)
            assert isinstance((await fetched(side, 45)).results()[0].error, CorruptSegment)
            await asyncio.sleep(60)
            fetch = await fetched(side, 45)
            assert b"".join(fetch.results()[0].records) == b"".join(b.content for b in stored[4:])

    run_virtual(main)


def test_a_leader_epoch_that_the_segment_never_had_is_damage() -> None:
    async def main() -> None:
        async with read_side() as side:
            metadata = await side.segment(batches(side.rng, 0, 4))
            content = bytearray(await side.store.inner.get(side.log_key(metadata)))
            content[2 * BATCH_BYTES + 15] ^= 1  # no CRC covers it
            await side.store.inner.put(side.log_key(metadata), bytes(content))
            fetch = await fetched(side, 0)
            assert isinstance(fetch.results()[0].error, CorruptSegment)

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
                await fetch.wait()
                assert fetch.results()[0].size_bytes == 4 * BATCH_BYTES
            assert side.log_reads() == 10

    run_virtual(main)


def test_unreadable_metadata_is_not_out_of_range() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored[:4])
            hidden = await side.segment(stored[4:])
            key = side.rsm.object_key(hidden, SegmentFile.METADATA)
            await side.store.inner.put(key, b"{")
            await asyncio.sleep(1)
            await side.rlmm.refresh(side.tip, now())
            fetch = await fetched(side, 50)
            assert fetch.reason is CompletionReason.DEADLINE
            assert isinstance(fetch.results()[0].error, CorruptSegment)

    run_virtual(main)


def test_an_unfinished_copy_is_not_served() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored[:4])
            begun = await side.segment(stored[4:])
            state = begun.with_state(RemoteLogSegmentState.COPY_SEGMENT_STARTED, 5)
            key = side.rsm.object_key(begun, SegmentFile.METADATA)
            await side.store.inner.put(key, encode_segment(state))
            await asyncio.sleep(1)
            fetch = await fetched(side, 0)
            assert fetch.results()[0].size_bytes == 4 * BATCH_BYTES
            await side.rlmm.refresh(side.tip, now())
            fetch = await fetched(side, 40)
            assert isinstance(fetch.results()[0].error, OffsetNotArchived)

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
                await fetch.wait()

            def listed(offset: int, bytes_max: int) -> list[tuple[int, int, int]]:
                result = side.purgatory.try_read(side.request(offset, bytes_max, committed))
                assert result is not None
                return [(t.producer_id, t.first_offset, t.last_offset) for t in result.aborted_txns]

            assert listed(0, 1000) == [(7, 5, 20)]
            assert listed(21, 1000) == [(7, 5, 20)]  # the batch begins at 20, with the marker
            assert listed(30, 1000) == [(8, 35, 39)]  # as far as that segment knows
            assert listed(30, 9000) == [(8, 35, 70), (9, 62, 75)]
            assert listed(70, 1000) == [(8, 35, 70), (9, 62, 75)]
            plain = side.purgatory.try_read(side.request(0))
            assert plain is not None
            assert plain.aborted_txns == ()

    run_virtual(main)


def test_a_client_that_leaves_takes_its_fetch_away_but_not_the_read() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = SLOW
            fetch = side.watch(side.request(0), wait_s=30)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await fetch.wait()
            assert (fetch.reason, fetch.results()) == (CompletionReason.CANCELLED, {})
            assert side.purgatory.status().entries == 0
            fetch.cancel()
            await asyncio.sleep(10)
            assert fetch.reason is CompletionReason.CANCELLED
            assert side.purgatory.try_read(side.request(0)) is not None

    run_virtual(main)


def test_completion_is_called_back_once() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            seen: list[CompletionReason | None] = []
            fetch = side.watch(side.request(0))
            fetch.on_completion(lambda done: seen.append(done.reason))
            await fetch.wait()
            await fetch.wait()
            await asyncio.sleep(10)
            assert seen == [CompletionReason.DATA]
            fetch.on_completion(lambda done: seen.append(done.reason))
            assert len(seen) == 2
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
        async with read_side(changed(read_ahead_chunks_max=2)) as side:
            stored = batches(side.rng, 0, 40)
            for n in range(4):
                await side.segment(stored[10 * n : 10 * n + 10])
            waited = []
            for n in range(40):
                request = side.request(10 * n, BATCH_BYTES)
                fetch = side.watch(request)
                waited.append(fetch.reason is None)
                await fetch.wait()
                assert fetch.results()[0].records[0] == stored[n].content
                await asyncio.sleep(1)
            assert waited == [True] + [False] * 39
            assert side.log_reads() == 12

    run_virtual(main)


def test_read_ahead_leaves_half_of_the_cache_to_others() -> None:
    async def main() -> None:
        config = changed(read_ahead_chunks_max=50, chunk_cache_bytes_max=40 * KiB)
        async with read_side(config) as side:
            await side.segment(batches(side.rng, 0, 200))
            for n in range(6):
                await fetched(side, 40 * n)
                await fetched(side, 40 * n + 20)
                await asyncio.sleep(1)
            assert side.purgatory.status().cached_bytes <= 40 * KiB
            # 6 chunks were used; of those never used at most 20 KiB were ever there at once.
            assert side.log_reads() <= 6 + 5 + 1

    run_virtual(main)


def test_several_readers_share_the_room_for_reading_ahead() -> None:
    async def main() -> None:
        config = changed(read_ahead_chunks_max=4, chunk_cache_bytes_max=40 * KiB)
        async with read_side(config) as side:
            await side.segment(batches(side.rng, 0, 400))
            for step in range(2):
                for reader in range(4):
                    for half in (0, 20):
                        request = side.request(1000 * reader + 40 * step + half, 2 * BATCH_BYTES)
                        await side.watch(request).wait()
                await asyncio.sleep(1)
            assert side.log_reads() <= 8 + 5

    run_virtual(main)


def test_status_names_what_is_read() -> None:
    async def main() -> None:
        async with read_side() as side:
            metadata = await side.segment(batches(side.rng, 0, 4))
            side.store.faults = OUTAGE
            fetch = side.watch(side.request(0), wait_s=100)
            await asyncio.sleep(3)
            status = side.purgatory.status()
            assert (status.entries, status.pending_reads) == (1, 1)
            (read,) = status.reads
            assert str(metadata.segment_id.id) in read.what
            assert (read.topic, read.partition, read.ahead) == ("weather", 0, False)
            assert read.failures >= 3
            assert read.age_s == pytest.approx(3)
            assert read.last_error is not None
            fetch.cancel()

    run_virtual(main)
