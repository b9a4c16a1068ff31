"""RemoteStorageManager: the KIP's verbs over any `ObjectStore`.

Moves the objects of segments and lists them. Knows neither what a record batch nor what a metadata
record looks like, and keeps no state of the archive: which segments count is the metadata
manager's matter.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

from fetchproxy.errors import ObjectNotFound, RemoteStorageError
from fetchproxy.model import (
    ByteRange,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.storage.api import Content, ObjectStore, StoredObject
from fetchproxy.storage.layout import (
    LAYOUT_OBJECT,
    LAYOUT_VERSION,
    SegmentFile,
    SegmentKey,
    key_after_base_offset,
    layout_text,
    log_start_key,
    normal_prefix,
    parse_layout_text,
    parse_log_start_key,
    parse_partition_folder,
    parse_segment_key,
    parse_topic_folder,
    partition_deletion_key,
    partition_folder,
    segment_key,
    topic_cluster_key,
    topic_folder,
)
from fetchproxy.storage.measured import measured
from fetchproxy.storage.unfinished_uploads import UnfinishedUploads

_METADATA_SUFFIX = f".{SegmentFile.METADATA.value}"
# Objects of a listing between two breaths of the event loop: below 1 ms.
LISTED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class LogStartObject:
    """Everything below `offset` was deleted (DeleteRecords)."""

    offset: int
    key: str


@dataclass(frozen=True, slots=True)
class SegmentMetadataObject:
    segment_id: RemoteLogSegmentId
    base_offset: int
    stored: StoredObject


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """What a copy uploads. `txn` is None where no transaction was aborted.

    `offset_index`, `time_index`, `producer_snapshot`: a broker's own files, None where they are
    not at hand. `log_settled`: `log` will not be written to, see `ObjectStore.put_file`.
    """

    log: Path
    index: bytes
    txn: bytes | None
    epochs: bytes
    offset_index: bytes | None = None
    time_index: bytes | None = None
    producer_snapshot: bytes | None = None
    log_settled: bool = False

    def small_objects(self) -> list[tuple[SegmentFile, bytes]]:
        """Everything but the log, as far as there is any."""
        every = (
            (SegmentFile.INDEX, self.index),
            (SegmentFile.TXN, self.txn),
            (SegmentFile.EPOCHS, self.epochs),
            (SegmentFile.OFFSET_INDEX, self.offset_index),
            (SegmentFile.TIME_INDEX, self.time_index),
            (SegmentFile.PRODUCER_SNAPSHOT, self.producer_snapshot),
        )
        return [(file, content) for file, content in every if content is not None]


class RemoteStorageManager:
    """Raises RemoteStorageError and subclasses. `async with` opens and closes the store.

    Before the first listing the archive's layout version is checked: an archive of a later layout
    raises RemoteStorageError, since to this program it would look empty.
    """

    def __init__(self, store: ObjectStore, prefix: str = "") -> None:
        self._store = store
        self._prefix = normal_prefix(prefix)
        self._layout_known = False

    async def __aenter__(self) -> Self:
        if isinstance(self._store, AbstractAsyncContextManager):
            await self._store.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def object_key(self, metadata: RemoteLogSegmentMetadata, file: SegmentFile) -> str:
        return segment_key(self._prefix, metadata.segment_id, metadata.start_offset, file)

    @measured
    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> None:
        """Upload everything but the metadata; the log last, as it is the longest.

        Raises ValueError if data and metadata disagree about aborted transactions.
        """
        if metadata.has_aborted_txns != (data.txn is not None):
            raise ValueError("has_aborted_txns and the transaction index disagree")
        await self._mark_layout()
        for file, content in data.small_objects():
            await self._store.put(self.object_key(metadata, file), content)
        key = self.object_key(metadata, SegmentFile.LOG)
        await self._store.put_file(key, data.log, settled=data.log_settled)

    @measured
    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, byte_range: ByteRange
    ) -> Content:
        """Fewer bytes where the log ends inside the range; RangeNotSatisfiable past its end."""
        return await self._store.get_range(self.object_key(metadata, SegmentFile.LOG), byte_range)

    @measured
    async def fetch_index(self, metadata: RemoteLogSegmentMetadata, file: SegmentFile) -> bytes:
        """Any but LOG and METADATA, whole. TXN is empty, unread, without aborted transactions.

        `layout.KAFKA_FILES` raise ObjectNotFound for segments that were copied without them.
        """
        if file in (SegmentFile.LOG, SegmentFile.METADATA):
            raise ValueError(f"{file.value} is no index")
        if file is SegmentFile.TXN and not metadata.has_aborted_txns:
            return b""
        return await self._store.get(self.object_key(metadata, file))

    @measured
    async def put_index(
        self, metadata: RemoteLogSegmentMetadata, file: SegmentFile, content: bytes
    ) -> None:
        """Create or replace INDEX, TXN or EPOCHS, atomically: what can be derived from the log."""
        if file not in (SegmentFile.INDEX, SegmentFile.TXN, SegmentFile.EPOCHS):
            raise ValueError(f"{file.value} is not derived")
        await self._store.put(self.object_key(metadata, file), content)

    @measured
    async def delete_txn_index(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Of a segment in which no transaction was aborted. Absent is no error."""
        await self._store.delete(self.object_key(metadata, SegmentFile.TXN))

    def parse_key(self, key: str) -> SegmentKey | None:
        """Which object of which segment it is; None: it is none of this archive."""
        return parse_segment_key(self._prefix, key)

    @measured
    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Absent objects are no error, so it can be repeated after a failure.

        The metadata goes last: until then the segment can be found to finish the deletion.
        """
        for file in SegmentFile:
            if file is not SegmentFile.METADATA:
                await self._store.delete(self.object_key(metadata, file))
        await self._store.delete(self.object_key(metadata, SegmentFile.METADATA))

    @measured
    async def put_segment_metadata(
        self, metadata: RemoteLogSegmentMetadata, content: bytes
    ) -> None:
        """Create or replace the metadata object, atomically."""
        await self._mark_layout()
        await self._store.put(self.object_key(metadata, SegmentFile.METADATA), content)

    @measured
    async def get_segment_metadata(self, key: str) -> bytes:
        """`key` is one of `list_segment_metadata`. ObjectNotFound: deleted since."""
        return await self._store.get(key)

    async def list_segment_metadata(
        self, tip: TopicIdPartition, start_after_base_offset: int | None = None
    ) -> AsyncIterator[tuple[RemoteLogSegmentId, int, StoredObject]]:
        """(id, base offset, object) of each metadata object, by base offset."""
        start_after = ""
        if start_after_base_offset is not None:
            start_after = key_after_base_offset(self._prefix, tip, start_after_base_offset)
        async for found in self.list_partition(tip, start_after):
            if isinstance(found, SegmentMetadataObject):
                yield found.segment_id, found.base_offset, found.stored

    async def list_partition(
        self, tip: TopicIdPartition, start_after: str = ""
    ) -> AsyncIterator[SegmentMetadataObject | LogStartObject]:
        """What says how the partition stands, by offset, in one listing."""
        await self._check_layout()
        async for found in self._listed(partition_folder(self._prefix, tip), start_after):
            # Of four or more objects a segment one is of interest: the others are not parsed.
            if found.key.endswith(_METADATA_SUFFIX):
                parsed = parse_segment_key(self._prefix, found.key)
                if parsed is not None:
                    yield SegmentMetadataObject(parsed.segment_id, parsed.base_offset, found)
            elif (offset := parse_log_start_key(self._prefix, found.key)) is not None:
                yield LogStartObject(offset, found.key)

    @measured
    async def put_log_start_offset(
        self, tip: TopicIdPartition, offset: int, content: bytes
    ) -> None:
        """`content` is for people: the key alone counts. Lower ones are left as they are."""
        await self._mark_layout()
        await self._store.put(log_start_key(self._prefix, tip, offset), content)

    def log_start_object(self, tip: TopicIdPartition, offset: int) -> LogStartObject:
        return LogStartObject(offset, log_start_key(self._prefix, tip, offset))

    @measured
    async def delete_log_start_offset(self, lower: LogStartObject) -> None:
        """One that a higher one has made meaningless. Absent is no error."""
        await self._store.delete(lower.key)

    @measured
    async def put_partition_deletion(self, tip: TopicIdPartition, content: bytes) -> None:
        """Create or replace what says how far the partition's deletion is, atomically."""
        await self._mark_layout()
        await self._store.put(partition_deletion_key(self._prefix, tip), content)

    @measured
    async def get_partition_deletion(self, tip: TopicIdPartition) -> bytes | None:
        """None: nobody deletes the partition."""
        await self._check_layout()
        try:
            return await self._store.get(partition_deletion_key(self._prefix, tip))
        except ObjectNotFound:
            return None

    @measured
    async def forget_partition(self, tip: TopicIdPartition) -> None:
        """Remove what is left of a partition without segments; may be repeated after a failure.

        What says that it is being deleted goes last.
        """
        async for found in self.list_partition(tip):
            if isinstance(found, LogStartObject):
                await self._store.delete(found.key)
        await self._store.delete(partition_deletion_key(self._prefix, tip))

    async def list_segment_objects(
        self, tip: TopicIdPartition
    ) -> AsyncIterator[tuple[SegmentKey, StoredObject]]:
        """Every object of a segment that lies in the partition's folder, whether or not metadata
        name it; those of one segment follow each other."""
        await self._check_layout()
        async for found in self._listed(partition_folder(self._prefix, tip)):
            parsed = parse_segment_key(self._prefix, found.key)
            if parsed is not None:
                yield parsed, found

    async def _listed(self, folder: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        """A few at a time: stores give thousands at once, and each key is parsed."""
        number = 0
        async for found in self._store.list(folder, start_after):
            yield found
            number += 1
            if not number % LISTED_AT_ONCE:
                await asyncio.sleep(0)

    @measured
    async def get_segment_object(self, stored: StoredObject) -> bytes:
        """One of `list_segment_objects`, whole: not for a log. ObjectNotFound: deleted since."""
        return await self._store.get(stored.key)

    @measured
    async def delete_segment_object(self, stored: StoredObject) -> None:
        """One of `list_segment_objects` that nothing refers to. Absent is no error."""
        await self._store.delete(stored.key)

    @measured
    async def put_topic_cluster(self, topic: str, topic_id: UUID, cluster_id: str) -> None:
        """The cluster in which the topic is alive."""
        await self._mark_layout()
        await self._store.put(
            topic_cluster_key(self._prefix, topic, topic_id), cluster_id.encode() + b"\n"
        )

    @measured
    async def get_topic_cluster(self, topic: str, topic_id: UUID) -> str | None:
        """None: no archiver has seen the topic alive, or it is forgotten."""
        try:
            content = await self._store.get(topic_cluster_key(self._prefix, topic, topic_id))
        except ObjectNotFound:
            return None
        return content.decode(errors="replace").strip()

    @measured
    async def forget_topic(self, topic: str, topic_id: UUID) -> None:
        """Remove what is left of a topic without partitions; may be repeated."""
        await self._store.delete(topic_cluster_key(self._prefix, topic, topic_id))

    @measured
    async def list_partitions(self) -> list[TopicIdPartition]:
        """Every partition that has an object in the store, sorted."""
        return await self._partitions(None)

    @measured
    async def list_topic(self, topic_id: UUID) -> list[TopicIdPartition]:
        """As `list_partitions`, of one topic."""
        return await self._partitions(topic_id)

    async def abort_stale_uploads(self, older_than_epoch_ms: int) -> int:
        """Remove what killed uploads left in the store; see `UnfinishedUploads`."""
        if not isinstance(self._store, UnfinishedUploads):
            return 0
        return await self._store.abort_stale_uploads(self._prefix, older_than_epoch_ms)

    async def close(self) -> None:
        """Idempotent."""
        await self._store.close()

    async def _partitions(self, topic_id: UUID | None) -> list[TopicIdPartition]:
        await self._check_layout()
        found: list[TopicIdPartition] = []
        async for name in self._store.list_folders(self._prefix):
            topic = parse_topic_folder(name)
            if topic is None or (topic_id is not None and topic[1] != topic_id):
                continue
            folder = topic_folder(self._prefix, *topic)
            async for partition in self._store.list_folders(folder):
                tip = parse_partition_folder(self._prefix, f"{folder}{partition}/")
                if tip is not None:
                    found.append(tip)
        return sorted(found)

    async def _check_layout(self) -> bool:
        """Does the archive state its layout? Raises RemoteStorageError if it is not this one."""
        self._layout_known = self._layout_known or await states_layout(self._store, self._prefix)
        return self._layout_known

    async def _mark_layout(self) -> None:
        if not await self._check_layout():
            await self._store.put(self._prefix + LAYOUT_OBJECT, layout_text())
            self._layout_known = True


async def states_layout(store: ObjectStore, prefix: str) -> bool:
    """Whether the archive below `prefix` says that it is of this layout; False: it says nothing.

    Raises RemoteStorageError if it is of another.
    """
    try:
        content = await store.get(prefix + LAYOUT_OBJECT)
    except ObjectNotFound:
        return False  # nothing has been archived yet
    version = parse_layout_text(content)
    if version != LAYOUT_VERSION:
        named = "unknown" if version is None else f"version {version}"
        raise RemoteStorageError(
            f"the archive's layout is {named}; this program knows version {LAYOUT_VERSION}"
        )
    return True
