"""An archive in a folder: a small topic, topics whose batches unpack to much, topics with forged
lists of aborted transactions, and many topics.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from uuid import UUID

from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from fastcrc.crc32 import iscsi as crc32c
from hostile_broker import LOG_START, TOPIC_ID
from memory_object_store import MemoryObjectStore
from planted_archive import PlantedArchive, batch

from fetchproxy.model import AbortedTxn, TopicIdPartition
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.side_files import OPEN_TXNS_MAX, encode_aborted
from fetchproxy.segments.topic_description import TopicDescription, encode_topic_description

ORDERS = TopicIdPartition(TOPIC_ID, "orders", 0)
MANY_TOPICS, PARTITIONS_EACH = 200, 100  # 20,000 partitions that never had a record
_BOMB_BYTES = 64 << 20
BOMBS = {
    "bomb-gzip": (1, lambda: gzip_encode(bytes(_BOMB_BYTES))),
    "bomb-snappy": (2, lambda: snappy_encode(bytes(_BOMB_BYTES // 4))),
    "bomb-lz4": (3, lambda: lz4_encode(bytes(_BOMB_BYTES))),
    "bomb-zstd": (4, lambda: zstd_encode(bytes(_BOMB_BYTES))),
    "bomb-members": (1, lambda: gzip.compress(b"\x02") * 45_000),
    "bomb-records": (1, lambda: gzip_encode(_small_records(100_000))),
}
BATCHES_EACH = 3
# Lists of aborted transactions that nobody has written: the log is short and has none.
_FORGED_ENTRIES = 240_000
_FORGED_BATCHES = 100
FORGED = {
    "forged-open": lambda: _aborted((0, 10**6, n) for n in range(160_000)),
    "forged-at-the-limit": lambda: _aborted((n, 10**6, n) for n in range(OPEN_TXNS_MAX)),
    "forged-one-around": lambda: _aborted(
        (n if n else 0, n if n else 10**6, n) for n in range(_FORGED_ENTRIES)
    ),
    "forged-many": lambda: _aborted((n // 30, n // 30, n) for n in range(_FORGED_ENTRIES)),
    "forged-behind": lambda: _aborted((10**6, 10**6, n) for n in range(OPEN_TXNS_MAX)),
}


def many_name(number: int) -> str:
    return f"many-{number:03d}"


@cache
def _forged(name: str) -> bytes:
    return FORGED[name]()


def _aborted(txns: Iterable[tuple[int, int, int]]) -> bytes:
    """A `.txn` object. `txns`: first offset, last offset, producer."""
    return encode_aborted(AbortedTxn(first, last, of, last + 1) for first, last, of in txns)


def _small_records(count: int) -> bytes:
    """Records of nothing, all at the batch's first timestamp."""
    return b"".join(map(_record, range(count)))


def _record(number: int) -> bytes:
    inner = b"\x00\x00" + _varint(2 * number) + b"\x01\x01\x00"
    return _varint(2 * len(inner)) + inner


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def packed_batch(base: int, codec: int, packed: bytes, records: int) -> bytes:
    """Claims a maximum timestamp that is later than its records', so that a look-up reads all."""
    sealed = struct.pack(">hiqqqhii", codec, records - 1, base, base + 10**9, -1, -1, -1, records)
    inner = struct.pack(">ibI", 0, 2, crc32c(sealed + packed)) + sealed + packed
    return struct.pack(">qi", base, len(inner)) + inner


async def plant(folder: Path) -> None:
    planted = PlantedArchive(MemoryObjectStore())
    for base in range(0, LOG_START, 100):
        await planted.add([batch(base + 10 * n) for n in range(10)], tp=ORDERS)
    for number, (name, (codec, made)) in enumerate(BOMBS.items()):
        tp = TopicIdPartition(UUID(int=100 + number), name, 0)
        packed = made()
        bases = range(0, 200_000 * BATCHES_EACH, 200_000)
        await planted.add([packed_batch(base, codec, packed, 200_000) for base in bases], tp=tp)
    for number, name in enumerate(FORGED):
        tp = TopicIdPartition(UUID(int=200 + number), name, 0)
        bases = range(0, 100 * _FORGED_BATCHES, 100)
        metadata = await planted.add(
            [batch(base) for base in bases], tp=tp, aborted=(AbortedTxn(0, 5, 1, 6),)
        )
        await planted.store.put(planted.key(metadata, SegmentFile.TXN), _forged(name))
    for number in range(MANY_TOPICS):
        description = TopicDescription(UUID(int=1_000 + number), many_name(number), PARTITIONS_EACH)
        await planted.storage.objects.put_topic_description(
            description.topic_id, encode_topic_description(description)
        )
    async for stored_object in planted.store.list(""):
        file = folder / stored_object.key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(await planted.store.get(stored_object.key))
