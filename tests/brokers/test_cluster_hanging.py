"""A broker that hangs (its connections stay open, nothing is answered) costs a moment, no more."""

from __future__ import annotations

from scripted_broker import TOPIC, ScriptedBroker, serving

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig

PATIENT_MS = 10_000  # three tenths of it while there is another broker


def hang(broker: ScriptedBroker) -> None:
    broker.override = lambda api_key, version, correlation_id: b""


async def test_metadata_comes_from_another_broker() -> None:
    hanging, alive = ScriptedBroker(node_id=1), ScriptedBroker(node_id=2)
    async with serving(hanging) as bootstrap, serving(alive):
        hanging.peers, alive.peers = {2: alive.port}, {1: hanging.port}
        config = ClusterConfig(bootstrap=bootstrap, request_max_ms=PATIENT_MS)
        async with Cluster(config) as cluster:
            assert [topic.name for topic in await cluster.topics()] == [TOPIC]
            hang(hanging)  # on a connection that is open, and was good
            await cluster.topics(max_age_ms=0)
            metadata_requests = hanging.requests.count(3)
            await cluster.topics(max_age_ms=0)
            assert hanging.requests.count(3) == metadata_requests, "it is asked first again"
