"""Which offsets a partition's archive has to hold, and which of them it does not. Pure.

A raised log start has deleted all below it. From `recorded_from` on, up to the end that was stated,
every offset was archived or is on record as a gap. Below `recorded_from` there are no records:
nobody can tell whether an offset there is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fetchproxy.metadata.finished_offsets_json import NOT_STATED, FinishedOffsets

Offsets = tuple[int, int]  # first and last, both inclusive


@dataclass(frozen=True, slots=True)
class Held:
    """What the archive has of a partition.

    `segments`: the offsets of each. `uncertain`: base offsets of segments whose metadata cannot be
    read, which may reach up to the next one. `newest_epoch`: of all segments, -1: none.
    """

    segments: Sequence[Offsets]
    uncertain: Sequence[int]
    log_start_offset: int  # as raised by DeleteRecords or retention; 0: never
    newest_epoch: int


@dataclass(frozen=True, slots=True)
class NotHeld:
    """Offsets in no segment: `missing` were archived, `gaps` were lost before they could be."""

    missing: tuple[Offsets, ...] = ()
    gaps: tuple[Offsets, ...] = ()
    not_known: tuple[Offsets, ...] = ()


def not_held(
    held: Held, stated: FinishedOffsets | None, recorded_gaps: Iterable[Offsets]
) -> NotHeld:
    """`stated` None: nothing was recorded of the partition."""
    first, last = _expected(held, stated)
    recorded_from = 2**63 if stated is None else stated.recorded_from
    found: list[Offsets] = []
    gaps: list[Offsets] = []
    recorded = sorted(recorded_gaps)
    for hole in _without(first, last, sorted(held.segments)):
        certain = _before_uncertain(hole, held.uncertain)
        if certain is not None:
            gaps += _shared(*certain, recorded)
            found += _without(*certain, recorded)
    return NotHeld(
        missing=tuple((max(a, recorded_from), b) for a, b in found if b >= recorded_from),
        gaps=tuple(gaps),
        not_known=tuple((a, min(b, recorded_from - 1)) for a, b in found if a < recorded_from),
    )


def _expected(held: Held, stated: FinishedOffsets | None) -> Offsets:
    """Where the archive has to begin, and up to where it has to go."""
    first = min((start for start, _ in held.segments), default=2**63)
    last = max((end for _, end in held.segments), default=-1)
    if stated is not None:
        first = min(first, stated.recorded_from)
        if _end_stands(held, stated):
            last = max(last, stated.end_offset)
    return max(first, held.log_start_offset), last


def _end_stands(held: Held, stated: FinishedOffsets) -> bool:
    """False: a newer leader's log has taken the place of the one whose end was stated."""
    return stated.end_offset != NOT_STATED and held.newest_epoch <= stated.leader_epoch


def _before_uncertain(hole: Offsets, uncertain: Iterable[int]) -> Offsets | None:
    """Without what a segment may hold whose metadata cannot be read: that is told by itself."""
    first, last = hole
    begins = [base for base in uncertain if first <= base <= last]
    last = min([last, *(base - 1 for base in begins)])
    return (first, last) if first <= last else None


def _without(first: int, last: int, rising: Iterable[Offsets]) -> Iterator[Offsets]:
    """The parts of `first` … `last` that are in none of `rising`, which may overlap."""
    for start, end in rising:
        if start > last:
            break
        if start > first:
            yield first, start - 1
        first = max(first, end + 1)
    if first <= last:
        yield first, last


def _shared(first: int, last: int, rising: Iterable[Offsets]) -> Iterator[Offsets]:
    """The parts of `first` … `last` that are in any of `rising`."""
    at = first
    for hole in _without(first, last, rising):
        if at < hole[0]:
            yield at, hole[0] - 1
        at = hole[1] + 1
    if at <= last:
        yield at, last
