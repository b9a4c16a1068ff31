"""Which adjacent segments become one. Pure: it reads and writes nothing.

Merged are finished segments that follow each other without a gap, hold offsets that nobody else
holds, and are of one lineage whose epochs all stay known. Left alone are segments that an unclean
election has cut, those that DeleteRecords or retention reaches into, and any without timestamps,
whose age for retention is that of their copy.

A merged segment is a further copy of the same offsets, so what becomes of the ones it replaces is
decided by the rule for copies of archivers that met (`retention.spare_copies`): the longest chain
stays, and whatever lies below it goes once everything there is old. That rule, not this plan, lets
anything be deleted. To keep it settled nothing is merged that overlaps: a range whose replaced
segments are still there has its turn when they are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata, RemoteLogSegmentState

Segments = tuple[RemoteLogSegmentMetadata, ...]

# Offsets within a segment fit an int32, as Kafka's own index files have them.
MERGED_OFFSETS_MAX = 2**31 - 1
# The largest of those merged holds at most this share of the bytes: so a byte at the archive's end
# is copied again only when what it lies in grows by a third, a logarithm's number of times in all.
LARGEST_SHARE_MAX = 0.75

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def plan_merges(
    segments: Iterable[RemoteLogSegmentMetadata], view: PartitionView, *, bytes_max: int
) -> list[Segments]:
    """Groups of two or more, by offset, each of at most `bytes_max` bytes. `segments`: as `view`.

    Small is what has at most half of that: then a group to which no more is added since it would be
    too large gives a segment that is not small. The same archive gives the same plan, also when a
    part of it has been carried out; all of it leaves none.
    """
    groups: list[Segments] = []
    group: list[RemoteLogSegmentMetadata] = []
    for segment in _alone(segments, view):
        if group and not (_continues(group[-1], segment) and _fits(group, segment, bytes_max)):
            groups.append(tuple(group))
            group = []
        if segment.segment_size_bytes <= bytes_max // 2:
            group.append(segment)
    groups.append(tuple(group))
    return [group for group in groups if _is_worth_it(group)]


def still_stand(
    sources: Sequence[RemoteLogSegmentMetadata],
    segments: Iterable[RemoteLogSegmentMetadata],
    view: PartitionView,
) -> bool:
    """Whether each of `sources` is what it was, and nobody else has copied their offsets."""
    ids = {source.segment_id for source in sources}
    known = {s.segment_id: s for s in _alone(segments, view) if s.segment_id in ids}
    return all(known.get(source.segment_id) == source for source in sources)


def merged_epochs(sources: Iterable[RemoteLogSegmentMetadata]) -> tuple[EpochStart, ...]:
    """Those of all, each where it began: a segment repeats the one that it begins in."""
    found: list[EpochStart] = []
    for source in sources:
        for entry in source.segment_leader_epochs:
            if not found or entry.epoch > found[-1].epoch:
                found.append(entry)
    return tuple(found)


def _alone(
    segments: Iterable[RemoteLogSegmentMetadata], view: PartitionView
) -> list[RemoteLogSegmentMetadata]:
    """By offset, those that may be merged with a neighbour at all."""
    finished = sorted(
        (s for s in segments if s.state is _FINISHED), key=lambda s: (s.start_offset, s.end_offset)
    )
    alone: list[RemoteLogSegmentMetadata] = []
    reached = -1
    for segment, after in zip_longest(finished, finished[1:]):
        overlaps = segment.start_offset <= reached or (
            after is not None and after.start_offset <= segment.end_offset
        )
        reached = max(reached, segment.end_offset)
        if not overlaps and _may_be_merged(segment, view):
            alone.append(segment)
    return alone


def _may_be_merged(segment: RemoteLogSegmentMetadata, view: PartitionView) -> bool:
    unreadable_inside = any(
        segment.start_offset <= base <= segment.end_offset for base in view.unreadable
    )
    return (
        segment.copied_end_offset is None
        and segment.start_offset >= view.raised_log_start
        and view.history.shows(segment)
        and segment.max_timestamp_ms >= 0
        and not unreadable_inside
    )


def _continues(before: RemoteLogSegmentMetadata, segment: RemoteLogSegmentMetadata) -> bool:
    """No gap is between them, and no epoch is lost or falls."""
    if segment.start_offset != before.end_offset + 1:
        return False
    one, other = before.segment_leader_epochs, segment.segment_leader_epochs
    if not one or not other:
        return not one and not other
    return one[-1].epoch <= other[0].epoch


def _fits(
    group: Sequence[RemoteLogSegmentMetadata], segment: RemoteLogSegmentMetadata, bytes_max: int
) -> bool:
    size = sum(s.segment_size_bytes for s in group) + segment.segment_size_bytes
    offsets = segment.end_offset - group[0].start_offset + 1
    return size <= bytes_max and offsets <= MERGED_OFFSETS_MAX


def _is_worth_it(group: Segments) -> bool:
    sizes = [segment.segment_size_bytes for segment in group]
    return len(sizes) > 1 and max(sizes) <= LARGEST_SHARE_MAX * sum(sizes)
