"""One broker of a version, the proxy in front of it, a trimmed topic and its untrimmed twin."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
from archived_topics import SETTINGS, archive_and_trim
from client_readers import read_confluent
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, OffsetSpec
from fetchproxy_protocol.record_batch import walk
from matrix_client import Line, by_partition
from matrix_python_clients import as_lines
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from topic_data import TopicData, value_of

from fetchproxy.storage.key_rings import NO_KEYS, write_keys
from lab.kafka import KafkaServer

PARTITIONS = 2
TRANSACTIONS = 12
RECORDS = 40  # of each transaction and partition
LEVELS = ("read_uncommitted", "read_committed")
TOPIC, TWIN = "matrix-topic", "twin-topic"


class MatrixStack:
    """A context manager. `topic` is archived and trimmed, so that only the proxy has all of it.

    `at_rest`: records that no producer has compressed, and an archive that is compressed and
    encrypted; one that is not encrypted is refused.
    """

    def __init__(self, kafka: KafkaServer, folder: Path, *, at_rest: bool = False) -> None:
        self.kafka = kafka
        self.store = store = folder / "store"
        store.mkdir(parents=True)
        settings = SETTINGS
        self._codec = "gzip"  # since kafkajs can read no other compression by itself
        if at_rest:
            ring = folder / "keys.json"
            write_keys(ring, NO_KEYS.with_new("k1", bytes(range(32))), new=True)
            keys = f"{ring}?required=true"
            settings = {**SETTINGS, "store.compression": "zstd", "store.encryption_keys": keys}
            self._codec = "none"
        self.proxy = ProxyProcess(
            kafka.bootstrap, store.as_uri(), folder, archive="matrix-.*", settings=settings
        )
        self._parts = ExitStack()
        self._store = store.as_uri()
        # Ahead of the clock, as far as a broker takes it: the markers of transactions carry the
        # broker's own time, and a search by time would stop at the first of them.
        self.first_timestamp = int(time.time() + 600) * 1000
        self.ends: dict[int, int] = {}
        self.expected: dict[str, list[Line]] = {}
        self.log = b""  # of partition 0, as the broker had it

    def __enter__(self) -> MatrixStack:
        with ExitStack() as parts:
            parts.enter_context(self.proxy)
            self._fill()
            self._parts = parts.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._parts.close()

    def new_topic(self, name: str) -> str:
        return self.kafka.create_topic(name.replace(" ", "-"), 1)

    def commit_zero(self, group: str) -> None:
        """The group's committed offset is 0: its readers need no reset, and so can forbid one."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        zero = [confluent_kafka.TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)]
        group_offsets = confluent_kafka.ConsumerGroupTopicPartitions(group, zero)
        for future in admin.alter_consumer_group_offsets([group_offsets]).values():
            future.result(timeout=60)

    def committed(self, group: str) -> dict[int, int]:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        group_query = confluent_kafka.ConsumerGroupTopicPartitions(group)
        result = admin.list_consumer_group_offsets([group_query])[group].result(timeout=60)
        return {tp.partition: tp.offset for tp in result.topic_partitions}

    def counts(self, level: str) -> dict[int, int]:
        lines = self.expected[level]
        return {p: sum(line[0] == p for line in lines) for p in self.ends}

    def _fill(self) -> None:
        for topic in (TOPIC, TWIN):
            self.kafka.create_topic(topic, PARTITIONS)
        self._produce()
        data = TopicData(TOPIC, {p: [] for p in range(PARTITIONS)})
        self.ends = data.ends(self.kafka.bootstrap)
        for level in LEVELS:
            isolation = {"isolation.level": level}
            twin = read_confluent(self.kafka.bootstrap, TWIN, self.ends, **isolation)
            self.expected[level] = by_partition(as_lines(twin))
        self.log = read_log(self.kafka.bootstrap, TOPIC, self.ends[0])
        archive_and_trim(self.kafka.bootstrap, self._store, data)

    def _produce(self) -> None:
        """The same to both topics, so that they agree in every offset; every third is aborted."""
        writer = {"bootstrap.servers": self.kafka.bootstrap, "compression.type": self._codec}
        producer = Producer({**writer, "transactional.id": "matrix"})
        producer.init_transactions(60)
        for transaction in range(TRANSACTIONS):
            producer.begin_transaction()
            for number in range(transaction * RECORDS, (transaction + 1) * RECORDS):
                self._write(producer, b"t%d" % transaction, number)
            assert producer.flush(60) == 0
            if transaction % 3 == 2:
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
        wait_for("the last markers, which follow the answer to the commit", self._all_decided)
        # A plain record last: clients that cannot see control records find the end by it.
        plain = Producer(writer)
        self._write(plain, b"last", TRANSACTIONS * RECORDS)
        assert plain.flush(60) == 0

    def _all_decided(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        partitions = [
            confluent_kafka.TopicPartition(topic, p)
            for topic in (TOPIC, TWIN)
            for p in range(PARTITIONS)
        ]

        def ends(isolation: confluent_kafka.IsolationLevel) -> list[int]:
            latest = dict.fromkeys(partitions, OffsetSpec.latest())
            futures = admin.list_offsets(latest, isolation_level=isolation)
            return [futures[tp].result(timeout=60).offset for tp in partitions]

        levels = confluent_kafka.IsolationLevel
        return ends(levels.READ_COMMITTED) == ends(levels.READ_UNCOMMITTED)

    def _write(self, producer: Producer, key: bytes, number: int) -> None:
        for topic in (TOPIC, TWIN):
            for p in range(PARTITIONS):
                stamp = self.first_timestamp + number * 1000
                value = value_of(p, number, 300)
                producer.produce(topic, value, key, p, timestamp=stamp)


def read_log(bootstrap: str, topic: str, end: int) -> bytes:
    """The bytes of partition 0 up to the offset `end`."""
    data, offset = b"", 0
    with RawConnection(bootstrap) as connection:
        while offset < end:
            fetched = connection.fetch_until_data(11, topic, None, offset)
            assert fetched.error == 0
            *_, last = walk(fetched.records)
            data += fetched.records[: last.end]
            offset = last.last_offset + 1
    return data


StackOf = Callable[[str], MatrixStack]  # by the version of the broker
