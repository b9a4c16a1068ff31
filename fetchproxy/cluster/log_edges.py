"""Where partitions' own logs begin and end, as their leaders say (ListOffsets), and when they did.

Three requests to each broker, however many partitions it is asked about. Who asks for what somebody
else is asking already waits for that answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fetchproxy.cluster import messages
from fetchproxy.cluster.answers import UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, TopicInfo
from fetchproxy.cluster.connections import BrokerConnections
from fetchproxy.cluster.encoded_request import EncodedRequest, body_at, whole
from fetchproxy.cluster.leaders import Leaders
from fetchproxy.config.addresses import HostPort
from fetchproxy.errors import ClusterError
from fetchproxy.many_items import chosen, collected, each_of
from fetchproxy.model import IsolationLevel, LogEdges, TopicIdPartition
from protocol.errors import WireError
from protocol.list_offsets import results_in, write_request

Found = dict[TopicIdPartition, LogEdges | ClusterError]
# (offset, its epoch or -1), or why there is none; by topic and partition.
_Offsets = dict[tuple[str, int], tuple[int, int] | ClusterError]


@dataclass(frozen=True, slots=True)
class _Edges:
    edges: LogEdges
    asked_at: float  # loop seconds, before the request left


class _Flight:
    """Questions under way; `landed` with the errors when the answers are there."""

    def __init__(self) -> None:
        self.tips: set[TopicIdPartition] = set()
        self.landed: asyncio.Future[Found] = asyncio.get_running_loop().create_future()


class LogEdgesReads:
    def __init__(self, leaders: Leaders, connections: BrokerConnections) -> None:
        self._leaders = leaders
        self._connections = connections
        self._known: dict[TopicIdPartition, _Edges] = {}
        self._flights: list[_Flight] = []

    def cached(self, tip: TopicIdPartition) -> LogEdges | None:
        known = self._known.get(tip)
        return None if known is None else known.edges

    def knows(self, tip: TopicIdPartition, not_older_than: float) -> bool:
        known = self._known.get(tip)
        return known is not None and known.asked_at >= not_older_than

    async def get(self, tips: Collection[TopicIdPartition], not_older_than: float) -> Found:
        """Asked at or after that loop time (s), the future being now. Raises no ClusterError."""
        oldest = min(not_older_than, asyncio.get_running_loop().time())
        failed: Found = {}

        def is_due(tip: TopicIdPartition) -> bool:
            return tip not in failed and not self.knows(tip, oldest)

        while due := await chosen(tips, is_due):
            flight, theirs = _Flight(), set[_Flight]()
            self._flights.append(flight)
            try:
                async for tip in each_of(due):
                    other = next((f for f in self._flights if tip in f.tips), None)
                    if other is None:
                        flight.tips.add(tip)
                    else:
                        theirs.add(other)
                if flight.tips:
                    failed.update(await self._ask(flight.tips))
            finally:
                # Where the one who asked was cancelled there is no error: who waits asks then.
                self._flights.remove(flight)
                flight.landed.set_result(failed)
            if not flight.tips:
                # Those that began before `oldest` may land here; the next round then asks anew.
                await asyncio.wait([other.landed for other in theirs])
                for other in theirs:
                    errors = other.landed.result()
                    failed.update({tip: errors[tip] for tip in due if tip in errors})
        return {tip: failed.get(tip) or self._known[tip].edges async for tip in each_of(tips)}

    async def _ask(self, tips: Collection[TopicIdPartition]) -> Found:
        """The errors; what a broker says is kept at once, while others are still asked."""
        failed: Found = {}
        found = await self._leaders.ask(tips, self._ask_leader)
        async for tip, edges in each_of(found.items()):
            if isinstance(edges, ClusterError):
                failed[tip] = edges
                if edges.error_code in (UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION):
                    self._known.pop(tip, None)
        return failed

    async def _ask_leader(
        self, leader: HostPort, topics: Mapping[TopicIdPartition, TopicInfo]
    ) -> Found:
        asked_at = asyncio.get_running_loop().time()
        connection = await self._connections.shared(leader)
        version = connection.version_of(messages.LIST_OFFSETS)
        local = version >= messages.LIST_OFFSETS_LOCAL_VERSION
        # The start first and the high watermark last, so that start <= LSO <= high watermark.
        wanted = (
            (messages.EARLIEST_LOCAL if local else messages.EARLIEST, IsolationLevel(0)),
            (messages.LATEST, IsolationLevel.READ_COMMITTED),
            (messages.LATEST, IsolationLevel.READ_UNCOMMITTED),
        )
        asked: dict[str, list[tuple[int, int]]] = {}
        async for tip, topic in each_of(topics.items()):
            epoch = topic.leaders[tip.partition][1]
            asked.setdefault(topic.name, []).append((tip.partition, epoch))
        requests = [
            EncodedRequest(
                messages.LIST_OFFSETS,
                version,
                await collected(write_request(version, isolation, asked, timestamp)),
            )
            for timestamp, isolation in wanted
        ]
        payloads = await connection.request_all(requests, whole)
        starts, stables, ends = [await _decoded(payload, version) for payload in payloads]
        found: Found = {}
        async for tip, topic in each_of(topics.items()):
            key = (topic.name, tip.partition)
            edges = _edges_of(starts.get(key), stables.get(key), ends.get(key))
            found[tip] = edges
            if isinstance(edges, LogEdges):
                self._known[tip] = _Edges(edges, asked_at)
        return found


async def _decoded(payload: memoryview, version: int) -> _Offsets:
    found: _Offsets = {}
    try:
        body = body_at(payload, messages.LIST_OFFSETS, version)
        async for result in each_of(results_in(body, version)):
            code = result.error_code
            found[result.topic, result.partition] = (
                ClusterError(f"ListOffsets of {result.topic}: error {code}", code)
                if code
                else (result.offset, result.leader_epoch)
            )
    except WireError as error:
        raise ClusterError(f"ListOffsets version {version} is malformed: {error}") from None
    return found


def _edges_of(*offsets: tuple[int, int] | ClusterError | None) -> LogEdges | ClusterError:
    """Of the log start, the last stable offset and the high watermark."""
    known: list[tuple[int, int]] = []
    for offset in offsets:
        if isinstance(offset, ClusterError):
            return offset
        if offset is None:
            return ClusterError("ListOffsets was answered without the partition")
        known.append(offset)
    start, stable, end = known
    return LogEdges(start[0], end[0], stable[0], start[1])
