"""From an offset to bytes, out of memory only: view → segment → chunk → cut. No I/O, no waiting."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import NamedTuple

from cachetools import LRUCache
from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.config.schema import RemoteFetchConfig
from fetchproxy.errors import CorruptSegment, FetchProxyError, OffsetLost, OffsetNotArchived
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.model import (
    AbortedTxn,
    ByteRange,
    IsolationLevel,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.observability.metrics import INDEX_CACHE_BYTES
from fetchproxy.reading.chunk_cache import Chunk, ChunkCache, ChunkKey
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.segments.remote_log_index import SegmentLayout

# So long a fetch waits for the archive alone, whatever its max_wait: a store is slower than a
# broker's disk, and a client that waits for less would be answered empty again and again. Kafka's
# own tiered storage waits as long (`remote.fetch.max.wait.ms` by default).
READ_WAIT_MIN_S = 0.5
# Partitions that are read for one fetch: looking for one in memory takes some 10 µs of one step.
# Answers are full with fewer; where partitions are small, the next fetches have the others.
PARTITIONS_READ_MAX = 200


# Both are made for every fetch: a named tuple in a third of a frozen dataclass's time.
class RemoteReadRequest(NamedTuple):
    """One partition of a fetch; `bytes_max` is the partition's own limit. `client` is who asks: the
    fetchers serve clients evenly. None: the proxy.
    """

    tip: TopicIdPartition
    fetch_offset: int
    bytes_max: int
    isolation: IsolationLevel
    client: Hashable = None


class RemoteReadResult(NamedTuple):
    """What the archive has for one request.

    `records`: whole stored batches in order, byte for byte; the first one contains or follows the
    fetch offset, so its first records may lie below it (clients skip those). Empty: nothing yet.
    `aborted_txns`: under READ_COMMITTED those with an offset among the returned ones; else ().
    `error`: OffsetNotArchived, judged by a view that is newer than the request; OffsetLost;
    CorruptSegment; or StorageUnavailable, which is stated only after `remote_error_after_ms` of
    failures. `skipped`: the recorded gap between the fetch offset and the records, as (first, last)
    lost offsets. `view`: the archive that the records are of.
    """

    records: tuple[memoryview | bytes, ...]
    aborted_txns: tuple[AbortedTxn, ...]
    error: FetchProxyError | None
    size_bytes: int
    skipped: tuple[int, int] | None = None
    view: PartitionView | None = None


NOTHING_YET = RemoteReadResult((), (), None, 0)


def kafka_error_code(error: FetchProxyError) -> ErrorCode:
    """For the `error_code` of a partition in a Fetch answer.

    Only codes that every client knows: Java's consumer throws on others. An outage is never
    OFFSET_OUT_OF_RANGE, because clients then skip data for good, and damage is not CORRUPT_MESSAGE,
    on which consumers stop for good.
    """
    if isinstance(error, OffsetNotArchived):
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if isinstance(error, OffsetLost):
        # No client takes it for an error that passes: applications are told, as was asked for.
        # OFFSET_OUT_OF_RANGE would have `earliest` begin again and come back here for ever, and
        # `latest` skip what is archived. franz-go asks again on CORRUPT_MESSAGE, and says nothing.
        return ErrorCode.INVALID_RECORD
    return ErrorCode.KAFKA_STORAGE_ERROR


class CompletionReason(Enum):
    """Why a DelayedRemoteFetch ended; the value is the label of its metric."""

    DATA = "data"  # at least one request has records
    ERROR = "error"  # an error that neither a retry nor waiting can mend
    DEADLINE = "deadline"
    CANCELLED = "cancelled"  # its owner is gone, or the purgatory closes


# NeedChunks known to be damaged; beyond that the oldest is forgotten and found again.
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
        return self.metadata.segment_id.id.int  # alone: it is looked up for every read


@dataclass(frozen=True, slots=True)
class NeedAborted:
    metadata: RemoteLogSegmentMetadata

    @property
    def key(self) -> Hashable:
        return "txn", self.metadata.segment_id.id.int


class NeedChunk(NamedTuple):
    """A chunk of a segment, also the place in which a read begins or ends."""

    metadata: RemoteLogSegmentMetadata
    layout: SegmentLayout
    number: int

    @property
    def key(self) -> ChunkKey:
        return self.metadata.segment_id.id.int, self.number

    @property
    def byte_range(self) -> ByteRange:
        return self.layout.byte_range(self.number)

    @property
    def up_to(self) -> int | None:
        """The last offset that counts, where the objects hold more; None: all that they hold."""
        metadata = self.metadata
        return None if metadata.copied_end_offset is None else metadata.end_offset


Need = NeedView | NeedLayout | NeedAborted | NeedChunk


class ArchiveMemory:
    """All of it can be read again, all of it is bounded, and nothing gets in unchecked."""

    def __init__(self, config: RemoteFetchConfig, limits: ReadingLimits) -> None:
        self.chunk_bytes = limits.chunk_bytes
        self.chunks = ChunkCache(config.chunk_cache_bytes_max)
        # One limit for both kinds, as both come from small objects beside the segment.
        self._indexes: LRUCache[Hashable, SegmentLayout | tuple[AbortedTxn, ...]] = LRUCache(
            config.index_cache_bytes_max,
            # Never "too large to keep": what is read but not kept would be read for ever.
            getsizeof=lambda value: min(_index_bytes(value), config.index_cache_bytes_max),
        )
        self.damaged: LRUCache[Hashable, tuple[CorruptSegment, float]] = LRUCache(DAMAGED_MAX)
        self.damaged_for_s = limits.corrupt_retry_ms / 1000

    # `segment` is the int of the segment's UUID, see ChunkKey.

    def layout(self, segment: int) -> SegmentLayout | None:
        try:
            found = self._indexes[segment]
        except KeyError:
            return None
        return found if isinstance(found, SegmentLayout) else None

    def aborted(self, segment: int) -> tuple[AbortedTxn, ...] | None:
        found = self._indexes.get(("txn", segment))
        return found if isinstance(found, tuple) else None

    def keep(
        self, need: NeedLayout | NeedAborted, value: SegmentLayout | tuple[AbortedTxn, ...]
    ) -> None:
        self._indexes[need.key] = value
        INDEX_CACHE_BYTES.set(self._indexes.currsize)

    def damage(self, need: Need, now: float) -> CorruptSegment | None:
        """Why `need` cannot be had; None where it may be read (again)."""
        found = self.damaged.get(need.key)
        if found is None:
            return None
        if now >= found[1]:
            del self.damaged[need.key]
            return None
        return found[0]


def _index_bytes(value: SegmentLayout | tuple[AbortedTxn, ...]) -> int:
    if isinstance(value, SegmentLayout):
        return value.memory_bytes
    return 100 + _ABORTED_TXN_BYTES * len(value)


# `read` answers with a result or with the one thing it lacks; whoever drives it loads that and
# asks again. So the whole way of a read is one synchronous function.

NO_CHUNKS: Mapping[ChunkKey, Chunk] = {}
_marker_offset = attrgetter("last_offset")


class Served(NamedTuple):
    """A read with data: where it ended, so that the reader's next one can be prepared."""

    result: RemoteReadResult
    next_offset: int
    place: NeedChunk
    chunks: tuple[Chunk, ...]  # that it was cut from; `place` is the last one


