"""Where a copy of a log parts from the log that the leader has now. Pure.

A follower finds that out by OffsetForLeaderEpoch: it names the last epoch that it has, and walks
back as long as the leader answers with one that it does not have itself (KIP-101, KIP-279). So does
an archive, which is a follower with two differences. It may hold what the leader has deleted, so
the leader's answer may be about its own log start; and it is put together from what several leaders
sent, so where one epoch follows another must be what the leader says (`Joint`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fetchproxy.metadata.lineage import UNDEFINED_EPOCH, EpochEnd
from fetchproxy.model import EpochStart


@dataclass(frozen=True, slots=True)
class LeaderKnowledge:
    """What one leader has answered. `log_start_epoch` is that of its local log start.

    `ends` is by the epoch that was asked for, UNDEFINED_EPOCH with -1 where it knows none so high;
    `log_start_epoch` is None before it was asked, -1 where it is not told.
    """

    ends: Mapping[int, EpochEnd] = field(default_factory=dict)
    log_start_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Joint:
    """The leader's log must have `epoch` end at `low` or up to `high`: between is a gap."""

    epoch: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class AskEpoch:
    epoch: int


@dataclass(frozen=True, slots=True)
class AskLogStart:
    pass


@dataclass(frozen=True, slots=True)
class Shared:
    """What is below `end_offset` is the leader's log too, what is at or above it is not."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Undecided:
    """It has parted, at `at_most` or anywhere below."""

    what: str
    at_most: int


Comparison = Shared | Undecided | AskEpoch | AskLogStart


def compare(
    lineage: Sequence[EpochStart],
    end_offset: int,
    leader: LeaderKnowledge,
    joints: Sequence[Joint] = (),
) -> Comparison:
    """`Shared(end_offset)`: nothing has parted. Asks for what `leader` lacks, one thing at a time.

    `lineage` and `joints` rise; `end_offset` is exclusive. Records without epochs are believed, as
    followers do. Two answers are no contradiction: that the leader has deleted the whole end of the
    copy, and that it has deleted all up to a joint. Where the copy *has* parted and the leader has
    deleted the place, nobody can tell: Undecided.
    """
    shared = end_offset
    for joint in joints:
        before = [entry for entry in lineage if entry.epoch <= joint.epoch]
        found = _walk_back(before, joint.low, leader)
        if not isinstance(found, Shared):
            return found
        if found.end_offset < joint.low:
            shared = min(shared, found.end_offset)
        answer = leader.ends.get(joint.epoch)
        if answer is None:
            return AskEpoch(joint.epoch)
        if answer.epoch == joint.epoch and answer.end_offset > joint.high:
            if leader.log_start_epoch is None:
                return AskLogStart()
            if leader.log_start_epoch <= joint.epoch:
                shared = min(shared, joint.high)
    found = _walk_back(lineage, end_offset, leader)
    return Shared(min(shared, found.end_offset)) if isinstance(found, Shared) else found


def begins_again(lineage: Sequence[EpochStart], end_offset: int, found: Comparison) -> bool:
    """Nothing of the copy is in the leader's log; arguments and result are those of `compare`.

    So it looks where a follower lacked everything, and so it looks where a disk was replaced: then
    the copy is the last one. Below where the copy begins nothing counts as shared.
    """
    if not lineage or not isinstance(found, Shared) or found.end_offset >= end_offset:
        return False
    return found.end_offset <= lineage[0].start_offset


def cut_without_election(
    lineage: Sequence[EpochStart], found: Comparison, end_offset: int, leader_epoch: int
) -> bool:
    """The leader has lost what it had in the epoch in which it leads: no election has done that.

    Its log is another one, or was cut by hand. `leader_epoch` -1: not told, and then it is False.
    """
    if not lineage or not isinstance(found, Shared) or found.end_offset >= end_offset:
        return False
    return 0 <= leader_epoch <= lineage[-1].epoch


def _walk_back(
    lineage: Sequence[EpochStart], end_offset: int, leader: LeaderKnowledge
) -> Comparison:
    bound = end_offset
    at = len(lineage) - 1
    while at >= 0:
        asked = lineage[at].epoch
        answer = leader.ends.get(asked)
        if answer is None:
            return AskEpoch(asked)
        if answer.epoch == UNDEFINED_EPOCH or answer.end_offset < 0:
            return Undecided(f"the leader knows no epoch as high as {asked}", bound)
        if answer.end_offset <= lineage[0].start_offset:
            return Shared(min(bound, lineage[0].start_offset))  # all of it is of other epochs
        if answer.epoch == asked and (answer.end_offset < bound or bound < end_offset):
            # Is it where that epoch ended, or where what the leader still has begins?
            if leader.log_start_epoch is None:
                return AskLogStart()
            if leader.log_start_epoch > asked:
                at_most = min(bound, answer.end_offset)
                return Undecided(
                    f"it parted from the leader's log in epoch {asked} or before, at or below "
                    f"offset {at_most}, of which the leader has deleted all",
                    at_most,
                )
        floor = at
        while floor >= 0 and lineage[floor].epoch > answer.epoch:
            floor -= 1
        if floor < 0:
            return Shared(min(bound, lineage[0].start_offset))
        if floor < at:
            bound = min(bound, lineage[floor + 1].start_offset)
        if lineage[floor].epoch == answer.epoch:
            return Shared(min(bound, answer.end_offset))
        at = floor
    return Shared(bound)
