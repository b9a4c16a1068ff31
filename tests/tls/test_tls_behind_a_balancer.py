"""The PROXY header comes before TLS, and its address is the client's in the log of handshakes."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from proxy_process import ProxyProcess, wait_for
from raw_tls import responses
from test_bad_input import is_closed
from test_proxy_header import binary
from tls_parts import client_context

from lab.mock_cluster import MockCluster


@pytest.fixture(scope="module")
def proxy(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder: Path = tmp_path_factory.mktemp("balanced-tls")
    (folder / "store").mkdir()
    settings: dict[str, object] = {
        "gateway.tls_certificate_file": authority.issue("balanced"),
        "gateway.proxy_protocol_from": "127.0.0.1",
    }
    with (
        MockCluster() as cluster,
        ProxyProcess(
            cluster.bootstrap, (folder / "store").as_uri(), folder, settings=settings
        ) as process,
    ):
        yield process
        assert not process.logged("session_crashed")


def header(client: str) -> bytes:
    addresses = socket.inet_aton(client) + socket.inet_aton("127.0.0.1")
    return binary(1, 0x11, addresses + struct.pack(">HH", 4711, 9192))


def connection(proxy: ProxyProcess, client: str) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", proxy.port))
    peer.settimeout(60)
    peer.sendall(header(client))
    return peer


def test_tls_begins_behind_the_header(authority: Authority, proxy: ProxyProcess) -> None:
    context = client_context(authority, None)
    with (
        connection(proxy, "192.0.2.1") as plain,
        context.wrap_socket(plain, server_hostname="localhost") as peer,
    ):
        assert responses(peer)
        assert responses(peer)


def test_header_and_hello_may_come_in_one_packet(authority: Authority, proxy: ProxyProcess) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = client_context(authority, None).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", proxy.port)) as peer:
        peer.settimeout(60)
        header_bytes = header("192.0.2.2")
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                peer.sendall(header_bytes + outgoing.read())
                header_bytes = b""
                incoming.write(peer.recv(65_536))
    assert tls.version() in ("TLSv1.2", "TLSv1.3")


@pytest.mark.parametrize(
    ("client", "first_bytes", "spoken"),
    [
        ("192.0.2.3", b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        ("192.0.2.4", header("192.0.2.5"), "the PROXY protocol"),
    ],
)
def test_what_is_not_tls_is_named_with_the_clients_own_address(
    proxy: ProxyProcess, client: str, first_bytes: bytes, spoken: str
) -> None:
    with connection(proxy, client) as peer:
        peer.sendall(first_bytes)
        assert is_closed(peer)

    def lines() -> list[dict[str, str]]:
        return [e for e in proxy.logged("tls_handshake_failed") if e["client"] == f"{client}:4711"]

    wait_for("log", lines)
    (line,) = lines()
    assert line["reason"] == "plaintext"
    assert line["error"] == f"the client speaks {spoken}, but this listener expects TLS"
    assert line["hint"]
