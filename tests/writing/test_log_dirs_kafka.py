"""The archiver beside a real broker, reading the broker's own segment files."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_harness import (
    Archive,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
    until_true,
)
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from fetchproxy_protocol.record_batch import walk
from memory_object_store import MemoryObjectStore
from planted_archive import gaps_of
from planted_log_dir import CLUSTER_ID, plant_log_dir
from whole_archive import verify_archive

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ArchiveConfig, ClusterConfig
from fetchproxy.errors import FetchProxyError, LogTruncated
from fetchproxy.model import IsolationLevel, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.segments.object_keys import KAFKA_FILES, SegmentFile
from fetchproxy.segments.side_files import aborted_in
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.remote_log_manager import open_log_dirs, open_source
from fetchproxy.writing.sources.log_dirs import open_log_dir
from fetchproxy.writing.sources.segment_accumulator import LogGap
from fetchproxy.writing.spool import Spool
from fetchproxy.writing.status import PartitionArchiveStatus
from lab.kafka import KafkaServer

FETCH_BYTES_MAX = WritingLimits().fetch_bytes_max

pytestmark = pytest.mark.kafka

SMALL_SEGMENTS = {"segment.bytes": str(1 << 20), "file.delete.delay.ms": "0"}


def produce(kafka: KafkaServer, topic: str, megabytes: float, seed: int = 1) -> None:
    """Produce incompressible records, about `megabytes` of log."""
    rng = random.Random(seed)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap, "linger.ms": 5, "batch.size": 16_000}
    )
    for i in range(int(megabytes * 500)):
        producer.produce(topic, value=rng.randbytes(2_000), key=str(i).encode(), partition=0)
        if i % 500 == 499:
            assert producer.flush(180) == 0
    assert producer.flush(180) == 0


def transactions(kafka: KafkaServer, topic: str, rounds: int, seed: int = 1) -> None:
    """Interleaved transactions, many of which span segment borders."""
    rng = random.Random(seed)
    producers = [
        Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"{topic}-{n}"})
        for n in range(3)
    ]
    for producer in producers:
        producer.init_transactions(30)
        producer.begin_transaction()
    for _ in range(rounds):
        producer = rng.choice(producers)
        for _ in range(rng.randint(1, 60)):
            producer.produce(topic, value=rng.randbytes(2_000), partition=0)
        assert producer.flush(180) == 0
        if rng.random() < 0.3:
            rng.choice([producer.commit_transaction, producer.abort_transaction])(30)
            producer.begin_transaction()
    for producer in producers:
        producer.abort_transaction(30)


def delete_records(kafka: KafkaServer, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, before)]).values():
        future.result(30)


def folder_of(kafka: KafkaServer, topic: str) -> Path:
    return kafka.data_dir / f"{topic}-0"


def rolled_bases(kafka: KafkaServer, topic: str) -> list[int]:
    """Base offsets of all segments; the last one is the active segment."""
    return sorted(int(path.stem) for path in folder_of(kafka, topic).glob("*.log"))


def log_dirs(kafka: KafkaServer, tmp_path: Path) -> dict[str, object]:
    """Settings with the spool on the broker's file system, so that segments are hard links."""
    spool = kafka.data_dir.parent / "spool"
    return {"log_dirs": str(kafka.data_dir), "spool_dir": spool}


def archived_to(topic: str, end: int) -> Callable[[list[PartitionArchiveStatus]], bool]:
    return lambda statuses: [s.archive_end for s in statuses if s.tp.topic == topic] == [end]


async def segments(archive: Archive, tp: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
    return list((await archive.view(tp)).segments)


async def sound(archive: Archive) -> None:
    report = await verify_archive(archive.storage, archive.rlmm)
    assert report.faults == []
    assert gaps_of(report) == []


async def test_a_file_that_was_cut_is_no_compacted_one(
    kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    """Both end between two batches. The leader has the records of one alone."""
    topic = create_topic(config=SMALL_SEGMENTS)
    await asyncio.to_thread(produce, kafka_server, topic, 2.5)
    data_dir, folder = tmp_path / "data", folder_of(kafka_server, topic)
    shutil.copytree(folder, data_dir / folder.name)
    shutil.copy(kafka_server.data_dir / "meta.properties", data_dir)
    cut = data_dir / folder.name / f"{0:020d}.log"
    *_, last = walk(cut.read_bytes())
    os.truncate(cut, last.position)
    settings = {"log_dirs": str(data_dir), "spool_dir": tmp_path / "spool"}
    expected = f"ends before offset {last.base_offset}, the next segment begins at"
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka_server.bootstrap, archive, topic, **settings) as (manager, _),
    ):
        await until(
            manager,
            lambda statuses: any(expected in (s.last_error or "") for s in statuses),
        )


