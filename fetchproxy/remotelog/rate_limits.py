"""Limits one micro-batch of a stream in offsets and in stored bytes. Pure.

If there are new offsets, a batch has at least one, so that a stream always reaches its end.
"""

from __future__ import annotations

from collections.abc import Mapping

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import SegmentRef
from fetchproxy.remotelog.options import NextOffsets, TopicPartition, TriggerLimits
from fetchproxy.remotelog.planning import OffsetSpan, segments_with

Views = Mapping[TopicPartition, PartitionView]


def first_new_offsets(
    views: Views, starts: NextOffsets, ends: NextOffsets
) -> dict[TopicPartition, int]:
    """The first new offset of each partition that has any."""
    new_starts = {}
    for key, end in ends.items():
        first = views[key].log_start_offset or 0 if key in views else 0
        begin = max(starts.get(key, first), first)
        if begin < end:
            new_starts[key] = begin
    return new_starts


def ends_within_limits(
    views: Views, starts: NextOffsets, ends: NextOffsets, limits: TriggerLimits
) -> NextOffsets:
    """The `ends` that the limits allow one batch. `starts`: as from `first_new_offsets`."""
    limited_ends = dict(ends)
    if limits.offsets_max:
        limited_ends |= _by_offsets(starts, ends, limits.offsets_max)
    if limits.bytes_max:
        limited_ends |= _by_bytes(views, starts, limited_ends, limits.bytes_max)
    return limited_ends


def _by_offsets(
    starts: NextOffsets, ends: NextOffsets, offsets_max: int
) -> dict[TopicPartition, int]:
    """In proportion to new offsets, as Spark's Kafka source; the sum is never above the limit."""
    sizes = {key: ends[key] - begin for key, begin in starts.items()}
    total = sum(sizes.values())
    if total <= offsets_max:
        return {}
    shares = {key: offsets_max * size // total for key, size in sizes.items()}
    offsets_left = offsets_max - sum(shares.values())
    # Fewer are left than there are partitions: the smallest shares get one more each.
    for key in sorted(sizes, key=lambda key: (shares[key], key))[:offsets_left]:
        shares[key] += 1
    return {key: starts[key] + share for key, share in shares.items()}


def _by_bytes(
    views: Views, starts: NextOffsets, ends: NextOffsets, bytes_max: int
) -> dict[TopicPartition, int]:
    """Equal shares; the other partitions get the bytes that a partition does not need."""
    limited_ends = {}
    bytes_left = bytes_max
    needs = {
        key: _bytes_up_to(views[key], begin, ends[key], bytes_max) for key, begin in starts.items()
    }
    waiting = sorted(needs, key=lambda key: (needs[key], key))
    for number, key in enumerate(waiting):
        share = bytes_left // (len(waiting) - number)
        if needs[key] <= share:
            bytes_left -= needs[key]
            continue
        limited_ends[key] = _end_within(views[key], starts[key], ends[key], share)
        bytes_left -= min(share, needs[key])
    return limited_ends


def _bytes_up_to(view: PartitionView, begin: int, end: int, enough: int) -> int:
    """Stored bytes of these offsets; counting ends above `enough`."""
    total = 0
    for segment, span in segments_with(view, OffsetSpan(begin, end)):
        total += _bytes(segment, span)
        if total > enough:
            break
    return total


def _end_within(view: PartitionView, begin: int, end: int, share: int) -> int:
    """The end offset of the last segment that fits whole. If not even the first one fits, an
    offset within it, as if its records were of one size.
    """
    offset, bytes_left = begin, share
    for segment, span in segments_with(view, OffsetSpan(begin, end)):
        size = _bytes(segment, span)
        if size > bytes_left:
            if offset > begin:
                return offset
            within = max(1, bytes_left * _offsets(segment) // segment.segment_size_bytes)
            return min(span.end, span.start + within)
        offset, bytes_left = span.end, bytes_left - size
    return min(max(offset, begin + 1), end)


def _bytes(segment: SegmentRef, span: OffsetSpan) -> int:
    return -(-segment.segment_size_bytes * (span.end - span.start) // _offsets(segment))


def _offsets(segment: SegmentRef) -> int:
    return segment.stored_end_offset + 1 - segment.start_offset
