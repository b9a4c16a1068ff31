"""A real cluster whose records are of all kinds, lost with its disks; and what its clients read."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archive_process import archive_process
from archived_topics import new_store
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from fetchproxy_command import fetchproxy
from fetchproxy_protocol.record_batch import walk
from proxy_process import wait_for
from topic_data import archived_ends

from lab.kafka import KafkaServer

PARTITIONS = 3
ISOLATIONS = ("read_committed", "read_uncommitted")
# Offset, key, value, headers, type of timestamp and timestamp.
Row = tuple[int, bytes, bytes, Any, Any]


@dataclass(frozen=True)
class LostHistory:
    """`rows` by isolation and partition; `batches` by partition and base offset, as in the log."""

    store: str
    topic: str
    ends: Mapping[int, int]
    rows: Mapping[str, Mapping[int, list[Row]]]
    batches: Mapping[int, Mapping[int, bytes]]

    @property
    def producer_id_max(self) -> int:
        return max(producer_ids(self.batches))


def producer_ids(batches: Mapping[int, Mapping[int, bytes]]) -> list[int]:
    return [
        header.producer_id
        for of_partition in batches.values()
        for raw in of_partition.values()
        for header in walk(raw)
    ]


def read_batches(kafka: KafkaServer, topic: str, partitions: int) -> dict[int, dict[int, bytes]]:
    """From the broker's own files."""
    by_partition: dict[int, dict[int, bytes]] = {}
    for partition in range(partitions):
        batches = by_partition[partition] = {}
        for file in sorted((kafka.data_dir / f"{topic}-{partition}").glob("*.log")):
            raw = file.read_bytes()
            for header in walk(raw):
                batches[header.base_offset] = raw[header.position : header.end]
    return by_partition


def read_rows(bootstrap: str, topic: str, partitions: int, isolation: str) -> dict[int, list[Row]]:
    """Everything that a stock consumer reads from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reads-all",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
        }
    )
    rows: dict[int, list[Row]] = {n: [] for n in range(partitions)}
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in rows])
    open_partitions = set(rows)
    try:
        while open_partitions:
            message = consumer.poll(60)
            assert message is not None
            error = message.error()
            if error is None:
                rows[message.partition()].append(
                    (message.offset(), message.key(), message.value(), message.headers(),
                     message.timestamp())
                )  # fmt: skip
                continue
            assert error.code() == KafkaError._PARTITION_EOF, error
            open_partitions.discard(message.partition())
    finally:
        consumer.close()
    return rows


def lose_history(
    kafka: KafkaServer,
    topic: str,
    folder: Path,
    *,
    megabytes: int = 0,
    more_settings: Mapping[str, object] | None = None,
) -> LostHistory:
    """Writes, archives, and kills the broker. `megabytes`: more records in partition 1.
    `more_settings`: of the archiver.
    """
    kafka.create_topic(topic, PARTITIONS, {"segment.bytes": str(1 << 20)})
    for term in range(3):
        if term:
            kafka.restart()  # another leader epoch
        _write(kafka.bootstrap, topic, term)
    if megabytes:
        _write_much(kafka.bootstrap, topic, megabytes)
    ends = _ends(kafka.bootstrap, topic)
    store = new_store(folder)
    settings: dict[str, object] = {
        "archive.cluster_state_interval_ms": 300,
        "archive.segment_bytes_max": 400_000,
        **(more_settings or {}),
    }
    archiver = archive_process(kafka.bootstrap, store, topic, folder, settings)
    archiver.start()
    try:
        wait_for("the archive", lambda: archived_ends(store, topic) == ends)
        wait_for("the state", lambda: _state_has(store, ends))
    finally:
        archiver.stop()
    rows = {one: read_rows(kafka.bootstrap, topic, PARTITIONS, one) for one in ISOLATIONS}
    batches = read_batches(kafka, topic, PARTITIONS)
    kafka.kill()
    return LostHistory(store, topic, ends, rows, batches)


def _state_has(store: str, ends: Mapping[int, int]) -> bool:
    state = fetchproxy("cluster", "show", "--store", store, "--json").stdout
    return all(f'"log_end_offset": {end}' in state for end in ends.values())


def _ends(bootstrap: str, topic: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody"})
    try:
        return {
            n: consumer.get_watermark_offsets(TopicPartition(topic, n), timeout=60)[1]
            for n in range(PARTITIONS)
        }
    finally:
        consumer.close()


def _write(bootstrap: str, topic: str, term: int) -> None:
    rng = random.Random(term)
    for codec in ("none", "gzip", "lz4", "zstd", "snappy"):
        common = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
        producer = Producer({**common, "enable.idempotence": codec != "gzip"})
        for number in range(60):
            producer.produce(
                topic,
                rng.randbytes(rng.randrange(900)),
                b"k%d" % number,
                rng.randrange(PARTITIONS),
                timestamp=1_700_000_000_000 + 1_000 * (1_000 * term + number),
                headers=[("term", b"%d" % term), ("none", None)],
            )
        assert producer.flush(60) == 0
    write_transactions(bootstrap, topic, f"{topic}-{term}", 4)


def write_transactions(bootstrap: str, topic: str, name: str, count: int) -> None:
    """Every other one is aborted; each is in all partitions."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": name, "batch.num.messages": 20}
    )
    producer.init_transactions(60)
    for number in range(count):
        producer.begin_transaction()
        for record in range(90):
            value = os.urandom(900)
            producer.produce(topic, value, b"t%d" % number, record % PARTITIONS)
        producer.flush(60)
        if number % 2:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)


def _write_much(bootstrap: str, topic: str, megabytes: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "batch.size": 200_000, "linger.ms": 20})
    for _ in range(megabytes * 10):
        while len(producer) > 100:
            producer.poll(0.1)
        producer.produce(topic, os.urandom(100_000), b"much", 1)
    assert producer.flush(120) == 0
