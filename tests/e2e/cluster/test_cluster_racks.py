"""KIP-392: a client that names its rack reads from the replica there, also through the proxy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_scene import ClusterScene
from java_reader import JavaReader
from proxy_process import ProxyProcess, wait_for
from rack_reader import RackReader
from steady_producer import SteadyProducer

from lab.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.kafka

MakeScene = Callable[..., ClusterScene]
RACK = "rack-2"  # the rack of broker 2, which never leads here
FETCHED = 3_000  # more bytes than a connection to a broker begins with; empty responses count


def test_tail_and_archive_are_read_from_the_replica_in_the_rack(scene: MakeScene) -> None:
    with (
        scene("cl-racks", [[1, 2, 3]], java=False) as served,
        RackReader(served.proxy.bootstrap, served.topic, RACK) as reader,
    ):
        reader.read_until(400)
        reader.read_from(2, FETCHED)  # at the tail the leader redirects it to the follower
        from_leader, from_follower = reader.bytes_from(1), reader.bytes_from(2)
        reader.read_until(served.producer.counts[0] + 50)
        reader.read_from(2, from_follower + 50 * 300)
        assert reader.bytes_from(1) - from_leader < 50 * 300
        # The client asks the follower for deleted offsets, too, and the proxy answers.
        catches = served.proxy.metric("fetchproxy_catches_total", served.topic)
        before = reader.bytes_from(2)
        reader.seek(0)
        reader.read_until(served.producer.counts[0])
        assert served.proxy.metric("fetchproxy_catches_total", served.topic) > catches
        reader.read_from(2, before + 400 * 300)
        expected = served.producer.expected()[0]
        assert reader.read == expected[: len(reader.read)]


def test_java_reads_from_the_replica_in_its_rack(scene: MakeScene, tmp_path: Path) -> None:
    with (
        scene("cl-racks-java", [[1, 2, 3]], java=False) as served,
        JavaReader(served.proxy.bootstrap, served.topic, tmp_path, client_rack=RACK) as java,
    ):
        count = served.producer.counts[0] + 50
        records = java.records(count)
        assert records == served.producer.expected()[0][: len(records)]
        java.records(len(records) + 50)
        fetches = [line for line in java.log().splitlines() if "Sending FETCH request" in line]
        assert " to node 2: " in fetches[-1], fetches[-1]
        assert any(" to node 1: " in line for line in fetches), "nobody has sent it there"


def lose_start(cluster: KafkaCluster, producer: SteadyProducer, topic: str, node_id: int) -> None:
    """The follower's retention deletes records that the leader still has."""
    producer.produce(600)
    data = cluster.nodes[node_id].data_dir / f"{topic}-0"
    wait_for("a follower that forgets", lambda: not (data / f"{0:020}.log").exists())
    leader = cluster.nodes[1].data_dir / f"{topic}-0"
    assert (leader / f"{0:020}.log").exists()


@pytest.mark.parametrize("archived", [False, True])
def test_a_follower_that_has_forgotten_what_its_leader_has(
    three_brokers: KafkaCluster, cluster_proxy: ProxyProcess, archived: bool
) -> None:
    """The follower's OffsetOutOfRange must cause no reset and no wait: the leader has the data."""
    topic = f"{'cl' if archived else 'plain'}-follower-forgets"
    small = {
        "internal.segment.bytes": "20000",
        "retention.bytes": "20000",
        "file.delete.delay.ms": "100",
    }
    three_brokers.create_topic(topic, [[1, 2, 3]], config=small)
    producer = SteadyProducer(three_brokers.bootstrap, topic, 1, each_s=0.05)
    producer.produce(20)
    with RackReader(cluster_proxy.bootstrap, topic, RACK) as reader:
        reader.read_until(20)
        reader.read_from(2, FETCHED)
        producer.produce(5)
        before = reader.bytes_from(2)
        reader.read_until(25)
        reader.read_from(2, before + 5 * 300)
        reader.pause()
        lose_start(three_brokers, producer, topic, node_id=2)
        caught = cluster_proxy.metric("fetchproxy_catches_total", topic)
        reader.resume()
        reader.read_until(625)
        assert reader.read == producer.expected()[0]
        catches = cluster_proxy.metric("fetchproxy_catches_total", topic) - caught
        assert 1 <= catches <= 60  # not one for each poll
