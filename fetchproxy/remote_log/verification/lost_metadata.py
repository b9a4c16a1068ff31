"""A segment's metadata from its log, where the `.metadata` object is lost or unreadable. Pure.

A log that lies there alone may be a copy that was given up, or one that was deleted half-way, or of
which a part was cut off when a new leader's log was another one: it counts again only where no
other segment has its offsets, nobody has deleted them, and no newer log took their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata
from fetchproxy.remote_log.verification.segment_check import epoch_at
from fetchproxy.remote_log.verification.segment_derivation import DerivedSegment


@dataclass(slots=True)
class Around:
    """What is known of the partition besides a segment whose metadata are lost.

    `counted`: its finished segments; `lineages`: the leader epochs that these state, each from the
    log's beginning. `stated_epoch`: of the last segment that was put on record, -1: none.
    `unknown`: where other segments begin of which nothing could be made.
    """

    counted: list[RemoteLogSegmentMetadata]
    lineages: list[tuple[EpochStart, ...]]
    log_start_offset: int
    stated_epoch: int
    unknown: list[int] = field(default_factory=list)


def metadata_of_lost(
    stub: RemoteLogSegmentMetadata, derived: DerivedSegment, around: Around
) -> RemoteLogSegmentMetadata:
    """`stub` has id and start offset.

    Where a newer leader epoch's segment begins inside it, the log was cut there (an unclean leader
    election), and so is it. Raises CorruptSegment where the segment must not count.
    """
    segment = derived.segment
    start, end = segment.start_offset, segment.end_offset
    if end < around.log_start_offset:
        raise CorruptSegment(f"offsets {start} to {end} were deleted")
    metadata = replace(
        stub,
        end_offset=end,
        max_timestamp_ms=segment.max_timestamp_ms,
        segment_leader_epochs=segment.leader_epochs,
        segment_size_bytes=segment.size_bytes,
    )
    shared = [o for o in around.counted if o.start_offset <= end and o.end_offset >= start]
    if shared:
        first = min(shared, key=lambda other: other.start_offset)
        if first.start_offset <= start or not _begins_newer_lineage(first, segment.leader_epochs):
            raise CorruptSegment(
                f"offsets {start} to {end} are in another segment, from {first.start_offset}"
            )
        cut = first.start_offset - 1
        clipped = metadata.clipped(cut)
        metadata = replace(clipped, max_timestamp_ms=derived.max_timestamp_ms(cut))
    _check_place(metadata, around, is_cut=bool(shared))
    return metadata


def _check_place(metadata: RemoteLogSegmentMetadata, around: Around, *, is_cut: bool) -> None:
    """Raises CorruptSegment where a newer leader's log may have taken the place of some of it."""
    start, end = metadata.start_offset, metadata.end_offset
    epochs = metadata.segment_leader_epochs
    if any(start < base <= end for base in around.unknown):
        raise CorruptSegment("a segment begins inside it of which nothing is known")
    if any(_is_newer(lineage, epochs, start, end) for lineage in around.lineages):
        raise CorruptSegment("a newer leader's log has taken the place of some of it")
    below = [o for o in around.counted if o.start_offset <= start and o.segment_leader_epochs]
    if epochs and any(o.segment_leader_epochs[-1].epoch > epochs[0].epoch for o in below):
        raise CorruptSegment("a newer leader's log is below it")
    newest = max(
        [around.stated_epoch, *(o.segment_leader_epochs[-1].epoch for o in around.counted
                                if o.segment_leader_epochs)]
    )  # fmt: skip
    is_followed = any(other.start_offset == end + 1 for other in around.counted)
    if not (is_cut or is_followed) and epoch_at(epochs, end) < newest:
        raise CorruptSegment("a newer leader's log may have taken the place of some of it")


def _is_newer(
    lineage: Sequence[EpochStart], epochs: Sequence[EpochStart], start: int, end: int
) -> bool:
    return any(
        start < entry.start_offset <= end and entry.epoch > epoch_at(epochs, entry.start_offset)
        for entry in lineage
    )


def _begins_newer_lineage(other: RemoteLogSegmentMetadata, epochs: Sequence[EpochStart]) -> bool:
    newer = other.segment_leader_epochs
    return bool(newer) and newer[0].epoch > epoch_at(epochs, other.start_offset)
