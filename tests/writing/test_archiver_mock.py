"""The archiver against librdkafka's mock brokers and a local directory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import structlog
from archive_harness import (
    Archive,
    archived_up_to,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
    until_true,
)
from confluent_kafka import Producer
from fetchproxy_protocol.record_batch import walk
from memory_object_store import MemoryObjectStore
from test_segment_writer import small_disk

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.errors import StorageUnavailable
from fetchproxy.model import RemoteLogSegmentState, TopicIdPartition
from fetchproxy.segments.continued_topic import ContinuedTopic
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.archive_identity import ArchiveIdentity, HandedOver
from fetchproxy.storage.stores.object_store import ObjectStore
from fetchproxy.writing.remote_log_manager import RemoteLogManager
from lab.mock_cluster import MockCluster

TOPIC = "orders"


@pytest.fixture
def producer(mock_cluster: MockCluster) -> Iterator[Producer]:
    client = Producer(
        {"bootstrap.servers": mock_cluster.bootstrap, "linger.ms": 5, "batch.size": 20_000}
    )
    yield client
    assert client.flush(180) == 0


def produce(producer: Producer, count: int, partitions: int = 1, size: int = 100) -> None:
    for i in range(count):
        for partition in range(partitions):
            producer.produce(TOPIC, value=b"v" * size, key=str(i).encode(), partition=partition)
        if i % 500 == 499:
            assert producer.flush(180) == 0
    assert producer.flush(180) == 0


@asynccontextmanager
async def archiving(
    mock: MockCluster, store: Path | ObjectStore, **changes: Any
) -> AsyncIterator[tuple[Archive, RemoteLogManager, Cluster]]:
    """An archive, and one archiver of the topic."""
    async with (
        open_archive(store) as archive,
        running_archiver(mock.bootstrap, archive, TOPIC, **changes) as (manager, cluster),
    ):
        yield archive, manager, cluster


async def test_segments_hold_what_the_broker_has(
    mock_cluster: MockCluster, producer: Producer, tmp_path: Path
) -> None:
    produce(producer, 3_000, partitions=4)
    async with archiving(mock_cluster, tmp_path / "store", segment_bytes_max=65_536) as (
        archive,
        manager,
        cluster,
    ):
        await until(manager, archived_up_to(TOPIC, dict.fromkeys(range(4), 3_000)))
        for tp in await tps(cluster, TOPIC):
            segments = (await archive.view(tp)).segments
            assert len(segments) > 3
            assert all(s.segment_size_bytes <= 65_536 for s in segments)
            assert segments[0].start_offset == 0
            for before, after in pairwise(segments):
                assert after.start_offset == before.end_offset + 1
            assert not any(s.has_aborted_txns for s in segments)
            expected = await broker_batches(cluster, tp, 0, 3_000)
            assert await archive.batches(tp) == expected
        status = manager.status()[0]
        assert (status.archive_start, status.archive_end, status.lag_offsets) == (0, 3_000, 0)
        assert status.margin_offsets == 3_000
        assert status.last_error is None
        assert status.last_success_ms is not None


async def test_a_batch_larger_than_a_segment(
    mock_cluster: MockCluster, producer: Producer, tmp_path: Path
) -> None:
    for _ in range(3):
        produce(producer, 1, size=50_000)
    async with archiving(mock_cluster, tmp_path / "store", segment_bytes_max=4_096) as (
        archive,
        manager,
        cluster,
    ):
        await until(manager, archived_up_to(TOPIC, {0: 3}))
        tp = (await tps(cluster, TOPIC))[0]
        segments = (await archive.view(tp)).segments
        assert [(s.start_offset, s.end_offset) for s in segments] == [(0, 0), (1, 1), (2, 2)]
        assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, 3)


async def test_resumes_where_the_archive_ends(
    mock_cluster: MockCluster, producer: Producer, tmp_path: Path
) -> None:
    for round_number in range(3):
        produce(producer, 500)
        async with archiving(
            mock_cluster, tmp_path / "store", segment_bytes_max=16_384, spool_dir=tmp_path / "spool"
        ) as (archive, manager, cluster):
            end = 500 * (round_number + 1)
            await until(manager, archived_up_to(TOPIC, {0: end}))
            tp = (await tps(cluster, TOPIC))[0]
            assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, end)
        assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.parametrize("segment_bytes_max", [65_536, 64 * 1024 * 1024])
async def test_what_the_broker_forgot_is_a_recorded_gap(
    mock_cluster: MockCluster, producer: Producer, tmp_path: Path, segment_bytes_max: int
) -> None:
    produce(producer, 100)
    async with open_archive(tmp_path / "store") as archive:
        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC) as (manager, _):
            await until(manager, archived_up_to(TOPIC, {0: 100}))
        # The mock keeps 5 MiB a partition: the next offsets are lost while no archiver runs.
        produce(producer, 8_000, size=1_000)
        with structlog.testing.capture_logs() as logs:
            async with running_archiver(
                mock_cluster.bootstrap, archive, TOPIC, segment_bytes_max=segment_bytes_max
            ) as (manager, cluster):
                await until(manager, archived_up_to(TOPIC, {0: 8_100}))
                tp = (await tps(cluster, TOPIC))[0]
                start = (await cluster.log_offsets(tp)).log_start_offset
                behind_gap = await broker_batches(cluster, tp, start, 8_100)
        assert start > 100
        assert (await archive.batches(tp)).endswith(behind_gap)
        assert (await archive.view(tp)).gaps() == [(100, start - 1)]
        gaps = [entry for entry in logs if entry["event"] == "archive_gap"]
        assert [(g["first_lost_offset"], g["last_lost_offset"]) for g in gaps] == [(100, start - 1)]


async def forge_metadata(
    bootstrap: str, archive: Archive, old: bytes, new: bytes
) -> TopicIdPartition:
    """Archive 100 records, and forge the metadata of the last segment."""
    async with running_archiver(bootstrap, archive, TOPIC) as (manager, cluster):
        await until(manager, archived_up_to(TOPIC, {0: 100}))
        tp = (await tps(cluster, TOPIC))[0]
    segment = (await archive.view(tp)).segments[-1]
    key = archive.storage.rsm.object_key(segment, SegmentFile.METADATA)
    raw = await archive.storage.objects.get_segment_metadata(key)
    forged = raw.replace(b'"end_offset": 99', b'"end_offset": 999').replace(old, new)
    assert forged != raw
    await archive.storage.objects.put_segment_metadata(segment, forged)
    return tp


async def test_an_archive_that_goes_on_above_its_log_in_one_epoch_stops_the_partition(
    mock_cluster: MockCluster, producer: Producer, tmp_path: Path
) -> None:
    """No election cut that log; tests/e2e/cluster covers logs cut by an election."""
    produce(producer, 100)
    async with open_archive(tmp_path / "store") as archive:
        tp = await forge_metadata(mock_cluster.bootstrap, archive, b"", b"")
        with structlog.testing.capture_logs() as logs:
            async with running_archiver(mock_cluster.bootstrap, archive, TOPIC) as (manager, _):
                await until(manager, lambda statuses: any(s.stopped for s in statuses))
                produce(producer, 10)
                await asyncio.sleep(0.2)  # several process intervals
                status = next(s for s in manager.status() if s.tp.partition == 0)
        assert status.last_error is not None
        assert "has lost archived records, up to offset 1000," in status.last_error
        assert [e["log_level"] for e in logs if e["event"] == "partition_stopped"] == ["error"]
        (kept_segment,) = (await archive.view(tp)).segments
        assert (kept_segment.end_offset, kept_segment.copied_end_offset) == (999, None)


async def test_a_log_without_epochs_that_ends_below_the_archive_stops_the_partition(
    mock_cluster: MockCluster, producer: Producer, tmp_path: Path
) -> None:
    produce(producer, 100)
    async with open_archive(tmp_path / "store") as archive:
        epochs = b'"leader_epochs": [\n  {\n   "epoch": 0,\n   "start_offset": 0\n  }\n ]'
        tp = await forge_metadata(mock_cluster.bootstrap, archive, epochs, b'"leader_epochs": []')
        with structlog.testing.capture_logs() as logs:
            async with running_archiver(mock_cluster.bootstrap, archive, TOPIC) as (manager, _):
                await until(manager, lambda statuses: any(s.stopped for s in statuses))
                await asyncio.sleep(0.2)  # several process intervals
                status = next(s for s in manager.status() if s.tp.partition == 0)
        assert status.last_error is not None
        assert "archived up to offset 1000, but the leader's log ends below" in status.last_error
        assert [e["log_level"] for e in logs if e["event"] == "partition_stopped"] == ["error"]
        view = await archive.view(tp)
        assert (view.log_end_offset, view.segments[-1].segment_leader_epochs) == (1_000, ())


async def test_only_whole_names_match_whatever_they_begin_with(
    mock_cluster: MockCluster, producer: Producer, tmp_path: Path
) -> None:
    for topic in (TOPIC, "orders-2", "__orders"):
        producer.produce(topic, value=b"v", partition=0)
    assert producer.flush(180) == 0
    async with open_archive(tmp_path / "store") as archive:
        for pattern, expected in ((TOPIC, {TOPIC}), (".*", {TOPIC, "orders-2", "__orders"})):
            async with running_archiver(mock_cluster.bootstrap, archive, pattern) as (manager, _):
                partitions = 4 * len(expected)
                await until(manager, lambda statuses, n=partitions: len(statuses) == n)
                assert {s.tp.topic for s in manager.status()} == expected


class FailingStore(MemoryObjectStore):
    """A store whose uploads of `.log` objects fail as long as `error` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.failures = 0
        self.hang = False

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        if self.hang:
            self.failures += 1
            await asyncio.Event().wait()
        if self.error is not None:
            self.failures += 1
            raise self.error
        await super().put_file(key, path, settled=settled)


