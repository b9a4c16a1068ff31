"""Which segments go and which are clipped, and how far down transactions make the cut."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from fetchproxy_protocol.record_batch import BatchHeader
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.lineage import EpochTransition
from fetchproxy.model import (
    AbortedTxn,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.segments.contents import AccumulatedSegment
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.writing.log_truncation import (
    buried_copies,
    decided_below,
    plan_truncation,
    transitions_of,
)

TP = TopicIdPartition(UUID(int=1), "t", 0)
State = RemoteLogSegmentState


def segment(
    number: int,
    first: int,
    last: int,
    state: RemoteLogSegmentState = State.COPY_SEGMENT_FINISHED,
    epoch: int = 1,
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(TP, UUID(int=number)),
        start_offset=first,
        end_offset=last,
        max_timestamp_ms=0,
        event_timestamp_ms=number,
        segment_leader_epochs=(EpochStart(epoch, first),),
        segment_size_bytes=1,
        state=state,
        has_aborted_txns=False,
    )


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=8), st.integers(0, 40))
def test_each_step_of_a_plan_leaves_a_shorter_log_without_a_gap(
    ranges: list[tuple[int, int]], offset: int
) -> None:
    """Also if copies overlap: a hidden copy comes into view when another goes."""
    segments = {n: segment(n, first, first + more) for n, (first, more) in enumerate(ranges)}
    before = build_view(TP, segments.values(), 0.0)
    plan = plan_truncation(segments.values(), offset)
    ends = [before.log_end_offset or 0]
    gaps = before.gaps()
    for dropped in plan.drop:
        del segments[dropped.segment_id.id.int]
        view = build_view(TP, segments.values(), 0.0)
        ends.append(view.log_end_offset or 0)
        assert set(view.gaps()) <= set(gaps)
    for clipped in plan.clip:
        segments[clipped.segment_id.id.int] = clipped.clipped(offset - 1)
        view = build_view(TP, segments.values(), 0.0)
        ends.append(view.log_end_offset or 0)
        assert set(view.gaps()) <= set(gaps)
    assert ends == sorted(ends, reverse=True)
    after = build_view(TP, segments.values(), 0.0)
    for at in range(45):
        assert after.covers(at) == (before.covers(at) and at < offset)
    assert not plan_truncation(segments.values(), offset), "it may be repeated"


def test_copies_and_deletions_under_way_are_left_alone() -> None:
    others = [state for state in State if state is not State.COPY_SEGMENT_FINISHED]
    assert not plan_truncation([segment(n, 5, 9, s) for n, s in enumerate(others)], 0)


def test_dead_copies_below_others_are_found_and_shown_ones_are_not() -> None:
    dead = [segment(1, 0, 999, epoch=1), segment(2, 600, 700, epoch=1), segment(3, 500, 1999)]
    alive = [segment(4, 500, 599, epoch=2), segment(5, 600, 1000, epoch=2)]
    double = segment(6, 600, 800, epoch=2)
    every = [*dead, *alive, double]
    plan = buried_copies(every, build_view(TP, every, 0.0))
    assert [s.segment_id.id.int for s in plan.drop] == [3, 2]
    assert {s.segment_id.id.int: end for s, end in plan.clip.items()} == {1: 499}
    copies_left = [dead[0].clipped(499), *alive, double]
    plan = buried_copies(copies_left, build_view(TP, copies_left, 0.0))
    assert not plan
    assert build_view(TP, every, 0.0).segments == build_view(TP, copies_left, 0.0).segments


TXN = AbortedTxn(first_offset=40, last_offset=70, producer_id=7, last_stable_offset=71)


@pytest.mark.parametrize(
    ("stable", "archived", "leader", "expected"),
    [
        (90, [], set(), 50),
        (45, [], set(), 45),  # a transaction is open again
        (90, [TXN], {(7, 40)}, 50),  # aborted on both
        (90, [TXN], set(), 40),  # the new log has committed it
        (90, [], {(7, 30), (8, 60)}, 30),  # it has aborted what the dead log had committed
        (90, [AbortedTxn(40, 49, 7, 50)], set(), 50),  # ended below the cut, on both
    ],
)
def test_what_was_open_at_the_cut_is_archived_anew_if_it_ended_otherwise(
    stable: int, archived: list[AbortedTxn], leader: set[tuple[int, int]], expected: int
) -> None:
    assert decided_below(50, stable, segment(1, 0, 99), archived, leader) == expected


def test_an_end_at_a_segments_own_end_may_be_no_marker() -> None:
    entry = AbortedTxn(40, 49, 7, 50)
    assert decided_below(50, 90, segment(1, 0, 49), [entry], {(7, 40)}) == 50
    assert decided_below(50, 90, segment(1, 0, 49), [entry], set()) == 40
    assert decided_below(50, 90, segment(1, 0, 49), [entry], None) == 50, "nobody can tell"


def accumulated(first: int, last: int, *epochs: tuple[int, int]) -> AccumulatedSegment:
    starts = tuple(EpochStart(epoch, start) for epoch, start in epochs)
    index = RemoteLogIndex()
    index.add(BatchHeader(0, 61, first, 49, 0, 0, 0, last - first, 0, 0, -1, -1, -1, 1))
    return AccumulatedSegment(TP, first, last, 0, 1, starts, (), Path("/"), 0, True, index)


def test_joints_are_where_epochs_meet() -> None:
    lineage = (EpochStart(1, 0), EpochStart(3, 40))
    whole, transitions = transitions_of(lineage, 50, accumulated(60, 99, (4, 60), (6, 80)))
    assert whole == (*lineage, EpochStart(4, 60), EpochStart(6, 80))
    assert transitions == (EpochTransition(3, 50, 60), EpochTransition(4, 80, 80))
    assert transitions_of(lineage, 50, accumulated(50, 99, (3, 50)))[1] == ()
    assert transitions_of((), None, accumulated(0, 9, (0, 0)))[1] == ()


def test_nothing_older_may_follow_the_first_epoch() -> None:
    """Otherwise it is that of a former cluster, and this one counts from 0 again."""
    assert transitions_of((), None, accumulated(5, 9, (2, 5)))[1] == (EpochTransition(1, 5, 5),)
    assert transitions_of((), 5, accumulated(5, 9, (2, 5)))[1] == (EpochTransition(1, 5, 5),)
    assert transitions_of((EpochStart(2, 0),), 5, accumulated(5, 9, (2, 5)))[1] == ()


def test_epochs_that_do_not_count_make_no_joint() -> None:
    segment = accumulated(60, 99, (-1, 60), (6, 70), (-1, 75), (6, 80))
    whole, transitions = transitions_of((EpochStart(3, 40),), 60, segment)
    assert whole == (EpochStart(3, 40), EpochStart(6, 70))
    assert transitions == (EpochTransition(3, 60, 70),)
