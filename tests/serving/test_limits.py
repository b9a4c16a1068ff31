"""The gateway at its named limits: answers stay whole and in order, memory stays bounded."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from test_bad_input import read_frame, request
from topic_data import TopicData, archived_ends, produce, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

BUFFER_BYTES = 256 * 1024
SETTINGS: dict[str, object] = {
    "limits.serving.inflight_requests_max": 3,
    "limits.serving.buffer_bytes_max": BUFFER_BYTES,
    "gateway.permit_ttl_ms": 200,
    "archive.segment_bytes_max": 200_000,
    "archive.segment_age_max_ms": 300,
    "limits.writing.rlm_process_interval_ms": 100,
    "limits.writing.discovery_interval_ms": 200,
    "limits.reading.chunk_bytes": 20_000,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("store").as_uri()


@pytest.fixture(scope="module")
def proxy(
    kafka_server: KafkaServer, store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    folder: Path = tmp_path_factory.mktemp("limits")
    with ProxyProcess(
        kafka_server.bootstrap, store, folder, archive="limits-.*", settings=SETTINGS
    ) as process:
        yield process
        assert not process.logged("session_crashed")


def test_more_requests_in_flight_than_allowed_wait_their_turn(proxy: ProxyProcess) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as peer:
        peer.settimeout(30)
        peer.sendall(b"".join(request(18, 0, correlation=n) for n in range(500)))
        for number in range(500):
            assert struct.unpack(">i", read_frame(peer)[:4])[0] == number
    assert proxy.metric("fetchproxy_limits_reached_total", 'inflight_requests_max"') > 0


def rss_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * 4096


def test_a_reader_that_does_not_read_pauses_the_broker_and_costs_no_memory(
    kafka_server: KafkaServer, proxy: ProxyProcess
) -> None:
    topic = "big-answer"
    kafka_server.create_topic(topic, 1)
    data = TopicData(topic)
    produce(kafka_server.bootstrap, data, 6_000, size=8_000, batch_records=100)
    before = rss_bytes(proxy.pid)
    with RawConnection(proxy.bootstrap) as reader:
        responses = _fetch_without_reading(reader, topic, bytes_max=40 << 20)
        time.sleep(2)  # time enough for 40 MiB on loopback without a pause
        grown = rss_bytes(proxy.pid) - before
        with RawConnection(proxy.bootstrap) as other:  # other clients are not affected
            assert other.list_offset(5, topic, -1)[2] == 6_000
        assert len(responses()) > 30 << 20, "and then it arrives whole"
    assert grown < 12 << 20, f"{grown} bytes for one slow reader"


def _fetch_without_reading(connection: RawConnection, topic: str, bytes_max: int):
    from kafka.protocol.consumer import FetchRequest

    version = 11
    entry = FetchRequest.FetchTopic.FetchPartition(version=version)
    entry.partition, entry.fetch_offset, entry.partition_max_bytes = 0, 0, bytes_max
    fetch_topic = FetchRequest.FetchTopic(version=version)
    fetch_topic.topic, fetch_topic.partitions = topic, [entry]
    fetch = FetchRequest[version]()
    fetch.replica_id, fetch.max_wait_ms, fetch.min_bytes = -1, 100, 1
    fetch.max_bytes, fetch.isolation_level = bytes_max, 0
    fetch.session_id, fetch.session_epoch = 0, -1
    fetch.topics, fetch.forgotten_topics_data, fetch.rack_id = [fetch_topic], [], ""
    fetch.with_header(correlation_id=77, client_id="slow")
    connection.send(fetch.encode(header=True, framed=True))
    return connection.receive


def test_a_permit_that_runs_out_is_renewed_by_asking_the_broker(
    kafka_server: KafkaServer, proxy: ProxyProcess, store: str
) -> None:
    topic = "limits-permit"
    kafka_server.create_topic(topic, 1)
    data = TopicData(topic)
    produce(kafka_server.bootstrap, data, 500)
    wait_for("the archive", lambda: archived_ends(store, topic) == {0: 500})
    trim(kafka_server.bootstrap, topic, {0: 450})
    catches = proxy.metric("fetchproxy_catches_total")
    with RawConnection(proxy.bootstrap) as reader:
        for _ in range(5):
            fetched = reader.fetch_until_data(12, topic, None, 7)
            assert fetched.error == 0
            time.sleep(0.25)  # longer than the permit's life
    assert proxy.metric("fetchproxy_catches_total") - catches >= 4
