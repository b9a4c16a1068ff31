"""A recreated topic loses its archive within a second; a silent broker changes nothing."""

from __future__ import annotations

import asyncio
from uuid import UUID

from confluent_kafka.admin import AdminClient

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.model import TopicIdPartition
from fetchproxy.serving.gateway.fetch_routing import TopicIdentities
from fetchproxy.serving.gateway.route_decision import IDENTITY_AGE_MAX_MS
from lab.mock_cluster import MockCluster


async def test_only_the_id_that_the_name_stands_for_is_kept() -> None:
    with MockCluster() as brokers:
        AdminClient({"bootstrap.servers": brokers.bootstrap}).list_topics("made", timeout=20)
        async with Cluster(ClusterConfig(bootstrap=brokers.bootstrap)) as cluster:
            info = await cluster.topic_by_name("made")
            now = 100.0
            identities = TopicIdentities(cluster, lambda: now)
            kept_tp = TopicIdPartition(info.topic_id, "made", 0)
            gone = TopicIdPartition(UUID(int=7), "made", 0)
            assert await identities.replaced_topics([kept_tp, gone], now + 5) == {UUID(int=7)}


async def test_a_broker_that_does_not_answer_says_nothing_against_an_id() -> None:
    with MockCluster() as brokers:
        async with Cluster(ClusterConfig(bootstrap=brokers.bootstrap)) as cluster:
            brokers.pause()
            clock = asyncio.get_running_loop().time
            identities = TopicIdentities(cluster, clock)
            tp = TopicIdPartition(UUID(int=7), "made", 0)
            assert await identities.replaced_topics([tp], clock() + 0.1) == set()
            begun = clock()
            assert await identities.replaced_topics([tp], clock() + 30) is None, (
                "not asked again so soon"
            )
            assert clock() - begun < IDENTITY_AGE_MAX_MS / 1000
            brokers.resume()
