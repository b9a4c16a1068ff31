"""The outage benchmark: what its relay corrupts, what its readers find wrong, how its figures come
about, and that it runs from end to end."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from confluent_kafka import Producer

from benchmarks.contestants import DIRECT, FETCHPROXY
from benchmarks.fault_relay import NO_FAULT, Exchange, Fault, FaultRelay, Listing
from benchmarks.goals import TAIL_BESIDE_REPLAY, TAIL_IN_OUTAGE
from benchmarks.numbered_records import RECORD_BYTES_MAX, fill, value_of
from benchmarks.outage_figures import (
    CALM,
    HANGING,
    REPLAYING,
    REPLAYING_S3,
    REPLAYS,
    TIERED,
    Measured,
    Recovery,
    rows_of,
)
from benchmarks.replayers import Course, ReplayerProcess
from lab.errors import PartFailed
from lab.kafka_versions import KAFKA_VERSION, kafka_jars, local_tiered_storage_jars
from lab.mock_cluster import MockCluster
from lab.s3 import versitygw_executable
from tests.conftest import FindPart

PROJECT = Path(__file__).parents[2]
OBJECT = b"GET /bucket/orders-1/0/00.log HTTP/1.1\r\nhost: x\r\n\r\n"
HEAD = b"HTTP/1.1 206 Partial Content\r\ncontent-length: 300\r\n\r\n"


def flipped_bits(before: bytes, after: bytes) -> int:
    assert len(before) == len(after)
    return sum((a ^ b).bit_count() for a, b in zip(before, after, strict=True))


# -- the relay -----------------------------------------------------------------------------------
def test_one_bit_of_each_piece_of_an_object_is_flipped_and_the_head_is_left() -> None:
    exchange = Exchange()
    exchange.request(OBJECT)
    first = HEAD + bytes(100)
    changed = exchange.response(first)
    assert changed.startswith(HEAD)
    assert flipped_bits(first, changed) == 1
    assert flipped_bits(bytes(200), exchange.response(bytes(200))) == 1


@pytest.mark.parametrize("cut", range(1, len(HEAD) + 3))
def test_a_head_may_come_in_pieces(cut: int) -> None:
    exchange = Exchange()
    exchange.request(OBJECT)
    whole = HEAD + bytes(50)
    changed = exchange.response(whole[:cut]) + exchange.response(whole[cut:])
    assert changed.startswith(HEAD)
    # A piece that ends behind the head holds a byte of the object, too.
    assert flipped_bits(whole, changed) == (2 if cut > len(HEAD) else 1)


@pytest.mark.parametrize(
    ("request_head", "response_head"),
    [
        (b"GET /bucket?list-type=2&prefix=a%2F HTTP/1.1\r\n\r\n", HEAD),
        (b"GET /bucket/?list-type=2 HTTP/1.1\r\n\r\n", HEAD),
        (b"PUT /bucket/key HTTP/1.1\r\n\r\n", HEAD),
        (OBJECT, b"HTTP/1.1 404 Not Found\r\n\r\n"),
    ],
)
def test_what_is_no_object_passes_as_it_is(request_head: bytes, response_head: bytes) -> None:
    exchange = Exchange()
    exchange.request(request_head)
    whole = response_head + bytes(100)
    assert exchange.response(whole) == whole
    assert exchange.response(bytes(100)) == bytes(100)


def test_each_request_of_a_connection_counts_for_itself() -> None:
    exchange = Exchange()
    exchange.request(OBJECT)
    assert exchange.response(HEAD + bytes(9)) != HEAD + bytes(9)
    exchange.request(b"PUT /bucket/key HTTP/1.1\r\n\r\n")
    exchange.request(b"the body of that request")
    assert exchange.response(HEAD + bytes(9)) == HEAD + bytes(9)
    exchange.request(OBJECT)
    assert exchange.response(HEAD + bytes(9)) != HEAD + bytes(9)


LISTING = b"GET /bucket?list-type=2&prefix=a HTTP/1.1\r\n\r\n"


def response_of(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def test_a_listing_that_was_answered_whole_can_be_had_again() -> None:
    responses: dict[bytes, bytes] = {}
    one, other = Listing(responses), Listing(responses)
    assert one.asked_before(LISTING) is None
    one.responded(response_of(b"first")[:-3])
    assert other.asked_before(LISTING) is None
    one.responded(response_of(b"first")[-3:])
    assert other.asked_before(LISTING) == response_of(b"first")
    other.responded(response_of(b"second"))
    assert one.asked_before(LISTING) == response_of(b"second")


@pytest.mark.parametrize("asked", [OBJECT, b"GET /bucket?list-type=2&prefix=b HTTP/1.1\r\n\r\n"])
def test_what_is_another_request_is_not_answered_as_a_listing(asked: bytes) -> None:
    responses: dict[bytes, bytes] = {}
    listing = Listing(responses)
    listing.asked_before(LISTING)
    listing.responded(response_of(b"first"))
    assert listing.asked_before(asked) is None
    assert listing.asked_before(b"the body of a request") is None


CONTENT = bytes(range(256)) * 1024


class Objects(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def relay_before_objects() -> Iterator[tuple[FaultRelay, HTTPConnection]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Objects) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with FaultRelay(server.server_port) as relay:
            port = int(relay.endpoint_url.rpartition(":")[2])
            client = HTTPConnection("127.0.0.1", port, timeout=30)
            yield relay, client
            client.close()
        server.shutdown()


def test_the_relay_does_what_it_is_told_until_told_otherwise() -> None:
    def get() -> bytes:
        client.request("GET", "/bucket/key")
        return client.getresponse().read()

    with relay_before_objects() as (relay, client):
        assert get() == CONTENT
        relay.set(Fault(corrupt=True))
        assert flipped_bits(CONTENT, get()) >= 1
        relay.set(Fault(corrupt=True, corrupt_suffix=".log"))
        assert get() == CONTENT
        relay.set(Fault(corrupt=True, corrupt_suffix="key"))
        assert flipped_bits(CONTENT, get()) >= 1
        relay.set(Fault(delay_ms=200, bytes_per_s=1024 * 1024))
        began = time.monotonic()
        assert get() == CONTENT
        assert time.monotonic() - began >= 0.2 + len(CONTENT) / 2**20
        relay.set(NO_FAULT)
        assert get() == CONTENT


def test_what_is_cut_off_hangs_and_goes_on_when_it_is_joined() -> None:
    with relay_before_objects() as (relay, client):
        relay.set(Fault(cut=True))
        client.request("GET", "/bucket/key")
        assert client.sock is not None
        ready, _, _ = select.select([client.sock], [], [], 0.5)
        assert not ready
        relay.set(NO_FAULT)
        assert client.getresponse().read() == CONTENT


# -- the readers ---------------------------------------------------------------------------------
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
            done = replaying.wait_until(
                lambda done: min(done.passes, default=0) >= 1, "a pass", 60.0
            )
            assert min(done.records) >= 301


def test_replayers_go_round_and_stop_at_a_wrong_record() -> None:
    with MockCluster() as cluster:
        fill(cluster.bootstrap, "sound", 4, 500, 200)
        arguments = [cluster.bootstrap, "sound", "4", "500", "200", "8"]
        with ReplayerProcess(arguments) as replaying:
            done = replaying.wait_until(
                lambda done: min(done.passes, default=0) >= 2, "two passes", 60.0
            )
            # Strangers to the machine step back, whatever session they are in.
            assert os.getpriority(os.PRIO_PROCESS, replaying.pid) == 19
            group = Path(f"/proc/{replaying.pid}/autogroup")
            assert not group.exists() or group.read_text().endswith(" nice 10\n")
            assert len(done.records) == 8
            assert min(done.records) >= 750  # half of them begin in the middle
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce("wrong", value_of(0, 0, 200), partition=0)
        producer.produce("wrong", value_of(0, 2, 200), partition=0)
        assert producer.flush(30.0) == 0
        with (
            ReplayerProcess([cluster.bootstrap, "wrong", "1", "2", "200", "1"]) as replaying,
            pytest.raises(PartFailed, match="partition 0: offset 1 has another value"),
        ):
            replaying.wait_until(lambda done: False, "a fault", 60.0)


# -- the figures ---------------------------------------------------------------------------------
def measured(
    calm: list[float], hanging: list[float], replaying: list[float], tiered: list[float]
) -> Measured:
    """One sample a round, so that its p99 is itself. The direct way is always 1 ms, but beside
    consumers of Kafka's tiered storage, where it is what is compared with."""
    rounds = len(calm)
    found = Measured(
        replayed_mb_per_s={phase: [50.0] * rounds for phase in REPLAYS},
        longest_turns_ms=[3.0] * rounds,
        cpu_longest_turns_ms=[2.0] * rounds,
    )
    for phase, values in ((CALM, calm), (HANGING, hanging), (REPLAYING, replaying)):
        for value in values:
            found.add(phase, {DIRECT: [1.0], FETCHPROXY: [value]})
    for value in tiered:
        found.add(TIERED, {DIRECT: [value], FETCHPROXY: [99.0]})
        found.add(REPLAYING_S3, {DIRECT: [1.0], FETCHPROXY: [7.0]})
    return found


