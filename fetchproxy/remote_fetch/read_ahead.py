"""Which readers read in sequence, and how far ahead of each to read. Pure.

Nobody tells who a reader is: several groups replay one partition at once, and one group comes
over new connections. So a *stream* is recognised by where it must go on: a read that begins
exactly where an earlier one ended continues it; any other read is a seek and starts anew. The
window grows 0 → 1 → 2 → 4 … chunks, each time the stream enters another chunk, so that a single
read costs nothing extra and a replay soon keeps several range reads in flight.
"""

from __future__ import annotations

from collections.abc import Hashable

from cachetools import LRUCache

from fetchproxy.model import TopicIdPartition

# Streams remembered; the longest unused one is forgotten and would merely start anew.
STREAMS_MAX = 10_000


class ReadAhead:
    def __init__(self, chunks_max: int, streams_max: int = STREAMS_MAX) -> None:
        self._chunks_max = chunks_max
        # Where a stream goes on → (window, chunk it was planned in). Entries stay after use: two
        # readers in step continue the same stream. Keys are ints, which hash fastest.
        self._streams: LRUCache[tuple[int, int, int], tuple[int, Hashable]] = LRUCache(streams_max)

    def served(
        self, tip: TopicIdPartition, fetch_offset: int, next_offset: int, chunk: Hashable
    ) -> int:
        """A read from `fetch_offset` was served up to `next_offset` (exclusive), out of `chunk`.

        Returns how many chunks after `chunk` should be on their way; 0: nothing new to plan.
        """
        if not self._chunks_max:
            return 0
        log, partition = tip.topic_id.int, tip.partition
        window, planned_in = self._streams.get((log, partition, fetch_offset), (-1, None))
        if window < 0:  # a seek, or the first read
            following: tuple[int, Hashable] = (0, None)
        elif chunk == planned_in:
            following = (window, planned_in)
        else:
            following = (min(window * 2 or 1, self._chunks_max), chunk)
        self._streams[log, partition, next_offset] = following
        return 0 if chunk == planned_in else following[0]
