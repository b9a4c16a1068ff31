"""Records that can be checked one by one.

Each value begins with its partition and offset, and the rest of the value follows from the offset.
An idempotent producer writes them in order, so partition and offset are correct.
"""

from __future__ import annotations

import random
from struct import Struct

from confluent_kafka import KafkaException, Producer

_PLACE = Struct(">iq")  # partition, offset
_SHIFTS = 4096
_FLUSH_S = 120.0
# A batch is as large as a broker accepts by default. A partition is filled one batch at a time.
_BATCH_BYTES = 1_000_000
_FILLING = random.Random(5).randbytes(64 * 1024 + _SHIFTS)  # incompressible

RECORD_BYTES_MAX = 64 * 1024


def value_of(partition: int, offset: int, record_bytes: int) -> bytes:
    """`record_bytes`: 12 … RECORD_BYTES_MAX."""
    shift = offset % _SHIFTS
    return _PLACE.pack(partition, offset) + _FILLING[shift : shift + record_bytes - _PLACE.size]


def fill(
    bootstrap: str, topic: str, partitions: int, records: int, record_bytes: int, begin: int = 0
) -> None:
    """Writes each partition's records from offset `begin`, its current end, to `records`
    (exclusive).

    Raises KafkaException.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "batch.size": _BATCH_BYTES,
            "batch.num.messages": 100_000,
            "linger.ms": 100,
            "log_level": 3,  # a broker that has just started is not yet ready for idempotence
        }
    )
    failures: list[str] = []

    def delivered(error: object, message: object) -> None:
        if error is not None:
            failures.append(str(error))

    step = max(1, _BATCH_BYTES // (record_bytes + 16))
    for start in range(begin, records, step):
        for partition in range(partitions):
            for offset in range(start, min(start + step, records)):
                value = value_of(partition, offset, record_bytes)
                _send(producer, topic, value, partition, delivered)
    if producer.flush(_FLUSH_S) or failures:
        raise KafkaException(f"the broker does not take the records of {topic}: {failures[:1]}")


def _send(producer: Producer, topic: str, value: bytes, partition: int, delivered: object) -> None:
    while True:
        try:
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
            return
        except BufferError:
            producer.poll(0.1)
