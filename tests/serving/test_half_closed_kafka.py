"""Clients that end their sending and wait for their responses get them, as from a broker."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.metadata import MetadataRequest
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from test_bad_input import request
from topic_data import TopicData, archived_ends, produce, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

OLD, LIVE = "hc-old", "hc-live"
RECORDS, HOUR_MS = 10_000, 3_600_000
IDLE_MS, STALL_MS, HALF_FRAME_MS = 4_000, 20_000, 60_000
SETTINGS: dict[str, object] = {
    "limits.serving.inflight_requests_max": 3,
    "limits.serving.client_stall_max_ms": STALL_MS,
    "limits.serving.half_frame_max_ms": HALF_FRAME_MS,
    "archive.segment_age_max_ms": 1_000,
    "limits.writing.rlm_process_interval_ms": 100,
    "limits.writing.discovery_interval_ms": 200,
}


class HalfClosed(RawConnection):
    """Sends everything first, ends its sending, and reads to the end."""

    def __init__(self, bootstrap: str, receive_bytes_max: int | None = None) -> None:
        super().__init__(bootstrap, receive_bytes_max)
        self.correlation_ids: list[int] = []

    def ask(self, query: object, response: object, version: int) -> None:
        self._correlation += 1
        query.with_header(correlation_id=self._correlation, client_id="half")  # type: ignore[attr-defined]
        self.send(query.encode(header=True, framed=True))  # type: ignore[attr-defined]
        self.correlation_ids.append(self._correlation)

    def api_versions(self) -> None:
        self._correlation += 1
        self.send(request(18, 0, correlation=self._correlation))
        self.correlation_ids.append(self._correlation)

    def metadata(self) -> None:
        query = MetadataRequest[5]()
        query.topics, query.allow_auto_topic_creation = None, False
        self.ask(query, None, 5)

    def fetch_of(self, topic: str, offset: int, wait_ms: int = 500) -> None:
        self.fetch_response(11, topic, None, {0: offset}, wait_ms=wait_ms)

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def responses(self) -> list[bytes]:
        """Read until the other side ends its sending, too."""
        responses_read = []
        while first := self._socket.recv(1):
            size = struct.unpack(">i", first + self._exactly(3))[0]
            responses_read.append(self._exactly(size))
        return responses_read

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


def correlations(responses: list[bytes]) -> list[int]:
    return [struct.unpack(">i", response[:4])[0] for response in responses]


def records_of(response: bytes) -> bytes:
    part = FetchResponse[11].decode(response, header=True).responses[0].partitions[0]
    assert part.error_code == 0
    return bytes(part.records or b"")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("hc-store").as_uri()


@pytest.fixture(scope="module")
def proxy(
    kafka_server: KafkaServer, store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    folder: Path = tmp_path_factory.mktemp("hc")
    with ProxyProcess(
        kafka_server.bootstrap, store, folder, archive=OLD, settings=SETTINGS
    ) as process:
        for topic in (OLD, LIVE):
            kafka_server.create_topic(topic, 1)
            produce(kafka_server.bootstrap, TopicData(topic), RECORDS)
        wait_for("the archive", lambda: archived_ends(store, OLD) == {0: RECORDS})
        trim(kafka_server.bootstrap, OLD, {0: RECORDS})
        yield process
        assert not process.logged("session_crashed")
        assert not process.logged("library_message")


@pytest.fixture(params=["broker", "proxy"])
def bootstrap(
    request: pytest.FixtureRequest, kafka_server: KafkaServer, proxy: ProxyProcess
) -> str:
    """A test on both shows that the proxy does what the broker does."""
    return kafka_server.bootstrap if request.param == "broker" else proxy.bootstrap


def test_every_request_is_answered_in_order_and_then_the_connection_ends(bootstrap: str) -> None:
    with HalfClosed(bootstrap) as client:
        for _ in range(5):  # more requests than may be in flight
            client.api_versions()
            client.metadata()
            client.fetch_of(LIVE, 0)
        client.end()
        responses = client.responses()
    assert correlations(responses) == client.correlation_ids
    assert records_of(responses[2])


def test_a_fetch_that_the_broker_holds_is_answered(bootstrap: str) -> None:
    with HalfClosed(bootstrap) as client:
        client.fetch_of(LIVE, RECORDS, wait_ms=1_500)
        client.end()
        began = time.monotonic()
        (response,) = client.responses()
    assert records_of(response) == b""
    assert time.monotonic() - began > 1, "it was held"


def test_an_archived_fetch_is_answered_and_one_behind_it(proxy: ProxyProcess) -> None:
    with RawConnection(proxy.bootstrap) as reader:
        expected = reader.fetch_until_data(11, OLD, None, 0).records
    with HalfClosed(proxy.bootstrap) as client:
        for _ in range(4):  # a connection's first one may be answered before it is judged
            client.fetch_of(OLD, 0)
        client.metadata()
        client.end()
        responses = client.responses()
    assert correlations(responses) == client.correlation_ids
    assert records_of(responses[-2]) == expected


def test_what_is_left_of_large_answers_waits_for_a_slow_client(proxy: ProxyProcess) -> None:
    with HalfClosed(proxy.bootstrap, receive_bytes_max=32_768) as client:
        for _ in range(2):
            client.fetch_of(LIVE, 0)
        client.end()
        time.sleep(1.25)
        responses = client.responses()
    assert correlations(responses) == client.correlation_ids
    assert all(len(records_of(response)) > 500_000 for response in responses)


def test_a_request_that_was_cut_off_is_not_waited_for(bootstrap: str) -> None:
    whole = struct.pack(">hhih", 0, 3, 9, 2) + b"me" + b"\xff\xff" + struct.pack(">hi", 1, 1000)
    cut_off = {
        "held until whole": request(1, 11, b"\0" * 40)[:-10],
        "passes": struct.pack(">i", len(whole) + 10_000) + whole,
        "its header": request(3, 5)[:9],
    }
    for name, request_bytes in cut_off.items():
        with HalfClosed(bootstrap) as client:
            client.api_versions()
            client.fetch_of(LIVE, RECORDS, wait_ms=300)
            client.send(request_bytes)
            client.end()
            began = time.monotonic()
            assert correlations(client.responses()) == client.correlation_ids, name
            assert time.monotonic() - began < 20, name


def test_who_asks_nothing_is_let_go(bootstrap: str) -> None:
    with HalfClosed(bootstrap) as client:
        client.end()
        assert client.responses() == []


def connections(proxy: ProxyProcess) -> float:
    return proxy.metric("fetchproxy_connections")


def test_who_is_reset_while_he_waits_is_let_go(proxy: ProxyProcess) -> None:
    wait_for("others to leave", lambda: connections(proxy) == 0)
    with HalfClosed(proxy.bootstrap) as client:
        client.fetch_of(LIVE, RECORDS, wait_ms=HOUR_MS)
        client.end()
        time.sleep(1)
        assert connections(proxy) == 1
        client.reset()
    wait_for("its end", lambda: connections(proxy) == 0, timeout_s=20)


@pytest.mark.usefixtures("proxy")  # it has filled the topic
def test_who_never_takes_his_answers_is_let_go(
    kafka_server: KafkaServer, store: str, tmp_path: Path
) -> None:
    stalled = ("fetchproxy_limits_reached_total", 'client_stall_max_ms"')
    settings = {**SETTINGS, "limits.serving.client_stall_max_ms": 2_500}
    with (
        ProxyProcess(kafka_server.bootstrap, store, tmp_path, settings=settings) as other,
        HalfClosed(other.bootstrap, receive_bytes_max=4096) as client,
    ):
        for _ in range(12):
            client.fetch_of(LIVE, 0)
        client.end()
        wait_for("its end", lambda: other.metric(*stalled) > 0)
        wait_for("its place", lambda: connections(other) == 0)
        assert not other.logged("session_crashed")
        assert not other.logged("library_message")


def test_who_waits_in_silence_is_let_go_after_a_while(
    kafka_server: KafkaServer, proxy: ProxyProcess, tmp_path: Path
) -> None:
    settings: dict[str, object] = {"gateway.idle_max_ms": IDLE_MS}
    (tmp_path / "store").mkdir()
    with (
        ProxyProcess(
            kafka_server.bootstrap, (tmp_path / "store").as_uri(), tmp_path, settings=settings
        ) as other,
        HalfClosed(other.bootstrap) as client,
    ):
        client.fetch_of(LIVE, RECORDS, wait_ms=HOUR_MS)
        client.end()
        began = time.monotonic()
        assert client.responses() == []
        assert time.monotonic() - began > IDLE_MS / 1000 - 1
        wait_for("its place", lambda: connections(other) == 0)
