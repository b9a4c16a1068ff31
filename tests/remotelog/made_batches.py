"""Record batches of other people's builders, and what other people's readers read. Not a test."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaReader
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from fastcrc.crc32 import iscsi as crc32c
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonReader
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

BUILDERS = (AiokafkaBuilder, KafkaPythonBuilder)
READERS = (AiokafkaReader, KafkaPythonReader)
CODECS = (0, 1, 2, 3, 4)

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Record:
    key: bytes | None = None
    value: bytes | None = b"value"
    timestamp: int = 1_000
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True)
class Row:
    """A record as every reader has to give it; timestamp in ms."""

    key: bytes | None
    value: bytes | None
    offset: int
    timestamp: int
    timestamp_type: int
    headers: tuple[Header, ...]


def reseal(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def made_batch(
    base_offset: int,
    records: Sequence[Record],
    *,
    codec: int = 0,
    builder: Any = AiokafkaBuilder,
    producer_id: int = -1,
    transactional: bool = False,
    control: bool = False,
    append_time: int | None = None,
) -> bytes:
    made = builder(
        magic=2,
        compression_type=codec,
        is_transactional=transactional,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=0 if producer_id >= 0 else -1,
        batch_size=1 << 26,
    )
    for delta, record in enumerate(records):
        made.append(delta, record.timestamp, record.key, record.value, list(record.headers))
    batch = bytearray(made.build())
    struct.pack_into(">q", batch, 0, base_offset)
    if control:
        batch[22] |= 0x20
    if append_time is not None:
        batch[22] |= 0x08
        struct.pack_into(">q", batch, 35, append_time)
    return reseal(batch)


def marker(base_offset: int, producer_id: int, kind: int) -> bytes:
    """A control batch: `kind` 0 aborts, 1 commits."""
    record = Record(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), 1_000)
    return made_batch(
        base_offset, [record], producer_id=producer_id, transactional=True, control=True
    )


def rows_read_by(reader: Any, batches: Iterable[bytes]) -> list[Row]:
    """Of every batch, control batches as well."""
    rows_found = []
    for batch in batches:
        for record in reader(bytearray(batch)):
            rows_found.append(
                Row(
                    None if record.key is None else bytes(record.key),
                    None if record.value is None else bytes(record.value),
                    record.offset,
                    record.timestamp,
                    record.timestamp_type,
                    tuple((k, None if v is None else bytes(v)) for k, v in record.headers),
                )
            )
    return rows_found
