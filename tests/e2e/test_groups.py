"""Consumer groups through the proxy: members share, commit and leave, and others continue there.

The topics begin in the archive, so a group without commits starts at offset 0, which the broker no
longer has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import kafka
import pytest
from archived_topics import MakeReplayed
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from proxy_process import ProxyProcess
from topic_data import TopicData

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

PROTOCOLS = ("classic", "consumer")
Deliveries = dict[tuple[int, int], int]  # (partition, offset) -> count
READ_S = 60.0


class Member:
    """A confluent group consumer that commits its records before it gives up partitions."""

    def __init__(
        self, bootstrap: str, group: str, topic: str, protocol: str, offsets_by_position: Deliveries
    ) -> None:
        self.deliveries = offsets_by_position
        self.assigned: set[int] = set()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.message.max.bytes": 20_000,
                "queued.min.messages": 1,
            }
        )
        self._consumer.subscribe(
            [topic], on_assign=self._gained, on_revoke=self._revoked, on_lost=self._lost
        )

    def _gained(self, consumer: confluent_kafka.Consumer, added: list[TopicPartition]) -> None:
        self.assigned |= {p.partition for p in added}

    def _revoked(self, consumer: confluent_kafka.Consumer, taken: list[TopicPartition]) -> None:
        self.commit()
        self.assigned -= {p.partition for p in taken}

    def _lost(self, consumer: confluent_kafka.Consumer, taken: list[TopicPartition]) -> None:
        raise AssertionError(f"partitions were lost, not handed over: {taken}")

    def poll(self, count: int = 50) -> None:
        for message in self._consumer.consume(count, timeout=0.1):
            assert message.error() is None, message.error()
            where = message.partition(), message.offset()
            self.deliveries[where] = self.deliveries.get(where, 0) + 1

    def commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError._NO_OFFSET:
                raise

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def member(*args: object) -> Iterator[Member]:
    joined = Member(*args)  # type: ignore[arg-type]
    try:
        yield joined
    finally:
        joined.close()


def everything(data: TopicData) -> Deliveries:
    return {(p, offset): 1 for p, records in data.written.items() for offset, _, _ in records}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_two_members_share_and_a_third_goes_on(
    replayed: MakeReplayed, proxy: ProxyProcess, kafka_server: KafkaServer, protocol: str
) -> None:
    data = replayed("lz4", 4)
    group, offsets_by_position = f"e2e-group-{protocol}", Deliveries()
    args = proxy.bootstrap, group, data.topic, protocol, offsets_by_position
    deadline = time.monotonic() + READ_S
    with member(*args) as first:
        while len(offsets_by_position) < 500:
            first.poll()
            assert time.monotonic() < deadline, len(offsets_by_position)
        assert first.assigned == {0, 1, 2, 3}
        with member(*args) as second:  # a rebalance in the middle of the archive
            while len(first.assigned) != 2 or len(second.assigned) != 2:
                first.poll(1)
                second.poll(1)
                assert time.monotonic() < deadline, (first.assigned, second.assigned)
            assert first.assigned | second.assigned == {0, 1, 2, 3}
            while len(offsets_by_position) < 2_000:
                first.poll()
                second.poll()
                assert time.monotonic() < deadline, len(offsets_by_position)
            first.commit()
            second.commit()
    assert set(offsets_by_position) != set(everything(data)), (
        "nothing is left for a member that comes later"
    )
    with member(*args) as third:  # the whole group was away, so only commits count
        while len(offsets_by_position) < len(everything(data)):
            third.poll(500)
            assert time.monotonic() < deadline, len(offsets_by_position)
        third.commit()
    assert offsets_by_position == everything(data)
    assert committed(kafka_server.bootstrap, group) == committed(proxy.bootstrap, group)
    assert committed(kafka_server.bootstrap, group) == {p: 1200 for p in range(4)}


def committed(bootstrap: str, group: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    group_offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    return {p.partition: p.offset for p in group_offsets[group].result(30).topic_partitions}


def test_kafka_python_resumes_where_it_committed(
    replayed: MakeReplayed, proxy: ProxyProcess
) -> None:
    data = replayed("zstd")
    offsets: list[int] = []
    for up_to in (400, 800, 1200):  # a new consumer each time, as after a restart
        consumer = kafka.KafkaConsumer(
            data.topic,
            bootstrap_servers=proxy.bootstrap,
            group_id="e2e-kafka-python",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_partition_fetch_bytes=10_000,
        )
        # Fetch the topic before it joins: else kafka-python may assign itself nothing for ever,
        # even with the broker itself.
        assert consumer.partitions_for_topic(data.topic) == {0}
        deadline = time.monotonic() + READ_S
        try:
            while len(offsets) < up_to:
                polled = consumer.poll(timeout_ms=200, max_records=up_to - len(offsets))
                offsets += [record.offset for records in polled.values() for record in records]
                assert time.monotonic() < deadline, offsets[-1:]
            consumer.commit()
        finally:
            consumer.close()
    assert offsets == list(range(1200))
