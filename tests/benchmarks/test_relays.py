"""Relays between the processes that are measured: what they pass, delay, count and break.

Range reads before the relay of the store read every byte once.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.bare_relay import BareRelay
from benchmarks.fault_relay import NO_FAULT, Exchange, Fault, FaultRelay, Listing
from benchmarks.filling import Shape, fill
from benchmarks.range_reads import parts_of, read_all
from benchmarks.raw_fetch import FetchFailed, RawConnection
from benchmarks.recorded_broker import RecordedBroker
from benchmarks.store_relay import Passed, StoreRelay, longest_chain
from lab.mock_cluster import MockCluster

STALLED_S = 20.0
CONTENT = bytes(range(256)) * 1000


# -- the bare relay ------------------------------------------------------------------------------
def received(connection: socket.socket, size: int) -> bytes:
    received_bytes = b""
    while len(received_bytes) < size and (part := connection.recv(size - len(received_bytes))):
        received_bytes += part
    return received_bytes


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_bytes_pass_both_ways_and_the_end_too() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as broker:
        broker.settimeout(STALLED_S)
        with BareRelay(broker.getsockname()[1]) as relay:
            broker.accept()[0].close()  # of the look whether it listens
            with socket.create_connection(("127.0.0.1", relay.port), STALLED_S) as client:
                upstream = broker.accept()[0]
                upstream.settimeout(STALLED_S)
                question, response = b"q" * 1000, b"a" * 3_000_000
                client.sendall(question)
                assert received(upstream, len(question)) == question
                client.settimeout(STALLED_S)
                upstream.setblocking(False)
                sent_bytes = upstream.send(response)
                assert received(client, sent_bytes) == response[:sent_bytes]
                upstream.close()
                assert client.recv(1) == b""


def test_a_client_of_a_broker_that_is_gone_is_let_go() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    with (
        BareRelay(port) as relay,
        socket.create_connection(("127.0.0.1", relay.port), STALLED_S) as client,
    ):
        assert ended(client)


def test_a_broker_tells_clients_the_port_of_the_relay() -> None:
    relay = BareRelay()
    settings = relay.told_by_kafka()
    assert f"RELAYED://127.0.0.1:{relay.upstream_port}" in settings["listeners"].split(",")
    assert f"RELAYED://127.0.0.1:{relay.port}" in settings["advertised.listeners"].split(",")
    assert relay.port != relay.upstream_port


# -- a store with faults -------------------------------------------------------------------------
OBJECT = b"GET /bucket/orders-1/0/00.log HTTP/1.1\r\nhost: x\r\n\r\n"
HEAD = b"HTTP/1.1 206 Partial Content\r\ncontent-length: 300\r\n\r\n"


def flipped_bits(before: bytes, after: bytes) -> int:
    assert len(before) == len(after)
    return sum((a ^ b).bit_count() for a, b in zip(before, after, strict=True))


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


@pytest.mark.parametrize(
    "other_request", [OBJECT, b"GET /bucket?list-type=2&prefix=b HTTP/1.1\r\n\r\n"]
)
def test_what_is_another_request_is_not_answered_as_a_listing(other_request: bytes) -> None:
    responses: dict[bytes, bytes] = {}
    listing = Listing(responses)
    listing.asked_before(LISTING)
    listing.responded(response_of(b"first"))
    assert listing.asked_before(other_request) is None
    assert listing.asked_before(b"the body of a request") is None


class Store(BaseHTTPRequestHandler):
    """Its objects are CONTENT, but `missing`."""

    protocol_version = "HTTP/1.1"
    ranges: list[str] = []  # noqa: RUF012  # a handler is made for each connection

    def do_GET(self) -> None:
        body, status = CONTENT, 200
        if range_header := self.headers["Range"]:
            self.ranges.append(range_header.removeprefix("bytes="))
            first, last = (int(each) for each in self.ranges[-1].split("-"))
            body, status = CONTENT[first : last + 1], 206
        self.send_response(404 if "missing" in self.path else status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@contextmanager
def store() -> Iterator[int]:
    Store.ranges = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def faulty_store() -> Iterator[tuple[FaultRelay, HTTPConnection]]:
    with store() as behind, FaultRelay(behind) as relay:
        port = int(relay.endpoint_url.rpartition(":")[2])
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as client:
            yield relay, client


def test_the_relay_does_what_it_is_told_until_told_otherwise() -> None:
    def get() -> bytes:
        client.request("GET", "/bucket/key")
        return client.getresponse().read()

    with faulty_store() as (relay, client):
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
    with faulty_store() as (relay, client):
        relay.set(Fault(cut=True))
        client.request("GET", "/bucket/key")
        assert client.sock is not None
        ready, _, _ = select.select([client.sock], [], [], 0.5)
        assert not ready
        relay.set(NO_FAULT)
        assert client.getresponse().read() == CONTENT


# -- a store far away ----------------------------------------------------------------------------
def test_round_trips_are_the_longest_chain() -> None:
    assert longest_chain([]) == 0
    assert longest_chain([Passed(0, 1, 1), Passed(0.5, 2, 1), Passed(0.9, 3, 1)]) == 1
    # The third waited for the first, the fourth for the second or the third.
    chain = [Passed(0, 1, 1), Passed(0.5, 2, 1), Passed(1, 1.5, 1), Passed(2, 3, 1)]
    assert longest_chain(chain) == 3
    assert longest_chain(list(reversed(chain))) == 3


def test_the_relay_delays_and_counts() -> None:
    with store() as port, StoreRelay(port, latency_ms=30) as relay:
        objects = [(f"{relay.endpoint_url}/object", len(CONTENT))]
        parts = parts_of(objects, 100_000)
        assert read_all(parts, 1, 100_000) == len(CONTENT)
        passed = relay.take()
        assert relay.take() == []
    assert len(passed) == len(Store.ranges) == 3
    assert all(each.ended - each.began >= 0.03 for each in passed)
    assert longest_chain(passed) == 3
    assert sum(each.size_bytes for each in passed) > len(CONTENT)
    assert sum(each.size_bytes for each in passed) < len(CONTENT) + 3 * 500  # the heads


def test_requests_at_once_are_one_round_trip() -> None:
    with store() as port, StoreRelay(port, latency_ms=5_000) as relay:
        parts = parts_of([(f"{relay.endpoint_url}/object", len(CONTENT))], 100_000)
        assert read_all(parts, 3, 100_000) == len(CONTENT)
        assert longest_chain(relay.take()) == 1
    assert sorted(Store.ranges) == ["0-99999", "100000-199999", "200000-255999"]


def test_a_store_that_refuses_is_an_error() -> None:
    with store() as port, pytest.raises(OSError, match="404"):
        read_all([(f"http://127.0.0.1:{port}/missing", 0, 10)], 2, 10)


def test_files_are_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "object"
    file.write_bytes(CONTENT)
    parts = parts_of([(str(file), len(CONTENT))], 70_000)
    assert [end - start for _, start, end in parts] == [70_000, 70_000, 70_000, 46_000]
    assert read_all(parts, 4, 70_000) == len(CONTENT)
    with pytest.raises(OSError, match="ends at byte"):
        read_all([(str(file), 0, len(CONTENT) + 1)], 1, len(CONTENT) + 1)


# -- the broker that repeats ---------------------------------------------------------------------
def test_fetches_are_answered_from_memory_and_all_else_is_relayed(tmp_path: Path) -> None:
    with MockCluster() as cluster:
        written = fill(cluster.bootstrap, "orders", 1, 2_000, Shape(1024, "none"))
        with (
            RecordedBroker(int(cluster.bootstrap.rpartition(":")[2])) as broker,
            RawConnection(broker.bootstrap) as client,
        ):
            first = client.fetch("orders", [(0, 0)])
            cluster.stop()
            for _ in range(3):
                assert client.fetch("orders", [(0, 0)]) == first
            with pytest.raises((FetchFailed, OSError)):
                client.fetch("orders", [(0, 1)])
    assert first.next_offsets[0] <= written[0]
    assert first.sizes[0] > 100_000
