"""Leader epochs of an archived partition: where each began, in the order of the log. Pure.

The lineage is put together from the epochs that each segment's metadata keeps. The questions are
those of Kafka's LeaderEpochFileCache, so the answers are those that a broker with tiered storage
gives, whose cache reaches back to the first remote offset.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import EpochStart

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


class EpochEnd(NamedTuple):
    """A leader epoch, and the offset behind its last record."""

    epoch: int
    end_offset: int


def extend_lineage(
    lineage: Sequence[EpochStart], epochs: Iterable[EpochStart]
) -> tuple[EpochStart, ...]:
    """The epochs up to a segment's end: those of the log before it, then the segment's own.

    A segment repeats the epoch that it begins in; one that is not newer is left out.
    """
    latest = lineage[-1].epoch if lineage else UNDEFINED_EPOCH
    return (*lineage, *(entry for entry in epochs if entry.epoch > latest))


def archived_lineage(view: PartitionView) -> tuple[EpochStart, ...]:
    """The epochs up to the archive's end, as the segments were copied: also below the log start."""
    lineage: tuple[EpochStart, ...] = ()
    for entry in view.segments.leader_epochs():
        lineage = extend_lineage(lineage, [entry])
    return lineage


def from_log_start(lineage: Sequence[EpochStart], start: int) -> tuple[EpochStart, ...]:
    """Without the epochs that ended below `start`, as Kafka truncates its cache of them."""
    begun = [entry for entry in lineage if entry.start_offset <= start]
    above = [entry for entry in lineage if entry.start_offset > start]
    return (*(EpochStart(entry.epoch, start) for entry in begun[-1:]), *above)


def compared_part(
    lineage: Sequence[EpochStart], archived: tuple[int, int], kept_below: int
) -> tuple[EpochStart, ...]:
    """What of `lineage` is held against a leader's log: nothing below `kept_below`.

    `archived` is where the archive begins and ends (exclusive).
    """
    start, end = archived
    at = max(start, kept_below)
    return () if at >= end else from_log_start(lineage, at)


def compared_lineage(view: PartitionView) -> tuple[EpochStart, ...]:
    """`compared_part` of a view."""
    start, end = view.log_start_offset, view.log_end_offset
    if start is None or end is None:
        return ()
    return compared_part(lineage_of(view), (start, end), view.history.kept_below)


def lineage_of(view: PartitionView) -> tuple[EpochStart, ...]:
    """Both epochs and offsets rise; it begins at the view's log start, as Kafka truncates it."""
    start = view.log_start_offset
    if start is None:
        return ()
    found: list[EpochStart] = []
    for entry in view.segments.leader_epochs():
        # One that a log start or an overlap has left no offset is not in the log any more.
        if found and (entry.epoch <= found[-1].epoch):
            continue
        at = max(entry.start_offset, start)
        while found and found[-1].start_offset >= at:
            found.pop()
        found.append(EpochStart(entry.epoch, at))
    return tuple(found)


def epoch_of(view: PartitionView, offset: int) -> int:
    """The epoch in which the record at `offset` was written; -1 where that is not known.

    As the view's lineage has it, which need not be made: no epoch follows a newer one.
    """
    if offset < (view.log_start_offset or 0):
        return UNDEFINED_EPOCH
    return view.segments.epoch_at(offset)


def end_offset_for(lineage: Sequence[EpochStart], requested: int, log_end_offset: int) -> EpochEnd:
    """LeaderEpochFileCache.endOffsetFor: the largest epoch up to `requested`, and its end.

    Of the latest epoch that is the log's end; of one before the first known, itself and where the
    first begins; of one that is not known yet, undefined.
    """
    if requested == UNDEFINED_EPOCH or not lineage:
        return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
    if requested == lineage[-1].epoch:
        return EpochEnd(requested, log_end_offset)
    following = next((entry for entry in lineage if entry.epoch > requested), None)
    if following is None:
        return EpochEnd(UNDEFINED_EPOCH, UNDEFINED_OFFSET)
    floor = max((e.epoch for e in lineage if e.epoch <= requested), default=requested)
    return EpochEnd(floor, following.start_offset)


def merged_end_offset(
    archived: Sequence[EpochStart],
    requested: int,
    broker: EpochEnd,
    local_epoch: int | None,
    apart_to: int | None = None,
) -> EpochEnd:
    """What a Kafka with tiered storage answers, where the broker without it answered `broker`.

    `local_epoch` is the one in which the broker's local log begins; None: not known. The broker is
    right wherever it found the epoch in its own log. Where all its epochs are newer it answers the
    requested one and its own log start: then the archive knows better. The answer is never below
    the true end of the epoch: a consumer whose position is beyond it resets itself.

    `apart_to`: the archive's end where its log is not the broker's all the way (the broker's began
    again); None: it is. Then the archive knows better of every epoch that it has.
    """
    if broker.epoch != requested or broker.end_offset < 0 or not archived:
        return broker
    if apart_to is not None:
        told = end_offset_for(archived, requested, apart_to)
        return told if told.end_offset > broker.end_offset else broker
    if local_epoch is not None and 0 <= local_epoch <= requested:
        return broker
    floor = max((e.epoch for e in archived if e.epoch <= requested), default=requested)
    following = next((entry for entry in archived if entry.epoch > requested), None)
    if following is not None:
        # Above the broker's own answer it would be of another lineage than the broker's.
        known = following.start_offset <= broker.end_offset
        return EpochEnd(floor, following.start_offset) if known else broker
    return broker if local_epoch is None else EpochEnd(floor, broker.end_offset)
