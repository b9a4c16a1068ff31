"""Chunks in memory: checked once when they are made, then cut by bisection and served as views.

Only `check_chunk` makes chunks, so what is in the cache has passed its CRC-32C. The cache is
sized in bytes and knows which chunks were read ahead and not used yet.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from uuid import UUID

from cachetools import Cache, LRUCache

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import EpochStart
from fetchproxy.observability.metrics import (
    CHUNK_CACHE_BYTES,
    CHUNK_CACHE_EVICTIONS,
    CHUNK_CACHE_HITS,
    CHUNK_CACHE_MISSES,
)
from protocol.errors import WireError
from protocol.record_batch import check_crc, walk

ChunkKey = tuple[UUID, int]  # (id of the segment, number of the chunk in it)

# Work between two breaths of the event loop while a chunk is checked: about 1 ms.
CHECK_STEP_BYTES = 1024 * 1024
CHECK_STEP_BATCHES = 256
_BATCH_COST_BYTES = CHECK_STEP_BYTES // CHECK_STEP_BATCHES
_MEMORY_PER_BATCH_BYTES = 16
_MEMORY_FIXED_BYTES = 600
_epoch_start = attrgetter("start_offset")


class Chunk:
    """Whole batches of one segment. `ends` are byte positions, `last_offsets` inclusive."""

    __slots__ = ("ends", "last_offsets", "memory_bytes", "read_ahead", "view")

    def __init__(self, content: bytes, last_offsets: array[int], ends: array[int]) -> None:
        self.view = memoryview(content)
        self.last_offsets = last_offsets
        self.ends = ends
        self.memory_bytes = len(content) + _MEMORY_PER_BATCH_BYTES * len(ends) + _MEMORY_FIXED_BYTES
        self.read_ahead = False  # read before anybody asked, and not used yet

    def cut(self, from_offset: int, bytes_max: int, min_one: bool) -> tuple[int, int, int]:
        """(start, end, last offset) of the batches for a read, by the rules of record_batch.cut.

        Nothing found or nothing that fits: start == end, and the last offset is -1.
        """
        first = bisect_left(self.last_offsets, from_offset)
        if first == len(self.ends):
            return 0, 0, -1
        start = self.ends[first - 1] if first else 0
        after = bisect_right(self.ends, start + bytes_max, first)
        if after == first:
            if not min_one:
                return start, start, -1
            after = first + 1
        return start, self.ends[after - 1], self.last_offsets[after - 1]

    def base_offset_at(self, position: int) -> int:
        """The base offset of the batch that begins at `position`."""
        return int.from_bytes(self.view[position : position + 8], "big", signed=True)


def check_chunk(
    content: bytes, first_offset: int, last_offset: int, epochs: Sequence[EpochStart] = ()
) -> Iterator[Chunk | None]:
    """Check every batch; yields None where the caller may breathe, and at last the Chunk.

    Raises CorruptSegment: a CRC-32C or header that is wrong, a batch cut at the end, offsets that
    do not rise, or others than the index promised. The CRC does not cover base offset and leader
    epoch. In a log without holes a changed base offset runs into a neighbour or the index; the
    leader epoch must be the one that the segment's metadata have for that offset, or -1 (none).
    """
    last_offsets, ends = array("q"), array("q")
    before = first_offset - 1
    # A segment may begin inside a batch, so its first epoch also holds below that epoch's start.
    e = max(0, bisect_right(epochs, first_offset, key=_epoch_start) - 1)
    work = 0
    try:
        for header in walk(content):
            base = header.base_offset
            if base <= before or (not ends and base != first_offset):
                raise CorruptSegment(f"base offset {base} at byte {header.position}")
            if not check_crc(content, header):
                raise CorruptSegment(f"CRC of the batch with base offset {base} is wrong")
            while e + 1 < len(epochs) and epochs[e + 1].start_offset <= base:
                e += 1
            if epochs and header.partition_leader_epoch not in (epochs[e].epoch, -1):
                raise CorruptSegment(
                    f"leader epoch {header.partition_leader_epoch} at base offset {base}"
                )
            before = header.last_offset
            last_offsets.append(before)
            ends.append(header.end)
            work += header.size + _BATCH_COST_BYTES
            if work >= CHECK_STEP_BYTES:
                work = 0
                yield None
    except WireError as error:
        raise CorruptSegment(str(error)) from error
    if not ends or ends[-1] != len(content) or before != last_offset:
        end = ends[-1] if ends else 0
        raise CorruptSegment(
            f"batches end at byte {end} of {len(content)} with offset {before}, "
            f"not with {last_offset}"
        )
    yield Chunk(content, last_offsets, ends)


class ChunkCache(LRUCache[ChunkKey, Chunk]):
    """Least recently used goes first. One chunk that is larger than the cache is kept beside it.

    Without that, a batch larger than the cache could never be delivered by a store that needs
    longer than a fetch waits.
    """

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max, getsizeof=lambda chunk: chunk.memory_bytes)
        self._oversized: tuple[ChunkKey, Chunk] | None = None
        self.read_ahead_bytes = 0  # of chunks read ahead and not used yet

    def find(self, key: ChunkKey) -> Chunk | None:
        """For serving: counts a hit, and the chunk as used."""
        chunk = self.get(key)
        if chunk is None:
            if self._oversized is None or self._oversized[0] != key:
                return None
            chunk = self._oversized[1]
        if chunk.read_ahead:
            chunk.read_ahead = False
            self.read_ahead_bytes -= chunk.memory_bytes
        CHUNK_CACHE_HITS.inc()
        return chunk

    def holds(self, key: ChunkKey) -> bool:
        """Without touching the order of eviction."""
        return key in self or (self._oversized is not None and self._oversized[0] == key)

    def keep(self, key: ChunkKey, chunk: Chunk, read_ahead: bool) -> None:
        CHUNK_CACHE_MISSES.inc()
        if chunk.memory_bytes > self.maxsize:
            self._oversized = (key, chunk)
            return
        if key in self:
            del self[key]
        self[key] = chunk
        if read_ahead:
            chunk.read_ahead = True
            self.read_ahead_bytes += chunk.memory_bytes
        CHUNK_CACHE_BYTES.set(self.currsize)

    def popitem(self) -> tuple[ChunkKey, Chunk]:
        """Called by cachetools to make room."""
        key, chunk = super().popitem()
        CHUNK_CACHE_EVICTIONS.inc()
        return key, chunk

    def __delitem__(self, key: ChunkKey) -> None:
        chunk = Cache.__getitem__(self, key)
        if chunk.read_ahead:
            chunk.read_ahead = False
            self.read_ahead_bytes -= chunk.memory_bytes
        super().__delitem__(key)
