"""Clients authenticate to the broker itself, through the proxy, and read archive and tail."""

from __future__ import annotations

import struct
import time
from contextlib import nullcontext

import confluent_kafka
import pytest
from client_readers import read_aiokafka, read_confluent, read_kafka_python
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest
from proxy_process import ProxyProcess
from raw_fetch import RawConnection
from secured_clients import (
    SaslConnection,
    aiokafka_login,
    confluent_login,
    hangs_up,
    java_login,
    kafka_python_login,
    log_in,
    log_in_halfway,
)
from topic_data import TopicData

from fetchproxy.serving.gateway.session import SASL_REQUEST_BYTES_MAX
from fetchproxy.serving.session import CLOSE_DELAY_S
from lab.kafka import run_tool
from lab.secured_kafka import MECHANISMS, SecuredKafka

pytestmark = pytest.mark.kafka

PYTHON = {
    "confluent-kafka": (read_confluent, confluent_login),
    "kafka-python": (read_kafka_python, kafka_python_login),
    "aiokafka": (read_aiokafka, aiokafka_login),
}


# Each client and each mechanism is always tried; all pairs are slow.
ALWAYS = {
    *(("confluent-kafka", mechanism) for mechanism in MECHANISMS),
    ("kafka-python", "SCRAM-SHA-256"),
    ("aiokafka", "OAUTHBEARER"),
}


@pytest.mark.parametrize(
    ("client", "mechanism"),
    [
        pytest.param(c, m, marks=[] if (c, m) in ALWAYS else pytest.mark.slow)
        for c in PYTHON
        for m in MECHANISMS
    ],
)
def test_python_clients_read_archive_and_tail(
    client: str, mechanism: str, proxy: ProxyProcess, open_topic: TopicData
) -> None:
    read_all, login = PYTHON[client]
    ends = {0: len(open_topic.written[0])}
    more = {"group_id": None} if client != "confluent-kafka" else {}
    records = read_all(proxy.bootstrap, open_topic.topic, ends, **login("alice", mechanism), **more)
    assert records == open_topic.written


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(m, marks=[] if m == "SCRAM-SHA-512" else pytest.mark.slow) for m in MECHANISMS],
)
def test_java_reads_archive_and_tail(
    mechanism: str, proxy: ProxyProcess, open_topic: TopicData
) -> None:
    written = open_topic.written[0]
    result = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", proxy.bootstrap, "--topic", open_topic.topic),
        *("--partition", "0", "--offset", "0"),
        *("--max-messages", str(len(written)), "--timeout-ms", "60000"),
        *("--property", "print.offset=true", "--property", "print.key=true"),
        *java_login("alice", mechanism),
    )
    expected = [f"Offset:{offset}\t{key.decode()}\t{v.decode()}" for offset, key, v in written]
    assert result.stdout.splitlines() == expected


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_gets_the_brokers_own_refusal(
    mechanism: str, secured: SecuredKafka, proxy: ProxyProcess
) -> None:
    def error_at(bootstrap: str) -> tuple[int, str]:
        errors: list[confluent_kafka.KafkaError] = []
        login = confluent_login("alice", mechanism, password="wrong")
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "g", "error_cb": errors.append, **login}
        )
        consumer.subscribe(["x"])
        while not any(e.code() == confluent_kafka.KafkaError._AUTHENTICATION for e in errors):
            consumer.poll(0.1)
        consumer.close()
        first = next(e for e in errors if e.code() == confluent_kafka.KafkaError._AUTHENTICATION)
        return first.code(), first.str().partition("SASL authentication error: ")[2].split(" (")[0]

    through = error_at(proxy.bootstrap)
    assert through == error_at(secured.sasl)
    assert "Authentication failed" in through[1]


