"""Plans the segments and bytes that each task reads, and finds offsets that the archive lacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import UUID

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import CorruptSegment, FetchProxyError, ObjectFailing
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import SegmentRef, TopicIdPartition
from fetchproxy.observability.health import Condition, Offsets
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.runtime.garbage import no_collections
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.archive_health import (
    Coverage,
    NotHeld,
    in_no_segment,
    look_at_offsets,
    missing_offsets,
)
from fetchproxy.writing.completeness_records import read_finished_offsets

SKIPPED_RECORDS = "with failOnDataLoss=false it is skipped"
_PARTITIONS_AT_ONCE = 32


class DataLoss(FetchProxyError):
    """Requested offsets are not in the archive, and `failOnDataLoss` is set."""


class OffsetSpan(NamedTuple):
    """Offsets from `start`, below `end`."""

    start: int
    end: int


# A partition and its requested offsets.
Selection = tuple[PartitionView, OffsetSpan]

# The rule of `verify` (`archive_health.missing_offsets`) finds offsets that the archive lacks. A
# hole is a gap only if the archiver has put it on record; a hole without a record was archived and
# is gone. The look reads one small object a partition, or none if the view has all requested
# offsets.

ALL_OFFSETS = OffsetSpan(0, 2**63)


async def holes_of(
    storage: RemoteStorage,
    selections: Iterable[Selection],
    *,
    views_of_store: bool = True,
    problems: Callable[[TopicIdPartition], Iterable[Condition]] = lambda tp: (),
) -> dict[TopicIdPartition, str]:
    """The first hole of the worst kind within the requested offsets, in words, by partition.

    `ALL_OFFSETS`: from the offset at which the archive has to begin, to the last finished one.
    `views_of_store` False: the views may be older than the store, as with cache files. Then holes
    above the views' ends are left out. Raises RemoteStorageError.
    """
    hole_by_tp: dict[TopicIdPartition, str] = {}

    async def look(selection: Selection) -> None:
        view, (start, end) = selection
        offsets = start, end - 1
        if not _has_all(view, offsets):
            try:
                holes = _clipped(await _holes(storage, view, views_of_store), offsets)
            except ObjectFailing as error:  # what it would tell is not known
                hole_by_tp[view.tp] = str(error)
                return
            in_words = _in_words(holes, view, offsets, problems(view.tp))
            if in_words is not None:
                hole_by_tp[view.tp] = in_words

    await for_each(selections, look, _PARTITIONS_AT_ONCE)
    return hole_by_tp


def _in_words(
    holes: NotHeld, view: PartitionView, offsets: Offsets, problems: Iterable[Condition]
) -> str | None:
    for first, last in holes.missing:
        text = in_no_segment(first, last)
        return f"{text}, which is a fault: run `fetchproxy verify` for details"
    for first, last in holes.gaps:
        return f"offsets {first} to {last} were lost before they could be archived"
    for first, last in holes.not_known:
        text = f"offsets {first} to {last} are in no segment"
        return f"{text}, and it is not known if they ever were"
    why = {problem.first_offset: f" ({problem.what})" for problem in problems}
    for base in view.unreadable:
        if offsets[0] <= base <= offsets[1] and not view.covers(base):
            return (
                f"the metadata of the segment at offset {base} cannot be read{why.get(base, '')}: "
                "`fetchproxy verify --repair` may repair them"
            )
    return None


def _has_all(view: PartitionView, offsets: Offsets) -> bool:
    """True: the view alone shows that it has all offsets. Otherwise the store may know more."""
    first, last = offsets
    if first > last:
        return True
    if view.unreadable or not view.segments:
        return False
    if first < (view.log_start_offset or 0) or last >= (view.log_end_offset or 0):
        return False
    return not any(start <= last and end >= first for start, end in view.gaps())


async def _holes(storage: RemoteStorage, view: PartitionView, of_store: bool) -> NotHeld:
    objects = storage.objects
    try:
        finished_offsets = await read_finished_offsets(objects, view.tp)
    except ObjectFailing:
        raise
    except CorruptSegment:
        finished_offsets = None  # `verify` names it
    coverage = Coverage(
        segments=list(view.segments.bounds()),
        uncertain=view.unreadable,
        log_start_offset=view.raised_log_start,
        newest_epoch=view.segments[-1].last_epoch if view.segments else -1,
    )
    missing = missing_offsets(coverage, finished_offsets, ())
    if missing == NotHeld():
        return missing
    if not of_store:
        gaps = [gap async for gap in objects.list_archive_gaps(view.tp)]
        end = view.log_end_offset or 0
        return _clipped(missing_offsets(coverage, finished_offsets, gaps), (0, end - 1))
    # `look_at_offsets` reads finished offsets first: a copy or truncation under way is not a hole.
    async with StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm:
        return (await look_at_offsets(objects, rlmm, view.tp)).not_held


def _clipped(not_held: NotHeld, offsets: Offsets) -> NotHeld:
    def clipped(holes: Iterable[Offsets]) -> tuple[Offsets, ...]:
        shared = ((max(first, offsets[0]), min(last, offsets[1])) for first, last in holes)
        return tuple((first, last) for first, last in shared if first <= last)

    return NotHeld(clipped(not_held.missing), clipped(not_held.gaps), clipped(not_held.not_known))


class SegmentPart(NamedTuple):
    """What to read of a segment: bytes of the log from `byte_from`, below `byte_to`; and of their
    records, offsets from `offset_from`, below `offset_end`.
    """

    segment: SegmentRef
    byte_from: int
    byte_to: int
    offset_from: int
    offset_end: int

    @property
    def is_whole(self) -> bool:
        """False: which of its offsets are read, only the segment's index tells."""
        return self.byte_from == 0 and self.byte_to == self.segment.segment_size_bytes


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The parts that one Spark task reads, in the order of offsets."""

    tp: TopicIdPartition
    parts: tuple[SegmentPart, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        """Plain tuples take a third of the time and of the bytes to pickle."""
        tp = self.tp
        plain = tuple([(*part.segment[1:], *part[1:]) for part in self.parts])
        return _task_of, (tp.topic_id.bytes, tp.topic, tp.partition, plain)

    @property
    def offsets(self) -> OffsetSpan:
        return OffsetSpan(self.parts[0].offset_from, self.parts[-1].offset_end)

    @property
    def size_bytes(self) -> int:
        return sum(part.byte_to - part.byte_from for part in self.parts)


def _task_of(
    topic_id: bytes, topic: str, partition: int, parts: tuple[tuple[Any, ...], ...]
) -> ReadTask:
    tp = TopicIdPartition(UUID(bytes=topic_id), topic, partition)
    n = len(SegmentRef._fields) - 1  # all but the partition
    return ReadTask(tp, tuple([SegmentPart(SegmentRef(tp, *p[:n]), *p[n:]) for p in parts]))


@no_collections()
def plan_tasks(
    selections: Iterable[Selection],
    *,
    partition_bytes_max: int,
    partitions_min: int = 0,
    records_max: int = 0,
) -> list[ReadTask]:
    """The tasks to read the offsets of `selections` that the views have, in their order.

    `partitions_min`: the least number of tasks, if there are bytes to share. `records_max`: the
    most offsets of one task; 0: as many as its bytes hold.

    A task is a run of parts of one partition, of about `partition_bytes_max` stored bytes. A part
    is a whole segment, or a piece of a large one, from one byte to another. The reader moves both
    bytes to the segment's index borders. Neighbours get the same border, so each batch is in one
    piece.
    """
    ordered = sorted(
        selections, key=lambda selection: (selection[0].tp.topic, selection[0].tp.partition)
    )
    if partitions_min:
        wholes = (part for view, span in ordered for part in parts_of(view, span))
        total = sum(part.segment.segment_size_bytes for part in wholes)
        # Rounded down, or the last of the tasks would be missing.
        partition_bytes_max = min(partition_bytes_max, max(1, total // partitions_min))
    tasks: list[ReadTask] = []
    for view, span in ordered:
        if records_max:
            tasks += _short_tasks(view, span, partition_bytes_max, records_max)
        else:
            tasks += _tasks(view, span, partition_bytes_max)
    return tasks


def _tasks(view: PartitionView, span: OffsetSpan, bytes_max: int) -> Iterator[ReadTask]:
    accumulated: list[SegmentPart] = []
    accumulated_bytes = 0
    for part in parts_of(view, span, bytes_max):
        part_bytes = part.byte_to - part.byte_from
        if accumulated and accumulated_bytes + part_bytes > bytes_max:
            yield ReadTask(view.tp, tuple(accumulated))
            accumulated, accumulated_bytes = [], 0
        accumulated.append(part)
        accumulated_bytes += part_bytes
    if accumulated:
        yield ReadTask(view.tp, tuple(accumulated))


def _short_tasks(
    view: PartitionView, span: OffsetSpan, bytes_max: int, records_max: int
) -> Iterator[ReadTask]:
    """Cuts by offsets alone: the reader finds their bytes in the segment's index.

    A task's share of a segment's bytes is counted as its share of the segment's offsets.
    """
    accumulated: list[SegmentPart] = []
    records_left, bytes_left = records_max, float(bytes_max)
    for segment_part in parts_of(view, span):
        segment = segment_part.segment
        offsets = segment.stored_end_offset + 1 - segment.start_offset
        record_bytes = segment.segment_size_bytes / offsets
        offset = segment_part.offset_from
        while offset < segment_part.offset_end:
            count = min(
                records_left,
                segment_part.offset_end - offset,
                max(1, int(bytes_left / record_bytes)),
            )
            accumulated.append(segment_part._replace(offset_from=offset, offset_end=offset + count))
            offset, records_left, bytes_left = (
                offset + count,
                records_left - count,
                bytes_left - count * record_bytes,
            )
            if not records_left or bytes_left < record_bytes:
                yield ReadTask(view.tp, tuple(accumulated))
                accumulated, records_left, bytes_left = [], records_max, float(bytes_max)
    if accumulated:
        yield ReadTask(view.tp, tuple(accumulated))


async def view_now(storage: RemoteStorage, tp: TopicIdPartition) -> PartitionView:
    """What the store says now. Raises RemoteStorageError, CorruptSegment."""
    async with StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm:
        return await rlmm.refresh(tp, asyncio.get_running_loop().time())


def parts_of(
    view: PartitionView, span: OffsetSpan, bytes_max: int = 2**63 - 1
) -> Iterator[SegmentPart]:
    """The parts that have these offsets, none of more than `bytes_max`. Neighbours do not overlap;
    offsets between them are in no segment.
    """
    for segment, offsets in segments_with(view, span):
        size = segment.segment_size_bytes
        count = -(-size // bytes_max)
        borders = [size * number // count for number in range(count + 1)] if count else []
        for bytes_of_piece in pairwise(borders):
            yield SegmentPart(segment, *bytes_of_piece, *offsets)


def segments_with(view: PartitionView, span: OffsetSpan) -> Iterator[tuple[SegmentRef, OffsetSpan]]:
    """The segments that have some of these offsets, and the offsets to read of each.

    Neighbours may overlap: offsets that the segment before has are not read again.
    """
    offset = max(span.start, view.raised_log_start)
    if span.end <= offset:
        return
    for segment, end_offset in view.segments.refs(view.segments.index_at_or_after(offset)):
        if segment.start_offset >= span.end:
            return
        overlap = OffsetSpan(max(segment.start_offset, offset), min(end_offset + 1, span.end))
        if overlap.start < overlap.end:
            yield segment, overlap
            offset = overlap.end
