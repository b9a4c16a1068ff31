"""The real broker behaves as tests assume: it serves, forgets on demand, and comes back."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from lab.kafka import KafkaServer, run_tool

pytestmark = pytest.mark.kafka


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, key=str(number), value=b"v" * 100)
    assert producer.flush(30) == 0


def test_a_trimmed_topic_answers_out_of_range(kafka_server: KafkaServer, topic: str) -> None:
    produce(kafka_server.bootstrap, topic, 10)
    trim = TopicPartition(topic, 0, 4)
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    admin.delete_records([trim])[trim].result(timeout=30)

    start = TopicPartition(topic, 0)
    earliest = admin.list_offsets({start: OffsetSpec.earliest()})[start].result(timeout=30)
    assert earliest.offset == 4

    consumer = Consumer(
        {
            "bootstrap.servers": kafka_server.bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert message.error() is not None
    assert "out of range" in str(message.error()).lower()


def test_topics_are_not_created_by_asking(kafka_server: KafkaServer) -> None:
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap, "message.timeout.ms": 3000})
    errors: list[object] = []
    producer.produce("absent", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert len(errors) == 1
    assert errors[0] is not None


def test_kafkas_own_tools_run(kafka_server: KafkaServer, topic: str) -> None:
    produce(kafka_server.bootstrap, topic, 3)
    done = run_tool(
        "org.apache.kafka.tools.GetOffsetShell",
        "--bootstrap-server",
        kafka_server.bootstrap,
        "--topic",
        topic,
    )
    assert done.stdout.strip() == f"{topic}:0:3"


def test_a_killed_broker_comes_back_with_its_data(
    own_kafka_server: KafkaServer,
) -> None:
    bootstrap = own_kafka_server.bootstrap
    own_kafka_server.create_topic("kept")
    produce(bootstrap, "kept", 5)
    own_kafka_server.kill()
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=1)
    own_kafka_server.start()
    assert own_kafka_server.bootstrap == bootstrap
    part = TopicPartition("kept", 0)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    assert admin.list_offsets({part: OffsetSpec.latest()})[part].result(timeout=60).offset == 5
