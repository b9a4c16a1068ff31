"""Real consumers over both tiers of both sides: read_committed gets each committed record once."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from oracle_rules import Findings
from oracle_steps import EndTxn, Produce, Roll, Scene, Trim
from oracle_world import TwinTopic, World

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def scene(world: World) -> Any:
    """A segment without transactions, five where three producers take turns, one left open."""
    made = Scene(world, Findings(), world.new_topics(1))
    made.run(Produce(0, (90,) * 3))
    made.run(Roll(0))
    for number in range(10):
        made.run(Produce(0, (60,) * 4, number % 5, producer=number % 3, seed=number))
        made.run(Produce(0, (20,) * 2, seed=number))
        if number % 3:
            made.run(EndTxn(number % 3, number % 2 == 0))
        if number % 2:
            made.run(Roll(0))
    for producer in range(3):
        made.run(EndTxn(producer, producer == 1))
    made.run(Roll(0))
    made.run(Produce(0, (9,) * 3))
    made.run(Trim(0))
    made.run(Produce(0, (9,) * 3, producer=0))
    made.run(EndTxn(0, False))
    made.run(Produce(0, (9,) * 3))
    made.run(Produce(0, (9,) * 2, producer=1))
    log = made.topics[0].log
    assert 0 < log.archived <= log.last_stable < log.end
    yield made
    made.clear()


def expected(topic: TwinTopic, isolation: str) -> list[int]:
    end = topic.log.visible_end(int(isolation == "read_committed"))
    batches = [b for b in topic.log.batches if b.last_offset < end]
    data = [(b.base_offset, b.last_offset) for b in batches if not b.attributes & 0x20]
    if isolation == "read_committed":
        data = topic.log.committed_data(batches)
    return [offset for first, last in data for offset in range(first, last + 1)]


def by_librdkafka(bootstrap: str, topic: str, isolation: str, count: int) -> list[int]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "oracle", "isolation.level": isolation}
    settings |= {"auto.offset.reset": "error", "enable.partition.eof": True}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    offsets: list[int] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None, f"{len(offsets)} of {count}, then nothing"
            if message.error() is None:
                offsets.append(message.offset())
            elif message.error().code() == -191:  # _PARTITION_EOF
                return offsets
            else:
                raise AssertionError(message.error())
    finally:
        consumer.close()


def by_kafka_python(bootstrap: str, topic: str, isolation: str, count: int) -> list[int]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation,
        auto_offset_reset="none",
        enable_auto_commit=False,
        consumer_timeout_ms=30_000,
    )
    try:
        partition = PythonPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        offsets: list[int] = []
        for record in consumer:
            offsets.append(record.offset)
            if len(offsets) == count:
                break
        # Were there more to come, as an aborted record: it would come within a fetch or two.
        more = consumer.poll(timeout_ms=1_000)
        return offsets + [record.offset for records in more.values() for record in records]
    finally:
        consumer.close()


@pytest.mark.parametrize("read_all", [by_librdkafka, by_kafka_python])
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_each_record_once(world: World, scene: Scene, isolation: str, read_all: Any) -> None:
    topic = scene.topics[0]
    expected_values = expected(topic, isolation)
    for side in world.sides:
        assert (
            read_all(side.bootstrap, topic.name, isolation, len(expected_values)) == expected_values
        ), side.name


def test_only_segments_with_aborted_transactions_have_an_index_of_them(
    world: World, scene: Scene
) -> None:
    """The flag "none" is the absence of the object: nothing is read for such a segment."""
    topic = scene.topics[0]
    folder = Path(urlparse(world.proxied.store).path)
    logs = sorted(folder.rglob(f"{topic.name}-*/**/*.log"))
    assert len(logs) >= 5
    starts = [int(path.name[:20]) for path in logs]
    for i, (path, start) in enumerate(zip(logs, starts, strict=True)):
        end = starts[i + 1] if i + 1 < len(starts) else topic.log.archived
        touched = bool(topic.log.aborted_between(start, end - 1))
        assert path.with_suffix(".txn").exists() == touched, path.name
    assert not all(path.with_suffix(".txn").exists() for path in logs)
    assert any(path.with_suffix(".txn").exists() for path in logs)
