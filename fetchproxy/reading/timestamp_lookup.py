"""ListOffsets by timestamp over the archive: metadata → index → chunk → records."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from cachetools import LRUCache
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import (
    BatchHeader,
    BatchSearch,
    BatchTimesSearch,
    walk,
)

from fetchproxy.errors import CorruptSegment, ObjectNotFound
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.metrics import TIMESTAMP_SEARCHES, TIMESTAMP_SEARCHES_WAITING
from fetchproxy.reading.chunk_cache import Chunk
from fetchproxy.reading.segment_loads import SegmentLoads
from fetchproxy.reading.segment_reader import ArchiveMemory, Need, NeedChunk, NeedLayout, NeedView
from fetchproxy.runtime.cooperative import LoopSteps, at_once, in_steps, pieces
from fetchproxy.runtime.fairness import FairTurns
from fetchproxy.segments.remote_log_index import SegmentLayout

# (offset, timestamp in ms, leader epoch)
FoundRecord = tuple[int, int, int]

# A batch that is longer, or unpacks to more than the first `BatchSearch.room`, is searched in
# steps. This much takes about 1 ms.
SHORT_BYTES_MAX = 16 * 1024
SHORT_RECORDS_MAX = 2_000
# Long searches go one at a time, because each may take `SEARCHED_BYTES_MAX` of memory. Clients take
# turns. A thread unpacks; it looks at no records, because a thread of Python holds up the event
# loop for 5 ms again and again.
SEARCHES_AT_ONCE = 1
# Some 0.1 ms.
HEADERS_AT_ONCE = 200
# Records that were found are remembered, some 400 bytes each. All members of a group that starts at
# a timestamp ask for it, and the content of a segment does not change.
FOUND_MAX = 10_000
# The second long search of a batch looks at all its records and keeps their times: who asks for
# one timestamp after another, as a graph does, then gets each from a table.
SEARCHED_BATCHES_MAX = 10_000
# Segment (the int of its UUID), timestamp, first and last valid offset.
_Target = tuple[int, int, int, int]


@dataclass(eq=False, repr=False)
class TimestampLookup:
    """Uses the pool and caches of fetches, as a fetch usually follows at the found offset."""

    _rlmm: PartitionViews
    _memory: ArchiveMemory
    _loads: SegmentLoads
    _steps: LoopSteps
    _unasked_max_s: float
    _records: LRUCache[_Target, FoundRecord] = field(default_factory=lambda: LRUCache(FOUND_MAX))
    # By segment and base offset.
    _searched: LRUCache[tuple[int, int], None] = field(
        default_factory=lambda: LRUCache(SEARCHED_BATCHES_MAX)
    )
    _threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(SEARCHES_AT_ONCE, "search by time")
    )
    turns: FairTurns = field(
        default_factory=lambda: FairTurns(SEARCHES_AT_ONCE, "look-ups by time")
    )

    def __post_init__(self) -> None:
        turns = self.turns  # the gauge must not keep this object, with its chunks, in memory
        TIMESTAMP_SEARCHES_WAITING.set_function(lambda: turns.waiting)

    def close(self) -> None:
        """Does not wait for a running search."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def first_offset_at_or_after(
        self, tp: TopicIdPartition, timestamp_ms: int, client: Hashable = None
    ) -> FoundRecord | None:
        """The first archived record, by offset, with at least that timestamp.

        Clients take turns. If the caller is cancelled, its search ends: in the queue, or at its
        next step.

        In a batch larger than a search looks at (`record_batch.SEARCHED_BYTES_MAX`), the response
        may lie a little earlier. Readers then pass over some records and miss none. None: the view
        in memory has no such record, so the broker's own response counts. Records that
        DeleteRecords has deleted are skipped. Storage failures are retried for
        `unasked_read_max_ms`, if the caller's time-out allows, and then raised. Raises
        RemoteStorageError, CorruptSegment.
        """
        try:
            return await self._search(tp, timestamp_ms, client)
        except ObjectNotFound:
            # The segment was probably deleted after the view was read: search a fresh view once.
            self._rlmm.doubt(tp)
            await self._load(NeedView(tp, asyncio.get_running_loop().time()), client)
        try:
            return await self._search(tp, timestamp_ms, client)
        except ObjectNotFound as error:
            raise CorruptSegment(f"an object of {tp} is lost: {error}") from error

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
        target = segment, timestamp_ms, from_offset, metadata.end_offset
        if (cached := self._records.get(target)) is not None:
            return cached
        layout = self._memory.layout(metadata)
        if layout is None:
            return None
        first = layout.chunk_at_or_after(from_offset)
        number = layout.first_chunk_with_timestamp(timestamp_ms, first)
        if number is None or layout.first_offsets[number] > metadata.end_offset:
            return None
        need = NeedChunk(metadata, layout, number)
        chunk = self._memory.chunks.find(need.key)
        if chunk is None or len(chunk.view) > SHORT_BYTES_MAX:
            return None
        with _corrupt(metadata):
            header = next((h for h in walk(chunk.view) if _may_have(h, target)), None)
        if header is None:
            return None
        _, record = _search_short(chunk, header, need, target)
        if record is not None:
            self._records[target] = record
        return record

    async def _search(
        self, tp: TopicIdPartition, timestamp_ms: int, client: Hashable
    ) -> FoundRecord | None:
        view = self._rlmm.view(tp)
        if view is None:
            await self._load(NeedView(tp, asyncio.get_running_loop().time()), client)
            view = self._rlmm.view(tp)
        # Timestamps need not rise from segment to segment: the largest one of each is compared.
        index = None if view is None else view.index_at_or_after_timestamp(timestamp_ms)
        while view is not None and index is not None:
            metadata = view.segments[index]
            from_offset = max(metadata.start_offset, view.raised_log_start)
            record = await self._search_segment(metadata, timestamp_ms, from_offset, client)
            if record is not None:
                return record
            index = view.index_at_or_after_timestamp(timestamp_ms, index + 1)
        return None

    async def _search_segment(
        self,
        metadata: RemoteLogSegmentMetadata,
        timestamp_ms: int,
        from_offset: int,
        client: Hashable,
    ) -> FoundRecord | None:
        layout = await self._layout(metadata, client)
        number: int | None = layout.chunk_at_or_after(from_offset)
        target = metadata.segment_id.id.int, timestamp_ms, from_offset, metadata.end_offset
        while number is not None:
            number = layout.first_chunk_with_timestamp(timestamp_ms, number)
            if number is None or layout.first_offsets[number] > metadata.end_offset:
                break
            record = await self._search_at(NeedChunk(metadata, layout, number), target, client)
            if record is not None:
                self._records[target] = record
                return record
            number += 1  # all its records with such a timestamp lie below `from_offset`
        return None

    async def _search_at(
        self, need: NeedChunk, target: _Target, client: Hashable
    ) -> FoundRecord | None:
        position = 0
        chunk_kept: Chunk | None = None
        while True:
            chunk = chunk_kept or await self._chunk(need, client)
            header = await self._next_batch(chunk, position, need, target)
            if header is None:
                return None
            record: FoundRecord | None
            if (record := self._records.get(target)) is not None:  # by another client meanwhile
                return record
            is_searched, record = self._search_times(header, target)
            if not is_searched:
                is_searched, record = _search_short(chunk, header, need, target)
            if not is_searched:
                work = _search(chunk, header, target).work
                # What waits keeps its chunk only if the cache has dropped it once.
                del chunk
                async with self.turns.turn(client, work):
                    still = chunk_kept or self._memory.chunks.find(need.key)
                    if is_searched := still is not None:
                        record = await self._search_long(still, header, need, target)
                    del still
            if record is not None:
                return record
            if is_searched:
                position, chunk_kept = header.end, None
            else:
                chunk_kept = await self._chunk(need, client)

    async def _next_batch(
        self, chunk: Chunk, position: int, need: NeedChunk, target: _Target
    ) -> BatchHeader | None:
        """The first batch from there on that may have the record."""
        with _corrupt(need.metadata):
            for piece in pieces(walk(chunk.view, position), HEADERS_AT_ONCE):
                for header in piece:
                    if _may_have(header, target):
                        return header
                await self._steps.go_on()
        return None

    async def _search_long(
        self, chunk: Chunk, header: BatchHeader, need: NeedChunk, target: _Target
    ) -> FoundRecord | None:
        """Other work goes in between. If cancelled, it ends at its next step."""
        if (cached := self._records.get(target)) is not None:
            return cached
        is_searched, record = self._search_times(header, target)
        if is_searched:  # another client has made the table meanwhile
            return record
        TIMESTAMP_SEARCHES.inc()
        batch = target[0], header.base_offset
        if batch in self._searched and self._memory.times(*batch) is None:
            times_search = BatchTimesSearch(chunk.view, header)
            await self._run(times_search, need)
            if times_search.position is None:
                self._memory.keep_times(*batch, times_search.times)
                is_searched, record = self._search_times(header, target)
                if is_searched:
                    return record
        self._searched[batch] = None
        search = _search(chunk, header, target)
        await self._run(search, need)
        return _record_of(search, header)

    async def _run(self, search: BatchSearch, need: NeedChunk) -> None:
        loop = asyncio.get_running_loop()
        with _corrupt(need.metadata):
            while search.room is not None:
                unpacked = await loop.run_in_executor(self._threads, search.unpack)
                await in_steps(search.steps(unpacked), self._steps.go_on)
                del unpacked

    def _search_times(
        self, header: BatchHeader, target: _Target
    ) -> tuple[bool, FoundRecord | None]:
        """(True, what was found); (False, None): the batch's table is not there, or too little."""
        segment, timestamp_ms, from_offset, _ = target
        times = self._memory.times(segment, header.base_offset)
        if times is None:
            return False, None
        is_searched, record = times.first(timestamp_ms, from_offset)
        return is_searched, None if record is None else (*record, header.partition_leader_epoch)

    async def _layout(self, metadata: RemoteLogSegmentMetadata, client: Hashable) -> SegmentLayout:
        while (layout := self._memory.layout(metadata)) is None:
            await self._load(NeedLayout(metadata), client)
        return layout

    async def _chunk(self, need: NeedChunk, client: Hashable) -> Chunk:
        chunk = self._memory.chunks.find(need.key)
        if chunk is None:
            chunk = await self._load(need, client)
        assert chunk is not None, "the load of a chunk brings one"
        return chunk

    async def _load(self, need: Need, client: Hashable) -> Chunk | None:
        """Raises the error of the load."""
        now = asyncio.get_running_loop().time()
        damage = self._memory.damage(need, now)
        if damage is not None:
            raise damage
        load = self._loads.begin(need, now + self._unasked_max_s, client=client)
        await self._loads.wait(load)
        if load.error is not None:
            raise load.error
        return load.chunk


