"""Archived data has the brokers' leader epochs.

The Java client checks its position against them (KIP-320) and never finds a difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from java_reader import JavaReader
from proxy_process import ProxyProcess, wait_for
from steady_producer import SteadyProducer
from topic_data import archived_ends, trim

from fetchproxy.config.schema import MetadataConfig, StoreConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentMetadata
from fetchproxy.storage.remote_storage import open_store
from lab.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.kafka

TOPIC = "cl-epochs"
EACH = 150  # records per leader
LEADERS = (1, 2, 3, 1, 2)
Epochs = list[tuple[int, int]]  # (epoch, first offset)


@dataclass
class ManyLeaders:
    """`epochs`: the last leader's own checkpoint before its log was trimmed."""

    producer: SteadyProducer
    epochs: Epochs


def broker_epochs(cluster: KafkaCluster, node_id: int) -> Epochs:
    """Kafka's checkpoint file: a version, a count, then epoch and start offset on each line."""
    path = cluster.nodes[node_id].data_dir / f"{TOPIC}-0" / "leader-epoch-checkpoint"
    version, count, *entries = path.read_text().split("\n")
    assert version == "0"
    pairs = [tuple(map(int, entry.split())) for entry in entries if entry]
    assert len(pairs) == int(count)
    return [(epoch, start) for epoch, start in pairs]


async def archived_segments(store: str) -> list[RemoteLogSegmentMetadata]:
    async with (
        open_store(store, StoreConfig()) as storage,
        StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
    ):
        (tp,) = [tp for tp in await rlmm.list_partitions() if tp.topic == TOPIC]
        view = await rlmm.refresh(tp, asyncio.get_running_loop().time())
        return list(view.segments)


@pytest.fixture(scope="module")
def many_leaders(
    three_brokers: KafkaCluster, cluster_proxy: ProxyProcess, cluster_store: str
) -> Iterator[ManyLeaders]:
    """Each leader took some records; the brokers keep only the last records of the last leader."""
    three_brokers.create_topic(TOPIC, [[LEADERS[0], 2, 3]])
    with SteadyProducer(three_brokers.bootstrap, TOPIC, 1, each_s=3600) as producer:
        for leader in LEADERS:
            three_brokers.move_leaders(TOPIC, {0: leader})
            producer.produce(EACH)
        end = {0: EACH * len(LEADERS)}
        wait_for(f"archive of {end}", lambda: archived_ends(cluster_store, TOPIC) == end)
        epochs = broker_epochs(three_brokers, LEADERS[-1])
        trim(three_brokers.bootstrap, TOPIC, {0: end[0] - 20})
        yield ManyLeaders(producer, epochs)


async def test_segments_have_the_brokers_epochs(
    many_leaders: ManyLeaders, cluster_store: str
) -> None:
    expected = many_leaders.epochs
    assert [start for _, start in expected] == [EACH * n for n in range(len(LEADERS))]
    segments = await archived_segments(cluster_store)
    assert len(segments) > len(LEADERS)
    for segment in segments:
        first, last = segment.start_offset, segment.end_offset
        inside = [(e, s) for e, s in expected if first < s <= last]
        before = [e for e, s in expected if s <= first][-1]
        epochs_found = [
            (entry.epoch, entry.start_offset) for entry in segment.segment_leader_epochs
        ]
        assert epochs_found == [(before, first), *inside]


def test_a_timestamp_is_found_with_the_epoch_of_its_leader(
    many_leaders: ManyLeaders, cluster_proxy: ProxyProcess
) -> None:
    where = kafka.TopicPartition(TOPIC, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster_proxy.bootstrap)
    try:
        for epoch, start in many_leaders.epochs:
            for offset in (start, start + 1, start + EACH - 1):
                time_ms = many_leaders.producer.first_ms + offset
                offset_and_time = consumer.offsets_for_times({where: time_ms})[where]
                assert (offset_and_time.offset, offset_and_time.timestamp) == (offset, time_ms)
                assert offset_and_time.leader_epoch == epoch
    finally:
        consumer.close()


def test_java_goes_on_inside_the_archive_at_an_epoch_that_brokers_forgot(
    many_leaders: ManyLeaders, three_brokers: KafkaCluster, cluster_proxy: ProxyProcess,
    tmp_path: Path,
) -> None:  # fmt: skip
    """It commits its position with the epoch and asks the leader about that epoch before it reads.

    It asks again after each change of leader.
    """
    producer = many_leaders.producer
    offset, epoch = 100, many_leaders.epochs[0][0]
    assert epoch not in dict(broker_epochs(three_brokers, LEADERS[-1]))
    commit(cluster_proxy.bootstrap, "epochs-java", offset, epoch)
    with JavaReader(
        cluster_proxy.bootstrap, TOPIC, tmp_path, group="epochs-java", metadata_max_age_ms=500
    ) as java:
        java.records(producer.counts[0] - offset)
        assert java.count_sent("OFFSET_FOR_LEADER_EPOCH") > 0, "it has not looked at its epoch"
        for leader in (3, 1):
            sent_before = java.count_sent("OFFSET_FOR_LEADER_EPOCH")
            three_brokers.move_leaders(TOPIC, {0: leader})
            wait_for(
                "a check of the position with the new leader",
                lambda sent_before=sent_before: (
                    java.count_sent("OFFSET_FOR_LEADER_EPOCH") > sent_before
                ),
            )
            producer.produce(30)
            records = java.records(producer.counts[0] - offset)
        assert records == producer.expected()[0][offset:]


def commit(bootstrap: str, group: str, offset: int, epoch: int) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        place = confluent_kafka.TopicPartition(TOPIC, 0, offset, leader_epoch=epoch)
        consumer.commit(offsets=[place], asynchronous=False)
        (committed,) = consumer.committed([place], timeout=30)
        assert (committed.offset, committed.leader_epoch) == (offset, epoch)
    finally:
        consumer.close()
