"""The archive reads of one fetch, while the broker may be asked too; and the log of readers that
passed lost offsets.
"""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from itertools import islice

import structlog
from cachetools import LRUCache
from fetchproxy_protocol.fetch import (
    FetchEntry,
    FetchRequest,
    PartitionKey,
    entry_bytes_max,
    fetch_offset,
)

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.observability.metrics import OFFSETS_SKIPPED, READERS_LED_ON
from fetchproxy.reading.purgatory import NO_VIEWS, DelayedRemoteFetch, RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import (
    PARTITIONS_READ_MAX,
    RemoteReadRequest,
    RemoteReadResult,
)
from fetchproxy.storage.reader_accounts import Client

log = structlog.get_logger(__name__)

# Logged losses that are remembered. Beyond this the oldest is forgotten and may be logged again.
LOSSES_KNOWN_MAX = 1_000


@dataclass(slots=True)
class ArchivedReads:
    """The archive reads of one fetch.

    `bytes_max`: most bytes of a response, as other fetches wait for the same fetchers.
    `owed_s`: how long the client still owes by its byte rate; above 0, nothing is read.
    """

    purgatory: RemoteFetchPurgatory
    request: FetchRequest
    entries: Mapping[PartitionKey, FetchEntry]
    client: Client
    bytes_max: int
    owed_s: float = 0.0
    watched: list[DelayedRemoteFetch[PartitionKey]] = field(default_factory=list)
    completed: asyncio.Event = field(default_factory=asyncio.Event)

    def watch(
        self,
        remote: Iterable[tuple[PartitionKey, TopicIdPartition]],
        deadline: float,
        views: Mapping[PartitionKey, PartitionView] = NO_VIEWS,
        waiting: Set[TopicIdPartition] = frozenset(),
    ) -> None:
        """Begin to read up to PARTITIONS_READ_MAX of `remote`, except those in `waiting`. Completes
        at once if the chunk cache has all records. `views`: current views of `remote`.
        """
        if self.owed_s:
            return
        free = ((key, tp) for key, tp in remote if tp not in waiting) if waiting else remote
        isolation = IsolationLevel(self.request.isolation_level)
        reads: dict[PartitionKey, RemoteReadRequest] = {}
        for key, tp in islice(free, PARTITIONS_READ_MAX - len(self.read_for())):
            entry = self.entries[key]
            offset, bytes_max = fetch_offset(entry), entry_bytes_max(entry)
            reads[key] = RemoteReadRequest(tp, offset, bytes_max, isolation, self.client)
        if reads:
            delayed = self.purgatory.fetch(
                reads,
                bytes_max=self.bytes_max,
                deadline=deadline,
                completed=self.completed,
                views=views,
            )
            self.watched.append(delayed)

    def requested_bytes(self, keys: Iterable[PartitionKey]) -> int:
        """The bytes that the client wants from the archive. It gets more only by first batches,
        which always come whole.
        """
        read = islice(keys, PARTITIONS_READ_MAX)
        return min(self.bytes_max, sum(entry_bytes_max(self.entries[key]) for key in read))

    def read_for(self) -> list[PartitionKey]:
        """The partitions that had their turn."""
        return [key for delayed in self.watched for key in delayed.requests]

    @property
    def ready(self) -> bool:
        """True: something can be answered, or nothing more will come."""
        return self.completed.is_set()

    def forget(self) -> None:
        """Drop the results: the response has them, and this object must not keep them in memory."""
        self.watched.clear()

    def cancel(self, client_gone: bool = False) -> None:
        """The fetch is answered, and reads in progress still fill the cache. `client_gone`: they
        end, unless another client has asked for the same.
        """
        for delayed in self.watched:
            delayed.cancel(client_gone)

    def results(self) -> Mapping[PartitionKey, RemoteReadResult]:
        return ChainMap(*(delayed.results() for delayed in self.watched))


class SkippedOffsets:
    """One per process that serves: counts each skip, and logs each loss once."""

    def __init__(self) -> None:
        self._logged: LRUCache[tuple[TopicIdPartition, int], None] = LRUCache(LOSSES_KNOWN_MAX)

    def note(self, tp: TopicIdPartition, first: int, last: int) -> None:
        """A response has led a reader past the lost offsets `first` to `last`, both inclusive."""
        READERS_LED_ON.labels(tp.topic).inc()
        OFFSETS_SKIPPED.labels(tp.topic).inc(last - first + 1)
        if (tp, last) in self._logged:
            return
        self._logged[tp, last] = None
        log.warning(
            "lost_offsets_skipped",
            topic=tp.topic,
            partition=tp.partition,
            first_lost_offset=first,
            last_lost_offset=last,
        )
