"""The stock clients that read: kafka-python and confluent-kafka.

They are configured as usual to read a topic from a given offset, and to fail instead of skipping
records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError
from confluent_kafka import TopicPartition as Position
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError as PythonKafkaError

from demo import records
from demo.checks import CheckFailed, ReadCheck, require

# A reader that gets nothing for this long has failed; the demo's outages last seconds.
STALLED_S = 60.0
_BATCH_RECORDS = 2_000

CLIENT_LOG = logging.getLogger("demo.clients")
FROM_THE_BEGINNING = dict.fromkeys(range(records.PARTITIONS), 0)

Progress = Callable[[int], None]
Arrived = tuple[int, int, bytes | None, bytes | None]  # partition, offset, key, value


@dataclass(frozen=True, slots=True)
class Speed:
    bytes: int
    seconds: float

    @property
    def mb_per_s(self) -> float:
        return self.bytes / 1e6 / self.seconds


def confluent_consumer(bootstrap: str, **settings: Any) -> tuple[Consumer, list[KafkaError]]:
    """A consumer that fails if an offset is gone, and the list of errors that it reports."""
    errors: list[KafkaError] = []
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "fetchproxy-demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "error_cb": errors.append,
            **settings,
        },
        logger=CLIENT_LOG,
    )
    return consumer, errors


def assign(consumer: Consumer, first_offsets: Mapping[int, int]) -> None:
    consumer.assign(
        [Position(records.TOPIC, partition, first) for partition, first in first_offsets.items()]
    )


def read_with_confluent(
    bootstrap: str, first_offsets: Mapping[int, int], progress: Progress
) -> Speed:
    """Reads from `first_offsets` to the end and checks every record. Raises CheckFailed."""
    reader = "confluent-kafka"
    check = ReadCheck(reader, first_offsets)
    consumer, errors = confluent_consumer(bootstrap)

    def poll() -> list[Arrived]:
        return poll_confluent(consumer, reader, timeout_s=0.2)

    try:
        consumer.list_topics(records.TOPIC, timeout=15)  # connects before the clock starts
        begun_at = time.perf_counter()
        assign(consumer, first_offsets)
        arrived = _collect(reader, poll, check.records_expected, progress)
        seconds = time.perf_counter() - begun_at
    finally:
        consumer.close()
    require(not errors, f"{reader} reads without an error", str(errors))
    return _checked(check, arrived, seconds)


def read_with_kafka_python(
    bootstrap: str, first_offsets: Mapping[int, int], progress: Progress
) -> Speed:
    """Reads from `first_offsets` to the end and checks every record. Raises CheckFailed."""
    reader = "kafka-python"
    check = ReadCheck(reader, first_offsets)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="none",
    )

    def poll() -> list[Arrived]:
        by_place = consumer.poll(timeout_ms=200, max_records=_BATCH_RECORDS)
        return [
            (place.partition, record.offset, record.key, record.value)
            for place, batch in by_place.items()
            for record in batch
        ]

    try:
        begun_at = time.perf_counter()
        consumer.assign([TopicPartition(records.TOPIC, partition) for partition in first_offsets])
        for partition, first in first_offsets.items():
            consumer.seek(TopicPartition(records.TOPIC, partition), first)
        arrived = _collect(reader, poll, check.records_expected, progress)
        seconds = time.perf_counter() - begun_at
    except PythonKafkaError as error:
        raise CheckFailed(f"{reader} reads without an error", repr(error)) from error
    finally:
        consumer.close()
    return _checked(check, arrived, seconds)


def poll_confluent(consumer: Consumer, reader: str, timeout_s: float) -> list[Arrived]:
    """The records that arrive within `timeout_s`. Raises CheckFailed on an error."""
    arrived: list[Arrived] = []
    for message in consumer.consume(_BATCH_RECORDS, timeout_s):
        error = message.error()
        if error is not None:
            raise CheckFailed(f"{reader} reads without an error", error.str())
        arrived.append((message.partition(), message.offset(), message.key(), message.value()))
    return arrived


def earliest_offsets(bootstrap: str) -> dict[int, int]:
    """By partition: the offset at which `auto.offset.reset=earliest` begins."""
    consumer, _ = confluent_consumer(bootstrap)
    try:
        return {
            partition: consumer.get_watermark_offsets(
                Position(records.TOPIC, partition), timeout=15
            )[0]
            for partition in range(records.PARTITIONS)
        }
    finally:
        consumer.close()


def errors_at_offset_0(bootstrap: str) -> dict[int, str]:
    """By partition: the error that a confluent-kafka consumer gets for offset 0."""
    consumer, _ = confluent_consumer(bootstrap)
    responses: dict[int, str] = {}
    try:
        assign(consumer, FROM_THE_BEGINNING)
        deadline = time.perf_counter() + 15.0
        while len(responses) < records.PARTITIONS and time.perf_counter() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.partition() not in responses:
                error = message.error()
                responses[message.partition()] = "a record" if error is None else error.str()
        return responses
    finally:
        consumer.close()


def _collect(
    reader: str, poll: Callable[[], list[Arrived]], expected: int, progress: Progress
) -> list[Arrived]:
    """Collects a reader's records until it has the expected number."""
    arrived: list[Arrived] = []
    last_at = time.perf_counter()
    while len(arrived) < expected:
        batch = poll()
        arrived += batch
        progress(len(arrived))
        if batch:
            last_at = time.perf_counter()
        require(
            time.perf_counter() - last_at < STALLED_S,
            f"{reader} reads to the end",
            f"nothing came for {STALLED_S:.0f} s after {len(arrived):,} records",
        )
    return arrived


def _checked(check: ReadCheck, arrived: list[Arrived], seconds: float) -> Speed:
    """Checks after the clock has stopped, so that the check does not lower the speed."""
    for record in arrived:
        check.take(*record)
    require(check.finished, f"{check.reader} gets every record", f"{check.records:,} came")
    return Speed(check.bytes, seconds)