async def test_rolled_segments_are_copied_as_they_are(
    kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = create_topic(config=SMALL_SEGMENTS)
    await asyncio.to_thread(produce, kafka_server, topic, 4.5)
    bases = rolled_bases(kafka_server, topic)
    assert len(bases) >= 4
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(
            kafka_server.bootstrap, archive, topic, **log_dirs(kafka_server, tmp_path)
        ) as (manager, cluster),
    ):
        await until(manager, archived_to(topic, bases[-1]))
        (tp,) = await tps(cluster, topic)
        segments_found = await segments(archive, tp)
        assert [s.start_offset for s in segments_found] == bases[:-1]
        folder = folder_of(kafka_server, topic)
        for segment, base in zip(segments_found, bases, strict=False):
            for file, name in (
                (SegmentFile.LOG, f"{base:020d}.log"),
                (SegmentFile.OFFSET_INDEX, f"{base:020d}.index"),
                (SegmentFile.TIME_INDEX, f"{base:020d}.timeindex"),
                (SegmentFile.PRODUCER_SNAPSHOT, f"{segment.end_offset + 1:020d}.snapshot"),
            ):
                assert await archive.object(segment, file) == (folder / name).read_bytes(), name
            assert (await archive.object(segment, SegmentFile.OFFSET_INDEX)) != b""
        assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, bases[-1])
        await sound(archive)
        # The active segment is untouched, and the links are removed.
        links = [path.stat().st_nlink for path in folder.glob("*.log")]
        assert links == [1] * len(bases)


async def test_aborted_transactions_are_those_of_the_broker(
    kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = create_topic(config=SMALL_SEGMENTS)
    await asyncio.to_thread(transactions, kafka_server, topic, 80)
    bases = rolled_bases(kafka_server, topic)
    assert len(bases) >= 4
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(
            kafka_server.bootstrap, archive, topic, **log_dirs(kafka_server, tmp_path)
        ) as (manager, cluster),
    ):
        await until(manager, archived_to(topic, bases[-1]))
        (tp,) = await tps(cluster, topic)
        spanning = 0
        for segment in await segments(archive, tp):
            entries = await archive.aborted(segment)
            log = await archive.object(segment, SegmentFile.LOG)
            spanning += sum(e.first_offset < segment.start_offset for e in entries)
            for header in walk(log):
                fetched = await cluster.fetch(
                    tp,
                    header.base_offset,
                    bytes_max=1,
                    wait_max_ms=0,
                    isolation=IsolationLevel.READ_COMMITTED,
                )
                # A broker may list transactions that begin after the bytes it returned.
                expected = {e for e in fetched.aborted if e[1] <= header.last_offset}
                listed = aborted_in(entries, header.base_offset, header.last_offset)
                assert {(e.producer_id, e.first_offset) for e in listed} == expected
        assert spanning > 0, "no aborted transaction reached over a border: nothing was shown"
        await sound(archive)