def test_handshake_version_0_is_refused_by_the_proxy_in_kafkas_words(
    secured: SecuredKafka, proxy: ProxyProcess
) -> None:
    """The broker has version 0, and would take bare tokens next; the proxy answers error 35, and
    the connection can still log in by version 1."""
    body = struct.pack(">h", 5) + b"PLAIN"
    for bootstrap, error in ((secured.sasl, 0), (proxy.bootstrap, 35)):
        with RawConnection(bootstrap) as raw:
            header = struct.pack(">hhih", 17, 0, 9, 1) + b"c"
            raw.send(struct.pack(">i", len(header + body)) + header + body)
            response = raw.receive()
            assert struct.unpack_from(">ih", response) == (9, error)
            if error:
                assert log_in(raw, "alice") == 0  # by version 1, on the same connection


def fetch_request(version: int, data: TopicData, topic_id: object, session: tuple[int, int]):
    request = FetchRequest[version]()
    request.replica_id, request.max_wait_ms, request.min_bytes = -1, 0, 0
    request.max_bytes, request.isolation_level = 1 << 20, 0
    request.session_id, request.session_epoch = session
    request.forgotten_topics_data = []
    topic = FetchRequest.FetchTopic(version=version)
    topic.topic, topic.topic_id = data.topic, topic_id
    place = FetchRequest.FetchTopic.FetchPartition(version=version)
    place.partition, place.fetch_offset, place.partition_max_bytes = 0, 0, 1 << 20
    topic.partitions, request.topics = [place], [topic]
    return request


def offsets_request(data: TopicData, timestamp: int):
    request = ListOffsetsRequest[9]()
    request.replica_id, request.isolation_level = -1, 0
    offsets_topic = ListOffsetsRequest.ListOffsetsTopic(version=9)
    entry = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(version=9)
    entry.partition_index, entry.timestamp, entry.current_leader_epoch = 0, timestamp, -1
    offsets_topic.name, offsets_topic.partitions = data.topic, [entry]
    request.topics = [offsets_topic]
    return request


@pytest.mark.parametrize("version", [4, 11, 13, 17])
def test_an_unauthenticated_client_gets_no_answer_about_the_archive(
    version: int, secured: SecuredKafka, proxy: ProxyProcess, open_topic: TopicData
) -> None:
    with SaslConnection(proxy.bootstrap, "alice") as alice:
        topic_id = alice.topic_id(open_topic.topic)
        # what is asked for below is in the proxy's cache, and alice has a permit
        assert alice.fetch_until_data(version, open_topic.topic, topic_id, 0).records
        for bootstrap in (secured.sasl, proxy.bootstrap):
            request = fetch_request(version, open_topic, topic_id, (0, -1))
            with RawConnection(bootstrap) as stranger:
                assert hangs_up(stranger, request), bootstrap
        assert alice.fetch(version, open_topic.topic, topic_id, 0).error == 0


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
def test_a_client_halfway_through_sasl_gets_no_answer_about_the_archive(
    mechanism: str, secured: SecuredKafka, proxy: ProxyProcess, open_topic: TopicData
) -> None:
    """From here on the proxy reads its requests. aiokafka goes on like this if a broker refuses its
    token."""
    with SaslConnection(proxy.bootstrap, "alice") as alice:
        topic_id = alice.topic_id(open_topic.topic)
        assert alice.fetch_until_data(11, open_topic.topic, topic_id, 0).records
    for request in (
        fetch_request(11, open_topic, topic_id, (0, -1)),
        offsets_request(open_topic, -2),
    ):
        request.with_header(correlation_id=77, client_id="raw")
        responses = []
        for bootstrap in (secured.sasl, proxy.bootstrap):
            with RawConnection(bootstrap) as stranger:
                log_in_halfway(stranger, "alice", mechanism)
                stranger.send(request.encode(header=True, framed=True))
                responses.append(stranger.receive())
                with pytest.raises((AssertionError, ConnectionError)):
                    stranger.receive()  # the broker has closed the connection
        assert responses[0] == responses[1]  # error 34, and no record


