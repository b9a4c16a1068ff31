"""Fills topics with records of one shape, for benchmarks that read them.

No reader checks the values. They are random bytes, or hexadecimal digits of half as many random
bytes if they are to be compressed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from confluent_kafka import KafkaException, Producer

_VALUES = 1024  # different values, used in turn
_FLUSH_S = 300.0
_BATCH_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """`compression`: a codec's name in Kafka, or "none"."""

    record_bytes: int
    compression: str

    @classmethod
    def parse(cls, text: str) -> Shape:
        """`1024` or `1024:lz4`. Raises ValueError."""
        size, _, codec = text.partition(":")
        if codec not in ("", "none", "gzip", "snappy", "lz4", "zstd"):
            raise ValueError(f"unknown compression {codec!r}")
        return cls(int(size), codec or "none")

    def __str__(self) -> str:
        size = self.record_bytes
        words = f"{size // 1024} KiB" if size % 1024 == 0 else f"{size} B"
        return words if self.compression == "none" else f"{words} {self.compression}"


def fill(bootstrap: str, topic: str, partitions: int, records: int, shape: Shape) -> list[int]:
    """Writes batches as large as a broker accepts by default.

    Returns the number of records in each partition. Raises KafkaException.
    """
    settings = {"batch.size": _BATCH_BYTES, "linger.ms": 100, "batch.num.messages": 100_000}
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": 1,
            "compression.type": shape.compression,
            **settings,
        }
    )
    values = _values(shape)
    run = max(1, 900 * 1024 // shape.record_bytes)  # the records of one batch
    written = [0] * partitions
    for number in range(records):
        partition = number // run % partitions
        written[partition] += 1
        while True:
            try:
                producer.produce(topic, values[number % len(values)], partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(_FLUSH_S):
        raise KafkaException("the broker does not take the benchmark's records")
    return written


def _values(shape: Shape) -> list[bytes]:
    source = random.Random(1)
    if shape.compression == "none":
        return [source.randbytes(shape.record_bytes) for _ in range(_VALUES)]
    half = -(-shape.record_bytes // 2)
    return [source.randbytes(half).hex().encode()[: shape.record_bytes] for _ in range(_VALUES)]
