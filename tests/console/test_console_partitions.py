from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from segment_values import segment_of

from fetchproxy.console.status import (
    OffsetRange,
    lag_offsets,
    partition_status,
    with_work,
)
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.model import (
    LogOffsets,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.writing.copier import CopyProgress
from fetchproxy.writing.status import PartitionArchiveStatus

TP = TopicIdPartition(UUID(int=7), "orders", 3)


def segment(start: int, end: int) -> RemoteLogSegmentMetadata:
    return segment_of(TP, start + 1, start, end, segment_leader_epochs=())


def test_ranges_are_cut_at_recorded_gaps() -> None:
    view = build_view(TP, [segment(5, 9), segment(10, 19), segment(30, 39)], 0.0)
    status = partition_status(TP, view, LogOffsets(35, 60, 55))
    assert status.archived == (OffsetRange(5, 19), OffsetRange(30, 39))
    assert status.gaps == (OffsetRange(20, 29),)
    assert status.lost_offsets == 10
    assert (status.segments, status.size_bytes) == (3, 300)
    assert (status.log_start_offset, status.log_end_offset) == (35, 60)
    assert status.lag_offsets == 20
    assert status.margin_offsets == 5


def test_what_is_not_known_is_not_zero() -> None:
    status = partition_status(TP, None, None)
    assert status.archived == ()
    assert (status.lag_offsets, status.margin_offsets) == (None, None)
    assert (status.log_start_offset, status.log_end_offset) == (None, None)
    view = build_view(TP, [segment(0, 9)], 0.0)
    assert partition_status(TP, view, None).lag_offsets is None


def test_an_empty_archive_lags_by_the_whole_log() -> None:
    status = partition_status(TP, build_view(TP, [], 0.0), LogOffsets(100, 160, 150))
    assert status.lag_offsets == 60
    assert status.margin_offsets is None


def test_what_the_broker_has_deleted_is_loss_and_not_lag() -> None:
    view = build_view(TP, [segment(0, 9)], 0.0)
    assert partition_status(TP, view, LogOffsets(15, 30, 30)).margin_offsets == -5
    assert partition_status(TP, view, LogOffsets(15, 30, 30)).lost_offsets == 5
    purged = replace(view, raised_log_start=13)
    assert partition_status(TP, purged, LogOffsets(15, 30, 30)).lost_offsets == 2
    assert partition_status(TP, purged, LogOffsets(12, 30, 30)).lost_offsets == 0
    assert partition_status(TP, view, None).lost_offsets == 0
    assert lag_offsets(10, LogOffsets(15, 30, 30)) == 15
    assert lag_offsets(40, LogOffsets(15, 30, 30)) == 0


LEADS = PartitionArchiveStatus(
    tp=TP,
    archive_start=0,
    archive_end=10,
    log_start_offset=0,
    last_stable_offset=20,
    accumulated_bytes=0,
    last_error=None,
    last_success_ms=None,
    stopped=False,
    copy=CopyProgress(UUID(int=1), base_offset=10, size_bytes=5, started_at=100.0),
    retention_used=0.123456,
)


def test_what_the_archiver_does_is_in_the_line() -> None:
    line = partition_status(TP, None, None)
    assert with_work(line, None, 103.0) is line
    leader = with_work(line, LEADS, 103.0)
    assert (leader.role, leader.copy_seconds, leader.retention_used) == ("leader", 3.0, 0.1235)
    follower = with_work(line, replace(LEADS, leads=False, copy=None, retention_used=None), 103.0)
    assert (follower.role, follower.copy_seconds) == ("follower", None)
