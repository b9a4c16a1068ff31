"""Reading ahead: finds the readers in sequence, decides how far ahead to read, and begins it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from cachetools import LRUCache

from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import READ_AHEAD_CHUNKS
from fetchproxy.reading.fetcher_pool import FetcherPool
from fetchproxy.reading.segment_loads import SegmentLoads
from fetchproxy.reading.segment_reader import (
    ArchiveMemory,
    NeedChunk,
    RemoteReadRequest,
    RemoteReadResult,
    SegmentReader,
)

# A fetch does not identify its reader: several groups may replay one partition at once, and one
# group may come over new connections. So a *stream* is recognised by its next offset. A read that
# begins exactly at the end of an earlier read continues that stream. Any other read is a seek and
# starts a new stream.
#
# A stream's window is one chunk from its second read on. It doubles each time the reader had to
# wait for a chunk. So a replay from a distant store soon has enough range reads in flight to fill
# the line, and a replay from a fast store reads no more into memory than it needs. If a reader
# fetches several partitions and another partition answers its fetch, the reader did not wait, but
# the chunk that it asked for was late. That doubles the window too, up to a few chunks.
#
# Planned chunks that are never read are the cost. Each planned chunk is paid from the partition's
# *credit*, and is given back when it is read. If readers seek often, the credit is used up, and a
# window is then at most half of the chunks that its stream has read in sequence. So the chunks of a
# partition that are read in vain are at most a full credit, plus 3 for every 4 chunks that readers
# used.

# Streams remembered. The longest unused stream is forgotten; its reader then starts a new one.
STREAMS_MAX = 10_000
# Partitions remembered whose credit is not full. A forgotten partition has full credit again.
_PARTITIONS_MAX = 10_000
# A full credit, in windows of the largest size. A debt is at most as large.
CREDIT_WINDOWS = 2
# A window grows up to this if its reader has other partitions to read meanwhile. They share the
# line and the memory, and their one client takes no more than all of them together give.
WINDOW_BESIDE_OTHERS_MAX = 4
# The credit that each chunk that is read earns, in addition to its repayment.
EARNED_PER_CHUNK = 0.25


@dataclass(frozen=True, slots=True)
class Stream:
    """A reader in sequence. All fields except `chunk` count chunks."""

    chunk: Hashable  # the chunk that it was served from last
    window: int = 0  # wanted ahead
    planned: int = 0  # chunks of the window that were requested and not entered yet
    read: int = 1


class _Step(NamedTuple):
    """`chunks_ahead`: how many chunks after this one should be loading. 0: nothing new to plan."""

    stream: Stream
    chunks_ahead: int
    credit: float


def advance(
    stream: Stream | None,
    chunk: Hashable,
    chunks: int,
    waited: bool,
    credit: float,
    chunks_max: int,
) -> _Step:
    """A read was served from `chunks` chunks, the last of which is `chunk`.

    `stream`: the stream that it continues. None: it is a seek. `waited`: its reader asked before
    the bytes were in memory. `credit`: how many more planned chunks may be read in vain.
    """
    full = CREDIT_WINDOWS * chunks_max
    if stream is None:
        return _Step(Stream(chunk, read=chunks), 0, min(credit + EARNED_PER_CHUNK * chunks, full))
    if chunk == stream.chunk:
        if stream.window:
            return _Step(stream, 0, credit)
        chunks = 0
    given_back = min(stream.planned, chunks)
    credit = min(credit + given_back + EARNED_PER_CHUNK * chunks, full)
    planned, read = stream.planned - given_back, stream.read + chunks
    window = max(stream.window * 2 if waited and chunks else stream.window, 1)
    chunks_allowed = max(planned + int(credit), read // 2)
    window = min(window, chunks_allowed, chunks_max)
    new = max(window - planned, 0)
    after = Stream(chunk, window, planned + new, read)
    return _Step(after, window if new else 0, max(credit - new, -full))


class ReadAhead:
    """The streams of all partitions, and the credit of each partition."""

    def __init__(self, chunks_max: int, streams_max: int = STREAMS_MAX) -> None:
        self._chunks_max = chunks_max
        # Entries stay after use, because two readers in step continue the same stream. Keys are
        # ints, which hash fastest.
        self._streams: LRUCache[tuple[int, int, int], Stream] = LRUCache(streams_max)
        self._credits: LRUCache[tuple[int, int], float] = LRUCache(_PARTITIONS_MAX)

    def served(
        self,
        tp: TopicIdPartition,
        offsets: tuple[int, int],
        chunk: Hashable,
        chunks: int = 1,
        waited: bool = False,
        waited_beside: bool = False,
    ) -> int:
        """A read of `offsets` (from, up to: exclusive) was served, see `advance`.

        `waited_beside`: the chunk was not in memory when the reader asked for it, but the reader
        got other partitions meanwhile. Returns how many chunks after `chunk` should be loading. 0:
        nothing new to plan.
        """
        if not self._chunks_max:
            return 0
        log, partition = tp.topic_id.int, tp.partition
        stream = self._streams.get((log, partition, offsets[0]))
        if waited_beside and stream is not None:
            waited = waited or stream.window < WINDOW_BESIDE_OTHERS_MAX
        credit = self._credits.get((log, partition), float(CREDIT_WINDOWS * self._chunks_max))
        step = advance(stream, chunk, chunks, waited, credit, self._chunks_max)
        self._streams[log, partition, offsets[1]] = step.stream
        if step.credit != credit:
            self._credits[log, partition] = step.credit
        return step.chunks_ahead


@dataclass(eq=False, repr=False)
class ReadAheadLoads:
    """Begins the reads that `ReadAhead` decides on, as far as there is room for them.

    Chunks read ahead and not used yet may take half of the cache. A stream may take as much of that
    room as it leaves free: a single stream gets half of it, and each of many streams finds some.
    """

    _streams: ReadAhead
    _reader: SegmentReader
    _memory: ArchiveMemory
    _pool: FetcherPool
    _loads: SegmentLoads
    _needed_for_s: float

    def served(
        self, request: RemoteReadRequest, result: RemoteReadResult, waited: bool, now: float
    ) -> None:
        """Begin to read what the reader of `request` will want next. `result` has records.

        `waited`: this fetch asked before the bytes were in memory. `Chunk.awaited` says that an
        earlier fetch of the reader did, which another partition's records answered.
        """
        place, _ = result.chunks[-1]
        offsets = (request.fetch_offset, result.next_offset)
        others_waited = any(chunk.awaited for _, chunk in result.chunks)
        for _, chunk in result.chunks:
            chunk.awaited = False  # counts once, for its first reader
        count = self._streams.served(
            request.tp, offsets, place.key, len(result.chunks), waited, others_waited
        )
        if not count:
            return
        needs = self._reader.following(place, count, request.isolation, now)
        chunks = self._memory.chunks
        room = chunks.maxsize // 2 - chunks.read_ahead_bytes - self._pool.ahead_bytes
        missing = sum(isinstance(need, NeedChunk) for need in needs)
        room_bytes = (count - missing) * self._memory.chunk_bytes  # the room that the stream takes
        for need in needs:
            loading = self._pool.is_loading(need.key)
            if isinstance(need, NeedChunk):
                size = need.byte_range.length
                if not loading:
                    room -= size
                    if room < room_bytes:
                        return
                    READ_AHEAD_CHUNKS.inc()
                room_bytes += size
            if not loading:
                self._loads.begin(need, now + self._needed_for_s, True, request.client)
