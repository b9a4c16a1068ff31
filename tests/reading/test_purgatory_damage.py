"""Deleted, lost, damaged or unfinished segments: which give "out of range" and which an error."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from read_side import (
    BATCH_BYTES,
    QUICK,
    batches,
    fetched,
    now,
    read_side,
)
from virtual_loop import run_virtual

from fetchproxy.errors import CorruptSegment, OffsetNotArchived
from fetchproxy.model import IsolationLevel, RemoteLogSegmentState
from fetchproxy.observability.health import Kind
from fetchproxy.reading.segment_reader import CompletionReason
from fetchproxy.runtime.cooperative import at_once
from fetchproxy.segments.aborted_index import txn_starts
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import SegmentFile


def test_not_archived_is_said_at_once_but_only_by_a_fresh_view() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored[:4])
            await asyncio.sleep(5)
            # Another process archived this segment: this view does not know it yet.
            metadata = await side.segment(stored[4:])
            stale = side.rlmm.view(side.tp)
            assert stale is not None
            await side.store.inner.delete(
                side.storage.rsm.object_key(metadata, SegmentFile.METADATA)
            )
            await asyncio.sleep(1)
            await side.rlmm.refresh(side.tp, now())
            await side.store.inner.put(
                side.storage.rsm.object_key(metadata, SegmentFile.METADATA),
                encode_segment(metadata),
            )
            await asyncio.sleep(5)
            view = side.rlmm.view(side.tp)
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


def test_a_segment_that_retention_deletes_is_out_of_range() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            gone = await side.segment(stored[:4])
            await side.segment(stored[4:])
            await side.storage.rsm.delete_log_segment_data(gone)
            await asyncio.sleep(1)
            view = side.rlmm.view(side.tp)
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
            # More than one chunk, so the index is needed.
            metadata = await side.segment(batches(side.rng, 0, 5), aborted=[(1, 0, 30)])
            assert metadata.has_aborted_txns
            await side.store.inner.delete(side.storage.rsm.object_key(metadata, file))
            request = side.request(0, isolation=IsolationLevel.READ_COMMITTED)
            fetch = side.watch(request)
            await fetch.completed.wait()
            assert fetch.reason is CompletionReason.DEADLINE
            assert isinstance(fetch.results()[0].error, CorruptSegment)
            # A fetch that does not need the list gets its data without it.
            uncommitted = await fetched(side, 0)
            assert (uncommitted.reason is CompletionReason.DATA) is (file is SegmentFile.TXN)

    run_virtual(main)


def test_a_transaction_index_without_a_byte_shows_no_aborted_record() -> None:
    """As a crashed file system leaves it. Read as an empty list, all would count as committed."""

    async def main() -> None:
        async with read_side() as side:
            metadata = await side.segment(batches(side.rng, 0, 4), aborted=[(1, 0, 30)])
            await side.store.inner.put(side.storage.rsm.object_key(metadata, SegmentFile.TXN), b"")
            request = side.request(0, isolation=IsolationLevel.READ_COMMITTED)
            fetch = side.watch(request)
            await fetch.completed.wait()
            assert isinstance(fetch.results()[0].error, CorruptSegment)
            assert fetch.results()[0].records == []
            uncommitted = await fetched(side, 0)
            assert uncommitted.reason is CompletionReason.DATA

    run_virtual(main)


@pytest.mark.remedy("segment_damaged")
@pytest.mark.parametrize("lost", [True, False])
def test_damage_is_a_condition_until_it_can_be_read(lost: bool) -> None:
    """A missing object, and a chunk with a flipped bit in a log of several chunks."""

    async def main() -> None:
        async with read_side(limits=replace(QUICK, corrupt_retry_ms=2_000)) as side:
            metadata = await side.segment(batches(side.rng, 0, 8))
            right = await side.store.inner.get(side.log_key(metadata))
            wrong = bytearray(right)
            wrong[5_500] ^= 1
            if lost:
                await side.store.inner.delete(side.log_key(metadata))
            else:
                await side.store.inner.put(side.log_key(metadata), bytes(wrong))
            health = side.storage.health
            assert not list(health.conditions(now()))
            fetch = await fetched(side, 45)
            assert isinstance(fetch.results()[0].error, CorruptSegment)
            (condition,) = health.conditions(now())
            assert condition.kind is Kind.SEGMENT_DAMAGED
            assert (condition.topic, condition.partition) == (side.tp.topic, side.tp.partition)
            assert (condition.first_offset, condition.last_offset) == (0, metadata.end_offset)
            # What is sound beside it says nothing of it.
            if not lost:
                assert (await fetched(side, 0)).reason is CompletionReason.DATA
                assert list(health.conditions(now())) == [condition]
            # As the remedy says.
            await side.store.inner.put(side.log_key(metadata), right)
            await asyncio.sleep(3)
            assert (await fetched(side, 45)).reason is CompletionReason.DATA
            assert not list(health.conditions(now()))

    run_virtual(main)


def test_damage_is_read_twice_then_said_at_the_deadline_and_never_served() -> None:
    async def main() -> None:
        async with read_side(limits=replace(QUICK, corrupt_retry_ms=60_000)) as side:
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
                assert fetch.results()[0].records == []
            assert side.log_reads() == 2
            # The chunk before the damage is whole, and a read of it ends at the damage.
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


def test_unreadable_metadata_is_not_out_of_range() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            await side.segment(stored[:4])
            hidden = await side.segment(stored[4:])
            key = side.storage.rsm.object_key(hidden, SegmentFile.METADATA)
            await side.store.inner.put(key, b"{")
            await asyncio.sleep(1)
            await side.rlmm.refresh(side.tp, now())
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
            key = side.storage.rsm.object_key(begun, SegmentFile.METADATA)
            await side.store.inner.put(key, encode_segment(state))
            await asyncio.sleep(1)
            fetch = await fetched(side, 0)
            assert fetch.results()[0].size_bytes == 4 * BATCH_BYTES
            await side.rlmm.refresh(side.tp, now())
            fetch = await fetched(side, 40)
            assert isinstance(fetch.results()[0].error, OffsetNotArchived)

    run_virtual(main)


@pytest.mark.parametrize("damage", ["index", "log", "log is gone", "transactions"])
def test_another_copy_is_read_in_the_place_of_a_damaged_one(damage: str) -> None:
    """As after a merge: the segments that were merged are still there, and come first."""

    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 8)
            aborted = [(7, 15, 70)]
            first = await side.segment(stored[:4], aborted=aborted)
            await side.segment(stored[4:], aborted=aborted)
            await side.segment(stored, aborted=aborted)
            store, key_of = side.store.inner, side.storage.rsm.object_key
            if damage == "log":
                content = bytearray(await store.get(side.log_key(first)))
                content[2 * BATCH_BYTES + 500] ^= 1
                await store.put(side.log_key(first), bytes(content))
            elif damage == "log is gone":
                await store.delete(side.log_key(first))
            else:
                file = SegmentFile.INDEX if damage == "index" else SegmentFile.TXN
                await store.put(key_of(first, file), b"damaged")
            isolation = (
                IsolationLevel.READ_COMMITTED
                if damage == "transactions"
                else IsolationLevel.READ_UNCOMMITTED
            )
            for offset in (0, 25, 40, 75):
                fetch = side.watch(side.request(offset, isolation=isolation), wait_s=30)
                await fetch.completed.wait()
                assert fetch.reason is CompletionReason.DATA
                result = fetch.results()[0]
                whole = b"".join(b.content for b in stored[offset // 10 :])
                assert whole.startswith(b"".join(result.records))
                if isolation is IsolationLevel.READ_COMMITTED:
                    assert at_once(txn_starts(result.aborted)) == [(15, 7)]

    run_virtual(main)
