"""From an offset to bytes, in memory only: view → segment → chunk → cut. No I/O, no waiting."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from cachetools import LRUCache
from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.record_batch import BatchTimes

from fetchproxy.config.schema import RemoteFetchConfig
from fetchproxy.errors import CorruptSegment, FetchProxyError, OffsetLost, OffsetNotArchived
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.model import (
    ByteRange,
    IsolationLevel,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.observability.metrics import INDEX_CACHE_BYTES
from fetchproxy.reading.chunk_cache import Chunk, ChunkCache, ChunkKey
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.segments.aborted_index import AbortedIndex, AbortedSpan
from fetchproxy.segments.overlaps import first_difference
from fetchproxy.segments.remote_log_index import SegmentLayout
from fetchproxy.segments.side_files import OPEN_TXNS_MAX

# A fetch that only the archive can answer waits this long, even if its max_wait is shorter. A store
# is slower than a broker's disk, so a client with a shorter wait would get empty responses again
# and again. Kafka's own tiered storage waits as long (`remote.fetch.max.wait.ms` by default).
READ_WAIT_MIN_S = 0.5
# Partitions that are read for one fetch. To look for one in memory takes some 10 µs of one step.
# Fewer partitions usually fill a response. If partitions are small, the next fetches read the rest.
PARTITIONS_READ_MAX = 200
# Needs remembered as damaged. Beyond that, the longest unused is forgotten and found again.
DAMAGED_MAX = 10_000
# Aborted transactions in the response to one fetch, except of its first partition. Each takes 17
# bytes of the response and half a microsecond. A further partition waits for the next fetch.
FETCHED_TXNS_MAX = 20_000
NO_CHUNKS: Mapping[ChunkKey, Chunk] = {}


# Made for every fetch: a named tuple takes a third of a frozen dataclass's time.
class RemoteReadRequest(NamedTuple):
    """One partition of a fetch. `bytes_max`: the partition's own limit. `client`: the client that
    asks; the fetchers serve clients evenly. None: the proxy itself asks.
    """

    tp: TopicIdPartition
    fetch_offset: int
    bytes_max: int
    isolation: IsolationLevel
    client: Hashable = None


@dataclass(slots=True)
class RemoteReadResult:
    """What the archive has for one request. It stays as `SegmentReader` has made it.

    `error`: OffsetNotArchived, judged by a view that is newer than the request; OffsetLost;
    CorruptSegment; or StorageUnavailable, only after `remote_error_after_ms` of failures. `view`:
    the view that the records were found in. `records`: whole stored batches in order, byte for
    byte. The first batch contains or follows the fetch offset, so its first records may lie below
    that offset (clients skip those). Empty, without error: there is nothing yet. `aborted`: under
    READ_COMMITTED, the aborted transactions with an offset in the returned range, segment by
    segment (`aborted_index.txn_starts`); otherwise (). `skipped`: the recorded gap between the
    fetch offset and the records, as (first, last) lost offsets. `chunks`: for each piece of
    `records`, the chunk that it was cut from, and its place.
    """

    error: FetchProxyError | None = None
    view: PartitionView | None = None
    records: list[memoryview] = field(default_factory=list)
    size_bytes: int = 0
    next_offset: int = -1  # after the records
    aborted: list[AbortedSpan] = field(default_factory=list)
    txns: int = 0  # that `aborted` lists, some perhaps twice
    skipped: tuple[int, int] | None = None
    chunks: list[tuple[NeedChunk, Chunk]] = field(default_factory=list)

    def add(self, place: NeedChunk, chunk: Chunk, start: int, end: int, last: int) -> None:
        """`last`: the last offset (inclusive) in the bytes `start` up to `end` of the chunk."""
        self.records.append(chunk.view[start:end])
        self.chunks.append((place, chunk))
        self.size_bytes += end - start
        self.next_offset = last + 1

    def lists_txns(self, aborted: AbortedIndex, first: int, last: int) -> bool:
        """Adds the aborted transactions with an offset in `first` … `last`, which come behind the
        records. False: they are too many for one response.
        """
        spans, before = self.aborted, 0
        same = bool(spans) and spans[-1].index is aborted
        if same:
            first, before = spans[-1].first, spans[-1].count
        span = AbortedSpan(aborted, first, last)
        txns = self.txns - before + span.count
        if txns > OPEN_TXNS_MAX:
            return False
        spans[-1 if same else len(spans) :] = [span]
        self.txns = txns
        return True


def kafka_error_code(error: FetchProxyError) -> ErrorCode:
    """The `error_code` of a partition in a Fetch response.

    Only codes that every client knows, because Java's consumer throws on others. An outage is never
    OFFSET_OUT_OF_RANGE, because clients then skip data for good. Damage is never CORRUPT_MESSAGE,
    because consumers then stop for good.
    """
    if isinstance(error, OffsetNotArchived):
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if isinstance(error, OffsetLost):
        # No client treats INVALID_RECORD as temporary, so the application learns of the gap, as
        # configured. On OFFSET_OUT_OF_RANGE, `earliest` would start again and come back here for
        # ever, and `latest` would skip archived records. On CORRUPT_MESSAGE, franz-go asks again
        # without telling the application.
        return ErrorCode.INVALID_RECORD
    return ErrorCode.KAFKA_STORAGE_ERROR


class CompletionReason(Enum):
    """Why a DelayedRemoteFetch ended; the value is the label of its metric."""

    DATA = "data"  # at least one request has records
    ERROR = "error"  # an error that neither a retry nor waiting can repair
    DEADLINE = "deadline"
    CANCELLED = "cancelled"  # its client is gone, or the purgatory closes


@dataclass(frozen=True, slots=True)
class NeedView:
    """A read cannot go on before the archive's view is at least this recent (loop time, s)."""

    tp: TopicIdPartition
    not_older_than: float

    @property
    def key(self) -> Hashable:
        return "view", self.tp


