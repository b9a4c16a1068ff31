"""Clients that load and check what is measured: what they send, count, and call wrong."""

from __future__ import annotations

import os
import socket
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from fetchproxy_protocol.apis import MalformedMessage
from fetchproxy_protocol.fetch import entry_bytes_max, fetch_offset, parse_fetch_request
from fetchproxy_protocol.headers import peek_request_header
from fetchproxy_protocol.primitives import INT32

from benchmarks import hostile_connections as harm
from benchmarks.bare_relay import BareRelay
from benchmarks.certificate import certificate
from benchmarks.discarding_client import Connection, drain
from benchmarks.many_connections import Load, greeting, receive
from benchmarks.numbered_records import RECORD_BYTES_MAX, fill, value_of
from benchmarks.pipeline import payloads, planning
from benchmarks.raw_fetch import RawConnection
from benchmarks.recorded_broker import RecordedBroker
from benchmarks.replayers import Course, ReplayerProcess
from fetchproxy.config.schema import GatewayConfig
from fetchproxy.serving.limits import ServingLimits
from lab.errors import PartFailed
from lab.mock_cluster import MockCluster


# -- many connections ----------------------------------------------------------------------------
def test_a_greeting_is_three_whole_requests() -> None:
    keys = []
    for frame in greeting("orders"):
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        head = peek_request_header(memoryview(frame), 4, len(frame))
        keys.append(head.api_key)
        assert head.correlation_id == 0
    assert keys == [18, 3, 1]
    fetch = greeting("orders")[-1]
    at = peek_request_header(memoryview(fetch), 4, len(fetch)).body_position
    (parsed_fetch,) = parse_fetch_request(memoryview(fetch)[4:], at - 4).partitions.values()
    assert fetch_offset(parsed_fetch) == 0


EXPECTED = (12).to_bytes(4, "big") + bytes(4) + b"answered"


def serve(server: socket.socket, response: Callable[[int], bytes]) -> None:
    """Answers each request of one byte more than its correlation id with `response` of it."""
    number = 0
    try:
        while server.recv(64):
            number += 1
            server.sendall(response(number))
    except OSError:
        pass


@pytest.mark.parametrize(
    ("body", "fault"), [(b"answered", None), (b"answereD", "in another way"), (b"", "closed")]
)
def test_a_load_counts_right_answers_and_ends_at_a_wrong_one(
    body: bytes, fault: str | None
) -> None:
    client, server = socket.socketpair()
    ids: list[int] = []

    def response(number: int) -> bytes:
        ids.append(number)
        if number == 5 and not body:
            server.shutdown(socket.SHUT_RDWR)
            return b""
        return EXPECTED[:4] + number.to_bytes(4, "big") + (body if number == 5 else b"answered")

    thread = threading.Thread(target=serve, args=(server, response))
    with client, server:
        load = Load([client], bytes(12), EXPECTED)
        thread.start()
        if fault is None:
            while load.responded <= 5:
                load.run(0.2)
        else:
            with pytest.raises(SystemExit, match=fault):
                load.run(30.0)
            assert load.responded == 4
        client.close()
        thread.join(10.0)
    load.close()


def test_fetches_that_differ_are_legal_and_never_equal() -> None:
    client, server = socket.socketpair()
    frames: list[bytes] = []

    def serve_fetches() -> None:
        with suppress(OSError):  # the client has closed
            while frame := server.recv(65_536):
                frames.append(frame)
                server.sendall(EXPECTED[:4] + frame[8:12] + b"answered")

    thread = threading.Thread(target=serve_fetches)
    with client, server:
        load = Load([client], greeting("orders")[-1], EXPECTED, differ=True)
        thread.start()
        while load.responded < 3:
            load.run(0.05)
        client.shutdown(socket.SHUT_RDWR)
        thread.join(10.0)
    load.close()
    sizes = set()
    for frame in frames:
        head = peek_request_header(memoryview(frame), 4, len(frame))
        request = parse_fetch_request(memoryview(frame)[4:], head.body_position - 4)
        (entry,) = request.partitions.values()
        assert fetch_offset(entry) == 0
        sizes.add(entry_bytes_max(entry))
    assert len(sizes) == len(frames) >= 3


def test_an_answer_is_received_whole() -> None:
    client, server = socket.socketpair()
    with client, server:
        server.sendall(EXPECTED[:6])
        threading.Timer(0.05, server.sendall, [EXPECTED[6:] + b"next"]).start()
        assert receive(client) == EXPECTED
        server.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            receive(client)


# -- hostile ones --------------------------------------------------------------------------------
def whole(pieces: harm.Pieces) -> bytes:
    frame = b"".join(pieces)
    assert INT32.unpack_from(frame)[0] == len(frame) - 4
    assert len(frame) - 4 <= ServingLimits.held_request_bytes_max, "it is not read at all"
    return frame


def test_ten_thousand_partitions_are_a_legal_fetch() -> None:
    frame = whole(harm.ten_thousand_partitions())
    body_at = peek_request_header(frame, 4).body_position - 4
    assert len(parse_fetch_request(frame[4:], body_at).partitions) == 10_000


@pytest.mark.parametrize("each", [harm.many_partitions, harm.tagged_partitions])
def test_others_are_refused_when_they_are_read(each: object) -> None:
    assert callable(each)
    frame = whole(each())
    body_at = peek_request_header(frame, 4).body_position - 4
    with pytest.raises(MalformedMessage):
        parse_fetch_request(frame[4:], body_at)


