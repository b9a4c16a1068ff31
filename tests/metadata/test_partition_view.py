"""A view's answers against a model that checks every offset."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from segment_values import segment_of

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

TP = TopicIdPartition(UUID(int=1), "orders", 0)
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
OFFSETS = range(0, 70)


def segment(
    number: int,
    start: int,
    end: int,
    state: RemoteLogSegmentState = FINISHED,
    event_timestamp_ms: int = 0,
) -> RemoteLogSegmentMetadata:
    return segment_of(
        TP,
        number,
        start,
        end,
        state=state,
        event_timestamp_ms=event_timestamp_ms,
        segment_leader_epochs=(EpochStart(0, 0),),
    )


@st.composite
def segments(draw: st.DrawFn) -> list[RemoteLogSegmentMetadata]:
    out = []
    for number in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, 50))
        end = start + draw(st.integers(0, 15))
        state = draw(st.sampled_from([FINISHED, FINISHED, *RemoteLogSegmentState]))
        out.append(segment(number, start, end, state, draw(st.integers(0, 3))))
    return out


@given(segments())
def test_every_finished_offset_is_covered_and_no_other(
    every: list[RemoteLogSegmentMetadata],
) -> None:
    view = build_view(TP, every, 1.0)
    finished = [s for s in every if s.state is FINISHED]
    archived = {o for s in finished for o in range(s.start_offset, s.end_offset + 1)}
    for offset in OFFSETS:
        assert view.covers(offset) == (offset in archived)
        inside = bool(archived) and min(archived) < offset < max(archived)
        assert view.gap_at(offset) == (inside and offset not in archived)
        covering = view.segment_at_or_after(offset)
        if offset in archived:
            assert covering is not None
            assert covering in finished
            assert covering.start_offset <= offset <= covering.end_offset
        elif later := [o for o in archived if o > offset]:
            assert covering is not None
            assert covering.start_offset == min(later)
        else:
            assert covering is None
    assert view.log_start_offset == (min(archived) if archived else None)
    assert view.log_end_offset == (max(archived) + 1 if archived else None)
    in_gaps = {o for first, last in view.gaps() for o in range(first, last + 1)}
    assert in_gaps == {o for o in OFFSETS if view.gap_at(o)}
    assert view.copies_started == any(
        s.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED for s in every
    )


@given(segments())
def test_starts_and_ends_rise(every: list[RemoteLogSegmentMetadata]) -> None:
    view = build_view(TP, every, 1.0)
    ends = [s.end_offset for s in view.segments]
    assert [end for _, end in view.segments.bounds()] == ends == sorted(set(ends))
    starts = [s.start_offset for s in view.segments]
    assert starts == sorted(starts)


def test_of_two_copies_of_a_range_the_first_finished_is_served() -> None:
    first, second = segment(2, 0, 9, event_timestamp_ms=5), segment(1, 0, 9, event_timestamp_ms=6)
    assert build_view(TP, [second, first], 1.0).segments == (first,)


def test_a_hand_over_with_other_cuts_leaves_no_gap() -> None:
    """One archiver cut at each 100 and stopped, the other cut at each 150 and continued."""
    older_cuts = [segment(1, 0, 99), segment(2, 100, 199)]
    newer_cuts = [segment(3, 0, 149), segment(4, 150, 299), segment(5, 300, 449)]
    view = build_view(TP, [*older_cuts, *newer_cuts], 1.0)
    assert view.gaps() == []
    assert all(view.covers(offset) for offset in range(450))


def test_what_may_be_in_an_unreadable_segment_is_no_gap() -> None:
    view = build_view(TP, [segment(1, 10, 19), segment(2, 30, 39)], 1.0, unreadable=[20])
    assert not view.gap_at(25)
    assert view.uncertain_at(20)
    assert view.uncertain_at(29)
    assert not view.uncertain_at(15)
    assert not view.uncertain_at(30)
    assert not view.uncertain_at(45)  # a readable segment begins after the unreadable one
    assert view.gaps() == []


def test_unreadable_first_and_last_segments() -> None:
    view = build_view(TP, [segment(1, 10, 19)], 1.0, unreadable=[20, 5])
    assert [view.uncertain_at(o) for o in (4, 5, 9, 10, 19, 20, 999)] == [
        False,
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    assert build_view(TP, [segment(1, 10, 19)], 1.0, unreadable=[20, 5]).log_start_offset == 5
    alone = build_view(TP, [], 1.0, unreadable=[7])
    assert alone.uncertain_at(8)
    assert alone.copies_started
    assert alone.log_start_offset is None


def test_an_unreadable_copy_of_a_readable_range_takes_nothing_away() -> None:
    view = build_view(TP, [segment(1, 0, 9), segment(2, 20, 29)], 1.0, unreadable=[0])
    assert view.gap_at(15)
