"""Three brokers behind one proxy: each has its own proxy address, and no other is shown."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka
import kafka
import pytest
from client_readers import PYTHON_CLIENTS
from confluent_kafka.admin import AdminClient
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, archived_ends, produce

from lab.mock_cluster import MockCluster

PARTITIONS = 4  # set by the mock cluster
ARCHIVE: dict[str, object] = {
    "archive.segment_bytes_max": 200_000,
    "archive.segment_age_max_ms": 300,
    "limits.writing.rlm_process_interval_ms": 50,
    "limits.writing.discovery_interval_ms": 200,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with MockCluster(broker_count=3) as three:
        yield three


@pytest.fixture(scope="module")
def topic(cluster: MockCluster) -> str:
    """A topic whose partitions have several leaders: one broker alone would prove nothing."""
    return cluster.topic_on_several_brokers("e2e-three")[0]


@pytest.fixture(scope="module")
def through(
    cluster: MockCluster, topic: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("three")
    with ProxyProcess(
        cluster.bootstrap, (folder / "store").as_uri(), folder, archive=topic, settings=ARCHIVE
    ) as proxy:
        yield proxy
        assert not proxy.logged("session_crashed") + proxy.logged("part_failed")


def test_only_the_proxys_addresses_are_shown(cluster: MockCluster, through: ProxyProcess) -> None:
    real = set(cluster.addresses.values())
    brokers_shown = (
        AdminClient({"bootstrap.servers": through.bootstrap}).list_topics(timeout=30).brokers
    )
    assert set(brokers_shown) == set(cluster.addresses)
    addresses = {f"{broker.host}:{broker.port}" for broker in brokers_shown.values()}
    assert len(addresses) == 3
    assert not addresses & real
    assert through.bootstrap not in addresses
    consumer = kafka.KafkaConsumer(bootstrap_servers=through.bootstrap)
    try:
        consumer.topics()
        addresses_seen = {f"{b.host}:{b.port}" for b in consumer._client.cluster.brokers()}
    finally:
        consumer.close()
    assert addresses_seen - {through.bootstrap} <= addresses


def test_all_partitions_are_written_archived_and_read(
    cluster: MockCluster, topic: str, through: ProxyProcess
) -> None:
    """More than a mock broker keeps (5 MiB a partition): the first part comes from the archive."""
    data = TopicData(topic)
    store = through.log.parent.joinpath("store").as_uri()
    for _ in range(3):  # no faster than the archiver, whose only source is the broker
        produce(
            through.bootstrap, data, 1_100, partition_count=PARTITIONS, size=2_000,
            batch_records=100,
        )  # fmt: skip
        ends = {p: len(records) for p, records in data.written.items()}
        wait_for(f"archive of {ends}", lambda ends=ends: archived_ends(store, topic) == ends)
    for partition in range(PARTITIONS):
        assert forgets(cluster.bootstrap, topic, partition)
    for read_all in PYTHON_CLIENTS.values():
        assert read_all(through.bootstrap, topic, ends) == data.written


def forgets(bootstrap: str, topic: str, partition: int) -> bool:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "low"})
    try:
        where = confluent_kafka.TopicPartition(topic, partition)
        return consumer.get_watermark_offsets(where, timeout=20)[0] > 0
    finally:
        consumer.close()
