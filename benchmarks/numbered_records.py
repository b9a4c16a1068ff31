"""Records that can be checked one by one: each says its partition and offset, and the rest of its
value follows from these. Written in order by an idempotent producer, so that both are true."""

from __future__ import annotations

import random
from struct import Struct

from confluent_kafka import KafkaException, Producer

_PLACE = Struct(">iq")  # partition, offset
_SHIFTS = 4096
_FLUSH_S = 120.0
# A batch as large as a broker takes by default; a partition is filled a batch at a time.
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
    """Each partition's records from offset `begin`, which is its end now, to `records` (exclusive).

    Raises KafkaException.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "batch.size": _BATCH_BYTES,
            "batch.num.messages": 100_000,
            "linger.ms": 100,
            "log_level": 3,  # a broker that has just started is not ready for idempotence yet
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