async def test_a_failing_store_is_retried_with_new_ids(
    mock_cluster: MockCluster, producer: Producer
) -> None:
    produce(producer, 200)
    store = FailingStore()
    store.error = StorageUnavailable("out of order")
    async with archiving(mock_cluster, store) as (archive, manager, cluster):
        await until_true(lambda: store.failures >= 3)
        tp = (await tps(cluster, TOPIC))[0]
        assert (await archive.view(tp)).segments == ()
        await until(manager, lambda statuses: any(s.last_error for s in statuses))
        store.error = None
        await until(manager, archived_up_to(TOPIC, {0: 200}))
        view = await archive.view(tp)
        assert view.unfinished == ()  # failed attempts have been removed
        assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, 200)
        # A segment is visible before the turn that copied it has ended.
        await until(
            manager,
            lambda statuses: all(s.last_error is None for s in statuses if s.tp.partition == 0),
        )


async def test_a_copy_that_hangs_is_given_up(mock_cluster: MockCluster, producer: Producer) -> None:
    produce(producer, 200)
    store = FailingStore()
    store.hang = True
    async with archiving(mock_cluster, store, copy_max_ms=300) as (archive, manager, cluster):
        await until(manager, lambda statuses: any(s.last_error for s in statuses))
        store.hang = False
        await until(manager, archived_up_to(TOPIC, {0: 200}))
        tp = (await tps(cluster, TOPIC))[0]
        assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, 200)


