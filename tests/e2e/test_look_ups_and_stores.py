"""Look-ups of unarchived topics while the store is away, and of offsets after a gap."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from archived_topics import SETTINGS, new_store, new_topic
from confluent_kafka import Producer
from fetchproxy_command import COMMAND, PROJECT, archive_once
from kafka import KafkaConsumer, TopicPartition
from proxy_process import ProxyProcess, wait_for
from removable_store import RemovableStore, store_of_kind
from test_list_offsets_over_tiers import EARLIEST, LATEST_TIERED, MAX_TIMESTAMP, list_offset
from topic_data import TopicData, archived_ends, make_archive, produce, trim

from lab.kafka import KafkaServer
from lab.process import ServerProcess, free_port, port_responses

pytestmark = pytest.mark.kafka

LOG_START, END = 120, 220

BEGAN_MS = 1_700_000_000_000
# Longer than a list of archived topics is valid: then the proxy asks for a new one, in vain.
OUTAGE_S = 6.0


@pytest.fixture(params=["file", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])])
def store(request: pytest.FixtureRequest) -> RemovableStore:
    return store_of_kind(request)


def test_what_was_never_archived_is_as_without_a_proxy(
    kafka_server: KafkaServer, store: RemovableStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    data = new_topic(kafka_server, f"never-archived-{request.node.callspec.id}")
    produce(kafka_server.bootstrap, data, END)
    trim(kafka_server.bootstrap, data.topic, {0: LOG_START})
    make_archive(store.url)
    with ProxyProcess(kafka_server.bootstrap, store.url, tmp_path) as proxy:

        def looked_up(bootstrap: str) -> list[tuple[int, int, int, int]]:
            times = (EARLIEST, 0, MAX_TIMESTAMP, LATEST_TIERED)
            return [list_offset(bootstrap, data.topic, at, 9) for at in times]

        directly = looked_up(kafka_server.bootstrap)
        assert directly[0][2] == LOG_START
        assert looked_up(proxy.bootstrap) == directly
        store.take_away()
        try:
            ends_at = time.monotonic() + OUTAGE_S
            while time.monotonic() < ends_at:
                assert looked_up(proxy.bootstrap) == directly
            assert from_the_beginning(proxy.bootstrap, data.topic) == list(range(LOG_START, END))
        finally:
            store.bring_back()


def from_the_beginning(bootstrap: str, topic: str) -> list[int]:
    """The offsets that a client gets after it asks for the log's beginning."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=30_000)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    offsets: list[int] = []
    for record in consumer:
        offsets.append(record.offset)
        if record.offset == END - 1:
            break
    consumer.close()
    return offsets


def archive_all(kafka: KafkaServer, store: str, topic: str, code: int = 0) -> None:
    """`code`: the exit code; 2 tells that the broker had deleted records that were not archived."""
    small = {"archive.segment_bytes_max": SETTINGS["archive.segment_bytes_max"]}
    ended = archive_once(kafka.bootstrap, store, topic, small)
    assert ended.returncode == code, ended.stderr


