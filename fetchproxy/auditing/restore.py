"""Rebuilds the metadata topic from the metadata of each segment in the store.

It writes events that the topic lacks and changes none that it has, so it may be repeated. A Restore
event comes before and after the written events, so no reader sees half of a partition. It reads no
log; `verify` does that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicFollower
from fetchproxy.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.observability.health import Condition
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.segments.records import LogHistoryRecord, LogStartOffset, MetadataEvent, Restore

_State = RemoteLogSegmentState
# Each partition waits until its event is read back. Several at once hide the brokers' latency.
PARTITIONS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class RestoredPartition:
    """The counts are in segments."""

    tp: TopicIdPartition
    segments: int  # in the store
    restored: int  # in the store, and the topic lacked them
    unreadable: int  # in the store, damaged
    not_in_store: int  # finished, and only in the topic
    raised_log_start: int | None  # the offset if the topic lacked it
    unread: tuple[Condition, ...]  # metadata in the store that cannot be read now


async def restore_archive(
    stored: StoreBackedRemoteLogMetadataManager,
    follower: TopicFollower | None,
    *,
    wall_clock_ms: Callable[[], int],
    partitions: Iterable[TopicIdPartition],
    dry_run: bool = False,
) -> list[RestoredPartition]:
    """`follower` None (only with `dry_run`): there is no metadata topic yet. Raises
    RemoteStorageError; events written before it stay.
    """
    results: list[RestoredPartition] = []

    async def restore(tp: TopicIdPartition) -> None:
        now = asyncio.get_running_loop().time()
        table = PartitionTable(tp) if follower is None else await follower.table(tp, now)
        events = await _missing_events(stored, tp, table, wall_clock_ms())
        restored_partition = _summary(stored, tp, table, events)
        if follower is not None and not dry_run:
            for event in bracketed(tp, events, table.restoring, wall_clock_ms()):
                # A refused event was overtaken by an archiver's event, so the topic is newer.
                await follower.append(event)
        results.append(restored_partition)

    await for_each(partitions, restore, PARTITIONS_AT_ONCE)
    return sorted(results, key=lambda restored: restored.tp)


async def _missing_events(
    stored: StoreBackedRemoteLogMetadataManager,
    tp: TopicIdPartition,
    table: PartitionTable,
    now_ms: int,
) -> list[MetadataEvent]:
    """The events that the topic lacks, by the partition's current state in the store."""
    now = asyncio.get_running_loop().time()
    view = await stored.refresh(tp, now)
    events: list[MetadataEvent] = []
    events += missing_deletion(table.deletion, await stored.partition_deletion(tp, now))
    # Written before the segments, so deleted or hidden segments are never shown.
    same_history = view.history == table.history
    if not same_history:
        events.append(LogHistoryRecord(tp, view.history, now_ms))
    if view.raised_log_start > (table.raised_log_start if same_history else 0):
        events.append(LogStartOffset(tp, view.raised_log_start, now_ms, view.history.after_epoch))
    for segment in stored.list_remote_log_segments(tp):
        events += missing_states(table.known(segment), segment)
    return events


def _summary(
    stored: StoreBackedRemoteLogMetadataManager,
    tp: TopicIdPartition,
    table: PartitionTable,
    events: Iterable[MetadataEvent],
) -> RestoredPartition:
    """`events`: not written yet."""
    ids = {segment.segment_id for segment in stored.list_remote_log_segments(tp)}
    changed_ids = {e.segment_id for e in events if isinstance(e, RemoteLogSegmentMetadata)}
    starts = [event.offset for event in events if isinstance(event, LogStartOffset)]
    return RestoredPartition(
        tp=tp,
        segments=len(ids),
        restored=len(changed_ids),
        unreadable=sum(not problem.retriable for problem in stored.problems(tp)),
        not_in_store=sum(s.is_finished and s.segment_id not in ids for s in table.segments()),
        raised_log_start=starts[0] if starts else None,
        unread=tuple(problem for problem in stored.problems(tp) if problem.retriable),
    )


def bracketed(
    tp: TopicIdPartition, events: Sequence[MetadataEvent], is_begun: bool, now_ms: int
) -> list[MetadataEvent]:
    """`events` between a begin and an end event; empty if there is nothing to do. `is_begun`: an
    earlier restore did not end. If several restores run at once, each writes all missing events,
    so the end event of the first is right.
    """
    if not events and not is_begun:
        return []
    begin = [] if is_begun else [Restore(tp, True, now_ms)]
    return [*begin, *events, Restore(tp, False, now_ms)]


def missing_states(
    recorded: RemoteLogSegmentMetadata | None, stored: RemoteLogSegmentMetadata
) -> list[RemoteLogSegmentMetadata]:
    """The states from the topic's to the store's. A segment must first be in state STARTED."""
    steps = [_State.COPY_SEGMENT_STARTED]
    if stored.state is not _State.COPY_SEGMENT_STARTED:
        steps.append(stored.state)
    if recorded is not None:
        steps = [state for state in steps if state > recorded.state]
    return [replace(stored, state=state) for state in steps]


def missing_deletion(
    recorded: RemotePartitionDeleteMetadata | None, stored: RemotePartitionDeleteMetadata | None
) -> list[RemotePartitionDeleteMetadata]:
    """As `missing_states`, for a deletion of the whole partition."""
    if stored is None:
        return []
    reached = -1 if recorded is None else recorded.state
    steps = [s for s in RemotePartitionDeleteState if reached < s <= stored.state]
    return [replace(stored, state=state) for state in steps]
