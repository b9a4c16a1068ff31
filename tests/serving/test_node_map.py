"""`gateway.node_map`: ports that clients, firewalls and load balancers know beforehand."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from client_readers import read_confluent
from confluent_kafka.admin import AdminClient
from proxy_process import ProxyProcess
from test_bad_input import request
from topic_data import TopicData, produce

from lab.errors import PartFailed
from lab.mock_cluster import MockCluster
from lab.process import free_port, free_ports


def proxy_with(cluster: MockCluster, folder: Path, node_map: str, listen: int = 0) -> ProxyProcess:
    (folder / "store").mkdir()
    store = (folder / "store").as_uri()
    settings: dict[str, object] = {"gateway.node_map": node_map}
    return ProxyProcess(cluster.bootstrap, store, folder, settings=settings, port=listen)


def test_clients_are_told_what_the_map_says(tmp_path: Path) -> None:
    first, second, port_told = free_port(), free_port(), free_port()
    node_map = f"1={first}, 2={second}/proxy.example:{port_told}"
    with MockCluster(broker_count=3) as cluster, proxy_with(cluster, tmp_path, node_map) as proxy:
        brokers = (
            AdminClient({"bootstrap.servers": proxy.bootstrap}).list_topics(timeout=60).brokers
        )
        places = {node: (broker.host, broker.port) for node, broker in brokers.items()}
        assert places == {
            1: ("127.0.0.1", first),
            2: ("proxy.example", port_told),
            3: ("127.0.0.1", proxy.port + 4),  # not in the map: the default
        }
        opened = {
            entry["broker_id"]: entry["port"] for entry in proxy.logged("node_listener_opened")
        }
        assert opened == {1: first, 2: second, 3: proxy.port + 4}


def test_a_mapped_port_leads_to_its_broker_before_anything_was_asked(tmp_path: Path) -> None:
    """Clients may remember the port across a restart of the proxy."""
    port = free_port()
    with (
        MockCluster() as cluster,
        proxy_with(cluster, tmp_path, f"1={port},7={free_port()}") as proxy,
    ):
        data = TopicData("mapped")
        produce(f"127.0.0.1:{port}", data, 20)
        assert read_confluent(f"127.0.0.1:{port}", "mapped", {0: 20}) == data.written
        # The cluster lacks this node of the map: the connection closes at the first request.
        unknown = proxy.logged("node_listener_opened")[1]["port"]
        with socket.create_connection(("127.0.0.1", unknown), timeout=60) as client:
            client.sendall(request(18, 0))
            assert client.recv(1) == b""
        assert "node 7 is not in the cluster" in proxy.logged("broker_unreachable")[0]["error"]


def test_a_node_outside_the_map_keeps_off_its_ports(tmp_path: Path) -> None:
    with MockCluster(broker_count=2) as cluster:
        # Chosen so that node 2 would get the port that the map gives to node 9.
        port = free_ports(4)
        proxy = proxy_with(cluster, tmp_path, f"9={port + 3}", listen=port)
        with proxy:
            brokers = AdminClient({"bootstrap.servers": proxy.bootstrap}).list_topics(timeout=60)
            assert brokers.brokers[1].port == port + 2
            assert brokers.brokers[2].port not in range(port, port + 4)


def test_a_mapped_port_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    with MockCluster() as cluster, socket.socket() as taken:
        port = free_port()
        taken.bind(("127.0.0.1", port))
        taken.listen()
        proxy = proxy_with(cluster, tmp_path, f"1={port}")
        with pytest.raises(PartFailed, match=f"gateway.node_map: cannot listen on port {port} for"):
            proxy.start()
