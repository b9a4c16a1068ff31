"""A compacted topic of a real broker that is written at random, and what each key's last value is.
Not a test.

Transactions are committed or aborted, and some records delete their key. The oracle is what the
broker acknowledged, by offset: it does not depend on what the log cleaner has left.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from archive_harness import Archive, wall_clock_ms
from confluent_kafka import KafkaError, Message, Producer
from fetchproxy_protocol.record_batch import walk
from kafka.record import MemoryRecords

from fetchproxy.model import AbortedTxn, TopicIdPartition
from fetchproxy.segments.object_keys import SegmentFile
from lab.kafka import KafkaServer

KEYS = 40
# A log cleaner that is busy, and transactions whose markers it may remove.
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
    "delete.retention.ms": "20000",
}
Values = dict[bytes, bytes]


@dataclass
class KeyedLog:
    kafka: KafkaServer
    topic: str
    rng: random.Random
    # Offset -> key, value; None: the key is deleted. Of committed records.
    written: dict[int, tuple[bytes, bytes | None]] = field(default_factory=dict)

    def write(self, transactions: int) -> None:
        settings = {"bootstrap.servers": self.kafka.bootstrap, "transactional.id": self.topic}
        producer = Producer(settings)
        producer.init_transactions(60)
        for _ in range(transactions):
            self._write_transaction(producer)

    def _write_transaction(self, producer: Producer) -> None:
        records: dict[int, tuple[bytes, bytes | None]] = {}
        producer.begin_transaction()
        for _ in range(self.rng.randint(1, 12)):
            key = f"key {self.rng.randrange(KEYS)}".encode()
            deletes = self.rng.random() < 0.25
            value = None if deletes else f"{wall_clock_ms()} {self.rng.random()}".encode() * 4

            def acknowledged(
                error: KafkaError | None,
                message: Message,
                record: tuple[bytes, bytes | None] = (key, value),
            ) -> None:
                assert error is None, error
                records[message.offset()] = record

            producer.produce(self.topic, value=value, key=key, partition=0, callback=acknowledged)
        assert producer.flush(60) == 0
        if self.rng.random() < 0.2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
            self.written |= records

    def values(self, end: int) -> Values:
        """The last value of each key in the log below the offset `end`."""
        below = sorted(offset for offset in self.written if offset < end)
        return last_values(self.written[offset] for offset in below)


def last_values(records: Iterable[tuple[bytes, bytes | None]]) -> Values:
    values: Values = {}
    for key, value in records:
        values.pop(key, None)
        if value is not None:
            values[key] = value
    return values


async def archived_records(
    archive: Archive, tp: TopicIdPartition
) -> Mapping[int, tuple[bytes, bytes | None]]:
    """What a consumer with read_committed gets from the archive, by offset."""
    records: dict[int, tuple[bytes, bytes | None]] = {}
    end = -1
    for segment in (await archive.view(tp)).segments:
        log = await archive.object(segment, SegmentFile.LOG)
        aborted = await archive.aborted(segment)
        for header in walk(log):
            batch = MemoryRecords(log[header.position : header.end]).next_batch()
            assert batch is not None
            if header.is_control or _is_aborted(
                aborted, header.producer_id, header.base_offset, header.is_transactional
            ):
                continue
            for record in batch:
                assert record.offset > end
                end = record.offset
                records[record.offset] = record.key, record.value
    return records


def _is_aborted(
    aborted: Iterable[AbortedTxn], producer_id: int, offset: int, is_transactional: bool
) -> bool:
    return is_transactional and any(
        one.producer_id == producer_id and one.first_offset <= offset <= one.last_offset
        for one in aborted
    )
