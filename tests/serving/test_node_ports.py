"""Which port stands for which broker, so that clients find it again after a restart."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka.admin import AdminClient
from proxy_process import ProxyProcess, wait_for

from lab.mock_cluster import MockCluster
from lab.process import port_responses


def node_ports(proxy: ProxyProcess) -> dict[int, int]:
    brokers = AdminClient({"bootstrap.servers": proxy.bootstrap}).list_topics(timeout=20).brokers
    return {node: broker.port for node, broker in brokers.items()}


def test_nodes_are_numbered_from_the_bootstrap_port_and_a_restart_keeps_them(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with (
        MockCluster(broker_count=2) as cluster,
        ProxyProcess(cluster.bootstrap, store.as_uri(), tmp_path) as proxy,
    ):
        ports = node_ports(proxy)
        assert ports == {1: proxy.port + 2, 2: proxy.port + 3}
        proxy.stop()
        proxy.start()
        wait_for("a node's port, before any client asks", lambda: port_responses(ports[2]))
        assert node_ports(proxy) == ports


def test_a_port_that_is_taken_is_replaced_by_a_free_one(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with (
        ExitStack() as stack,
        MockCluster() as cluster,
        socket.socket() as taken,
    ):
        unstarted = ProxyProcess(cluster.bootstrap, store.as_uri(), tmp_path)
        taken.bind(("127.0.0.1", unstarted.port + 2))
        taken.listen()
        proxy = stack.enter_context(unstarted)
        (port,) = node_ports(proxy).values()
        assert port not in (proxy.port, proxy.port + 2)
        assert len(proxy.logged("node_port_taken")) == 1
