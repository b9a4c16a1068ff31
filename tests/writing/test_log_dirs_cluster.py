"""A sidecar beside each of three brokers: the leader's sidecar copies each partition, once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from archive_harness import Archive, broker_batches, open_archive, running_archiver, tps
from confluent_kafka import Producer
from planted_archive import gaps_of
from test_log_dirs_kafka import SMALL_SEGMENTS
from whole_archive import verify_archive

from fetchproxy.writing.remote_log_manager import RemoteLogManager
from lab.kafka_cluster import KafkaCluster

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPIC = "beside"
NODES = (1, 2, 3)


def produce(cluster: KafkaCluster, megabytes: float, seed: int) -> None:
    rng = random.Random(seed)
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.size": 16_000}
    )
    for i in range(int(megabytes * 500)):
        for partition in range(3):
            producer.produce(TOPIC, value=rng.randbytes(2_000), partition=partition)
        if i % 200 == 199:
            assert producer.flush(180) == 0
    assert producer.flush(30) == 0


def rolled_end(cluster: KafkaCluster, node: int, partition: int) -> int:
    folder = cluster.nodes[node].data_dir / f"{TOPIC}-{partition}"
    return max(int(path.stem) for path in folder.glob("*.log"))


async def test_each_partition_is_copied_beside_its_leader(
    find_part: Callable[..., None], tmp_path: Path
) -> None:
    cluster = KafkaCluster()
    try:
        find_part("kafka", cluster.start)
        replicas = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
        cluster.create_topic(TOPIC, replicas, SMALL_SEGMENTS)
        async with open_archive(tmp_path / "store") as archive, AsyncExitStack() as stack:
            sidecars: dict[int, RemoteLogManager] = {}
            for node in NODES:
                sidecars[node], client = await stack.enter_async_context(
                    running_archiver(
                        cluster.bootstrap,
                        archive,
                        TOPIC,
                        log_dirs=str(cluster.nodes[node].data_dir),
                        spool_dir=tmp_path / "spool",
                    )
                )
            leaders = dict(enumerate(NODES))
            for life, moved in enumerate([{}, {0: 3, 1: 1}, {2: 1}]):
                if moved:
                    await asyncio.to_thread(cluster.move_leaders, TOPIC, moved)
                    leaders.update(moved)
                await asyncio.to_thread(produce, cluster, 2.5, life)
                await archived(archive, cluster, leaders)
                partitions_shown = {
                    node: {s.tp.partition for s in sidecar.status() if s.archive_end is not None}
                    for node, sidecar in sidecars.items()
                }
                for partition, leader in leaders.items():
                    assert partition in partitions_shown[leader]
            for tp in await tps(client, TOPIC):
                end = rolled_end(cluster, leaders[tp.partition], tp.partition)
                # Brokers roll at their own offsets: equal bytes show that no record is doubled.
                assert await archive.batches(tp) == await broker_batches(client, tp, 0, end)
                assert len((await archive.view(tp)).segments[-1].segment_leader_epochs) >= 1
            report = await verify_archive(archive.storage, archive.rlmm)
            assert report.faults == []
            assert gaps_of(report) == []
    finally:
        cluster.stop()


async def archived(archive: Archive, cluster: KafkaCluster, leaders: dict[int, int]) -> None:
    async with asyncio.timeout(120):
        while True:
            ends = {
                tp.partition: (await archive.view(tp)).log_end_offset
                for tp in await archive.rlmm.list_partitions()
            }
            if ends == {p: rolled_end(cluster, node, p) for p, node in leaders.items()}:
                return
            await asyncio.sleep(0.2)
