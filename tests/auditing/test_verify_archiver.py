"""What the archiver writes verifies as sound; whatever it does to transactions is understood."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import test_archiver_kafka as kafka_traffic
import test_archiver_mock as mock_traffic
from archive_harness import Archive, archived_up_to, open_archive, running_archiver, tps, until
from confluent_kafka import Producer
from planted_archive import gaps_of
from whole_archive import verify_archive

from fetchproxy.auditing.reports import VerifyReport
from fetchproxy.segments.object_keys import SegmentFile
from lab.kafka import KafkaServer
from lab.mock_cluster import MockCluster


async def verified(archive: Archive) -> VerifyReport:
    return await verify_archive(archive.storage, archive.rlmm, chunk_bytes=10_000)


async def test_a_plain_archive(mock_cluster: MockCluster, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap, "batch.size": 20_000})
    mock_traffic.produce(producer, 2_000, partitions=4)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(
            mock_cluster.bootstrap, archive, mock_traffic.TOPIC, segment_bytes_max=65_536
        ) as (manager, _),
    ):
        await until(manager, archived_up_to(mock_traffic.TOPIC, dict.fromkeys(range(4), 2_000)))
        report = await verified(archive)
        assert report.clean, report.faults
        assert report.partitions == 4
        assert report.segments > 12
        assert gaps_of(report) == []


@pytest.mark.kafka
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_transactional_archive(
    kafka_server: KafkaServer, topic: str, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    await asyncio.to_thread(kafka_traffic.transactions, kafka_server, topic, rng, 60)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(
            kafka_server.bootstrap, archive, topic, segment_bytes_max=1_024, fetch_bytes_max=2_048
        ) as (manager, cluster),
    ):
        (tp,) = await tps(cluster, topic)
        end = await kafka_traffic.end_of(cluster, tp)
        await until(manager, archived_up_to(topic, {0: end}))
        report = await verified(archive)
        assert report.clean, report.faults
        segments = (await archive.view(tp)).segments
        with_aborted = [segment for segment in segments if segment.has_aborted_txns]
        assert len(with_aborted) > 3
        # And it is the indexes that make it so: with one emptied it is not.
        key = archive.storage.rsm.object_key(with_aborted[1], SegmentFile.TXN)
        await archive.storage.store.put(key, b"")
        assert {fault.object_key for fault in (await verified(archive)).faults} == {key}
