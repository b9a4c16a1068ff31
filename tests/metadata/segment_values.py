"""Generated metadata events of one partition, legal and in log order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from fetchproxy.model import (
    OFFSET_MAX,
    SEGMENT_BYTES_MAX,
    EpochStart,
    LogHistory,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.segments.records import LogHistoryRecord, LogStartOffset, MetadataEvent
from fetchproxy.segments.states import check_deletion, check_update

TP = TopicIdPartition(UUID(int=0x0102030405060708090A0B0C0D0E0F10), "orders", 3)
INT64_MAX = 2**63 - 1
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
DELETED = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


def segment_of(
    tp: TopicIdPartition, number: int, start: int, end: int, **fields: Any
) -> RemoteLogSegmentMetadata:
    """A plain finished segment; `fields` are those that matter to a test."""
    plain: dict[str, Any] = {
        "max_timestamp_ms": 0,
        "event_timestamp_ms": 0,
        "segment_leader_epochs": (EpochStart(0, start),),
        "segment_size_bytes": 100,
        "state": FINISHED,
        "has_aborted_txns": False,
    }
    id_ = RemoteLogSegmentId(tp, UUID(int=number))
    return RemoteLogSegmentMetadata(id_, start_offset=start, end_offset=end, **{**plain, **fields})


def segment(
    number: int,
    start: int,
    end: int,
    state: RemoteLogSegmentState = FINISHED,
    *,
    tp: TopicIdPartition = TP,
    max_timestamp_ms: int = 0,
    event_timestamp_ms: int = 0,
    copied_end_offset: int | None = None,
) -> RemoteLogSegmentMetadata:
    return segment_of(
        tp,
        number,
        start,
        end,
        max_timestamp_ms=max_timestamp_ms,
        event_timestamp_ms=event_timestamp_ms,
        segment_leader_epochs=(EpochStart(number % 2, start),),
        segment_size_bytes=100 + number,
        state=state,
        has_aborted_txns=number % 3 == 0,
        copied_end_offset=copied_end_offset,
    )


offsets = st.integers(0, OFFSET_MAX) | st.integers(0, 300)
timestamps = st.integers(-1, INT64_MAX)
log_histories = st.builds(LogHistory, st.integers(-1, 9), offsets, st.integers(-1, 9))
uuids = st.binary(min_size=16, max_size=16).map(lambda raw: UUID(bytes=raw))


@st.composite
def any_segments(draw: st.DrawFn, tp: TopicIdPartition = TP) -> RemoteLogSegmentMetadata:
    """Every value that a segment's metadata can have."""
    start = draw(offsets)
    end = draw(st.integers(start, OFFSET_MAX))
    first = st.just(start) | offsets
    epochs = draw(st.lists(st.builds(EpochStart, st.integers(-1, 2**31 - 1), first), max_size=4))
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(tp, draw(uuids)),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=draw(timestamps),
        event_timestamp_ms=draw(timestamps),
        segment_leader_epochs=tuple(epochs),
        segment_size_bytes=draw(st.integers(0, SEGMENT_BYTES_MAX)),
        state=draw(st.sampled_from(RemoteLogSegmentState)),
        has_aborted_txns=draw(st.booleans()),
        copied_end_offset=draw(st.none() | st.integers(end, OFFSET_MAX)),
        packed=draw(st.booleans()),
    )


def any_events(tp: TopicIdPartition = TP) -> st.SearchStrategy[MetadataEvent]:
    deletions = st.builds(
        RemotePartitionDeleteMetadata,
        st.just(tp),
        st.sampled_from(RemotePartitionDeleteState),
        timestamps,
        st.integers(-1, 2**31 - 1),
    )
    return (
        any_segments(tp)
        | deletions
        | st.builds(LogStartOffset, st.just(tp), offsets, timestamps, st.integers(-1, 9))
        | st.builds(LogHistoryRecord, st.just(tp), log_histories, timestamps)
    )


@st.composite
def histories(draw: st.DrawFn) -> list[MetadataEvent]:
    """Events as a topic may have them: legal ones, out-of-order ones, and repeats."""
    known: dict[int, RemoteLogSegmentMetadata] = {}
    history: list[MetadataEvent] = []
    position = 0
    for number in range(draw(st.integers(0, 25))):
        kind = draw(st.integers(0, 11))
        if kind <= 4 or not known:
            start = max(0, position + draw(st.sampled_from([0, 0, 0, 5, -15])))
            end = start + draw(st.integers(0, 12))
            position = max(position, end + 1)
            known[number] = segment(
                number, start, end, STARTED, max_timestamp_ms=draw(st.integers(-1, 50))
            )
            history.append(known[number])
        if kind <= 9 and known:
            chosen = draw(st.sampled_from(sorted(known)))
            new = known[chosen].with_state(
                draw(st.sampled_from([FINISHED, FINISHED, FINISHED, DELETING, DELETED])), number
            )
            if new.state is FINISHED and draw(st.integers(0, 3)) == 0:
                cut = draw(st.integers(new.start_offset, new.end_offset))
                new = replace(new, end_offset=cut, copied_end_offset=known[chosen].end_offset)
            history.append(new)
            known[chosen] = new
        elif kind == 10:
            history.append(LogStartOffset(TP, draw(st.integers(0, position)), number))
        elif draw(st.integers(0, 3)) == 0:
            state = draw(st.sampled_from(RemotePartitionDeleteState))
            history.append(RemotePartitionDeleteMetadata(TP, state, number))
        elif history:
            history.append(draw(st.sampled_from(history)))
    return history


class PlainTable:
    """The same as `PartitionTable` with a dict of values: a plain form of the rules."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.segments: dict[UUID, RemoteLogSegmentMetadata] = {}
        self.raised_log_start = 0
        self.deletion: RemotePartitionDeleteMetadata | None = None

    def apply(self, event: MetadataEvent) -> bool:
        if isinstance(event, LogStartOffset):
            self.raised_log_start = max(self.raised_log_start, event.offset)
            return True
        try:
            if isinstance(event, RemotePartitionDeleteMetadata):
                check_deletion(self.deletion and self.deletion.state, event.state)
                self.deletion = event
            else:
                check_update(self.segments.get(event.segment_id.id), event)
        except ValueError:
            return False
        if isinstance(event, RemotePartitionDeleteMetadata):
            if event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                self.forget()
        elif event.state is DELETED:
            del self.segments[event.segment_id.id]
        else:
            self.segments[event.segment_id.id] = event
        return True
