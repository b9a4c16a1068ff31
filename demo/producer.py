"""Fills the topic through the proxy.

The producer stays so close to the archive that the broker does not delete records before they are
copied. Otherwise they would be lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Producer

from demo import records
from demo.checks import CheckFailed, require
from demo.proxy import Proxy
from demo.readers import CLIENT_LOG, STALLED_S

_STEP_RECORDS = 1_000

# (records on the broker, records in the archive)
Progress = Callable[[int, int], None]


class _Deliveries:
    def __init__(self) -> None:
        self.count = 0
        self.failures: list[str] = []

    def __call__(self, error: Any, message: Any) -> None:
        if error is None:
            self.count += 1
        else:
            self.failures.append(str(error))


def produce_and_archive(proxy: Proxy, lead_records_max: int, progress: Progress) -> None:
    """Returns when every record is on the broker and in the archive. Raises CheckFailed."""
    delivered = _Deliveries()
    producer = Producer(
        {
            "bootstrap.servers": proxy.bootstrap,
            "enable.idempotence": True,  # a retry must not shift the offsets
            "linger.ms": 5,
            "on_delivery": delivered,
        },
        logger=CLIENT_LOG,
    )
    sent_to_now = archived = 0
    last_at = time.perf_counter()
    while archived < records.RECORDS:
        ends = proxy.archived_ends(records.TOPIC)
        if sum(ends.values()) > archived:
            archived, last_at = sum(ends.values()), time.perf_counter()
        allowed = min(ends.values(), default=0) + lead_records_max
        sent_to = min(records.RECORDS_PER_PARTITION, allowed)
        for first in range(sent_to_now, sent_to, _STEP_RECORDS):
            _send(producer, range(first, min(first + _STEP_RECORDS, sent_to)))
            progress(delivered.count, archived)
        sent_to_now = max(sent_to_now, sent_to)
        producer.poll(0.1)
        progress(delivered.count, archived)
        require(not delivered.failures, "producing works", "; ".join(delivered.failures[:3]))
        if time.perf_counter() - last_at > STALLED_S:
            raise CheckFailed(
                "the archiver keeps up", f"it stands at {ends} of {delivered.count:,} records"
            )
    producer.flush(30)


def _send(producer: Producer, numbers: range) -> None:
    for n in numbers:
        for partition in range(records.PARTITIONS):
            _send_one(producer, partition, n)
    producer.poll(0)


def _send_one(producer: Producer, partition: int, n: int) -> None:
    key, value = records.key(partition, n), records.value(partition, n)
    deadline = time.perf_counter() + STALLED_S
    while True:
        try:
            producer.produce(records.TOPIC, value, key, partition)
            return
        except BufferError as full:  # the producer's queue is full; deliveries make room
            if time.perf_counter() > deadline:
                raise CheckFailed(
                    "producing works", f"nothing left for {STALLED_S:.0f} s"
                ) from full
            producer.poll(0.05)
