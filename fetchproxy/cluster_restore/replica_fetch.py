"""A phantom fetches from a real leader as a replica: the leader then takes it for in sync."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from fetchproxy_protocol.apis import ApiKey
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.messages import body_of, raise_for
from fetchproxy.config.values import HostPort

_NO_EPOCH = -1
_NO_SESSION = -1
_BYTES_MAX = 1 << 20


async def follow(
    cluster: Cluster,
    leader: HostPort,
    node_id: int,
    broker_epoch: int,
    topics: Mapping[tuple[str, UUID], Mapping[int, int]],
) -> None:
    """`topics`: by name and id, the end of each partition's log, from which nothing can be fetched.
    Raises ClusterError.
    """
    topic = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=node_id,
        replica_state=FetchRequest.ReplicaState(replica_id=node_id, replica_epoch=broker_epoch),
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_BYTES_MAX,
        isolation_level=0,
        session_id=0,
        session_epoch=_NO_SESSION,
        topics=[
            topic(
                topic=name,
                topic_id=topic_id,
                partitions=[
                    topic.FetchPartition(
                        partition=number,
                        current_leader_epoch=_NO_EPOCH,
                        fetch_offset=end_offset,
                        last_fetched_epoch=_NO_EPOCH,
                        log_start_offset=0,
                        partition_max_bytes=_BYTES_MAX,
                    )
                    for number, end_offset in partitions.items()
                ],
            )
            for (name, topic_id), partitions in topics.items()
        ],
        forgotten_topics_data=[],
        rack_id="",
    )
    async with cluster.exclusive(leader) as connection:
        version = connection.version_of(ApiKey.FETCH)
        [payload] = await connection.send(ApiKey.FETCH, version, [request.encode(version=version)])
    response = body_of(FetchResponse, payload, version)
    raise_for(response.error_code, f"Fetch of {leader} as replica {node_id}")
