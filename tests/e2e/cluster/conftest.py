"""Three real brokers, and one proxy in front of them that archives every topic named `cl-…`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archived_topics import SETTINGS
from cluster_scene import Assignment, ClusterScene
from folder_fixture import folder_fixture
from proxy_process import ProxyProcess

from lab.kafka_cluster import KafkaCluster
from lab.process import free_port

MakeScene = Callable[..., ClusterScene]


@folder_fixture
def three_brokers(find_part: Callable[..., None]) -> Iterator[KafkaCluster]:
    """Brokers 1, 2 and 3. A test that stops one starts it again."""
    # Broker 2 applies its retention all the time, the others once an hour.
    often, never = (
        {"log.retention.check.interval.ms": interval, "log.initial.task.delay.ms": delay}
        for interval, delay in (("300", "100"), ("3600000", "3600000"))
    )
    cluster = KafkaCluster(of_node={1: never, 2: often, 3: never})
    try:
        find_part("kafka", cluster.start)
        yield cluster
    finally:
        cluster.stop()


@folder_fixture
def cluster_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("cluster-store").as_uri()


@folder_fixture
def cluster_proxy(
    three_brokers: KafkaCluster, cluster_store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """The first broker of its bootstrap list does not exist."""
    bootstrap = f"127.0.0.1:{free_port()},{three_brokers.bootstrap}"
    folder = tmp_path_factory.mktemp("cluster-proxy")
    with ProxyProcess(
        bootstrap, cluster_store, folder, archive="cl-.*", settings=SETTINGS
    ) as process:
        yield process
        assert process.running, process.log_text()[-4000:]
        for event in ("session_crashed", "part_failed", "partition_process_crashed", "archive_gap",
                      "partition_stopped"):  # fmt: skip
            assert not process.logged(event), process.logged(event)[0]


@pytest.fixture
def scene(
    three_brokers: KafkaCluster, cluster_proxy: ProxyProcess, cluster_store: str, tmp_path: Path
) -> MakeScene:
    """`scene("cl-name", [[1, 2, 3]])` → a ClusterScene with one partition on these brokers."""

    def make(topic: str, assignment: Assignment, java: bool = True) -> ClusterScene:
        return ClusterScene(
            three_brokers, cluster_proxy, cluster_store, topic, assignment, tmp_path, java
        )

    return make