async def test_both_sources_in_one_history(
    kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    """broker → log-dirs → broker; the two sources have different segment borders."""
    topic = create_topic(config=SMALL_SEGMENTS)
    await asyncio.to_thread(transactions, kafka_server, topic, 30, 2)
    async with open_archive(tmp_path / "store") as archive:
        by_fetch = {"segment_bytes_max": 300_000}
        async with running_archiver(kafka_server.bootstrap, archive, topic, **by_fetch) as (
            manager,
            cluster,
        ):
            (tp,) = await tps(cluster, topic)
            first_end = await stable_end(cluster, tp)
            await until(manager, archived_to(topic, first_end))
        await asyncio.to_thread(transactions, kafka_server, topic, 70, 3)
        bases = rolled_bases(kafka_server, topic)
        assert first_end not in bases, "the border must lie inside a rolled segment"
        assert sum(base > first_end for base in bases) >= 2
        async with running_archiver(
            kafka_server.bootstrap, archive, topic, **log_dirs(kafka_server, tmp_path)
        ) as (manager, cluster):
            await until(manager, archived_to(topic, bases[-1]))
        taken = [s for s in await segments(archive, tp) if s.start_offset >= first_end]
        assert [s.start_offset for s in taken[1:]] == [b for b in bases[:-1] if b > first_end]
        # The cut segment has no indexes, as they would point elsewhere; its snapshot is valid.
        present = [await kafka_files(archive, segment) for segment in taken[:2]]
        assert present == [{SegmentFile.PRODUCER_SNAPSHOT}, set(KAFKA_FILES)]
        async with running_archiver(kafka_server.bootstrap, archive, topic, **by_fetch) as (
            manager,
            cluster,
        ):
            end = await stable_end(cluster, tp)
            await until(manager, archived_to(topic, end))
            assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, end)
        await sound(archive)


async def test_a_trimmed_log_begins_inside_a_segment(
    kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = create_topic(config=SMALL_SEGMENTS)
    await asyncio.to_thread(produce, kafka_server, topic, 3.5)
    bases = rolled_bases(kafka_server, topic)
    start = bases[1] + 7
    delete_records(kafka_server, topic, start)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(
            kafka_server.bootstrap, archive, topic, **log_dirs(kafka_server, tmp_path)
        ) as (manager, cluster),
    ):
        await until(manager, archived_to(topic, bases[-1]))
        (tp,) = await tps(cluster, topic)
        assert (await segments(archive, tp))[0].start_offset == start
        assert await archive.batches(tp) == await broker_batches(cluster, tp, start, bases[-1])
        await sound(archive)


async def test_records_below_the_lso_only(
    kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = create_topic(config=SMALL_SEGMENTS)
    await asyncio.to_thread(produce, kafka_server, topic, 1.5)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value=b"open", partition=0)
    assert producer.flush(180) == 0
    await asyncio.to_thread(produce, kafka_server, topic, 3.0)
    bases = rolled_bases(kafka_server, topic)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(
            kafka_server.bootstrap, archive, topic, **log_dirs(kafka_server, tmp_path)
        ) as (manager, cluster),
    ):
        (tp,) = await tps(cluster, topic)
        stable = await stable_end(cluster, tp)
        settled = max(base for base in bases if base <= stable)
        assert settled < bases[-1], "rolled segments above the LSO are needed"
        await until(manager, archived_to(topic, settled))
        await asyncio.sleep(0.5)  # many process intervals
        assert manager.status()[0].archive_end == settled
        producer.commit_transaction(30)
        await until(manager, archived_to(topic, bases[-1]))


