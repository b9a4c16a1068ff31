"""Which segments are merged, and which are left alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from retention_segments import STARTED, TP, archives, segment

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import EpochStart, RemoteLogSegmentId, RemoteLogSegmentMetadata
from fetchproxy.writing.deletion.orphans import spare_copies
from fetchproxy.writing.merging import (
    LARGEST_SHARE_MAX,
    MERGED_OFFSETS_MAX,
    merged_epochs,
    plan_merges,
    still_stand,
)

Every = list[RemoteLogSegmentMetadata]


def row(*sizes: int, first: int = 0) -> Every:
    """Adjacent segments with `sizes` offsets, one byte each."""
    made: Every = []
    for number, size in enumerate(sizes):
        start = made[-1].end_offset + 1 if made else first
        made.append(segment(number + 1, start, start + size - 1))
    return made


def planned(every: Iterable[RemoteLogSegmentMetadata], bytes_max: int = 100) -> list[list[int]]:
    every = list(every)
    groups = plan_merges(every, build_view(TP, every, 0.0), bytes_max=bytes_max)
    return [[s.segment_id.id.int for s in group] for group in groups]


def test_neighbours_are_merged_as_long_as_they_fit() -> None:
    assert planned(row(40, 40, 40, 10, 10)) == [[1, 2], [3, 4, 5]]
    assert planned(row(50, 50)) == [[1, 2]]
    assert planned(row(50, 50), bytes_max=99) == []


def test_what_has_more_than_half_is_not_small() -> None:
    assert planned(row(10, 10, 51, 10, 10)) == [[1, 2], [4, 5]]
    assert planned(row(10)) == []
    assert planned([]) == []


def test_a_large_one_is_not_copied_again_for_little() -> None:
    assert planned(row(30, 10)) == [[1, 2]]
    assert planned(row(30, 9)) == []
    assert LARGEST_SHARE_MAX == 0.75


def test_a_recorded_gap_stays_one() -> None:
    assert planned([*row(10, 10), segment(3, 30, 39), segment(4, 40, 49)]) == [[1, 2], [3, 4]]


def test_what_overlaps_waits_until_that_is_settled() -> None:
    every = [*row(10, 10, 10, 10), segment(9, 5, 14)]
    assert planned(every) == [[3, 4]]


def test_what_an_election_has_cut_stays() -> None:
    every = row(10, 10, 10)
    every[0] = replace(every[0], copied_end_offset=12)
    assert planned(every) == [[2, 3]]


def test_what_is_deleted_in_part_or_cannot_be_read_stays() -> None:
    every = row(10, 10, 10)
    view = build_view(TP, every, 0.0, raised_log_start=3)
    assert [len(g) for g in plan_merges(every, view, bytes_max=100)] == [2]
    view = build_view(TP, every, 0.0, unreadable=[15])
    assert plan_merges(every, view, bytes_max=100) == []


def test_records_without_a_timestamp_keep_the_age_of_their_copy() -> None:
    every = row(10, 10, 10)
    every[2] = replace(every[2], max_timestamp_ms=-1)
    assert planned(every) == [[1, 2]]


def test_attempts_of_others_are_no_obstacle() -> None:
    assert planned([*row(10, 10), segment(9, 0, 19, state=STARTED)]) == [[1, 2]]


def test_epochs_are_put_together_and_no_dead_lineage_is_merged() -> None:
    one = segment(1, 0, 9, epochs=(EpochStart(1, 0),))
    other = segment(2, 10, 19, epochs=(EpochStart(1, 10), EpochStart(4, 15)))
    assert planned([one, other]) == [[1, 2]]
    assert merged_epochs([one, other]) == (EpochStart(1, 0), EpochStart(4, 15))
    assert planned([replace(one, segment_leader_epochs=(EpochStart(2, 0),)), other]) == []
    assert planned([replace(one, segment_leader_epochs=()), other]) == []
    none = [replace(s, segment_leader_epochs=()) for s in (one, other)]
    assert planned(none) == [[1, 2]]


def test_offsets_of_a_segment_fit_kafkas_indexes() -> None:
    one = segment(1, 0, 9, size=10)
    last = MERGED_OFFSETS_MAX - 1
    assert planned([one, segment(2, 10, last, size=10)]) == [[1, 2]]
    assert planned([one, segment(2, 10, last + 1, size=10)]) == []


def test_sources_that_have_changed_do_not_stand() -> None:
    every = row(10, 10)
    view = build_view(TP, every, 0.0)
    assert still_stand(every, every, view)
    assert not still_stand(every, every[:1], view)
    assert not still_stand(every, [every[0], replace(every[1], end_offset=15)], view)
    merged = segment(9, 0, 19)
    assert not still_stand(every, [*every, merged], build_view(TP, [*every, merged], 0.0))
    assert not still_stand(every, every, build_view(TP, every, 0.0, raised_log_start=1))


def _merge(every: Every, group: tuple[RemoteLogSegmentMetadata, ...], number: int) -> Every:
    merged = replace(
        group[0],
        segment_id=RemoteLogSegmentId(TP, UUID(int=number)),
        end_offset=group[-1].end_offset,
        segment_leader_epochs=merged_epochs(group),
        segment_size_bytes=sum(s.segment_size_bytes for s in group),
        max_timestamp_ms=max(s.max_timestamp_ms for s in group),
        event_timestamp_ms=1_000,
    )
    return [*every, merged]


def _served(every: Every, view: PartitionView) -> set[int]:
    return {o for s in view.segments for o in range(max(s.start_offset, 0), s.end_offset + 1)}


@given(archives(), st.integers(4, 40))
def test_each_offset_stays_served_and_only_what_was_merged_goes(
    archive: tuple[Every, PartitionView], bytes_max: int
) -> None:
    every, view = archive
    before = _served(every, view)
    raised = view.raised_log_start
    plan = plan_merges(every, view, bytes_max=bytes_max)
    for number, group in enumerate(plan):
        assert sum(s.segment_size_bytes for s in group) <= bytes_max
        every = _merge(every, group, 1_000 + number)
        # If a part of the plan is carried out, the rest is planned as before.
        merges_left = plan_merges(
            every, build_view(TP, every, 1.0, view.unreadable, raised), bytes_max=bytes_max
        )
        assert merges_left == plan[number + 1 :]
    after = build_view(TP, every, 1.0, view.unreadable, raised)
    assert _served(every, after) == before
    replaced = {s.segment_id.id for group in plan for s in group}
    spare_before = set(spare_copies(archive[0], view, 2_000))
    assert set(spare_copies(every, after, 2_000)) == replaced | spare_before
    every = [s for s in every if s.segment_id.id not in replaced]
    assert _served(every, build_view(TP, every, 1.0, view.unreadable, raised)) == before