def produce_times(kafka: KafkaServer, data: TopicData, first: int, last: int) -> None:
    """Produce records whose offset n has the timestamp BEGAN_MS + n."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "batch.num.messages": 50})
    for number in range(first, last):
        producer.produce(data.topic, b"v" * 300, b"k", 0, timestamp=BEGAN_MS + number)
    assert producer.flush(30) == 0


def test_a_time_in_a_gap_is_the_first_record_behind_it(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """0 to 199 and 300 to 399 are archived, 200 to 299 are lost, the broker has 380 on."""
    store = new_store(tmp_path)
    data = new_topic(kafka_server, "looked-up-gap")
    produce_times(kafka_server, data, 0, 200)
    archive_all(kafka_server, store, data.topic)
    produce_times(kafka_server, data, 200, 400)
    trim(kafka_server.bootstrap, data.topic, {0: 300})
    archive_all(kafka_server, store, data.topic, code=2)
    wait_for("the rest", lambda: archived_ends(store, data.topic) == {0: 400})
    trim(kafka_server.bootstrap, data.topic, {0: 380})
    expected = {0: 0, 150: 150, 199: 199, 200: 300, 250: 300, 299: 300, 300: 300, 399: 399}
    port = free_port()
    command = [*COMMAND, "serve", "--archive-only", "--store", store]
    command += ["--listen", f"127.0.0.1:{port}"]
    alone = ServerProcess("archive-only", command, tmp_path / "archive-only.log", cwd=PROJECT)
    alone.start()
    try:
        alone.wait_until(lambda: port_responses(port), 60.0)
        with ProxyProcess(kafka_server.bootstrap, store, tmp_path) as proxy:
            for bootstrap in (proxy.bootstrap, f"127.0.0.1:{port}"):
                offsets = {
                    at: list_offset(bootstrap, data.topic, BEGAN_MS + at, 9)[2] for at in expected
                }
                assert offsets == expected
                assert list_offset(bootstrap, data.topic, EARLIEST, 9)[2] == 0
    finally:
        alone.stop()


MANY = 80  # partitions: too many to read them one by one without collected metadata


def test_a_proxy_that_begins_knows_where_many_partitions_begin(
    kafka_server: KafkaServer, store: RemovableStore, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The first proxy reads each partition's metadata and stores a collection for later ones."""
    data = new_topic(kafka_server, f"many-partitions-{request.node.callspec.id}", MANY)
    produce(kafka_server.bootstrap, data, 4, partition_count=MANY)
    archive_all(kafka_server, store.url, data.topic)
    trim(kafka_server.bootstrap, data.topic, dict.fromkeys(range(MANY), 4))
    every = [TopicPartition(data.topic, number) for number in range(MANY)]

    def begins(bootstrap: str) -> dict[TopicPartition, int]:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap)
        offsets_of_begin: dict[TopicPartition, int] = consumer.beginning_offsets(every)
        consumer.close()
        return offsets_of_begin

    def operations(proxy: ProxyProcess, name: str) -> float:
        return proxy.metric("fetchproxy_store_request_seconds_count", f'operation="{name}"')

    assert begins(kafka_server.bootstrap) == dict.fromkeys(every, 4)
    with ProxyProcess(kafka_server.bootstrap, store.url, tmp_path) as first:
        assert begins(first.bootstrap) == dict.fromkeys(every, 0)
        assert operations(first, "get_segment_metadata") >= MANY
        wait_for("what it read", lambda: operations(first, "put_collected_metadata") == 1)
        trim(first.bootstrap, data.topic, {3: 2})  # after the collection
    with ProxyProcess(kafka_server.bootstrap, store.url, tmp_path) as second:
        # A proxy listens once it knows the starts, before any request. On a busy machine it listens
        # earlier, as it waits no longer than its limit.
        wait_for("the first looks", lambda: operations(second, "get_collected_metadata") == 1)
        assert begins(second.bootstrap) == {**dict.fromkeys(every, 0), every[3]: 2}
        assert operations(second, "get_segment_metadata") == 0


def test_a_store_that_never_answers_does_not_keep_a_proxy_from_listening(
    kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = new_topic(kafka_server, "store-that-never-answers")
    produce(kafka_server.bootstrap, data, 10)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts connections and never reads
        port = silent.getsockname()[1]
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "nobody")
        store = f"s3://silent/archive?endpoint_url=http://127.0.0.1:{port}&region=here"
        with ProxyProcess(kafka_server.bootstrap, store, tmp_path) as proxy:
            assert list_offset(proxy.bootstrap, data.topic, EARLIEST, 9)[2] == 0
            assert "gateway_listening" in proxy.log.read_text()
            assert proxy.metric("fetchproxy_store_request_seconds_count", 'outcome="ok"') == 0
