"""Brokers that come back elsewhere, under other ids, or at addresses that nobody can dial."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from scripted_broker import TOPIC, TOPIC_ID, ScriptedBroker, serving
from structlog.testing import capture_logs

from fetchproxy.app import run_server
from fetchproxy.brokers.broker_watch import BrokerWatch
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.load import load_config, parse_assignment
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.errors import ClusterUnavailable
from fetchproxy.model import TopicIdPartition
from lab.kafka import KafkaServer
from lab.kafka_versions import kafka_jars
from lab.process import free_port, free_ports

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
TP = TopicIdPartition(TOPIC_ID, TOPIC, 0)
# Only a hang may take this long.
WAIT_MAX_S = 120


@asynccontextmanager
async def proxy(bootstrap: str, folder: Path) -> AsyncIterator[int]:
    """The port of a gateway in this process; node N is at this port + 1 + N."""
    port = free_ports(5)
    (folder / "store").mkdir()
    settings = {
        "cluster.bootstrap": bootstrap,
        "gateway.listen": f"127.0.0.1:{port}",
        "store.url": (folder / "store").as_uri(),
        "console.listen": "",
    }
    config = load_config(None, {}, [parse_assignment(f"{k}={v}") for k, v in settings.items()])
    running = asyncio.create_task(run_server(config))
    try:
        yield port
        assert not running.done(), running.exception()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@asynccontextmanager
async def leading_to(target: Callable[[], int]) -> AsyncIterator[str]:
    """One address that always leads to the port that `target` gives, as a service's name does."""
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", target())
        except OSError:
            writer.close()
            return
        tasks.update(
            (asyncio.create_task(copy(reader, back)), asyncio.create_task(copy(there, writer)))
        )

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def responded(port: int) -> bool:
    """Whether a new connection gets a response from a broker."""
    with suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(API_VERSIONS)
            return len(await reader.readexactly(8)) == 8
        finally:
            writer.close()
    return False


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_MAX_S):
        while not await what():  # noqa: ASYNC110 - the proxy gives no event
            await asyncio.sleep(0.05)


async def test_a_nodes_port_leads_to_its_broker_wherever_that_is(tmp_path: Path) -> None:
    """No client asks for the brokers: clients that know a node's port alone find it again."""
    before, after = ScriptedBroker(), ScriptedBroker()
    now = before
    async with leading_to(lambda: now.port) as bootstrap, proxy(bootstrap, tmp_path) as port:
        async with serving(before):
            await until(lambda: responded(port + 2))
        assert not await responded(port + 2)
        now = after
        async with serving(after):
            await until(lambda: responded(port + 2))
            assert 18 in after.requests


async def test_a_client_leaves_a_broker_that_took_another_ones_address(tmp_path: Path) -> None:
    first, second = ScriptedBroker(node_id=1), ScriptedBroker(node_id=2)
    async with serving(first) as bootstrap, serving(second):
        first.peers, second.peers = {2: second.port}, {1: first.port}
        async with proxy(bootstrap, tmp_path) as port:
            await until(lambda: responded(port + 2))
            reader, writer = await asyncio.open_connection("127.0.0.1", port + 2)
            writer.write(API_VERSIONS)
            await reader.readexactly(4)
            # They swap addresses, and the one now at the old address answers this client on.
            first.node_id, second.node_id = 2, 1
            first.peers, second.peers = {1: second.port}, {2: first.port}
            async with asyncio.timeout(WAIT_MAX_S):
                await reader.read(-1)
            writer.close()
            second.requests.clear()
            await until(lambda: responded(port + 2))
            assert 18 in second.requests


async def test_new_clients_get_in_when_the_bootstrap_address_is_gone(tmp_path: Path) -> None:
    broker = ScriptedBroker()
    away = free_port()
    async with serving(broker):
        reached = broker.port
        async with leading_to(lambda: reached) as bootstrap, proxy(bootstrap, tmp_path) as port:
            await until(lambda: responded(port + 2))
            reached = away
            await until(lambda: responded(port))


