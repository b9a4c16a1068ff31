"""RemoteStorageManager: the KIP's verbs over any `ObjectStore`.

It moves and lists the objects of segments. It parses no record batches and no metadata records, and
keeps no state of the archive: the metadata manager knows which segments count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Self, TypeVar
from uuid import UUID

from fetchproxy.config.schema import StoreConfig
from fetchproxy.config.values import KeyRingPlace, parse_key_rings
from fetchproxy.errors import DamagedObject, ObjectNotFound
from fetchproxy.model import (
    AnySegment,
    ByteRange,
    RemoteLogSegmentMetadata,
    SegmentRef,
    TopicIdPartition,
)
from fetchproxy.segments import object_keys as keys
from fetchproxy.segments.object_keys import SegmentFile, SegmentKey
from fetchproxy.storage.archive_identity import OwnIdentity
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.key_rings import FileKeyRing, KeyRing, KeyRings
from fetchproxy.storage.listings import (
    LogHistoryObject,
    LogStartObject,
    Standing,
    Unlisted,
    listed_partitions,
    standing,
    take_topic_objects,
)
from fetchproxy.storage.packed_logs import (
    AS_THEY_ARE,
    AtRest,
    LogSegmentData,
    PackedLogs,
    not_emptied,
)
from fetchproxy.storage.store_health import measured
from fetchproxy.storage.stores.object_store import (
    SMALL_OBJECT_BYTES_MAX,
    Content,
    ObjectStore,
    StoredObject,
    segment_file_bytes_max,
)
from fetchproxy.storage.stores.registry import open_object_store
from fetchproxy.storage.watched_store import WatchedObjectStore

T = TypeVar("T")

LISTED_AT_ONCE = 100  # objects between two pauses for the event loop: below 1 ms


class RemoteStorageManager:
    """Raises RemoteStorageError and subclasses. `async with` opens and closes the store.

    Each put creates or replaces atomically. Deleting an absent object is not an error.

    It checks the archive's identity before the first listing: an archive with a later layout or
    another metadata manager would look empty. `manager`, `must_exist`: see `OwnIdentity`.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str = "",
        *,
        manager: str | None = None,
        must_exist: bool = False,
        at_rest: AtRest = AS_THEY_ARE,
    ) -> None:
        self._prefix = keys.normal_prefix(prefix)
        self._store = watched = WatchedObjectStore(store, self._prefix + keys.LAYOUT_OBJECT)
        self.health = watched.health
        self.identity = OwnIdentity(watched, self._prefix, manager, must_exist=must_exist)
        self.objects = ArchiveObjects(watched, self._prefix)
        self.packed = PackedLogs(watched, self.object_key, at_rest)

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def store(self) -> ObjectStore:
        """The objects as they are stored, with this manager's retries and health."""
        return self._store

    def object_key(self, segment: AnySegment, file: SegmentFile) -> str:
        return keys.segment_key(self._prefix, segment.segment_id, segment.start_offset, file)

    def name_fault(self, topic: str, topic_id: UUID) -> str | None:
        """Why the store cannot hold the topic, as a sentence. None: it can. Never blocks."""
        folder = keys.topic_folder("", topic, topic_id).rstrip("/")
        limit = self._store.part_bytes_max
        if len(folder) <= limit:
            return None
        return (
            f"its name has {len(topic)} characters, and in this store it can have "
            f"{len(topic) - len(folder) + limit}, as a folder's name can have {limit} bytes"
        )

    @measured
    async def copy_log_segment_data(
        self, segment: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> None:
        """Store all but the metadata; the log last, as it is the largest. Raises ValueError if data
        and metadata disagree.
        """
        if segment.has_aborted_txns != (data.txn is not None):
            raise ValueError("has_aborted_txns and the transaction index disagree")
        if data.log_stream_key is not None and not segment.packed:
            raise ValueError("an encrypted file cannot be the log object itself")
        await self.identity.check_to_put()
        if segment.packed:
            await self.packed.put(segment, data)
            return
        for file, content in data.small_objects():
            await self._store.put(self.object_key(segment, file), content)
        key = self.object_key(segment, SegmentFile.LOG)
        await self._store.put_file(key, data.log, settled=data.log_settled)

    @measured
    async def fetch_log_segment(self, segment: AnySegment, byte_range: ByteRange) -> Content:
        """Fewer bytes if the log ends inside the range. Raises RangeNotSatisfiable past its end.

        Raises DamagedObject if a block of a packed log has changed; MetadataChanged if `segment`
        differs from the metadata it was encrypted with.
        """
        with self.health.reading(segment):
            if segment.packed:
                return await self.packed.read(segment, byte_range)
            self.packed.check_may_be_plain(segment)
            key = self.object_key(segment, SegmentFile.LOG)
            return await self._store.get_range(key, byte_range)

    @measured
    async def fetch_index(self, segment: AnySegment, file: SegmentFile) -> bytes:
        """A whole file other than LOG and METADATA. Without aborted transactions TXN is empty, and
        not read.

        Raises DamagedObject if the file is too large for the segment's size, fails to decrypt, or
        is a TXN without a byte although there are aborted transactions; ObjectNotFound for
        `object_keys.KAFKA_FILES` if the segment was copied without them.
        """
        if file in (SegmentFile.LOG, SegmentFile.METADATA):
            raise ValueError(f"{file.value} is not an index")
        if file is SegmentFile.TXN and not segment.has_aborted_txns:
            return b""
        key = self.object_key(segment, file)
        size_max = segment_file_bytes_max(file, key, segment.segment_size_bytes)
        with self.health.reading(segment, file):
            if not segment.packed:
                self.packed.check_may_be_plain(segment)
            elif file is not SegmentFile.PACKING:
                return await self.packed.read_file(segment, file, size_max)
            return not_emptied(key, file, await self._store.get(key, size_max))

    @measured
    async def put_index(self, segment: AnySegment, file: SegmentFile, content: bytes) -> None:
        """`file`: INDEX, TXN or EPOCHS, which can be derived from the log."""
        if file not in (SegmentFile.INDEX, SegmentFile.TXN, SegmentFile.EPOCHS):
            raise ValueError(f"{file.value} is not derived")
        if segment.packed:
            return await self.packed.put_file(segment, file, content)
        await self._store.put(self.object_key(segment, file), content)

    @measured
    async def delete_txn_index(self, segment: AnySegment) -> None:
        await self._store.delete(self.object_key(segment, SegmentFile.TXN))

    def parse_key(self, key: str) -> SegmentKey | None:
        """The segment and file that the key names; None: no segment of this archive."""
        return keys.parse_segment_key(self._prefix, key)

    @measured
    async def delete_log_segment_data(self, segment: AnySegment) -> None:
        """Absent objects are not an error, so the caller can repeat it after a failure.

        The metadata is deleted last, so that a repeated deletion still finds the segment.
        """
        kept_for_last = {SegmentFile.METADATA, *([] if segment.packed else [SegmentFile.PACKING])}
        for file in SegmentFile:
            if file not in kept_for_last:
                await self._store.delete(self.object_key(segment, file))
        await self._store.delete(self.object_key(segment, SegmentFile.METADATA))
        # No later read of it will clear the conditions.
        self.health.changed(segment, None)
        self.health.forget(segment)

    @measured
    async def put_segment_metadata(self, segment: AnySegment, content: bytes) -> None:
        await self.identity.check_to_put()
        await self._store.put(self.object_key(segment, SegmentFile.METADATA), content)

    @measured
    async def get_segment_metadata(self, key: str) -> bytes:
        """`key`: from `list_partition`. Raises ObjectNotFound if deleted since; DamagedObject."""
        return await self._store.get(key, SMALL_OBJECT_BYTES_MAX)

    async def list_partition(self, tp: TopicIdPartition) -> AsyncIterator[Standing]:
        """The objects that describe the partition's state, by offset, in one listing."""
        await self.identity.check()
        async for found in self._listed(keys.partition_folder(self._prefix, tp)):
            objects = standing(self._prefix, found)
            if objects is not None:
                yield objects

    @measured
    async def put_log_start_offset(
        self, tp: TopicIdPartition, offset: int, content: bytes, after_epoch: int = -1
    ) -> None:
        """Only the key counts; `content` is for people. Lower log start offsets stay stored."""
        await self.identity.check_to_put()
        await self._store.put(keys.log_start_key(self._prefix, tp, offset, after_epoch), content)

    @measured
    async def put_partition_note(self, tp: TopicIdPartition, content: bytes) -> None:
        """Store an operator's decision about a log that began again."""
        await self._store.put(keys.log_history_key(self._prefix, tp), content)

    @measured
    async def delete_log_start_offset(self, tp: TopicIdPartition, lower: LogStartObject) -> None:
        """Delete a log start offset that a higher one has replaced."""
        await self._store.delete(
            keys.log_start_key(self._prefix, tp, lower.offset, lower.after_epoch)
        )

    @measured
    async def put_partition_deletion(self, tp: TopicIdPartition, content: bytes) -> None:
        """Store the progress of the partition's deletion."""
        await self.identity.check_to_put()
        await self._store.put(keys.partition_deletion_key(self._prefix, tp), content)

    @measured
    async def get_partition_deletion(self, tp: TopicIdPartition) -> bytes | None:
        await self.identity.check()
        try:
            key = keys.partition_deletion_key(self._prefix, tp)
            return await self._store.get(key, SMALL_OBJECT_BYTES_MAX)
        except ObjectNotFound:
            return None

    @measured
    async def forget_partition(self, tp: TopicIdPartition) -> None:
        """For a partition without segments; may be repeated after a failure. The object that marks
        the deletion goes last.
        """
        async for found in self.list_partition(tp):
            if isinstance(found, LogStartObject):
                await self.delete_log_start_offset(tp, found)
            elif isinstance(found, LogHistoryObject):
                await self._store.delete(found.stored.key)
        await self.objects.forget_records(tp)
        await self.objects.delete_retention_step(tp)
        await self.objects.forget_published_conditions(tp)
        await self._store.delete(keys.partition_deletion_key(self._prefix, tp))

    async def list_segment_objects(
        self, tp: TopicIdPartition
    ) -> AsyncIterator[tuple[SegmentKey, StoredObject]]:
        """All objects of segments, even without metadata; a segment's objects are adjacent."""
        await self.identity.check()
        async for found in self._listed(keys.partition_folder(self._prefix, tp)):
            parsed = keys.parse_segment_key(self._prefix, found.key)
            if parsed is not None:
                yield parsed, found

    async def _listed(self, folder: str) -> AsyncIterator[StoredObject]:
        """Pauses for the event loop: stores give thousands at once, and each key is parsed."""
        number = 0
        async for found in self._store.list(folder):
            yield found
            number += 1
            if not number % LISTED_AT_ONCE:
                await asyncio.sleep(0)
        if not number:
            await self.identity.check_still_there()

    async def _or_missing(self, found: list[T]) -> list[T]:
        """`found`. If it is empty, this checks that the archive still exists."""
        if not found:
            await self.identity.check_still_there()
        return found

    @measured
    async def get_listed_index(
        self, objects: Mapping[SegmentFile, StoredObject]
    ) -> tuple[bytes, int]:
        """The content of the segment's INDEX, and its log's size in bytes. `objects`: as listed.

        Raises ObjectNotFound if deleted since; DamagedObject.
        """
        log = objects[SegmentFile.LOG]
        key = self.parse_key(log.key)
        if key is None:
            raise ValueError(f"{log.key} is not an object of a segment")
        listed = key.ref(
            log.size_bytes,
            has_aborted_txns=SegmentFile.TXN in objects,
            packed=SegmentFile.PACKING in objects,
        )
        raw = await self.fetch_index(listed, SegmentFile.INDEX)
        if not listed.packed:
            return raw, listed.segment_size_bytes
        packing = (await self.packed.opened(listed)).packing
        if packing.stored_bytes != listed.segment_size_bytes:
            raise DamagedObject(f"{log.key} has {log.size_bytes} bytes, not {packing.stored_bytes}")
        return raw, packing.log_bytes

    async def list_packed(self, tp: TopicIdPartition) -> AsyncIterator[SegmentRef]:
        """Each segment that has a `.packing`, even without metadata."""
        async for key, _ in self.list_segment_objects(tp):
            if key.file is SegmentFile.PACKING:
                yield key.ref(0, has_aborted_txns=False, packed=True)

    @measured
    async def delete_segment_object(self, stored: StoredObject) -> None:
        """`stored`: from `list_segment_objects`, and no metadata may refer to it."""
        await self._store.delete(stored.key)

    @measured
    async def list_partitions(
        self, it_came: Callable[[], None] = lambda: None, unlisted: Unlisted | None = None
    ) -> list[TopicIdPartition]:
        """Every partition that has an object in the store, sorted. This may take long: `it_came` is
        called after each response of the store. `unlisted`: see `listed_partitions`.
        """
        await self.identity.check()
        return await self._or_missing(
            await listed_partitions(self._store, self._prefix, None, it_came, unlisted)
        )

    @measured
    async def list_topic(self, topic_id: UUID) -> list[TopicIdPartition]:
        await self.identity.check()
        return await self._or_missing(
            await listed_partitions(self._store, self._prefix, topic_id, lambda: None)
        )

    @measured
    async def list_topics(self) -> list[tuple[str, UUID]]:
        """Every topic that has an object in the store; lists only the top level, once."""
        await self.identity.check()
        folders = [name async for name in self._store.list_folders(self._prefix)]
        return await self._or_missing(
            [topic for name in folders if (topic := keys.parse_topic_folder(name)) is not None]
        )

    async def take_topic_objects(
        self, topic: str, topic_id: UUID, take: Callable[[TopicIdPartition, Standing], None]
    ) -> None:
        """As `list_partition`, for all partitions of a topic: `take` is called with each object."""
        await self.identity.check()
        if not await take_topic_objects(self._store, self._prefix, topic, topic_id, take):
            await self.identity.check_still_there()

    async def abort_stale_uploads(self, older_than_epoch_ms: int) -> int:
        """See `ObjectStore`. Only logs are large enough for an upload in parts."""
        return await self._store.abort_stale_uploads(
            self._prefix, older_than_epoch_ms, lambda key: self.parse_key(key) is not None
        )

    async def close(self) -> None:
        """Idempotent."""
        await self.packed.close()
        await self._store.close()


def open_store(url: str, config: StoreConfig, *, create: bool = False) -> RemoteStorageManager:
    """A manager for the archive at `url`, not opened yet. Raises ConfigError.

    A mistyped place is an error, not an empty archive. `create`: the call that makes the archive
    (`OwnIdentity.state`) also makes the folder of a `file:` or HDFS store.
    """
    store, prefix = open_object_store(url, config, create=create)
    return RemoteStorageManager(store, prefix, must_exist=True, at_rest=at_rest_of(config))


def at_rest_of(config: StoreConfig) -> AtRest:
    """Raises ConfigError."""
    compress = config.compression == "zstd"
    if config.encryption_keys is None:
        return AtRest(compress)
    places = parse_key_rings(config.encryption_keys)
    rings = [_opened_ring(place) for place in places]
    ring = rings[0] if len(rings) == 1 else KeyRings(rings)
    return AtRest(compress, ring, any(place.required for place in places))


def _opened_ring(place: KeyRingPlace) -> KeyRing:
    if place.path is not None:
        return FileKeyRing(place.path)
    # Imported late: the KMS client takes 30 MiB.
    from fetchproxy.storage.kms_keys import KmsKeyRing

    return KmsKeyRing(place)
