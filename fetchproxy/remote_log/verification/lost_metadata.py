"""A segment's metadata from its log, where the `.metadata` object is lost or unreadable. Pure.

A log that lies there alone may be a copy that was given up, or one that was deleted half-way: it
counts again only where no other segment has its offsets and nobody has deleted them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata
from fetchproxy.remote_log.verification.segment_check import epoch_at
from fetchproxy.remote_log.verification.segment_derivation import DerivedSegment


def metadata_of_lost(
    stub: RemoteLogSegmentMetadata,
    derived: DerivedSegment,
    others: Iterable[RemoteLogSegmentMetadata],
    log_start_offset: int,
) -> RemoteLogSegmentMetadata:
    """`stub` has id and start offset; `others` are the partition's finished segments.

    Where a newer leader epoch's segment begins inside it, the log was cut there (an unclean leader
    election), and so is it. Raises CorruptSegment where the segment must not count.
    """
    segment = derived.segment
    start, end = segment.start_offset, segment.end_offset
    if end < log_start_offset:
        raise CorruptSegment(f"offsets {start} to {end} were deleted")
    metadata = replace(
        stub,
        end_offset=end,
        max_timestamp_ms=segment.max_timestamp_ms,
        segment_leader_epochs=segment.leader_epochs,
        segment_size_bytes=segment.size_bytes,
    )
    shared = [other for other in others if other.start_offset <= end and other.end_offset >= start]
    if not shared:
        return metadata
    first = min(shared, key=lambda other: other.start_offset)
    if first.start_offset > start and _begins_newer_lineage(first, segment.leader_epochs):
        cut = first.start_offset - 1
        return replace(metadata.clipped(cut), max_timestamp_ms=derived.max_timestamp_ms(cut))
    raise CorruptSegment(
        f"offsets {start} to {end} are in another segment, from {first.start_offset}"
    )


def _begins_newer_lineage(other: RemoteLogSegmentMetadata, epochs: tuple[EpochStart, ...]) -> bool:
    newer = other.segment_leader_epochs
    return bool(newer) and newer[0].epoch > epoch_at(epochs, other.start_offset)
