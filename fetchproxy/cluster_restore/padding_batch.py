"""Batches of empty records, which move the end of a log on and hold nothing. Pure.

A producer cannot choose offsets, so each offset costs a record: Kafka's LogValidator compares a
client's batch with its number of records, and looks at each of them. But a record may be empty, and
the same batch serves every place of every partition, as brokers set its base offset.
"""

from __future__ import annotations

from functools import cache, lru_cache
from struct import Struct

import cramjam
from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.record_batch import CRC_COVERS_FROM, MAGIC, CompressionType

# The time of all padding: 1970. So its segments are the first ones that retention by time removes,
# the first new record begins another segment (segment.ms), and a look-up by any later time finds
# none of it: that is how padding is told from records. A negative time would not do: Kafka takes
# the file's own time for a segment without times.
PADDING_MS = 0
# A broker makes an object for each record of a batch while it looks at it. With three times as
# many, a heap of 512 MB spends most of its time on them.
PADDING_RECORDS_MAX = 100_000

_HEADER = Struct(">qiibIhiqqqhii")
_LENGTH_AT = 12  # the length of a batch counts from here
_NO_EPOCH = _NO_PRODUCER = _NO_SEQUENCE = -1
_OF_ALL = 5  # attributes, time, no key, no value, no headers: a byte each
_LEVEL = 5  # of zstd: higher ones take seconds and pack these records no better
_DELTA_BITS = 7


@lru_cache(maxsize=16)  # of 40 kB each
def padding_batch(records: int) -> bytes:
    """A batch of that many records, 1 to PADDING_RECORDS_MAX. The first one takes 0.3 s."""
    packed = bytes(cramjam.zstd.compress(_records()[: _bytes_of(records)], _LEVEL))
    header = _HEADER.pack(
        0,
        _HEADER.size - _LENGTH_AT + len(packed),
        _NO_EPOCH,
        MAGIC,
        0,
        CompressionType.ZSTD,
        records - 1,
        PADDING_MS,
        PADDING_MS,
        _NO_PRODUCER,
        _NO_EPOCH,
        _NO_SEQUENCE,
        records,
    )
    batch = bytearray(header + packed)
    crc = crc32c(bytes(batch[CRC_COVERS_FROM:]))
    batch[CRC_COVERS_FROM - 4 : CRC_COVERS_FROM] = crc.to_bytes(4, "big")
    return bytes(batch)


@cache
def _records() -> bytes:
    """PADDING_RECORDS_MAX records; fewer ones are a beginning of it."""
    return b"".join(_record(offset_delta) for offset_delta in range(PADDING_RECORDS_MAX))


def _record(offset_delta: int) -> bytes:
    delta = _varint(2 * offset_delta)  # zigzag
    nothing = b"\x01\x01\x00"  # key and value null, no headers
    return bytes((2 * (_OF_ALL + len(delta)), 0, 0)) + delta + nothing


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= _DELTA_BITS
    encoded.append(value)
    return bytes(encoded)


def _bytes_of(records: int) -> int:
    """The size of the first records. A delta below 2**6, 2**13, 2**20 has 1, 2, 3 bytes."""
    size, below = 0, 0
    for delta_bytes in range(1, 5):
        limit = min(1 << (_DELTA_BITS * delta_bytes - 1), records)
        size += (limit - below) * (1 + _OF_ALL + delta_bytes)
        below = limit
    return size
