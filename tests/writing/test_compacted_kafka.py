"""Compacted topics, and topics that once were compacted, on a broker with a busy log cleaner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_harness import (
    archived_up_to,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
    until_true,
)
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from fetchproxy_protocol.record_batch import walk

from fetchproxy.auditing.verify import verify_partition
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
    "delete.retention.ms": "0",
}


@pytest.fixture(scope="module")
def kafka(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    yield from serve_part("kafka", KafkaServer({"log.cleaner.backoff.ms": "100"}, heap="384m"))


def produce(kafka: KafkaServer, topic: str, partition: int, keys: list[str]) -> None:
    """Produce one batch."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 100})
    for key in keys:
        producer.produce(topic, value=b"v" * 50, key=key.encode(), partition=partition)
    assert producer.flush(30) == 0


def set_policy(kafka: KafkaServer, topic: str, policy: str) -> None:
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


async def compacted(kafka: KafkaServer, topic: str) -> None:
    """Write to partition 0 until the cleaner has removed records from it."""
    async with Cluster(ClusterConfig(bootstrap=kafka.bootstrap)) as cluster:
        tp = (await tps(cluster, topic))[0]
        async with asyncio.timeout(60):
            for end in range(9, 10_000, 9):
                await asyncio.to_thread(produce, kafka, topic, 0, ["a"] * 4 + ["b"] * 4 + ["c"])
                log, position = await broker_batches(cluster, tp, 0, end), 0
                for header in walk(log):
                    few = header.records_count != header.last_offset_delta + 1
                    if few or header.base_offset > position:
                        return
                    position = header.last_offset + 1
                await asyncio.sleep(0.2)


def abort(kafka: KafkaServer, topic: str, keys: list[str]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for key in keys:
        producer.produce(topic, value=b"aborted", key=key.encode(), partition=0)
    producer.flush(30)
    producer.abort_transaction(30)


async def test_what_was_compacted_once_is_archived_with_its_holes(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    """As soon as the policy is `delete`, by a running archiver, and each part takes it as it is."""
    topic = kafka.create_topic("once-compacted", 1, COMPACTED)
    await asyncio.to_thread(produce, kafka, topic, 0, ["a", "b"])
    await asyncio.to_thread(abort, kafka, topic, ["a", "x", "y"])
    await compacted(kafka, topic)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka.bootstrap, archive, topic) as (manager, cluster),
    ):
        await until_true(lambda: topic in manager.discovery.refused)
        await asyncio.to_thread(set_policy, kafka, topic, "delete")
        await asyncio.to_thread(produce, kafka, topic, 0, ["a", "b", "a"])
        (tp,) = await tps(cluster, topic)
        now = asyncio.get_running_loop().time()
        end = (await cluster.log_offsets(tp, not_older_than=now)).high_watermark
        await until(manager, archived_up_to(topic, {0: end}))
        assert manager.discovery.refused == {}
        assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, end)
        report = await verify_partition(archive.storage, archive.rlmm, tp)
        assert report.faults == []
        assert report.clean


async def test_a_topic_that_becomes_compacted_is_archived_no_more(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = kafka.create_topic("becomes-compacted")
    await asyncio.to_thread(produce, kafka, topic, 0, ["a", "b", "c"])
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka.bootstrap, archive, topic) as (manager, _),
    ):
        await until(manager, archived_up_to(topic, {0: 3}))
        await asyncio.to_thread(set_policy, kafka, topic, "compact")
        await until_true(lambda: manager.status() == [])
        assert "compact" in manager.discovery.refused[topic]
        await asyncio.to_thread(set_policy, kafka, topic, "delete")
        await asyncio.to_thread(produce, kafka, topic, 0, ["d"])
        await until(manager, archived_up_to(topic, {0: 4}))
        assert manager.discovery.refused == {}
