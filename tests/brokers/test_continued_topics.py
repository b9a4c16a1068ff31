"""A topic that continues an archived log, at a real broker: requests name the id that brokers know,
and everything else the id of the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from fetchproxy.brokers.cluster import Cluster, delete_records
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.errors import ClusterError
from fetchproxy.model import EpochEnd, IsolationLevel, TopicIdPartition
from fetchproxy.storage.continued_topics import ContinuedTopics
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

LOG_ID = UUID(int=41)


@asynccontextmanager
async def opened(kafka: KafkaServer, continued: ContinuedTopics) -> AsyncIterator[Cluster]:
    async with Cluster(ClusterConfig(bootstrap=kafka.bootstrap), continued=continued) as cluster:
        yield cluster


async def id_at_brokers(kafka: KafkaServer, topic: str) -> UUID:
    async with opened(kafka, ContinuedTopics()) as cluster:
        return (await cluster.topic_by_name(topic)).topic_id


def produced(kafka: KafkaServer, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(60) == 0


async def test_all_requests_reach_the_topic(kafka_server: KafkaServer, topic: str) -> None:
    produced(kafka_server, topic, 10)
    at_brokers, continued = await id_at_brokers(kafka_server, topic), ContinuedTopics()
    continued.add({uuid4(): LOG_ID, at_brokers: LOG_ID})  # an earlier cluster had it, too
    tp = TopicIdPartition(LOG_ID, topic, 0)
    async with opened(kafka_server, continued) as cluster:
        by_id = await cluster.topic_by_id(LOG_ID)
        assert (by_id.topic_id, by_id.id_at_brokers) == (LOG_ID, at_brokers)
        assert await cluster.topic_by_name(topic, max_age_ms=0) == by_id
        assert await cluster.topic_by_id(at_brokers, max_age_ms=0) == by_id
        assert cluster.cached_topic_by_id(LOG_ID) == cluster.cached_topic_by_id(at_brokers) == by_id
        assert (await cluster.log_offsets(tp)).high_watermark == 10
        fetched = await cluster.fetch(
            tp, 0, bytes_max=1 << 20, wait_max_ms=100, isolation=IsolationLevel.READ_COMMITTED
        )
        assert len(fetched.records) > 10
        ends: dict[TopicIdPartition, object] = {}
        await cluster.ask_epoch_ends({tp: 0}, ends.__setitem__)
        assert ends == {tp: (0, EpochEnd(0, 10))}
        assert await delete_records(cluster, tp, 4) == 4


async def test_a_topic_that_is_known_gets_its_log_later(
    kafka_server: KafkaServer, topic: str
) -> None:
    continued = ContinuedTopics()
    async with opened(kafka_server, continued) as cluster:
        before = await cluster.topic_by_name(topic)
        find_by_name, find_by_id = cluster.cached_topic_by_name, cluster.cached_topic_by_id

        continued.add({before.topic_id: LOG_ID})

        for known in (find_by_name(topic), find_by_id(LOG_ID), find_by_id(before.topic_id)):
            assert known is not None
            assert known.topic_id == LOG_ID
        [again] = [one for one in await cluster.topics(max_age_ms=0) if one.name == topic]
        assert again.topic_id == LOG_ID


async def test_a_topic_made_again_is_another_log(kafka_server: KafkaServer, topic: str) -> None:
    at_brokers, continued = await id_at_brokers(kafka_server, topic), ContinuedTopics()
    continued.add({at_brokers: LOG_ID})
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    async with opened(kafka_server, continued) as cluster:
        assert (await cluster.topic_by_name(topic)).topic_id == LOG_ID
        deleted = admin.delete_topics([topic], operation_timeout=30)[topic]
        await asyncio.to_thread(deleted.result, 60)
        await asyncio.to_thread(kafka_server.create_topic, topic)
        again = await cluster.topic_by_name(topic, max_age_ms=0)
        assert again.topic_id == again.id_at_brokers
        assert again.topic_id not in (LOG_ID, at_brokers)
        with pytest.raises(ClusterError) as gone:
            await cluster.topic_by_id(LOG_ID, max_age_ms=0)
        assert gone.value.error_code == 100  # UNKNOWN_TOPIC_ID
        assert cluster.cached_topic_by_id(LOG_ID) is None
