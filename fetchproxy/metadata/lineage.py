"""Leader epochs of an archived partition: where each began, and where a copy diverges from a
leader's log. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import EpochEnd, EpochStart
from fetchproxy.segments.leader_epochs import rising

# The questions are those of Kafka's LeaderEpochFileCache. So the responses equal those of a broker
# with tiered storage, whose cache reaches back to the first remote offset.

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


def extend_lineage(
    lineage: Sequence[EpochStart], epochs: Iterable[EpochStart]
) -> tuple[EpochStart, ...]:
    """The epochs up to a segment's end: the epochs of the log before it, then the segment's own.

    A segment repeats the epoch that it begins in. Epochs that are not newer are left out.
    """
    return rising((*lineage, *epochs))


def archived_lineage(view: PartitionView) -> tuple[EpochStart, ...]:
    """The epochs up to the archive's end, as copied with the segments: also below the log start."""
    return rising(view.segments.leader_epochs())


def last_epoch(view: PartitionView) -> int:
    """Of the archive's last record. -1: not known, or it does not count (docs/adr/0070)."""
    epochs = view.segments[-1].segment_leader_epochs if view.segments else ()
    return epochs[-1].epoch if epochs else UNDEFINED_EPOCH


def from_log_start(lineage: Sequence[EpochStart], start: int) -> tuple[EpochStart, ...]:
    """The epochs without those that ended below `start`, as Kafka truncates its cache."""
    epochs_begun = [entry for entry in lineage if entry.start_offset <= start]
    above = [entry for entry in lineage if entry.start_offset > start]
    return (*(EpochStart(entry.epoch, start) for entry in epochs_begun[-1:]), *above)


def compared_part(
    lineage: Sequence[EpochStart], archived_range: tuple[int, int], kept_below: int
) -> tuple[EpochStart, ...]:
    """The part of `lineage` to compare with a leader's log: from `kept_below` on.

    `archived_range`: start and end (exclusive) of the archive.
    """
    start, end = archived_range
    offset = max(start, kept_below)
    return () if offset >= end else from_log_start(lineage, offset)


def compared_lineage(view: PartitionView) -> tuple[EpochStart, ...]:
    start, end = view.log_start_offset, view.log_end_offset
    if start is None or end is None:
        return ()
    return compared_part(lineage_of(view), (start, end), view.history.kept_below)


def lineage_of(view: PartitionView) -> tuple[EpochStart, ...]:
    """Epochs and offsets both rise. Begins at the view's log start, as Kafka truncates it."""
    start = view.log_start_offset
    if start is None:
        return ()
    lineage: list[EpochStart] = []
    for entry in view.segments.leader_epochs():
        # An epoch without offsets after a log start or an overlap is no longer in the log.
        if entry.epoch <= (lineage[-1].epoch if lineage else UNDEFINED_EPOCH):
            continue
        offset = max(entry.start_offset, start)
        while lineage and lineage[-1].start_offset >= offset:
            lineage.pop()
        lineage.append(EpochStart(entry.epoch, offset))
    return tuple(lineage)


def epoch_of(view: PartitionView, offset: int) -> int:
    """The leader epoch of the record at `offset`; -1: not known.

    Equals the view's lineage, without building it: no epoch follows a newer one.
    """
    if offset < (view.log_start_offset or 0):
        return UNDEFINED_EPOCH
    return view.segments.epoch_at(offset)


def end_offset_for(
    lineage: Sequence[EpochStart], requested_epoch: int, log_end_offset: int
) -> EpochEnd:
    """LeaderEpochFileCache.endOffsetFor: the largest epoch up to `requested_epoch`, and its end.

    For an epoch before the first known: that epoch and the start of the first. For an epoch that is
    not known yet: undefined. `lineage`: epochs rise.
    """
    if requested_epoch == UNDEFINED_EPOCH or not lineage:
        return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
    if requested_epoch == lineage[-1].epoch:
        return EpochEnd(requested_epoch, log_end_offset)
    after = bisect_right(lineage, requested_epoch, key=attrgetter("epoch"))
    if after == len(lineage):
        return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
    floor = lineage[after - 1].epoch if after else requested_epoch
    return EpochEnd(floor, lineage[after].start_offset)


def merged_end_offset(
    archived_epochs: Sequence[EpochStart],
    requested_epoch: int,
    broker: EpochEnd,
    local_epoch: int | None,
    apart_to: int | None = None,
) -> EpochEnd:
    """The response of a Kafka with tiered storage, if the broker without it answered `broker`.

    `local_epoch` is the epoch in which the broker's local log begins; None: not known. The broker
    is right if it found the epoch in its own log. If all its epochs are newer, it answers with the
    requested epoch and its own log start: then the archive knows better. The response is never
    below the true end of the epoch, because a consumer beyond that position resets itself.

    `apart_to`: the archive's end if the archive's log diverges from the broker's (whose log began
    again); None: it does not. Then the archive knows better for every epoch that it has.
    """
    if broker.epoch != requested_epoch or broker.end_offset < 0 or not archived_epochs:
        return broker
    if apart_to is not None:
        recorded_end = end_offset_for(archived_epochs, requested_epoch, apart_to)
        return recorded_end if recorded_end.end_offset > broker.end_offset else broker
    if local_epoch is not None and 0 <= local_epoch <= requested_epoch:
        return broker
    floor = max(
        (e.epoch for e in archived_epochs if e.epoch <= requested_epoch), default=requested_epoch
    )
    following = next((entry for entry in archived_epochs if entry.epoch > requested_epoch), None)
    if following is not None:
        # An end above the broker's own response would belong to another lineage than the broker's.
        covers_start = following.start_offset <= broker.end_offset
        return EpochEnd(floor, following.start_offset) if covers_start else broker
    return broker if local_epoch is None else EpochEnd(floor, broker.end_offset)


