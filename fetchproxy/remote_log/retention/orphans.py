"""Objects in the store that no metadata name: found by listing, deleted once they are old.

They come from crashes between two steps, and from uploads that arrived although their answer was
lost. How long one lies there is measured by this process's own clock from when it was first seen:
stores' clocks differ, and not all tell. So a restart begins anew, and nothing is deleted early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from fetchproxy.errors import CorruptSegment, ObjectNotFound
from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.segment_json import decode_segment
from fetchproxy.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.observability.metrics import ORPHAN_OBJECTS_DELETED
from fetchproxy.remote_log.retention.spare_copies import held_by_others
from fetchproxy.storage.api import StoredObject
from fetchproxy.storage.layout import SegmentFile
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)

Objects = dict[SegmentFile, StoredObject]


@dataclass(slots=True)
class OrphanWatch:
    """Which segments' objects were seen without metadata, and since when (loop seconds). Pure."""

    _seen: dict[UUID, tuple[frozenset[tuple[str, str]], float]] = field(default_factory=dict)

    def old_enough(
        self, found: Mapping[UUID, Objects], now_s: float, age_min_s: float
    ) -> list[UUID]:
        """Of `found`, all orphans there are now, those that were all the same for so long."""
        seen: dict[UUID, tuple[frozenset[tuple[str, str]], float]] = {}
        for segment_id, objects in found.items():
            what = frozenset((o.key, o.version) for o in objects.values())
            before = self._seen.get(segment_id)
            seen[segment_id] = before if before and before[0] == what else (what, now_s)
        self._seen = seen
        return [s for s, (_, since) in seen.items() if now_s - since >= age_min_s]


async def find_orphans(
    rsm: RemoteStorageManager, rlmm: RemoteLogMetadataManager, tip: TopicIdPartition
) -> dict[UUID, Objects]:
    """By segment id. Raises RemoteStorageError.

    The store is listed first and the metadata read after it: a copy that begins meanwhile is not
    listed, and one that is listed has its metadata.
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
    """A log without metadata may be one whose metadata were lost: then nothing else has its place.

    It is kept for `verify --repair`, until its first offset is archived elsewhere, or deleted.
    Whether that elsewhere is there, and has the rest of it, is asked before it goes
    (`offsets_held`).
    """
    stored = objects.get(SegmentFile.LOG)
    if stored is None or SegmentFile.METADATA in objects:
        return True
    key = rsm.parse_key(stored.key)
    assert key is not None  # `find_orphans` has listed it by its key
    if key.base_offset < view.raised_log_start or view.covers(key.base_offset):
        return True
    log.warning(
        "log_without_metadata_kept",
        topic=view.tip.topic,
        partition=view.tip.partition,
        key=stored.key,
        base_offset=key.base_offset,
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
            raw = await rsm.get_listed_index(objects[SegmentFile.INDEX], stored.size_bytes)
            index = RemoteLogIndex.parse(raw)
            if index.size_bytes == stored.size_bytes:
                last = max(last, index.last_offset)
        except (CorruptSegment, ObjectNotFound):
            pass  # it says nothing of the log
    return key.base_offset, last


async def _is_orphan(
    rsm: RemoteStorageManager,
    view: PartitionView,
    segments: Iterable[RemoteLogSegmentMetadata],
    objects: Objects,
) -> bool:
    """A finished segment is none, whatever the metadata manager says: it may be wrong.

    A metadata topic that was lost, or is another cluster's, names nothing at all; the `.metadata`
    object beside a segment still says what it is, and an archive is rebuilt from those. Where that
    object is all there is of it, and others have its offsets, it was said of a copy that had been
    deleted.
    """
    stored = objects.get(SegmentFile.METADATA)
    if stored is None:
        return True
    try:
        metadata = decode_segment(await rsm.get_segment_metadata(stored.key), stored.key)
    except ObjectNotFound:
        return False  # being deleted: the next look tells
    except CorruptSegment:
        return False  # `verify` reports it
    if metadata.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
        if len(objects) == 1 and held_by_others(metadata, segments, view) is not None:
            return True
        log.warning(
            "finished_segment_not_in_metadata",
            topic=view.tip.topic,
            partition=view.tip.partition,
            segment_id=str(metadata.segment_id.id),
            base_offset=metadata.start_offset,
        )
        return False
    return True


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
                topic=tip.topic,
                partition=tip.partition,
                key=stored.key,
                size_bytes=stored.size_bytes,
                kind=file.value,
            )