def test_a_header_that_does_not_end_has_the_size_of_a_legal_frame() -> None:
    first = next(harm.endless_header())
    assert INT32.unpack_from(first)[0] <= GatewayConfig().frame_bytes_max


# -- records that tell their place, and who checks them ------------------------------------------
def test_values_tell_their_place_and_differ() -> None:
    values = {value_of(partition, offset, 100) for partition in (0, 1) for offset in range(5000)}
    assert len(values) == 10_000
    assert {len(each) for each in values} == {100}
    assert len(value_of(3, 4095, RECORD_BYTES_MAX)) == RECORD_BYTES_MAX


def test_values_do_not_shrink() -> None:
    value = value_of(0, 7, 10_000)
    assert len(zlib.compress(value)) > 9_500


def test_a_course_takes_every_record_once_and_begins_again() -> None:
    course = Course(partition=2, start=3, records=5, record_bytes=50)
    assert [course.take(offset, value_of(2, offset, 50)) for offset in (3, 4)] == [None, None]
    assert course.begin_again() is True
    assert course.begin_again() is False
    assert course.take(0, value_of(2, 0, 50)) is None
    assert (course.records, course.passes) == (3, 1)


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (4, value_of(0, 4, 50)),  # one is missing
        (2, value_of(0, 2, 50)),  # one comes twice
        (3, value_of(0, 4, 50)),
        (3, value_of(1, 3, 50)),
        (3, value_of(0, 3, 50)[:-1]),
        (3, value_of(0, 3, 50)[:-1] + b"?"),
    ],
)
def test_a_course_tells_what_is_wrong(offset: int, value: bytes) -> None:
    course = Course(partition=0, start=3, records=5, record_bytes=50)
    fault = course.take(offset, value)
    assert fault is not None
    assert f"offset {offset}" in fault


def test_a_topic_is_filled_on_from_where_it_ends() -> None:
    with MockCluster() as cluster:
        fill(cluster.bootstrap, "continued", 2, 300, 200)
        fill(cluster.bootstrap, "continued", 2, 301, 200, begin=300)
        with ReplayerProcess([cluster.bootstrap, "continued", "2", "301", "200", "2"]) as replaying:
            totals = replaying.wait_until(
                lambda totals: min(totals.passes, default=0) >= 1, "a pass", 60.0
            )
            assert min(totals.records) >= 301


def test_replayers_go_round_and_stop_at_a_wrong_record() -> None:
    with MockCluster() as cluster:
        fill(cluster.bootstrap, "sound", 4, 500, 200)
        arguments = [cluster.bootstrap, "sound", "4", "500", "200", "8"]
        with ReplayerProcess(arguments) as replaying:
            totals = replaying.wait_until(
                lambda totals: min(totals.passes, default=0) >= 2, "two passes", 60.0
            )
            # Strangers to the machine step back, whatever session they are in.
            assert os.getpriority(os.PRIO_PROCESS, replaying.pid) == 19
            group = Path(f"/proc/{replaying.pid}/autogroup")
            assert not group.exists() or group.read_text().endswith(" nice 10\n")
            assert len(totals.records) == 8
            assert min(totals.records) >= 750  # half of them begin in the middle
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce("wrong", value_of(0, 0, 200), partition=0)
        producer.produce("wrong", value_of(0, 2, 200), partition=0)
        assert producer.flush(30.0) == 0
        with (
            ReplayerProcess([cluster.bootstrap, "wrong", "1", "2", "200", "1"]) as replaying,
            pytest.raises(PartFailed, match="partition 0: offset 1 has another value"),
        ):
            replaying.wait_until(lambda totals: False, "a fault", 60.0)


# -- Spark's -------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [100, 1024])
def test_payloads_are_lines_of_one_size(size: int) -> None:
    made = payloads(size, 50)
    assert {len(line) for line in made} == {size}
    assert len(set(made)) == 50
    assert not any("\n" in line for line in made)


@pytest.mark.slow
def test_planning_is_measured(tmp_path: Path) -> None:
    figures = planning(tmp_path / "made", 300, 200, 1)
    assert figures["segments"] == [300]
    assert figures["tasks"][0] >= 150
    assert figures["planning_cpu_s"][0] > 0
    assert figures["stored_segments"] == [200]
    assert figures["stored_million_cpu_s"][0] > figures["planning_cpu_s"][0]
    assert figures["collected_segments"] == [200]
    assert figures["collected_million_cpu_s"][0] > figures["planning_cpu_s"][0]


# -- the client that decrypts nothing --------------------------------------------------------------
def test_what_is_discarded_is_counted_as_it_is_sent(tmp_path: Path) -> None:
    """The bare relay in front of a broker that repeats: what it has sent is what was counted."""
    pem = certificate(tmp_path)
    with MockCluster() as cluster:
        # A mock broker sends one batch a response, and only a large response is repeated.
        one_batch = {"linger.ms": 60_000, "batch.size": 1_000_000}
        producer = Producer({"bootstrap.servers": cluster.bootstrap, **one_batch})
        for _ in range(900):
            producer.produce("orders", bytes(1024), partition=0)
        assert producer.flush(60.0) == 0
        with (
            RecordedBroker(int(cluster.bootstrap.rpartition(":")[2])) as broker,
            BareRelay(broker.port, pem, 2) as relay,
        ):
            one = Connection(relay.bootstrap, "orders", 0)
            with RawConnection(broker.bootstrap) as plain:
                records = plain.fetch("orders", [(0, 0)]).sizes[0]
            assert records < one.plain_bytes < records + 200
            seconds = drain([one], 0.3)
            one.socket.close()
            assert seconds >= 0.3
            assert one.responses > 2
