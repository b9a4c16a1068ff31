"""Archive-only mode serves copies of compacted logs: a stock client reads each key's last value."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_only_process import ArchiveOnlyProcess
from client_readers import Records, read_confluent
from confluent_kafka import Consumer, TopicPartition
from fetchproxy_command import archive_once, fetchproxy
from keyed_log import COMPACTED, KeyedLog, last_values
from proxy_process import wait_for

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

COMMITTED = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}


@pytest.fixture(scope="module")
def kafka(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    yield from serve_part("kafka", KafkaServer({"log.cleaner.backoff.ms": "100"}, heap="384m"))


def values_of(records: Records) -> dict[bytes, bytes]:
    return last_values((key, value) for _, key, value in sorted(records[0]))


def watermarks(bootstrap: str, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
    finally:
        consumer.close()
    return low, high


def test_the_last_values_are_the_brokers(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = kafka.create_topic("ao-changelog", 1, COMPACTED)
    keyed = KeyedLog(kafka, topic, random.Random(5))

    def has_holes() -> bool:
        """Writes on until the log cleaner has removed records."""
        keyed.write(20)
        end = watermarks(kafka.bootstrap, topic)[1]
        everything = read_confluent(kafka.bootstrap, topic, {0: end}, **COMMITTED)[0]
        return len(everything) < len(keyed.written) // 2

    wait_for("a compacted log", has_holes)
    store = (tmp_path / "archive").as_uri()
    settings = {"archive.compacted_topics": topic, "archive.segment_bytes_max": 6_000}
    result = archive_once(kafka.bootstrap, store, "no topic", settings)
    assert result.returncode == 0, result.stderr
    end = watermarks(kafka.bootstrap, topic)[1]
    of_broker = read_confluent(kafka.bootstrap, topic, {0: end}, **COMMITTED)
    with ArchiveOnlyProcess(store, tmp_path) as process:
        archived = read_confluent(process.bootstrap, topic, {0: end}, **COMMITTED)
        low, high = watermarks(process.bootstrap, topic)
    assert values_of(archived) == values_of(of_broker) == keyed.values(end)
    assert high == end
    assert low <= archived[0][0][0]
    # The broker may have compacted its log further since: each of its records is archived.
    assert set(of_broker[0]) <= set(archived[0])
    verified = fetchproxy("verify", "--store", store)
    assert verified.returncode == 0, verified.stdout
    mirror, folder = (tmp_path / "mirror").as_uri(), tmp_path / "of-mirror"
    mirrored = fetchproxy("mirror", "--from", store, "--to", mirror)
    assert mirrored.returncode == 0, mirrored.stderr
    folder.mkdir()
    with ArchiveOnlyProcess(mirror, folder) as process:
        assert read_confluent(process.bootstrap, topic, {0: end}, **COMMITTED) == archived
