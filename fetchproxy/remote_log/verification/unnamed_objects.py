"""Objects that no metadata name: is it a segment that lost its metadata, or only what was left?

A crash between two steps, or an upload that arrived although its answer was lost, leaves objects
that nobody needs. A whole segment whose offsets no other has is a loss, unless it was deleted.
"""

from __future__ import annotations

from collections.abc import Iterable

from fetchproxy.errors import CorruptSegment, ObjectNotFound
from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.remote_log.retention.orphans import Objects, find_orphans
from fetchproxy.remote_log.verification.verify_report import Fault, Orphan
from fetchproxy.storage.layout import SegmentFile
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

_ALL_BUT_METADATA = {SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS}


async def look_at_unnamed(
    rsm: RemoteStorageManager,
    rlmm: RemoteLogMetadataManager,
    tip: TopicIdPartition,
    finished: Iterable[RemoteLogSegmentMetadata],
) -> tuple[list[Fault], list[Orphan], list[tuple[int, int]]]:
    """Faults name the metadata object that should be there; the last are the offsets of these
    segments. Raises RemoteStorageError."""
    faults: list[Fault] = []
    offsets: list[tuple[int, int]] = []
    orphans: list[Orphan] = []
    segments = list(finished)
    for objects in (await find_orphans(rsm, rlmm, tip)).values():
        view = rlmm.view(tip)
        lost = await _lost_segment(rsm, objects)
        is_deleted = lost is not None and view is not None and lost[1] < view.raised_log_start
        if lost is None or is_deleted or _is_held(lost, segments):
            orphans += [
                Orphan(tip.topic, tip.partition, o.key, o.size_bytes) for o in objects.values()
            ]
        else:
            stem = objects[SegmentFile.LOG].key.removesuffix(SegmentFile.LOG)
            what = f"object is missing; the log beside it has offsets {lost[0]} to {lost[1]}"
            key = f"{stem}{SegmentFile.METADATA}"
            faults.append(Fault(tip.topic, tip.partition, key, None, lost[0], what))
            offsets.append(lost)
    return faults, orphans, offsets


async def _lost_segment(rsm: RemoteStorageManager, objects: Objects) -> tuple[int, int] | None:
    """First and last offset of a segment that lacks its metadata alone; None: it is none."""
    if not objects.keys() >= _ALL_BUT_METADATA:
        return None
    try:
        log_bytes = objects[SegmentFile.LOG].size_bytes
        raw = await rsm.get_listed_index(objects[SegmentFile.INDEX], log_bytes)
        index = RemoteLogIndex.parse(raw)
    except (CorruptSegment, ObjectNotFound):
        return None
    parsed = rsm.parse_key(objects[SegmentFile.LOG].key)
    if parsed is None or index.size_bytes != objects[SegmentFile.LOG].size_bytes:
        return None
    return parsed.base_offset, index.last_offset


def _is_held(offsets: tuple[int, int], segments: Iterable[RemoteLogSegmentMetadata]) -> bool:
    """Whether each of `offsets`, both inclusive, is in one of `segments`, by start offset."""
    wanted, last = offsets
    for segment in segments:
        if segment.start_offset <= wanted:
            wanted = max(wanted, segment.end_offset + 1)
    return wanted > last
