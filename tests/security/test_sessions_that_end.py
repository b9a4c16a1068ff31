"""KIP-368 through the proxy: clients authenticate again on the connection that they have.

The broker closes a connection that goes on without, and the client's session there is the only one:
the proxy has none of its own for a client.
"""

from __future__ import annotations

import json
import threading
import time

import confluent_kafka
import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from proxy_process import ProxyProcess
from secured_clients import PERMIT_TTL_MS, SaslConnection, confluent_login, java_login, log_in
from topic_data import TopicData, produce

from lab.kafka import run_tool
from lab.secured_kafka import SESSION_MS, SecuredKafka

pytestmark = pytest.mark.kafka

SESSIONS = 3.5
READ_S = SESSIONS * SESSION_MS / 1000


class Trickle:
    """Inside its block a few records come to the topic all the time."""

    def __init__(self, kafka: SecuredKafka, data: TopicData) -> None:
        self._kafka, self._data = kafka, data
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            produce(self._kafka.bootstrap, self._data, 3)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def read_slowly(
    bootstrap: str, topic: str, mechanism: str, archived: int
) -> tuple[list, list, dict]:
    """(records, errors, librdkafka's statistics): the archive for about half of READ_S, by small
    fetches of which only one is kept ahead, then the tail, until that gave some records."""
    errors: list[confluent_kafka.KafkaError] = []
    stats: dict = {}
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "slow",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "error_cb": errors.append,
            "fetch.message.max.bytes": 4_000,
            "queued.min.messages": 1,
            "statistics.interval.ms": 500,
            "stats_cb": lambda text: stats.update(json.loads(text)),
            **confluent_login("alice", mechanism),
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    records, begun = [], time.monotonic()
    while (passed := time.monotonic() - begun) < READ_S or len(records) < archived + 20:
        assert passed < 90, f"{len(records)} records, {errors}"
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            records.append((message.offset(), message.key(), message.value()))
            if len(records) < archived:
                time.sleep(READ_S / 2 / archived)
    consumer.close()
    return records, errors, stats


@pytest.mark.parametrize(
    "mechanism", ["SCRAM-SHA-256", pytest.param("OAUTHBEARER", marks=pytest.mark.slow)]
)
def test_librdkafka_reads_archive_and_tail_over_several_sessions(
    mechanism: str, short_proxy: ProxyProcess, make_replayed, secured: SecuredKafka
) -> None:
    data = make_replayed(f"sec-long-{mechanism}", "alice")
    archived = len(data.written[0])
    with Trickle(secured, data):
        records, errors, stats = read_slowly(short_proxy.bootstrap, data.topic, mechanism, archived)
    assert not errors
    assert len(records) > archived
    assert records == data.written[0][: len(records)]
    serving = [b for b in stats["brokers"].values() if b["rxbytes"] > 100_000]
    assert serving
    assert [b["disconnects"] for b in serving] == [0] * len(serving)
    assert sum(b["req"]["SaslHandshake"] for b in serving) >= SESSIONS - 1


@pytest.mark.slow
def test_java_reads_archive_and_tail_over_several_sessions(
    short_proxy: ProxyProcess, make_replayed, secured: SecuredKafka
) -> None:
    data = make_replayed("sec-long-java", "alice")
    count = len(data.written[0]) + 250  # which the trickle needs READ_S for, at its best
    with Trickle(secured, data):
        begun = time.monotonic()
        result = run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", short_proxy.bootstrap, "--topic", data.topic),
            *("--partition", "0", "--offset", "0"),
            *("--max-messages", str(count), "--timeout-ms", "60000"),
            *("--consumer-property", "max.partition.fetch.bytes=4000"),
            *("--property", "print.offset=true", "--property", "print.key=true"),
            *java_login("alice", "SCRAM-SHA-512"),
        )
        assert time.monotonic() - begun > 2 * SESSION_MS / 1000
    written = data.written[0][:count]
    expected = [f"Offset:{o}\t{k.decode()}\t{v.decode()}" for o, k, v in written]
    assert result.stdout.splitlines() == expected
    assert "WARN" not in result.stderr.replace("deprecated", ""), result.stderr


