"""Segment metadata for tests of retention, with hypothesis strategies. Not a test."""

from __future__ import annotations

from uuid import UUID

from hypothesis import strategies as st

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

TP = TopicIdPartition(UUID(int=1), "orders", 0)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


def segment(
    number: int,
    start: int,
    end: int,
    *,
    newest_ms: int = 0,
    size: int | None = None,
    state: RemoteLogSegmentState = FINISHED,
    event_ms: int = 0,
    epochs: tuple[EpochStart, ...] | None = None,
    copied_end: int | None = None,
) -> RemoteLogSegmentMetadata:
    """The segment has one byte for each copied offset, unless `size` is given."""
    copied = end if copied_end is None else copied_end
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(TP, UUID(int=number)),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=newest_ms,
        event_timestamp_ms=event_ms,
        segment_leader_epochs=(EpochStart(0, start),) if epochs is None else epochs,
        segment_size_bytes=copied - start + 1 if size is None else size,
        state=state,
        has_aborted_txns=False,
        copied_end_offset=copied_end,
    )


@st.composite
def archives(draw: st.DrawFn) -> tuple[list[RemoteLogSegmentMetadata], PartitionView]:
    """All segments named by metadata, with gaps, overlaps and duplicates, and the view of them."""
    every: list[RemoteLogSegmentMetadata] = []
    position = draw(st.integers(0, 5))
    for number in range(draw(st.integers(0, 10))):
        start = max(0, position + draw(st.sampled_from([0, 0, 0, 0, 3, -1, -4])))
        end = start + draw(st.integers(0, 8))
        copied = draw(st.sampled_from([None, None, None, end + 2]))
        state = draw(st.sampled_from([FINISHED, FINISHED, FINISHED, STARTED, DELETING]))
        epoch = draw(st.sampled_from([0, 0, 0, 1]))
        every.append(
            segment(
                number + 1,
                start,
                end,
                newest_ms=draw(st.integers(-1, 30)),
                state=state,
                event_ms=draw(st.integers(0, 30)),
                epochs=(EpochStart(epoch, start),),
                copied_end=copied,
            )
        )
        position = end + 1
    unreadable = draw(st.lists(st.integers(0, 40), max_size=1))
    raised = draw(st.sampled_from([0, 0, 3, 20]))
    return every, build_view(TP, every, 1.0, unreadable, raised)
