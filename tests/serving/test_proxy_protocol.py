"""Connections through a load balancer count as the client's that its PROXY header names."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from proxy_process import ProxyProcess, wait_for
from test_bad_input import is_closed, read_frame, request
from test_proxy_header import SIGNATURE, binary

from lab.mock_cluster import MockCluster

API_VERSIONS = 18
BALANCER, STRANGER = "127.0.0.2", "127.0.0.9"
SETTINGS: dict[str, object] = {
    "gateway.proxy_protocol_from": f"{BALANCER},127.0.1.0/24",
    "gateway.connections_max": 12,
    "gateway.connections_per_ip_max": 2,
    "limits.serving.proxy_header_max_ms": 4_000,
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder: Path = tmp_path_factory.mktemp("proxy-protocol")
    (folder / "store").mkdir()
    store = (folder / "store").as_uri()
    with (
        MockCluster() as cluster,
        ProxyProcess(cluster.bootstrap, store, folder, settings=SETTINGS) as process,
    ):
        yield process
        assert process.running
        assert not process.logged("session_crashed")


@contextmanager
def connected(proxy: ProxyProcess, source: str = BALANCER) -> Iterator[socket.socket]:
    with socket.create_connection(
        ("127.0.0.1", proxy.port), source_address=(source, 0)
    ) as peer:  # fmt: skip
        peer.settimeout(60)
        yield peer


def header(client: str, port: int = 4711) -> bytes:
    addresses = socket.inet_aton(client) + socket.inet_aton("127.0.0.1")
    return binary(1, 0x11, addresses + struct.pack(">HH", port, 9192))


def responds(peer: socket.socket) -> bool:
    return read_frame(peer)[:4] == struct.pack(">i", 7)


ASK = request(API_VERSIONS, 0)
BEGINNINGS = {
    "version 2": header("192.0.2.1"),
    "version 1": b"PROXY TCP4 192.0.2.1 127.0.0.1 4711 9192\r\n",
    "fields of its own": binary(1, 0x11, header("192.0.2.1")[16:] + b"\x04\x01\0" + bytes(256)),
    "LOCAL": binary(0, 0, b""),
}


@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_client_behind_a_balancer_is_served(proxy: ProxyProcess, name: str) -> None:
    with connected(proxy) as peer:
        peer.sendall(BEGINNINGS[name] + ASK)  # in one packet, as a balancer may send it
        assert responds(peer)
        peer.sendall(ASK)
        assert responds(peer)


def test_a_header_may_come_byte_by_byte(proxy: ProxyProcess) -> None:
    with connected(proxy) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in header("192.0.2.2") + ASK:
            peer.send(bytes([byte]))
        assert responds(peer)


def test_log_and_limits_are_by_the_clients_own_address(proxy: ProxyProcess) -> None:
    with ExitStack() as stack:

        def client(address: str) -> socket.socket:
            peer = stack.enter_context(connected(proxy))
            peer.sendall(header(address) + ASK)
            return peer

        for address in ("192.0.2.11", "192.0.2.11", "192.0.2.12"):
            assert responds(client(address))
        assert is_closed(client("192.0.2.11")), "it has as many as connections_per_ip_max"
        wait_for("log", lambda: closed(proxy, "connections_per_ip_max"))
        assert [e["client"] for e in closed(proxy, "connections_per_ip_max")] == ["192.0.2.11:4711"]
        assert responds(client("192.0.2.12")), "the balancer's address has no limit of its own"


def closed(proxy: ProxyProcess, reason: str) -> list[dict[str, str]]:
    return [e for e in proxy.logged("client_connection_closed") if e["reason"] == reason]


def test_a_stranger_needs_no_header_and_may_not_send_one(proxy: ProxyProcess) -> None:
    with connected(proxy, STRANGER) as peer:
        peer.sendall(ASK)
        assert responds(peer)
    with connected(proxy, STRANGER) as peer:
        peer.sendall(header("192.0.2.3") + ASK)
        assert is_closed(peer)
    wait_for("log", lambda: closed(proxy, "wire_error"))
    (line,) = closed(proxy, "wire_error")
    assert line["client"].startswith(STRANGER), "a stranger has claimed an address"
    assert line["error"] == "the client speaks the PROXY protocol"
    assert "gateway.proxy_protocol_from" in line["hint"]


@pytest.mark.parametrize(
    ("number", "says", "first_bytes"),
    [
        (1, "the client speaks Kafka's protocol", ASK),
        (2, "the client speaks HTTP", b"GET /readyz HTTP/1.1\r\n\r\n"),
        (3, "the client speaks TLS", b"\x16\x03\x01\x02\0\1\0\1\xfc" + bytes(300)),
        (4, "version 3 and command 1", SIGNATURE + b"\x31\x11\0\x0c" + bytes(12)),
    ],
)
def test_a_balancer_without_a_header_is_named(
    proxy: ProxyProcess, number: int, says: str, first_bytes: bytes
) -> None:
    balancer = f"127.0.1.{number}"
    with connected(proxy, balancer) as peer:
        peer.sendall(first_bytes)
        assert is_closed(peer)

    def lines() -> list[dict[str, str]]:
        return [e for e in closed(proxy, "bad_proxy_header") if balancer in e["client"]]

    wait_for("log", lines)
    (line,) = lines()
    assert says in line["error"]
    assert "send-proxy-v2" in line["hint"]


def test_a_header_that_never_ends_is_not_waited_for(proxy: ProxyProcess) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(proxy)) for _ in range(3)]
        slow[0].sendall(SIGNATURE)
        slow[1].sendall(b"P")
        wait_for("three connections", lambda: proxy.metric("fetchproxy_connections") >= 3)
        assert all(is_closed(peer) for peer in slow)
    assert proxy.metric("fetchproxy_limits_reached_total", 'proxy_header_max_ms"') == 3
    assert len(closed(proxy, "proxy_header_max_ms")) == 1


def test_balancers_that_only_connect_are_not_logged_and_free_their_place(
    proxy: ProxyProcess,
) -> None:
    before = proxy.log_text()
    for _ in range(5):
        with connected(proxy):
            pass
        wait_for("no connection", lambda: proxy.metric("fetchproxy_connections") == 0)
    assert proxy.log_text() == before


def test_connections_without_a_header_yet_count(proxy: ProxyProcess) -> None:
    with ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(connected(proxy))
        wait_for("all", lambda: proxy.metric("fetchproxy_connections") == 12)
        with connected(proxy) as one_more:
            assert is_closed(one_more)
    assert closed(proxy, "connections_max")
