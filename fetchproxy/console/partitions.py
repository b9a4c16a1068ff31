"""One partition's line of the console, from what archive and broker last said. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fetchproxy.console.status import ArchiverStatus, OffsetRange, PartitionStatus
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import LogEdges, TopicIdPartition
from fetchproxy.remote_log.leadership.api import LeadershipState
from fetchproxy.remote_log.status import PartitionArchiveStatus


def partition_status(
    tip: TopicIdPartition, view: PartitionView | None, edges: LogEdges | None, error: str | None
) -> PartitionStatus:
    """`view` or `edges` is None where nothing is known; then nothing is said of it either."""
    gaps = () if view is None else tuple(OffsetRange(first, last) for first, last in view.gaps())
    archive_end = None if view is None else view.log_end_offset
    return PartitionStatus(
        topic=tip.topic,
        partition=tip.partition,
        archived=() if view is None else archived_ranges(view),
        gaps=gaps,
        segments=0 if view is None else len(view.segments),
        size_bytes=0 if view is None else view.segments.size_bytes,
        log_start_offset=None if edges is None else edges.log_start_offset,
        log_end_offset=None if edges is None else edges.high_watermark,
        lag_offsets=None if view is None or edges is None else lag_offsets(archive_end, edges),
        margin_offsets=(
            None if edges is None or archive_end is None else archive_end - edges.log_start_offset
        ),
        error=error,
    )


def with_work(
    shown: PartitionStatus, work: PartitionArchiveStatus | None, now: float
) -> PartitionStatus:
    """The line with what this process' archiver is doing; `now` is loop time (s).

    Its figures are those of its gauges and of its log, so that all places say the same.
    """
    if work is None:
        return shown
    copy_s, left_ms = work.copy_seconds(now), work.deleted_in_ms
    if work.leads and work.last_stable_offset is not None:
        shown = replace(
            shown,
            log_start_offset=work.log_start_offset,
            lag_offsets=work.lag_offsets,
            margin_offsets=work.margin_offsets,
        )
    return replace(
        shown,
        role="leader" if work.leads else "follower",
        copy_seconds=None if copy_s is None else round(copy_s, 1),
        retention_used=None if work.retention_used is None else round(work.retention_used, 4),
        deleted_in_seconds=None if left_ms is None else round(left_ms / 1000),
    )


def archiver_status(
    leads_and_follows: tuple[int, int], leadership: LeadershipState, refused: Mapping[str, str]
) -> ArchiverStatus:
    return ArchiverStatus(
        leadership=leadership.kind,
        state=leadership.state,
        leads=leads_and_follows[0],
        follows=leads_and_follows[1],
        members=leadership.members,
        error=leadership.error,
        refused=dict(refused),
    )


def archived_ranges(view: PartitionView) -> tuple[OffsetRange, ...]:
    """The archive's span, cut at the recorded gaps."""
    if view.log_start_offset is None or view.log_end_offset is None:
        return ()
    firsts = [view.log_start_offset, *(last + 1 for _, last in view.gaps())]
    lasts = [*(first - 1 for first, _ in view.gaps()), view.log_end_offset - 1]
    return tuple(map(OffsetRange, firsts, lasts))


def lag_offsets(archive_end: int | None, edges: LogEdges) -> int:
    """Offsets below the last stable offset, still on the broker, that the archive has not got."""
    copied_to = edges.log_start_offset if archive_end is None else archive_end
    return max(0, edges.last_stable_offset - max(copied_to, edges.log_start_offset))
