"""Chunks in memory: checked once, cut by bisection, served as views of the stored bytes."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Sequence
from struct import Struct

from cachetools import Cache, LRUCache
from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.record_batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
)

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import EpochStart
from fetchproxy.observability.metrics import (
    CHUNK_CACHE_BYTES,
    CHUNK_CACHE_EVICTIONS,
    CHUNK_CACHE_HIT_BYTES,
    CHUNK_CACHE_HITS,
    CHUNK_CACHE_MISSES,
    CHUNKS_BYTES,
    READ_AHEAD_UNUSED,
)
from fetchproxy.segments.leader_epochs import NOT_COUNTED

# Only this module makes chunks, so every chunk in the cache has passed its CRC-32C. The cache is
# sized in bytes and knows which chunks were read ahead and not used yet.

# (UUID of the segment as an int, which hashes without Python code; number of the chunk in it).
ChunkKey = tuple[int, int]

_MEMORY_PER_BATCH_BYTES = 16
_MEMORY_FIXED_BYTES = 600
# Work between two yields to the event loop: well below 1 ms.
STEP_BYTES = 1024 * 1024
_BATCH_COST_BYTES = 4096  # cost of a batch besides its bytes
_BATCH_BYTES_MIN = HEADER_BYTES - LOG_OVERHEAD_BYTES
_OFFSET_MAX = 2**63 - 1
# Base offset, length, leader epoch, magic, CRC, last offset delta.
_FIELDS = Struct(">qiibI2xi")


class Chunk:
    """Whole batches of one segment. `ends` are byte positions, `last_offsets` inclusive."""

    __slots__ = ("awaited", "ends", "last_offsets", "memory_bytes", "read_ahead", "view")

    def __init__(
        self, content: bytes | bytearray, last_offsets: array[int], ends: array[int]
    ) -> None:
        self.view = memoryview(content).toreadonly()
        self.last_offsets = last_offsets
        self.ends = ends
        self.memory_bytes = len(content) + _MEMORY_PER_BATCH_BYTES * len(ends) + _MEMORY_FIXED_BYTES
        self.read_ahead = False  # read before a client asked for it, and not used yet
        self.awaited = False  # a client asked before it was loaded, and has not used it yet

    def cut(
        self, from_offset: int, bytes_max: int, min_one: bool, up_to: int | None = None
    ) -> tuple[int, int, int]:
        """(start, end, last offset) of the batches for a read, by the rules of record_batch.cut.

        `up_to`: the last offset (inclusive) that may be read. None: all may be read. If no batch
        is found or fits, start == end, and the last offset is -1.
        """
        count = len(self.ends) if up_to is None else bisect_right(self.last_offsets, up_to)
        first = bisect_left(self.last_offsets, from_offset, 0, count)
        if first == count:
            return 0, 0, -1
        start = self.ends[first - 1] if first else 0
        after = bisect_right(self.ends, start + bytes_max, first, count)
        if after == first:
            if not min_one:
                return start, start, -1
            after = first + 1
        return start, self.ends[after - 1], self.last_offsets[after - 1]

    def readable_end(self, up_to: int | None) -> int:
        """The position after the last batch that ends at or below `up_to`; None: after the last."""
        if up_to is None:
            return len(self.view)
        count = bisect_right(self.last_offsets, up_to)
        return self.ends[count - 1] if count else 0

    def readable_from(self, offset: int, up_to: int) -> int:
        """How many batches end at or above `offset` and at or below `up_to`."""
        first = bisect_left(self.last_offsets, offset)
        return max(bisect_right(self.last_offsets, up_to) - first, 0)

    def base_offset_at(self, position: int) -> int:
        """The base offset of the batch that begins at `position`."""
        return int.from_bytes(self.view[position : position + 8], "big", signed=True)


class ChunkCache(LRUCache[ChunkKey, Chunk]):
    """Evicts the least recently used chunk first. One chunk larger than the cache is kept beside
    it. Otherwise a store that is slower than a fetch's wait could never deliver that chunk.
    """

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max, getsizeof=lambda chunk: chunk.memory_bytes)
        self._oversized: tuple[ChunkKey, Chunk] | None = None
        self.read_ahead_bytes = 0  # of chunks read ahead and not used yet

    def find(self, key: ChunkKey) -> Chunk | None:
        """The chunk, for serving: counts a hit and marks the chunk as used."""
        try:
            chunk = self[key]
        except KeyError:
            if self._oversized is None or self._oversized[0] != key:
                return None
            chunk = self._oversized[1]
        if chunk.read_ahead:
            chunk.read_ahead = False
            self.read_ahead_bytes -= chunk.memory_bytes
        CHUNK_CACHE_HITS.inc()
        CHUNK_CACHE_HIT_BYTES.inc(len(chunk.view))
        return chunk

    def holds(self, key: ChunkKey) -> bool:
        """Does not change the order of eviction."""
        return key in self or (self._oversized is not None and self._oversized[0] == key)

    def keep(self, key: ChunkKey, chunk: Chunk, read_ahead: bool) -> None:
        CHUNK_CACHE_MISSES.inc()
        chunk.awaited = not read_ahead
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
        CHUNKS_BYTES.set(self.currsize)

    def popitem(self) -> tuple[ChunkKey, Chunk]:
        """cachetools calls this to make room."""
        key, chunk = super().popitem()
        CHUNK_CACHE_EVICTIONS.inc()
        return key, chunk

    def __delitem__(self, key: ChunkKey) -> None:
        chunk = Cache.__getitem__(self, key)
        if chunk.read_ahead:
            READ_AHEAD_UNUSED.inc()
            chunk.read_ahead = False
            self.read_ahead_bytes -= chunk.memory_bytes
        super().__delitem__(key)


def check_chunk(
    content: bytes | bytearray,
    first_offset: int,
    last_offset: int,
    epochs: Sequence[EpochStart] = (),
    epochs_up_to: int = _OFFSET_MAX,
    crc_known: bool = False,
) -> Generator[None, None, Chunk]:
    """Check every batch and return the Chunk. Yields when the caller may let other work run.

    Raises CorruptSegment if a CRC-32C or header is wrong, the last batch is cut off, offsets do
    not rise, or offsets differ from the index. The CRC does not cover base offset and leader epoch.
    In a log without holes, a changed base offset contradicts a neighbour or the index. The leader
    epoch must be the epoch that the segment's metadata has for that offset, or -1 (none), unless
    epochs do not count there. The metadata has no epochs for offsets above `epochs_up_to`.
    `crc_known`: these bytes passed this check before, so the CRCs of the batches are not computed
    again.

    The one check that every byte passes before it is served. Pure.

    It is one flat loop over the few header fields it needs, because it runs for every batch that is
    read from the store. It costs a third of a walk that makes header objects.
    """
    view, limit = memoryview(content), len(content)
    last_offsets, ends = array("q"), array("q")
    crc_of, unpack_from = crc32c, _FIELDS.unpack_from
    later_epochs = list(epochs[1:])
    # A segment may begin inside a batch, so its first epoch also holds below that epoch's start.
    epoch = epochs[0].epoch if epochs else NOT_COUNTED
    epoch_until = later_epochs[0].start_offset if later_epochs else _OFFSET_MAX
    before, pos, checkpoint_at = first_offset - 1, 0, STEP_BYTES
    while limit - pos >= HEADER_BYTES:
        base, length, batch_epoch, magic, crc, delta = unpack_from(content, pos)
        end = pos + length + LOG_OVERHEAD_BYTES
        if magic != MAGIC or length < _BATCH_BYTES_MIN or delta < 0 or end > limit:
            break
        if base <= before or (pos == 0 and base != first_offset):
            raise CorruptSegment(f"base offset {base} at byte {pos}, after {before}")
        if not crc_known and crc_of(view[pos + CRC_COVERS_FROM : end]) != crc:
            raise CorruptSegment(f"CRC of the batch with base offset {base} at byte {pos}")
        while base >= epoch_until:
            epoch = later_epochs.pop(0).epoch
            epoch_until = later_epochs[0].start_offset if later_epochs else _OFFSET_MAX
        if batch_epoch != epoch and -1 not in (batch_epoch, epoch) and base <= epochs_up_to:
            raise CorruptSegment(f"leader epoch {batch_epoch}, not {epoch}, at base offset {base}")
        before = base + delta
        last_offsets.append(before)
        ends.append(end)
        pos = end
        if pos + _BATCH_COST_BYTES * len(ends) >= checkpoint_at:
            checkpoint_at = pos + _BATCH_COST_BYTES * len(ends) + STEP_BYTES
            yield
    if pos != limit or not ends:
        raise CorruptSegment(f"no whole batch at byte {pos} of {limit}")
    if before != last_offset:
        raise CorruptSegment(f"the last offset is {before}, by the index {last_offset}")
    return Chunk(content, last_offsets, ends)
