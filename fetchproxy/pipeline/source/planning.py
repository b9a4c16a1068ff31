"""Which task reads which bytes of which segments. Pure: from the metadata's views alone.

A task is a run of parts of one partition, of about `partition_bytes_max` stored bytes. A part is a
whole segment, or a piece of a large one: from a byte up to another, which whoever reads it moves to
the segment's index borders, the same for both neighbours, so that each batch is in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from fetchproxy.errors import FetchProxyError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.segment_rows import SegmentExtent
from fetchproxy.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)


class DataLoss(FetchProxyError):
    """Offsets that were asked for are not in the archive, and `failOnDataLoss` is set."""


class OffsetSpan(NamedTuple):
    """`start` up to but not `end`."""

    start: int
    end: int


class SegmentPart(NamedTuple):
    """A tuple of numbers, as there may be millions to be sent: `metadata` has what stores ask for.

    Bytes `byte_from` up to but not `byte_to` of the log; of their records those with the offsets
    `offset_from` up to but not `offset_end`.
    """

    segment_id: bytes
    start_offset: int
    stored_end_offset: int
    size_bytes: int
    has_aborted_txns: bool
    byte_from: int
    byte_to: int
    offset_from: int
    offset_end: int

    def metadata(self, tip: TopicIdPartition) -> RemoteLogSegmentMetadata:
        """With what is needed to read the segment's objects; the rest is not known any more."""
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(tip, UUID(bytes=self.segment_id)),
            start_offset=self.start_offset,
            end_offset=self.stored_end_offset,
            max_timestamp_ms=-1,
            event_timestamp_ms=-1,
            segment_leader_epochs=(),
            segment_size_bytes=self.size_bytes,
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            has_aborted_txns=self.has_aborted_txns,
        )


@dataclass(frozen=True, slots=True)
class ReadTask:
    """What one Spark task reads, in the order of offsets."""

    tip: TopicIdPartition
    parts: tuple[SegmentPart, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """Plain tuples are pickled in a third of the time and of the bytes."""
        tip = self.tip
        plain = tuple([tuple(part) for part in self.parts])
        return _task_of, (tip.topic_id.bytes, tip.topic, tip.partition, plain)

    @property
    def offsets(self) -> OffsetSpan:
        return OffsetSpan(self.parts[0].offset_from, self.parts[-1].offset_end)

    @property
    def size_bytes(self) -> int:
        return sum(part.byte_to - part.byte_from for part in self.parts)


def _task_of(
    topic_id: bytes, topic: str, partition: int, parts: tuple[tuple[Any, ...], ...]
) -> ReadTask:
    tip = TopicIdPartition(UUID(bytes=topic_id), topic, partition)
    return ReadTask(tip, tuple([SegmentPart(*part) for part in parts]))


def plan_tasks(
    views: Mapping[TopicIdPartition, PartitionView],
    spans: Mapping[TopicIdPartition, OffsetSpan],
    *,
    partition_bytes_max: int,
    partitions_min: int = 0,
    records_max: int = 0,
) -> list[ReadTask]:
    """By topic, partition and offset; of `spans` what the views hold.

    At least `partitions_min` tasks, as far as there are bytes to share; `records_max`: offsets of
    one task at the most, 0: as many as its bytes hold.
    """
    if partitions_min:
        total = sum(
            part.size_bytes
            for tip, span in spans.items()
            for part in _parts(views[tip], span, 2**63 - 1)
        )
        # Rounded down, or the last of the tasks would be missing.
        partition_bytes_max = min(partition_bytes_max, max(1, total // partitions_min))
    ordered = sorted(spans, key=lambda tip: (tip.topic, tip.partition, tip.topic_id))
    if records_max:
        return [
            task
            for tip in ordered
            for task in _short_tasks(views[tip], spans[tip], partition_bytes_max, records_max)
        ]
    return [task for tip in ordered for task in _tasks(views[tip], spans[tip], partition_bytes_max)]


def _tasks(view: PartitionView, span: OffsetSpan, bytes_max: int) -> Iterator[ReadTask]:
    gathered: list[SegmentPart] = []
    gathered_bytes = 0
    for part in _parts(view, span, bytes_max):
        part_bytes = part.byte_to - part.byte_from
        if gathered and gathered_bytes + part_bytes > bytes_max:
            yield ReadTask(view.tip, tuple(gathered))
            gathered, gathered_bytes = [], 0
        gathered.append(part)
        gathered_bytes += part_bytes
    if gathered:
        yield ReadTask(view.tip, tuple(gathered))


def _short_tasks(
    view: PartitionView, span: OffsetSpan, bytes_max: int, records_max: int
) -> Iterator[ReadTask]:
    """Cut by offsets alone: which bytes hold them, the segment's index says to whoever reads. Of a
    segment's bytes as many are counted as of its offsets."""
    gathered: list[SegmentPart] = []
    room, bytes_left = records_max, float(bytes_max)
    for whole in _parts(view, span, 2**63 - 1):
        record_bytes = whole.size_bytes / (whole.stored_end_offset + 1 - whole.start_offset)
        at = whole.offset_from
        while at < whole.offset_end:
            count = min(room, whole.offset_end - at, max(1, int(bytes_left / record_bytes)))
            gathered.append(whole._replace(offset_from=at, offset_end=at + count))
            at, room, bytes_left = at + count, room - count, bytes_left - count * record_bytes
            if not room or bytes_left < record_bytes:
                yield ReadTask(view.tip, tuple(gathered))
                gathered, room, bytes_left = [], records_max, float(bytes_max)
    if gathered:
        yield ReadTask(view.tip, tuple(gathered))


def _parts(view: PartitionView, span: OffsetSpan, bytes_max: int) -> Iterator[SegmentPart]:
    """Neighbours may overlap: what the one before has is not read again."""
    next_offset = max(span.start, view.raised_log_start)
    if span.end <= next_offset:
        return
    for segment in view.segments.extents(view.segments.index_at_or_after(next_offset)):
        if segment.start_offset >= span.end:
            return
        offset_from = max(segment.start_offset, next_offset)
        offset_end = min(segment.end_offset + 1, span.end)
        if offset_from < offset_end and segment.size_bytes:
            yield from _pieces(segment, offset_from, offset_end, bytes_max)
        next_offset = max(next_offset, offset_end)


def _pieces(
    segment: SegmentExtent, offset_from: int, offset_end: int, bytes_max: int
) -> Iterator[SegmentPart]:
    raw_id, start, _, stored_end, size, aborted = segment
    count = -(-size // bytes_max)
    for number in range(count):
        byte_from, byte_to = size * number // count, size * (number + 1) // count
        yield SegmentPart(
            raw_id, start, stored_end, size, aborted, byte_from, byte_to, offset_from, offset_end
        )
