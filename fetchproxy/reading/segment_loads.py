"""The loads that the fetcher pool runs: fetch, check, and only then put into memory.

There is one function per kind of need. Each raises domain errors; the pool retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import structlog

from fetchproxy.errors import (
    CorruptSegment,
    DamagedObject,
    MetadataChanged,
    ObjectNotReadable,
    ObjectTooLarge,
    SegmentLocked,
)
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.observability.metrics import CORRUPT_CHUNKS, REMOTE_FETCH_BYTES
from fetchproxy.reading.chunk_cache import Chunk, check_chunk
from fetchproxy.reading.disk_cache import CachedChunk, DiskCache
from fetchproxy.reading.fetcher_pool import FetcherPool, Load, MoreBytesNeeded
from fetchproxy.reading.hedged_reads import HedgedReads
from fetchproxy.reading.segment_reader import (
    ArchiveMemory,
    Need,
    NeedAborted,
    NeedChunk,
    NeedLayout,
    NeedView,
)
from fetchproxy.runtime.cooperative import LoopSteps, at_once, in_steps
from fetchproxy.runtime.waits import in_thread
from fetchproxy.segments.aborted_index import AbortedIndex
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import RemoteLogIndex, SegmentLayout
from fetchproxy.storage.index_files import LocalIndexes
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.store_health import Refusals
from fetchproxy.storage.stores.object_store import Content

log = structlog.get_logger(__name__)

V = TypeVar("V")

# Reserved at least while an index is read, because its size is not known.
INDEX_RESERVED_BYTES = 256 * 1024
# A longer index, and one that is longer than its segment's size explains, is read and parsed alone.
# This much has room for the usual index of a segment of 4 GiB.
INDEX_BESIDE_BYTES_MAX = 4 * 1024 * 1024
# A longer transaction index is not read: these are 490,000 aborted transactions. A log of 64 MiB
# has room for 460,000 of one record each, with their markers.
TXN_BYTES_MAX = 16 * 1024 * 1024
# A list takes 2.6 times its size while it is parsed. The plan of memory counts each reserved byte
# twice, which leaves room for the pieces of its response.
TXN_RESERVED_TIMES = 2
# A list that needs more than this share of all bytes in flight would hold up the other reads: it is
# read alone.
TXN_RESERVED_SHARE = 4
# A longer index is parsed in a thread. This much takes 1 to 4 ms.
INDEX_INLINE_BYTES_MAX = 128 * 1024
# A longer chunk is checked in a thread. It may be one batch, and a checksum cannot be computed in
# steps: this much takes 0.3 ms with SSE 4.2, and ten times as long without.
CHECK_INLINE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(eq=False, repr=False)
class SegmentLoads:
    _pool: FetcherPool
    _rlmm: PartitionViews
    _rsm: RemoteStorageManager
    _damaged: Refusals
    _memory: ArchiveMemory
    _hedged: HedgedReads
    _steps: LoopSteps
    _local_indexes: LocalIndexes | None = None
    _disk_cache: DiskCache | None = None
    _long_index: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, 1))
    _long_list: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, 1))

    def begin(
        self, need: Need, needed_until: float, is_read_ahead: bool = False, client: Hashable = None
    ) -> Load:
        """Start or join the load of `need`. The load has a `chunk` if `need` is a NeedChunk."""
        attempt: Callable[[], Awaitable[Chunk | None]]
        nearby: Callable[[], Awaitable[Chunk | None]] | None = None
        if isinstance(need, NeedView):
            tp, name, size = need.tp, f"view of {need.tp}", 0
            attempt = partial(self._load_view, need)
        elif isinstance(need, NeedChunk):
            tp = need.metadata.topic_id_partition
            name, size = f"chunk {need.number} of {_name(need)}", need.byte_range.length
            attempt = partial(self._load_chunk, need, client)
            if self._disk_cache is not None:
                nearby = partial(self._load_cached, need, self._disk_cache)
        else:
            tp, size = need.metadata.topic_id_partition, _reserved_bytes(need)
            if isinstance(need, NeedLayout):
                name, attempt = f"index of {_name(need)}", partial(self._load_layout, need)
            else:
                name = f"transaction index of {_name(need)}"
                attempt = partial(self._load_aborted, need)
        opening = None
        if not isinstance(need, NeedView) and need.metadata.packed:
            opening = self._rsm.opening(need.metadata)
        on_corrupt = partial(self.give_up, need)
        return self._pool.load(
            Load(
                *(
                    need.key,
                    name,
                    tp,
                    size,
                    attempt,
                    on_corrupt,
                    needed_until,
                    is_read_ahead,
                    client,
                ),
                nearby,
                opening,
            )
        )

    async def wait(self, load: Load) -> None:
        """See `FetcherPool.wait`."""
        await self._pool.wait(load)

    def give_up(self, need: Need, error: CorruptSegment) -> None:
        """The stored bytes of `need` are damaged: log an error, and keep the error for a while."""
        until = asyncio.get_running_loop().time() + self._memory.damaged_for_s
        # A traceback keeps all that its functions had in memory: the whole object, for one.
        self._memory.damaged[need.key] = error.with_traceback(None), until
        if isinstance(need, NeedView):
            log.error("corrupt_metadata", topic=need.tp.topic, error=str(error))
            return
        if isinstance(error, SegmentLocked):
            log.error("segment_locked", **need.metadata.logged, error=str(error))
            return
        if isinstance(error, ObjectNotReadable | MetadataChanged):
            return  # `StoreHealth` has logged it
        CORRUPT_CHUNKS.inc()
        self._damaged.add(need.metadata, need.key, str(error))
        log.error("corrupt_segment", **need.metadata.logged, error=str(error))

    async def _load_view(self, need: NeedView) -> None:
        await self._rlmm.refresh(need.tp, need.not_older_than)

    async def _load_layout(self, need: NeedLayout) -> None:
        self._memory.keep(need, await self._read_layout(need))

    async def _read_layout(self, need: NeedLayout) -> SegmentLayout:
        """From the segment's index. Raises CorruptSegment, RemoteStorageError."""
        index = None
        if self._local_indexes is not None:
            index = await self._local_indexes.read(need.metadata)
        if index is None:
            index = await self._parsed(need, SegmentFile.INDEX, RemoteLogIndex.parse, None)
            index.check_covers(need.metadata.stored_end_offset, need.metadata.segment_size_bytes)
        self._damaged.readable(need.metadata, need.key)
        return SegmentLayout(index, self._memory.chunk_bytes)

    async def _load_aborted(self, need: NeedAborted) -> None:
        """Raises MoreBytesNeeded, too."""
        index = await self._parsed(need, SegmentFile.TXN, AbortedIndex, TXN_BYTES_MAX)
        self._keep_aborted(need, index)

    async def _load_long_aborted(self, need: NeedAborted, size_bytes: int) -> None:
        """A list with room reserved for it. Of those in memory, one is parsed at a time: threads of
        Python would hold up the loop.
        """
        raw = await self._rsm.fetch_index(need.metadata, SegmentFile.TXN, size_bytes)
        async with self._long_list:
            index = await in_thread(partial(AbortedIndex, raw))
        self._keep_aborted(need, index)

    def _more_for(self, need: Need, error: DamagedObject) -> MoreBytesNeeded | None:
        """None: it is no list, or one that must be read alone."""
        if not (isinstance(need, NeedAborted) and isinstance(error, ObjectTooLarge)):
            return None
        size_bytes, reserved_bytes = error.size_bytes, TXN_RESERVED_TIMES * error.size_bytes
        reserved_max = self._pool.budget.bytes_max // TXN_RESERVED_SHARE
        if size_bytes > TXN_BYTES_MAX or reserved_bytes > reserved_max:
            return None
        return MoreBytesNeeded(reserved_bytes, partial(self._load_long_aborted, need, size_bytes))

    def _keep_aborted(self, need: NeedAborted, index: AbortedIndex) -> None:
        self._memory.keep(need, index)
        self._damaged.readable(need.metadata, need.key)

    async def _parsed(
        self,
        need: NeedLayout | NeedAborted,
        file: SegmentFile,
        parse: Callable[[bytes], V],
        bytes_max: int | None,
    ) -> V:
        """Long files come one after the other, as each takes several times its size of memory; a
        list of aborted transactions with that reserved, if it may be.
        """
        fetch = partial(self._rsm.fetch_index, need.metadata, file)
        try:
            raw = await fetch(_reserved_bytes(need))
        except ObjectNotReadable:
            raise
        except DamagedObject as error:  # it is longer, as a rule
            if (more := self._more_for(need, error)) is not None:
                raise more from None
            async with self._long_index:
                return await in_thread(partial(parse, await fetch(bytes_max)))
        if len(raw) <= INDEX_INLINE_BYTES_MAX:
            return parse(raw)
        return await in_thread(partial(parse, raw))

    async def _load_chunk(self, need: NeedChunk, client: Hashable) -> Chunk:
        size = need.byte_range.length
        fetch = partial(self._rsm.fetch_log_segment, need.metadata, need.byte_range)
        content = await self._hedged.read(fetch, size, client)
        REMOTE_FETCH_BYTES.labels(need.metadata.topic_id_partition.topic).inc(len(content))
        if len(content) != size:
            raise CorruptSegment(
                f"{len(content)} bytes of {_name(need)} chunk {need.number}, not {size}"
            )
        try:
            chunk = await self._checked(need, content)
        except CorruptSegment:
            if not need.layout.is_presumed:
                raise
            chunk = await self._checked_by_index(need, content)
        if self._disk_cache is not None:
            self._disk_cache.offer(_cached(need), chunk.view)
        return chunk

    async def _checked_by_index(self, need: NeedChunk, content: Content) -> Chunk:
        """The chunk differs from what the metadata let presume. Raises as `_checked`, or the errors
        of reading the index.
        """
        layout_need = NeedLayout(need.metadata)
        layout = await self._read_layout(layout_need)
        chunk = await self._checked(need._replace(layout=layout), content)
        self._memory.keep(layout_need, layout)
        return chunk

    async def _load_cached(self, need: NeedChunk, disk_cache: DiskCache) -> Chunk | None:
        content = await disk_cache.read(_cached(need))
        if content is None:
            return None
        try:
            return await self._checked(need, content, crc_known=True)
        except CorruptSegment as error:
            if not need.layout.is_presumed:  # the file contradicts the index
                log.warning("disk_cache_file_refused", read=_name(need), error=str(error))
            disk_cache.drop(_cached(need))
            return None

    async def _checked(self, need: NeedChunk, content: Content, crc_known: bool = False) -> Chunk:
        """The checked chunk, which is now in memory too. Raises CorruptSegment."""
        layout, number = need.layout, need.number
        steps = check_chunk(
            content,
            layout.first_offsets[number],
            layout.last_offsets[number],
            need.metadata.segment_leader_epochs,
            need.metadata.end_offset,
            crc_known,
        )
        if len(content) > CHECK_INLINE_BYTES_MAX:
            chunk = await in_thread(partial(at_once, steps))
        else:
            await self._steps.begin()
            chunk = await in_steps(steps, self._steps.go_on)
        self._memory.chunks.keep(need.key, chunk, self._pool.is_ahead(need.key))
        self._damaged.readable(need.metadata, need.key)
        return chunk


def _cached(need: NeedChunk) -> CachedChunk:
    return CachedChunk(need.metadata.segment_id.id.int, need.byte_range)


def _reserved_bytes(need: NeedLayout | NeedAborted) -> int:
    """Of an index, twice as much as most segments of that size have: 64 bytes for 64 KiB. Of a list
    of aborted transactions, the size of the segment tells nothing.
    """
    usual_bytes = need.metadata.segment_size_bytes // 1024 if isinstance(need, NeedLayout) else 0
    return min(max(2 * usual_bytes, INDEX_RESERVED_BYTES), INDEX_BESIDE_BYTES_MAX)


def _name(need: NeedLayout | NeedAborted | NeedChunk) -> str:
    return f"{need.metadata.topic_id_partition} segment {need.metadata.segment_id.id}"
