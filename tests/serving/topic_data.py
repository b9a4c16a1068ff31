"""Known records in a topic, their archive, and a broker that deletes them."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from fetchproxy.config.schema import MetadataConfig, StoreConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.storage.archive_identity import ArchiveIdentity
from fetchproxy.storage.remote_storage import open_store

Position = tuple[int, int]  # partition, offset


@dataclass
class TopicData:
    """The records a consumer must see: (offset, key, value) by partition."""

    topic: str
    written: dict[int, list[tuple[int, bytes, bytes]]] = field(default_factory=dict)

    @property
    def partitions(self) -> list[int]:
        return sorted(self.written)

    def ends(self, bootstrap: str) -> dict[int, int]:
        from confluent_kafka import Consumer

        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
        try:
            return {
                p: consumer.get_watermark_offsets(TopicPartition(self.topic, p), timeout=20)[1]
                for p in self.partitions
            }
        finally:
            consumer.close()


def value_of(partition: int, number: int, size: int) -> bytes:
    seed = b"%d/%d/" % (partition, number)
    return (seed * (size // len(seed) + 1))[:size]


def produce(
    bootstrap: str,
    data: TopicData,
    count: int,
    *,
    partition_count: int = 1,
    compression: str = "none",
    size: int = 300,
    batch_records: int = 50,
) -> None:
    """Produce `count` more acknowledged records per partition, in batches of `batch_records`."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": compression,
            "batch.num.messages": batch_records,
            "linger.ms": 30_000,  # full batches, however slow this process is
            "acks": "all",
        }
    )
    failures: list[object] = []

    def on_delivery(partition: int, key: bytes, value: bytes):
        def delivered(error: object, message: object) -> None:
            if error is not None:
                failures.append(error)
            else:
                data.written.setdefault(partition, []).append((message.offset(), key, value))  # type: ignore[attr-defined]

        return delivered

    for partition in range(partition_count):
        have = len(data.written.get(partition, []))
        for number in range(have, have + count):
            key, value = b"k%d" % number, value_of(partition, number, size)
            producer.produce(
                data.topic, value, key, partition, on_delivery=on_delivery(partition, key, value)
            )
            producer.poll(0)
    assert producer.flush(60) == 0
    assert not failures, failures[:3]
    for written in data.written.values():
        written.sort()


def produce_transactions(bootstrap: str, data: TopicData, transactions: int, records: int) -> None:
    """Every third transaction is aborted; `written` gets the committed records only."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"tx-{data.topic}", "linger.ms": 0}
    )
    producer.init_transactions(30)
    committed = data.written.setdefault(0, [])
    for number in range(transactions):
        producer.begin_transaction()
        batch: list[tuple[int, bytes, bytes]] = []

        def delivered(error, message, batch=batch):
            assert error is None, error
            batch.append((message.offset(), message.key(), message.value()))

        for record in range(records):
            value = value_of(0, number * records + record, 200)
            producer.produce(data.topic, value, b"t%d" % number, 0, on_delivery=delivered)
        producer.flush(30)
        if number % 3 == 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            committed += batch
    committed.sort()


def trim(bootstrap: str, topic: str, offsets: Mapping[int, int]) -> None:
    """DeleteRecords at the broker itself: it deletes everything below `offsets`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    targets = [TopicPartition(topic, p, offset) for p, offset in offsets.items()]
    for future in admin.delete_records(targets, request_timeout=30).values():
        future.result()


def make_archive(store: str) -> None:
    """Make an empty archive; without one the proxy cannot know that nothing is archived."""

    async def make() -> None:
        async with open_store(store, StoreConfig(), create=True) as storage:
            await storage.identity.state(ArchiveIdentity())

    asyncio.run(make())


async def _archived(store: str, topic: str) -> dict[int, int]:
    async with (
        open_store(store, StoreConfig()) as storage,
        StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
    ):
        ends = {}
        for tp in await rlmm.list_partitions():
            if tp.topic == topic:
                view = await rlmm.refresh(tp, asyncio.get_running_loop().time())
                if view.log_end_offset is not None:
                    ends[tp.partition] = view.log_end_offset
        return ends


def archived_ends(store: str, topic: str) -> dict[int, int]:
    """The offset after the last archived one, for each partition that has any.

    A missing archive is not a failure: callers wait for its contents.
    """
    try:
        return asyncio.run(_archived(store, topic))
    except StorageUnavailable:
        return {}


def checksum(records: list[tuple[int, bytes, bytes]]) -> int:
    crc = 0
    for offset, key, value in records:
        crc = zlib.crc32(b"%d" % offset + key + value, crc)
    return crc
