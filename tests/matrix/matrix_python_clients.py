"""The Python clients of the matrix: each as a user would write it, told only where to dial."""

from __future__ import annotations

import asyncio
import time
from importlib.metadata import version

import aiokafka
import confluent_kafka
import kafka
from client_readers import Records, read_aiokafka, read_confluent, read_kafka_python
from confluent_kafka.admin import AdminClient, OffsetSpec
from matrix_client import Line, MatrixClient

READ_S = 90.0
ABORTED = (b"aborted", b"aborted")


def as_lines(records: Records) -> list[Line]:
    return [(p, o, k.decode(), v.decode()) for p in sorted(records) for o, k, v in records[p]]


def records_of(count: int) -> list[tuple[bytes, bytes]]:
    return [(b"k%d" % number, b"v%d" % number) for number in range(count)]


def confluent_assign(bootstrap: str, topic: str, ends: dict[int, int], level: str) -> list[Line]:
    return as_lines(read_confluent(bootstrap, topic, ends, **{"isolation.level": level}))


def confluent_group(bootstrap: str, topic: str, group: str, count: int, level: str) -> list[Line]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": level,
        }
    )
    lines: list[Line] = []
    behind: dict[int, int] = {}
    deadline = time.monotonic() + READ_S
    try:
        consumer.subscribe([topic])
        while len(lines) < count:
            assert time.monotonic() < deadline, f"{len(lines)} of {count} records"
            for message in consumer.consume(count - len(lines), timeout=0.5):
                assert message.error() is None, message.error()
                p, offset = message.partition(), message.offset()
                lines.append((p, offset, message.key().decode(), message.value().decode()))
                behind[p] = offset + 1
        tps = [confluent_kafka.TopicPartition(topic, p, offset) for p, offset in behind.items()]
        consumer.commit(offsets=tps, asynchronous=False)
    finally:
        consumer.close()
    return lines


def confluent_produce(bootstrap: str, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True}
    )
    for key, value in records_of(count):
        producer.produce(topic, value, key, 0)
    assert producer.flush(READ_S) == 0


def confluent_transact(bootstrap: str, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"confluent-{topic}"}
    )
    producer.init_transactions(READ_S)
    producer.begin_transaction()
    producer.produce(topic, ABORTED[1], ABORTED[0], 0)
    assert producer.flush(READ_S) == 0
    producer.abort_transaction(READ_S)
    producer.begin_transaction()
    for key, value in records_of(count):
        producer.produce(topic, value, key, 0)
    producer.commit_transaction(READ_S)


def confluent_times(bootstrap: str, topic: str, partition: int, timestamp: int) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    tp = confluent_kafka.TopicPartition(topic, partition)
    futures = admin.list_offsets({tp: OffsetSpec.for_timestamp(timestamp)})
    return int(futures[tp].result(timeout=READ_S).offset)


def kafka_python_assign(bootstrap: str, topic: str, ends: dict[int, int], level: str) -> list[Line]:
    return as_lines(read_kafka_python(bootstrap, topic, ends, isolation_level=level))


def kafka_python_group(
    bootstrap: str, topic: str, group: str, count: int, level: str
) -> list[Line]:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="none",
        enable_auto_commit=False,
        isolation_level=level,
    )
    lines: list[Line] = []
    deadline = time.monotonic() + READ_S
    try:
        while len(lines) < count:
            assert time.monotonic() < deadline, f"{len(lines)} of {count} records"
            polled = consumer.poll(timeout_ms=500, max_records=count - len(lines))
            for records in polled.values():
                lines += [
                    (r.partition, r.offset, r.key.decode(), r.value.decode()) for r in records
                ]
        consumer.commit()
    finally:
        consumer.close()
    return lines


def kafka_python_produce(bootstrap: str, topic: str, count: int) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    futures = [producer.send(topic, value, key, partition=0) for key, value in records_of(count)]
    for future in futures:
        future.get(timeout=READ_S)
    producer.close()


def kafka_python_transact(bootstrap: str, topic: str, count: int) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=f"kafka-python-{topic}"
    )
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, ABORTED[1], ABORTED[0], partition=0).get(timeout=READ_S)
    producer.abort_transaction()
    producer.begin_transaction()
    for key, value in records_of(count):
        producer.send(topic, value, key, partition=0)
    producer.commit_transaction()
    producer.close()


def kafka_python_times(bootstrap: str, topic: str, partition: int, timestamp: int) -> int:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        tp = kafka.TopicPartition(topic, partition)
        offset = consumer.offsets_for_times({tp: timestamp})[tp]
        return -1 if offset is None else int(offset.offset)
    finally:
        consumer.close()


def aiokafka_assign(bootstrap: str, topic: str, ends: dict[int, int], level: str) -> list[Line]:
    return as_lines(read_aiokafka(bootstrap, topic, ends, isolation_level=level))


def aiokafka_group(bootstrap: str, topic: str, group: str, count: int, level: str) -> list[Line]:
    async def read() -> list[Line]:
        lines: list[Line] = []
        async with (
            asyncio.timeout(READ_S),
            aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="none",
                enable_auto_commit=False,
                isolation_level=level,
            ) as consumer,
        ):
            while len(lines) < count:
                polled = await consumer.getmany(timeout_ms=500, max_records=count - len(lines))
                for records in polled.values():
                    lines.extend(
                        (r.partition, r.offset, r.key.decode(), r.value.decode()) for r in records
                    )
            await consumer.commit()
        return lines

    return asyncio.run(read())


def aiokafka_produce(bootstrap: str, topic: str, count: int) -> None:
    async def produce() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True
        ) as producer:
            for key, value in records_of(count):
                await producer.send_and_wait(topic, value, key, partition=0)

    asyncio.run(produce())


def aiokafka_transact(bootstrap: str, topic: str, count: int) -> None:
    async def produce() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=f"aiokafka-{topic}"
        ) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, ABORTED[1], ABORTED[0], partition=0)
            await producer.abort_transaction()
            async with producer.transaction():
                for key, value in records_of(count):
                    await producer.send(topic, value, key, partition=0)

    asyncio.run(produce())


def aiokafka_times(bootstrap: str, topic: str, partition: int, timestamp: int) -> int:
    async def ask() -> int:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            tp = aiokafka.TopicPartition(topic, partition)
            offset = (await consumer.offsets_for_times({tp: timestamp}))[tp]
            return -1 if offset is None else int(offset.offset)

    return asyncio.run(ask())


CONFLUENT = MatrixClient(
    name="confluent-kafka",
    version=lambda: f"{version('confluent-kafka')} (librdkafka {confluent_kafka.libversion()[0]})",
    assign=confluent_assign,
    group=confluent_group,
    produce=confluent_produce,
    transact=confluent_transact,
    times=confluent_times,
)
KAFKA_PYTHON = MatrixClient(
    name="kafka-python",
    version=lambda: version("kafka-python"),
    assign=kafka_python_assign,
    group=kafka_python_group,
    produce=kafka_python_produce,
    transact=kafka_python_transact,
    times=kafka_python_times,
)
AIOKAFKA = MatrixClient(
    name="aiokafka",
    version=lambda: version("aiokafka"),
    assign=aiokafka_assign,
    group=aiokafka_group,
    produce=aiokafka_produce,
    transact=aiokafka_transact,
    times=aiokafka_times,
)
