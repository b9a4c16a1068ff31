"""Archived records in another topic of a real broker, each once whatever happens meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from made_batches import CODECS, Record, made_batch
from topic_copier_process import RECORDS_MAX
from written_archive import TIP, WrittenArchive

from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.schema import ClusterConfig, Config
from fetchproxy.errors import ClusterError, ConfigError
from fetchproxy.jobs.backfill_topic import (
    CopiedPartition,
    TopicTarget,
    copy_partition,
    kafka_settings,
    plan_topic,
)
from fetchproxy.model import TopicIdPartition
from fetchproxy.remotelog.options import parse_options
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

CreateTopic = Callable[..., str]
PROJECT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (PROJECT, *sys.path)))}


def record(partition: int, offset: int) -> Record:
    return Record(
        None if offset % 7 == 0 else b"k%d" % offset,
        None if offset % 11 == 0 else b"v%d/%d" % (partition, offset),
        1_700_000_000_000 + offset,
        (("h", b"%d" % offset), ("n", None)) if offset % 10 == 0 else (),
    )


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    """Two partitions of 300 records each, in three segments."""
    made = WrittenArchive(tmp_path / "archive")
    for partition in range(2):
        for base in (0, 100, 200):
            made.add(
                [
                    made_batch(
                        at,
                        [record(partition, o) for o in range(at, at + 10)],
                        codec=CODECS[at // 10 % 5],
                    )
                    for at in range(base, base + 100, 10)
                ],
                tip=TopicIdPartition(TIP.topic_id, TIP.topic, partition),
            )
    return made


def config_of(kafka: KafkaServer) -> Config:
    return load_config(None, {}, [Setting("cluster.bootstrap", kafka.bootstrap, "test")])


def target(
    archive: WrittenArchive, kafka: KafkaServer, topic: str, append: bool = False
) -> TopicTarget:
    options = parse_options({"store": archive.url, "topics": "orders"})
    return TopicTarget(config_of(kafka).cluster, topic, options, append)


def run(to: TopicTarget, kafka: KafkaServer) -> list[CopiedPartition]:
    return [copy_partition(to, task) for task in plan_topic(config_of(kafka), to)[0]]


Row = tuple[bytes | None, bytes | None, int, tuple[Any, ...]]


def read(kafka: KafkaServer, topic: str, partition: int) -> list[Row]:
    """As a consumer with read_committed does."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": f"read-{topic}",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    rows: list[Row] = []
    try:
        while True:
            message = consumer.poll(20)
            assert message is not None
            if message.error():
                return rows
            headers = tuple(message.headers() or ())
            rows.append((message.key(), message.value(), message.timestamp()[1], headers))
    finally:
        consumer.close()


def expected(partition: int, count: int = 300) -> list[Row]:
    made = [record(partition, offset) for offset in range(count)]
    return [(r.key, r.value, r.timestamp, r.headers) for r in made]


def test_every_record_with_all_that_it_has_and_no_more_in_a_second_run(
    archive: WrittenArchive, kafka_server: KafkaServer, create_topic: CreateTopic
) -> None:
    topic = create_topic(2)
    to = target(archive, kafka_server, topic)
    assert [done.records for done in run(to, kafka_server)] == [300, 300]
    assert [done.records for done in run(to, kafka_server)] == [0, 0]
    for partition in range(2):
        assert read(kafka_server, topic, partition) == expected(partition)


def test_one_that_was_killed_goes_on_and_repeats_nothing(
    archive: WrittenArchive, kafka_server: KafkaServer, create_topic: CreateTopic
) -> None:
    topic = create_topic(2)
    command = [sys.executable, str(Path(__file__).with_name("topic_copier_process.py"))]
    command += [archive.url, kafka_server.bootstrap, topic]
    for after in (0, RECORDS_MAX, RECORDS_MAX):
        killed = subprocess.run(
            [*command, str(after)], cwd=PROJECT, env=ENVIRONMENT, check=False, timeout=120
        )
        assert killed.returncode == -signal.SIGKILL
    to = target(archive, kafka_server, topic)
    done = copy_partition(to, plan_topic(config_of(kafka_server), to)[0][0])
    assert done.records == 300 - 2 * RECORDS_MAX
    assert read(kafka_server, topic, 0) == expected(0)


def test_a_target_that_has_records_of_others_is_not_touched(
    archive: WrittenArchive, kafka_server: KafkaServer, create_topic: CreateTopic
) -> None:
    topic = create_topic(2)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    producer.produce(topic, b"there", partition=0)
    assert producer.flush(20) == 0
    to = target(archive, kafka_server, topic)
    (task, _), _ = plan_topic(config_of(kafka_server), to)
    with pytest.raises(ConfigError, match="has records, and it is not known whether"):
        copy_partition(to, task)
    appending = target(archive, kafka_server, topic, append=True)
    assert copy_partition(appending, task).records == 300
    assert read(kafka_server, topic, 0)[1:] == expected(0)


def test_what_cannot_go_is_said_before_anything_starts(
    archive: WrittenArchive, kafka_server: KafkaServer, create_topic: CreateTopic
) -> None:
    plan = partial(plan_topic, config_of(kafka_server))
    with pytest.raises(ConfigError, match="has 1 partitions, the source has 2"):
        plan(target(archive, kafka_server, create_topic(1)))
    with pytest.raises(ClusterError):
        plan(target(archive, kafka_server, "no-such-topic"))
    by_token = ClusterConfig(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER")
    with pytest.raises(ConfigError, match="PLAIN and SCRAM"):
        kafka_settings(by_token)
