"""A real archive without its cluster, read by stock clients: alone, in groups, and after a restart.

The oracle is what was produced, and what the broker itself answered before.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from archive_only_process import (
    ISOLATIONS,
    PARTITIONS,
    RECORDS,
    Archived,
    ArchiveOnlyProcess,
    all_bytes,
)
from client_readers import read_aiokafka, read_confluent, read_kafka_python
from confluent_kafka.admin import AdminClient
from proxy_process import wait_for
from test_other_clients import (
    FROM_0,
    as_lines,
    crc32,
    read_by_franz_go,
    read_by_java,
    read_by_kcat,
)

from lab.go_client import franz_reader
from lab.kafka import run_tool
from lab.kcat import find_kcat

pytestmark = pytest.mark.kafka

FindPart = Callable[[str, Callable[[], Path]], Path]

READERS = {
    "confluent": (read_confluent, "isolation.level"),
    "kafka-python": (read_kafka_python, "isolation_level"),
    "aiokafka": (read_aiokafka, "isolation_level"),
}


@pytest.mark.parametrize("client", READERS)
def test_python_clients(archived: Archived, node: ArchiveOnlyProcess, client: str) -> None:
    read_all, isolation_key = READERS[client]
    ends = dict.fromkeys(range(PARTITIONS), RECORDS)
    assert read_all(node.bootstrap, "ao-plain", ends) == archived.plain.written
    for isolation in ISOLATIONS:
        records = read_all(
            node.bootstrap, "ao-txn", {0: archived.ends}, **{isolation_key: isolation}
        )
        assert records == archived.oracle[isolation]


def test_franz_go(find_part: FindPart, archived: Archived, node: ArchiveOnlyProcess) -> None:
    find_part("clients", franz_reader)
    ends = dict.fromkeys(range(PARTITIONS), RECORDS)
    lines_read = read_by_franz_go(node.bootstrap, "ao-plain", ends, "read_committed")
    assert lines_read == as_lines(archived.plain.written, crc32)


def test_confluent_lists_topics(node: ArchiveOnlyProcess) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    listed = admin.list_topics(timeout=30).topics
    assert {"ao-plain", "ao-txn"} <= listed.keys()
    assert sorted(listed["ao-plain"].partitions) == list(range(PARTITIONS))


def test_kcat(find_part: FindPart, archived: Archived, node: ArchiveOnlyProcess) -> None:
    find_part("kcat", find_kcat)
    lines_read = read_by_kcat(node.bootstrap, "ao-txn", {0: archived.ends}, "read_committed")
    assert lines_read == as_lines(archived.oracle["read_committed"])


def test_java_alone_and_in_a_group_and_its_tools(
    archived: Archived, node: ArchiveOnlyProcess
) -> None:
    expected = archived.oracle["read_committed"]
    count = len(expected[0])
    lines_read = read_by_java(node.bootstrap, "ao-txn", FROM_0, count, "read_committed")
    assert lines_read == as_lines(expected)
    where = ["--group", "java", "--from-beginning"]
    total = RECORDS * PARTITIONS
    lines_read = read_by_java(node.bootstrap, "ao-plain", where, total, "read_uncommitted")
    assert lines_read == as_lines(archived.plain.written)
    groups = run_tool(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", node.bootstrap, "--describe", "--group", "java"),
    )
    rows = [line.split() for line in groups.stdout.splitlines() if line.startswith("java")]
    end = str(RECORDS)
    assert sorted(row[1:6] for row in rows) == [
        ["ao-plain", str(p), end, end, "0"] for p in range(PARTITIONS)
    ]
    offsets = run_tool(
        "org.apache.kafka.tools.GetOffsetShell",
        *("--bootstrap-server", node.bootstrap, "--topic", "ao-plain"),
    )
    assert sorted(offsets.stdout.split()) == [f"ao-plain:{p}:{end}" for p in range(PARTITIONS)]
    topics = run_tool(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", node.bootstrap, "--describe", "--topic", "ao-plain"),
    )
    topic, *partitions = (" ".join(line.split()) for line in topics.stdout.splitlines() if line)
    assert f"PartitionCount: {PARTITIONS} ReplicationFactor: 1" in topic
    assert "retention.ms=-1" in topic
    described = [f"Partition: {p} Leader: 0 Replicas: 0 Isr: 0" for p in range(PARTITIONS)]
    assert len(partitions) == len(described)
    assert all(want in line for want, line in zip(described, partitions, strict=True))


def test_the_bytes_are_the_brokers(archived: Archived, node: ArchiveOnlyProcess) -> None:
    assert all_bytes(node.bootstrap) == archived.bytes_of_plain


def member(bootstrap: str, group: str) -> confluent_kafka.Consumer:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "heartbeat.interval.ms": 300,
        }
    )
    consumer.subscribe(["ao-plain"])
    return consumer


def poll(consumer: confluent_kafka.Consumer, offsets_read: set[tuple[int, int]]) -> None:
    for message in consumer.consume(50, timeout=0.2):
        assert message.error() is None, message.error()
        offsets_read.add((message.partition(), message.offset()))


def assigned(consumer: confluent_kafka.Consumer) -> set[int]:
    return {tp.partition for tp in consumer.assignment()}


def test_two_members_share_then_one_goes_then_the_node_restarts(
    archived: Archived, tmp_path: Path
) -> None:
    with ArchiveOnlyProcess(archived.store, tmp_path) as node:
        first, second = member(node.bootstrap, "pair"), member(node.bootstrap, "pair")
        offsets_read: set[tuple[int, int]] = set()

        def both_have_some() -> bool:
            poll(first, offsets_read)
            poll(second, offsets_read)
            return len(assigned(first)) == len(assigned(second)) == PARTITIONS // 2

        wait_for("shared partitions", both_have_some)
        assert not assigned(first) & assigned(second)
        second.close()

        def one_has_all() -> bool:
            poll(first, offsets_read)
            return len(assigned(first)) == PARTITIONS

        wait_for("all partitions with one member", one_has_all)
        stop_at = {p: 100 + p for p in range(PARTITIONS)}
        commits = [confluent_kafka.TopicPartition("ao-plain", p, o) for p, o in stop_at.items()]
        first.commit(offsets=commits, asynchronous=False)
        node.kill()
        first.close()
        node.start()
        again = member(node.bootstrap, "pair")
        resumed: set[tuple[int, int]] = set()

        def at_end() -> bool:
            poll(again, resumed)
            return len(resumed) == sum(RECORDS - o for o in stop_at.values())

        wait_for("everything behind the commits", at_end)
        again.close()
        assert resumed == {(p, o) for p in stop_at for o in range(stop_at[p], RECORDS)}
