"""A compacted topic of a lost cluster is in the new brokers, whole: each key's last value."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_process import archive_process
from archived_topics import new_store
from confluent_kafka import Consumer, TopicPartition
from fetchproxy_command import fetchproxy
from keyed_log import COMPACTED, KeyedLog, last_values
from local_restore import LocalRestore
from lost_history import read_rows
from proxy_process import wait_for
from test_cluster_restore import assert_no_phantom

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka


@pytest.fixture
def lost_server(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    yield from serve_part("kafka", KafkaServer({"log.cleaner.backoff.ms": "100"}, heap="384m"))


@pytest.fixture
def new_server(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    yield from serve_part("kafka", KafkaServer())


def watermarks(bootstrap: str, topic: str) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends"})
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
    finally:
        consumer.close()
    return low, high


def test_the_new_brokers_have_each_keys_last_value(
    lost_server: KafkaServer, new_server: KafkaServer, tmp_path: Path
) -> None:
    topic = lost_server.create_topic("restored-changelog", 1, COMPACTED)
    keyed = KeyedLog(lost_server, topic, random.Random(8))

    def has_holes() -> bool:
        keyed.write(20)
        rows = read_rows(lost_server.bootstrap, topic, 1, "read_committed")[0]
        return len(rows) < len(keyed.written) // 2

    wait_for("a compacted log", has_holes)
    end = watermarks(lost_server.bootstrap, topic)[1]
    store = new_store(tmp_path)
    settings = {
        "archive.compacted_topics": topic,
        "archive.cluster_state_interval_ms": 300,
        "archive.segment_bytes_max": 6_000,
    }
    archiver = archive_process(lost_server.bootstrap, store, "no topic", tmp_path, settings)
    archiver.start()
    try:
        wait_for("the copy", lambda: f'"archived_end_offset": {end}' in cluster_shown(store))
    finally:
        archiver.stop()
    lost_server.kill()

    report = LocalRestore(new_server.bootstrap, store, tmp_path / "job", None, 1).report()

    assert not report["faults"]
    low, high = watermarks(new_server.bootstrap, topic)
    assert high == end
    [local] = report["local"]
    assert (local["first_offset"], local["end_offset"]) == (low, end)
    rows = read_rows(new_server.bootstrap, topic, 1, "read_committed")[0]
    assert last_values((key, value) for _, key, value, *_ in rows) == keyed.values(end)
    assert all(keyed.written[offset] == (key, value) for offset, key, value, *_ in rows)
    assert_no_phantom(new_server.bootstrap, {1})


def cluster_shown(store: str) -> str:

    return fetchproxy(
        "cluster", "show", "--store", store, "--topic", "restored-changelog", "--json"
    ).stdout
