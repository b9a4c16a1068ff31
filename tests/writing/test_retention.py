"""Retention decisions: properties over all possible archives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from retention_segments import DELETING, FINISHED, STARTED, TP, archives, segment

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata
from fetchproxy.segments.leader_epochs import epoch_at
from fetchproxy.writing.deletion.retention import (
    Removals,
    Retention,
    counted_bytes,
    newest_timestamp_ms,
    plan_removals,
    retained_from,
)

Every = list[RemoteLogSegmentMetadata]
LIMITS = st.integers(-1, 40)


def served(view: PartitionView) -> dict[int, int]:
    """Every served offset with its leader epoch."""
    return {
        offset: epoch_at(s.segment_leader_epochs, offset)
        for s in view.segments
        for offset in range(max(s.start_offset, view.raised_log_start), s.end_offset + 1)
    }


@given(archives())
def test_a_byte_is_counted_once(archive: tuple[Every, PartitionView]) -> None:
    """Segments have one byte an offset, even if two overlap or one was cut."""
    _, view = archive
    assert sum(size for _, size in counted_bytes(view)) == len(served(view))


@given(archives(), LIMITS, LIMITS, st.integers(0, 60))
def test_oldest_first_up_to_the_first_that_stays(
    archive: tuple[Every, PartitionView], ms: int, size_limit: int, now_ms: int
) -> None:
    _, view = archive
    retention = Retention(remote_ms=ms, remote_bytes=size_limit)
    start = retained_from(view, retention, now_ms)
    if start is None:
        segments_kept, gone = list(view.segments), []
    else:
        segments_kept = [s for s in view.segments if s.end_offset >= start]
        gone = [s for s in view.segments if s.end_offset < start]
        assert gone
        assert start == gone[-1].end_offset + 1
    size = {s.segment_id: count for s, count in counted_bytes(view)}

    def passed(s: RemoteLogSegmentMetadata) -> bool:
        return 0 <= ms <= now_ms - newest_timestamp_ms(s)

    # The newest segment stays, and all from an unreadable segment on.
    assert not view.segments or view.segments[-1] in segments_kept
    assert all(s.end_offset < base for s in gone for base in view.unreadable)
    # Every removed segment had passed by time, or exceeded the limit with all newer ones.
    for i, s in enumerate(gone):
        from_here_on = sum(size[other.segment_id] for other in view.segments[i:])
        assert passed(s) or 0 <= size_limit <= from_here_on - size[s.segment_id]
    # The first segment that stays has a reason to stay.
    if len(segments_kept) > 1 and not any(
        base <= segments_kept[0].end_offset for base in view.unreadable
    ):
        assert not passed(segments_kept[0])
        count = size[segments_kept[0].segment_id]
        bytes_kept = sum(size[s.segment_id] for s in segments_kept)
        assert size_limit < 0 or bytes_kept - count < size_limit or count == 0


def test_without_limits_nothing_goes() -> None:
    view = build_view(TP, [segment(1, 0, 9), segment(2, 10, 19)], 0.0)
    assert retained_from(view, Retention(), 10**15) is None
    assert retained_from(build_view(TP, [], 0.0), Retention(remote_ms=0), 10**15) is None


def test_timestamps_as_kafka_treats_them() -> None:
    """A future timestamp keeps its segment and all above; without one, the copy's time counts."""
    newest = segment(9, 90, 99, newest_ms=5)
    hour = Retention(remote_ms=3_600_000)
    future = [segment(1, 0, 9, newest_ms=0), segment(2, 10, 19, newest_ms=10**14), newest]
    assert retained_from(build_view(TP, future, 0.0), hour, 4_000_000) == 10
    undated = [segment(1, 0, 9, newest_ms=-1, event_ms=4_000_000), newest]
    assert retained_from(build_view(TP, undated, 0.0), hour, 7_599_999) is None
    assert retained_from(build_view(TP, undated, 0.0), hour, 7_600_000) == 10


def test_a_clock_in_the_far_future_leaves_the_newest() -> None:
    view = build_view(TP, [segment(i, 10 * i, 10 * i + 9) for i in range(1, 9)], 0.0)
    assert retained_from(view, Retention(remote_ms=1, remote_bytes=0), 10**17) == 80


def plan(every: Every, view: PartitionView, now_ms: int, grace: int = 5, age: int = 10) -> Removals:
    return plan_removals(every, view, now_ms=now_ms, grace_ms=grace, attempt_age_max_ms=age)


@given(archives(), st.integers(0, 60), st.integers(0, 20), st.integers(1, 20))
def test_what_is_served_stays_so(
    archive: tuple[Every, PartitionView], now_ms: int, grace: int, age: int
) -> None:
    every, view = archive
    removals = plan(every, view, now_ms, grace, age)
    hidden = {s.segment_id for s in removals.hide}
    after = [s for s in every if s.segment_id not in hidden]
    view_left = build_view(TP, after, 1.0, view.unreadable, view.raised_log_start)
    assert served(view_left) == served(view)
    for s in removals.hide:
        assert s.state is not DELETING
        if s.state is STARTED:
            assert now_ms - s.event_timestamp_ms >= age
        else:
            assert s.end_offset < view.raised_log_start or now_ms - s.event_timestamp_ms >= age
    # All below the log start are hidden. Objects go only after the grace: those of all hidden ones.
    assert all(
        s.segment_id in hidden
        for s in every
        if s.state is FINISHED and s.end_offset < view.raised_log_start
    )
    deleting = [s for s in every if s.state is DELETING]
    over = [s for s in deleting if now_ms - s.event_timestamp_ms >= grace]
    assert list(removals.delete) == over
    assert list(removals.waiting) == [s for s in deleting if s not in over]
    if removals.next_at_ms is not None:
        later = plan(every, view, removals.next_at_ms, grace, age)
        assert len(later.hide) + len(later.delete) > len(removals.hide) + len(removals.delete)


def test_a_second_copy_goes_when_it_is_old() -> None:
    first = segment(1, 0, 99, event_ms=0)
    twin = segment(2, 0, 99, event_ms=1)
    part = segment(3, 20, 50, event_ms=1, epochs=(EpochStart(0, 20),))
    view = build_view(TP, [first, twin, part], 0.0)
    assert [s.segment_id for s in view.segments] == [first.segment_id]
    assert plan([first, twin, part], view, 10).hide == ()
    assert plan([first, twin, part], view, 11).hide == (twin, part)


def test_a_copy_of_another_lineage_is_not_ours_to_judge() -> None:
    """Only the brokers can tell whether this copy or the served one is dead."""
    served = segment(1, 0, 99, epochs=(EpochStart(2, 0),))
    other = segment(2, 30, 60, epochs=(EpochStart(1, 30),))
    view = build_view(TP, [served, other], 0.0)
    assert [s.segment_id for s in view.segments] == [served.segment_id]
    assert plan([served, other], view, 1_000).hide == ()


def test_two_that_overlap_and_both_add_something_stay() -> None:
    every = [segment(1, 0, 59), segment(2, 40, 99)]
    view = build_view(TP, every, 0.0)
    assert plan(every, view, 1_000).hide == ()
