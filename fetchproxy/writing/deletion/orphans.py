"""What may go besides what retention says: objects that no metadata name, and spare copies."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from uuid import UUID

import structlog

from fetchproxy.errors import CorruptSegment, ObjectNotFound, SegmentLocked
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.metrics import ORPHAN_OBJECTS_DELETED
from fetchproxy.segments.description import decode_segment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.overlaps import first_difference
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.stores.object_store import StoredObject

# Which finished segments may go because others hold the same offsets. Pure.
#
# Two archivers that met have copied the same log, cut in other places. Each copy begins where one
# that was finished before it ends, so from the end of what they hold a chain leads back that has
# each offset once; the others are spare. It is settled only when all of them are old: until then a
# copy may be finished that goes on from one that looked spare.

Segments = Sequence[RemoteLogSegmentMetadata]


def spare_copies(
    segments: Iterable[RemoteLogSegmentMetadata], view: PartitionView, finished_by_ms: int
) -> dict[UUID, Segments]:
    """By id, those all of whose offsets are in others, and these; all were finished at
    `finished_by_ms` (epoch ms) or earlier. `segments`: as old as `view`. A copy of another lineage
    is none of the same log: which of the two is dead decides `log_truncation`.
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
    """Those of `together`, rising, that hold what all of them hold. Chosen from the end down: one
    that ends right below what is above it, or else any that reaches it; of these the longest, of
    equal ranges the one that was finished first.
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


# Objects in the store that no metadata name: found by listing, deleted once they are old.
#
# They come from crashes between two steps, and from uploads whose answer was lost.

log = structlog.get_logger(__name__)

Objects = dict[SegmentFile, StoredObject]


async def find_orphans(
    rsm: RemoteStorageManager, rlmm: RemoteLogMetadataManager, tip: TopicIdPartition
) -> dict[UUID, Objects]:
    """By segment id. The store is listed before the metadata are read: a copy that begins meanwhile
    is not listed, and one that is listed has its metadata. Raises RemoteStorageError.
    """
    listed: dict[UUID, Objects] = {}
    async for key, stored in rsm.list_segment_objects(tip):
        listed.setdefault(key.segment_id.id, {})[key.file] = stored
    view = await rlmm.refresh(tip, asyncio.get_running_loop().time())
    segments = rlmm.list_remote_log_segments(tip)
    named = {s.segment_id.id for s in segments}
    return {
        segment_id: objects
        for segment_id, objects in listed.items()
        if segment_id not in named and await _is_orphan(rsm, view, segments, objects)
    }


def is_worthless(rsm: RemoteStorageManager, view: PartitionView, objects: Objects) -> bool:
    """A log without metadata may have lost them: it is kept for `verify --repair`, until its first
    offset is archived elsewhere, or deleted. Whether that elsewhere is there, and has the rest of
    it, is asked before it goes (`offsets_held`).
    """
    stored = objects.get(SegmentFile.LOG)
    if stored is None or SegmentFile.METADATA in objects:
        return True
    key = rsm.parse_key(stored.key)
    assert key is not None  # `find_orphans` has listed it by its key
    if key.base_offset < view.raised_log_start or view.covers(key.base_offset):
        return True
    log.warning(
        "log_without_metadata_kept", **view.tip.logged, key=stored.key, base_offset=key.base_offset
    )
    return False


async def offsets_held(rsm: RemoteStorageManager, objects: Objects) -> tuple[int, int] | None:
    """First and last offset that its log may hold, by its key and its index; None: it has no log.
    Without a whole index the first one alone is known. Raises RemoteStorageError.
    """
    stored = objects.get(SegmentFile.LOG)
    key = None if stored is None else rsm.parse_key(stored.key)
    if stored is None or key is None:
        return None
    last = key.base_offset
    if SegmentFile.INDEX in objects:
        try:
            raw, log_bytes = await rsm.get_listed_index(objects)
            index = RemoteLogIndex.parse(raw)
            if index.size_bytes == log_bytes:
                last = max(last, index.last_offset)
        except SegmentLocked:
            raise  # a process that has the key can read it
        except (CorruptSegment, ObjectNotFound):
            pass  # it says nothing of the log
    return key.base_offset, last


async def _is_orphan(
    rsm: RemoteStorageManager,
    view: PartitionView,
    segments: Iterable[RemoteLogSegmentMetadata],
    objects: Objects,
) -> bool:
    """A finished segment is none, whatever the metadata manager says: a metadata topic that was
    lost, or is another cluster's, names nothing at all, and an archive is rebuilt from `.metadata`
    objects. Where that is all there is of it, and others have its offsets, the copy was deleted.
    """
    stored = objects.get(SegmentFile.METADATA)
    if stored is None:
        return True
    try:
        metadata = decode_segment(await rsm.get_segment_metadata(stored.key), stored.key)
    except (ObjectNotFound, CorruptSegment):
        return False  # being deleted: the next look tells; or `verify` does
    if not metadata.is_finished:
        return True
    if len(objects) == 1 and held_by_others(metadata, segments, view) is not None:
        return True
    log.warning("finished_segment_not_in_metadata", **metadata.logged)
    return False


async def delete_orphans(
    rsm: RemoteStorageManager, tip: TopicIdPartition, orphans: Collection[Objects]
) -> None:
    """May be repeated. Raises RemoteStorageError."""
    for objects in orphans:
        for file, stored in objects.items():
            await rsm.delete_segment_object(stored)
            ORPHAN_OBJECTS_DELETED.labels(tip.topic).inc()
            log.info(
                "orphan_object_deleted",
                **tip.logged,
                key=stored.key,
                size_bytes=stored.size_bytes,
                kind=file.value,
            )
