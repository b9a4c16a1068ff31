"""Stock clients that look for a place, over TLS, kafkajs in a group, and a store that is away.

The oracle is the broker that the archive came from, which still has all of it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import confluent_kafka
import kafka
import pytest
from archive_only_process import LATEST_AT, PARTITIONS, RECORDS, TIMES, Archived, ArchiveOnlyProcess
from certificates import Authority
from client_readers import read_confluent
from confluent_kafka.admin import AdminClient, OffsetSpec
from held_reader import HeldReader
from raw_fetch import RawConnection
from removable_store import folder_store
from test_other_clients import as_lines, parsed, run
from tls_parts import client_context, confluent_tls, listener_settings

from lab.kafka import KafkaServer
from lab.node_client import kafkajs_command

pytestmark = pytest.mark.kafka

TP = confluent_kafka.TopicPartition
OUTAGE_S = 3.0


def consumer_of(bootstrap: str, group: str = "looks") -> confluent_kafka.Consumer:
    return confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )


def next_message(consumer: confluent_kafka.Consumer) -> confluent_kafka.Message:
    message = consumer.poll(60)
    assert message is not None
    assert message.error() is None, message.error()
    return message


def test_times_are_where_the_broker_had_them(
    archived: Archived, node: ArchiveOnlyProcess, kafka_server: KafkaServer
) -> None:
    broker_consumer, node_consumer = (
        consumer_of(kafka_server.bootstrap),
        consumer_of(node.bootstrap),
    )
    times = [TIMES[0] - 1000, *TIMES[::29], TIMES[60] + 5, TIMES[-1] + 1]
    offsets = []
    for at in (*times, max(TIMES), max(TIMES) + 1):
        (expected,) = broker_consumer.offsets_for_times([TP("ao-times", 0, at)], 60)
        (response,) = node_consumer.offsets_for_times([TP("ao-times", 0, at)], 60)
        assert response.error is None
        assert response.offset == expected.offset
        offsets.append(response.offset)
    assert offsets[0] == 0
    assert offsets[4] == 3 * 29
    assert offsets[-2:] == [LATEST_AT, confluent_kafka.OFFSET_END]
    broker_consumer.close()
    node_consumer.close()


def test_the_largest_timestamp_and_the_ends(
    archived: Archived, node: ArchiveOnlyProcess, kafka_server: KafkaServer
) -> None:
    def of(bootstrap: str, spec: OffsetSpec) -> list[tuple[int, int]]:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        specs = {TP("ao-times", 0): spec, TP("ao-txn", 0): spec}
        responses = [future.result(60) for future in admin.list_offsets(specs).values()]
        return [(response.offset, response.timestamp) for response in responses]

    assert of(node.bootstrap, OffsetSpec.max_timestamp())[0] == (LATEST_AT, max(TIMES))
    for spec in (OffsetSpec.max_timestamp(), OffsetSpec.earliest(), OffsetSpec.latest()):
        assert of(node.bootstrap, spec) == of(kafka_server.bootstrap, spec)


def test_seek(archived: Archived, node: ArchiveOnlyProcess) -> None:
    written = archived.plain.written[2]
    consumer = consumer_of(node.bootstrap)
    consumer.assign([TP("ao-plain", 2, 0)])
    assert next_message(consumer).offset() == 0
    for offset in (437, 12, RECORDS - 1, 50, 49):
        consumer.seek(TP("ao-plain", 2, offset))
        message = next_message(consumer)
        assert (message.offset(), message.key(), message.value()) == written[offset]
    consumer.close()
    other = kafka.KafkaConsumer(bootstrap_servers=node.bootstrap, auto_offset_reset="none")
    tp = kafka.TopicPartition("ao-plain", 2)
    other.assign([tp])
    other.seek_to_end(tp)
    assert other.position(tp) == RECORDS
    other.seek_to_beginning(tp)
    assert other.position(tp) == 0
    other.close()


def test_a_client_with_a_certificate_reads_over_tls(archived: Archived, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    settings = listener_settings(authority, authority.issue("node"))
    client_certificate = authority.issue("client", hosts=("client.example",))
    ends = dict.fromkeys(range(PARTITIONS), RECORDS)
    with ArchiveOnlyProcess(archived.store, tmp_path, settings) as node:
        tls = confluent_tls(authority, client_certificate)
        assert read_confluent(node.bootstrap, "ao-plain", ends, **tls) == archived.plain.written
        reader = kafka.KafkaConsumer(
            bootstrap_servers=node.bootstrap,
            security_protocol="SSL",
            ssl_context=client_context(authority, client_certificate),
        )
        assert reader.partitions_for_topic("ao-plain") == set(range(PARTITIONS))
        reader.close()
        node.assert_sound()
        with pytest.raises((AssertionError, OSError)), RawConnection(node.bootstrap) as raw:
            raw.topic_id("ao-plain")  # not a word without TLS


def test_kafkajs_in_a_group(
    find_part: Callable[..., object], archived: Archived, node: ArchiveOnlyProcess
) -> None:
    """Two runs of it share the topic by what the first has committed. (It cannot read lz4.)"""
    find_part("clients", kafkajs_command)
    expected = archived.oracle["read_committed"]
    commits = consumer_of(node.bootstrap, "kafkajs")
    commits.commit(offsets=[TP("ao-txn", 0, 0)], asynchronous=False)
    half = str(len(expected[0]) // 2)
    arguments = ("group", node.bootstrap, "ao-txn", "kafkajs", half, "read_committed")
    first, second = (parsed(run(kafkajs_command(*arguments))) for _ in range(2))
    assert first + second == as_lines(expected)
    (committed,) = commits.committed([TP("ao-txn", 0)], 60)
    assert committed.offset == expected[0][-1][0] + 1
    commits.close()


def test_clients_wait_for_the_store_and_go_on(archived: Archived, tmp_path: Path) -> None:
    """Empty answers at first, then KAFKA_STORAGE_ERROR; never an offset out of range."""
    store = folder_store(tmp_path)
    shutil.copytree(urlsplit(archived.store).path, tmp_path / "store", dirs_exist_ok=True)
    ends = dict.fromkeys(range(PARTITIONS), RECORDS)
    # Nothing is kept, so that the readers stop where the store does.
    settings = {"remote_fetch.remote_error_after_ms": 1000, "limits.reading.chunk_bytes": 4096}
    with (
        ArchiveOnlyProcess(store.url, tmp_path, settings) as node,
        RawConnection(node.bootstrap) as raw,
    ):
        topic_id = raw.topic_id("ao-plain")
        store.take_away()
        with (
            HeldReader("kafka-python", node.bootstrap, "ao-plain", ends) as first,
            HeldReader("confluent-kafka", node.bootstrap, "ao-plain", ends) as second,
        ):
            codes = set()
            until = time.monotonic() + OUTAGE_S
            while time.monotonic() < until or 56 not in codes:
                for offset in (0, RECORDS, 10 * RECORDS):  # the last one is beyond the archive
                    fetched = raw.fetch(16, "ao-plain", topic_id, offset, wait_ms=100)
                    codes.add(fetched.error)
                    assert fetched.records == b""
            assert codes == {0, 56}
            for reader in (first, second):
                assert (reader.count, reader.errors, reader.finished) == (0, [], False)
            store.bring_back()
            for reader in (first, second):
                assert reader.records() == archived.plain.written
        assert raw.fetch_until_data(16, "ao-plain", topic_id, 10 * RECORDS).error == 1
        node.assert_sound()
