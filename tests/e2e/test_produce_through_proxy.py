"""Records that producers send through the proxy reach the broker unchanged, with any acks."""

from __future__ import annotations

import asyncio

import aiokafka
import confluent_kafka
import kafka
import pytest
from archived_topics import MakeReplayed
from client_readers import read_confluent
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from proxy_process import ProxyProcess, wait_for

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

COUNT = 400
ACKS = ("0", "1", "all", "idempotent")


def record_of(number: int) -> tuple[bytes, bytes]:
    return b"key-%d" % number, b"value-%d" % number * 20


def send_confluent(bootstrap: str, topic: str, acks: str) -> None:
    settings: dict[str, object] = {"enable.idempotence": True}
    if acks != "idempotent":
        settings = {"acks": acks}
    failed: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **settings})
    for number in range(COUNT):
        key, value = record_of(number)
        producer.produce(
            topic, value, key, 0, on_delivery=lambda error, _: error and failed.append(error)
        )
    assert producer.flush(30) == 0
    assert not failed, failed[:3]


def send_kafka_python(bootstrap: str, topic: str, acks: str) -> None:
    settings: dict[str, object] = {"enable_idempotence": True}
    if acks != "idempotent":
        # without idempotence a second request in flight could overtake a retry of the first
        settings = {
            "acks": acks if acks == "all" else int(acks),
            "enable_idempotence": False,
            "max_in_flight_requests_per_connection": 1,
        }
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, **settings)
    futures = []
    for number in range(COUNT):
        key, value = record_of(number)
        futures.append(producer.send(topic, value, key, partition=0))
    producer.flush(30)
    for future in futures:
        future.get(30)
    producer.close()


def send_aiokafka(bootstrap: str, topic: str, acks: str) -> None:
    async def send() -> None:
        settings: dict[str, object] = {"enable_idempotence": True}
        if acks != "idempotent":
            settings = {"acks": acks if acks == "all" else int(acks)}
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
            futures = []
            for number in range(COUNT):
                key, value = record_of(number)
                futures.append(await producer.send(topic, value, key, partition=0))
            for future in futures:
                await future

    asyncio.run(send())


SENDERS = {
    "confluent-kafka": send_confluent,
    "kafka-python": send_kafka_python,
    "aiokafka": send_aiokafka,
}


def log_end(bootstrap: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[1]
        return end
    finally:
        consumer.close()


@pytest.mark.parametrize("acks", ACKS)
@pytest.mark.parametrize("client", SENDERS)
def test_every_kind_of_acknowledgement(
    kafka_server: KafkaServer, proxy: ProxyProcess, client: str, acks: str
) -> None:
    topic = kafka_server.create_topic(f"produced-{client}-{acks}")
    SENDERS[client](proxy.bootstrap, topic, acks)
    # acks=0 promises nothing: the last requests may still be in flight
    wait_for("all records", lambda: log_end(kafka_server.bootstrap, topic) == COUNT)
    records = read_confluent(kafka_server.bootstrap, topic, {0: COUNT})
    assert [(key, value) for _, key, value in records[0]] == [record_of(n) for n in range(COUNT)]


def test_consume_transform_produce_in_transactions(
    kafka_server: KafkaServer, proxy: ProxyProcess, replayed: MakeReplayed
) -> None:
    """Input from the archive, output and group offsets in one transaction; one is aborted."""
    source = replayed("none")
    output = kafka_server.create_topic("transformed")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": proxy.bootstrap,
            "group.id": "transform",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": proxy.bootstrap, "transactional.id": "e2e-transform"}
    )
    producer.init_transactions(30)
    consumer.subscribe([source.topic])
    try:
        taken = 0
        for commits in (True, False, True):
            messages: list[confluent_kafka.Message] = []
            while len(messages) < 100:
                messages += consumer.consume(100 - len(messages), timeout=10)
            assert all(message.error() is None for message in messages)
            producer.begin_transaction()
            for message in messages:
                producer.produce(output, message.value(), b"%d" % message.offset())
            producer.send_offsets_to_transaction(
                consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 30
            )
            if commits:
                producer.commit_transaction(30)
                taken = messages[-1].offset() + 1
            else:
                producer.abort_transaction(30)
                consumer.seek(TopicPartition(source.topic, 0, taken))
    finally:
        consumer.close()
    for bootstrap in (kafka_server.bootstrap, proxy.bootstrap):
        end = log_end(bootstrap, output)
        records = read_confluent(
            bootstrap, output, {0: end}, **{"isolation.level": "read_committed"}
        )
        assert [int(key) for _, key, _ in records[0]] == list(range(200))
        assert [value for _, _, value in records[0]] == [v for _, _, v in source.written[0][:200]]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        futures = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("transform")])
        assert [p.offset for p in futures["transform"].result(30).topic_partitions] == [200]