def session_fetch(topic: str, topic_id: object, offsets: dict[int, int], wait_ms: int, session):
    request = FetchRequest[13]()
    request.replica_id, request.max_wait_ms, request.min_bytes = -1, wait_ms, 1
    request.max_bytes, request.isolation_level = 1 << 20, 0
    request.session_id, request.session_epoch = session
    request.forgotten_topics_data = []
    fetch_topic = FetchRequest.FetchTopic(version=13)
    fetch_topic.topic, fetch_topic.topic_id, fetch_topic.partitions = topic, topic_id, []
    for partition, offset in offsets.items():
        place = FetchRequest.FetchTopic.FetchPartition(version=13)
        place.partition, place.fetch_offset, place.partition_max_bytes = partition, offset, 5_000
        fetch_topic.partitions.append(place)
    request.topics = [fetch_topic] if offsets else []
    return request


@pytest.fixture
def two_tiers(secured: SecuredKafka, make_replayed) -> tuple[TopicData, str]:
    """(a topic in the archive, a topic with nothing new): together they park polls."""
    data = make_replayed(f"sec-parked-{time.monotonic_ns()}", "alice")
    quiet = secured.create_topic(f"quiet-{time.monotonic_ns()}")
    secured.allow("alice", quiet, "READ")
    return data, quiet


@pytest.mark.slow
def test_a_renewal_among_parked_polls_disturbs_no_fetch_session(
    short_proxy: ProxyProcess, two_tiers: tuple[TopicData, str]
) -> None:
    """An archived topic and an idle tail in one session: each remote answer leaves a long poll of
    the tail parked. Every login comes while one is, and the session's epochs go on."""
    data, quiet = two_tiers
    with SaslConnection(short_proxy.bootstrap, "alice") as alice:
        ids = {name: alice.topic_id(name) for name in (data.topic, quiet)}
        full = session_fetch(data.topic, ids[data.topic], {0: 0}, 500, (0, 0))
        full.topics += session_fetch(quiet, ids[quiet], {0: 0}, 500, (0, 0)).topics
        session = alice.ask(full, FetchResponse, 13).session_id
        assert session
        offset, epoch, logins, begun = 0, 1, 0, time.monotonic()
        renewed_at = begun
        served_after_login = 0
        while time.monotonic() - begun < READ_S:
            more = session_fetch(data.topic, ids[data.topic], {0: offset}, 500, (session, epoch))
            response = alice.ask(more, FetchResponse, 13)
            assert response.error_code == 0
            assert response.session_id == session
            epoch += 1
            records = [p.records for t in response.responses for p in t.partitions if p.records]
            offset = (offset + 50) % 400 if records else offset
            served_after_login += bool(records and logins)
            if time.monotonic() - renewed_at > 1.2:  # brokers take one login a second
                renewed_at = time.monotonic()
                assert log_in(alice, "alice") > 0
                assert time.monotonic() - renewed_at < 5
                logins += 1
        assert logins >= SESSIONS
        assert served_after_login > 10


def test_who_does_not_authenticate_again_is_cut_off(
    secured: SecuredKafka, short_proxy: ProxyProcess, two_tiers: tuple[TopicData, str]
) -> None:
    """At the tail as by the broker; in the archive when its permit is over at the latest."""
    data, _ = two_tiers
    last = data.written[0][-1][0]
    with SaslConnection(secured.sasl, "alice") as unending:
        topic_id = unending.topic_id(data.topic)

    def lasted_s(bootstrap: str, offset: int) -> float:
        begun = time.monotonic()
        with SaslConnection(bootstrap, "alice") as alice:
            errors = set()

            def read_on() -> None:
                while time.monotonic() - begun < 30:
                    fetched = alice.fetch(13, data.topic, topic_id, offset, wait_ms=50)
                    errors.add(fetched.error)

            with pytest.raises((AssertionError, ConnectionError), match=r"closed|reset|pipe"):
                read_on()
            assert errors == {0}
            return time.monotonic() - begun

    session_s, permit_s, slack_s = SESSION_MS / 1000, PERMIT_TTL_MS / 1000, 8.0
    for bootstrap in (secured.short_sessions, short_proxy.bootstrap):
        assert session_s - 0.5 < lasted_s(bootstrap, last) < session_s + slack_s
    assert session_s - 0.5 < lasted_s(short_proxy.bootstrap, 0) < session_s + permit_s + slack_s