UNDIALABLE = {
    "an empty label": ("kafka-2..svc", 9092),
    "a label of 64": ("k" * 64 + ".svc", 9092),
    "a NUL": ("kafka\0", 9092),
    "no port": ("127.0.0.1", 0),
    "too high a port": ("127.0.0.1", 65_536),
    "a negative port": ("127.0.0.1", -1),
}


@pytest.mark.parametrize("address", UNDIALABLE)
async def test_an_address_that_nobody_can_dial_is_that_brokers_fault_alone(address: str) -> None:
    broker = ScriptedBroker(leader=2)
    broker.hosts[2], broker.peers[2] = UNDIALABLE[address]
    broker.peers[-100_000] = 9092
    config = ClusterConfig(request_max_ms=300)
    async with serving(broker) as bootstrap:
        config = config.model_copy(update={"bootstrap": bootstrap})
        async with Cluster(config) as cluster:
            assert sorted(await cluster.brokers()) == [1, 2]
            [log_offsets] = (await cluster.fetch_log_offsets([TP], not_older_than=0)).values()
            assert isinstance(log_offsets, ClusterUnavailable)
            watch = BrokerWatch(cluster)
            await watch.ask_brokers()
            assert len(watch.status().away) == 1


async def test_the_proxy_lives_with_such_a_broker(tmp_path: Path) -> None:
    broker = ScriptedBroker(leader=2)
    broker.hosts = {node: host for node, (host, _) in enumerate(UNDIALABLE.values(), 2)}
    broker.peers = {node: port for node, (_, port) in enumerate(UNDIALABLE.values(), 2)}
    broker.peers |= {-100_000: 9092, 2**31 - 1: 9092}
    with capture_logs() as logged:
        async with serving(broker) as bootstrap, proxy(bootstrap, tmp_path) as port:
            await until(lambda: responded(port + 2))
            assert not await responded(port + 3)
            await until(lambda: responded(port))
    events = [entry["event"] for entry in logged]
    assert "broker_unreachable" in events
    assert not {"part_failed", "session_crashed", "remote_read_crashed"} & set(events)


async def test_all_brokers_moved_and_the_last_bootstrap_name_alone_leads_to_them() -> None:
    """The first response names many brokers, none of which is there any more: their addresses
    swallow everything, so each takes its whole time-out.
    """
    before, after = ScriptedBroker(), ScriptedBroker()
    now = before
    with socket.socket() as hanging:
        hanging.bind(("", 0))
        hanging.listen()
        silent = hanging.getsockname()[1]
        before.hosts = {node: f"127.0.1.{node}" for node in range(2, 30)}
        before.peers = dict.fromkeys(range(2, 30), silent)
        async with leading_to(lambda: now.port) as name:
            config = ClusterConfig(bootstrap=f"127.0.0.1:{silent},{name}", request_max_ms=30_000)
            async with Cluster(config) as cluster:
                async with serving(before):
                    assert len(await cluster.brokers()) == 29
                now = after
                async with serving(after):
                    assert (await cluster.brokers(max_age_ms=0))[1].port == after.port


@pytest.mark.slow
@pytest.mark.kafka
async def test_a_real_broker_comes_back_at_another_port(
    find_part: Callable[..., object], tmp_path: Path
) -> None:
    find_part("kafka", kafka_jars)
    first, second = (KafkaServer(data_dir=tmp_path / "kafka") for _ in range(2))
    now = first
    async with leading_to(lambda: now.port) as bootstrap, proxy(bootstrap, tmp_path) as port:
        for now in (first, second):
            await asyncio.to_thread(now.start)
            try:
                await until(lambda: responded(port + 2))
            finally:
                await asyncio.to_thread(now.stop)
    assert first.port != second.port
