"""The cluster changes while clients read: every broker restarts, one freezes, one joins."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from time import monotonic

import pytest
from cluster_scene import ClusterScene
from confluent_kafka.admin import AdminClient
from proxy_process import ProxyProcess, wait_for

from lab.kafka_cluster import KafkaCluster

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    # kafka-python leaves its socket to the garbage collector when a connection is refused.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

MakeScene = Callable[..., ClusterScene]


@pytest.fixture(autouse=True)
def collected_here() -> Iterator[None]:
    """Collect here and not in a later test, where an unclosed socket is an error."""
    yield
    gc.collect()


def test_all_brokers_restart_one_after_the_other(scene: MakeScene) -> None:
    with scene("cl-rolling-restart", [[1, 2, 3], [2, 3, 1], [3, 1, 2]]) as served:
        for node_id, server in served.cluster.nodes.items():
            server.restart()
            served.cluster.wait_for_brokers([node_id])
            served.cluster.wait_for_in_sync(served.topic)
            served.wait_until_read()
        served.finish()


def test_a_broker_freezes_and_goes_on(scene: MakeScene) -> None:
    """The broker neither answers nor refuses; others lead its partitions once its session ends."""
    with scene("cl-broker-freezes", [[2, 3, 1], [1, 2, 3]]) as served:
        cluster, topic = served.cluster, served.topic
        frozen = cluster.nodes[2]
        frozen.pause()
        try:
            wait_for("another leader", lambda: cluster.partitions(topic, 1)[0].leader in (1, 3))
            began = monotonic()
            brokers = AdminClient({"bootstrap.servers": served.proxy.bootstrap}).list_topics(
                timeout=60
            ).brokers  # fmt: skip
            assert {1, 3} <= set(brokers)
            assert monotonic() - began < 30  # limits a client's wait, not the proxy's speed
            served.wait_until_read()
        finally:
            frozen.resume()
        cluster.wait_for_in_sync(topic)
        served.finish()


def test_a_broker_joins_and_takes_partitions(
    scene: MakeScene, three_brokers: KafkaCluster, cluster_proxy: ProxyProcess
) -> None:
    """Its port listens before clients learn of it, and clients read its partitions from it."""
    with scene("cl-broker-joins", [[1, 2, 3], [2, 3, 1]]) as served:
        joined = three_brokers.add_broker()
        brokers = AdminClient({"bootstrap.servers": cluster_proxy.bootstrap}).list_topics(
            timeout=60
        ).brokers  # fmt: skip
        assert brokers[joined].port != three_brokers.nodes[joined].port
        direct = AdminClient({"bootstrap.servers": f"127.0.0.1:{brokers[joined].port}"})
        assert joined in direct.list_topics(timeout=60).brokers
        three_brokers.reassign(served.topic, {0: [joined, 2, 3], 1: [joined, 3, 1]})
        three_brokers.move_leaders(served.topic, {0: joined, 1: joined})
        served.wait_until_read()
        # The broker leaves again, since clusters also shrink.
        three_brokers.reassign(served.topic, {0: [1, 2, 3], 1: [2, 3, 1]})
        three_brokers.remove_broker(joined)
        served.wait_until_read()
        served.finish()