@dataclass(frozen=True, slots=True)
class NeedLayout:
    metadata: RemoteLogSegmentMetadata

    @property
    def key(self) -> Hashable:
        return self.metadata.segment_id.id.int  # not a tuple: every read looks this up


@dataclass(frozen=True, slots=True)
class NeedAborted:
    metadata: RemoteLogSegmentMetadata

    @property
    def key(self) -> Hashable:
        return "txn", self.metadata.segment_id.id.int


class NeedChunk(NamedTuple):
    """A chunk of a segment. It also stands for the place where a read begins or ends."""

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
        """The last valid offset. None: all offsets that the objects hold are valid."""
        metadata = self.metadata
        return None if metadata.copied_end_offset is None else metadata.end_offset


Need = NeedView | NeedLayout | NeedAborted | NeedChunk


class ArchiveMemory:
    """All content can be read again, is bounded, and was checked before it was kept."""

    def __init__(self, config: RemoteFetchConfig, limits: ReadingLimits) -> None:
        self.chunk_bytes = limits.chunk_bytes
        self.chunks = ChunkCache(config.chunk_cache_bytes_max)
        # One limit for all kinds, because each is small beside its segment.
        self._index_bytes_max = config.index_cache_bytes_max
        self._indexes: LRUCache[Hashable, SegmentLayout | AbortedIndex | BatchTimes] = LRUCache(
            config.index_cache_bytes_max,
            # The largest has room beside it: a read needs both kinds at once, and would otherwise
            # read them again for ever. A layout is small.
            getsizeof=lambda value: min(value.memory_bytes, self._index_bytes_max * 3 // 4),
        )
        self.damaged: LRUCache[Hashable, tuple[CorruptSegment, float]] = LRUCache(DAMAGED_MAX)
        self.damaged_for_s = limits.corrupt_retry_ms / 1000

    def layout(self, metadata: RemoteLogSegmentMetadata) -> SegmentLayout | None:
        """None: the index has to be read. A segment of one chunk needs none (docs/adr/0095)."""
        try:
            known_layout = self._indexes[metadata.segment_id.id.int]
        except KeyError:
            if not 0 < metadata.segment_size_bytes <= self.chunk_bytes:
                return None
            presumed_layout = SegmentLayout.presumed(metadata)
            self.keep(NeedLayout(metadata), presumed_layout)
            return presumed_layout
        return known_layout if isinstance(known_layout, SegmentLayout) else None

    def aborted(self, segment: int) -> AbortedIndex | None:
        """`segment`: the int of the segment's UUID, see ChunkKey."""
        index = self._indexes.get(("txn", segment))
        return index if isinstance(index, AbortedIndex) else None

    def times(self, segment: int, base_offset: int) -> BatchTimes | None:
        """Of the batch at that offset, if many searches have asked for it."""
        times = self._indexes.get(("times", segment, base_offset))
        return times if isinstance(times, BatchTimes) else None

    def keep_times(self, segment: int, base_offset: int, times: BatchTimes) -> None:
        self._indexes["times", segment, base_offset] = times
        INDEX_CACHE_BYTES.set(self._indexes.currsize)

    def keep(self, need: NeedLayout | NeedAborted, value: SegmentLayout | AbortedIndex) -> None:
        self._indexes[need.key] = value
        INDEX_CACHE_BYTES.set(self._indexes.currsize)

    def damage(self, need: Need, now: float) -> CorruptSegment | None:
        """The damage that rules out loading `need`. None: it may be loaded (again)."""
        damage_error = self.damaged.get(need.key)
        if damage_error is None:
            return None
        if now >= damage_error[1]:
            del self.damaged[need.key]
            return None
        return damage_error[0]


@dataclass(eq=False, repr=False)
class SegmentReader:
    """`read` returns a result, or the one thing that it lacks. The caller loads that and calls
    `read` again. So one synchronous function describes the whole course of a read.

    `_skips_gaps`: a read inside a recorded gap returns the records after the gap, as Kafka does
    at a hole that compaction left. False: it returns OffsetLost.
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
        chunks: Mapping[ChunkKey, Chunk] = NO_CHUNKS,
        view: PartitionView | None = None,
    ) -> RemoteReadResult | Need:
        """A result: records, an error, or nothing yet if no batch fits. Need: the read lacks this.

        At most `bytes_max` and `request.bytes_max` bytes; with `min_one`, the first batch comes
        whole even if it is larger. "Not archived" is returned only from a view that was read at or
        after `fresh_since`. `chunks`: those that the caller keeps alive, cached or not. `view`: the
        partition's view, if the caller has just looked it up.
        """
        view = view or self._rlmm.view(request.tp)
        if view is None:
            return NeedView(request.tp, fresh_since)
        place = self.locate(view, request.fetch_offset, fresh_since, now, request.isolation)
        if not isinstance(place, NeedChunk):
            return RemoteReadResult(place) if isinstance(place, FetchProxyError) else place
        if request.isolation is IsolationLevel.READ_COMMITTED and self._lacks_aborted(
            place.metadata
        ):
            # Before the chunk, so that a read with its chunk has all it needs, and a waiting read
            # holds no chunk in memory.
            return self._need_or_damage(NeedAborted(place.metadata), now)
        chunk = chunks.get(place.key) if chunks else None
        chunk = chunk or self._memory.chunks.find(place.key)
        if chunk is None:
            return self._need_or_damage(place, now)
        limit = min(bytes_max, request.bytes_max)
        up_to = place.up_to
        start, end, last = chunk.cut(request.fetch_offset, limit, min_one, up_to)
        if start == end:
            if up_to is not None and chunk.readable_from(request.fetch_offset, up_to) == 0:
                further = request._replace(fetch_offset=up_to + 1)  # no valid batch is left here
                return self.read(further, bytes_max, min_one, fresh_since, now, chunks, view)
            return RemoteReadResult()
        result = RemoteReadResult(view=view)
        aborted = self._aborted(place, request.isolation)
        if aborted is not None:
            base = chunk.base_offset_at(start)
            listed_to = aborted.up_to(base, OPEN_TXNS_MAX)
            if listed_to is not None and listed_to < last:
                start, end, last = chunk.cut(base, end - start, False, listed_to)
                if start == end:
                    return RemoteReadResult(_too_many_txns(place.metadata, base))
            result.lists_txns(aborted, base, last)
        result.add(place, chunk, start, end, last)
        if end == chunk.readable_end(up_to):
            self._go_on(view, result, limit, request.isolation)
        if place.metadata.start_offset > request.fetch_offset:
            result.skipped = view.gap_around(place.metadata.start_offset - 1)
        return result

    def locate(
        self,
        view: PartitionView,
        offset: int,
        fresh_since: float,
        now: float,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> NeedChunk | Need | FetchProxyError:
        """The chunk with the first batch that ends at or above `offset`, in memory or not.

        Segments without such a batch are skipped. Only a view that was read at or after
        `fresh_since` decides that an offset is in a gap or not archived.
        """
        from_offset = offset
        while True:
            metadata = view.segment_at_or_after(from_offset)
            if metadata is None or metadata.start_offset > from_offset:
                if view.read_at < fresh_since:
                    return NeedView(view.tp, fresh_since)
                if view.uncertain_at(from_offset):
                    return CorruptSegment(
                        f"{view.tp}: the metadata of the segment with {offset} is unreadable, or "
                        "is not in this mirror yet"
                    )
                gap = view.gap_around(from_offset)
                if gap is None:
                    return OffsetNotArchived(
                        f"{view.tp}: offset {offset} is in no segment; the archive holds "
                        f"{view.log_start_offset} to {view.log_end_offset}"
                    )
                if not self._skips_gaps:
                    return OffsetLost(
                        f"{view.tp}: offsets {gap[0]} to {gap[1]} were lost before they could be "
                        "archived"
                    )
                from_offset = gap[1] + 1
                continue
            place = self._place(metadata, from_offset, now, isolation)
            if isinstance(place, CorruptSegment):
                place = self._other_copy(view, metadata, from_offset, now, isolation) or place
            if place is not None:
                return place
            from_offset = metadata.end_offset + 1

    def _place(
        self,
        metadata: RemoteLogSegmentMetadata,
        offset: int,
        now: float,
        isolation: IsolationLevel,
    ) -> NeedChunk | NeedLayout | CorruptSegment | None:
        """Where in the segment the first batch at or above `offset` is, or the damage that rules
        out reading it; None: nowhere.
        """
        layout = self._memory.layout(metadata)
        if layout is None:
            need = NeedLayout(metadata)
            return self._memory.damage(need, now) or need
        number = layout.chunk_at_or_after(offset)
        if not _counts(metadata, layout, number):
            return None
        place = NeedChunk(metadata, layout, number)
        if not self._memory.damaged:  # nearly always
            return place
        damage = self._memory.damage(place, now)
        if damage is None and isolation is IsolationLevel.READ_COMMITTED:
            damage = self._memory.damage(NeedAborted(metadata), now)
        return damage or place

    def _other_copy(
        self,
        view: PartitionView,
        damaged: RemoteLogSegmentMetadata,
        offset: int,
        now: float,
        isolation: IsolationLevel,
    ) -> NeedChunk | NeedLayout | None:
        """The place in another copy of the same log, as a merge makes one."""
        for metadata in view.copies_of(offset):
            if metadata.segment_id == damaged.segment_id:
                continue
            if first_difference(damaged, metadata) is not None:
                continue
            place = self._place(metadata, offset, now, isolation)
            if isinstance(place, NeedChunk | NeedLayout):
                return place
        return None

    def following(
        self, place: NeedChunk, count: int, isolation: IsolationLevel, now: float
    ) -> list[NeedChunk | NeedLayout | NeedAborted]:
        """The needs to read ahead: those of the next `count` chunks that are not in memory, in
        order.

        It crosses segment borders, but neither gaps nor damage. It takes the indexes of segments up
        to twice as far ahead, because chunks can be requested only with their index in memory.
        """
        needs: list[NeedChunk | NeedLayout | NeedAborted] = []
        view = self._rlmm.view(place.metadata.topic_id_partition)
        if view is None:
            return needs
        metadata, number = place.metadata, place.number + 1
        indexes_read, indexes_up_to = 0, 2 * count + 1
        while indexes_read < indexes_up_to:
            missing, chunks = self._segment_ahead(metadata, number, count - indexes_read, isolation)
            if any(self._memory.damage(need, now) is not None for need in missing):
                break
            needs += missing
            indexes_read += chunks
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
        """The missing needs of up to `count` chunks of one segment, from chunk `number` on (-1:
        from its first offset), and roughly how many chunks there are up to the next segment.
        """
        needs: list[NeedChunk | NeedLayout | NeedAborted] = []
        if isolation is IsolationLevel.READ_COMMITTED and self._lacks_aborted(metadata):
            needs.append(NeedAborted(metadata))
        layout = self._memory.layout(metadata)
        if layout is None:
            needs.append(NeedLayout(metadata))
            return needs, metadata.segment_size_bytes // self._memory.chunk_bytes + 1
        begin = layout.chunk_at_or_after(metadata.start_offset) if number < 0 else number
        end = bisect_right(
            layout.first_offsets, metadata.end_offset
        )  # a clipped segment ends before its layout
        for ahead in range(begin, min(begin + count, end)):
            need = NeedChunk(metadata, layout, ahead)
            if not self._memory.chunks.holds(need.key):
                needs.append(need)
        return needs, max(end - begin, number < 0)  # at least 1 when a segment is entered

    def _after(self, view: PartitionView, place: NeedChunk) -> NeedChunk | None:
        """The chunk after `place`, if its layout is in memory. It may lie across a segment border,
        but never across a gap.

        The next segment may overlap this one, so it is entered by offset and not at its first byte.
        """
        if _counts(place.metadata, place.layout, place.number + 1):
            return NeedChunk(place.metadata, place.layout, place.number + 1)
        border = place.metadata.end_offset + 1
        metadata = view.segment_at_or_after(border)
        if metadata is None or metadata.start_offset > border:
            return None
        layout = self._memory.layout(metadata)
        if layout is None:
            return None
        number = layout.chunk_at_or_after(border)
        return NeedChunk(metadata, layout, number) if _counts(metadata, layout, number) else None

    def _go_on(
        self, view: PartitionView, result: RemoteReadResult, limit: int, isolation: IsolationLevel
    ) -> None:
        """Add batches of the following chunks, as far as these are in memory."""
        while result.size_bytes < limit:
            after = self._after(view, result.chunks[-1][0])
            if after is None:
                return
            if isolation is IsolationLevel.READ_COMMITTED and self._lacks_aborted(after.metadata):
                return
            chunk = self._memory.chunks.find(after.key)
            if chunk is None:
                return
            room = limit - result.size_bytes
            start, end, last = chunk.cut(result.next_offset, room, min_one=False, up_to=after.up_to)
            if start == end:
                return
            aborted = self._aborted(after, isolation)
            if aborted is not None and not result.lists_txns(aborted, result.next_offset, last):
                return
            result.add(after, chunk, start, end, last)
            if end < chunk.readable_end(after.up_to):
                return

    def _need_or_damage(
        self, need: NeedChunk | NeedAborted, now: float
    ) -> RemoteReadResult | NeedChunk | NeedAborted:
        damage = self._memory.damage(need, now)
        return need if damage is None else RemoteReadResult(damage)

    def _lacks_aborted(self, metadata: RemoteLogSegmentMetadata) -> bool:
        return (
            metadata.has_aborted_txns and self._memory.aborted(metadata.segment_id.id.int) is None
        )

    def _aborted(self, place: NeedChunk, isolation: IsolationLevel) -> AbortedIndex | None:
        """None: the read does not list them, or there are none."""
        if isolation is not IsolationLevel.READ_COMMITTED or not place.metadata.has_aborted_txns:
            return None
        return self._memory.aborted(place.metadata.segment_id.id.int)


def _too_many_txns(metadata: RemoteLogSegmentMetadata, base: int) -> CorruptSegment:
    return CorruptSegment(
        f"{metadata.topic_id_partition} segment {metadata.segment_id.id}: its transaction index "
        f"has more than {OPEN_TXNS_MAX} transactions in the batch at offset {base}"
    )


def _counts(metadata: RemoteLogSegmentMetadata, layout: SegmentLayout, number: int) -> bool:
    """The chunk exists, and does not begin above the offset at which the segment was clipped."""
    first_offsets = layout.first_offsets
    return number < len(first_offsets) and first_offsets[number] <= metadata.end_offset
