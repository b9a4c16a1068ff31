"""What a listing of a partition finds beside the objects of segments, and the notes among them.

Knows names, not contents: these are `metadata.log_history_json`.
"""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.model import RemoteLogSegmentId, TopicIdPartition
from fetchproxy.storage.api import ObjectStore, StoredObject
from fetchproxy.storage.layout import (
    PartitionNote,
    SegmentFile,
    parse_log_start_key,
    parse_partition_note_key,
    parse_segment_key,
    partition_note_key,
)
from fetchproxy.storage.measured import measured

_METADATA_SUFFIX = f".{SegmentFile.METADATA.value}"
_OTHER_SUFFIXES = tuple(f".{file.value}" for file in SegmentFile)


@dataclass(frozen=True, slots=True)
class LogStartObject:
    """Everything below `offset` was deleted (DeleteRecords), of the history after that epoch."""

    offset: int
    key: str
    after_epoch: int = -1


@dataclass(frozen=True, slots=True)
class SegmentMetadataObject:
    segment_id: RemoteLogSegmentId
    base_offset: int
    stored: StoredObject


@dataclass(frozen=True, slots=True)
class PartitionNoteObject:
    note: PartitionNote
    stored: StoredObject


Standing = SegmentMetadataObject | LogStartObject | PartitionNoteObject


def standing(prefix: str, found: StoredObject) -> Standing | None:
    """What an object says of how its partition stands; None: nothing."""
    # Of four or more objects a segment one is of interest: the others are not parsed.
    if found.key.endswith(_METADATA_SUFFIX):
        parsed = parse_segment_key(prefix, found.key)
        if parsed is not None:
            return SegmentMetadataObject(parsed.segment_id, parsed.base_offset, found)
    elif found.key.endswith(_OTHER_SUFFIXES):
        return None
    elif (log_start := parse_log_start_key(prefix, found.key)) is not None:
        return LogStartObject(log_start[0], found.key, log_start[1])
    elif (note := parse_partition_note_key(prefix, found.key)) is not None:
        return PartitionNoteObject(note, found)
    return None


class PartitionNotes:
    """`prefix` is one of `layout.normal_prefix`. Raises RemoteStorageError and subclasses."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    @measured
    async def put_partition_note(
        self, tip: TopicIdPartition, note: PartitionNote, content: bytes
    ) -> None:
        """Create or replace, atomically."""
        await self._store.put(partition_note_key(self._prefix, tip, note), content)