async def test_a_dangling_attempt_holds_up_nothing(
    mock_cluster: MockCluster, producer: Producer
) -> None:
    """A killed archiver leaves COPY_SEGMENT_STARTED, and its copy may still be in progress."""
    produce(producer, 200)
    store = FailingStore()
    store.hang = True
    async with open_archive(store) as archive:
        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC) as (_, cluster):
            await until_true(lambda: store.failures > 0)
            tp = (await tps(cluster, TOPIC))[0]
        (attempt_left,) = (await archive.view(tp)).unfinished
        assert attempt_left.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED
        store.hang = False
        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC) as (manager, _):
            await until(manager, archived_up_to(TOPIC, {0: 200}))
        assert (await archive.view(tp)).unfinished == (attempt_left,)
        assert await archive.storage.store.get(
            archive.storage.rsm.object_key((await archive.view(tp)).segments[0], SegmentFile.LOG)
        )


async def test_two_archivers_at_once_lose_and_double_nothing(
    mock_cluster: MockCluster, producer: Producer, tmp_path: Path
) -> None:
    produce(producer, 1_000, partitions=2)
    async with (
        open_archive(tmp_path / "store") as one_archive,
        open_archive(tmp_path / "store") as yours,
        running_archiver(mock_cluster.bootstrap, one_archive, TOPIC, segment_bytes_max=16_384) as (
            manager,
            cluster,
        ),
        running_archiver(mock_cluster.bootstrap, yours, TOPIC, segment_bytes_max=12_288),
    ):
        produce(producer, 1_000, partitions=2)
        await until(manager, archived_up_to(TOPIC, {0: 2_000, 1: 2_000}))
        for tp in (await tps(cluster, TOPIC))[:2]:
            view = await one_archive.view(tp)
            assert view.gaps() == []
            for offset in range(2_000):
                segment = view.segment_at_or_after(offset)
                assert segment is not None
                assert segment.start_offset <= offset
            for segment in view.segments:
                log = await one_archive.object(segment, SegmentFile.LOG)
                assert next(iter(walk(log))).base_offset == segment.start_offset


