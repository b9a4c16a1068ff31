"""Peers that break the protocol: one clear log line for each, and no effect on others."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from proxy_process import ProxyProcess, wait_for

from fetchproxy.serving.session import CLOSE_DELAY_S
from lab.mock_cluster import MockCluster


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder: Path = tmp_path_factory.mktemp("bad-input")
    settings: dict[str, object] = {
        "limits.serving.half_frame_max_ms": 6_500,
        "gateway.idle_max_ms": 9_500,
        "gateway.connections_max": 8,
        "gateway.frame_bytes_max": 1_000_000,
    }
    (folder / "store").mkdir()
    with (
        MockCluster() as cluster,
        ProxyProcess(
            cluster.bootstrap, (folder / "store").as_uri(), folder, settings=settings
        ) as process,
    ):
        yield process
        assert process.running
        assert not process.logged("session_crashed")


def connect(proxy: ProxyProcess, last_octet: int = 1) -> socket.socket:
    """Use a separate source address: the proxy does not log a repeated fault of one address."""
    peer = socket.create_connection(
        ("127.0.0.1", proxy.port), source_address=(f"127.0.0.{last_octet}", 0)
    )
    peer.settimeout(60)
    return peer


def request(api_key: int, version: int, body: bytes = b"", correlation: int = 7) -> bytes:
    head = struct.pack(">hhih", api_key, version, correlation, 2) + b"me"
    return struct.pack(">i", len(head) + len(body)) + head + body


def read_frame(peer: socket.socket) -> bytes:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = peer.recv(count - len(data))
            assert more, f"closed after {len(data)} of {count} bytes"
            data += more
        return data

    return exactly(struct.unpack(">i", exactly(4))[0])


def is_closed(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionResetError:
        return True


def still_serves(proxy: ProxyProcess) -> bool:
    with connect(proxy) as peer:
        peer.sendall(request(18, 0))
        return read_frame(peer)[:4] == struct.pack(">i", 7)


MAX = 0x7FFFFFFF
BROKEN = {
    "garbage": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "two gibibytes": struct.pack(">i", MAX) + b"\0" * 100,
    "PROXY protocol 1": b"PROXY TCP4 10.0.0.1 10.0.0.2 5 9092\r\n",
    "PROXY protocol 2": b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12),
    "negative size": struct.pack(">i", -1) + b"\0" * 100,
    "tiny size": struct.pack(">i", 3) + b"\0" * 100,
    "beyond frame_bytes_max": struct.pack(">i", 1_000_001) + b"\0" * 100,
    "unknown API key": request(9999, 0),
    "negative API key": request(-5, 0),
    "Fetch v3": request(1, 3, b"\0" * 40),
    "Fetch v19": request(1, 19, b"\0" * 40),
    "truncated Fetch": request(1, 11, b"\xff\xff\xff\xff\0\0"),
    "Fetch with an absurd count": request(1, 4, struct.pack(">iiiibi", -1, 0, 0, 9, 0, MAX)),
    "client id beyond the frame": struct.pack(">ihhih", 10, 3, 0, 1, 500),
    "truncated ListOffsets": request(2, 1, b"\xff\xff"),
}


SAYS = {
    "garbage": "the client speaks HTTP",
    "PROXY protocol 1": "the client speaks the PROXY protocol",
    "PROXY protocol 2": "the client speaks the PROXY protocol",
    "beyond frame_bytes_max": "PRODUCE request of 1000001 bytes is larger than gateway.frame_bytes",
}


HINTS = {
    "garbage": "console.listen",
    "PROXY protocol 1": "gateway.proxy_protocol_from",
    "PROXY protocol 2": "gateway.proxy_protocol_from",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_peer_is_closed_with_one_line(proxy: ProxyProcess, name: str) -> None:
    before = len(proxy.logged("client_connection_closed"))
    address = 10 + list(BROKEN).index(name)
    with connect(proxy) as good, connect(proxy, address) as bad:
        good.sendall(request(18, 0))
        read_frame(good)
        sent_at = time.monotonic()
        bad.sendall(BROKEN[name])
        good.sendall(request(18, 0, correlation=8))
        assert read_frame(good)[:4] == struct.pack(">i", 8)
        assert is_closed(bad)
        assert time.monotonic() - sent_at >= CLOSE_DELAY_S, "it could try again at once"
    wait_for("a log line", lambda: len(proxy.logged("client_connection_closed")) > before)
    lines = proxy.logged("client_connection_closed")[before:]
    assert len(lines) == 1, lines
    assert SAYS.get(name, "") in lines[0]["error"]
    assert HINTS.get(name, "") in lines[0].get("hint", "")
    assert lines[0]["side"] == "client"


def test_half_a_frame_and_silence(proxy: ProxyProcess) -> None:
    before = len(proxy.logged("client_connection_closed"))
    with connect(proxy) as peer:
        peer.sendall(request(18, 0)[:9])
        assert is_closed(peer)
    reasons = [x["reason"] for x in proxy.logged("client_connection_closed")[before:]]
    assert reasons == ["half_frame_max_ms"]
    assert still_serves(proxy)


def test_a_silent_client_is_closed_as_idle(proxy: ProxyProcess) -> None:
    before = len(proxy.logged("client_connection_closed"))
    with connect(proxy) as peer:
        assert is_closed(peer)
    reasons = [x["reason"] for x in proxy.logged("client_connection_closed")[before:]]
    assert reasons == ["idle_max_ms"]


def test_a_frame_that_comes_byte_by_byte_is_served(proxy: ProxyProcess) -> None:
    with connect(proxy) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request(18, 0):
            peer.send(bytes([byte]))
        assert read_frame(peer)[:4] == struct.pack(">i", 7)


def test_one_connection_more_than_connections_max(proxy: ProxyProcess) -> None:
    wait_for("a free gateway", lambda: proxy.metric("fetchproxy_connections") == 0)
    peers = [connect(proxy) for _ in range(8)]
    try:
        for peer in peers:
            peer.sendall(request(18, 0))
            read_frame(peer)
        with connect(proxy) as one_more:
            assert is_closed(one_more)
        assert proxy.metric("fetchproxy_limits_reached_total", 'connections_max"') >= 1
        for peer in peers:
            peer.sendall(request(18, 0))
            read_frame(peer)
    finally:
        for peer in peers:
            peer.close()


def test_an_api_versions_request_from_the_future_gets_the_kip_511_answer(
    proxy: ProxyProcess,
) -> None:
    with connect(proxy) as peer:
        peer.sendall(request(18, 99, b"\0"))
        response = read_frame(peer)
        correlation, error, count, key, _low, high = struct.unpack(">ihihhh", response)
        assert (correlation, error, count, key, high) == (7, 35, 1, 18, 5)


def test_sasl_handshake_v0_is_refused_clearly(proxy: ProxyProcess) -> None:
    with connect(proxy) as peer:
        peer.sendall(request(17, 0, b"\0\5PLAIN"))
        assert struct.unpack(">ihi", read_frame(peer)) == (7, 35, 0)