@contextmanager
def _corrupt(metadata: RemoteLogSegmentMetadata) -> Iterator[None]:
    """Raises CorruptSegment for broken batches and records."""
    try:
        yield
    except WireError as error:
        raise CorruptSegment(f"{metadata.topic_id_partition}: {error}") from error


def _may_have(header: BatchHeader, target: _Target) -> bool:
    _, timestamp_ms, from_offset, end_offset = target
    within = header.base_offset <= end_offset  # else it was clipped
    return within and header.max_timestamp >= timestamp_ms and header.last_offset >= from_offset


def _search(chunk: Chunk, header: BatchHeader, target: _Target) -> BatchSearch:
    _, timestamp_ms, from_offset, _ = target
    return BatchSearch(chunk.view, header, timestamp_ms, from_offset)


def _record_of(search: BatchSearch, header: BatchHeader) -> FoundRecord | None:
    return None if search.position is None else (*search.position, header.partition_leader_epoch)


def _search_short(
    chunk: Chunk, header: BatchHeader, need: NeedChunk, target: _Target
) -> tuple[bool, FoundRecord | None]:
    """(True, what was found); (False, None): it is too long to be searched in one turn."""
    if header.size > SHORT_BYTES_MAX or header.records_count > SHORT_RECORDS_MAX:
        return False, None
    with _corrupt(need.metadata):
        search = _search(chunk, header, target)
        if search.room is not None:
            at_once(search.steps(search.unpack()))
    return search.room is None, _record_of(search, header)