@dataclass(frozen=True, slots=True)
class LeaderKnowledge:
    """One leader's responses. `log_start_epoch` is the epoch of its local log start.

    `ends` is by the requested epoch; UNDEFINED_EPOCH with -1: the leader knows no epoch so high.
    `log_start_epoch` is None before it was asked for, -1 if the leader does not report it.

    A follower finds where its copy diverges from the leader's log by OffsetForLeaderEpoch. It names
    its last epoch, and walks back as long as the leader answers with an epoch that the follower
    does not have (KIP-101, KIP-279). An archive does the same, as a follower with two differences.
    It may hold records that the leader has deleted, so the leader's response may be about its own
    log start. And its records came from several leaders, so the leader must confirm each place
    where one epoch follows another (`EpochTransition`).
    """

    ends: Mapping[int, EpochEnd] = field(default_factory=dict)
    log_start_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class EpochTransition:
    """In the leader's log, `epoch` must end between `low` and `high`: between them is a gap."""

    epoch: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class NeedsEpochEnd:
    epoch: int


@dataclass(frozen=True, slots=True)
class NeedsLogStart:
    pass


@dataclass(frozen=True, slots=True)
class SharedUpTo:
    """Records below `end_offset` are in the leader's log too, records from it on are not."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Undecided:
    """The copy diverges at `at_most` or anywhere below."""

    what: str
    at_most: int


Comparison = SharedUpTo | Undecided | NeedsEpochEnd | NeedsLogStart


def compare(
    lineage: Sequence[EpochStart],
    end_offset: int,
    leader: LeaderKnowledge,
    transitions: Sequence[EpochTransition] = (),
) -> Comparison:
    """`SharedUpTo(end_offset)`: no divergence. Else asks for the next response that `leader` lacks.

    `lineage` and `transitions` rise; `end_offset` is exclusive. Records without epochs are
    believed, as followers do. Two responses are not a contradiction: that the leader has deleted
    the whole end of the copy, and that it has deleted all up to a transition. If the copy diverges
    and the leader has deleted that place, the result is Undecided.
    """
    shared_end = end_offset
    for transition in transitions:
        before = [entry for entry in lineage if entry.epoch <= transition.epoch]
        comparison = _walk_back(before, transition.low, leader)
        if not isinstance(comparison, SharedUpTo):
            return comparison
        if comparison.end_offset < transition.low:
            shared_end = min(shared_end, comparison.end_offset)
        response = leader.ends.get(transition.epoch)
        if response is None:
            return NeedsEpochEnd(transition.epoch)
        if response.epoch == transition.epoch and response.end_offset > transition.high:
            if leader.log_start_epoch is None:
                return NeedsLogStart()
            if leader.log_start_epoch <= transition.epoch:
                shared_end = min(shared_end, transition.high)
    comparison = _walk_back(lineage, end_offset, leader)
    return (
        SharedUpTo(min(shared_end, comparison.end_offset))
        if isinstance(comparison, SharedUpTo)
        else comparison
    )


def begins_again(lineage: Sequence[EpochStart], end_offset: int, comparison: Comparison) -> bool:
    """True: no part of the copy is in the leader's log. `comparison` is the result of `compare`
    for the other arguments.

    This happens if an empty follower became leader, or a disk was replaced. Then the archive has
    the only copy. Offsets below the copy's start do not count as shared.
    """
    if not lineage or not isinstance(comparison, SharedUpTo) or comparison.end_offset >= end_offset:
        return False
    return comparison.end_offset <= lineage[0].start_offset


def cut_without_election(
    lineage: Sequence[EpochStart], comparison: Comparison, end_offset: int, leader_epoch: int
) -> bool:
    """The leader has lost records of the epoch in which it leads: no election does that.

    Its log is another one, or was cut by hand. `leader_epoch` -1: not reported; then False.
    """
    if not lineage or not isinstance(comparison, SharedUpTo) or comparison.end_offset >= end_offset:
        return False
    return 0 <= leader_epoch <= lineage[-1].epoch


def _walk_back(
    lineage: Sequence[EpochStart], end_offset: int, leader: LeaderKnowledge
) -> Comparison:
    end_bound = end_offset
    index = len(lineage) - 1
    while index >= 0:
        epoch = lineage[index].epoch
        response = leader.ends.get(epoch)
        if response is None:
            return NeedsEpochEnd(epoch)
        if response.epoch == UNDEFINED_EPOCH or response.end_offset < 0:
            return Undecided(f"the leader knows no epoch as high as {epoch}", end_bound)
        if response.end_offset <= lineage[0].start_offset:
            return SharedUpTo(
                min(end_bound, lineage[0].start_offset)
            )  # all of the copy is of other epochs
        if response.epoch == epoch and (response.end_offset < end_bound or end_bound < end_offset):
            # Is this the epoch's end, or the start of the leader's remaining log?
            if leader.log_start_epoch is None:
                return NeedsLogStart()
            if leader.log_start_epoch > epoch:
                at_most = min(end_bound, response.end_offset)
                return Undecided(
                    f"it diverged from the leader's log in epoch {epoch} or before, at or below "
                    f"offset {at_most}, and the leader has deleted all records below that",
                    at_most,
                )
        floor = index
        while floor >= 0 and lineage[floor].epoch > response.epoch:
            floor -= 1
        if floor < 0:
            return SharedUpTo(min(end_bound, lineage[0].start_offset))
        if floor < index:
            end_bound = min(end_bound, lineage[floor + 1].start_offset)
        if lineage[floor].epoch == response.epoch:
            return SharedUpTo(min(end_bound, response.end_offset))
        index = floor
    return SharedUpTo(end_bound)
