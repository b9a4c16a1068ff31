"""Real parts refuse what tests rely on to be refused: nothing passes because a part was lenient.

That each part serves, and comes back after a kill with its data, every other folder shows.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from lab.go_client import franz_reader, franz_reader_command
from lab.kafka import KafkaServer
from lab.mock_cluster import MockCluster
from lab.s3 import S3Server

RECORD_BYTES = 100_000
MOCK_KEEPS_BYTES = 5 * 1024 * 1024


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(count):
        producer.produce(topic, b"v" * RECORD_BYTES, partition=0)
        producer.flush(30)
    assert len(producer) == 0


def trim(bootstrap: str, topic: str, offset: int) -> None:
    at = TopicPartition(topic, 0, offset)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([at])[at].result(timeout=30)


def assert_out_of_range(bootstrap: str, topic: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.error() is not None
    assert "out of range" in str(message.error()).lower()


@pytest.mark.kafka
def test_a_trimmed_topic_answers_out_of_range(kafka_server: KafkaServer, topic: str) -> None:
    produce(kafka_server.bootstrap, topic, 10)
    trim(kafka_server.bootstrap, topic, 4)
    start = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    earliest = admin.list_offsets({start: OffsetSpec.earliest()})[start].result(timeout=30)
    assert earliest.offset == 4
    assert_out_of_range(kafka_server.bootstrap, topic)


@pytest.mark.kafka
def test_franz_go_fails_below_the_log_start(
    find_part: Callable[[str, Callable[[], Path]], Path], kafka_server: KafkaServer, topic: str
) -> None:
    find_part("clients", franz_reader)
    produce(kafka_server.bootstrap, topic, 10)
    trim(kafka_server.bootstrap, topic, 3)
    command = franz_reader_command(kafka_server.bootstrap, topic, {0: 10})
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=90)
    assert result.returncode == 1
    assert "OFFSET_OUT_OF_RANGE" in result.stderr


@pytest.mark.kafka
def test_topics_are_not_created_by_asking(kafka_server: KafkaServer) -> None:
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap, "message.timeout.ms": 3000})
    errors: list[object] = []
    producer.produce("absent", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert len(errors) == 1
    assert errors[0] is not None


def test_mock_brokers_forget_all_but_the_last_five_mebibytes(mock_cluster: MockCluster) -> None:
    produce(mock_cluster.bootstrap, "events", 100)
    consumer = Consumer({"bootstrap.servers": mock_cluster.bootstrap, "group.id": "unused"})
    low, high = consumer.get_watermark_offsets(TopicPartition("events", 0), timeout=30)
    consumer.close()
    assert high == 100
    assert low > 0
    assert (high - low) * RECORD_BYTES <= MOCK_KEEPS_BYTES
    assert_out_of_range(mock_cluster.bootstrap, "events")


@pytest.mark.s3
def test_wrong_signatures_are_refused(s3_server: S3Server, s3_bucket: str) -> None:
    stranger = S3Server.__new__(S3Server)
    stranger.__dict__.update(s3_server.__dict__)
    stranger.secret_key = "wrong"
    client = stranger.client()
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        client.list_objects_v2(Bucket=s3_bucket)
    client.close()
