"""RemoteStorageManager: KIP-405's verbs for logs and indexes of segments, over any `ObjectStore`.

It parses no record batches. It has no public parts: what else the store holds are other parts of
the `RemoteStorage`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from fetchproxy.errors import DamagedObject
from fetchproxy.model import AnySegment, ByteRange, RemoteLogSegmentMetadata
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.segments import object_keys as keys
from fetchproxy.segments.object_keys import SegmentFile, SegmentKey
from fetchproxy.storage.archive_identity import AT_ONCE_S, OwnIdentity
from fetchproxy.storage.packed_logs import (
    LogSegmentData,
    PackedLogs,
    SegmentOpening,
    check_not_empty,
)
from fetchproxy.storage.store_health import measured
from fetchproxy.storage.stores.object_store import (
    SMALL_OBJECT_BYTES_MAX,
    Content,
    StoredObject,
    segment_file_bytes_max,
)
from fetchproxy.storage.watched_store import WatchedObjectStore

# Of one segment: the index, the epochs and a small log, in one round trip.
OBJECTS_AT_ONCE = 3
_Put = Callable[[], Awaitable[object]]


async def _call(put: _Put) -> None:
    await put()


class RemoteStorageManager:
    """KIP-405's verbs: copy, fetch, delete. Raises RemoteStorageError and subclasses.

    It knows segments only; `ArchiveObjects` has everything else that the store holds.
    """

    def __init__(
        self, store: WatchedObjectStore, prefix: str, identity: OwnIdentity, packed: PackedLogs
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._identity = identity
        self._packed = packed

    def object_key(self, segment: AnySegment, file: SegmentFile) -> str:
        return keys.segment_key(self._prefix, segment.segment_id, segment.start_offset, file)

    def parse_key(self, key: str) -> SegmentKey | None:
        """The segment and file that the key names; None: no segment of this archive."""
        return keys.parse_segment_key(self._prefix, key)

    @property
    def encrypts(self) -> bool:
        """See `PackedLogs`."""
        return self._packed.encrypts

    def packs(self, *, compressible: bool) -> bool:
        """See `PackedLogs`."""
        return self._packed.packs(compressible=compressible)

    @measured
    async def copy_log_segment_data(
        self, segment: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> None:
        """Store all but the metadata; the log last, as it is the largest; a small one with the
        others. Raises ValueError if data and metadata disagree.
        """
        if segment.has_aborted_txns != (data.txn is not None):
            raise ValueError("has_aborted_txns and the transaction index disagree")
        if data.log_stream_key is not None and not segment.packed:
            raise ValueError("an encrypted file cannot be the log object itself")
        await self._identity.check_to_put()
        if segment.packed:
            await self._packed.put(segment, data)
            return
        puts: list[_Put] = [
            partial(self._store.put, self.object_key(segment, file), content)
            for file, content in data.small_objects()
        ]
        key = self.object_key(segment, SegmentFile.LOG)
        put_log: _Put = partial(self._store.put_file, key, data.log, settled=data.log_settled)
        if segment.segment_size_bytes <= SMALL_OBJECT_BYTES_MAX:
            return await for_each([*puts, put_log], _call, OBJECTS_AT_ONCE)
        await for_each(puts, _call, OBJECTS_AT_ONCE)
        await put_log()

    @measured
    async def fetch_log_segment(self, segment: AnySegment, byte_range: ByteRange) -> Content:
        """Fewer bytes if the log ends inside the range. Raises RangeNotSatisfiable past its end.

        Raises DamagedObject if a block of a packed log has changed; MetadataChanged if `segment`
        differs from the metadata it was encrypted with.
        """
        with self._store.health.reading(segment):
            if segment.packed:
                return await self._packed.read(segment, byte_range)
            self._packed.check_may_be_plain(segment)
            key = self.object_key(segment, SegmentFile.LOG)
            return await self._store.get_range(key, byte_range)

    @measured
    async def fetch_index(
        self, segment: AnySegment, file: SegmentFile, bytes_max: int | None = None
    ) -> bytes:
        """A whole file other than LOG and METADATA. Without aborted transactions TXN is empty, and
        not read. `bytes_max`: what the caller has memory for, as the segment's size is what its
        metadata says; a larger file counts as damaged.

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
        size_max = size_max if bytes_max is None else min(size_max, bytes_max)
        with self._store.health.reading(segment, file):
            if not segment.packed:
                self._packed.check_may_be_plain(segment)
            elif file is not SegmentFile.PACKING:
                return await self._packed.read_file(segment, file, size_max)
            return check_not_empty(key, file, await self._store.get(key, size_max))

    @measured
    async def delete_log_segment_data(self, segment: AnySegment) -> None:
        """Absent objects are not an error, so the caller can repeat it after a failure.

        The metadata is deleted last, so that a repeated deletion still finds the segment.
        """
        await self._identity.check_owner(AT_ONCE_S)
        kept_for_last = {SegmentFile.METADATA, *([] if segment.packed else [SegmentFile.PACKING])}
        for file in SegmentFile:
            if file not in kept_for_last:
                await self._store.delete(self.object_key(segment, file))
        await self._store.delete(self.object_key(segment, SegmentFile.METADATA))
        # No later read of it will clear the conditions.
        self._store.health.changed(segment, None)
        self._store.health.forget(segment)

    @measured
    async def put_index(self, segment: AnySegment, file: SegmentFile, content: bytes) -> None:
        """`file`: INDEX, TXN or EPOCHS, which can be derived from the log."""
        if file not in (SegmentFile.INDEX, SegmentFile.TXN, SegmentFile.EPOCHS):
            raise ValueError(f"{file.value} is not derived")
        await self._identity.check_owner()
        if segment.packed:
            return await self._packed.put_file(segment, file, content)
        await self._store.put(self.object_key(segment, file), content)

    @measured
    async def delete_txn_index(self, segment: AnySegment) -> None:
        await self._identity.check_owner()
        await self._store.delete(self.object_key(segment, SegmentFile.TXN))

    @measured
    async def get_listed_index(
        self, objects: Mapping[SegmentFile, StoredObject]
    ) -> tuple[bytes, int]:
        """The content of the segment's INDEX, and its log's size in bytes. `objects`: the segment's
        objects from a listing.

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
        packing = (await self._packed.opened(listed)).packing
        if packing.stored_bytes != listed.segment_size_bytes:
            raise DamagedObject(f"{log.key} has {log.size_bytes} bytes, not {packing.stored_bytes}")
        return raw, packing.log_bytes

    def opening(self, segment: AnySegment) -> SegmentOpening:
        """What has to be done before `fetch_log_segment` of a packed segment reads its bytes."""
        return self._packed.opening(segment)

    async def check_metadata(self, segment: AnySegment) -> bool:
        """See `PackedLogs`."""
        return await self._packed.check_metadata(segment)