def test_ratios_are_taken_within_a_round() -> None:
    found = measured([1.0, 2.0, 4.0], [1.0, 2.2, 8.0], [1.5, 2.0, 4.0], [2.0, 1.0, 4.0])
    line, replaying = rows_of(found)[:2]
    assert (line.name, line.value, line.min, line.max) == (TAIL_IN_OUTAGE.words, 1.1, 1.0, 2.0)
    assert replaying.name == TAIL_BESIDE_REPLAY.words
    assert (replaying.value, replaying.min, replaying.max) == (1.0, 0.75, 2.0)
    assert line.met is True
    assert replaying.met is True


def test_the_two_lines_are_met_each_by_itself() -> None:
    line, replaying = rows_of(measured([1.0], [1.0], [1.6], [1.5]))[:2]
    assert (line.met, replaying.met) == (True, False)
    line, replaying = rows_of(measured([1.0], [1.2], [9.0], [9.0]))[:2]
    assert (line.met, replaying.met) == (False, True)


def test_both_ways_of_replay_are_told_with_their_speed() -> None:
    found = measured([1.0], [1.0], [3.0], [4.0])
    found.replayed_mb_per_s[TIERED] = [25.0]
    rows = {each.name: each for each in rows_of(found)}
    assert rows[f"what they replay {REPLAYING}"].value == 50.0
    assert rows[f"what they replay {TIERED}"].value == 25.0
    assert rows[f"the same p99: {REPLAYING_S3}"].value == 7.0 / 4.0
    assert rows[f"tail p99 {TIERED}, {DIRECT}"].value == 4.0


