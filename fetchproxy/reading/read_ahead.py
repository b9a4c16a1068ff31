"""Which readers read in sequence, how far ahead of each to read, and the reading itself."""

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
    SegmentReader,
    Served,
)

# Nobody tells who a reader is: several groups replay one partition at once, and one group comes
# over new connections. So a *stream* is recognised by where it must go on: a read that begins
# exactly where an earlier one ended continues it; any other read is a seek and starts anew.
#
# A stream's window is one chunk from its second read on, and doubles each time its reader had to
# wait for a chunk: a replay from a distant store soon has enough range reads in flight to fill
# the line, one from a fast store reads no more into memory than it needs. A reader of several
# partitions whose fetch another one answers did not wait, but the chunk that it asked for came
# late all the same: that doubles the window, too, up to a few chunks. Chunks that were planned
# and never read are the price, and are paid from the partition's *credit*, which a chunk that is
# read gives back: where readers jump about the credit is used up, and a window is then at most
# half of what its stream has already read in sequence. So of all chunks of a partition the ones
# read in vain are at most a full credit and 3 for every 4 that were read for somebody.

# Streams remembered; the longest unused one is forgotten and would merely start anew.
STREAMS_MAX = 10_000
# Partitions with a credit other than a full one; a forgotten one is trusted again.
PARTITIONS_MAX = 10_000
# A full credit, in windows of the largest size; debts are remembered up to as much.
CREDIT_WINDOWS = 2
# A window grows up to this where its reader has other partitions to read meanwhile: they share the
# line and the memory, and are asked for by one client that takes no more than all of them give.
BESIDE_OTHERS_MAX = 4
# What each chunk that is read adds to the credit, beside what had been paid for it.
EARNED_PER_CHUNK = 0.25


@dataclass(frozen=True, slots=True)
class Stream:
    """A reader in sequence; all but `chunk` are numbers of chunks."""

    chunk: Hashable  # the one it was served from last
    window: int = 0  # wanted ahead
    planned: int = 0  # of these, asked for and not entered yet
    read: int = 1


class Step(NamedTuple):
    """`ahead`: so many chunks after this one should be on their way; 0: nothing new to plan."""

    stream: Stream
    ahead: int
    credit: float


def advance(
    stream: Stream | None,
    chunk: Hashable,
    chunks: int,
    waited: bool,
    credit: float,
    chunks_max: int,
) -> Step:
    """A read was served from `chunks` chunks, the last of which is `chunk`.

    `stream`: the one that it goes on with, None at a seek. `waited`: its reader came before the
    bytes did. `credit`: how many planned chunks may still turn out to be in vain.
    """
    full = CREDIT_WINDOWS * chunks_max
    if stream is None:
        return Step(Stream(chunk, read=chunks), 0, min(credit + EARNED_PER_CHUNK * chunks, full))
    if chunk == stream.chunk:
        if stream.window:
            return Step(stream, 0, credit)
        chunks = 0
    given_back = min(stream.planned, chunks)
    credit = min(credit + given_back + EARNED_PER_CHUNK * chunks, full)
    planned, read = stream.planned - given_back, stream.read + chunks
    window = max(stream.window * 2 if waited and chunks else stream.window, 1)
    allowed = max(planned + int(credit), read // 2)
    window = min(window, allowed, chunks_max)
    new = max(window - planned, 0)
    after = Stream(chunk, window, planned + new, read)
    return Step(after, window if new else 0, max(credit - new, -full))


class ReadAhead:
    """The streams of all partitions, and the credit of each partition."""

    def __init__(self, chunks_max: int, streams_max: int = STREAMS_MAX) -> None:
        self._chunks_max = chunks_max
        # Entries stay after use: two readers in step continue the same stream. Keys are ints,
        # which hash fastest.
        self._streams: LRUCache[tuple[int, int, int], Stream] = LRUCache(streams_max)
        self._credits: LRUCache[tuple[int, int], float] = LRUCache(PARTITIONS_MAX)

    def served(
        self,
        tip: TopicIdPartition,
        offsets: tuple[int, int],
        chunk: Hashable,
        chunks: int = 1,
        waited: bool = False,
        waited_beside: bool = False,
    ) -> int:
        """A read of `offsets` (from, up to: exclusive) was served, see `advance`.

        `waited_beside`: it was asked for and not there, but its reader had others meanwhile.
        Returns how many chunks after `chunk` should be on their way; 0: nothing new to plan.
        """
        if not self._chunks_max:
            return 0
        log, partition = tip.topic_id.int, tip.partition
        stream = self._streams.get((log, partition, offsets[0]))
        if waited_beside and stream is not None:
            waited = waited or stream.window < BESIDE_OTHERS_MAX
        credit = self._credits.get((log, partition), float(CREDIT_WINDOWS * self._chunks_max))
        step = advance(stream, chunk, chunks, waited, credit, self._chunks_max)
        self._streams[log, partition, offsets[1]] = step.stream
        if step.credit != credit:
            self._credits[log, partition] = step.credit
        return step.ahead


@dataclass(eq=False, repr=False)
class ReadAheadLoads:
    """What `ReadAhead` decides, as far as there is room for it.

    Chunks that nobody has used yet may take half of the cache. Of that a stream may take as much as
    it leaves free: one alone gets half, and however many there are, each finds room for something.
    """

    _streams: ReadAhead
    _reader: SegmentReader
    _memory: ArchiveMemory
    _pool: FetcherPool
    _loads: SegmentLoads
    _wanted_for_s: float

    def served(self, request: RemoteReadRequest, served: Served, waited: bool, now: float) -> None:
        """Begin what the reader of `request` will want next.

        `waited`: this fetch came before the bytes did. So did its reader where another partition's
        records answered an earlier fetch, and this one was asked for and not there.
        """
        place = served.place
        offsets = (request.fetch_offset, served.next_offset)
        beside = any(chunk.awaited for chunk in served.chunks)
        for chunk in served.chunks:
            chunk.awaited = False  # said once, to its first reader
        count = self._streams.served(
            request.tip, offsets, place.key, len(served.chunks), waited, beside
        )
        if not count:
            return
        needs = self._reader.following(place, count, request.isolation, now)
        chunks = self._memory.chunks
        room = chunks.maxsize // 2 - chunks.read_ahead_bytes - self._pool.ahead_bytes
        missing = sum(isinstance(need, NeedChunk) for need in needs)
        own = (count - missing) * self._memory.chunk_bytes  # what the stream takes of the room
        for need in needs:
            loading = self._pool.is_loading(need.key)
            if isinstance(need, NeedChunk):
                size = need.byte_range.length
                if not loading:
                    room -= size
                    if room < own:
                        return
                    READ_AHEAD_CHUNKS.inc()
                own += size
            if not loading:
                self._loads.begin(need, now + self._wanted_for_s, True, request.client)
