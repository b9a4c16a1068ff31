"""The command in the condition of an open transaction, run as it is, on a real broker."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from archive_harness import archived_up_to, open_archive, running_archiver, tps, until, until_true
from confluent_kafka import Producer

from fetchproxy.observability.health import Condition, Kind
from lab.kafka import KafkaServer, run_tool

pytestmark = pytest.mark.kafka
TOPIC = "never-ended"


def produce(kafka: KafkaServer, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 20})
    for _ in range(count):
        producer.produce(TOPIC, value=b"v" * 100, partition=0)
    assert producer.flush(60) == 0


def begin(kafka: KafkaServer) -> Producer:
    """A transaction of ten records that nobody ends."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": TOPIC})
    producer.init_transactions(60)
    producer.begin_transaction()
    for _ in range(10):
        producer.produce(TOPIC, value=b"v" * 100, partition=0)
    assert producer.flush(60) == 0
    return producer


@pytest.mark.remedy("open_transaction")
async def test_it_ends_what_it_names_and_archiving_goes_on(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    kafka_server.create_topic(TOPIC, 1, config={"retention.bytes": "20000"})
    await asyncio.to_thread(produce, kafka_server, 20)
    producer = await asyncio.to_thread(begin, kafka_server)
    await asyncio.to_thread(produce, kafka_server, 1_000)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka_server.bootstrap, archive, TOPIC) as (manager, cluster),
    ):
        [tp] = await tps(cluster, TOPIC)
        health = manager.published_conditions.health

        def open_transaction() -> Condition | None:
            condition = health.reported(Kind.OPEN_TRANSACTION, tp)
            return condition if condition is not None and "of producer" in condition.what else None

        await until_true(lambda: open_transaction() is not None)
        condition = open_transaction()
        assert condition is not None
        assert "open since offset 20," in condition.what
        assert manager.status()[0].archive_end == 20
        command = condition.what.partition("kafka-transactions.sh ")[2].split()
        command[command.index("BROKER")] = kafka_server.bootstrap
        tool = "org.apache.kafka.tools.TransactionsCommand"
        await asyncio.to_thread(run_tool, tool, *command)
        log_offsets = await cluster.log_offsets(tp)
        assert (
            log_offsets.last_stable_offset == log_offsets.high_watermark == 1_031
        )  # with the marker
        await until(manager, archived_up_to(TOPIC, {0: 1_031}))
        await until_true(lambda: not list(health.all(0.0)))
    del producer
