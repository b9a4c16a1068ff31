"""A listener on all addresses, and the addresses that it tells clients to dial."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from all_addresses import OnAllAddresses
from client_readers import read_confluent
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from topic_data import TopicData, produce

from lab.mock_cluster import MockCluster
from lab.process import free_port

WARNING = "listens_on_all_addresses"
ONE, OTHER = "127.0.0.1", "127.0.0.2"


def addresses_told(bootstrap: str) -> dict[int, tuple[str, int]]:
    """The brokers as told over one connection; a real client would go on at the told address."""
    query = MetadataRequest[5]()
    query.topics, query.allow_auto_topic_creation = None, False
    with RawConnection(bootstrap) as raw:
        brokers = raw.ask(query, MetadataResponse, 5).brokers
    return {broker.node_id: (broker.host, broker.port) for broker in brokers}


@pytest.fixture(params=["cluster", "archive only"])
def upstream(request: pytest.FixtureRequest) -> Iterator[str | None]:
    if request.param == "archive only":
        yield None
        return
    with MockCluster() as cluster:
        yield cluster.bootstrap


@pytest.fixture
def store(tmp_path: Path) -> str:
    (tmp_path / "store").mkdir()
    return (tmp_path / "store").as_uri()


def test_each_client_is_told_the_address_that_it_has_reached(
    upstream: str | None, store: str, tmp_path: Path
) -> None:
    node = 0 if upstream is None else 1
    with OnAllAddresses(upstream, store, tmp_path, "0.0.0.0") as proxy:
        port = proxy.port if upstream is None else proxy.port + 2
        for host in (ONE, OTHER, ONE):
            assert addresses_told(f"{host}:{proxy.port}") == {node: (host, port)}
        (warning,) = proxy.logged(WARNING)
        assert warning["level"] == "warning"
        assert warning["host"] == "0.0.0.0"
        assert "reached" in warning["clients_are_told"]
        assert "NAT" in warning["fails_for"]
        assert "gateway.advertise_host" in warning["hint"]
        assert len(proxy.logged("archive_open_to_anybody")) == (upstream is None)
        listeners = json.loads(proxy.get("/api/status"))["listeners"]
        assert f"0.0.0.0:{port} (node {node}, told by the address reached)" in listeners


def test_over_ipv6_too(upstream: str | None, store: str, tmp_path: Path) -> None:
    with OnAllAddresses(upstream, store, tmp_path, "[::]") as proxy:
        ((host, _),) = addresses_told(f"::1:{proxy.port}").values()
        assert host == "::1"
        assert len(proxy.logged(WARNING)) == 1


def test_a_host_that_was_set_is_told_to_all_and_nothing_is_warned_of(
    upstream: str | None, store: str, tmp_path: Path
) -> None:
    settings = {"gateway.advertise_host": "[::1]"}
    with OnAllAddresses(upstream, store, tmp_path, "0.0.0.0", settings) as proxy:
        for host in (ONE, OTHER):
            ((host_told, _),) = addresses_told(f"{host}:{proxy.port}").values()
            assert host_told == "::1"
        assert not proxy.logged(WARNING)


def test_a_listener_on_one_address_warns_of_nothing(store: str, tmp_path: Path) -> None:
    with (
        MockCluster() as cluster,
        ProxyProcess(cluster.bootstrap, store, tmp_path) as proxy,
    ):
        (broker,) = addresses_told(proxy.bootstrap).items()
        # This is next to the proxy's own port, unless another process has that port.
        (opened,) = proxy.logged("node_listener_opened")
        assert broker == (1, (ONE, opened["port"]))
        assert not proxy.logged(WARNING)


def test_a_host_of_the_node_map_is_told_to_all(store: str, tmp_path: Path) -> None:
    with MockCluster(broker_count=2) as cluster:
        node_port = free_port()
        with OnAllAddresses(
            cluster.bootstrap, store, tmp_path, "0.0.0.0",
            {"gateway.node_map": f"1={node_port}/localhost:{node_port}"},
        ) as proxy:  # fmt: skip
            assert addresses_told(f"{OTHER}:{proxy.port}") == {
                1: ("localhost", node_port),
                2: (OTHER, proxy.port + 3),
            }


def test_records_go_both_ways_at_either_address(store: str, tmp_path: Path) -> None:
    """Every address in every response works there, including that of a moved leader."""
    with (
        MockCluster(broker_count=3) as cluster,
        OnAllAddresses(cluster.bootstrap, store, tmp_path, "0.0.0.0") as proxy,
    ):
        for number, host in enumerate((ONE, OTHER)):
            data = TopicData(f"everywhere-{number}")
            bootstrap = f"{host}:{proxy.port}"
            produce(bootstrap, data, 50, partition_count=2)
            assert read_confluent(bootstrap, data.topic, {0: 50, 1: 50}) == data.written
        wait_for("all to leave", lambda: proxy.metric("fetchproxy_connections") == 0)
        assert not proxy.logged("session_crashed")
