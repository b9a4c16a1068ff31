"""Finds from the store which offsets of a partition's archive are lost, missing or put aside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import FIRST_HISTORY, TopicIdPartition
from fetchproxy.observability.health import Condition, Kind, Offsets, in_order, of_partition
from fetchproxy.segments.description import NOT_STATED, FinishedOffsets
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.writing.completeness_records import read_finished_offsets, uncovered

_IN_NO_SEGMENT = "were archived and are in no segment"


@dataclass(frozen=True, slots=True)
class Coverage:
    """The offsets that the archive has of a partition."""

    segments: Sequence[Offsets]
    uncertain: Sequence[int]  # base offsets of segments with unreadable metadata
    log_start_offset: int  # as raised by DeleteRecords or retention; 0: never
    newest_epoch: int  # of all segments, -1: none


@dataclass(frozen=True, slots=True)
class NotHeld:
    """Offsets in no segment: `missing` were archived, `gaps` were lost before archiving."""

    missing: tuple[Offsets, ...] = ()
    gaps: tuple[Offsets, ...] = ()
    not_known: tuple[Offsets, ...] = ()


def missing_offsets(
    coverage: Coverage, finished_offsets: FinishedOffsets | None, recorded_gaps: Iterable[Offsets]
) -> NotHeld:
    """Finds which of the offsets that a partition's archive has to hold are not there. Pure.

    `finished_offsets` None: the partition has no record.

    A raised log start has deleted all offsets below it. From `recorded_from` up to the stated end,
    every offset was archived or is recorded as a gap. Below `recorded_from` no loss can be proved.
    """
    first, last = _expected(coverage, finished_offsets)
    recorded_from = 2**63 if finished_offsets is None else finished_offsets.recorded_from
    missing: list[Offsets] = []
    gaps: list[Offsets] = []
    recorded = sorted(recorded_gaps)
    last = _end_of_gaps(last, recorded)
    for hole in uncovered(first, last, sorted(coverage.segments)):
        certain = _before_uncertain(hole, coverage.uncertain)
        if certain is not None:
            gaps += _shared(*certain, recorded)
            missing += uncovered(*certain, recorded)
    return NotHeld(
        missing=tuple((max(a, recorded_from), b) for a, b in missing if b >= recorded_from),
        gaps=tuple(gaps),
        not_known=tuple((a, min(b, recorded_from - 1)) for a, b in missing if a < recorded_from),
    )


def _expected(coverage: Coverage, finished_offsets: FinishedOffsets | None) -> Offsets:
    """The offsets at which the archive has to begin and end."""
    first = min((start for start, _ in coverage.segments), default=2**63)
    last = max((end for _, end in coverage.segments), default=-1)
    if finished_offsets is not None:
        first = min(first, finished_offsets.recorded_from)
        # With a newer epoch, a newer leader's log has replaced the one whose end was stated.
        if (
            finished_offsets.end_offset != NOT_STATED
            and coverage.newest_epoch <= finished_offsets.leader_epoch
        ):
            last = max(last, finished_offsets.end_offset)
    return max(first, coverage.log_start_offset), last


def _end_of_gaps(last: int, recorded: Iterable[Offsets]) -> int:
    """The last offset of the recorded gaps that follow `last` without a break, else `last`."""
    for start, end in recorded:
        if start <= last + 1:
            last = max(last, end)
    return last


def _before_uncertain(hole: Offsets, uncertain: Iterable[int]) -> Offsets | None:
    """The part of `hole` below the first unreadable segment, which is reported by itself."""
    first, last = hole
    begins = [base for base in uncertain if first <= base <= last]
    last = min([last, *(base - 1 for base in begins)])
    return (first, last) if first <= last else None


def _shared(first: int, last: int, rising: Iterable[Offsets]) -> Iterator[Offsets]:
    """The parts of `first` … `last` that are in any of `rising`."""
    offset = first
    for hole in uncovered(first, last, rising):
        if offset < hole[0]:
            yield offset, hole[0] - 1
        offset = hole[1] + 1
    if offset <= last:
        yield offset, last


@dataclass(frozen=True, slots=True)
class OffsetsCheckResult:
    """`finished_offsets`: the archivers' record. None: there is none, or it is damaged. `damaged`:
    how.
    """

    finished_offsets: FinishedOffsets | None
    damaged: CorruptSegment | None
    not_held: NotHeld


async def look_at_offsets(
    records: ArchiveObjects,
    rlmm: RemoteLogMetadataManager,
    tp: TopicIdPartition,
    refresh: Callable[[], Awaitable[PartitionView]] | None = None,
    also: Callable[[], Iterable[Offsets]] = tuple,
) -> OffsetsCheckResult:
    """Find the offsets that are in no segment, and their records: one listing and one small read.

    `refresh`: reads the metadata anew. None: as the manager does it.
    `also`: offsets that are known to be elsewhere.

    Raises RemoteStorageError.
    """

    async def look() -> OffsetsCheckResult:
        """Reads expected offsets, then segments, then gaps: so a copy under way is not a fault."""
        finished_offsets: FinishedOffsets | None = None
        damaged: CorruptSegment | None = None
        try:
            finished_offsets = await read_finished_offsets(records, tp)
        except CorruptSegment as error:
            damaged = error
        now = asyncio.get_running_loop().time()
        view = await (rlmm.refresh(tp, now) if refresh is None else refresh())
        done = [s for s in rlmm.list_remote_log_segments(tp) if s.is_finished]
        coverage = Coverage(
            segments=[*((s.start_offset, s.end_offset) for s in done), *also()],
            uncertain=view.unreadable,
            log_start_offset=view.raised_log_start,
            newest_epoch=max((s.last_epoch for s in done), default=-1),
        )
        gaps = [gap async for gap in records.list_archive_gaps(tp)]
        return OffsetsCheckResult(
            finished_offsets, damaged, missing_offsets(coverage, finished_offsets, gaps)
        )

    not_held = await look()
    if not_held.not_held.missing:
        not_held = await look()  # finds no fault if they were truncated or deleted meanwhile
    if not_held.not_held.missing:
        now = asyncio.get_running_loop().time()
        if await rlmm.partition_deletion(tp, now) is not None:
            not_held = replace(not_held, not_held=replace(not_held.not_held, missing=()))
    return not_held


def in_no_segment(first: int, last: int) -> str:
    return f"offsets {first} to {last} {_IN_NO_SEGMENT}"


def offsets_in_words(tp: TopicIdPartition, not_held: NotHeld) -> list[Condition]:
    unknown = "are in no segment, and it is not known if they ever were"
    kinds = (
        (Kind.ARCHIVE_GAP, not_held.gaps, "were lost before they could be copied (recorded gap)"),
        (Kind.ARCHIVED_OFFSETS_MISSING, not_held.missing, _IN_NO_SEGMENT),
        (Kind.ARCHIVED_OFFSETS_NOT_KNOWN, not_held.not_known, unknown),
    )
    return [
        of_partition(kind, tp, f"{tp}: offsets {first} to {last} {message}", (first, last))
        for kind, offsets, message in kinds
        for first, last in offsets
    ]


def mirror_in_words(url: str) -> Condition:
    """`url`: a place that is marked as a mirror."""
    message = f"a mirror is at {url}: it has what `fetchproxy mirror` has copied so far"
    return Condition(Kind.MIRROR_READ, message)


def metadata_in_words(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> list[Condition]:
    """Conditions that need no look at the store."""
    conditions: list[Condition] = []
    if (view := rlmm.view(tp)) is None:
        return conditions
    if problems := rlmm.problems(tp):
        message = (
            f"{tp}: metadata of {len(problems)} segments cannot be read, {problems[0].what}; run "
            "fetchproxy verify"
        )
        conditions.append(of_partition(Kind.SEGMENT_METADATA_UNREADABLE, tp, message))
    if view.history == FIRST_HISTORY:
        return conditions
    segments = rlmm.list_remote_log_segments(tp)
    history = view.history
    of_copy = [s for s in segments if s.is_finished and history.is_of_copy(s)]
    aside = [s for s in of_copy if not history.shows(s)]
    if aside:
        first, last = min(s.start_offset for s in aside), max(s.end_offset for s in aside)
        message = (
            f"{tp}: {len(aside)} segments with offsets {first} to {last} of another history of "
            f"the log are put aside; fetchproxy resolve {tp} --keep shows them again"
        )
        conditions.append(of_partition(Kind.SEGMENTS_PUT_ASIDE, tp, message, (first, last)))
    return conditions


def with_published_conditions(
    conditions: Iterable[Condition], published: Iterable[Condition], topic: str | None
) -> tuple[Condition, ...]:
    """`published`: the archivers' conditions. `topic`: the conditions of this topic alone; None:
    all.
    """
    return in_order([*conditions, *(one for one in published if topic in (None, one.topic))])


async def partition_health(
    records: ArchiveObjects, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
) -> list[Condition]:
    """All conditions of a partition that the store shows. Raises RemoteStorageError."""
    look = await look_at_offsets(records, rlmm, tp)
    return offsets_in_words(tp, look.not_held) + metadata_in_words(rlmm, tp)
