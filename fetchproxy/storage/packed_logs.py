"""Segments whose log is packed: compressed, encrypted or both. Readers still ask for ranges of the
plain log.
"""

from __future__ import annotations

import asyncio
import os
import threading
from array import array
from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

from cachetools import LRUCache
from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.errors import (
    CorruptSegment,
    DamagedObject,
    MetadataChanged,
    ObjectNotFound,
    RangeNotSatisfiable,
    SegmentLocked,
)
from fetchproxy.model import (
    END_UNKNOWN,
    AnySegment,
    ByteRange,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from fetchproxy.observability.health import Condition
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import KEYS_WAITING
from fetchproxy.runtime.fairness import FairTurns
from fetchproxy.runtime.single_flight import SingleFlight
from fetchproxy.runtime.waits import in_thread
from fetchproxy.segments.contents import file_crc
from fetchproxy.segments.object_keys import SegmentFile, segment_key
from fetchproxy.segments.packing import (
    BLOCK_BYTES,
    NONCE_BYTES,
    SEALED_BYTES_MORE,
    Cipher,
    CopyDescription,
    Packing,
    WrappedKey,
    decode_packing,
    encode_packing,
    file_label,
    opened_file,
    packed_blocks,
    sealed_file,
    unpacked,
)
from fetchproxy.storage.ciphers import KEY_BYTES, AesGcm, stream_at
from fetchproxy.storage.key_rings import (
    SETTING,
    KeyRing,
    key_context,
)
from fetchproxy.storage.store_health import measured
from fetchproxy.storage.stores.object_store import (
    SMALL_OBJECT_BYTES_MAX,
    Content,
)
from fetchproxy.storage.watched_store import WatchedObjectStore

# Memory for packings: of about 500 segments of 1 GiB, or 10,000 of 64 MiB.
PACKINGS_BYTES_MAX = 16 * 1024 * 1024
# Of those that wait for the key service. What is pushed out is read again.
LOCKED_BYTES_MAX = 4 * 1024 * 1024
# Data keys that readers ask the key service for at once, in turn by client. The service's other
# places (`kms_keys.REQUESTS_AT_ONCE`) are for new segments.
KEYS_AT_ONCE = 12
_PACKED_SUFFIX = ".packed"


@dataclass(frozen=True, slots=True)
class AtRest:
    """How segments are stored. `compress`: compress logs whose batches are not compressed.

    Without `keys` nothing is encrypted, and encrypted segments cannot be read. `required`: plain
    segments are refused, so a party without a key cannot add a segment.
    """

    compress: bool = False
    keys: KeyRing | None = None
    required: bool = False


NO_ENCRYPTION = AtRest()


def check_not_empty(key: str, file: SegmentFile, content: bytes) -> bytes:
    """`content` of a file that is not encrypted. A segment with aborted transactions lists them in
    TXN, and no bytes would list none: read_committed would show their records. Raises
    DamagedObject. (`verify --repair` may write an encrypted empty index for a truncated segment.)
    """
    if file is SegmentFile.TXN and not content:
        raise DamagedObject(f"{key}: no entry, but has_aborted_txns is true")
    return content


@dataclass(frozen=True, slots=True)
class LogSegmentData:
    """The files that a copy uploads. `txn`: None if no transaction was aborted.

    `offset_index`, `time_index`, `producer_snapshot`: a broker's own files; None if unavailable.
    `log_settled`: nothing will write to `log` again, see `ObjectStore.put_file`.
    `log_stream_key`: encrypts the file `log` (`ciphers.stream_at`), as spools may be; such a file
    needs a packed segment. `log_compressible`: most of its batches are not compressed.
    """

    log: Path
    index: bytes
    txn: bytes | None
    epochs: bytes
    offset_index: bytes | None = None
    time_index: bytes | None = None
    producer_snapshot: bytes | None = None
    log_settled: bool = False
    log_stream_key: bytes | None = None
    log_compressible: bool = False

    def small_objects(self) -> list[tuple[SegmentFile, bytes]]:
        """The existing files other than the log."""
        file_kinds = (
            (SegmentFile.INDEX, self.index),
            (SegmentFile.TXN, self.txn),
            (SegmentFile.EPOCHS, self.epochs),
            (SegmentFile.OFFSET_INDEX, self.offset_index),
            (SegmentFile.TIME_INDEX, self.time_index),
            (SegmentFile.PRODUCER_SNAPSHOT, self.producer_snapshot),
        )
        return [(file, content) for file, content in file_kinds if content is not None]


@dataclass(frozen=True, slots=True)
class Rewrapped:
    """`key_id`: the key that wrapped the segment's data key before; "" if it is not encrypted."""

    key_id: str
    done: bool


@dataclass(frozen=True, slots=True)
class OpenedLog:
    packing: Packing
    cipher: Cipher | None


class SegmentOpening:
    """Opens a packed segment before its bytes are read. `describe` reads the store. `unlock` does
    not, but may ask a key service, which may take long: in the turn of the client, or of another
    one that joins. Both raise as `PackedLogs.opened`.
    """

    def __init__(self, packed: PackedLogs, segment: AnySegment) -> None:
        self._packed = packed
        self._segment = segment

    @property
    def is_described(self) -> bool:
        return self._packed.is_described(self._segment)

    @property
    def is_open(self) -> bool:
        return self._packed.is_open(self._segment)

    async def describe(self) -> None:
        await self._packed.describe(self._segment)

    async def unlock(self, client: Hashable) -> None:
        await self._packed.unlock(self._segment, client, self)

    def join(self, client: Hashable) -> None:
        self._packed.join(self, client)


class PackedLogs:
    """Tells the store's health which keys open segments, and which metadata was changed."""

    def __init__(
        self,
        store: WatchedObjectStore,
        prefix: str,
        at_rest: AtRest,
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._at_rest = at_rest
        if at_rest.keys is not None:
            store.health.watch_keys(at_rest.keys)
        self._warnings = SparingWarnings(lambda: asyncio.get_running_loop().time())
        self._turns = FairTurns(KEYS_AT_ONCE, "reads of encrypted segments")
        turns = self._turns
        KEYS_WAITING.set_function(lambda: turns.waiting)
        self._reading: SingleFlight[Packing] = SingleFlight()
        self._opening: SingleFlight[OpenedLog] = SingleFlight()
        self._locked: LRUCache[int, Packing] = LRUCache(
            LOCKED_BYTES_MAX, getsizeof=lambda packing: packing.memory_bytes
        )
        self._opened: LRUCache[int, OpenedLog] = LRUCache(
            PACKINGS_BYTES_MAX, getsizeof=lambda opened: opened.packing.memory_bytes
        )

    def _object_key(self, segment: AnySegment, file: SegmentFile) -> str:
        return segment_key(self._prefix, segment.segment_id, segment.start_offset, file)

    @property
    def encrypts(self) -> bool:
        """Whether new segments are encrypted. If so, no local disk may hold their plain data."""
        return self._at_rest.keys is not None and self._at_rest.keys.writes

    def packs(self, *, compressible: bool) -> bool:
        """Whether to pack a new segment. `compressible`: see `LogSegmentData.log_compressible`."""
        return self.encrypts or (self._at_rest.compress and compressible)

    async def put(self, segment: RemoteLogSegmentMetadata, data: LogSegmentData) -> None:
        """Store the small files, the `.packing`, and the `.log` last. Raises OSError if the spool's
        disk fails.
        """
        segment_id = self._place(segment)
        copy_description = CopyDescription.of(segment)
        data_key, cipher = await self._new_key(segment_id, copy_description)
        for file, content in data.small_objects():
            await self._put_small(segment, file, content, cipher)
        compress = self._at_rest.compress and data.log_compressible
        path = data.log.with_name(data.log.name + _PACKED_SUFFIX)
        stop = threading.Event()
        try:
            packing, crc = await asyncio.to_thread(
                _pack, data, path, segment_id, compress, cipher, stop
            )
            if packing.log_bytes != copy_description.segment_size_bytes:
                raise CorruptSegment(f"{data.log} has changed its size")
            if data_key is not None:
                packing = replace(packing, key=data_key, copy_description=copy_description)
            await self._put_packing(segment, packing)
            key = self._object_key(segment, SegmentFile.LOG)
            await self._store.put_file(key, path, settled=True)
            # If the file's CRC is the same before and after, the upload sent the right bytes.
            if (await asyncio.to_thread(file_crc, path))[0] != crc:
                raise CorruptSegment(f"{path} has changed while it was copied")
        finally:
            stop.set()  # a cancelled wait does not end the thread
            await asyncio.to_thread(path.unlink, missing_ok=True)

    async def _new_key(
        self, segment_id: RemoteLogSegmentId, copy_description: CopyDescription
    ) -> tuple[WrappedKey | None, Cipher | None]:
        """A key for one copy of a segment: each attempt has a new segment id, and so a new key."""
        if self._at_rest.keys is None or not self._at_rest.keys.writes:
            return None, None
        data_key = os.urandom(KEY_BYTES)
        context = key_context(
            segment_id, copy_description.digest(segment_id.topic_id_partition.topic)
        )
        wrapped = await self._at_rest.keys.wrap(data_key, context)
        return wrapped, AesGcm(data_key)

    async def put_file(self, segment: AnySegment, file: SegmentFile, content: bytes) -> None:
        await self._put_small(segment, file, content, (await self.opened(segment)).cipher)

    async def _put_small(
        self, segment: AnySegment, file: SegmentFile, content: bytes, cipher: Cipher | None
    ) -> None:
        if cipher is not None:
            label, nonce = file_label(self._place(segment), file), os.urandom(NONCE_BYTES - 1)
            content = sealed_file(cipher, label, content, nonce)
        await self._store.put(self._object_key(segment, file), content)

    async def read_file(self, segment: AnySegment, file: SegmentFile, bytes_max: int) -> bytes:
        cipher = (await self.opened(segment)).cipher
        key = self._object_key(segment, file)
        if cipher is None:
            return check_not_empty(key, file, await self._store.get(key, bytes_max))
        sealed = await self._store.get(key, bytes_max + SEALED_BYTES_MORE)
        try:
            return opened_file(cipher, file_label(self._place(segment), file), sealed)
        except CorruptSegment as error:
            raise DamagedObject(f"{key}: {error}") from None

    def check_may_be_plain(self, segment: AnySegment) -> None:
        """A condition of this segment, which is not encrypted, if new ones are. Raises
        SegmentLocked if a setting requires encryption.
        """
        required = self._at_rest.required
        if not required and not self.encrypts:
            return
        key = self._object_key(segment, SegmentFile.LOG)
        self._store.health.plain(segment, key, refused=required)
        if required:
            raise SegmentLocked(f"{key}: it is not encrypted, but {SETTING} requires encryption")
        self._warnings.warn(
            "segment_not_encrypted",
            segment.segment_id.id.int,
            object_key=key,
            hint="compare it with its source; ?required=true refuses such segments",
        )

    async def read(self, segment: AnySegment, byte_range: ByteRange) -> Content:
        """A range of the plain log. Raises as `RemoteStorageManager.fetch_log_segment`."""
        opened_log = await self.opened(segment)
        packing, key = opened_log.packing, self._object_key(segment, SegmentFile.LOG)
        end = ByteRange(packing.stored_bytes, packing.stored_bytes + 1)
        if byte_range.start >= packing.log_bytes:
            await self._store.get_range(key, end)  # RangeNotSatisfiable, if intact
            raise DamagedObject(f"{key}: goes on behind its last block")
        in_log = ByteRange(byte_range.start, min(byte_range.end, packing.log_bytes))
        blocks = packing.stored_range(packing.blocks_of(in_log))
        # A range that goes past the log's end also asks whether the object has more bytes.
        in_object = ByteRange(blocks.start, end.end if in_log.end < byte_range.end else blocks.end)
        stored_bytes = await self._store.get_range(key, in_object)
        if len(stored_bytes) > blocks.length:
            raise DamagedObject(f"{key}: goes on behind its last block")
        try:
            return await in_thread(
                partial(unpacked, packing, opened_log.cipher, stored_bytes, in_log)
            )
        except CorruptSegment as error:
            raise DamagedObject(f"{key}: {error}") from None

    async def opened(self, segment: AnySegment) -> OpenedLog:
        """Raises RemoteStorageError, DamagedObject, MetadataChanged."""
        number = segment.segment_id.id.int
        known_log = self._opened.get(number)
        opened_log = known_log or await self._opening.run(number, partial(self._open, segment))
        if opened_log.cipher is not None:
            self._store.health.encrypted(segment)
        elif known_log is not None:
            self.check_may_be_plain(segment)
        self._check_described(segment, opened_log.packing.copy_description)
        return opened_log

    def opening(self, segment: AnySegment) -> SegmentOpening:
        return SegmentOpening(self, segment)

    def is_open(self, segment: AnySegment) -> bool:
        return segment.segment_id.id.int in self._opened

    def is_described(self, segment: AnySegment) -> bool:
        return self.is_open(segment) or segment.segment_id.id.int in self._locked

    async def describe(self, segment: AnySegment) -> None:
        """See `SegmentOpening`."""
        packing = await self._packing(segment)
        if packing.key is None:
            await self.opened(segment)

    async def unlock(self, segment: AnySegment, client: Hashable, name: Hashable) -> None:
        """See `SegmentOpening`. `name`: the name of the turn, for `join`."""
        packing, keys = self._locked.get(segment.segment_id.id.int), self._at_rest.keys
        if packing is None or packing.key is None or self.is_open(segment):
            return
        by_service = keys is not None and keys.asks_service(packing.key.key_id)
        del packing  # it may wait for long
        async with self._turns.turn(client, name=name) if by_service else nullcontext():
            await self.opened(segment)

    def conditions(self, now: float) -> Iterator[Condition]:
        """`Health` calls it."""
        return self._turns.conditions(now)

    def join(self, name: Hashable, client: Hashable) -> None:
        self._turns.join(name, client)

    def _check_described(
        self, segment: AnySegment, copy_description: CopyDescription | None
    ) -> None:
        """Runs at each use, because metadata read again later may differ."""
        if copy_description is None or segment.stored_end_offset == END_UNKNOWN:
            return
        if fault := copy_description.fault(segment):
            key = self._object_key(segment, SegmentFile.METADATA)
            message = f"{key}: it differs from what the segment was encrypted with: {fault}"
            self._store.health.changed(segment, message)
            raise MetadataChanged(message)
        self._store.health.changed(segment, None)

    async def as_copied(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """The metadata with which an encrypted segment was copied; only state and end are taken
        from `metadata`. Other segments' metadata is returned as it is. Raises as `opened`.
        """
        if not metadata.packed:
            return metadata
        copy_description = (await self.opened(metadata.ref.as_listed())).packing.copy_description
        if copy_description is None or copy_description.start_offset != metadata.start_offset:
            return metadata
        return copy_description.expected_metadata(metadata)

    async def check_metadata(self, segment: AnySegment) -> bool:
        """True if the segment is encrypted, and so its metadata proven. Raises as `opened`."""
        return segment.packed and (await self.opened(segment)).cipher is not None

    async def is_packed(self, segment: AnySegment) -> bool:
        """Whether the store has a `.packing`, for a segment without metadata. Raises
        RemoteStorageError.
        """
        try:
            await self.read_packing(segment)
        except ObjectNotFound:
            return False
        except DamagedObject:
            pass
        return True

    async def _packing(self, segment: AnySegment) -> Packing:
        """Kept until the segment is open."""
        number = segment.segment_id.id.int
        packing = self._locked.get(number)
        if packing is None:
            read = partial(self.read_packing, segment)
            packing = await self._reading.run(number, read)
            if packing.memory_bytes <= self._locked.maxsize:
                self._locked[number] = packing
        return packing

    async def _open(self, segment: AnySegment) -> OpenedLog:
        number = segment.segment_id.id.int
        packing, cipher = await self._packing(segment), None
        try:
            if packing.key is None:
                self.check_may_be_plain(segment)
            else:
                cipher = AesGcm(await self._data_key(segment, packing, packing.key))
        except SegmentLocked:
            self._locked.pop(number, None)  # when it is unlocked, another key may wrap it
            raise
        self._locked.pop(number, None)
        opened_log = OpenedLog(packing, cipher)
        if packing.memory_bytes <= self._opened.maxsize:
            self._opened[number] = opened_log
        return opened_log

    async def _data_key(self, segment: AnySegment, packing: Packing, wrapped: WrappedKey) -> bytes:
        keys = self._at_rest.keys
        try:
            if keys is None:
                raise SegmentLocked(
                    f"it is encrypted with the key {wrapped.key_id!r}, and {SETTING} is not set"
                )
            data_key = await keys.unwrap(wrapped, key_context(packing.segment_id, packing.digest))
        except SegmentLocked as error:
            self._store.health.locked(segment.segment_id.id, wrapped.key_id, str(error))
            key = self._object_key(segment, SegmentFile.PACKING)
            raise SegmentLocked(f"{key}: {error}") from None
        self._store.health.locked(segment.segment_id.id, wrapped.key_id, None)
        return data_key

    async def check_opens(self, segment: AnySegment, packing: Packing) -> None:
        """Read the first block of the log with `packing`, which may be of another copy of the
        segment. Raises as `read`.
        """
        cipher = None
        if packing.key is not None:
            cipher = AesGcm(await self._data_key(segment, packing, packing.key))
        key = self._object_key(segment, SegmentFile.LOG)
        try:
            stored_bytes = await self._store.get_range(key, packing.stored_range(range(1)))
            unpacked(packing, cipher, stored_bytes, ByteRange(0, 1))
        except RangeNotSatisfiable as error:
            raise DamagedObject(str(error)) from None
        except CorruptSegment as error:
            raise DamagedObject(f"{key}: {error}") from None

    @measured
    async def rewrap(self, segment: AnySegment, *, dry_run: bool = False) -> Rewrapped:
        """Encrypt the data key of an encrypted segment with the active key.

        It replaces one object atomically. The old and the new object hold the same data key, so it
        may be stopped at any step and repeated. Raises as `opened`; ObjectNotFound if the segment
        was deleted.
        """
        keys = self._at_rest.keys
        packing = await self.read_packing(segment)
        before = packing.key
        if before is None:
            return Rewrapped("", done=False)
        if keys is None or not keys.writes:
            raise ValueError("there is no active key")
        if before.key_id == await keys.active_key_id():
            return Rewrapped(before.key_id, done=False)
        if not dry_run:
            data_key = await self._data_key(segment, packing, before)
            wrapped = await keys.wrap(data_key, key_context(packing.segment_id, packing.digest))
            await self._put_packing(segment, replace(packing, key=wrapped))
        return Rewrapped(before.key_id, done=True)

    async def read_packing(self, segment: AnySegment) -> Packing:
        """The `.packing` object as it is in the store now. Raises as `opened`."""
        key = self._object_key(segment, SegmentFile.PACKING)
        raw = await self._store.get(key, SMALL_OBJECT_BYTES_MAX)
        try:
            packing = decode_packing(raw, key)
        except CorruptSegment as error:
            raise DamagedObject(str(error)) from None
        if packing.segment_id != self._place(segment):
            raise DamagedObject(f"{key}: it belongs to the segment {packing.segment_id.id}")
        return packing

    async def _put_packing(self, segment: AnySegment, packing: Packing) -> None:
        key = self._object_key(segment, SegmentFile.PACKING)
        await self._store.put(key, encode_packing(packing))

    def _place(self, segment: AnySegment) -> RemoteLogSegmentId:
        segment_id = segment.segment_id
        return RemoteLogSegmentId(self._store.origin(segment_id.topic_id_partition), segment_id.id)

    async def close(self) -> None:
        if self._at_rest.keys is not None:
            await self._at_rest.keys.close()


def _pack(
    data: LogSegmentData,
    path: Path,
    segment_id: RemoteLogSegmentId,
    compress: bool,
    cipher: Cipher | None,
    stop: threading.Event,
) -> tuple[Packing, int]:
    """Write the packed log to `path`; returns its packing and the file's CRC-32C. Blocks."""
    sizes, crc = [], 0
    with data.log.open("rb") as file, path.open("wb") as packed:
        log_bytes = os.fstat(file.fileno()).st_size
        parts = _parts(file.read, data.log_stream_key, stop)
        for block in packed_blocks(parts, segment_id, log_bytes, compress=compress, cipher=cipher):
            packed.write(block)
            sizes.append(len(block))
            crc = crc32c(block, crc)
    ends = array("q", accumulate(sizes))
    return Packing(segment_id, log_bytes, BLOCK_BYTES, ends), crc


def _parts(
    read: Callable[[int], bytes], stream_key: bytes | None, stop: threading.Event
) -> Iterator[bytes]:
    stream = None if stream_key is None else stream_at(stream_key, 0)
    while not stop.is_set() and (part := read(BLOCK_BYTES)):
        yield part if stream is None else stream.update(part)
