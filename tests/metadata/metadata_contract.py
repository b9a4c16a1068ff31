"""What every RemoteLogMetadataManager does, whatever it reads its metadata from.

A subclass gives a fixture `backing`: where managers keep their metadata, with its door.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from uuid import UUID

import pytest

from fetchproxy.errors import StorageUnavailable
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

Manager = StoreBackedRemoteLogMetadataManager
State = RemoteLogSegmentState
TIP = TopicIdPartition(UUID(int=1), "orders", 0)
OTHER = TopicIdPartition(UUID(int=1), "orders", 1)


class Backing(ABC):
    """Shared by all managers of one test, as a bucket or a metadata topic is by instances."""

    @abstractmethod
    def manager(self) -> AbstractAsyncContextManager[Manager]:
        """One more instance."""

    @abstractmethod
    def reads(self, tip: TopicIdPartition) -> int:
        """How many reads of the partition have begun."""

    @abstractmethod
    def hold(self) -> None:
        """Reads that have begun and new ones wait, with what they have seen; puts go through."""

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    def fail(self) -> None:
        """Every access raises StorageUnavailable until `heal`."""

    @abstractmethod
    def heal(self) -> None: ...


def segment(
    number: int,
    start: int,
    end: int,
    state: State = State.COPY_SEGMENT_STARTED,
    tip: TopicIdPartition = TIP,
    at_ms: int = 0,
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(tip, UUID(int=number)),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=end,
        event_timestamp_ms=at_ms,
        segment_leader_epochs=(EpochStart(0, 0),),
        segment_size_bytes=100,
        state=state,
        has_aborted_txns=False,
    )


async def copied(manager: Manager, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """Put both states of a copy; the finished metadata."""
    await manager.put(metadata)
    finished = metadata.with_state(State.COPY_SEGMENT_FINISHED, metadata.event_timestamp_ms)
    await manager.put(finished)
    return finished


def now() -> float:
    return asyncio.get_running_loop().time()


async def until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110 - whoever makes it happen knows nothing of the test
        await asyncio.sleep(0.001)


class MetadataContract:
    async def test_an_absent_partition_is_an_empty_view(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            assert manager.view(TIP) is None
            view = await manager.refresh(TIP, now())
            assert view.segments == ()
            assert not view.copies_started
            assert manager.view(TIP) == view

    async def test_only_finished_segments_are_visible(self, backing: Backing) -> None:
        async with backing.manager() as writer, backing.manager() as reader:
            metadata = segment(1, 0, 9)
            await writer.put(metadata)
            for manager in (writer, reader):
                view = await manager.refresh(TIP, now())
                assert view.segments == ()
                assert view.copies_started
            finished = metadata.with_state(State.COPY_SEGMENT_FINISHED, 1)
            await writer.put(finished)
            for manager in (writer, reader):
                view = await manager.refresh(TIP, now())
                assert view.segments == (finished,)
                assert not view.copies_started

    async def test_put_shows_in_its_own_view_without_a_read(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            before = await manager.refresh(TIP, now())
            reads = backing.reads(TIP)
            finished = await copied(manager, segment(1, 0, 9))
            view = manager.view(TIP)
            assert view is not None
            assert view.segments == (finished,)
            assert view.read_at == before.read_at  # it says no more than what was read
            assert backing.reads(TIP) == reads

    async def test_a_deletion_hides_the_segment_at_once(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            finished = await copied(manager, segment(1, 0, 9))
            deleting = finished.with_state(State.DELETE_SEGMENT_STARTED, 2)
            await manager.put(deleting)
            view = await manager.refresh(TIP, now())
            assert view.segments == ()
            assert manager.list_remote_log_segments(TIP) == (deleting,)
            await manager.put(deleting)  # a retry
            await self.delete_data(backing, deleting)
            await manager.put(deleting.with_state(State.DELETE_SEGMENT_FINISHED, 3))
            assert manager.list_remote_log_segments(TIP) == ()
            assert (await manager.refresh(TIP, now())).segments == ()
            assert manager.list_remote_log_segments(TIP) == ()

    async def delete_data(self, backing: Backing, metadata: RemoteLogSegmentMetadata) -> None:
        """What the archiver does between the two states of a deletion."""

    async def test_illegal_transitions_are_refused_and_change_nothing(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as writer, backing.manager() as other:
            with pytest.raises(ValueError, match="new segment to COPY_SEGMENT_FINISHED"):
                await writer.put(segment(1, 0, 9, State.COPY_SEGMENT_FINISHED))
            finished = await copied(writer, segment(1, 0, 9))
            for manager in (writer, other):  # `other` never read: it looks first
                with pytest.raises(ValueError, match="FINISHED to COPY_SEGMENT_STARTED"):
                    await manager.put(finished.with_state(State.COPY_SEGMENT_STARTED, 5))
                view = await manager.refresh(TIP, now())
                assert view.segments == (finished,)

    async def test_overlap_and_gap(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            first = await copied(manager, segment(1, 0, 9, at_ms=5))
            await copied(manager, segment(2, 0, 9, at_ms=6))
            after = await copied(manager, segment(3, 20, 29))
            view = await manager.refresh(TIP, now())
            assert view.segments == (first, after)
            assert view.gaps() == [(10, 19)]
            assert view.gap_at(15)

    async def test_partitions_are_apart(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            mine = await copied(manager, segment(1, 0, 9))
            theirs = await copied(manager, segment(2, 0, 5, tip=OTHER))
            assert (await manager.refresh(TIP, now())).segments == (mine,)
            assert (await manager.refresh(OTHER, now())).segments == (theirs,)
            assert list(await manager.list_partitions()) == [TIP, OTHER]
        async with backing.manager() as fresh:
            assert list(await fresh.list_partitions()) == [TIP, OTHER]
            assert fresh.knows_topic(TIP.topic_id) is None
            assert await fresh.topic_partitions(TIP.topic_id, now()) == {0, 1}
            assert await fresh.topic_partitions(UUID(int=9), now()) == frozenset()
            assert fresh.knows_topic(TIP.topic_id) is True
            assert fresh.knows_topic(UUID(int=9)) is False

    async def test_a_cached_view_serves_whoever_asks_for_no_fresher_one(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as manager:
            view = await manager.refresh(TIP, now())
            reads = backing.reads(TIP)
            assert await manager.refresh(TIP, view.read_at) is view
            assert backing.reads(TIP) == reads
            later = await manager.refresh(TIP, now())
            assert backing.reads(TIP) == reads + 1
            assert later.read_at > view.read_at

    async def test_a_time_to_come_counts_as_now(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            asked_at = now()
            assert (await manager.refresh(TIP, asked_at + 3600)).read_at >= asked_at

    async def test_callers_at_the_same_time_share_one_read(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            await copied(manager, segment(1, 0, 9))
            reads = backing.reads(TIP)
            since = now()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(manager.refresh(TIP, since)) for _ in range(50)]
            assert backing.reads(TIP) == reads + 1
            assert len({id(task.result()) for task in tasks}) == 1

    async def test_a_read_that_began_too_early_is_not_good_enough(self, backing: Backing) -> None:
        async with backing.manager() as reader, backing.manager() as writer:
            await writer.refresh(TIP, now())
            backing.hold()
            reads = backing.reads(TIP)
            async with asyncio.TaskGroup() as group:
                early = group.create_task(reader.refresh(TIP, now()))
                await until(lambda: backing.reads(TIP) == reads + 1)
                began_before = now()
                late = group.create_task(reader.refresh(TIP, began_before))
                later = group.create_task(reader.refresh(TIP, began_before))
                await asyncio.sleep(0.005)
                assert backing.reads(TIP) == reads + 1  # never two at a time
                backing.release()
            assert early.result().read_at < began_before <= late.result().read_at
            assert late.result() is later.result()
            assert backing.reads(TIP) == reads + 2

    async def test_what_is_put_during_a_read_is_not_lost_by_it(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            kept = await copied(manager, segment(1, 0, 9))
            gone = await copied(manager, segment(2, 10, 19))
            deleting = gone.with_state(State.DELETE_SEGMENT_STARTED, 1)
            backing.hold()
            reads = backing.reads(TIP)
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(manager.refresh(TIP, now()))
                await until(lambda: backing.reads(TIP) == reads + 1)
                # The read has seen nothing of what follows.
                finished = await copied(manager, segment(3, 20, 29))
                await manager.put(deleting)
                backing.release()
            assert reading.result().segments == (kept, finished)
            assert manager.view(TIP) is reading.result()
            view = await manager.refresh(TIP, now())
            assert view.segments == (kept, finished)

    async def test_a_caller_that_leaves_takes_the_read_from_nobody(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            await copied(manager, segment(1, 0, 9))
            backing.hold()
            reads = backing.reads(TIP)
            since = now()
            async with asyncio.TaskGroup() as group:
                first = group.create_task(manager.refresh(TIP, since))
                second = group.create_task(manager.refresh(TIP, since))
                await until(lambda: backing.reads(TIP) == reads + 1)
                first.cancel()
                await asyncio.wait([first])
                assert first.cancelled()
                backing.release()
            assert len(second.result().segments) == 1
            assert backing.reads(TIP) == reads + 1

    async def test_a_read_that_everybody_left_still_freshens_the_view(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as manager:
            backing.hold()
            async with asyncio.TaskGroup() as group:
                only = group.create_task(manager.refresh(TIP, now()))
                await until(lambda: backing.reads(TIP) == 1)
                only.cancel()
            backing.release()
            await until(lambda: manager.view(TIP) is not None)
            assert backing.reads(TIP) == 1

    async def test_an_outage_keeps_the_old_view_and_says_so(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            await copied(manager, segment(1, 0, 9))
            old = await manager.refresh(TIP, now())
            backing.fail()
            with pytest.raises(StorageUnavailable):
                await manager.refresh(TIP, now())
            assert manager.view(TIP) is old
            assert await manager.refresh(TIP, old.read_at) is old
            with pytest.raises(StorageUnavailable):
                await manager.list_partitions()
            with pytest.raises(StorageUnavailable):
                await manager.topic_partitions(TIP.topic_id, now())
            backing.heal()
            asked_at = now()
            fresh = await manager.refresh(TIP, asked_at)
            assert fresh.read_at >= asked_at
            assert fresh.segments == old.segments

    async def test_a_failed_read_fails_all_its_waiters_and_is_not_kept(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as manager:
            backing.fail()
            since = now()
            outcomes = await asyncio.gather(
                *(manager.refresh(TIP, since) for _ in range(10)), return_exceptions=True
            )
            assert {type(outcome) for outcome in outcomes} == {StorageUnavailable}
            reads = backing.reads(TIP)
            assert reads == 1
            backing.heal()
            await manager.refresh(TIP, since)
            assert backing.reads(TIP) == 2

    async def test_a_put_that_failed_is_not_shown(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            await manager.refresh(TIP, now())
            backing.fail()
            with pytest.raises(StorageUnavailable):
                await manager.put(segment(1, 0, 9))
            assert manager.list_remote_log_segments(TIP) == ()
            backing.heal()
            await manager.put(segment(1, 0, 9))
            assert len(manager.list_remote_log_segments(TIP)) == 1

    async def test_closing_ends_the_reads_and_tells_who_waits(self, backing: Backing) -> None:
        backing.hold()
        async with asyncio.TaskGroup() as group:
            async with backing.manager() as manager:
                waiting = group.create_task(self._refused(manager))
                await until(lambda: backing.reads(TIP) == 1)
            await waiting
        with pytest.raises(StorageUnavailable, match="closed"):
            await manager.refresh(TIP, now())

    async def _refused(self, manager: Manager) -> None:
        with pytest.raises(StorageUnavailable, match="closed"):
            await manager.refresh(TIP, now())