class HeldStore(MemoryObjectStore):
    """Uploads of logs wait until `go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = asyncio.Event()
        self.go_on = asyncio.Event()

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        self.waiting.set()
        await self.go_on.wait()
        await super().put_file(key, path, settled=settled)


@pytest.fixture
def kafka_that_deletes_at_once(
    serve_part: Callable[[str, KafkaServer], Iterator[KafkaServer]],
) -> Iterator[KafkaServer]:
    often = {"log.retention.check.interval.ms": "50", "log.initial.task.delay.ms": "50"}
    yield from serve_part("kafka", KafkaServer(often))


async def test_a_segment_that_is_deleted_under_its_copy(
    kafka_that_deletes_at_once: KafkaServer, tmp_path: Path
) -> None:
    kafka = kafka_that_deletes_at_once
    topic = kafka.create_topic("deleted", config=SMALL_SEGMENTS)
    await asyncio.to_thread(produce, kafka, topic, 2.5)
    bases = rolled_bases(kafka, topic)
    store = HeldStore()
    async with (
        open_archive(store) as archive,
        running_archiver(kafka.bootstrap, archive, topic, **log_dirs(kafka, tmp_path)) as (
            manager,
            cluster,
        ),
    ):
        (tp,) = await tps(cluster, topic)
        expected = await broker_batches(cluster, tp, 0, bases[-1])
        await store.waiting.wait()
        await asyncio.to_thread(delete_records, kafka, topic, bases[1])
        await until_true(lambda: rolled_bases(kafka, topic) == bases[1:])
        assert manager.status()[0].archive_end is None
        store.go_on.set()
        await until(manager, archived_to(topic, bases[-1]))
        assert await archive.batches(tp) == expected


async def test_where_no_link_can_be_made_it_is_copied(
    kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    spool = Path("/dev/shm")
    if not spool.is_dir() or spool.stat().st_dev == kafka_server.data_dir.stat().st_dev:
        pytest.skip("no second file system at /dev/shm")
    topic = create_topic(config=SMALL_SEGMENTS)
    await asyncio.to_thread(produce, kafka_server, topic, 2.5)
    bases = rolled_bases(kafka_server, topic)
    changes = {**log_dirs(kafka_server, tmp_path), "spool_dir": spool}
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka_server.bootstrap, archive, topic, **changes) as (manager, cluster),
    ):
        await until(manager, archived_to(topic, bases[-1]))
        (tp,) = await tps(cluster, topic)
        assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, bases[-1])


@pytest.mark.parametrize(
    ("node_id", "cluster_id", "message"),
    [(1, CLUSTER_ID, "belongs to cluster"), (2, None, None), (1, None, "no folder")],
    ids=["another-cluster", "another-broker", "another-directory"],
)
async def test_directories_that_are_not_the_leaders(
    kafka_server: KafkaServer,
    create_topic: Callable[..., str],
    tmp_path: Path,
    node_id: int,
    cluster_id: str | None,
    message: str | None,
) -> None:
    """Those of another cluster are refused by name; those of a follower give no work."""
    topic = create_topic(config=SMALL_SEGMENTS)
    await asyncio.to_thread(produce, kafka_server, topic, 1.5)
    own_cluster_id = open_log_dir(kafka_server.data_dir).cluster_id
    beside = plant_log_dir(tmp_path / "logs", node_id, cluster_id or own_cluster_id)
    config = ArchiveConfig(topics=topic, log_dirs=str(beside))
    async with (
        open_archive(tmp_path / "store") as archive,
        Cluster(ClusterConfig(bootstrap=kafka_server.bootstrap)) as cluster,
        Spool(tmp_path / "spool") as spool,
    ):
        (tp,) = await tps(cluster, topic)
        accumulator = open_source(config, cluster, FETCH_BYTES_MAX, open_log_dirs(config))(
            tp, spool
        )
        if message is None:
            assert await accumulator.accumulate(0, close_short=True) is None
        else:
            with pytest.raises(FetchProxyError, match=message):
                await accumulator.accumulate(0, close_short=True)
        assert list(await archive.rlmm.list_partitions()) == []


async def test_a_position_beyond_either_end(
    kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = create_topic(config=SMALL_SEGMENTS)
    await asyncio.to_thread(produce, kafka_server, topic, 1.5)
    delete_records(kafka_server, topic, 10)
    config = ArchiveConfig(topics=topic, **log_dirs(kafka_server, tmp_path))
    async with (
        Cluster(ClusterConfig(bootstrap=kafka_server.bootstrap)) as cluster,
        Spool(tmp_path / "spool") as spool,
    ):
        (tp,) = await tps(cluster, topic)
        accumulator = open_source(config, cluster, FETCH_BYTES_MAX, open_log_dirs(config))(
            tp, spool
        )
        assert await accumulator.find_log_start() == 10
        assert await accumulator.accumulate(9, close_short=False) == LogGap(10)
        end = await stable_end(cluster, tp)
        assert await accumulator.accumulate(end, close_short=True) is None, "the active segment"
        with pytest.raises(LogTruncated, match=f"ends at offset {end}"):
            await accumulator.accumulate(end + 1, close_short=False)


async def stable_end(cluster: Cluster, tp: TopicIdPartition) -> int:
    now = asyncio.get_running_loop().time()
    return (await cluster.log_offsets(tp, not_older_than=now)).last_stable_offset


async def kafka_files(archive: Archive, segment: RemoteLogSegmentMetadata) -> set[SegmentFile]:
    store = archive.storage.store
    folder = archive.storage.rsm.object_key(segment, SegmentFile.LOG).rpartition("/")[0]
    keys = {stored_object.key async for stored_object in store.list(folder + "/")}
    return {file for file in KAFKA_FILES if archive.storage.rsm.object_key(segment, file) in keys}