def test_of_an_unauthenticated_client_nothing_is_read(
    secured: SecuredKafka, proxy: ProxyProcess
) -> None:
    """What comes too early is refused by its head; the proxy holds none of it."""

    def refused(peer: RawConnection, size: int) -> None:
        peer.send(struct.pack(">ihhih", size, 1, 12, 1, -1) + bytes(1000))
        with pytest.raises((AssertionError, ConnectionError)):
            peer.receive()

    def limited(name: str) -> float:
        return proxy.metric("fetchproxy_limits_reached_total", f'{name}"')

    held_rejections, early = limited("held_request_bytes_max"), limited("sasl_request_bytes_max")
    for bootstrap in (secured.sasl, proxy.bootstrap):
        with RawConnection(bootstrap) as stranger:  # whole, as the broker waits for the rest
            refused(stranger, 1010)
    (error_logged,) = [
        line["error"]
        for line in proxy.logged("client_connection_closed")
        if line.get("kind") == "MalformedMessage"
    ][-1:]
    assert error_logged.startswith("a request of API key 1 before SaslHandshake")
    assert limited("held_request_bytes_max") == held_rejections
    assert limited("sasl_request_bytes_max") == early
    with SaslConnection(proxy.bootstrap, "alice") as alice:
        refused(alice, 50_000_000)  # who is known is read, and so refused by the proxy
    assert limited("held_request_bytes_max") == held_rejections + 1


def hand_shake(raw: RawConnection) -> None:
    body = struct.pack(">h", 5) + b"PLAIN"
    raw.send(struct.pack(">ihhih", 10 + len(body), 17, 1, 1, -1) + body)
    assert struct.unpack_from(">ih", raw.receive()) == (1, 0)


def test_what_no_broker_takes_before_sasl_does_not_reach_one(
    secured: SecuredKafka, proxy: ProxyProcess
) -> None:
    """Each such refusal would cost it some 30 ms of CPU."""
    name = 'sasl_request_bytes_max"'
    before = proxy.metric("fetchproxy_limits_reached_total", name)
    for size, by_proxy in ((SASL_REQUEST_BYTES_MAX, 0), (SASL_REQUEST_BYTES_MAX + 1, 1)):
        with RawConnection(proxy.bootstrap) as stranger:
            hand_shake(stranger)
            stranger.send(struct.pack(">ihhih", size, 36, 0, 1, -1) + bytes(size - 10))
            refused_by_proxy = pytest.raises((AssertionError, ConnectionError))
            with refused_by_proxy if by_proxy else nullcontext():
                assert stranger.receive()  # the broker's own refusal
        assert proxy.metric("fetchproxy_limits_reached_total", name) == before + by_proxy
    with RawConnection(secured.sasl) as stranger:
        stranger.send(struct.pack(">ihhih", SASL_REQUEST_BYTES_MAX + 1, 1, 12, 1, -1))
        with pytest.raises((AssertionError, ConnectionError)):
            stranger.receive()


def test_a_client_that_the_broker_refuses_cannot_try_again_at_once(proxy: ProxyProcess) -> None:
    """The broker closes the connection with its refusal, and the proxy keeps the client's."""
    with RawConnection(proxy.bootstrap) as stranger:
        hand_shake(stranger)
        token = b"\0alice\0guess"
        body = struct.pack(">i", len(token)) + token
        sent_at = time.monotonic()
        stranger.send(struct.pack(">ihhih", 10 + len(body), 36, 0, 1, -1) + body)
        assert struct.unpack_from(">ih", stranger.receive()) == (1, 58)  # wrong credentials
        with pytest.raises((AssertionError, ConnectionError)):
            stranger.receive()
        assert time.monotonic() - sent_at >= CLOSE_DELAY_S


@pytest.mark.parametrize("timestamp", [-2, -5, 0])
def test_an_unauthenticated_client_gets_no_offsets(
    timestamp: int, secured: SecuredKafka, proxy: ProxyProcess, open_topic: TopicData
) -> None:
    for bootstrap in (secured.sasl, proxy.bootstrap):
        request = offsets_request(open_topic, timestamp)
        with RawConnection(bootstrap) as stranger:
            assert hangs_up(stranger, request), bootstrap
