"""The records of the demo.

Partition and offset alone determine a record, so a reader can check it without a copy of the sent
records.
"""

from __future__ import annotations

import random

TOPIC = "demo.orders"
LIVE_TOPIC = "demo.live"
PARTITIONS = 4
RECORDS_PER_PARTITION = 50_000
RECORDS = PARTITIONS * RECORDS_PER_PARTITION

_FILLING_BYTES_MIN = 60
_FILLING_BYTES_SPREAD = 320
# Random bytes, because real values do not compress to nothing. Every value is a part of these.
_POOL = random.Random(20_26).randbytes(64 * 1024)


def key(partition: int, n: int) -> bytes:
    return b"order-%d-%d" % (partition, n)


def value(partition: int, n: int) -> bytes:
    """About 80 to 410 bytes, different for each record."""
    mixed = (n * 2_654_435_761 + partition * 40_503) & 0xFFFFFFFF
    length = _FILLING_BYTES_MIN + (mixed >> 8) % _FILLING_BYTES_SPREAD
    start = mixed % (len(_POOL) - length)
    return b"order %d of partition %d: " % (n, partition) + _POOL[start : start + length]
