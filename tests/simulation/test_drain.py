"""A proxy that ends lets its clients go: each between two responses, and none by a reset."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from calm_replay import BOOTSTRAP, GATEWAY, VERSION, Replay, now, run_replay
from client_connection import (
    FETCH_RESPONSE,
    ClientConnection,
    ClientFetchSession,
    FetchEntry,
    Responded,
    metadata_request,
)
from kafka.protocol.metadata.metadata import MetadataResponse
from network import Conditions

from fetchproxy.config.schema import RemoteFetchConfig
from fetchproxy.model import TopicIdPartition

DRAIN_S = GATEWAY.drain_max_ms / 1000
SOON_S = 0.2  # a few trips over the network
LONG_POLL_MS = 25_000
REBOOTSTRAP_REQUIRED = 129


class Client(ClientConnection):
    """Notes how its connection ended."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ended_at: float | None = None
        self.error: Exception | None = None
        self.half_a_response = b""
        self.ended = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.ended_at, self.error, self.half_a_response = now(), exc, bytes(self._received)
        self.ended.set()


async def dial(port: int = BOOTSTRAP[1], name: str = "client") -> Client:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(name), BOOTSTRAP[0], port)
    return client


async def dial_node(name: str = "client") -> Client:
    """A connection for fetches alone."""
    bootstrap = await dial(name=name)
    broker = (await bootstrap.ask(*metadata_request(["weather"]))).message.brokers[0]
    await bootstrap.close()
    return await dial(broker.port, name)


def ask_for_metadata(client: Client, version: int) -> asyncio.Future[Responded]:
    return client.ask(metadata_request(["weather"])[0], MetadataResponse, version)


