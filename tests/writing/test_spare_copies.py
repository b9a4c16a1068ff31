"""Copies of the same offsets by two archivers that met: which of them may go, and when."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from retention_segments import TP, segment

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.model import RemoteLogSegmentMetadata
from fetchproxy.writing.deletion.orphans import spare_copies

Every = list[RemoteLogSegmentMetadata]


def spare(every: Every, finished_by_ms: int = 1_000) -> list[int]:
    copies = spare_copies(every, build_view(TP, every, 0.0), finished_by_ms)
    return sorted(segment_id.int for segment_id in copies)


def test_one_that_lies_across_two_others_goes() -> None:
    """A stopped archiver finished it last."""
    others = [segment(1, 0, 59), segment(2, 60, 99), segment(3, 100, 199)]
    assert spare([*others, segment(4, 0, 79)]) == [4]
    assert spare([*others, segment(4, 60, 150)]) == [4]


def test_one_from_which_a_later_one_goes_on_stays_though_another_holds_its_offsets() -> None:
    short, long = segment(1, 0, 59), segment(2, 0, 79, event_ms=500)
    assert spare([short, long]) == [1]
    assert spare([short, long, segment(3, 60, 99, event_ms=900)]) == [2]


def test_the_short_one_waits_until_nobody_can_go_on_from_it() -> None:
    short, long = segment(1, 0, 59), segment(2, 0, 79, event_ms=500)
    assert spare([short, long], finished_by_ms=499) == []
    assert spare([short, long], finished_by_ms=500) == [1]


def test_no_chain_without_an_overlap() -> None:
    """Archives of older versions may have this: a copy that adds offsets stays."""
    assert spare([segment(1, 0, 59), segment(2, 40, 99)]) == []
    assert spare([segment(1, 0, 59), segment(2, 30, 50), segment(3, 40, 99)]) == [2]


@st.composite
def meetings(draw: st.DrawFn) -> Every:
    """Archivers that each continue from the end of one finished copy, cut anywhere."""
    every: Every = []
    ends = [0]
    for number in range(draw(st.integers(1, 14))):
        # The end it knew at its start may be that of any copy, not only of the highest one.
        start = draw(st.sampled_from(ends[-4:]))
        end = start + draw(st.integers(0, 9))
        every.append(segment(number + 1, start, end, event_ms=number))
        ends.append(end + 1)
    return every


@given(meetings(), st.integers(-1, 14))
def test_whoever_is_left_holds_all_and_when_all_is_old_each_offset_once(
    every: Every, finished_by_ms: int
) -> None:
    gone = set(spare(every, finished_by_ms))
    segments_left = [s for s in every if s.segment_id.id.int not in gone]
    view = build_view(TP, every, 0.0)
    assert {o for s in segments_left for o in range(s.start_offset, s.end_offset + 1)} == {
        o for s in view.segments for o in range(s.start_offset, s.end_offset + 1)
    }
    assert all(s.event_timestamp_ms <= finished_by_ms for s in every if s not in segments_left)
    if finished_by_ms >= len(every):
        assert sum(s.end_offset - s.start_offset + 1 for s in segments_left) == view.log_end_offset
        assert spare(segments_left) == []


@given(meetings())
def test_each_look_comes_to_the_same(every: Every) -> None:
    """If two leaders remove copies and one was stopped half-way, no more is removed."""
    gone = set(spare(every))
    for only in gone:
        segments_left = [s for s in every if s.segment_id.id != UUID(int=only)]
        assert set(spare(segments_left)) == gone - {only}