def test_a_tail_that_stands_still_in_a_fault_is_shown_as_missed() -> None:
    found = measured([1.0], [1.0], [1.0], [1.0])
    calm = {DIRECT: [1.0], FETCHPROXY: [1.0, 2.0]}
    found.recoveries["killed"] = Recovery(calm, lasted_s=5.0, back_s=0.5)
    found.recoveries["paused"] = Recovery({**calm, FETCHPROXY: [1.0, 1500.0]}, 5.0, 2.5)
    rows = {each.name: each for each in rows_of(found)}
    assert rows["longest wait while the store is killed"].met is True
    assert rows["longest wait while the store is paused"].met is False
    assert rows["archived reads back after the store was paused"].value == 2.5


@pytest.mark.kafka
@pytest.mark.slow
def test_the_benchmark_runs(find_part: FindPart[Path], tmp_path: Path) -> None:
    find_part("kafka", kafka_jars)
    find_part("tiered storage", lambda: local_tiered_storage_jars(KAFKA_VERSION))
    find_part("s3", versitygw_executable)
    results = tmp_path / "outage.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.outage", "--quick", "--results", str(results)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {each["name"]: each for each in json.loads(results.read_text())["rows"]}
    for name in ("killed", "paused", "slow", "corrupt"):
        assert rows[f"longest wait while the store is {name}"]["value"] > 0
    assert rows["chunks found corrupt, and not given to anyone"]["value"] > 0
    assert rows["longest turn of the proxy's event loop, within a minute"]["value"] > 0
    assert rows[TAIL_BESIDE_REPLAY.words]["value"] > 0
    for phase in REPLAYS:
        assert rows[f"what they replay {phase}"]["value"] > 0
    # A pass and more after each of the four faults, over 64 MiB in records of 1 KiB.
    checked = rows["archived records read during the faults and after, each checked"]["value"]
    assert checked > 4 * 65_536
