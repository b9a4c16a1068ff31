"""Clients that never shake hands, speak something else or are too many: closed, counted, said."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from certificates import Authority
from proxy_process import ProxyProcess, wait_for
from raw_tls import API_VERSIONS, responses, serves, tls_connection
from test_bad_input import is_closed, request

from lab.mock_cluster import MockCluster

CONNECTIONS_MAX = 8
HANDSHAKES_MAX = 3
SETTINGS: dict[str, object] = {
    "limits.serving.tls_handshake_max_ms": 7_000,
    "limits.serving.tls_handshakes_max": HANDSHAKES_MAX,
    "limits.serving.half_frame_max_ms": 700,
    "gateway.connections_max": CONNECTIONS_MAX,
}


@pytest.fixture(scope="module")
def proxy(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("tls-limits")
    (folder / "store").mkdir()
    settings = {**SETTINGS, "gateway.tls_certificate_file": authority.issue("limited")}
    with (
        MockCluster() as cluster,
        ProxyProcess(
            cluster.bootstrap, (folder / "store").as_uri(), folder, settings=settings
        ) as process,
    ):
        yield process
        assert process.running
        assert not process.logged("session_crashed")


@pytest.fixture(autouse=True)
def _nobody_is_left(proxy: ProxyProcess) -> Iterator[None]:
    yield
    wait_for("no connections", lambda: proxy.metric("fetchproxy_connections") == 0)


def plain(proxy: ProxyProcess) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", proxy.port))
    peer.settimeout(60)
    return peer


def failures(proxy: ProxyProcess, reason: str) -> float:
    return proxy.metric("fetchproxy_tls_handshakes_failed_total", f'"{reason}"')


def test_a_client_that_never_shakes_hands_is_closed(
    proxy: ProxyProcess, authority: Authority
) -> None:
    before = failures(proxy, "timeout")
    with plain(proxy) as silent, plain(proxy) as begun:
        begun.sendall(b"\x16\x03\x01\x02")  # the beginning of a record, and no more
        assert proxy.metric("fetchproxy_connections") == 2
        assert serves(proxy, authority)
        assert is_closed(silent)
        assert is_closed(begun)
    assert failures(proxy, "timeout") == before + 2
    assert proxy.metric("fetchproxy_limits_reached_total", 'tls_handshake_max_ms"') >= 2
    handshake_failures = proxy.logged("tls_handshake_failed")
    assert any(entry["reason"] == "timeout" for entry in handshake_failures)


def test_connections_in_the_handshake_count(proxy: ProxyProcess, authority: Authority) -> None:
    silent = [plain(proxy) for _ in range(CONNECTIONS_MAX)]
    wait_for("all accepted", lambda: proxy.metric("fetchproxy_connections") == CONNECTIONS_MAX)
    with plain(proxy) as one_more:
        assert is_closed(one_more)
    # It did not wait for the end of the others' handshakes.
    assert proxy.metric("fetchproxy_connections") == CONNECTIONS_MAX
    assert proxy.metric("fetchproxy_limits_reached_total", 'connections_max"') >= 1
    for peer in silent:
        assert is_closed(peer)
        peer.close()
    assert serves(proxy, authority), "their places are free again"


class Handshake:
    """A client that takes its time: its handshake has begun, and ends when it is told to."""

    def __init__(self, proxy: ProxyProcess, authority: Authority) -> None:
        context = ssl.create_default_context(cafile=authority.file)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.peer = plain(proxy)
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        self.peer.sendall(self._outgoing.read())
        self._incoming.write(self.peer.recv(65_536))  # the server's part is done

    def end(self) -> bytes:
        """The answer to a request, as it came."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._incoming.write(self.peer.recv(65_536))
        self._tls.write(request(API_VERSIONS, 0, correlation=11))
        self.peer.sendall(self._outgoing.read())
        return self.peer.recv(65_536)


def test_the_oldest_of_too_many_handshakes_gives_way(
    proxy: ProxyProcess, authority: Authority
) -> None:
    def reached() -> float:
        return proxy.metric("fetchproxy_limits_reached_total", 'tls_handshakes_max"')

    before, failed = reached(), failures(proxy, "too_many")
    silent = plain(proxy)  # it has not begun, and takes no place
    under_way = [Handshake(proxy, authority) for _ in range(HANDSHAKES_MAX)]
    assert reached() == before
    newest = Handshake(proxy, authority)
    assert is_closed(under_way[0].peer)
    assert proxy.metric("fetchproxy_connections") == HANDSHAKES_MAX + 1
    assert reached() == before + 1
    assert failures(proxy, "too_many") == failed + 1
    for handshake in (*under_way[1:], newest):
        assert handshake.end()
    assert serves(proxy, authority), "what has ended no longer counts"
    assert reached() == before + 1
    for peer in (silent, newest.peer, *(handshake.peer for handshake in under_way)):
        peer.close()


