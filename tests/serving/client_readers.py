"""Stock consumers, given only `bootstrap.servers`: they read from 0 to given ends, or fail.

No client may fall back on a reset: `auto.offset.reset` is none or error everywhere.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

import aiokafka
import confluent_kafka
import kafka

Records = dict[int, list[tuple[int, bytes, bytes]]]
ReadAll = Callable[..., Records]

READ_S = 90.0


class _Progress:
    """The records read, and whether each partition is at its end (control records are hidden)."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self.ends = ends
        self.read: Records = {partition: [] for partition in ends}
        self.deadline = time.monotonic() + READ_S

    def add(self, partition: int, offset: int, key: bytes, value: bytes) -> None:
        self.read[partition].append((offset, key, value))

    def check_time(self, positions: object) -> None:
        assert time.monotonic() < self.deadline, (
            f"read { ({p: len(r) for p, r in self.read.items()}) } of ends {self.ends}; "
            f"positions {positions}"
        )


def read_confluent(
    bootstrap: str,
    topic: str,
    ends: Mapping[int, int],
    starts: Mapping[int, int] | None = None,
    **more: object,
) -> Records:
    """Read from offset 0, or from `starts`."""
    progress = _Progress(ends)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
            **more,
        }
    )
    try:
        tps = [confluent_kafka.TopicPartition(topic, p, (starts or {}).get(p, 0)) for p in ends]
        consumer.assign(tps)
        while True:
            for message in consumer.consume(500, timeout=0.2):
                assert message.error() is None, message.error()
                progress.add(message.partition(), message.offset(), message.key(), message.value())
            positions = {p.partition: p.offset for p in consumer.position(tps)}
            if all(positions[p] >= end for p, end in ends.items()):
                return progress.read
            progress.check_time(positions)
    finally:
        consumer.close()


def read_kafka_python(
    bootstrap: str, topic: str, ends: Mapping[int, int], **more: object
) -> Records:
    progress = _Progress(ends)
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="none",
        enable_auto_commit=False,
        **more,
    )
    try:
        tps = {p: kafka.TopicPartition(topic, p) for p in ends}
        consumer.assign(list(tps.values()))
        for tp in tps.values():
            consumer.seek(tp, 0)
        while True:
            for records in consumer.poll(timeout_ms=200, max_records=5000).values():
                for r in records:
                    progress.add(r.partition, r.offset, r.key, r.value)
            positions = {p: consumer.position(tp) for p, tp in tps.items()}
            if all(positions[p] >= end for p, end in ends.items()):
                return progress.read
            progress.check_time(positions)
    finally:
        consumer.close()


def read_aiokafka(bootstrap: str, topic: str, ends: Mapping[int, int], **more: object) -> Records:
    async def read() -> Records:
        progress = _Progress(ends)
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, auto_offset_reset="none", enable_auto_commit=False, **more
        )
        await consumer.start()
        try:
            tps = {p: aiokafka.TopicPartition(topic, p) for p in ends}
            consumer.assign(list(tps.values()))
            for tp in tps.values():
                consumer.seek(tp, 0)
            while True:
                polled = await consumer.getmany(timeout_ms=200, max_records=5000)
                for records in polled.values():
                    for r in records:
                        progress.add(r.partition, r.offset, r.key, r.value)
                positions = {p: await consumer.position(tp) for p, tp in tps.items()}
                if all(positions[p] >= end for p, end in ends.items()):
                    return progress.read
                progress.check_time(positions)
        finally:
            await consumer.stop()

    return asyncio.run(read())


PYTHON_CLIENTS: dict[str, ReadAll] = {
    "confluent-kafka": read_confluent,
    "kafka-python": read_kafka_python,
    "aiokafka": read_aiokafka,
}
