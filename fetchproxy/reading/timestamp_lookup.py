"""ListOffsets by timestamp over the archive: metadata → index → chunk → records."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from cachetools import LRUCache
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import first_record_at_or_after, unpacks_to, walk

from fetchproxy.errors import CorruptSegment, ObjectNotFound
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.reading.chunk_cache import Chunk
from fetchproxy.reading.segment_loads import SegmentLoads
from fetchproxy.reading.segment_reader import ArchiveMemory, Need, NeedChunk, NeedLayout, NeedView
from fetchproxy.segments.remote_log_index import SegmentLayout

# (offset, timestamp in ms, leader epoch)
FoundRecord = tuple[int, int, int]

# A chunk that is longer, as stored or unpacked, is searched in a thread. This much takes about
# 1 ms.
SEARCHED_INLINE_BYTES_MAX = 16 * 1024
UNPACKED_INLINE_BYTES_MAX = 64 * 1024
# One search at a time for all clients, because each may take `SEARCHED_BYTES_MAX` of memory.
SEARCHES_AT_ONCE = 1
# Records that were found are remembered, some 400 bytes each. All members of a group that starts at
# a timestamp ask for it, and the content of a segment does not change.
FOUND_MAX = 10_000
# Segment (the int of its UUID), timestamp, first and last valid offset.
_Asked = tuple[int, int, int, int]


@dataclass(eq=False, repr=False)
class TimestampLookup:
    """Uses the pool and caches of fetches, as a fetch usually follows at the found offset."""

    _rlmm: PartitionViews
    _memory: ArchiveMemory
    _loads: SegmentLoads
    _unasked_max_s: float
    _found: LRUCache[_Asked, FoundRecord] = field(default_factory=lambda: LRUCache(FOUND_MAX))
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(SEARCHES_AT_ONCE, "search by time")
    )

    def close(self) -> None:
        """Does not wait for a running search."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def first_offset_at_or_after(
        self, tip: TopicIdPartition, timestamp_ms: int
    ) -> FoundRecord | None:
        """The first archived record, by offset, with at least that timestamp.

        In a batch larger than a search looks at (`record_batch.SEARCHED_BYTES_MAX`), the answer may
        lie a little earlier. Readers then pass over some records and miss none. None: the view in
        memory has no such record, so the broker's own answer counts. Records that DeleteRecords
        has deleted are skipped. Storage failures are retried for `unasked_read_max_ms`, if the
        caller's time-out allows, and then raised. Raises RemoteStorageError, CorruptSegment.
        """
        try:
            return await self._search(tip, timestamp_ms)
        except ObjectNotFound:
            # The segment was probably deleted after the view was read: search a fresh view once.
            await self._load(NeedView(tip, asyncio.get_running_loop().time()))
        try:
            return await self._search(tip, timestamp_ms)
        except ObjectNotFound as error:
            raise CorruptSegment(f"an object of {tip} is lost: {error}") from error

    def in_memory(self, view: PartitionView, timestamp_ms: int) -> FoundRecord | None:
        """The same record, if it was found before or lies in the first chunk that may have it.

        None: call `first_offset_at_or_after`. `view`: a view that clients may see. Raises
        CorruptSegment.
        """
        index = view.index_at_or_after_timestamp(timestamp_ms)
        if index is None:
            return None
        metadata = view.segments[index]
        segment = metadata.segment_id.id.int
        from_offset = max(metadata.start_offset, view.raised_log_start)
        asked = segment, timestamp_ms, from_offset, metadata.end_offset
        if (known := self._found.get(asked)) is not None:
            return known
        layout = self._memory.layout(segment)
        if layout is None:
            return None
        first = layout.chunk_at_or_after(from_offset)
        number = layout.first_chunk_with_timestamp(timestamp_ms, first)
        if number is None or layout.first_offsets[number] > metadata.end_offset:
            return None
        chunk = self._memory.chunks.find(NeedChunk(metadata, layout, number).key)
        if chunk is None or not _is_short(chunk, timestamp_ms):
            return None
        found = _search_chunk(chunk, metadata, timestamp_ms, from_offset)
        if found is not None:
            self._found[asked] = found
        return found

    async def _search(self, tip: TopicIdPartition, timestamp_ms: int) -> FoundRecord | None:
        view = self._rlmm.view(tip)
        if view is None:
            await self._load(NeedView(tip, asyncio.get_running_loop().time()))
            view = self._rlmm.view(tip)
        # Timestamps need not rise from segment to segment: the largest one of each is compared.
        index = None if view is None else view.index_at_or_after_timestamp(timestamp_ms)
        while view is not None and index is not None:
            metadata = view.segments[index]
            from_offset = max(metadata.start_offset, view.raised_log_start)
            found = await self._search_segment(metadata, timestamp_ms, from_offset)
            if found is not None:
                return found
            index = view.index_at_or_after_timestamp(timestamp_ms, index + 1)
        return None

    async def _search_segment(
        self, metadata: RemoteLogSegmentMetadata, timestamp_ms: int, from_offset: int
    ) -> FoundRecord | None:
        layout = await self._layout(metadata)
        number: int | None = layout.chunk_at_or_after(from_offset)
        while number is not None:
            number = layout.first_chunk_with_timestamp(timestamp_ms, number)
            if number is None or layout.first_offsets[number] > metadata.end_offset:
                break
            chunk = await self._chunk(NeedChunk(metadata, layout, number))
            if _is_short(chunk, timestamp_ms):
                found = _search_chunk(chunk, metadata, timestamp_ms, from_offset)
            else:
                search = partial(_search_chunk, chunk, metadata, timestamp_ms, from_offset)
                found = await asyncio.get_running_loop().run_in_executor(self._threads, search)
            if found is not None:
                asked = timestamp_ms, from_offset, metadata.end_offset
                self._found[metadata.segment_id.id.int, *asked] = found
                return found
            number += 1  # its records that are late enough lie below `from_offset`
        return None

    async def _layout(self, metadata: RemoteLogSegmentMetadata) -> SegmentLayout:
        while (layout := self._memory.layout(metadata.segment_id.id.int)) is None:
            await self._load(NeedLayout(metadata))
        return layout

    async def _chunk(self, need: NeedChunk) -> Chunk:
        chunk = self._memory.chunks.find(need.key)
        if chunk is None:
            chunk = await self._load(need)
        assert chunk is not None, "the load of a chunk brings one"
        return chunk

    async def _load(self, need: Need) -> Chunk | None:
        """Raises the error of the load."""
        now = asyncio.get_running_loop().time()
        damage = self._memory.damage(need, now)
        if damage is not None:
            raise damage
        load = self._loads.begin(need, now + self._unasked_max_s)
        await load.done.wait()
        if load.error is not None:
            raise load.error
        return load.chunk


def _is_short(chunk: Chunk, timestamp_ms: int) -> bool:
    """The bytes to search are few, also when unpacked."""
    if len(chunk.view) > SEARCHED_INLINE_BYTES_MAX:
        return False
    room = UNPACKED_INLINE_BYTES_MAX
    try:
        for header in walk(chunk.view):
            if header.compression and header.max_timestamp >= timestamp_ms:
                unpacked = unpacks_to(chunk.view, header, room)
                if unpacked is None:
                    return False
                room -= unpacked
    except WireError:
        return True  # the search will raise the error
    return True


def _search_chunk(
    chunk: Chunk, metadata: RemoteLogSegmentMetadata, timestamp_ms: int, from_offset: int
) -> FoundRecord | None:
    try:
        for header in walk(chunk.view):
            if header.base_offset > metadata.end_offset:  # the segment was clipped
                break
            found = first_record_at_or_after(chunk.view, header, timestamp_ms, from_offset)
            if found is not None:
                return found[0], found[1], header.partition_leader_epoch
    except WireError as error:
        raise CorruptSegment(f"{metadata.topic_id_partition}: {error}") from error
    return None
