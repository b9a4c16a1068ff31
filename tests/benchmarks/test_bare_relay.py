"""The relay that proxies are measured beside passes bytes, both ways, and ends with either side."""

from __future__ import annotations

import socket
from contextlib import closing

from benchmarks.bare_relay import BareRelay

STALLED_S = 20.0


def received(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (part := connection.recv(size - len(found))):
        found += part
    return found


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
                sent = upstream.send(response)
                assert received(client, sent) == response[:sent]
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
    told = relay.told_by_kafka()
    assert f"RELAYED://127.0.0.1:{relay.upstream_port}" in told["listeners"].split(",")
    assert f"RELAYED://127.0.0.1:{relay.port}" in told["advertised.listeners"].split(",")
    assert relay.port != relay.upstream_port
