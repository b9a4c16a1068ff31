"""Where leader epochs ended in the logs of partitions' leaders (OffsetForLeaderEpoch).

One request to each broker, however many partitions it is asked about. Keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.offset_for_leader_epoch import results_in, write_request

from fetchproxy.brokers import messages
from fetchproxy.brokers.connections import BrokerConnections
from fetchproxy.brokers.leaders import Leaders
from fetchproxy.brokers.messages import EncodedRequest, TopicInfo, body_at, whole
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError
from fetchproxy.model import EpochEnd, TopicIdPartition
from fetchproxy.runtime.loop import collected, each_of

# (leader epoch of who says so, what it says), or None: it has no such request, or tells no epochs.
Told = tuple[int, EpochEnd] | None
Found = dict[TopicIdPartition, Told | ClusterError]
Tell = Callable[[TopicIdPartition, Told | ClusterError], None]


class EpochEndReads:
    def __init__(self, leaders: Leaders, connections: BrokerConnections) -> None:
        self._leaders = leaders
        self._connections = connections

    async def get(self, epochs: Mapping[TopicIdPartition, int], tell: Tell) -> None:
        """Of one epoch for each partition. Raises no ClusterError."""

        async def ask(leader: HostPort, topics: Mapping[TopicIdPartition, TopicInfo]) -> Found:
            return await self._ask_leader(leader, topics, epochs)

        await self._leaders.ask(epochs.keys(), ask, tell)

    async def _ask_leader(
        self,
        leader: HostPort,
        topics: Mapping[TopicIdPartition, TopicInfo],
        epochs: Mapping[TopicIdPartition, int],
    ) -> Found:
        connection = await self._connections.shared(leader)
        found: Found = dict.fromkeys(topics, None)
        if messages.OFFSET_FOR_LEADER_EPOCH not in connection.versions:
            return found
        asked: dict[str, list[tuple[int, int, int]]] = {}
        async for tip, topic in each_of(topics.items()):
            current = topic.leaders[tip.partition][1]
            if current >= 0:
                place = (tip.partition, current, epochs[tip])
                asked.setdefault(topic.name, []).append(place)
        if not asked:
            return found
        version = connection.version_of(messages.OFFSET_FOR_LEADER_EPOCH)
        body = await collected(write_request(version, asked))
        request = EncodedRequest(messages.OFFSET_FOR_LEADER_EPOCH, version, body)
        told = await _decoded(await connection.request(request, whole), version)
        async for tip, topic in each_of(topics.items()):
            current = topic.leaders[tip.partition][1]
            if current >= 0:
                missing = ClusterError("OffsetForLeaderEpoch was answered without the partition")
                end = told.get((topic.name, tip.partition), missing)
                found[tip] = end if isinstance(end, ClusterError) else (current, end)
        return found


async def _decoded(
    payload: memoryview, version: int
) -> dict[tuple[str, int], EpochEnd | ClusterError]:
    """(-1, -1): the leader knows no epoch so high."""
    found: dict[tuple[str, int], EpochEnd | ClusterError] = {}
    try:
        body = body_at(payload, messages.OFFSET_FOR_LEADER_EPOCH, version)
        async for result in each_of(results_in(body, version)):
            code = result.error_code
            found[result.topic, result.partition] = (
                ClusterError(f"OffsetForLeaderEpoch of {result.topic}: error {code}", code)
                if code
                else EpochEnd(result.leader_epoch, result.end_offset)
            )
    except WireError as error:
        what = f"OffsetForLeaderEpoch version {version} is malformed: {error}"
        raise ClusterError(what) from None
    return found
