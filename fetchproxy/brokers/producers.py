"""The producers that the leader of a partition remembers (DescribeProducers, Kafka 2.8)."""

from __future__ import annotations

from typing import Any

from fetchproxy_protocol.apis import ApiKey
from kafka.protocol.admin import DescribeProducersRequest, DescribeProducersResponse

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.messages import raise_for
from fetchproxy.model import TopicIdPartition


async def active_producers(cluster: Cluster, tp: TopicIdPartition) -> list[Any] | None:
    """As kafka-python has them. None: the broker has no such request. Raises ClusterError, also
    without READ on the topic.
    """

    async def ask(connection: BrokerConnection, topic: TopicInfo) -> list[Any] | None:
        if ApiKey.DESCRIBE_PRODUCERS not in connection.versions:
            return None
        topic_type = DescribeProducersRequest.TopicRequest
        request = DescribeProducersRequest(
            topics=[topic_type(name=topic.name, partition_indexes=[tp.partition])]
        )
        response = await connection.call(request, DescribeProducersResponse)
        producers: list[Any] = []
        for responded in response.topics:
            for partition in responded.partitions:
                raise_for(partition.error_code, f"DescribeProducers of {responded.name}")
                producers += partition.active_producers
        return producers

    return await cluster.ask_leader(tp, ask)
