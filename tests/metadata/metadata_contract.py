"""The contract of every RemoteLogMetadataManager, whatever the source of its metadata.

A subclass has a fixture `backing`: the place of the managers' metadata, with a door.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from uuid import UUID

import pytest
from segment_values import segment_of

from fetchproxy.errors import StorageUnavailable
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import (
    CompactedCopy,
    EpochStart,
    LogHistory,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)

Manager = RemoteLogMetadataManager
DeleteState = RemotePartitionDeleteState
State = RemoteLogSegmentState
TP = TopicIdPartition(UUID(int=1), "orders", 0)
OTHER = TopicIdPartition(UUID(int=1), "orders", 1)


class Backing(ABC):
    """All managers of one test share it, as instances share a bucket or a metadata topic."""

    @abstractmethod
    def manager(self) -> AbstractAsyncContextManager[Manager]:
        """A further instance."""

    @abstractmethod
    def reads(self, tp: TopicIdPartition) -> int:
        """The number of reads of the partition that have begun."""

    @abstractmethod
    def hold(self) -> None:
        """Make reads, begun or new, wait with the data that they have seen; puts go through."""

    @abstractmethod
    def release(self) -> None: ...

    @abstractmethod
    def fail(self) -> None:
        """Make every access raise StorageUnavailable until `heal`."""

    @abstractmethod
    def heal(self) -> None: ...


def segment(
    number: int,
    start: int,
    end: int,
    state: State = State.COPY_SEGMENT_STARTED,
    tp: TopicIdPartition = TP,
    at_ms: int = 0,
) -> RemoteLogSegmentMetadata:
    return segment_of(
        tp,
        number,
        start,
        end,
        max_timestamp_ms=end,
        event_timestamp_ms=at_ms,
        segment_leader_epochs=(EpochStart(0, 0),),
        state=state,
    )


def deletion(state: DeleteState, at_ms: int = 0) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(TP, state, at_ms, epoch=3)


async def copied(manager: Manager, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """Put both states of a copy; return the finished metadata."""
    await manager.put(metadata)
    finished = metadata.with_state(State.COPY_SEGMENT_FINISHED, metadata.event_timestamp_ms)
    await manager.put(finished)
    return finished


def now() -> float:
    return asyncio.get_running_loop().time()


def read_at(manager: Manager) -> float:
    view = manager.view(TP)
    assert view is not None
    return view.read_at


async def until(happened: Callable[[], bool]) -> None:
    while not happened():  # noqa: ASYNC110 - whoever makes it happen knows nothing of the test
        await asyncio.sleep(0.001)


class MetadataContract:
    async def test_an_absent_partition_is_an_empty_view(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            assert manager.view(TP) is None
            view = await manager.refresh(TP, now())
            assert view.segments == ()
            assert not view.copies_started
            assert manager.view(TP) == view

    async def test_only_finished_segments_are_visible(self, backing: Backing) -> None:
        async with backing.manager() as writer, backing.manager() as reader:
            metadata = segment(1, 0, 9)
            await writer.put(metadata)
            for manager in (writer, reader):
                view = await manager.refresh(TP, now())
                assert view.segments == ()
                assert view.copies_started
            finished = metadata.with_state(State.COPY_SEGMENT_FINISHED, 1)
            await writer.put(finished)
            for manager in (writer, reader):
                view = await manager.refresh(TP, now())
                assert view.segments == (finished,)
                assert not view.copies_started

    async def test_put_shows_in_its_own_view_when_it_returns(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            before = await manager.refresh(TP, now())
            finished = await copied(manager, segment(1, 0, 9))
            view = manager.view(TP)
            assert view is not None
            assert tuple(view.segments) == (finished,)
            assert view.read_at >= before.read_at

    async def test_a_deletion_hides_the_segment_at_once(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            finished = await copied(manager, segment(1, 0, 9))
            deleting = finished.with_state(State.DELETE_SEGMENT_STARTED, 2)
            await manager.put(deleting)
            view = await manager.refresh(TP, now())
            assert view.segments == ()
            assert manager.list_remote_log_segments(TP) == (deleting,)
            await manager.put(deleting)  # a retry
            await self.delete_data(backing, deleting)
            await manager.put(deleting.with_state(State.DELETE_SEGMENT_FINISHED, 3))
            assert manager.list_remote_log_segments(TP) == ()
            assert (await manager.refresh(TP, now())).segments == ()
            assert manager.list_remote_log_segments(TP) == ()

    async def delete_data(self, backing: Backing, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete the data as the archiver does between the two states of a deletion."""

    async def test_illegal_transitions_are_refused_and_change_nothing(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as writer, backing.manager() as other:
            with pytest.raises(ValueError, match="new segment to COPY_SEGMENT_FINISHED"):
                await writer.put(segment(1, 0, 9, State.COPY_SEGMENT_FINISHED))
            finished = await copied(writer, segment(1, 0, 9))
            for manager in (writer, other):  # `other` has not read yet, so it reads first
                with pytest.raises(ValueError, match="FINISHED to COPY_SEGMENT_STARTED"):
                    await manager.put(finished.with_state(State.COPY_SEGMENT_STARTED, 5))
                view = await manager.refresh(TP, now())
                assert view.segments == (finished,)

    async def test_overlap_and_gap(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            first = await copied(manager, segment(1, 0, 9, at_ms=5))
            await copied(manager, segment(2, 0, 9, at_ms=6))
            after = await copied(manager, segment(3, 20, 29))
            view = await manager.refresh(TP, now())
            assert view.segments == (first, after)
            assert view.gaps() == [(10, 19)]
            assert view.gap_at(15)

    async def test_partitions_are_apart(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            own_segment = await copied(manager, segment(1, 0, 9))
            other_segment = await copied(manager, segment(2, 0, 5, tp=OTHER))
            assert (await manager.refresh(TP, now())).segments == (own_segment,)
            assert (await manager.refresh(OTHER, now())).segments == (other_segment,)
            assert list(await manager.list_partitions()) == [TP, OTHER]
        async with backing.manager() as fresh:
            assert list(await fresh.list_partitions()) == [TP, OTHER]
            assert set(await fresh.refresh_topic(TP.topic_id, now())) == {0, 1}

    async def test_a_cached_view_serves_whoever_asks_for_no_fresher_one(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as manager:
            view = await manager.refresh(TP, now())
            reads = backing.reads(TP)
            assert await manager.refresh(TP, view.read_at) is view
            assert backing.reads(TP) == reads
            later = await manager.refresh(TP, now())
            assert backing.reads(TP) == reads + 1
            assert later.read_at > view.read_at

    async def test_a_time_to_come_counts_as_now(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            asked_at = now()
            assert (await manager.refresh(TP, asked_at + 3600)).read_at >= asked_at

    async def test_callers_at_the_same_time_share_one_read(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            await copied(manager, segment(1, 0, 9))
            reads = backing.reads(TP)
            since = now()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(manager.refresh(TP, since)) for _ in range(50)]
            assert backing.reads(TP) == reads + 1
            assert len({id(task.result()) for task in tasks}) == 1

    async def test_a_read_that_began_too_early_is_not_good_enough(self, backing: Backing) -> None:
        async with backing.manager() as reader, backing.manager() as writer:
            await writer.refresh(TP, now())
            backing.hold()
            reads = backing.reads(TP)
            async with asyncio.TaskGroup() as group:
                early = group.create_task(reader.refresh(TP, now()))
                await until(lambda: backing.reads(TP) == reads + 1)
                began_before = now()
                late = group.create_task(reader.refresh(TP, began_before))
                later = group.create_task(reader.refresh(TP, began_before))
                await asyncio.sleep(0.005)
                assert backing.reads(TP) == reads + 1  # never two at a time
                backing.release()
            assert early.result().read_at < began_before <= late.result().read_at
            assert late.result() is later.result()
            assert backing.reads(TP) == reads + 2

    async def test_a_caller_that_leaves_takes_the_read_from_nobody(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            await copied(manager, segment(1, 0, 9))
            backing.hold()
            reads = backing.reads(TP)
            since = now()
            async with asyncio.TaskGroup() as group:
                first = group.create_task(manager.refresh(TP, since))
                second = group.create_task(manager.refresh(TP, since))
                await until(lambda: backing.reads(TP) == reads + 1)
                first.cancel()
                await asyncio.wait([first])
                assert first.cancelled()
                backing.release()
            assert len(second.result().segments) == 1
            assert backing.reads(TP) == reads + 1

    async def test_a_read_that_everybody_left_still_freshens_the_view(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as manager:
            before = await manager.refresh(TP, now())
            reads = backing.reads(TP)
            backing.hold()
            async with asyncio.TaskGroup() as group:
                only = group.create_task(manager.refresh(TP, now()))
                await until(lambda: backing.reads(TP) == reads + 1)
                only.cancel()
            backing.release()
            await until(lambda: read_at(manager) > before.read_at)
            assert backing.reads(TP) == reads + 1

    async def test_an_outage_keeps_the_old_view_and_says_so(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            await copied(manager, segment(1, 0, 9))
            old = await manager.refresh(TP, now())
            backing.fail()
            with pytest.raises(StorageUnavailable):
                await manager.refresh(TP, now())
            assert manager.view(TP) is old
            assert await manager.refresh(TP, old.read_at) is old
            with pytest.raises(StorageUnavailable):
                await manager.list_partitions()
            backing.heal()
            asked_at = now()
            fresh = await manager.refresh(TP, asked_at)
            assert fresh.read_at >= asked_at
            assert fresh.segments == old.segments

    async def test_a_failed_read_fails_all_its_waiters_and_is_not_kept(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as manager:
            backing.fail()
            since = now()
            outcomes = await asyncio.gather(
                *(manager.refresh(TP, since) for _ in range(10)), return_exceptions=True
            )
            assert {type(outcome) for outcome in outcomes} == {StorageUnavailable}
            reads = backing.reads(TP)
            assert reads == 1
            backing.heal()
            await manager.refresh(TP, since)
            assert backing.reads(TP) == 2

    async def test_a_put_that_failed_is_not_shown(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            await manager.refresh(TP, now())
            backing.fail()
            with pytest.raises(StorageUnavailable):
                await manager.put(segment(1, 0, 9))
            assert manager.list_remote_log_segments(TP) == ()
            backing.heal()
            await manager.put(segment(1, 0, 9))
            assert len(manager.list_remote_log_segments(TP)) == 1

    async def test_closing_ends_the_reads_and_tells_who_waits(self, backing: Backing) -> None:
        backing.hold()
        async with asyncio.TaskGroup() as group:
            async with backing.manager() as manager:
                waiting = group.create_task(self._refused(manager))
                await until(lambda: backing.reads(TP) == 1)
            await waiting
        with pytest.raises(StorageUnavailable, match="closed"):
            await manager.refresh(TP, now())

    async def _refused(self, manager: Manager) -> None:
        with pytest.raises(StorageUnavailable, match="closed"):
            await manager.refresh(TP, now())

    async def test_a_cut_is_seen_by_all_and_never_undone(self, backing: Backing) -> None:
        async with backing.manager() as manager, backing.manager() as other:
            finished = await copied(manager, segment(1, 0, 9))
            cut = replace(finished, end_offset=4, copied_end_offset=9, event_timestamp_ms=1)
            await manager.put(cut)
            for reader in (manager, other):
                view = await reader.refresh(TP, now())
                assert tuple(view.segments) == (cut,)
                assert view.log_end_offset == 5
                with pytest.raises(ValueError, match="ends at 4"):
                    await reader.put(finished)
        async with backing.manager() as fresh:
            assert tuple((await fresh.refresh(TP, now())).segments) == (cut,)

    async def test_a_raised_log_start_is_seen_by_all_and_never_lowered(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as manager, backing.manager() as other:
            await copied(manager, segment(1, 0, 9))
            segment_kept = await copied(manager, segment(2, 10, 19))
            await other.refresh(TP, now())
            raised = await manager.raise_log_start_offset(TP, 12)
            assert manager.view(TP) == raised
            lower = await other.raise_log_start_offset(TP, 3)  # it may not know of the 12 yet
            assert lower.raised_log_start in (3, 12)
            for reader in (manager, other):
                view = await reader.refresh(TP, now())
                assert (tuple(view.segments), view.raised_log_start) == ((segment_kept,), 12)
                assert view.log_start_offset == 12
            assert len(manager.list_remote_log_segments(TP)) == 2

    async def test_one_copy_of_a_compacted_log_counts_for_all(self, backing: Backing) -> None:
        """A new one replaces the other at once, and whole."""
        first, second = CompactedCopy(5, 20, 20, 77), CompactedCopy(6, 30, -1, 99)

        def of_copy(
            copy: CompactedCopy, number: int, low: int, high: int
        ) -> RemoteLogSegmentMetadata:
            one = segment(number, low, high)
            return replace(
                one, segment_id=RemoteLogSegmentId(TP, copy.segment_id(one.segment_id.id))
            )

        async with backing.manager() as manager, backing.manager() as other:
            await manager.put_log_history(TP, LogHistory(compacted=CompactedCopy()))
            low = await copied(manager, of_copy(first, 1, 0, 9))
            high = await copied(manager, of_copy(first, 2, 10, 19))
            for reader in (manager, other):
                assert not (await reader.refresh(TP, now())).segments, "no copy is whole yet"
            await manager.put_log_history(TP, LogHistory(compacted=first))
            new_low = await copied(manager, of_copy(second, 3, 0, 14))
            new_high = await copied(manager, of_copy(second, 4, 15, 29))
            for reader in (manager, other):
                view = await reader.refresh(TP, now())
                assert tuple(view.segments) == (low, high)
                assert view.history.compacted == first
            await manager.put_log_history(TP, LogHistory(compacted=second))
            for reader in (manager, other):
                view = await reader.refresh(TP, now())
                assert tuple(view.segments) == (new_low, new_high)
            assert set(manager.list_remote_log_segments(TP)) == {low, high, new_low, new_high}
        async with backing.manager() as fresh:
            view = await fresh.refresh(TP, now())
            assert tuple(view.segments) == (new_low, new_high)
            assert view.history == LogHistory(compacted=second)

    async def test_what_a_person_says_of_a_log_that_began_again_is_seen_by_all(
        self, backing: Backing
    ) -> None:
        """A new history has its own log starts, and the old one can be shown again."""

        def of_epoch(number: int, first: int, last: int, epoch: int) -> RemoteLogSegmentMetadata:
            epochs = (EpochStart(epoch, first),)
            return replace(segment(number, first, last), segment_leader_epochs=epochs)

        new = LogHistory(after_epoch=3, earlier=(0, 1))
        history = LogHistory(-1, kept_below=20, kept_epoch=3)
        async with backing.manager() as manager, backing.manager() as other:
            below = await copied(manager, of_epoch(1, 0, 9, 2))
            old = await copied(manager, of_epoch(2, 10, 19, 3))
            await manager.raise_log_start_offset(TP, 10)
            await other.refresh(TP, now())
            changed_view = await manager.put_log_history(TP, new)
            assert (
                changed_view.history,
                tuple(changed_view.segments),
                changed_view.raised_log_start,
            ) == (new, (), 0)
            first = await copied(manager, of_epoch(3, 0, 7, 5))
            over = await copied(manager, of_epoch(4, 8, 25, 6))
            for reader in (manager, other):
                assert tuple((await reader.refresh(TP, now())).segments) == (first, over)
            await other.raise_log_start_offset(TP, 8)
            for reader in (manager, other):
                view = await reader.refresh(TP, now())
                assert (tuple(view.segments), view.log_start_offset) == ((over,), 8)
            await manager.put_log_history(TP, history)
            for reader in (manager, other):
                view = await reader.refresh(TP, now())
                assert (view.history, view.log_start_offset) == (history, 10)
                assert tuple(view.segments) == (old, over), "the old one below 20, then the new one"
                assert view.segment_at_or_after(19) == old
                assert view.segment_at_or_after(20) == over
            assert set(manager.list_remote_log_segments(TP)) == {below, old, first, over}
        async with backing.manager() as fresh:
            assert tuple((await fresh.refresh(TP, now())).segments) == (old, over)

    async def test_a_deletion_of_a_partition_is_seen_by_all_from_mark_to_end(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as manager, backing.manager() as other:
            finished = await copied(manager, segment(1, 0, 9))
            await manager.raise_log_start_offset(TP, 5)
            assert await other.partition_deletion(TP, now()) is None
            for state in (
                DeleteState.DELETE_PARTITION_MARKED,
                DeleteState.DELETE_PARTITION_STARTED,
            ):
                await manager.put_partition_deletion(deletion(state, int(state)))
                await other.put_partition_deletion(deletion(state, 7))  # a repeat
                for reader in (manager, other):
                    deletion_read = await reader.partition_deletion(TP, now())
                    assert deletion_read == deletion(state, 7)
            deleting = finished.with_state(State.DELETE_SEGMENT_STARTED, 1)
            await manager.put(deleting)
            await self.delete_data(backing, deleting)
            await manager.put(deleting.with_state(State.DELETE_SEGMENT_FINISHED, 2))
            assert list(await other.list_partitions()) == [TP]
            await manager.put_partition_deletion(deletion(DeleteState.DELETE_PARTITION_FINISHED))
            for reader in (manager, other):
                assert await reader.partition_deletion(TP, now()) is None
                assert list(await reader.list_partitions()) == []
                views = await reader.refresh_topic(TP.topic_id, now())
                assert not any(view.segments for view in views.values())
        async with backing.manager() as fresh:
            view = await fresh.refresh(TP, now())
            assert (view.segments, view.raised_log_start) == ((), 0)

    async def test_a_deleted_topic_is_forgotten_and_may_come_back(self, backing: Backing) -> None:
        async with backing.manager() as manager, backing.manager() as other:
            deleting = (await copied(manager, segment(1, 0, 9))).with_state(
                State.DELETE_SEGMENT_STARTED, 1
            )
            for one in (manager, other):
                await one.refresh(TP, now())
                assert await one.archived_topics(now()) == {TP.topic_id}
                assert await one.topic_names() == {TP.topic}
            await manager.put_partition_deletion(deletion(DeleteState.DELETE_PARTITION_MARKED))
            await manager.put_partition_deletion(deletion(DeleteState.DELETE_PARTITION_STARTED))
            await manager.put(deleting)
            await self.delete_data(backing, deleting)
            await manager.put(deleting.with_state(State.DELETE_SEGMENT_FINISHED, 2))
            await manager.put_partition_deletion(deletion(DeleteState.DELETE_PARTITION_FINISHED))
            for one in (manager, other):
                for _ in range(100):  # a listing of the store may go on
                    if not await one.archived_topics(now()):
                        break
                    await asyncio.sleep(0.001)
                assert await one.archived_topics(now()) == frozenset()
                assert await one.topic_names() == set()
                await one.forget_topics(lambda topic_id: topic_id == TP.topic_id)
                assert one.view(TP) is None
                assert one.list_remote_log_segments(TP) == ()
            again = await copied(other, segment(2, 0, 9))
            for one in (manager, other):
                assert tuple((await one.refresh(TP, now())).segments) == (again,)

    async def test_what_is_forgotten_by_mistake_is_read_anew(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            finished = await copied(manager, segment(1, 0, 9))
            await manager.raise_log_start_offset(OTHER, 7)
            await manager.archived_topics(now())
            await manager.forget_topics(lambda _: True)
            assert manager.view(TP) is None
            assert tuple((await manager.refresh(TP, now())).segments) == (finished,)
            assert (await manager.refresh(OTHER, now())).raised_log_start == 7

    async def test_illegal_deletions_are_refused_and_change_nothing(self, backing: Backing) -> None:
        async with backing.manager() as writer, backing.manager() as other:
            for state in (
                DeleteState.DELETE_PARTITION_STARTED,
                DeleteState.DELETE_PARTITION_FINISHED,
            ):
                with pytest.raises(ValueError, match=f"nobody deletes to {state.name}"):
                    await writer.put_partition_deletion(deletion(state))
            for state in (
                DeleteState.DELETE_PARTITION_MARKED,
                DeleteState.DELETE_PARTITION_STARTED,
            ):
                await writer.put_partition_deletion(deletion(state))
            with pytest.raises(ValueError, match="STARTED to DELETE_PARTITION_MARKED"):
                await other.put_partition_deletion(deletion(DeleteState.DELETE_PARTITION_MARKED))
            deletion_read = await other.partition_deletion(TP, now())
            assert deletion_read == deletion(DeleteState.DELETE_PARTITION_STARTED)

    async def test_an_outage_says_nothing_of_deletions(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            marked = deletion(DeleteState.DELETE_PARTITION_MARKED)
            await manager.put_partition_deletion(marked)
            backing.fail()
            with pytest.raises(StorageUnavailable):
                await manager.partition_deletion(TP, now())
            with pytest.raises(StorageUnavailable):
                await manager.put_partition_deletion(marked)
            backing.heal()
            assert await manager.partition_deletion(TP, now()) == marked

    # --- topics ---
    async def test_archived_topics_are_those_that_have_anything(self, backing: Backing) -> None:
        async with backing.manager() as writer, backing.manager() as reader:
            assert writer.known_archived_topics() is None
            asked_at = now()
            assert await writer.archived_topics(asked_at) == frozenset()
            known = writer.known_archived_topics()
            assert known is not None
            assert known[0] == frozenset()
            assert asked_at <= known[1] <= now()
            await reader.archived_topics(now())
            await writer.put(segment(1, 0, 9))
            # Its writer sees it at once, others with their next look.
            assert await writer.archived_topics(asked_at) == {TP.topic_id}
            known = writer.known_archived_topics()
            assert known is not None
            assert known[0] == {TP.topic_id}
            assert await reader.archived_topics(asked_at) == frozenset()
            assert await reader.archived_topics(now()) == {TP.topic_id}

    async def test_a_topic_put_while_topics_are_listed_is_among_them(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as manager:
            await manager.refresh(TP, now())
            backing.hold()
            async with asyncio.TaskGroup() as group:
                listing = group.create_task(manager.archived_topics(now()))
                await asyncio.sleep(0.005)
                putting = group.create_task(manager.put(segment(1, 0, 9)))
                await asyncio.sleep(0.005)
                backing.release()
            assert putting.done()
            assert listing.done()
            assert await manager.archived_topics(now()) == {TP.topic_id}
            known = manager.known_archived_topics()
            assert known is not None
            assert known[0] == {TP.topic_id}

    async def test_an_outage_leaves_the_last_list_of_topics(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            await copied(manager, segment(1, 0, 9))
            await manager.archived_topics(now())
            known = manager.known_archived_topics()
            backing.fail()
            with pytest.raises(StorageUnavailable):
                await manager.archived_topics(now())
            assert manager.known_archived_topics() == known
            with pytest.raises(StorageUnavailable):
                await manager.refresh_topic(TP.topic_id, now())
            backing.heal()
            assert await manager.archived_topics(now()) == {TP.topic_id}

    async def test_a_topic_is_read_as_its_partitions_are(self, backing: Backing) -> None:
        third = TP._replace(partition=12)
        other_topic = TopicIdPartition(UUID(int=5), "orders", 1)
        async with backing.manager() as writer, backing.manager() as reader:
            await copied(writer, segment(1, 0, 9))
            await copied(writer, segment(2, 20, 29))
            await copied(writer, segment(3, 5, 9, tp=OTHER))
            await writer.raise_log_start_offset(OTHER, 7)
            await writer.put(segment(4, 0, 9, tp=third))
            await copied(writer, segment(5, 0, 9, tp=other_topic))
            asked_at = now()
            views = await reader.refresh_topic(TP.topic_id, asked_at)
            for tp in (TP, OTHER, third):
                assert views[tp.partition].read_at >= asked_at
                alone = await writer.refresh(tp, now())
                assert replace(alone, read_at=0.0) == replace(views[tp.partition], read_at=0.0)
                assert reader.view(tp) is views[tp.partition]
                assert await reader.refresh(tp, asked_at) is views[tp.partition]
            assert set(views) == {0, 1, 12}
            assert views[0].gaps() == [(10, 19)]
            assert views[12].copies_started
            assert await reader.refresh_topic(UUID(int=99), now()) == {}

    async def test_a_topic_that_was_read_says_what_is_not_in_it(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            await copied(manager, segment(1, 0, 9))
            asked_at = now()
            await manager.refresh_topic(TP.topic_id, asked_at)
            assert (await manager.refresh(OTHER, asked_at)).segments == ()
            # That does not hide later puts.
            finished = await copied(manager, segment(2, 0, 9, tp=OTHER))
            for _ in range(2):
                assert tuple((await manager.refresh(OTHER, asked_at)).segments) == (finished,)
            assert tuple((await manager.refresh_topic(TP.topic_id, now()))[1].segments) == (
                finished,
            )

    async def test_what_is_put_while_a_topic_is_read_stays_seen(self, backing: Backing) -> None:
        async with backing.manager() as manager:
            await copied(manager, segment(1, 0, 9))
            await manager.refresh(OTHER, now())
            await manager.archived_topics(now())
            backing.hold()
            async with asyncio.TaskGroup() as group:
                reading = group.create_task(manager.refresh_topic(TP.topic_id, now()))
                await asyncio.sleep(0.005)
                putting = group.create_task(copied(manager, segment(2, 0, 9, tp=OTHER)))
                await asyncio.sleep(0.005)
                backing.release()
            finished = putting.result()
            assert reading.done()
            view = manager.view(OTHER)
            assert view is not None
            assert tuple(view.segments) == (finished,)
            assert tuple((await manager.refresh(OTHER, now())).segments) == (finished,)

    async def test_who_asks_for_a_topic_at_the_same_time_shares_one_read(
        self, backing: Backing
    ) -> None:
        async with backing.manager() as manager:
            await copied(manager, segment(1, 0, 9))
            since = now()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(manager.refresh_topic(TP.topic_id, since)) for _ in range(9)
                ]
            assert len({id(task.result()[0]) for task in tasks}) == 1

    async def test_what_another_has_deleted_leaves_the_topic(self, backing: Backing) -> None:
        async with backing.manager() as manager, backing.manager() as other:
            finished = await copied(manager, segment(1, 0, 9))
            assert (await other.refresh_topic(TP.topic_id, now()))[0].segments == (finished,)
            deleting = finished.with_state(State.DELETE_SEGMENT_STARTED, 1)
            await manager.put(deleting)
            await self.delete_data(backing, deleting)
            await manager.put(deleting.with_state(State.DELETE_SEGMENT_FINISHED, 2))
            views = await other.refresh_topic(TP.topic_id, now())
            assert not any(view.segments for view in views.values())
            view = other.view(TP)
            assert view is not None
            assert view.segments == ()
