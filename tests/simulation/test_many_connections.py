"""Many connections: the limit to what they hold together, and how the sweep looks at them."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter

import pytest
from calm_replay import BOOTSTRAP, GATEWAY, Replay, run_replay
from client_connection import ClientConnection, metadata_request

from fetchproxy.config.schema import MiB, RemoteFetchConfig
from fetchproxy.runtime.cooperative import MANY_PARTITIONS, checkpoint
from fetchproxy.serving import listener
from fetchproxy.serving.gateway.session import GatewaySession
from fetchproxy.serving.limits import ServingLimits

FETCH, VERSION = 1, 12


async def dialed(name: str) -> ClientConnection:
    """Connect without a request."""
    make = lambda: ClientConnection(name)  # noqa: E731
    _, connection = await asyncio.get_running_loop().create_connection(make, *BOOTSTRAP)
    assert isinstance(connection, ClientConnection)
    return connection


async def connected(name: str) -> ClientConnection:
    connection = await dialed(name)
    await connection.ask(*metadata_request(["weather"]))
    return connection


def begin_fetch(connection: ClientConnection, size: int) -> None:
    """Send part of a request, which is held until it is whole; it never is."""
    head = struct.pack(">ihhih", 100 * MiB, FETCH, VERSION, 1, -1)
    assert connection._transport is not None
    connection._transport.write(head + bytes(size))


def test_connections_that_hold_most_go_when_all_together_hold_too_much() -> None:
    async def main(replay: Replay) -> None:
        well = await connected("well")
        greedy = [await connected(f"greedy-{number}") for number in range(3)]
        for number, connection in enumerate(greedy):
            begin_fetch(connection, (number + 1) * MiB // 4)
        await asyncio.sleep(5)  # 1.5 MiB in all, which is the limit
        assert all(connection.is_open for connection in greedy)
        begin_fetch(late := await connected("late"), MiB // 8)
        await asyncio.sleep(5)
        assert [c.is_open for c in (well, *greedy, late)] == [True, True, True, False, True]
        await well.ask(*metadata_request(["weather"]))
        for connection in (well, *greedy[:2], late):
            await connection.close()

    gateway = GATEWAY.model_copy(update={"connection_buffers_bytes_max": 3 * MiB // 2 + 1000})
    limits = ServingLimits(half_frame_max_ms=60_000, held_request_bytes_max=100 * MiB)
    run_replay(RemoteFetchConfig(), main, partitions=1, batches=1, gateway=gateway, limits=limits)


def test_connections_are_looked_at_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Counter[int] = Counter()  # by turn of the loop
    turn = 0
    looked_at = GatewaySession.stalled_s

    def next_turn() -> None:
        nonlocal turn
        turn += 1

    def counted(session: GatewaySession, now: float) -> float:
        if not looks[turn]:
            asyncio.get_running_loop().call_soon(next_turn)
        looks[turn] += 1
        return looked_at(session, now)

    monkeypatch.setattr(GatewaySession, "stalled_s", counted)
    monkeypatch.setattr(listener, "SWEPT_AT_ONCE", 10)

    async def main(replay: Replay) -> None:
        connections = [await connected(f"idle-{number}") for number in range(45)]
        looks.clear()
        await asyncio.sleep(listener.SWEEP_INTERVAL_S)
        assert looks.total() >= 45
        assert max(looks.values()) == 10
        for connection in connections:
            await connection.close()

    run_replay(RemoteFetchConfig(), main, partitions=1, batches=1)


@pytest.mark.parametrize(("partitions", "breathes"), [(MANY_PARTITIONS - 1, 0), (10_000, 1)])
async def test_a_fetch_of_many_partitions_breathes_between_its_steps(
    partitions: int, breathes: int
) -> None:
    others: list[int] = []
    asyncio.get_running_loop().call_soon(others.append, 1)
    await checkpoint(partitions)
    assert len(others) == breathes
