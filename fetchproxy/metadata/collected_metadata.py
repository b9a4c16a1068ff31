"""One object that repeats the `.metadata` objects of a topic, for readers that start.

A process that has just started has 2,000 objects to read for 2,000 partitions. So a process that
had to read many of a topic leaves their content in one object. That object is only a copy: a
listing says which segments there are, and an entry counts only for the same version of the object
it was taken from. Missing or damaged entries, and other versions, are read from their own objects.

    magic      "collected metadata 1\n"
    body       zlib, which has a checksum; for each object, one after another:
      key      string (int16 length), of the `.metadata` object
      version  string (int16 length), as the store listed it
      length, type, version, data    as an entry of a cache file (`records`)

`store_backed` writes it when it serves or archives. Spark's planner reads it too; other programs
neither write nor trust it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from struct import Struct
from struct import error as StructError
from typing import Self
from uuid import UUID

import structlog
from cachetools import LRUCache
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.primitives import decode_uvarint, encode_string

from fetchproxy.errors import CorruptSegment, RemoteStorageError, StorageDenied
from fetchproxy.model import RemoteLogSegmentMetadata
from fetchproxy.runtime.cooperative import forget, pieces
from fetchproxy.runtime.single_flight import SingleFlight
from fetchproxy.segments.records import decode_entry, encode_cache_entry
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.listings import SegmentMetadataObject
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX

log = structlog.get_logger(__name__)

COLLECTED_MAGIC = b"collected metadata 1\n"
# The first objects by name are collected; the rest are read one by one. 100 bytes each.
COLLECTED_MAX = 200_000
# It is written again when so many objects, and such a share of all, were read one by one.
READ_ALONE_MIN = 64
READ_ALONE_SHARE_MIN = 1 / 16
PUT_INTERVAL_S = 300.0
# Topics kept while topics are read partition by partition. They come one after the other, and the
# collected object of a large topic takes 80 MB.
TOPICS_CACHED_MAX = 4
_LEVEL = 1
_STRING_SIZE = Struct(">H")
_DECODED_AT_ONCE = 500  # some 1 ms


# Version; entry without its length.
CollectedEntry = tuple[str, bytes]
# By the key in the store.
Collected = Mapping[str, CollectedEntry]
NOTHING_COLLECTED: Collected = {}
Read = tuple[str, str, RemoteLogSegmentMetadata]  # key, version, content


async def encode_collected(read: Iterable[Read]) -> bytes:
    parts: list[bytes] = []
    for piece in pieces(read):
        for key, version, metadata in piece:
            parts += (encode_string(key, False), encode_string(version, False))
            parts.append(encode_cache_entry(metadata))
        await asyncio.sleep(0)
    return COLLECTED_MAGIC + await asyncio.to_thread(zlib.compress, b"".join(parts), _LEVEL)


async def decode_collected(raw: bytes) -> dict[str, CollectedEntry]:
    """Raises CorruptSegment."""
    if not raw.startswith(COLLECTED_MAGIC):
        raise CorruptSegment("the object has another format")
    body = await asyncio.to_thread(_unpacked, raw[len(COLLECTED_MAGIC) :])
    entries: dict[str, CollectedEntry] = {}
    position = 0
    while position < len(body):
        try:
            position = _decode_some(body, position, entries)
        except (WireError, StructError, UnicodeDecodeError) as error:
            raise CorruptSegment(str(error)) from None
        await asyncio.sleep(0)
    if position > len(body):
        raise CorruptSegment("the last entry is cut")
    return entries


def _decode_some(body: bytes, at: int, entries: dict[str, CollectedEntry]) -> int:
    """Decodes entries from byte `at` on. Returns the byte after them: past the end if the last
    entry is cut. Uses no cursor, which would take five times as long.
    """
    end = len(body)
    for _ in range(_DECODED_AT_ONCE):
        if at >= end:
            break
        (size,) = _STRING_SIZE.unpack_from(body, at)
        at += 2
        key = body[at : at + size].decode()
        at += size
        (size,) = _STRING_SIZE.unpack_from(body, at)
        at += 2
        version = body[at : at + size].decode()
        size, at = decode_uvarint(body, at + size)
        entries[key] = version, body[at : at + size]
        at += size
    return at


def _unpacked(raw: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        body = unpacking.decompress(raw, OBJECT_BYTES_MAX)
    except zlib.error as error:
        raise CorruptSegment(str(error)) from None
    if not unpacking.eof or unpacking.unused_data:
        raise CorruptSegment("the object is cut, or larger than any that was written")
    return body


def collected_segment(
    collected: Collected, listed: SegmentMetadataObject
) -> RemoteLogSegmentMetadata | None:
    """The listed object's metadata, if it was collected from this version of the object."""
    version, entry = collected.get(listed.stored.key, ("", b""))
    if version != listed.stored.version or not entry:
        return None
    try:
        event = decode_entry(entry, listed.segment_id.topic_id_partition, listed.stored.key)
    except CorruptSegment:
        return None
    if not isinstance(event, RemoteLogSegmentMetadata):
        return None
    same = (event.segment_id, event.start_offset) == (listed.segment_id, listed.base_offset)
    return event if same else None


