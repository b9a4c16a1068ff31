"""Cluster against librdkafka's mock brokers: real protocol over TCP, several brokers, no Java."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from uuid import UUID

import pytest
from confluent_kafka import Producer
from fetchproxy_protocol.record_batch import check_crc, walk

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.model import IsolationLevel, TopicIdPartition

TOPIC = "orders"
UNKNOWN = UUID(int=77)


@pytest.fixture
def mock_producer() -> Iterator[Producer]:
    producer = Producer(
        {"bootstrap.servers": "x", "test.mock.num.brokers": 3, "log_level": 0, "linger.ms": 5}
    )
    yield producer
    producer.flush(5)


@pytest.fixture
def config(mock_producer: Producer) -> ClusterConfig:
    brokers = mock_producer.list_topics(timeout=5).brokers.values()
    return ClusterConfig(bootstrap=",".join(f"{b.host}:{b.port}" for b in brokers))


def produce(producer: Producer, count: int, partition: int = 0, size: int = 100) -> None:
    for i in range(count):
        producer.produce(TOPIC, value=b"v" * size, key=str(i).encode(), partition=partition)
        if i % 100 == 99:
            producer.flush(5)
    producer.flush(5)


async def tp_of(cluster: Cluster, partition: int = 0) -> TopicIdPartition:
    topic = await cluster.topic_by_name(TOPIC)
    return TopicIdPartition(topic.topic_id, TOPIC, partition)


async def test_brokers_and_topics(mock_producer: Producer, config: ClusterConfig) -> None:
    produce(mock_producer, 1)
    async with Cluster(config) as cluster:
        assert cluster.cached_topic_by_name(TOPIC) is None
        brokers = await cluster.brokers()
        assert sorted(brokers) == [1, 2, 3]
        topic = await cluster.topic_by_name(TOPIC)
        assert topic.name == TOPIC
        assert len(topic.leaders) == 4
        assert all(leader in brokers for leader, _ in topic.leaders.values())
        assert [t.name for t in await cluster.topics()] == [TOPIC]
        assert cluster.cached_topic_by_id(topic.topic_id) == topic
        assert (await cluster.topic_by_id(topic.topic_id)).name == TOPIC
        assert await cluster.topic_config(TOPIC) == {}  # the mock has no DescribeConfigs


async def test_unknown_topics_have_kafkas_codes(
    mock_producer: Producer, config: ClusterConfig
) -> None:
    produce(mock_producer, 1)
    async with Cluster(config) as cluster:
        with pytest.raises(ClusterError) as by_name:
            await cluster.topic_by_name("absent")
        assert by_name.value.error_code == 3
        with pytest.raises(ClusterError) as by_id:
            await cluster.topic_by_id(UNKNOWN)
        assert by_id.value.error_code == 100
        with pytest.raises(ClusterError) as log_offsets:
            await cluster.log_offsets(TopicIdPartition(UNKNOWN, "absent", 0))
        assert log_offsets.value.error_code == 100


async def test_fetch_gives_whole_raw_batches(
    mock_producer: Producer, config: ClusterConfig
) -> None:
    produce(mock_producer, 500, partition=1)
    async with Cluster(config) as cluster:
        tp = await tp_of(cluster, 1)
        offset, batches = 0, 0
        while offset < 500:
            fetched = await cluster.fetch(
                tp,
                offset,
                bytes_max=1024,
                wait_max_ms=0,
                isolation=IsolationLevel.READ_COMMITTED,
            )
            assert fetched.error_code == 0
            assert fetched.high_watermark == 500
            for header in walk(fetched.records):
                assert header.base_offset == offset
                assert check_crc(fetched.records, header)
                offset = header.last_offset + 1
                batches += 1
        assert batches > 1
        log_offsets = await cluster.log_offsets(tp)
        assert (log_offsets.log_start_offset, log_offsets.high_watermark) == (0, 500)
        assert cluster.cached_log_offsets(tp) == log_offsets
        now = asyncio.get_running_loop().time()
        assert now - 60 <= log_offsets.read_at < now + 1
        assert cluster.cached_log_offsets(tp._replace(partition=0)) is None


async def test_out_of_range_is_an_answer(mock_producer: Producer, config: ClusterConfig) -> None:
    produce(mock_producer, 10)
    async with Cluster(config) as cluster:
        fetched = await cluster.fetch(
            await tp_of(cluster),
            1000,
            bytes_max=1024,
            wait_max_ms=0,
            isolation=IsolationLevel.READ_UNCOMMITTED,
        )
        assert fetched.error_code == 1
        assert len(fetched.records) == 0


async def test_edges_are_cached_but_never_too_old(
    mock_producer: Producer, config: ClusterConfig
) -> None:
    produce(mock_producer, 10)
    loop = asyncio.get_running_loop()
    async with Cluster(config) as cluster:
        tp = await tp_of(cluster)
        lately = loop.time()
        assert (await cluster.log_offsets(tp, not_older_than=lately)).high_watermark == 10
        produce(mock_producer, 10)
        assert (await cluster.log_offsets(tp, not_older_than=lately)).high_watermark == 10
        assert (await cluster.log_offsets(tp)).high_watermark == 20


async def test_a_long_poll_blocks_nobody(mock_producer: Producer, config: ClusterConfig) -> None:
    produce(mock_producer, 10)
    async with Cluster(config) as cluster, asyncio.TaskGroup() as group:
        tp = await tp_of(cluster)
        poll = group.create_task(
            cluster.fetch(
                tp,
                10,
                bytes_max=1024,
                wait_max_ms=2_000,
                isolation=IsolationLevel.READ_COMMITTED,
            )
        )
        await asyncio.sleep(0.05)
        fetched = await cluster.fetch(
            tp, 0, bytes_max=1024, wait_max_ms=0, isolation=IsolationLevel.READ_COMMITTED
        )
        assert len(fetched.records) > 0
        assert (await cluster.log_offsets(tp)).high_watermark == 10
        assert not poll.done()


async def test_cancelled_fetch_leaves_the_cluster_usable(
    mock_producer: Producer, config: ClusterConfig
) -> None:
    produce(mock_producer, 10)
    async with Cluster(config) as cluster:
        tp = await tp_of(cluster)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await cluster.fetch(
                        tp,
                        10,
                        bytes_max=1024,
                        wait_max_ms=5_000,
                        isolation=IsolationLevel.READ_COMMITTED,
                    )
        assert (await cluster.log_offsets(tp)).high_watermark == 10


async def test_one_live_bootstrap_address_is_enough(
    mock_producer: Producer, config: ClusterConfig
) -> None:
    produce(mock_producer, 1)
    live = config.bootstrap.split(",")[0]
    dead_first = config.model_copy(update={"bootstrap": f"127.0.0.1:1,{live}"})
    async with Cluster(dead_first, random.Random(1)) as cluster:
        assert len(await cluster.brokers()) == 3


async def test_no_broker_is_unavailable() -> None:
    config = ClusterConfig(bootstrap="127.0.0.1:1", request_max_ms=200)
    async with Cluster(config) as cluster:
        with pytest.raises(ClusterUnavailable):
            await cluster.brokers()
        with pytest.raises(ClusterUnavailable):
            await cluster.log_offsets(TopicIdPartition(UNKNOWN, "absent", 0))
