"""A client that pauses like librdkafka is paced, on the tail and in the archive.

It reads the same bytes as without pacing. A client of another name is never paced.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import kafka
import pytest
from archive_only_process import ArchiveOnlyProcess
from fetchproxy_protocol.record_batch import walk
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from topic_data import archived_ends, trim

from benchmarks.filling import Shape, fill
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

TAIL, OLD = "ap-tail", "ap-old"
PARTITIONS = 4
RECORDS = 500_000
CYCLE_RECORDS = 150_000  # a full queue, and what the application takes meanwhile
# On a busy machine a reader may be slower than any pace.
READS_MAX = 5
SETTINGS = {"archive.segment_age_max_ms": 300, "limits.writing.rlm_process_interval_ms": 100}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("ap-store").as_uri()


@pytest.fixture(scope="module")
def proxy(
    kafka_server: KafkaServer, store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("ap")
    for topic in (TAIL, OLD):
        kafka_server.create_topic(topic, PARTITIONS)
        written = fill(kafka_server.bootstrap, topic, PARTITIONS, RECORDS, Shape(20, "none"))
    ends = dict(enumerate(written))
    with ProxyProcess(
        kafka_server.bootstrap, store, folder, archive=OLD, settings=SETTINGS
    ) as process:
        wait_for("the archive", lambda: archived_ends(store, OLD) == ends)
        trim(kafka_server.bootstrap, OLD, {partition: end - 1 for partition, end in ends.items()})
        yield process


@pytest.fixture(scope="module")
def archive_only(
    proxy: ProxyProcess, store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """An archive-only proxy of the same archive."""
    with ArchiveOnlyProcess(store, tmp_path_factory.mktemp("ap-alone")) as process:
        yield process


def _says(connection: RawConnection, software: str) -> None:
    request = ApiVersionsRequest[3]()
    request.client_software_name, request.client_software_version = software, "1"
    assert connection.ask(request, ApiVersionsResponse, 3).error_code == 0


def _read_all(connection: RawConnection, topic: str) -> dict[int, list[int]]:
    """Base offsets of all batches; the client pauses for a second when a queue would be full."""
    offsets, records_seen = dict.fromkeys(range(PARTITIONS), 0), 0
    batches: dict[int, list[int]] = {partition: [] for partition in offsets}
    while sum(offsets.values()) < RECORDS:
        before = sum(offsets.values())
        response = connection.fetch_response(11, topic, None, offsets, bytes_max=200_000)
        for part in response.responses[0].partitions if response.responses else ():
            assert part.error_code == 0
            for batch in walk(bytes(part.records or b"")):
                if batch.base_offset >= offsets[part.partition_index]:
                    batches[part.partition_index].append(batch.base_offset)
                    offsets[part.partition_index] = batch.last_offset + 1
        records_seen += sum(offsets.values()) - before
        if records_seen >= CYCLE_RECORDS:
            time.sleep(1.0)
            records_seen = 0
    return batches


@pytest.mark.parametrize("topic", [TAIL, OLD])
def test_pauses_are_seen_and_answers_paced(proxy: ProxyProcess, topic: str) -> None:
    _check(proxy, topic)


def test_archive_only_mode_paces_too(archive_only: ProxyProcess) -> None:
    _check(archive_only, OLD)


def _check(proxy: ProxyProcess, topic: str) -> None:
    names = ("fetchproxy_client_pauses_total", "fetchproxy_paced_answers_total")
    with RawConnection(proxy.bootstrap) as java:
        _says(java, "apache-kafka-java")
        before = [proxy.metric(name) for name in names]
        batches = _read_all(java, topic)
        assert [proxy.metric(name) for name in names] == before
    for _ in range(READS_MAX):
        with RawConnection(proxy.bootstrap) as stock:
            _says(stock, "librdkafka")
            assert _read_all(stock, topic) == batches
        pauses, paced = (
            proxy.metric(name) - then for name, then in zip(names, before, strict=True)
        )
        assert pauses >= 1
        if paced:
            return
    raise AssertionError("no answer was paced")


@pytest.mark.parametrize("mode", ["cluster", "archive-only"])
def test_console_says_what_a_client_reads_and_how_it_pauses(
    mode: str, proxy: ProxyProcess, archive_only: ProxyProcess
) -> None:
    through = proxy if mode == "cluster" else archive_only
    rows = (_row_of_a_stock_client(through, f"seen-{number}") for number in range(READS_MAX))
    assert any(row["pauses"] for row in rows)
    wait_for("the client's end", lambda: json.loads(through.get("/api/status"))["clients"] == [])


@pytest.mark.parametrize("mode", ["cluster", "archive-only"])
def test_console_says_what_another_client_reads(
    mode: str, proxy: ProxyProcess, archive_only: ProxyProcess
) -> None:
    through = proxy if mode == "cluster" else archive_only
    consumer = kafka.KafkaConsumer(bootstrap_servers=through.bootstrap, client_id="other")
    rows = []
    try:
        tps = [kafka.TopicPartition(OLD, partition) for partition in range(PARTITIONS)]
        consumer.assign(tps)
        consumer.seek_to_beginning()
        records_left = RECORDS
        while records_left > 0:
            records_left -= sum(map(len, consumer.poll(60_000, max_records=50_000).values()))
            [row] = json.loads(through.get("/api/status"))["clients"]
            rows.append(row)
    finally:
        consumer.close()
    # The client may take longer for what it was sent than rows look back, on a busy machine.
    row = [row for row in rows if row["partitions"]][-1]
    assert (row["client_id"], row["connections"]) == ("other", 1)
    assert row["software"].startswith("kafka-python ")
    assert 1 <= row["partitions"] <= PARTITIONS
    # There may have been no fetch after the last one.
    assert row["records_per_s"] > 0
    assert row["bytes_per_s"] > 20 * row["records_per_s"]
    assert (row["pauses"], row["pace_records_per_s"], row["held_back_s"]) == (0, None, 0)


def _row_of_a_stock_client(proxy: ProxyProcess, client_id: str) -> dict[str, Any]:
    """The client's row in the API when it has read everything and is still connected."""
    settings = {
        "bootstrap.servers": proxy.bootstrap,
        "client.id": client_id,
        "group.id": "unused",
        "enable.auto.commit": False,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(OLD, p, 0) for p in range(PARTITIONS)])
    records_left = RECORDS
    try:
        while records_left:
            for message in consumer.consume(10_000, timeout=60.0):
                assert message.error() is None, message.error()
                records_left -= 1
        document = json.loads(proxy.get("/api/status"))
    finally:
        consumer.close()
    [row] = document["clients"]
    assert document["clients_total"] == 1
    assert (row["client_id"], row["address"]) == (client_id, "127.0.0.1")
    assert row["connections"] == 1
    # The wheel's own name, such as "confluent-kafka-python 2.16.1-librdkafka-2.16.0"
    assert confluent_kafka.libversion()[0] in row["software"], row
    assert 1 <= row["partitions"] <= PARTITIONS
    assert row["records_per_s"] > 0
    assert row["bytes_per_s"] > 20 * row["records_per_s"]
    assert (row["held_back_s"] > 0) <= (row["pauses"] > 0)
    return dict(row)