class _Answer:
    """A read as it grows; `records` has a piece for each chunk."""

    __slots__ = ("chunks", "last", "place", "records", "segments", "size_bytes")

    place: NeedChunk  # of the last piece
    last: int  # offset, inclusive

    def __init__(self) -> None:
        self.records: list[memoryview | bytes] = []
        self.chunks: list[Chunk] = []
        self.segments: list[RemoteLogSegmentMetadata] = []
        self.size_bytes = 0

    def add(self, place: NeedChunk, chunk: Chunk, start: int, end: int, last: int) -> None:
        records = chunk.view[start:end]
        self.records.append(records)
        self.chunks.append(chunk)
        if not self.segments or place.metadata.segment_id != self.segments[-1].segment_id:
            self.segments.append(place.metadata)
        self.size_bytes += len(records)
        self.place = place
        self.last = last


@dataclass(eq=False, repr=False)
class SegmentReader:
    """`_skips_gaps`: a read within a recorded gap has what lies behind it, as Kafka reads a hole
    that compaction left; else it has OffsetLost.
    """

    _rlmm: PartitionViews
    _memory: ArchiveMemory
    _skips_gaps: bool = True

    def read(
        self,
        request: RemoteReadRequest,
        bytes_max: int,
        min_one: bool,
        fresh_since: float,
        now: float,
        held: Mapping[ChunkKey, Chunk] = NO_CHUNKS,
        view: PartitionView | None = None,
    ) -> Served | RemoteReadResult | Need:
        """Served: data. RemoteReadResult: an error, or NOTHING_YET where no batch fits.

        At most `bytes_max` and `request.bytes_max` bytes; with `min_one` the first batch comes
        whole even when it is larger. "Not archived" is said only by a view that was read at or
        after `fresh_since`. `held` are chunks that the caller keeps alive, cached or not. `view`:
        the archive, if the caller has just looked at it.
        """
        view = view or self._rlmm.view(request.tip)
        if view is None:
            return NeedView(request.tip, fresh_since)
        place = self.locate(view, request.fetch_offset, fresh_since, now)
        if not isinstance(place, NeedChunk):
            return _failed(place) if isinstance(place, FetchProxyError) else place
        if request.isolation is IsolationLevel.READ_COMMITTED and self._lacks_aborted(
            place.metadata
        ):
            # Before the chunk: who has that has all, and holds no memory while it waits for more.
            return self._need_or_damage(NeedAborted(place.metadata), now)
        chunk = held.get(place.key) if held else None
        chunk = chunk or self._memory.chunks.find(place.key)
        if chunk is None:
            return self._need_or_damage(place, now)
        limit = min(bytes_max, request.bytes_max)
        up_to = place.up_to
        start, end, last = chunk.cut(request.fetch_offset, limit, min_one, up_to)
        if start == end:
            if up_to is not None and chunk.readable_from(request.fetch_offset, up_to) == 0:
                further = request._replace(fetch_offset=up_to + 1)  # nothing more counts here
                return self.read(further, bytes_max, min_one, fresh_since, now, held, view)
            return NOTHING_YET
        answer = _Answer()
        answer.add(place, chunk, start, end, last)
        if end == chunk.readable_end(up_to):
            self._go_on(view, answer, limit, request.isolation)
        aborted: tuple[AbortedTxn, ...] = ()
        if request.isolation is IsolationLevel.READ_COMMITTED:
            aborted = self._aborted(answer.segments, chunk.base_offset_at(start), answer.last)
        skipped = None
        if place.metadata.start_offset > request.fetch_offset:
            skipped = view.gap_around(place.metadata.start_offset - 1)
        records, size_bytes = tuple(answer.records), answer.size_bytes
        result = RemoteReadResult(records, aborted, None, size_bytes, skipped, view)
        return Served(result, answer.last + 1, answer.place, tuple(answer.chunks))

    def locate(
        self, view: PartitionView, offset: int, fresh_since: float, now: float
    ) -> NeedChunk | Need | FetchProxyError:
        """The chunk with the first batch that ends at or above `offset`, in memory or not.

        A segment that has none is passed over. That a gap is one, and that nothing is archived,
        is said only by a view that was read at or after `fresh_since`.
        """
        wanted = offset
        while True:
            metadata = view.segment_at_or_after(wanted)
            if metadata is None or metadata.start_offset > wanted:
                if view.read_at < fresh_since:
                    return NeedView(view.tip, fresh_since)
                if view.uncertain_at(wanted):
                    return CorruptSegment(
                        f"{view.tip}: the metadata of the segment with {offset} is unreadable"
                    )
                gap = view.gap_around(wanted)
                if gap is None:
                    return OffsetNotArchived(
                        f"{view.tip}: offset {offset} is in no segment; the archive holds "
                        f"{view.log_start_offset} to {view.log_end_offset}"
                    )
                if not self._skips_gaps:
                    return OffsetLost(
                        f"{view.tip}: offsets {gap[0]} to {gap[1]} were lost before they could be "
                        "archived"
                    )
                wanted = gap[1] + 1
                continue
            layout = self._memory.layout(metadata.segment_id.id.int)
            if layout is None:
                need = NeedLayout(metadata)
                return self._memory.damage(need, now) or need
            number = layout.chunk_at_or_after(wanted)
            if _counts(metadata, layout, number):
                return NeedChunk(metadata, layout, number)
            wanted = metadata.end_offset + 1

    def following(
        self, place: NeedChunk, count: int, isolation: IsolationLevel, now: float
    ) -> list[NeedChunk | NeedLayout | NeedAborted]:
        """What to read ahead: the missing ones of the next `count` chunks, in their order.

        Across segment borders, but never across a gap, nor past what is damaged. Segments' indexes
        come from twice as far ahead, as their chunks can be asked for only with them in memory.
        """
        needs: list[NeedChunk | NeedLayout | NeedAborted] = []
        view = self._rlmm.view(place.metadata.topic_id_partition)
        if view is None:
            return needs
        metadata, number = place.metadata, place.number + 1
        reached, indexes_up_to = 0, 2 * count + 1
        while reached < indexes_up_to:
            missing, chunks = self._segment_ahead(metadata, number, count - reached, isolation)
            if any(self._memory.damage(need, now) is not None for need in missing):
                break
            needs += missing
            reached += chunks
            following = view.segment_at_or_after(metadata.end_offset + 1)
            if following is None or following.start_offset > metadata.end_offset + 1:
                break
            # It may overlap this one, so it is entered by offset and not at its first byte.
            metadata, number = following, -1
        return needs

    def _segment_ahead(
        self,
        metadata: RemoteLogSegmentMetadata,
        number: int,
        count: int,
        isolation: IsolationLevel,
    ) -> tuple[list[NeedChunk | NeedLayout | NeedAborted], int]:
        """Of one segment from chunk `number` on (-1: from its first offset): what is missing of
        `count` chunks, and how many there are up to the next segment, about.
        """
        needs: list[NeedChunk | NeedLayout | NeedAborted] = []
        if isolation is IsolationLevel.READ_COMMITTED and self._lacks_aborted(metadata):
            needs.append(NeedAborted(metadata))
        layout = self._memory.layout(metadata.segment_id.id.int)
        if layout is None:
            needs.append(NeedLayout(metadata))
            return needs, metadata.segment_size_bytes // self._memory.chunk_bytes + 1
        begin = layout.chunk_at_or_after(metadata.start_offset) if number < 0 else number
        end = bisect_right(layout.first_offsets, metadata.end_offset)  # it may have been clipped
        for ahead in range(begin, min(begin + count, end)):
            need = NeedChunk(metadata, layout, ahead)
            if not self._memory.chunks.holds(need.key):
                needs.append(need)
        return needs, max(end - begin, number < 0)  # 1 at least where it is entered

    def _after(self, view: PartitionView, place: NeedChunk) -> NeedChunk | None:
        """The chunk after `place`, as far as layouts are in memory: also across a segment border,
        but never across a gap.

        The next segment may overlap this one, so it is entered by offset and not at its first byte.
        """
        if _counts(place.metadata, place.layout, place.number + 1):
            return NeedChunk(place.metadata, place.layout, place.number + 1)
        border = place.metadata.end_offset + 1
        metadata = view.segment_at_or_after(border)
        if metadata is None or metadata.start_offset > border:
            return None
        layout = self._memory.layout(metadata.segment_id.id.int)
        if layout is None:
            return None
        number = layout.chunk_at_or_after(border)
        return NeedChunk(metadata, layout, number) if _counts(metadata, layout, number) else None

    def _go_on(
        self, view: PartitionView, answer: _Answer, limit: int, isolation: IsolationLevel
    ) -> None:
        """Add batches of the chunks that follow, as far as they are in memory."""
        while answer.size_bytes < limit:
            after = self._after(view, answer.place)
            if after is None:
                return
            if isolation is IsolationLevel.READ_COMMITTED and self._lacks_aborted(after.metadata):
                return
            chunk = self._memory.chunks.find(after.key)
            if chunk is None:
                return
            room = limit - answer.size_bytes
            start, end, last = chunk.cut(answer.last + 1, room, min_one=False, up_to=after.up_to)
            if start == end:
                return
            answer.add(after, chunk, start, end, last)
            if end < chunk.readable_end(after.up_to):
                return

    def _need_or_damage(
        self, need: NeedChunk | NeedAborted, now: float
    ) -> RemoteReadResult | NeedChunk | NeedAborted:
        damage = self._memory.damage(need, now)
        return need if damage is None else _failed(damage)

    def _lacks_aborted(self, metadata: RemoteLogSegmentMetadata) -> bool:
        return (
            metadata.has_aborted_txns and self._memory.aborted(metadata.segment_id.id.int) is None
        )

    def _aborted(
        self, segments: list[RemoteLogSegmentMetadata], first: int, last: int
    ) -> tuple[AbortedTxn, ...]:
        """Aborted transactions with an offset in `first` … `last`, both inclusive.

        Each segment lists all that overlap it, so those that were read from are enough. A
        transaction that both list ends where the later one says.
        """
        found: dict[tuple[int, int], AbortedTxn] = {}
        for metadata in segments:
            if not metadata.has_aborted_txns:
                continue
            entries = self._memory.aborted(metadata.segment_id.id.int) or ()
            # In the order of their markers, and none after one whose LSO is above `last` can reach
            # down to it. Kafka's TransactionIndex.collectAbortedTxns.
            for i in range(bisect_left(entries, first, key=_marker_offset), len(entries)):
                entry = entries[i]
                if entry.first_offset <= last:
                    key = (entry.producer_id, entry.first_offset)
                    known = found.get(key)
                    if known is None or known.last_offset < entry.last_offset:
                        found[key] = entry
                if entry.last_stable_offset > last:
                    break
        return tuple(sorted(found.values()))


def _counts(metadata: RemoteLogSegmentMetadata, layout: SegmentLayout, number: int) -> bool:
    """There is such a chunk, and it does not begin above where the segment was clipped."""
    return number < len(layout) and layout.first_offsets[number] <= metadata.end_offset


def _failed(error: FetchProxyError) -> RemoteReadResult:
    return RemoteReadResult((), (), error, 0)
