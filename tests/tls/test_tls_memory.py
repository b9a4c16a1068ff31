"""What a connection of each kind takes in memory is what the memory plan counts for it."""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import Authority
from proxy_process import ProxyProcess, wait_for
from raw_tls import responses
from scripted_broker import TOPIC
from test_bad_input import read_frame
from test_large_answers import LargeBroker
from tls_parts import client_context

from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.memory_plan import (
    CONNECTION_BYTES,
    FREED_BYTES_MAX,
    TLS_BROKER_BYTES,
    TLS_CLIENT_BYTES,
    TLS_HANDSHAKE_BYTES,
    connection_bytes,
)

KiB = 1 << 10
RESPONSE_BYTES = 600 * KiB  # more than asyncio receives at a time
PLAIN, TLS = "plain", "tls"
HANDSHAKE = "handshake"
_SETTLE_S = 7


def resident_bytes(pid: int) -> int:
    """Without shared and file pages, of which a busy machine takes some away."""
    with open(f"/proc/{pid}/status") as status:
        fields = dict(line.split(":", 1) for line in status)
    return int(fields["RssAnon"].split()[0]) * KiB


def fetch() -> bytes:
    body = struct.pack(">iiiibii", -1, 500, 1, RESPONSE_BYTES, 0, 0, -1)
    body += b"\x02" + bytes([len(TOPIC) + 1]) + TOPIC.encode() + b"\x02"
    body += struct.pack(">iiqiqi", 0, -1, 5, -1, -1, RESPONSE_BYTES) + b"\0\0\x01\x01\0"
    head = struct.pack(">hhih", 1, 12, 7, -1) + b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def used(peer: socket.socket) -> socket.socket:
    """It has relayed a response with records."""
    assert responses(peer)
    peer.sendall(fetch())
    assert len(read_frame(peer)) == RESPONSE_BYTES
    return peer


def begun(peer: socket.socket, context: ssl.SSLContext) -> socket.socket:
    """A handshake of which the server's part is done, and the client's is not."""
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    peer.sendall(outgoing.read())
    assert peer.recv(1, socket.MSG_PEEK)
    return peer


def settings_of(authority: Authority, clients: str, brokers: str) -> dict[str, object]:
    settings: dict[str, object] = {}
    if clients == TLS:
        settings["gateway.tls_certificate_file"] = authority.issue("memory")
    if brokers == TLS:
        settings |= {"cluster.security_protocol": "SSL", "cluster.tls_ca_file": authority.file}
    return settings


@contextmanager
def opened(
    authority: Authority, folder: Path, clients: str, brokers: str
) -> Iterator[ProxyProcess]:
    of_broker = None
    if brokers == TLS:
        of_broker = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        of_broker.load_cert_chain(authority.issue("memory-broker"))
    (folder / "store").mkdir()
    settings = settings_of(authority, clients, brokers)
    settings["limits.serving.tls_handshake_max_ms"] = 600_000
    with (
        LargeBroker(RESPONSE_BYTES, of_broker).open() as bootstrap,
        ProxyProcess(bootstrap, (folder / "store").as_uri(), folder, settings=settings) as proxy,
    ):
        yield proxy


def bytes_each(proxy: ProxyProcess, make: Callable[[], socket.socket], count: int) -> float:
    """Freed memory goes back to the system every 5 s, so the least of some seconds counts."""

    def settled() -> int:
        sizes = []
        for _ in range(_SETTLE_S):
            time.sleep(1)
            sizes.append(resident_bytes(proxy.pid))
        return min(sizes)

    for peer in [make() for _ in range(20)]:
        peer.close()
    wait_for("no connections", lambda: proxy.metric("fetchproxy_connections") == 0)
    before = settled()
    peers = [make() for _ in range(count)]
    try:
        assert proxy.metric("fetchproxy_connections") == count
        return (settled() - before) / count
    finally:
        for peer in peers:
            peer.close()


def measured(
    authority: Authority, folder: Path, clients: str, brokers: str, kind: str, count: int
) -> tuple[float, int]:
    """(what each takes, what the plan counts for it), in bytes."""
    context = client_context(authority, None)
    settings = settings_of(authority, clients, brokers).items()
    plan = connection_bytes(
        load_config(None, {}, [Setting(k, str(v), "test") for k, v in settings])
    )
    with opened(authority, folder, clients, brokers) as proxy:

        def make() -> socket.socket:
            peer = socket.create_connection(("127.0.0.1", proxy.port))
            peer.settimeout(60)
            if kind == HANDSHAKE:
                return begun(peer, context)
            if clients == TLS:
                peer = context.wrap_socket(peer, server_hostname="localhost")
            return used(peer)

        return bytes_each(proxy, make, count), TLS_HANDSHAKE_BYTES if kind == HANDSHAKE else plan


def test_a_connection_has_no_buffers_of_asyncio_s_own(authority: Authority, tmp_path: Path) -> None:
    """A few connections show it: each would take 256 KiB and more, twice on either side."""
    context, count = client_context(authority, None), 40
    with opened(authority, tmp_path, TLS, TLS) as proxy:

        def make() -> socket.socket:
            peer = socket.create_connection(("127.0.0.1", proxy.port))
            peer.settimeout(60)
            return used(context.wrap_socket(peer, server_hostname="localhost"))

        with make():
            before = resident_bytes(proxy.pid)
            peers = [make() for _ in range(count)]
            grown = resident_bytes(proxy.pid) - before
            for peer in peers:
                peer.close()
    of_plan = count * (CONNECTION_BYTES + TLS_CLIENT_BYTES + TLS_BROKER_BYTES)
    assert grown < of_plan + FREED_BYTES_MAX < count * 2 * 2 * 256 * KiB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("clients", "brokers", "kind"),
    [(PLAIN, PLAIN, ""), (TLS, PLAIN, ""), (PLAIN, TLS, ""), (TLS, TLS, ""),
     (TLS, PLAIN, HANDSHAKE)],
)  # fmt: skip
def test_a_thousand_take_what_the_plan_says(
    authority: Authority, tmp_path: Path, clients: str, brokers: str, kind: str
) -> None:
    each, plan = measured(authority, tmp_path, clients, brokers, kind, 1_000)
    print(f"{kind or 'connection'}, {clients} to {brokers}: {each / KiB:.1f} KiB, {plan / KiB:.0f}")
    assert 0.8 * plan <= each <= 1.2 * plan
