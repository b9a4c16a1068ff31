"""Which finished segments may go because others hold the same offsets. Pure.

Two archivers that met have copied the same log, cut in other places. Each copy begins where one
that was finished before it ends, so from the end of what they hold a chain leads back in which each
offset is once; the others are spare. The chain is settled only when all that may go or stay are
old: until then a copy may be finished that goes on from one that looked spare.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from fetchproxy.metadata.overlaps import first_difference
from fetchproxy.metadata.partition_view import PartitionView, build_view
from fetchproxy.model import RemoteLogSegmentMetadata, RemoteLogSegmentState

Segments = Sequence[RemoteLogSegmentMetadata]


def spare_copies(
    segments: Iterable[RemoteLogSegmentMetadata], view: PartitionView, finished_by_ms: int
) -> dict[UUID, Segments]:
    """By id, those all of whose offsets are in others, and these. `segments`: as old as `view`.

    They, and those that stay for them, were finished at `finished_by_ms` (epoch ms) or earlier.
    A copy of another lineage is none of the same log: which of the two is dead is decided elsewhere
    (`truncation`).
    """
    finished = [
        s
        for s in segments
        if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        and s.end_offset >= view.raised_log_start
    ]
    spare: dict[UUID, Segments] = {}
    for together in _overlapping(finished):
        chain = _chain(together)
        stay = {segment.segment_id for segment in chain}
        for segment in together:
            over = _over(chain, max(segment.start_offset, view.raised_log_start), segment)
            if (
                segment.segment_id not in stay
                and max(s.event_timestamp_ms for s in (segment, *over)) <= finished_by_ms
                and all(first_difference(s, segment) is None for s in over)
            ):
                spare[segment.segment_id.id] = over
    return spare


def stand_ins(segment: RemoteLogSegmentMetadata, view: PartitionView) -> Segments | None:
    """Those of `view` that hold what a hidden segment, or an attempt, may hold of the same log.

    None: as `holders`. Of a log that is dead (its epochs differ) nobody stands in for anything.
    """
    found = holders(segment.start_offset, segment.end_offset, view)
    if found and any(first_difference(other, segment) is not None for other in found):
        return ()
    return found


def held_by_others(
    segment: RemoteLogSegmentMetadata,
    segments: Iterable[RemoteLogSegmentMetadata],
    view: PartitionView,
) -> Segments | None:
    """Finished ones of `segments` that hold all of its offsets of the same log; None: they do not.

    `segments` are all that the metadata name, as old as `view`.
    """
    others = build_view(
        view.tip,
        [s for s in segments if s.segment_id != segment.segment_id],
        view.read_at,
        view.unreadable,
        view.raised_log_start,
        view.history,
    )
    found = stand_ins(segment, others)
    return found if found and found[-1].end_offset >= segment.end_offset else None


def holders(first: int, last: int, view: PartitionView) -> Segments | None:
    """Those of `view` that hold any of the offsets from `first` to `last`, both inclusive.

    None: some of these lie between archived ones and nobody has them. Above the archive's end
    nobody is asked for: an attempt that failed is made again, and a log that was cut ends there.
    """
    found: list[RemoteLogSegmentMetadata] = []
    offset = max(first, view.raised_log_start)
    while offset <= last:
        other = view.segment_at_or_after(offset)
        if other is None:
            break
        if other.start_offset > offset:
            return None
        found.append(other)
        offset = other.end_offset + 1
    return tuple(found)


def _overlapping(segments: list[RemoteLogSegmentMetadata]) -> Iterator[Segments]:
    """Groups of two or more that hang together by offsets which two of them hold."""
    together: list[RemoteLogSegmentMetadata] = []
    reached = -1
    for segment in sorted(segments, key=lambda s: s.start_offset):
        if segment.start_offset > reached:
            if len(together) > 1:
                yield together
            together = []
        together.append(segment)
        reached = max(reached, segment.end_offset)
    if len(together) > 1:
        yield together


def _chain(together: Segments) -> Segments:
    """Those of `together`, rising, that hold what all of them hold.

    Chosen from the end down: one that ends right below what is above it, or else any that reaches
    it; of these the longest, of equal ranges the one that was finished first.
    """
    rising = sorted(together, key=lambda s: s.end_offset)
    ends = [segment.end_offset for segment in rising]
    begin = min(segment.start_offset for segment in together)
    chain: list[RemoteLogSegmentMetadata] = []
    bottom = ends[-1] + 1
    while bottom > begin:
        adjacent = rising[bisect_left(ends, bottom - 1) : bisect_left(ends, bottom)]
        across = rising[bisect_left(ends, bottom) :]
        reaching = adjacent or [s for s in across if s.start_offset < bottom]
        chain.append(
            min(reaching, key=lambda s: (s.start_offset, s.event_timestamp_ms, s.segment_id.id))
        )
        bottom = chain[-1].start_offset
    return chain[::-1]


def _over(chain: Segments, first: int, segment: RemoteLogSegmentMetadata) -> Segments:
    """Those of `chain` that hold any of the offsets from `first` to the end of `segment`."""
    return [s for s in chain if s.end_offset >= first and s.start_offset <= segment.end_offset]
