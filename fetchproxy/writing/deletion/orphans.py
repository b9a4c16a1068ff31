"""Finds deletions besides retention's: objects without metadata, and spare copies of segments.

Finds finished segments that may be deleted because others hold the same offsets. Pure.

Two archivers that were active at once have copied the same log, cut at different offsets. Each copy
begins at the end of an earlier finished one. So from the last end a chain leads back that has each
offset once; the other copies are spare. This is settled only when all of them are old: until then a
copy may be finished that continues one that looked spare.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from uuid import UUID

import structlog

from fetchproxy.errors import CorruptSegment, ObjectNotFound, ObjectNotReadable, SegmentLocked
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.metrics import ORPHAN_OBJECTS_DELETED
from fetchproxy.segments.description import decode_segment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.overlaps import first_difference
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.stores.object_store import StoredObject

Segments = Sequence[RemoteLogSegmentMetadata]
Objects = dict[SegmentFile, StoredObject]

log = structlog.get_logger(__name__)


def spare_copies(
    segments: Iterable[RemoteLogSegmentMetadata], view: PartitionView, finished_by_ms: int
) -> dict[UUID, Segments]:
    """Spare copies by id, each with the segments that hold all its offsets. All of these were
    finished at `finished_by_ms` (epoch ms) or earlier. `segments`: read with `view`. A copy of
    another lineage is not of the same log; `log_truncation` decides which of the two is dead.
    """
    finished = [s for s in segments if s.is_finished and s.end_offset >= view.raised_log_start]
    spare: dict[UUID, Segments] = {}
    for together in _overlapping(finished):
        chain = _chain(together)
        stay = {segment.segment_id for segment in chain}
        for segment in together:
            first = max(segment.start_offset, view.raised_log_start)
            over = [
                s for s in chain if first <= s.end_offset and s.start_offset <= segment.end_offset
            ]
            if (
                segment.segment_id not in stay
                and max(s.event_timestamp_ms for s in (segment, *over)) <= finished_by_ms
                and all(first_difference(s, segment) is None for s in over)
            ):
                spare[segment.segment_id.id] = over
    return spare


def stand_ins(segment: RemoteLogSegmentMetadata, view: PartitionView) -> Segments | None:
    """The segments of `view` that hold the offsets of a hidden segment, or of an attempt, of the
    same log. None: as `holders`. Empty also if the log of `segment` is dead (its epochs differ).
    """
    replacements = holders(segment.start_offset, segment.end_offset, view)
    if replacements and any(first_difference(other, segment) is not None for other in replacements):
        return ()
    return replacements


def in_other_segments(
    segment: RemoteLogSegmentMetadata,
    segments: Iterable[RemoteLogSegmentMetadata],
    view: PartitionView,
) -> Segments | None:
    """The finished ones of `segments` that hold all its offsets of the same log. None: they do not.
    `segments`: all that the metadata name, read with `view`.
    """
    others = build_view(
        view.tp,
        [s for s in segments if s.segment_id != segment.segment_id],
        view.read_at,
        view.unreadable,
        view.raised_log_start,
        view.history,
    )
    replacements = stand_ins(segment, others)
    return (
        replacements if replacements and replacements[-1].end_offset >= segment.end_offset else None
    )


def holders(first: int, last: int, view: PartitionView) -> Segments | None:
    """The segments of `view` that hold any of the offsets from `first` to `last`, both inclusive.

    None: some of these offsets lie between archived ones and no segment has them. Offsets above the
    archive's end need no holder: a failed attempt is repeated, and a log that was cut ends there.
    """
    segments: list[RemoteLogSegmentMetadata] = []
    offset = max(first, view.raised_log_start)
    while offset <= last:
        other = view.segment_at_or_after(offset)
        if other is None:
            break
        if other.start_offset > offset:
            return None
        segments.append(other)
        offset = other.end_offset + 1
    return tuple(segments)


def _overlapping(segments: list[RemoteLogSegmentMetadata]) -> Iterator[Segments]:
    """Groups of two or more segments, connected by offsets that two of them hold."""
    together: list[RemoteLogSegmentMetadata] = []
    end_offset = -1
    for segment in sorted(segments, key=lambda s: s.start_offset):
        if segment.start_offset > end_offset:
            if len(together) > 1:
                yield together
            together = []
        together.append(segment)
        end_offset = max(end_offset, segment.end_offset)
    if len(together) > 1:
        yield together


def _chain(together: Segments) -> Segments:
    """The segments of `together`, rising, that hold all offsets of the group. Chosen from the end
    down: first a segment that ends right below the one above it, or else any that reaches it; of
    these the longest; of equal ranges the one that was finished first.
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