def test_those_through_the_handshake_count_as_well(
    proxy: ProxyProcess, authority: Authority
) -> None:
    peers = [tls_connection(proxy, authority) for _ in range(CONNECTIONS_MAX)]
    assert all(responses(peer) for peer in peers)
    with pytest.raises((ssl.SSLError, ConnectionError)):  # closed or reset, as it comes
        tls_connection(proxy, authority)
    for peer in peers:
        peer.close()


@pytest.mark.parametrize(
    "first", [request(API_VERSIONS, 3), b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64], ids=str
)
def test_a_client_without_tls_is_closed(
    proxy: ProxyProcess, authority: Authority, first: bytes
) -> None:
    before = failures(proxy, "plaintext")
    with plain(proxy) as peer:
        peer.sendall(first)
        assert is_closed(peer)
    assert failures(proxy, "plaintext") == before + 1
    assert "plaintext" in {entry["reason"] for entry in proxy.logged("tls_handshake_failed")}
    assert serves(proxy, authority)


def test_a_half_frame_in_tls(proxy: ProxyProcess, authority: Authority) -> None:
    with tls_connection(proxy, authority) as peer:
        assert responses(peer)
        peer.sendall(request(API_VERSIONS, 0)[:9])
        assert is_closed(peer)
    assert proxy.metric("fetchproxy_limits_reached_total", 'half_frame_max_ms"') >= 1


def test_garbage_in_tls(proxy: ProxyProcess, authority: Authority) -> None:
    before = proxy.metric("fetchproxy_wire_errors_total")
    with tls_connection(proxy, authority) as peer:
        peer.sendall(struct.pack(">i", 0x7FFFFFFF) * 10_000)
        assert is_closed(peer)
    assert proxy.metric("fetchproxy_wire_errors_total") == before + 1, "once, though TLS reads on"


def test_a_request_that_comes_with_the_end_of_the_handshake(
    proxy: ProxyProcess, authority: Authority
) -> None:
    """One TCP segment with the client's Finished and its first request."""
    context = ssl.create_default_context(cafile=authority.file)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with plain(proxy) as peer:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                peer.sendall(outgoing.read())
                incoming.write(peer.recv(65_536))
        tls.write(request(API_VERSIONS, 0, correlation=4711) * 3)
        peer.sendall(outgoing.read())
        plaintext = b""
        while plaintext.count(struct.pack(">i", 4711)) < 3:
            try:
                plaintext += tls.read(65_536)
            except ssl.SSLWantReadError:
                incoming.write(peer.recv(65_536))


def test_many_broken_handshakes_leave_nothing(proxy: ProxyProcess, authority: Authority) -> None:
    def resident() -> int:
        with open(f"/proc/{proxy.pid}/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    def break_some(count: int) -> None:
        for number in range(count):
            with plain(proxy) as peer:
                peer.sendall((b"\x16\x03\x01\x00\x20" + bytes(32), b"\x00" * 40)[number % 2])
                while not is_closed(peer):
                    pass  # an alert comes first

    break_some(200)
    before = resident()
    break_some(600)
    assert resident() - before < 8 << 20, "600 times 256 KiB of buffers would be 150 MiB"
    assert serves(proxy, authority)


def test_a_tls_client_on_a_plaintext_listener(authority: Authority, tmp_path: Path) -> None:
    """Which listens at an address that only looks as if others could dial it."""
    (tmp_path / "store").mkdir()
    with MockCluster() as cluster, ExitStack() as stack:
        process = ProxyProcess(cluster.bootstrap, (tmp_path / "store").as_uri(), tmp_path)
        command = process._process.command
        listeners = [f"127.0.0.1:{port}" for port in (process.port, process.console_port)]
        command[:] = [w.replace("127.0.0.1", "127.1") if w in listeners else w for w in command]
        stack.enter_context(process)
        warned = {entry["listener"] for entry in process.logged("plaintext_beyond_loopback")}
        assert warned == {"gateway", "console"}
        with pytest.raises((ssl.SSLError, ConnectionError)):  # closed or reset, as it comes
            tls_connection(process, authority)
        wait_for("log", lambda: process.logged("client_connection_closed"))
        line = process.logged("client_connection_closed")[0]
        assert "the client speaks TLS" in line["error"]
        assert "gateway.tls_certificate_file" in line["hint"]


@pytest.mark.parametrize("how", ["close_notify", "FIN"])
def test_a_client_that_ends_its_sending_ends_its_connection(
    authority: Authority, proxy: ProxyProcess, how: str
) -> None:
    """There is no half of a TLS connection here: what is not sent by then is not waited for."""
    with tls_connection(proxy, authority) as peer:
        assert responses(peer)
        for correlation in range(8, 12):
            peer.sendall(request(API_VERSIONS, 0, correlation=correlation))
        if how == "FIN":
            socket.socket.shutdown(peer, socket.SHUT_WR)
            while peer.recv(4096):
                pass
        else:
            with suppress(OSError):  # answers may be on their way
                peer.unwrap()
        wait_for("its end", lambda: proxy.metric("fetchproxy_connections") == 0)
    assert not proxy.logged("library_message"), proxy.logged("library_message")
