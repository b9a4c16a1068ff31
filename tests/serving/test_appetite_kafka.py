"""A client that pauses as librdkafka does is paced, on the tail and in the archive, and reads the
same bytes; one that calls itself otherwise is not, whatever it does."""

from __future__ import annotations

import time
from collections.abc import Iterator

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
CYCLE_RECORDS = 150_000  # a queue, and what an application takes meanwhile
# On a busy machine a reader may be slower than any pace.
READS_MAX = 5
SETTINGS = {"archive.segment_age_max_ms": 300, "archive.rlm_process_interval_ms": 100}


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
    """The same archive by itself."""
    with ArchiveOnlyProcess(store, tmp_path_factory.mktemp("ap-alone")) as process:
        yield process


def _says(connection: RawConnection, software: str) -> None:
    request = ApiVersionsRequest[3]()
    request.client_software_name, request.client_software_version = software, "1"
    assert connection.ask(request, ApiVersionsResponse, 3).error_code == 0


def _read_all(connection: RawConnection, topic: str) -> dict[int, list[int]]:
    """Base offsets of all batches. It pauses for a second when a queue would be full."""
    offsets, seen = dict.fromkeys(range(PARTITIONS), 0), 0
    batches: dict[int, list[int]] = {partition: [] for partition in offsets}
    while sum(offsets.values()) < RECORDS:
        before = sum(offsets.values())
        answer = connection.fetch_response(11, topic, None, offsets, bytes_max=200_000)
        for part in answer.responses[0].partitions if answer.responses else ():
            assert part.error_code == 0
            for batch in walk(bytes(part.records or b"")):
                if batch.base_offset >= offsets[part.partition_index]:
                    batches[part.partition_index].append(batch.base_offset)
                    offsets[part.partition_index] = batch.last_offset + 1
        seen += sum(offsets.values()) - before
        if seen >= CYCLE_RECORDS:
            time.sleep(1.0)
            seen = 0
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
