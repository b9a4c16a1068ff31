"""A view computed in the plainest way: it sorts all segments and looks at each one."""

from __future__ import annotations

from collections.abc import Iterable

from fetchproxy.metadata.columns import SegmentRows
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    FIRST_HISTORY,
    LogHistory,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.segments.overlaps import add_in_order

UNFINISHED = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
)


def plain_view(
    tp: TopicIdPartition,
    segments: Iterable[RemoteLogSegmentMetadata],
    read_at: float,
    unreadable: Iterable[int] = (),
    raised_log_start: int = 0,
    history: LogHistory = FIRST_HISTORY,
) -> PartitionView:
    every = list(segments)
    finished = [
        s
        for s in every
        if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        and s.end_offset >= raised_log_start
        and history.shows(s)
    ]
    finished.sort(key=lambda s: (history.counts_from(s), s.event_timestamp_ms, s.segment_id.id))
    segments_kept: list[RemoteLogSegmentMetadata] = []
    for segment in finished:
        add_in_order(segments_kept, segment, history.kept_below)
    hidden = tuple(sorted(unreadable))
    copying = any(s.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED for s in every)
    return PartitionView(
        tp=tp,
        segments=SegmentRows.of(tp, segments_kept),
        copies_started=copying or bool(hidden),
        read_at=read_at,
        unreadable=hidden,
        unfinished=tuple(s for s in every if s.state in UNFINISHED),
        raised_log_start=raised_log_start,
        history=history,
    )
