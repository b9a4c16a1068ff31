"""What no longer exists is forgotten: topics, partitions and clients, in every table and metric."""

from __future__ import annotations

import asyncio

import pytest
from broker import BrokerNode
from calm_replay import BOOTSTRAP, Replay, run_replay
from prometheus_client import Counter
from topics_world import TopicsWorld, census, run_topics

from fetchproxy.config.schema import RemoteFetchConfig
from fetchproxy.observability import metrics
from fetchproxy.serving.gateway import addresses

# Objects of a type that are there or not by chance: futures, answers that were just read, …
BY_CHANCE = 15


async def come_and_go(world: TopicsWorld, names: list[str], partitions: int, clients: int) -> None:
    """`clients`: of each partition."""
    logs = world.make(names, partitions)
    await world.archived(logs)
    await world.clients(logs, clients)
    await world.delete(names)


def nothing_stays(
    monkeypatch: pytest.MonkeyPatch, manager: str, *, rounds: int, topics: int, clients: int
) -> None:
    async def main(world: TopicsWorld) -> None:
        # What is made once, or kept for the last few.
        await come_and_go(world, [f"passing-first-{i}" for i in range(15)], 2, 2)
        await world.settled()
        census()  # it makes some objects itself, the first time
        before, lines = census()
        for number in range(rounds):
            names = [f"passing-{number}-{i}" for i in range(topics)]
            await come_and_go(world, names, 1, clients)
        await world.settled()
        after, lines_after = census()
        assert lines_after == lines
        assert {kind: n for kind, n in (after - before).items() if n > BY_CHANCE} == {}

    run_topics(main, monkeypatch, manager)


@pytest.mark.parametrize("manager", ["store", "topic"])
def test_topics_and_clients_that_are_gone(monkeypatch: pytest.MonkeyPatch, manager: str) -> None:
    nothing_stays(monkeypatch, manager, rounds=1, topics=60, clients=2)


@pytest.mark.slow
def test_5000_topics_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_stays(monkeypatch, "store", rounds=10, topics=500, clients=1)


@pytest.mark.slow
def test_20000_clients_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_stays(monkeypatch, "store", rounds=4, topics=20, clients=250)


def test_a_topic_that_is_made_again_counts_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts(metric: Counter) -> float:
        return metric.labels("passing-again")._value.get()

    async def main(world: TopicsWorld) -> None:
        for _ in range(2):
            logs = world.make(["passing-again"], 1)
            await world.archived(logs)
            await world.clients(logs, 3)
            assert counts(metrics.REMOTE_COPY_REQUESTS) == 1
            assert 0 < counts(metrics.CATCHES) <= 3
            world.brokers.delete("passing-again")

    run_topics(main, monkeypatch, "store")


def test_a_brokers_port_closes_when_it_has_been_gone_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(addresses, "BROKER_FORGOTTEN_AFTER_S", 120.0)
    looks_s = 35.0  # the age of the brokers that the gateway knows, and its next look

    async def main(replay: Replay) -> None:
        def listens() -> bool:
            return (BOOTSTRAP[0], BOOTSTRAP[1] + 1 + 7) in replay.cluster.network.listeners

        other = BrokerNode(replay.cluster, 7)
        for _ in range(2):
            replay.cluster.nodes.append(other)
            await asyncio.sleep(looks_s)
            assert listens()
            replay.cluster.nodes.remove(other)
            await asyncio.sleep(100)
            assert listens()
            await asyncio.sleep(20 + looks_s)
            assert not listens()

    run_replay(RemoteFetchConfig(), main, partitions=1, batches=1)
