"""Limits of Fetch responses: bytes over both tiers, slow clients, and quotas."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kafka.protocol.admin.client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from raw_session import Session, SessionClient
from test_bad_input import is_closed, read_frame, request
from topic_data import TopicData, archived_ends, produce, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

MiB = 1 << 20
RESPONSE_MAX, TOTAL_MAX = 12 * MiB, 16 * MiB
STALL_MS = 10_000  # one test waits for it; the others must be scheduled so often
PER_IP_MAX = 6
SETTINGS: dict[str, object] = {
    "gateway.connections_per_ip_max": PER_IP_MAX,
    "limits.serving.client_stall_max_ms": STALL_MS,
    "limits.serving.remote_answer_bytes_max": RESPONSE_MAX,
    "gateway.remote_answers_bytes_max": TOTAL_MAX,
    "limits.serving.remote_answer_turns_max": 1,
    "remote_fetch.chunk_cache_bytes_max": 64 * MiB,
    "archive.segment_age_max_ms": 5_000,  # one segment each: only read-ahead follows
    "limits.writing.rlm_process_interval_ms": 100,
    "limits.writing.discovery_interval_ms": 200,
}
METRIC_OF_KEPT_BUFFERS = ("fetchproxy_memory_used_bytes", "connection_buffers_bytes_max")
BIG_PARTITIONS = 5  # 4.5 MB each: a read gives at most one chunk of each
BIG, OLD, LIVE = "fl-big", "fl-old", "fl-live"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("fl-store").as_uri()


@pytest.fixture(scope="module")
def proxy(
    kafka_server: KafkaServer, store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    folder: Path = tmp_path_factory.mktemp("fl")
    with ProxyProcess(
        kafka_server.bootstrap, store, folder, archive="fl-(big|old)", settings=SETTINGS
    ) as process:
        for topic, partitions, count, size in (
            (BIG, BIG_PARTITIONS, 500, 9_000),
            (OLD, 1, 1_000, 300),
        ):
            kafka_server.create_topic(topic, partitions)
            data = TopicData(topic)
            produce(kafka_server.bootstrap, data, count, partition_count=partitions, size=size)
            ends = dict.fromkeys(range(partitions), count)
            wait_for("the archive", lambda t=topic, e=ends: archived_ends(store, t) == e)
            trim(kafka_server.bootstrap, topic, ends)
        kafka_server.create_topic(LIVE, 1)
        produce(kafka_server.bootstrap, TopicData(LIVE), 1_000)
        yield process
        assert not process.logged("session_crashed")


def test_one_address_gets_no_more_connections_than_it_may(proxy: ProxyProcess) -> None:
    def connect(last_octet: int) -> socket.socket:
        peer = socket.create_connection(
            ("127.0.0.1", proxy.port), source_address=(f"127.0.0.{last_octet}", 0)
        )
        peer.settimeout(20)
        return peer

    def is_served(peer: socket.socket) -> bool:
        try:
            peer.sendall(request(18, 0))
            return bool(read_frame(peer))
        except (OSError, AssertionError):
            return False

    connections = [connect(50) for _ in range(PER_IP_MAX)]
    assert all(map(is_served, connections))
    with connect(50) as one_more:
        assert is_closed(one_more)
    with connect(51) as other:
        assert is_served(other)
    connections.pop().close()

    def is_free() -> bool:
        with connect(50) as peer:
            return is_served(peer)

    wait_for("a free place", is_free)
    for peer in connections:
        peer.close()
    assert proxy.metric("fetchproxy_limits_reached_total", 'connections_per_ip_max"') > 0


@pytest.mark.parametrize("bytes_max", [100, 20_000, 100_000])
def test_both_tiers_together_keep_to_max_bytes_and_take_turns(
    proxy: ProxyProcess, bytes_max: int
) -> None:
    positions, turns = {OLD: 0, LIVE: 0}, {OLD: 0, LIVE: 0}
    deadline = time.monotonic() + 60
    with SessionClient(proxy.bootstrap, 12) as client:
        session = Session(client, {t: {0: 0} for t in positions}, bytes_max=bytes_max)
        while min(turns.values()) < 3:  # a slow broker may make it many polls
            assert time.monotonic() < deadline, turns
            response = session.poll({topic: {0: at} for topic, at in positions.items()})
            for (topic, _), part in response.parts.items():
                assert part.error == 0
                if part.offsets:
                    assert part.offsets[0] == positions[topic], "in order, nothing twice"
                    positions[topic] = part.next_offset % 1_000
                    turns[topic] += 1
            parts_given = [part for part in response.parts.values() if part.size]
            alone = (
                len(parts_given) == 1 and len(parts_given[0].offsets) == 1
            )  # KIP-74's first batch
            assert alone or sum(part.size for part in parts_given) <= bytes_max


class SlowReader(RawConnection):
    """Sends requests and does not read the answers."""

    def __init__(self, proxy: ProxyProcess) -> None:
        super().__init__(proxy.bootstrap)
        self._socket.close()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", proxy.port))

    def ask(self, request, response, version: int) -> None:
        request.with_header(correlation_id=1, client_id="slow")
        self.send(request.encode(header=True, framed=True))

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


def fetch_all(reader: RawConnection):
    offsets = dict.fromkeys(range(BIG_PARTITIONS), 0)
    return reader.fetch_response(11, BIG, None, offsets, bytes_max=40 * MiB)


def fetched_bytes(reader: RawConnection) -> int:
    parts = [p for topic in fetch_all(reader).responses for p in topic.partitions]
    assert {p.error_code for p in parts} == {0}
    return sum(len(p.records or b"") for p in parts)


def test_of_two_readers_one_has_its_turn_first(proxy: ProxyProcess) -> None:
    """There is only one turn: a fetch that comes while a response is being written waits for it."""
    deadline = time.monotonic() + 60

    def waited() -> float:
        return proxy.metric("fetchproxy_limits_reached_total", 'remote_answer_turns_max"')

    def replay(_: int) -> int:
        with RawConnection(proxy.bootstrap) as reader:
            size = 0
            while not waited() or not size:
                assert time.monotonic() < deadline, "nobody ever waited"
                for _ in range(5):
                    size += fetched_bytes(reader)
            return size

    with ThreadPoolExecutor(2) as readers:
        assert all(readers.map(replay, range(2)))


def test_slow_readers_hold_bounded_bytes_and_are_closed(proxy: ProxyProcess) -> None:
    with RawConnection(proxy.bootstrap) as reader:
        sizes = [fetched_bytes(reader)]
        deadline = time.monotonic() + 60
        while max(sizes) < RESPONSE_MAX - MiB:  # until the archive is in the cache
            assert time.monotonic() < deadline, sizes
            sizes.append(fetched_bytes(reader))
        assert max(sizes) <= RESPONSE_MAX, "one answer"
    slow = [SlowReader(proxy) for _ in range(3)]
    bytes_seen: list[float] = []

    def bytes_held() -> float:
        bytes_seen.append(proxy.metric("fetchproxy_remote_answer_bytes"))
        return bytes_seen[-1]

    try:
        for reader in slow:
            fetch_all(reader)  # this fetch is caught
            fetch_all(reader)
            fetch_all(reader)
        wait_for("slow clients", lambda: bytes_held() > RESPONSE_MAX - MiB)
        with RawConnection(proxy.bootstrap) as well:  # others are served, if with less
            while not fetched_bytes(well):
                bytes_held()
        wait_for("their end", lambda: bytes_held() == 0)
        assert max(bytes_seen) <= TOTAL_MAX + 4 * MiB, "one batch each beyond the limit"
    finally:
        for reader in slow:
            reader.__exit__(None, None, None)
    assert proxy.metric("fetchproxy_limits_reached_total", 'client_stall_max_ms"') >= 1
    assert proxy.metric("fetchproxy_limits_reached_total", 'remote_answers_bytes_max"') > 0
    reasons = [line["reason"] for line in proxy.logged("client_connection_closed")]
    assert "client_stall_max_ms" in reasons


def test_readers_of_the_tail_cost_the_store_one_look_for_all_of_them(
    proxy: ProxyProcess, kafka_server: KafkaServer, store: str, tmp_path: Path
) -> None:
    """The proxy has no archiver and serves only the tail: it learns where logs begin."""
    with (
        ProxyProcess(kafka_server.bootstrap, store, tmp_path) as reader_only,
        RawConnection(reader_only.bootstrap) as one,
        RawConnection(reader_only.bootstrap) as two,
    ):

        def log_start(reader: RawConnection) -> int:
            return reader.fetch(11, OLD, None, 1_000, wait_ms=0).log_start_offset

        assert log_start(one) in (0, -1)
        wait_for("the archive's log start", lambda: log_start(one) == 0)
        before = reader_only.metric("fetchproxy_metadata_refresh_seconds_count")
        for _ in range(100):
            assert log_start(one) == log_start(two) == 0
        look_ups = reader_only.metric("fetchproxy_metadata_refresh_seconds_count") - before
        assert look_ups <= BIG_PARTITIONS + 1, "the console's own look at every partition"


def quota(kafka: KafkaServer, client_id: str, bytes_per_s: float | None) -> None:
    request = AlterClientQuotasRequest[1]()
    entry = AlterClientQuotasRequest.EntryData(version=1)
    entity = AlterClientQuotasRequest.EntryData.EntityData(version=1)
    entity.entity_type, entity.entity_name = "client-id", client_id
    op = AlterClientQuotasRequest.EntryData.OpData(version=1)
    op.key, op.value, op.remove = "consumer_byte_rate", bytes_per_s or 0.0, bytes_per_s is None
    entry.entity, entry.ops = [entity], [op]
    request.entries, request.validate_only = [entry], False
    with RawConnection(kafka.bootstrap) as admin:
        response = admin.ask(request, AlterClientQuotasResponse, 1)
        assert [e.error_code for e in response.entries] == [0]


def test_the_brokers_throttle_time_reaches_the_client(
    proxy: ProxyProcess, kafka_server: KafkaServer
) -> None:
    """In relayed answers, and in those with an archived part."""
    quota(kafka_server, "raw", 20_000)
    try:
        with SessionClient(proxy.bootstrap, 12) as client:
            relayed = most_throttled(client, {LIVE: {0: 0}})
            assert relayed > 0
        with SessionClient(proxy.bootstrap, 12) as client:
            client.poll((0, -1), {OLD: {0: 0}})  # this fetch is caught
            time.sleep(0.3)
            assert most_throttled(client, {LIVE: {0: 0}, OLD: {0: 0}}) > 0
    finally:
        quota(kafka_server, "raw", None)


def most_throttled(client: SessionClient, offsets_by_topic) -> int:
    """The throttle time of the first throttled fetch; the broker mutes a throttled channel."""
    most = 0
    deadline = time.monotonic() + 30
    while not most and time.monotonic() < deadline:
        most = client.poll((0, -1), offsets_by_topic, partition_bytes=40_000).throttle_ms
    return most


def test_who_is_gone_holds_no_connection_while_the_broker_waits_for_records(
    proxy: ProxyProcess,
) -> None:
    """One fetch is held, one waits for its turn, one is kept unread: nothing more is read."""

    def connections() -> float:
        return proxy.metric("fetchproxy_connections")

    wait_for("others to leave", lambda: connections() == 0)
    with SlowReader(proxy) as reader:
        for _ in range(3):
            reader.fetch_response(11, LIVE, None, {0: 1_000}, wait_ms=3_600_000)
        wait_for("one to be kept", lambda: proxy.metric(*METRIC_OF_KEPT_BUFFERS) > 0)
        assert connections() == 1
        reader.reset()
    wait_for("its end", lambda: connections() == 0)