# Errors from here on cost only time.


async def read_collected(objects: ArchiveObjects, topic_id: UUID) -> Collected:
    try:
        raw = await objects.get_collected_metadata(topic_id)
        return NOTHING_COLLECTED if raw is None else await decode_collected(raw)
    except (RemoteStorageError, CorruptSegment) as error:
        # The reads of the objects themselves report a store that is away.
        log.info("collected_metadata_not_read", topic_id=str(topic_id), error=str(error))
        return NOTHING_COLLECTED


class SharedCollectedReads:
    """For reading the archive partition by partition: a topic's partitions share a read."""

    def __init__(self, objects: ArchiveObjects) -> None:
        self._objects = objects
        self._topics = LRUCache[UUID, Collected](TOPICS_CACHED_MAX)
        self._reading: SingleFlight[Collected] = SingleFlight()

    async def read(self, topic_id: UUID) -> Collected:
        collected: Collected | None = self._topics.get(topic_id)
        if collected is None:
            read = partial(read_collected, self._objects, topic_id)
            collected = self._topics[topic_id] = await self._reading.run(topic_id, read)
        return collected


class CollectedWriter:
    """An async context manager that owns its writes; closing it cancels them."""

    def __init__(self, objects: ArchiveObjects) -> None:
        self._objects = objects
        # Objects of each topic that were read one by one since they were collected.
        self._single_reads: dict[UUID, int] = {}
        self._put_at: dict[UUID, float] = {}  # loop time of the last attempt
        self._denied = False  # a process that may only read tries once
        self._puts: set[asyncio.Task[None]] = set()
        self._tasks: asyncio.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks, self._tasks = self._tasks, None
        for put in self._puts:
            put.cancel()
        if tasks is not None:
            # Not the body's error: the group would wrap it. The tasks themselves never raise.
            await tasks.__aexit__(None, None, None)

    def note_single_reads(
        self,
        topic_id: UUID,
        single_reads: int,
        known_count: int,
        reads: Callable[[], Iterable[Read]],
    ) -> None:
        """`single_reads` of the topic's `known_count` objects were read one by one.

        If that was too many, what `reads` returns is collected in the background.
        """
        single_reads += self._single_reads.get(topic_id, 0)
        self._single_reads[topic_id] = single_reads
        now = asyncio.get_running_loop().time()
        if single_reads < max(READ_ALONE_MIN, known_count * READ_ALONE_SHARE_MIN):
            return
        due_at = self._put_at.get(topic_id, float("-inf")) + PUT_INTERVAL_S
        if self._tasks is None or self._denied or now < due_at:
            return
        self._put_at[topic_id] = now
        put = self._tasks.create_task(self._put(topic_id, reads()), name=f"collect {topic_id}")
        self._puts.add(put)
        put.add_done_callback(self._puts.discard)

    async def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        await forget(self._single_reads, is_gone)
        await forget(self._put_at, is_gone)

    async def _put(self, topic_id: UUID, reads: Iterable[Read]) -> None:
        single_reads = self._single_reads[topic_id]
        first = [read for _, read in zip(range(COLLECTED_MAX), reads, strict=False)]
        try:
            content = await encode_collected(first)
            await self._objects.put_collected_metadata(topic_id, content)
        except RemoteStorageError as error:
            if isinstance(error, StorageDenied):
                self._denied = True
            log.info("metadata_not_collected", topic_id=str(topic_id), error=str(error))
            return
        if topic_id in self._single_reads:
            self._single_reads[topic_id] -= single_reads
        log.info(
            "metadata_collected",
            topic_id=str(topic_id),
            segments=len(first),
            size_bytes=len(content),
        )
