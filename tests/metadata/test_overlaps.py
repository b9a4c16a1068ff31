"""Overlapping copies of several lineages: the view shows one log."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from segment_values import segment_of

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.segments.overlaps import first_difference

TP = TopicIdPartition(UUID(int=1), "t", 0)


def segment(
    number: int, first: int, last: int, *epochs: tuple[int, int]
) -> RemoteLogSegmentMetadata:
    starts = tuple(EpochStart(epoch, start) for epoch, start in epochs)
    of = {"event_timestamp_ms": number, "segment_leader_epochs": starts}
    return segment_of(TP, number, first, last, **of)


def ranges_of(view: PartitionView) -> list[tuple[int, int, int]]:
    return [(s.segment_id.id.int, s.start_offset, s.end_offset) for s in view.segments]


def ranges_shown(*segments: RemoteLogSegmentMetadata) -> list[tuple[int, int, int]]:
    return ranges_of(build_view(TP, segments, 0.0))


def test_a_late_copy_of_the_dead_log_hides_nothing_of_the_one_that_lives() -> None:
    dead = segment(1, 400, 999, (1, 400))
    alive = segment(2, 500, 599, (2, 500))
    assert ranges_shown(dead, alive) == [(1, 400, 499), (2, 500, 599)]
    assert ranges_shown(segment(1, 500, 999, (1, 500)), alive) == [(2, 500, 599)]


def test_what_shares_the_beginning_is_cut_where_it_parts() -> None:
    dead = segment(1, 0, 999, (1, 0))
    alive = segment(2, 300, 599, (1, 300), (2, 500))
    assert ranges_shown(dead, alive) == [(1, 0, 499), (2, 300, 599)]
    assert ranges_shown(segment(1, 0, 999, (1, 0), (3, 500)), alive) == [(1, 0, 999)]


def test_several_dead_copies_go_together() -> None:
    dead = [segment(1, 0, 999, (1, 0)), segment(2, 600, 1200, (1, 600))]
    alive = segment(3, 700, 1100, (2, 700))
    assert ranges_shown(*dead, alive) == [(1, 0, 699), (3, 700, 1100)]


def test_copies_without_epochs_are_taken_for_the_same_log() -> None:
    assert ranges_shown(segment(1, 0, 9), segment(2, 5, 20, (4, 5))) == [(1, 0, 9), (2, 5, 20)]


def log_epochs(cuts: list[int]) -> list[int]:
    """The epoch of each offset, in a log whose epoch rises by one at each cut."""
    return [sum(cut <= offset for cut in cuts) for offset in range(40)]


@given(st.data())
def test_of_two_logs_the_later_one_is_shown_from_where_they_part(data: st.DataObject) -> None:
    """Epoch 1 led `old` to its end; other epochs led `new` from `parted` on."""
    parted = data.draw(st.integers(1, 39))
    more = data.draw(st.lists(st.integers(parted, 39), max_size=3))
    new = [epoch + 1 if o >= parted else 1 for o, epoch in enumerate(log_epochs(sorted(more)))]
    new = [max(epoch, 2) if o >= parted else 1 for o, epoch in enumerate(new)]
    logs = {"old": [1] * 40, "new": new}
    copies = []
    for number in range(data.draw(st.integers(1, 6))):
        first = data.draw(st.integers(0, 39))
        last = data.draw(st.integers(first, 39))
        epochs = logs[data.draw(st.sampled_from(["old", "new"]))]
        starts = [first, *(o for o in range(first + 1, last + 1) if epochs[o] != epochs[o - 1])]
        copies.append(segment(number + 1, first, last, *((epochs[o], o) for o in starts)))
    view = build_view(TP, copies, 0.0)
    bounds = [(s.start_offset, s.end_offset) for s in view.segments]
    assert bounds == sorted(bounds)
    assert [end for _, end in bounds] == sorted({end for _, end in bounds}), "ends rise"
    alive = set()  # offsets known to be of the new log: from its copies' own epochs on
    for s in copies:
        newer_starts = [e.start_offset for e in s.segment_leader_epochs if e.epoch > 1]
        alive.update(range(min(newer_starts, default=s.end_offset + 1), s.end_offset + 1))
    for one, other in zip(view.segments, view.segments[1:], strict=False):
        assert first_difference(one, other) is None
    for s in view.segments:
        for offset in range(s.start_offset, s.end_offset + 1):
            epoch = [e.epoch for e in s.segment_leader_epochs if e.start_offset <= offset][-1]
            assert epoch == new[offset] or offset not in alive
    covered = {o for first, last in bounds for o in range(first, last + 1)}
    assert alive <= covered


@given(st.data())
def test_a_view_up_to_an_offset(data: st.DataObject) -> None:
    copies = [
        segment(number + 1, first, first + data.draw(st.integers(0, 9)), (0, first))
        for number, first in enumerate(data.draw(st.lists(st.integers(0, 30), max_size=6)))
    ]
    view = build_view(TP, copies, 1.0, data.draw(st.sets(st.integers(0, 40), max_size=2)), 3)
    offset = data.draw(st.integers(0, 45))
    cut = view.up_to(offset)
    for at in range(45):
        assert cut.covers(at) == (view.covers(at) and at < offset)
    ends = [s.end_offset for s in cut.segments]
    assert ends == sorted(set(ends))
    for s in cut.segments:
        assert s.stored_end_offset >= s.end_offset
        assert (s.copied_end_offset is None) == (s.stored_end_offset == s.end_offset)
    assert (cut.read_at, cut.raised_log_start) == (view.read_at, view.raised_log_start)
