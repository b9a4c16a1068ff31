"""Requests at the limit of held bytes are handled, larger ones refused by their first bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from fetchproxy_protocol.headers import REQUEST_HEADER_BYTES_MAX
from fetchproxy_protocol.primitives import encode_uvarint
from proxy_process import ProxyProcess, wait_for
from test_bad_input import connect, is_closed, read_frame, request

from lab.mock_cluster import MockCluster

HELD_BYTES = 4_096
API_VERSIONS, FETCH, METADATA = 18, 1, 3


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder: Path = tmp_path_factory.mktemp("request-limits")
    settings: dict[str, object] = {"limits.serving.held_request_bytes_max": HELD_BYTES}
    (folder / "store").mkdir()
    store = (folder / "store").as_uri()
    with (
        MockCluster() as cluster,
        ProxyProcess(cluster.bootstrap, store, folder, settings=settings) as process,
    ):
        yield process
        assert not process.logged("session_crashed")


def fetch_of(size: int) -> bytes:
    """A v4 Fetch of `size` bytes after the size prefix; its one topic has a name that long."""
    head = struct.pack(">hhih", FETCH, 4, 7, -1)
    limits = struct.pack(">iiiibi", -1, 0, 0, 1000, 0, 1)
    rest = struct.pack(">iiqi", 1, 0, 0, 1000)
    name = b"n" * (size - len(head) - len(limits) - 2 - len(rest))
    body = head + limits + struct.pack(">h", len(name)) + name + rest
    assert len(body) == size
    return struct.pack(">i", size) + body


def refusal(proxy: ProxyProcess, first_bytes: bytes, last_octet: int) -> str:
    before = len(proxy.logged("client_connection_closed"))
    with connect(proxy, last_octet) as peer:
        peer.sendall(first_bytes)
        assert is_closed(peer)
    wait_for("a log line", lambda: len(proxy.logged("client_connection_closed")) > before)
    return str(proxy.logged("client_connection_closed")[before]["error"])


def test_a_request_of_just_the_limit_is_handled(proxy: ProxyProcess) -> None:
    with connect(proxy, 20) as peer:
        peer.sendall(fetch_of(HELD_BYTES))
        assert read_frame(peer)[:4] == struct.pack(">i", 7)


def test_one_byte_more_is_refused_before_it_has_come(proxy: ProxyProcess) -> None:
    error = refusal(proxy, fetch_of(HELD_BYTES + 1)[:20], 21)
    assert "FETCH request of 4097 bytes" in error
    assert "held_request_bytes_max" in error
    assert proxy.metric("fetchproxy_limits_reached_total", 'held_request_bytes_max"') > 0


def test_what_passes_may_be_larger(proxy: ProxyProcess) -> None:
    names = [f"topic-{number}".encode() for number in range(1000)]
    body = struct.pack(">i", len(names)) + b"".join(struct.pack(">h", len(n)) + n for n in names)
    with connect(proxy, 22) as peer:
        peer.sendall(request(METADATA, 1, body))
        assert len(body) > HELD_BYTES
        assert read_frame(peer)[:4] == struct.pack(">i", 7)


def test_an_unknown_api_is_refused_by_its_first_bytes(proxy: ProxyProcess) -> None:
    error = refusal(proxy, struct.pack(">ihhih", 50_000_000, 9999, 0, 1, -1), 23)
    assert "API key 9999" in error


@pytest.mark.parametrize(("tagged", "last_octet"), [(1, 24), (65, 25)])
def test_a_header_that_does_not_end_is_refused(
    proxy: ProxyProcess, tagged: int, last_octet: int
) -> None:
    """One tagged field of 50 MB, or more tagged fields than any header has."""
    fields = encode_uvarint(tagged) + b"\x00" + encode_uvarint(50_000_000)
    head = struct.pack(">ihhih", 60_000_000, METADATA, 12, 1, -1) + fields
    error = refusal(proxy, head + bytes(REQUEST_HEADER_BYTES_MAX), last_octet)
    assert ("tagged fields" if tagged > 1 else str(REQUEST_HEADER_BYTES_MAX)) in error


def test_a_fetch_that_is_half_there_keeps_nobody_waiting(proxy: ProxyProcess) -> None:
    whole = fetch_of(HELD_BYTES)
    with connect(proxy, 26) as slow, connect(proxy, 27) as other:
        for at in range(0, HELD_BYTES, 64):
            slow.sendall(whole[at : at + 64])
            if not at % 512:
                ask(other, at)
        slow.sendall(whole[HELD_BYTES:])
        assert read_frame(slow)[:4] == struct.pack(">i", 7)


def test_who_ends_its_sending_gets_all_answers(proxy: ProxyProcess) -> None:
    """It sends more requests than the proxy handles in one turn of the loop."""
    with connect(proxy, 28) as peer:
        peer.sendall(b"".join(request(API_VERSIONS, 0, correlation=n) for n in range(50)))
        peer.shutdown(socket.SHUT_WR)
        for number in range(50):
            assert read_frame(peer)[:4] == struct.pack(">i", number)
        assert is_closed(peer)


def ask(peer: socket.socket, correlation: int) -> None:
    peer.sendall(request(API_VERSIONS, 0, correlation=correlation))
    assert read_frame(peer)[:4] == struct.pack(">i", correlation)
