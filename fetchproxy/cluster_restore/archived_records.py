"""Reads records of the archive for followers: whole batches, as they are stored.

It is the read side of any reader: its caches and limits bound the memory, all followers share what
one of them has had read, and packed and encrypted segments are opened there.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from fetchproxy_protocol.primitives import INT64, Buffer

from fetchproxy.archive import stored_archive
from fetchproxy.cluster_restore.led_partitions import NeededRecords, Records
from fetchproxy.cluster_restore.plan import Place
from fetchproxy.config.schema import Config
from fetchproxy.errors import ClusterError, FetchProxyError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import PARTITIONS_READ_MAX, RemoteReadRequest
from fetchproxy.runtime.cooperative import a_turn

# A follower waits so long for its next response at most (replica.fetch.wait.max.ms).
_WAIT_MAX_S = 0.5
# In a batch. Batches of one response are looked through at one piece, of a chunk at most, a turn.
_PRODUCER_ID_AT = 43
_LENGTH_AT, _LENGTH_END = 8, 12


class RecordSource(Protocol):
    """Has the records of the partitions that the phantoms lead."""

    async def read(
        self, needed: Mapping[Place, NeededRecords], bytes_max: int, follower: int
    ) -> Mapping[Place, Records]:
        """For some of the partitions, whole batches from the offset on, in the order of `needed`.
        At most `bytes_max`, but always one batch. Waits a moment if none is there yet. Raises
        FetchProxyError if it cannot go on.
        """


class NoRecords:
    """If no partition has local history."""

    async def read(
        self, needed: Mapping[Place, NeededRecords], bytes_max: int, follower: int
    ) -> Mapping[Place, Records]:
        return {}


class _ViewsUpToEnds(PartitionViews):
    """Views without what lies above the offset of the first new record."""

    def __init__(self, views: PartitionViews, ends: Mapping[TopicIdPartition, int]) -> None:
        self._views = views
        self._ends = ends

    def view(self, tp: TopicIdPartition) -> PartitionView | None:
        view = self._views.view(tp)
        return None if view is None else view.up_to(self._ends[tp])

    async def refresh(self, tp: TopicIdPartition, not_older_than: float) -> PartitionView:
        return (await self._views.refresh(tp, not_older_than)).up_to(self._ends[tp])

    def doubt(self, tp: TopicIdPartition) -> None:
        self._views.doubt(tp)


@dataclass(eq=False)
class RecordsForFollowers:
    """`pass_over`: called with the highest producer id of batches before a follower gets them.
    `fault`: why a partition cannot be read; then nothing more is.
    """

    _purgatory: RemoteFetchPurgatory
    _tps: Mapping[Place, TopicIdPartition]
    _pass_over: Callable[[int], Awaitable[None]]
    fault: FetchProxyError | None = field(default=None, init=False)

    async def read(
        self, needed: Mapping[Place, NeededRecords], bytes_max: int, follower: int
    ) -> Mapping[Place, Records]:
        try:
            return await self._read(needed, bytes_max, follower)
        except FetchProxyError as error:
            self.fault = self.fault or error
            raise

    async def _read(
        self, needed: Mapping[Place, NeededRecords], bytes_max: int, follower: int
    ) -> Mapping[Place, Records]:
        requests: dict[Place, RemoteReadRequest] = {}
        for place, one in needed.items():
            tp = self._tps[place]
            isolation = IsolationLevel.READ_UNCOMMITTED
            requests[place] = RemoteReadRequest(tp, one.offset, one.bytes_max, isolation, follower)
            if len(requests) == PARTITIONS_READ_MAX:
                break  # the follower's next request begins with others
        deadline = asyncio.get_running_loop().time() + _WAIT_MAX_S
        fetch = self._purgatory.fetch(requests, bytes_max=bytes_max, deadline=deadline)
        try:
            await fetch.completed.wait()
        finally:
            fetch.cancel()
        records: dict[Place, Records] = {}
        highest = -1
        for place, result in fetch.results().items():
            if result.error is not None:
                raise ClusterError(
                    f"{place[0]}-{place[1]}: its local history cannot be read at offset "
                    f"{needed[place].offset}: {result.error}. Run it again, or without --local"
                )
            if not result.records:
                continue
            records[place] = Records(result.records, result.size_bytes)
            for piece in result.records:
                highest = max(highest, highest_producer_id(piece))
                await a_turn()
        await self._pass_over(highest)
        return records


def highest_producer_id(batches: Buffer) -> int:
    """Of whole batches; -1: no producer was idempotent."""
    at, highest = 0, -1
    while at < len(batches):
        highest = max(highest, INT64.unpack_from(batches, at + _PRODUCER_ID_AT)[0])
        length = int.from_bytes(batches[at + _LENGTH_AT : at + _LENGTH_END], "big")
        at += _LENGTH_END + length
    return highest


@asynccontextmanager
async def archived_records(
    config: Config,
    tps: Mapping[Place, TopicIdPartition],
    ends: Mapping[Place, int],
    pass_over: Callable[[int], Awaitable[None]],
) -> AsyncIterator[RecordsForFollowers]:
    """`ends`: the offset of the first new record. Raises ConfigError, RemoteStorageError."""
    limits = replace(
        ReadingLimits(),
        fetcher_tasks_max=config.store.connections_max,
        chunk_read_max_ms=max(ReadingLimits().chunk_read_max_ms, 3 * config.store.timeout_ms // 2),
    )
    async with stored_archive(config) as archive:
        views = _ViewsUpToEnds(archive.rlmm, {tps[place]: end for place, end in ends.items()})
        async with RemoteFetchPurgatory(
            config.remote_fetch, views, archive.storage, random.Random(), limits=limits
        ) as purgatory:
            yield RecordsForFollowers(purgatory, tps, pass_over)
