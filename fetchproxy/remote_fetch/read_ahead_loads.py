"""Reading ahead of sequential readers: what `read_ahead` decides, as far as there is room for it.

Chunks that nobody has used yet may take half of the cache. Of that a stream may take as much as it
leaves free: one alone gets half, and however many there are, each finds room for something.
"""

from __future__ import annotations

from fetchproxy.config.sections import RemoteFetchConfig
from fetchproxy.observability.metrics import READ_AHEAD_CHUNKS
from fetchproxy.remote_fetch.api import RemoteReadRequest
from fetchproxy.remote_fetch.archive_memory import ArchiveMemory, NeedChunk
from fetchproxy.remote_fetch.fetcher_pool import FetcherPool
from fetchproxy.remote_fetch.read_ahead import ReadAhead
from fetchproxy.remote_fetch.segment_loads import SegmentLoads
from fetchproxy.remote_fetch.segment_reader import SegmentReader, Served


class ReadAheadLoads:
    def __init__(
        self,
        config: RemoteFetchConfig,
        reader: SegmentReader,
        memory: ArchiveMemory,
        pool: FetcherPool,
        loads: SegmentLoads,
    ) -> None:
        self._streams = ReadAhead(config.read_ahead_chunks_max)
        self._room_bytes = config.chunk_cache_bytes_max // 2
        self._wanted_for_s = config.unasked_read_max_ms / 1000
        self._reader = reader
        self._memory = memory
        self._pool = pool
        self._loads = loads

    def served(self, request: RemoteReadRequest, served: Served, waited: bool, now: float) -> None:
        """Begin what the reader of `request` will want next.

        `waited`: this fetch came before the bytes did. So did its reader where another partition's
        records answered an earlier fetch, and this one was asked for and not there.
        """
        place = served.place
        offsets = (request.fetch_offset, served.next_offset)
        awaited = [chunk.take_awaited() for chunk in served.chunks]
        count = self._streams.served(
            request.tip, offsets, place.key, len(served.chunks), waited, any(awaited)
        )
        if not count:
            return
        needs = self._reader.following(place, count, request.isolation, now)
        room = self._room_bytes - self._memory.chunks.read_ahead_bytes - self._pool.ahead_bytes
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
