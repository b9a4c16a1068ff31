"""Clients get in while any bootstrap broker lives, even if the others hang."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from proxy_process import ProxyProcess

from fetchproxy.serving.gateway.upstream_dial import UpstreamDial
from fetchproxy.serving.session import Address
from lab.mock_cluster import MockCluster
from lab.process import free_port

# Longer than any test here: a test that waits for it fails.
PATIENT_MS = 300_000


def patient() -> UpstreamDial:
    return UpstreamDial(PATIENT_MS, stagger_ms=50)


@contextmanager
def hanging() -> Iterator[Address]:
    """A port of a frozen process: the kernel accepts connections, and no response ever comes."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()


class _Answering(asyncio.Protocol):
    """Answers everything with a few bytes and records what it was sent."""

    def __init__(self, requests: list[bytes], open_now: set[asyncio.Transport]) -> None:
        self._requests, self._open = requests, open_now
        self._number = len(requests)
        requests.append(b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(transport)

    def data_received(self, data: bytes) -> None:
        self._requests[self._number] += data
        self._transport.write(b"\x00\x00\x00\x04answ")

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self._transport)


@asynccontextmanager
async def answering(requests: list[bytes]) -> AsyncIterator[Address]:
    """A server that appends one entry to `asked` for each connection: the bytes that came on it."""
    open_now: set[asyncio.Transport] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Answering(requests, open_now), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()
        for transport in list(open_now):
            transport.abort()
        await asyncio.sleep(0.01)


def dead() -> Address:
    return ("127.0.0.1", free_port())


async def reached(dial: UpstreamDial, addresses: list[Address]) -> Address:
    link = await dial.to_any(addresses, _Link)
    assert link.transport is not None
    try:
        peer: Address = link.transport.get_extra_info("peername")
        return peer
    finally:
        link.transport.abort()
        await asyncio.sleep(0)


class _Link(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport


async def test_the_one_that_answers_is_reached_whoever_comes_before_it() -> None:
    requests: list[bytes] = []
    with hanging() as first, hanging() as second:
        async with answering(requests) as alive:
            for addresses in ([first, dead(), second, alive], [dead(), alive], [alive, first]):
                assert await reached(patient(), addresses) == alive


async def test_the_first_is_preferred_when_all_answer() -> None:
    async with answering([]) as first, answering([]) as second:
        assert await reached(patient(), [first, second]) == first
        assert await reached(patient(), [second, first]) == second


async def test_a_burst_of_clients_asks_once() -> None:
    requests: list[bytes] = []
    dial = patient()
    async with answering(requests) as alive, asyncio.TaskGroup() as clients:
        addresses = [dead(), alive]
        for _ in range(20):
            clients.create_task(reached(dial, addresses))
    assert len(requests) == 21
    assert len([data for data in requests if data]) == 1


async def test_what_answered_a_moment_ago_and_died_is_not_insisted_on() -> None:
    dial = patient()
    async with answering([]) as second:
        async with answering([]) as first:
            assert await reached(dial, [first, second]) == first
        assert await reached(dial, [first, second]) == second


async def test_nobody_answers() -> None:
    gone = [dead(), dead()]
    with pytest.raises(OSError, match=str(gone[1][1])):
        await patient().to_any(gone, _Link)
    with hanging() as first, hanging() as second, pytest.raises(OSError, match="in time"):
        await UpstreamDial(50, stagger_ms=10).to_any([first, second], _Link)


async def test_one_address_alone_is_not_asked_first() -> None:
    requests: list[bytes] = []
    async with answering(requests) as alive:
        assert await reached(patient(), [alive]) == alive
    assert requests == [b""]


def test_a_client_bootstraps_past_brokers_that_hang_or_are_dead(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with hanging() as frozen, MockCluster(broker_count=2) as cluster:
        bootstrap = ",".join(
            [*(f"{host}:{port}" for host, port in (frozen, dead())), cluster.bootstrap]
        )
        with ProxyProcess(bootstrap, (tmp_path / "store").as_uri(), tmp_path) as proxy:
            cluster_metadata = AdminClient({"bootstrap.servers": proxy.bootstrap}).list_topics(
                timeout=60
            )
    assert len(cluster_metadata.brokers) == 2