async def test_what_another_archiver_has_copied_meanwhile_is_not_copied_again(
    mock_cluster: MockCluster, producer: Producer
) -> None:
    """The slow archiver has accumulated the same offsets; it checks the archive before it
    copies.
    """
    produce(producer, 200)
    store = MemoryObjectStore()
    async with (
        open_archive(store) as slow,
        open_archive(store) as quick,
        running_archiver(mock_cluster.bootstrap, slow, TOPIC, segment_age_max_ms=3_000) as (
            manager,
            cluster,
        ),
    ):
        await until(manager, lambda statuses: any(s.accumulated_bytes > 0 for s in statuses))
        async with running_archiver(mock_cluster.bootstrap, quick, TOPIC) as (other, _):
            await until(other, archived_up_to(TOPIC, {0: 200}))
        tp = (await tps(cluster, TOPIC))[0]
        copied = (await quick.view(tp)).segments
        await until(manager, archived_up_to(TOPIC, {0: 200}))
        await slow.view(tp)
        assert slow.rlmm.list_remote_log_segments(tp) == copied


async def test_a_topic_that_continues_a_log_since_a_moment_ago_is_archived_there(
    mock_cluster: MockCluster, producer: Producer
) -> None:
    """The archiver has its first records already, under the id that brokers know."""
    produce(producer, 100)
    async with open_archive(MemoryObjectStore()) as archive:
        identity = ArchiveIdentity(uuid4(), handed_over=HandedOver("old", 1))
        await archive.storage.identity.state(identity)
        async with running_archiver(
            mock_cluster.bootstrap,
            archive,
            TOPIC,
            segment_age_max_ms=600_000,
            segment_bytes_max=30_000,
        ) as (manager, cluster):
            await until(manager, lambda statuses: any(s.accumulated_bytes > 0 for s in statuses))
            tp = (await tps(cluster, TOPIC))[0]
            log = tp._replace(topic_id=uuid4())
            await archive.storage.objects.put_continued_topic(
                ContinuedTopic(TOPIC, tp.topic_id, log.topic_id, "new", (0,), 1)
            )
            await asyncio.to_thread(produce, producer, 1_000)
            await until(manager, lambda statuses: any(s.archive_end for s in statuses))
        assert {one.topic_id for one in await archive.rlmm.list_partitions()} == {log.topic_id}
        assert (await archive.view(log)).log_start_offset == 0


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[:-1], lambda content: content[:-1] + bytes([content[-1] ^ 1])],
    ids=["cut", "changed"],
)
async def test_a_spool_file_that_is_damaged_is_read_again(
    mock_cluster: MockCluster,
    producer: Producer,
    tmp_path: Path,
    damage: Callable[[bytes], bytes],
) -> None:
    produce(producer, 100)
    spool = tmp_path / "spool"
    async with archiving(
        mock_cluster,
        tmp_path / "store",
        segment_age_max_ms=600_000,
        segment_bytes_max=30_000,
        spool_dir=spool,
    ) as (archive, manager, cluster):
        await until(manager, lambda statuses: any(s.accumulated_bytes > 0 for s in statuses))
        for path in spool.glob("*/*.log"):
            path.write_bytes(damage(path.read_bytes()))
        produce(producer, 1_000)
        await until(manager, lambda statuses: any((s.archive_end or 0) > 200 for s in statuses))
        tp = (await tps(cluster, TOPIC))[0]
        archived = await archive.batches(tp)
        assert (await broker_batches(cluster, tp, 0, 1_100)).startswith(archived)


async def test_on_a_disk_smaller_than_a_segment_shorter_ones_are_cut(
    mock_cluster: MockCluster,
    producer: Producer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spool = tmp_path / "spool"
    small_disk(monkeypatch, spool, 40_000)
    for _ in range(10):
        produce(producer, 100)
    async with archiving(
        mock_cluster,
        tmp_path / "store",
        segment_age_max_ms=600_000,
        fetch_bytes_max=16_384,
        spool_dir=spool,
    ) as (archive, manager, cluster):
        await until(manager, lambda statuses: any((s.archive_end or 0) > 500 for s in statuses))
        tp = (await tps(cluster, TOPIC))[0]
        segments = (await archive.view(tp)).segments
        assert len(segments) > 1
        assert all(segment.segment_size_bytes <= 40_000 for segment in segments)
        archived = await archive.batches(tp)
        assert (await broker_batches(cluster, tp, 0, 1_000)).startswith(archived)
