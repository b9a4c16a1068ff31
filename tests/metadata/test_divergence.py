"""Where a copy parts from the leader's log, against replicas that follow by Kafka's rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.metadata.lineage import (
    EpochTransition,
    LeaderKnowledge,
    NeedsEpochEnd,
    NeedsLogStart,
    SharedUpTo,
    Undecided,
    begins_again,
    compare,
    end_offset_for,
    from_log_start,
)
from fetchproxy.model import EpochEnd, EpochStart


class Leader:
    """Answers as Kafka's leader does, whose epoch cache begins at its log start.

    `epochs`: the epoch of each offset of its log; `epoch`: its own, perhaps without a record yet.
    """

    def __init__(self, epochs: Sequence[int], epoch: int, log_start: int = 0) -> None:
        starts = [EpochStart(e, o) for o, e in enumerate(epochs) if o == 0 or e != epochs[o - 1]]
        if not starts or starts[-1].epoch != epoch:
            starts.append(EpochStart(epoch, len(epochs)))
        self.end = len(epochs)
        gone = [entry for entry in starts if entry.start_offset <= log_start]
        starts_kept = [entry for entry in starts if entry.start_offset > log_start]
        if gone:
            starts_kept.insert(0, EpochStart(gone[-1].epoch, log_start))
        self.lineage = starts_kept

    def compare(
        self, lineage: Sequence[EpochStart], end: int, transitions: Sequence[EpochTransition] = ()
    ) -> SharedUpTo | Undecided:
        ends: dict[int, EpochEnd] = {}
        start_epoch = None
        for _ in range(20):
            comparison = compare(lineage, end, LeaderKnowledge(ends, start_epoch), transitions)
            if isinstance(comparison, NeedsEpochEnd):
                assert comparison.epoch not in ends, "it asks for nothing twice"
                ends[comparison.epoch] = end_offset_for(self.lineage, comparison.epoch, self.end)
            elif isinstance(comparison, NeedsLogStart):
                assert start_epoch is None
                start_epoch = self.lineage[0].epoch
            else:
                return comparison
        raise AssertionError("it never ends")


def lineage_of(epochs: Sequence[int], start: int = 0) -> list[EpochStart]:
    return [
        EpochStart(e, o)
        for o, e in enumerate(epochs)
        if o >= start and (o == start or e != epochs[o - 1])
    ]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[int]], list[int], int]:
    """(the log of each leader in turn, the last leader's log, its epoch).

    Any replica may lead next, however far it lags. Other followers cut back to the records that
    they share with it and then copy some more, or they are away and keep their log.
    """
    replicas: list[list[int]] = [[], [], []]
    logs_seen: list[list[int]] = []
    leader, epoch = 0, 0
    for epoch in range(1, draw(st.integers(2, 6))):
        leader = draw(st.integers(0, 2))
        log = replicas[leader]
        log += [epoch] * draw(st.integers(0, 5))
        logs_seen.append(list(log))
        for other in range(3):
            if other != leader and draw(st.booleans()):
                other_log = replicas[other]
                shared = common(other_log, log)
                replicas[other] = log[: max(shared, draw(st.integers(0, len(log))))]
    return logs_seen, replicas[leader], epoch


def common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@given(histories(), st.data())
def test_the_place_is_found_wherever_the_copy_comes_from(
    history: tuple[list[list[int]], list[int], int], data: st.DataObject
) -> None:
    logs_seen, log, epoch = history
    source = data.draw(st.sampled_from(logs_seen))
    end = data.draw(st.integers(0, len(source)))
    start = data.draw(st.integers(0, end))
    copy = source[:end]
    comparison = Leader(log, epoch).compare(lineage_of(copy, start), end)
    parted = common(copy, log)
    assert comparison == SharedUpTo(max(parted, start) if start < end else end)


@given(histories(), st.data())
def test_a_leader_that_has_deleted_its_beginning_is_never_misread(
    history: tuple[list[list[int]], list[int], int], data: st.DataObject
) -> None:
    """The result may be Undecided, or may accept a copy that ends below the log start.

    If it names a place to cut, that place is right.
    """
    logs_seen, log, epoch = history
    copy = data.draw(st.sampled_from(logs_seen))
    copy = copy[: data.draw(st.integers(0, len(copy)))]
    log_start = data.draw(st.integers(0, len(log)))
    comparison = Leader(log, epoch, log_start).compare(lineage_of(copy), len(copy))
    parted = common(copy, log)
    if isinstance(comparison, Undecided):
        assert parted < len(copy), "a sound copy is always decided"
        assert parted <= log_start
        given_up = from_log_start(lineage_of(copy), log_start)
        comparison = Leader(log, epoch, log_start).compare(given_up, len(copy))
        assert comparison == SharedUpTo(log_start), "what is left after DeleteRecords is decided"
    elif comparison.end_offset != parted:
        assert comparison == SharedUpTo(len(copy)), "nothing contradicts it"
        assert len(copy) <= log_start


@given(histories(), st.data())
def test_a_copy_put_together_from_two_leaders_is_cut_at_its_joint(
    history: tuple[list[list[int]], list[int], int], data: st.DataObject
) -> None:
    """Read from one leader to some offset, then from the last: the last epoch alone looks sound."""
    logs_seen, log, epoch = history
    first = data.draw(st.sampled_from(logs_seen))
    joint_at = data.draw(st.integers(0, min(len(first), len(log))))
    copy = first[:joint_at] + log[joint_at:]
    lineage = lineage_of(copy)
    epochs = [entry.epoch for entry in lineage]
    if epochs != sorted(set(epochs)):
        return  # the gatherer refuses falling epochs
    transitions = [
        EpochTransition(a.epoch, b.start_offset, b.start_offset) for a, b in pairwise(lineage)
    ]
    assert Leader(log, epoch).compare(lineage, len(copy), transitions) == SharedUpTo(
        common(copy, log)
    )


@pytest.mark.parametrize(
    ("ends_at", "shared"), [(3, 3), (4, 9), (6, 9), (7, 6)], ids=["early", "low", "high", "late"]
)
def test_a_joint_over_a_gap_may_lie_anywhere_in_it(ends_at: int, shared: int) -> None:
    leader = Leader([1] * ends_at + [2] * (9 - ends_at), 2)
    lineage = [EpochStart(1, 0), EpochStart(2, 6)]
    assert leader.compare(lineage, 9, [EpochTransition(1, 4, 6)]) == SharedUpTo(shared)


def test_a_copy_without_epochs_is_believed() -> None:
    assert compare([], 9, LeaderKnowledge()) == SharedUpTo(9)


def test_an_epoch_above_the_leaders_own_is_never_taken_for_dead() -> None:
    assert isinstance(Leader([1, 1], 1).compare([EpochStart(1, 0), EpochStart(5, 1)], 3), Undecided)


def test_the_usual_case_takes_one_question() -> None:
    assert compare([EpochStart(1, 0), EpochStart(4, 7)], 9, LeaderKnowledge()) == NeedsEpochEnd(4)
    knows = LeaderKnowledge({4: EpochEnd(4, 9)})
    assert compare([EpochStart(1, 0), EpochStart(4, 7)], 9, knows) == SharedUpTo(9)


@pytest.mark.parametrize(
    ("epochs", "start", "anew"),
    [
        ([], 0, True),  # a disk without a record
        ([7] * 3, 0, True),
        ([7] * 50, 0, True),  # it has grown beyond the copy
        ([1, 7, 7], 0, False),  # one record in common
        ([1] * 4 + [7], 4, True),  # all common records are below the copy's start
        ([1] * 5 + [7], 4, False),
    ],
)
def test_a_log_that_begins_again_has_nothing_of_the_copy(
    epochs: list[int], start: int, anew: bool
) -> None:
    copy = [EpochStart(1, start), EpochStart(2, 6)]
    assert begins_again(copy, 9, Leader(epochs, 7).compare(copy, 9)) is anew


@given(histories(), st.data())
def test_what_shares_anything_never_begins_again(
    history: tuple[list[list[int]], list[int], int], data: st.DataObject
) -> None:
    logs_seen, log, epoch = history
    copy = data.draw(st.sampled_from(logs_seen))
    lineage = lineage_of(copy)
    comparison = Leader(log, epoch).compare(lineage, len(copy))
    assert begins_again(lineage, len(copy), comparison) is (bool(copy) and common(copy, log) == 0)
