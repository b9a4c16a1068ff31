"""What the read side keeps in memory of the archive: layouts, aborted lists, chunks, damage.

All of it can be read again, all of it is bounded, and nothing gets in unchecked.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from cachetools import LRUCache

from fetchproxy.config.sections import RemoteFetchConfig
from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn, ByteRange, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.budget_metrics import INDEX_CACHE_BYTES
from fetchproxy.remote_fetch.chunk_cache import ChunkCache, ChunkKey
from fetchproxy.remote_fetch.segment_layout import SegmentLayout

# Places known to be damaged; beyond that the oldest is forgotten and found again.
DAMAGED_MAX = 10_000
_ABORTED_TXN_BYTES = 120


@dataclass(frozen=True, slots=True)
class NeedView:
    """A read cannot go on before the archive's view is at least this recent (loop time, s)."""

    tip: TopicIdPartition
    not_older_than: float

    @property
    def key(self) -> Hashable:
        return "view", self.tip


@dataclass(frozen=True, slots=True)
class NeedLayout:
    metadata: RemoteLogSegmentMetadata

    @property
    def key(self) -> Hashable:
        return "index", self.metadata.segment_id.id.int


@dataclass(frozen=True, slots=True)
class NeedAborted:
    metadata: RemoteLogSegmentMetadata

    @property
    def key(self) -> Hashable:
        return "txn", self.metadata.segment_id.id.int


@dataclass(frozen=True, slots=True)
class NeedChunk:
    metadata: RemoteLogSegmentMetadata
    layout: SegmentLayout
    number: int

    @property
    def key(self) -> ChunkKey:
        return self.metadata.segment_id.id.int, self.number

    @property
    def byte_range(self) -> ByteRange:
        return self.layout.byte_range(self.number)


Need = NeedView | NeedLayout | NeedAborted | NeedChunk


class ArchiveMemory:
    def __init__(self, config: RemoteFetchConfig) -> None:
        self.chunk_bytes = config.chunk_bytes
        self.chunks = ChunkCache(config.chunk_cache_bytes_max)
        # One limit for both kinds, as both come from small objects beside the segment.
        self._indexes: LRUCache[Hashable, SegmentLayout | tuple[AbortedTxn, ...]] = LRUCache(
            config.index_cache_bytes_max,
            # Never "too large to keep": what is read but not kept would be read for ever.
            getsizeof=lambda value: min(_index_bytes(value), config.index_cache_bytes_max),
        )
        self._damaged: LRUCache[Hashable, tuple[CorruptSegment, float]] = LRUCache(DAMAGED_MAX)
        self._damaged_for_s = config.corrupt_retry_ms / 1000

    # `segment` is the int of the segment's UUID, see ChunkKey.

    def layout(self, segment: int) -> SegmentLayout | None:
        try:
            found = self._indexes[segment]
        except KeyError:
            return None
        return found if isinstance(found, SegmentLayout) else None

    def keep_layout(self, segment: int, layout: SegmentLayout) -> None:
        self._indexes[segment] = layout
        INDEX_CACHE_BYTES.set(self._indexes.currsize)

    def aborted(self, segment: int) -> tuple[AbortedTxn, ...] | None:
        found = self._indexes.get(("txn", segment))
        return found if isinstance(found, tuple) else None

    def keep_aborted(self, segment: int, entries: tuple[AbortedTxn, ...]) -> None:
        self._indexes["txn", segment] = entries
        INDEX_CACHE_BYTES.set(self._indexes.currsize)

    def mark_damaged(self, need: Need, error: CorruptSegment, now: float) -> None:
        self._damaged[need.key] = (error, now + self._damaged_for_s)

    def damage(self, need: Need, now: float) -> CorruptSegment | None:
        """Why `need` cannot be had; None where it may be read (again)."""
        found = self._damaged.get(need.key)
        if found is None:
            return None
        if now >= found[1]:
            del self._damaged[need.key]
            return None
        return found[0]


def _index_bytes(value: SegmentLayout | tuple[AbortedTxn, ...]) -> int:
    if isinstance(value, SegmentLayout):
        return value.memory_bytes
    return 100 + _ABORTED_TXN_BYTES * len(value)