def ask_for_records(
    client: Client, offsets: dict[TopicIdPartition, int], wait_ms: int, session: Any = None
) -> asyncio.Future[Responded]:
    entries = {tp: FetchEntry(offset, 1 << 20) for tp, offset in offsets.items()}
    limits = {"max_wait_ms": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
    session = session or ClientFetchSession(enabled=False)
    request, _ = session.request(entries, VERSION, limits)
    return client.ask(request, FETCH_RESPONSE, VERSION)


def records_in(message: Any) -> int:
    parts = [part for topic in message.responses for part in topic.partitions]
    assert message.error_code == 0
    assert all(part.error_code == 0 for part in parts)
    return sum(len(part.records or b"") for part in parts)


def drained(script: Callable[[Replay, Callable[[], float]], Awaitable[None]], **how: Any) -> None:
    """Run `script`; it calls its second argument to begin the drain, and gets the time. Then the
    drain must end.
    """
    began: list[float] = []

    async def main(replay: Replay) -> None:
        async with asyncio.TaskGroup() as tasks:

            def drain() -> float:
                tasks.create_task(replay.gateway.drain())
                began.append(now())
                return began[0]

            await script(replay, drain)
        assert replay.gateway.connections == 0
        assert now() - began[0] < DRAIN_S

    how = {"partitions": 2, "batches": 20, "tail_batches": 20} | how
    run_replay(RemoteFetchConfig(), main, **how)


async def ends_in_peace(client: Client) -> float:
    """When its connection has ended: by an end of the stream, behind a whole response."""
    await client.ended.wait()
    assert client.error is None
    assert client.half_a_response == b""
    assert client.ended_at is not None
    return client.ended_at


def test_clients_that_wait_for_nothing_go_first_from_nodes_then_from_the_bootstrap() -> None:
    async def script(replay: Replay, drain: Callable[[], float]) -> None:
        bootstrap, node = await dial(), await dial_node()
        await ask_for_metadata(bootstrap, 12)
        began = drain()
        assert await ends_in_peace(node) < began + SOON_S
        assert DRAIN_S / 10 < await ends_in_peace(bootstrap) - began < DRAIN_S / 10 + SOON_S
        with pytest.raises(ConnectionRefusedError):
            await dial()

    drained(script)


def test_a_client_that_can_be_told_is_served_until_it_is_told() -> None:
    async def script(replay: Replay, drain: Callable[[], float]) -> None:
        archived = replay.logs[0].tp
        client = await dial()
        assert (await ask_for_metadata(client, 13)).message.error_code == 0
        began = drain()
        await asyncio.sleep(SOON_S)
        assert records_in((await ask_for_records(client, {archived: 0}, 500)).message)
        metadata = (await ask_for_metadata(client, 13)).message
        assert metadata.error_code == REBOOTSTRAP_REQUIRED
        assert (metadata.brokers, metadata.topics, metadata.cluster_id) == ([], [], None)
        assert await ends_in_peace(client) < began + 2 * SOON_S + 1

    drained(script)


def test_a_client_that_is_not_told_in_time_goes_without() -> None:
    async def script(replay: Replay, drain: Callable[[], float]) -> None:
        client = await dial()
        await ask_for_metadata(client, 13)
        began = drain()
        assert DRAIN_S / 2 < await ends_in_peace(client) - began < DRAIN_S / 2 + SOON_S

    drained(script)


@pytest.mark.parametrize("session", [False, True], ids=["sessionless", "session"])
def test_a_long_poll_at_the_broker_is_answered_without_records(session: bool) -> None:
    async def script(replay: Replay, drain: Callable[[], float]) -> None:
        tail = replay.logs[-1]
        client, fetches = await dial_node(), ClientFetchSession(session)
        at = {tail.tp: tail.log_end_offset}
        if session:
            first = (await ask_for_records(client, at, 0, fetches)).message
            fetches.responded(first.error_code, first.session_id)
        response = ask_for_records(client, at, LONG_POLL_MS, fetches)
        await asyncio.sleep(1)
        assert not response.done()
        began = drain()
        message = (await response).message
        assert records_in(message) == 0
        if session:
            assert message.session_id == first.session_id
            assert message.responses == []
        else:
            assert [part.partition_index for part in message.responses[0].partitions] == [1]
        assert now() - began < DRAIN_S / 2 + SOON_S
        await ends_in_peace(client)

    drained(script)


def test_a_long_poll_gets_the_records_that_come_meanwhile() -> None:
    async def script(replay: Replay, drain: Callable[[], float]) -> None:
        tail, client = replay.logs[-1], await dial_node()
        response = ask_for_records(client, {tail.tp: tail.log_end_offset}, LONG_POLL_MS)
        await asyncio.sleep(1)
        drain()
        await asyncio.sleep(1)
        tail.write(1)
        tail.replicate(now())
        replay.cluster.moved()
        assert records_in((await response).message) > 0
        await ends_in_peace(client)

    drained(script)


def test_a_fetch_that_waits_for_the_store_is_answered_at_once() -> None:
    async def script(replay: Replay, drain: Callable[[], float]) -> None:
        archived, client = replay.logs[0].tp, await dial_node()
        await ask_for_records(client, {archived: 0}, 0)
        response = ask_for_records(client, {archived: 0}, LONG_POLL_MS)
        await asyncio.sleep(1)
        assert not response.done()
        began = drain()
        assert records_in((await response).message) == 0
        assert await ends_in_peace(client) < began + SOON_S

    drained(script, latency_s=10.0)


def test_a_request_behind_the_last_response_is_not_begun() -> None:
    async def script(replay: Replay, drain: Callable[[], float]) -> None:
        tail, client = replay.logs[-1], await dial_node()
        poll = ask_for_records(client, {tail.tp: tail.log_end_offset}, LONG_POLL_MS)
        await asyncio.sleep(1)
        drain()
        await asyncio.sleep(SOON_S)
        behind = ask_for_metadata(client, 12)
        assert records_in((await poll).message) == 0
        await ends_in_peace(client)
        assert isinstance(behind.exception(), ConnectionResetError)

    drained(script)


@pytest.mark.parametrize("seed", range(20))
def test_any_clients_at_any_time(seed: int) -> None:
    """Readers of both tiers, with requests of any size in flight, over a network that cuts."""
    rng = Random(seed)

    async def read(replay: Replay, number: int) -> None:
        tps, client = [log.tp for log in replay.logs], await dial_node(f"reader-{number}")
        offsets = {tp: 10 * rng.randrange(20) for tp in tps[: rng.randint(1, 2)]}
        if tps[-1] in offsets:
            offsets[tps[-1]] = replay.logs[-1].log_end_offset
        try:
            while True:
                wait_ms = rng.choice((0, 100, LONG_POLL_MS))
                pending = [ask_for_records(client, offsets, wait_ms)]
                if rng.random() < 0.3:
                    pending.append(ask_for_metadata(client, rng.choice((9, 13))))
                for response in pending:
                    await response
                await asyncio.sleep(rng.random() / 10)
        except ConnectionResetError:
            await ends_in_peace(client)

    async def script(replay: Replay, drain: Callable[[], float]) -> None:
        async with asyncio.TaskGroup() as readers:
            for number in range(8):
                readers.create_task(read(replay, number))
            await asyncio.sleep(0.1 + 2 * rng.random())
            drain()

    conditions = Conditions(cutting=rng.choice(("whole", "parts", "bytes")))
    drained(script, conditions=conditions, latency_s=rng.choice((0.0, 0.3)))
