"""A broker starts again with its own files from the archive, as docs/deploy/log-dirs.md says."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from archive_harness import Archive, broker_batches, open_archive, running_archiver, tps, until
from test_log_dirs_kafka import (
    SMALL_SEGMENTS,
    archived_to,
    log_dirs,
    produce,
    rolled_bases,
    segments,
    transactions,
)

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.model import IsolationLevel, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.segments.object_keys import SegmentFile
from lab.kafka import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPIC = "restored"


async def restore(archive: Archive, segment: RemoteLogSegmentMetadata, folder: Path) -> None:
    base, after = segment.start_offset, segment.end_offset + 1
    names = {
        SegmentFile.LOG: f"{base:020d}.log",
        SegmentFile.PRODUCER_SNAPSHOT: f"{after:020d}.snapshot",
    }
    if not segment.has_aborted_txns:
        names[SegmentFile.OFFSET_INDEX] = f"{base:020d}.index"
        names[SegmentFile.TIME_INDEX] = f"{base:020d}.timeindex"
    for file, name in names.items():
        (folder / name).write_bytes(await archive.object(segment, file))


async def aborted_everywhere(
    cluster: Cluster, tp: TopicIdPartition, ends: list[int]
) -> list[frozenset[tuple[int, int]]]:
    aborted_sets = []
    for offset in ends:
        fetched = await cluster.fetch(
            tp, offset, bytes_max=1, wait_max_ms=0, isolation=IsolationLevel.READ_COMMITTED
        )
        aborted_sets.append(frozenset(fetched.aborted))
    return aborted_sets


def log_since(kafka: KafkaServer, position: int) -> str:
    return kafka.log.read_bytes()[position:].decode()


async def test_a_broker_starts_with_restored_segments(
    own_kafka_server: KafkaServer, tmp_path: Path
) -> None:
    kafka = own_kafka_server
    kafka.create_topic(TOPIC, 1, SMALL_SEGMENTS)
    await asyncio.to_thread(produce, kafka, TOPIC, 2.5)
    await asyncio.to_thread(transactions, kafka, TOPIC, 60)
    bases = rolled_bases(kafka, TOPIC)
    async with open_archive(tmp_path / "store") as archive:
        async with running_archiver(
            kafka.bootstrap, archive, TOPIC, **log_dirs(kafka, tmp_path)
        ) as (manager, cluster):
            await until(manager, archived_to(TOPIC, bases[-1]))
            (tp,) = await tps(cluster, TOPIC)
            log = await broker_batches(cluster, tp, 0, bases[-1])
            aborted = await aborted_everywhere(cluster, tp, bases[:-1])
        segments_found = await segments(archive, tp)
        assert {s.has_aborted_txns for s in segments_found} == {True, False}, "both ways are shown"
        await asyncio.to_thread(kafka._server().stop, 60.0)
        folder = kafka.data_dir / f"{TOPIC}-0"
        for path in folder.iterdir():
            if path.stem.isdigit() and int(path.stem) < bases[-1]:
                path.unlink()
        for segment in segments_found:
            await restore(archive, segment, folder)
        # Without a clean shutdown the broker would rebuild everything anyway.
        assert (kafka.data_dir / ".kafka_cleanshutdown").exists()
        log_size = kafka.log.stat().st_size
        await asyncio.to_thread(kafka.start)
    rebuilt = re.findall(
        r"Could not find offset index file.*/(\d{20})\.log", log_since(kafka, log_size)
    )
    assert {int(base) for base in rebuilt} == {
        s.start_offset for s in segments_found if s.has_aborted_txns
    }
    async with Cluster(ClusterConfig(bootstrap=kafka.bootstrap)) as cluster:
        assert await broker_batches(cluster, tp, 0, bases[-1]) == log
        assert await aborted_everywhere(cluster, tp, bases[:-1]) == aborted
