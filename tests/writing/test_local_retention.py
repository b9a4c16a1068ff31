"""How far a broker's log may be trimmed: never past the archive's first gap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from retention_segments import TP, archives, segment

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import LogOffsets, RemoteLogSegmentMetadata
from fetchproxy.writing.deletion.local_retention import trim_target
from fetchproxy.writing.deletion.retention import Retention, newest_timestamp_ms

Every = list[RemoteLogSegmentMetadata]


def log_offsets(start: int, end: int = 1_000) -> LogOffsets:
    return LogOffsets(log_start_offset=start, high_watermark=end, last_stable_offset=end)


@given(archives(), st.integers(0, 60), st.integers(-1, 40), st.integers(-1, 40), st.integers(0, 60))
def test_nothing_goes_that_is_not_archived(
    archive: tuple[Every, PartitionView], start: int, ms: int, size_limit: int, now_ms: int
) -> None:
    _, view = archive
    retention = Retention(local_ms=ms, local_bytes=size_limit)
    target = trim_target(view, log_offsets(start), retention, now_ms)
    if target is None:
        return
    assert target > start
    gone = range(max(start, view.raised_log_start), target)
    assert all(view.covers(offset) for offset in gone)
    # All whole segments below passed by time, or by bytes together with the rest of the run.
    count_kept = 0
    while view.covers(target + count_kept):
        count_kept += 1
    by_time = all(
        0 <= ms <= now_ms - newest_timestamp_ms(s)
        for s in view.segments
        if gone and s.end_offset >= gone[0] and s.end_offset < target
    )
    assert by_time or size_limit >= 0


@given(archives(), st.integers(0, 60), st.integers(0, 40))
def test_what_local_retention_keeps_is_there(
    archive: tuple[Every, PartitionView], start: int, size_limit: int
) -> None:
    """With one byte an offset, as many archived offsets stay as local retention keeps."""
    _, view = archive
    target = trim_target(view, log_offsets(start), Retention(local_bytes=size_limit), 0)
    if target is not None:
        count_kept = 0
        while view.covers(target + count_kept):
            count_kept += 1
        assert count_kept >= min(size_limit, 1)


def contiguous(count: int) -> PartitionView:
    every = [segment(i + 1, 10 * i, 10 * i + 9, newest_ms=10 * i) for i in range(count)]
    return build_view(TP, every, 0.0)


def test_by_time_and_by_bytes() -> None:
    view = contiguous(5)
    assert trim_target(view, log_offsets(0), Retention(), 10**9) is None
    assert trim_target(view, log_offsets(0), Retention(local_ms=100), 119) == 20
    assert trim_target(view, log_offsets(0), Retention(local_ms=100), 120) == 30
    assert trim_target(view, log_offsets(0), Retention(local_bytes=25), 0) == 20
    assert trim_target(view, log_offsets(0), Retention(local_bytes=0), 0) == 50
    assert trim_target(view, log_offsets(15), Retention(local_bytes=25), 0) == 20
    assert trim_target(view, log_offsets(30), Retention(local_bytes=25), 0) is None


def test_not_beyond_a_gap_or_a_damaged_segment() -> None:
    every = [segment(1, 0, 9), segment(2, 10, 19), segment(3, 25, 29)]
    everything = Retention(local_ms=0)
    assert trim_target(build_view(TP, every, 0.0), log_offsets(0), everything, 9) == 20
    assert trim_target(build_view(TP, every, 0.0), log_offsets(21), everything, 9) is None
    assert trim_target(build_view(TP, every, 0.0), log_offsets(26), everything, 9) == 30
    hidden = build_view(TP, [every[0], every[2]], 0.0, unreadable=[10])
    assert trim_target(hidden, log_offsets(0), everything, 9) == 10


def test_not_where_the_log_ends_below_the_archive() -> None:
    """An unclean election has cut the log: the offsets there now belong to another log."""
    assert trim_target(contiguous(5), log_offsets(0, 49), Retention(local_ms=0), 10**6) is None
    assert trim_target(contiguous(5), log_offsets(0, 50), Retention(local_ms=0), 10**6) == 50


def test_what_is_deleted_in_the_archive_may_go() -> None:
    every = [segment(1, 0, 9), segment(2, 10, 19)]
    view = build_view(TP, every, 0.0, raised_log_start=10)
    assert trim_target(view, log_offsets(3), Retention(local_ms=0), 9) == 20