# Finds objects in the store without metadata by listing, and deletes them once they are old.
#
# They come from crashes between two steps, and from uploads whose response was lost.


async def find_orphans(
    archive: ArchiveObjects, rlmm: RemoteLogMetadataManager, tp: TopicIdPartition
) -> dict[UUID, Objects]:
    """The orphans by segment id. The store is listed before the metadata are read: a copy that
    begins meanwhile is not listed, and a listed copy has its metadata. Raises RemoteStorageError.
    """
    objects_by_id: dict[UUID, Objects] = {}
    async for key, stored in archive.list_segment_objects(tp):
        objects_by_id.setdefault(key.segment_id.id, {})[key.file] = stored
    rlmm.doubt(tp)  # what it does not name may be deleted
    view = await rlmm.refresh(tp, asyncio.get_running_loop().time())
    segments = rlmm.list_remote_log_segments(tp)
    named = {s.segment_id.id for s in segments}
    return {
        segment_id: objects
        for segment_id, objects in objects_by_id.items()
        if segment_id not in named and await _is_orphan(archive, view, segments, objects)
    }


def is_worthless(rsm: RemoteStorageManager, view: PartitionView, objects: Objects) -> bool:
    """Whether the objects may be deleted. A log without metadata may have lost them: it is kept for
    `verify --repair` until its first offset is archived elsewhere, or deleted. The caller then
    checks that other segments are there and have all its offsets (`log_offsets_of`).
    """
    log_object = objects.get(SegmentFile.LOG)
    if log_object is None or SegmentFile.METADATA in objects:
        return True
    key = rsm.parse_key(log_object.key)
    assert key is not None  # `find_orphans` found it by this key
    if key.base_offset < view.raised_log_start or view.covers(key.base_offset):
        return True
    log.warning(
        "log_without_metadata_kept",
        **view.tp.logged,
        key=log_object.key,
        base_offset=key.base_offset,
        hint="run fetchproxy verify --repair",
    )
    return False


async def log_offsets_of(rsm: RemoteStorageManager, objects: Objects) -> tuple[int, int] | None:
    """First and last offset that the log may hold, by its key and its index. None: there is no log.
    Without a whole index only the first one is known. Raises RemoteStorageError.
    """
    log_object = objects.get(SegmentFile.LOG)
    key = None if log_object is None else rsm.parse_key(log_object.key)
    if log_object is None or key is None:
        return None
    last = key.base_offset
    if SegmentFile.INDEX in objects:
        try:
            raw, log_bytes = await rsm.get_listed_index(objects)
            index = RemoteLogIndex.parse(raw)
            if index.size_bytes == log_bytes:
                last = max(last, index.last_offset)
        except (SegmentLocked, ObjectNotReadable):
            raise  # a process with the key can read it, or the store gives it out again
        except (CorruptSegment, ObjectNotFound):
            pass  # the index is unusable
    return key.base_offset, last


async def _is_orphan(
    archive: ArchiveObjects,
    view: PartitionView,
    segments: Iterable[RemoteLogSegmentMetadata],
    objects: Objects,
) -> bool:
    """A finished segment is not an orphan, whatever the metadata manager says: a metadata topic
    that was lost, or is another cluster's, names nothing, and an archive is rebuilt from
    `.metadata` objects. If only that object is left and other segments have its offsets, the copy
    was deleted.
    """
    metadata_object = objects.get(SegmentFile.METADATA)
    if metadata_object is None:
        return True
    try:
        metadata = decode_segment(
            await archive.get_segment_metadata(metadata_object.key), metadata_object.key
        )
    except (ObjectNotFound, CorruptSegment):
        return False  # being deleted, or damaged: the next look or `verify` tells
    if not metadata.is_finished:
        return True
    if len(objects) == 1 and in_other_segments(metadata, segments, view) is not None:
        return True
    log.warning(
        "finished_segment_not_in_metadata", **metadata.logged, hint="run fetchproxy restore"
    )
    return False


async def delete_orphans(
    archive: ArchiveObjects, tp: TopicIdPartition, orphans: Collection[Objects]
) -> None:
    """May be repeated. Raises RemoteStorageError."""
    for objects in orphans:
        for file, stored in objects.items():
            await archive.delete_segment_object(stored)
            ORPHAN_OBJECTS_DELETED.labels(tp.topic).inc()
            log.info(
                "orphan_object_deleted",
                **tp.logged,
                key=stored.key,
                size_bytes=stored.size_bytes,
                kind=file.value,
            )
