"""Leaders move and a broker is killed: no reader notices, below the log start or above it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from cluster_scene import ClusterScene
from proxy_process import wait_for

pytestmark = [
    pytest.mark.kafka,
    # kafka-python leaves its socket to the garbage collector when a connection is refused.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

MakeScene = Callable[..., ClusterScene]


@pytest.fixture(autouse=True)
def collected_here() -> Iterator[None]:
    """Collect here and not in a later test, where an unclosed socket is an error."""
    yield
    gc.collect()


def test_leaders_move_and_a_broker_is_killed_and_comes_back(scene: MakeScene) -> None:
    with scene("cl-leaders", [[1, 2, 3], [2, 3, 1]]) as served:
        cluster, topic = served.cluster, served.topic
        for leaders in ({0: 2, 1: 3}, {0: 3, 1: 2}):
            cluster.move_leaders(topic, leaders)
            served.wait_until_read()
        killed = cluster.nodes[2]
        killed.kill()
        wait_for("another leader", lambda: cluster.partitions(topic, 1)[1].leader in (1, 3))
        served.wait_until_read()
        killed.start()
        cluster.wait_for_in_sync(topic)
        cluster.move_leaders(topic, {0: 2, 1: 2})
        served.wait_until_read()
        served.finish()
