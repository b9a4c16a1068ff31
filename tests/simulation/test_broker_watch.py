"""Which brokers answer, over the simulated network: one lost broker is named, or all reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest
from broker import BrokerNode, SimulatedCluster
from broker_connection import BrokerProtocol
from calm_replay import now, whole_logs
from network import Conditions, NetworkLoop, SimulatedNetwork
from structlog.testing import capture_logs
from virtual_loop import run_virtual

from fetchproxy.brokers import broker_watch
from fetchproxy.brokers.broker_watch import BrokersStatus, BrokerWatch
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.observability import metrics
from fetchproxy.observability.health import headlines, missing, worst_first

# The watch knows within this time that a broker has gone away.
KNOWN_WITHIN_S = 15


def leave(node: BrokerNode) -> None:
    node.listener.close()
    for connection in list(node.connections):
        connection.close()


def come_back(node: BrokerNode) -> None:
    node.listener = node.cluster.network.listen(lambda: BrokerProtocol(node), *node.address)


def run_watch(
    main: Callable[[SimulatedCluster, BrokerWatch, list[Any]], Coroutine[Any, Any, None]],
    bootstrap: str | None = None,
) -> None:
    loops: list[NetworkLoop] = []

    def new_loop() -> NetworkLoop:
        loops.append(NetworkLoop())
        return loops[-1]

    async def run() -> None:
        loops[-1].network = network = SimulatedNetwork(Random(1), Conditions())
        simulated = SimulatedCluster(network, Random(2), whole_logs(Random(7), 3, 10), nodes=3)
        config = ClusterConfig(bootstrap=bootstrap or simulated.bootstrap)
        with capture_logs() as entries:
            async with simulated.serving(), Cluster(config, Random(4)) as cluster:
                watch = BrokerWatch(cluster)
                running = asyncio.create_task(watch.run())
                await asyncio.sleep(KNOWN_WITHIN_S)
                await main(simulated, watch, entries)
                running.cancel()

    run_virtual(run, new_loop)


def headlines_of(watch: BrokerWatch) -> tuple[str, ...]:
    return headlines(worst_first(watch.conditions(now())))


def missing_of(watch: BrokerWatch) -> tuple[str, ...]:
    return missing(watch.conditions(now()))


def reachable() -> float:
    return float(metrics.BROKERS_REACHABLE._value.get())


def test_while_all_answer_nothing_is_said() -> None:
    async def main(simulated: SimulatedCluster, watch: BrokerWatch, entries: list[Any]) -> None:
        await asyncio.sleep(600)
        assert watch.status() == BrokersStatus(3)
        assert (headlines_of(watch), missing_of(watch)) == ((), ())
        assert (reachable(), entries) == (3, [])

    run_watch(main)


@pytest.mark.remedy("broker_away")
def test_one_that_goes_is_named_and_is_no_outage() -> None:
    async def main(simulated: SimulatedCluster, watch: BrokerWatch, entries: list[Any]) -> None:
        leave(simulated.nodes[1])
        await asyncio.sleep(KNOWN_WITHIN_S)
        assert (watch.status().away, reachable()) == (("10.0.0.2:9092",), 2)
        assert headlines_of(watch) == (
            "Broker 10.0.0.2:9092 does not respond; 2 of 3 do: partitions that it leads are "
            "neither served nor archived until other brokers lead them",
        )
        assert missing_of(watch) == ()
        assert [(e["event"], e["address"]) for e in entries] == [("broker_away", "10.0.0.2:9092")]
        # The other brokers no longer list it, and it still counts as away.
        simulated.nodes.remove(gone := simulated.nodes[1])
        await asyncio.sleep(600)
        assert watch.status().away == ("10.0.0.2:9092",)
        come_back(gone)
        await asyncio.sleep(KNOWN_WITHIN_S)
        assert headlines_of(watch) == ()
        assert [e["event"] for e in entries] == ["broker_away", "broker_away_no_more"]

    run_watch(main)


@pytest.mark.remedy("brokers_away")
def test_when_none_answers_new_clients_are_not_served() -> None:
    async def main(simulated: SimulatedCluster, watch: BrokerWatch, entries: list[Any]) -> None:
        for node in simulated.nodes:
            leave(node)
        began = now()
        await asyncio.sleep(KNOWN_WITHIN_S)
        none_for_s = watch.status().none_for_s
        assert none_for_s is not None
        assert none_for_s <= now() - began
        assert missing_of(watch) == ("brokers: none answers",)
        [headline] = headlines_of(watch)
        assert headline.startswith("No broker responds: until one does, clients are not served")
        assert reachable() == 0
        assert [e["event"] for e in entries].count("brokers_away") == 1
        come_back(simulated.nodes[0])
        await asyncio.sleep(KNOWN_WITHIN_S)
        assert (missing_of(watch), reachable()) == ((), 1)
        assert [e["event"] for e in entries].count("brokers_away_no_more") == 1

    run_watch(main)


def test_a_wrong_bootstrap_is_said_within_15_s() -> None:
    async def main(simulated: SimulatedCluster, watch: BrokerWatch, entries: list[Any]) -> None:
        assert missing_of(watch) == ("brokers: none answers",)
        warnings = [e for e in entries if e["event"] == "brokers_away"]
        assert [e["addresses"] for e in warnings] == ["10.0.0.99:9092"]

    run_watch(main, "10.0.0.99:9092")


def test_one_that_moved_is_not_missed_at_its_old_address() -> None:
    async def main(simulated: SimulatedCluster, watch: BrokerWatch, entries: list[Any]) -> None:
        node = simulated.nodes[1]
        leave(node)
        await asyncio.sleep(KNOWN_WITHIN_S)
        assert watch.status().away == ("10.0.0.2:9092",)
        node.address = ("10.0.0.22", 9092)
        come_back(node)
        await asyncio.sleep(KNOWN_WITHIN_S)
        assert watch.status() == BrokersStatus(3)
        assert [e["event"] for e in entries] == ["broker_away", "broker_away_no_more"]

    run_watch(main)


def test_all_of_them_moved_behind_the_bootstrap_name() -> None:
    async def main(simulated: SimulatedCluster, watch: BrokerWatch, entries: list[Any]) -> None:
        for node in simulated.nodes:
            leave(node)
        await asyncio.sleep(KNOWN_WITHIN_S)
        for node in simulated.nodes:
            node.address = (f"10.0.0.{node.node_id + 20}", 9092)
            come_back(node)
        simulated.network.listen(lambda: BrokerProtocol(simulated.nodes[2]), "10.0.0.1", 9092)
        await asyncio.sleep(KNOWN_WITHIN_S)
        assert (missing_of(watch), headlines_of(watch), reachable()) == ((), (), 3)
        assert watch.status() == BrokersStatus(3)

    run_watch(main)


def test_brokers_that_came_and_went_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_watch, "BROKER_FORGOTTEN_AFTER_S", 60.0)

    async def main(simulated: SimulatedCluster, watch: BrokerWatch, entries: list[Any]) -> None:
        first = simulated.nodes
        for number in range(10, 20):
            simulated.nodes = [*first, BrokerNode(simulated, number)]
            await asyncio.sleep(KNOWN_WITHIN_S)
        simulated.nodes = first
        await asyncio.sleep(60 + KNOWN_WITHIN_S)
        assert watch.status() == BrokersStatus(3)
        assert sorted(watch._by_id) == [1, 2, 3]

    run_watch(main)
