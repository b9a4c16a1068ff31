"""The archiver against a real broker: byte identity, transactions, trimming, refusals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import structlog
from archive_harness import (
    archived_up_to,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
)
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from fetchproxy_protocol.record_batch import walk

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.side_files import aborted_in
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

CreateTopic = Callable[..., str]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def produce(kafka: KafkaServer, topic: str, count: int, codec: str = "none") -> None:
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "compression.type": codec,
            "linger.ms": 5,
            "batch.size": 8_000,
            "enable.idempotence": True,
        }
    )
    for i in range(count):
        producer.produce(topic, value=f"{i} ".encode() * 20, key=str(i).encode(), partition=0)
        if i % 200 == 199:
            assert producer.flush(180) == 0
    assert producer.flush(180) == 0


def transactions(kafka: KafkaServer, topic: str, rng: random.Random, rounds: int) -> None:
    """Interleaved transactions of three producers, with one to a few batches each."""
    producers = [
        Producer(
            {
                "bootstrap.servers": kafka.bootstrap,
                "transactional.id": f"{topic}-{number}",
                "linger.ms": 0,
            }
        )
        for number in range(3)
    ]
    for producer in producers:
        producer.init_transactions(30)
    is_open = [False] * len(producers)
    for _ in range(rounds):
        number = rng.randrange(len(producers))
        producer = producers[number]
        if not is_open[number]:
            producer.begin_transaction()
            is_open[number] = True
        for _ in range(rng.randint(1, 5)):
            producer.produce(topic, value=bytes(rng.randint(1, 400)), partition=0)
        assert producer.flush(180) == 0
        if rng.random() < 0.4:
            end = rng.choice([producer.commit_transaction, producer.abort_transaction])
            end(30)
            is_open[number] = False
    for producer, still_open in zip(producers, is_open, strict=True):
        if still_open:
            producer.abort_transaction(30)


def delete_records(kafka: KafkaServer, topic: str, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    place = TopicPartition(topic, 0, before)
    for future in admin.delete_records([place]).values():
        future.result(30)


async def end_of(cluster: Cluster, tp: TopicIdPartition) -> int:
    """The end of a log whose transactions have all ended. A broker writes their last markers after
    it has answered the producer.
    """
    while True:
        now = asyncio.get_running_loop().time()
        offsets = await cluster.log_offsets(tp, not_older_than=now)
        if offsets.last_stable_offset == offsets.high_watermark:
            return offsets.high_watermark
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("codec", CODECS)
async def test_byte_identity(
    kafka_server: KafkaServer, topic: str, codec: str, tmp_path: Path
) -> None:
    produce(kafka_server, topic, 1_500, codec)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka_server.bootstrap, archive, topic, segment_bytes_max=8_192) as (
            manager,
            cluster,
        ),
    ):
        await until(manager, archived_up_to(topic, {0: 1_500}))
        (tp,) = await tps(cluster, topic)
        assert len((await archive.view(tp)).segments) > 1
        assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, 1_500)
        status = manager.status()[0]
        assert (status.log_start_offset, status.lag_offsets) == (0, 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_aborted_transactions_are_those_of_the_broker(
    kafka_server: KafkaServer, topic: str, seed: int, tmp_path: Path
) -> None:
    """Segments are far smaller than transactions, so most transactions span borders."""
    await asyncio.to_thread(transactions, kafka_server, topic, random.Random(seed), 60)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(
            kafka_server.bootstrap, archive, topic, segment_bytes_max=1_024, fetch_bytes_max=2_048
        ) as (manager, cluster),
    ):
        (tp,) = await tps(cluster, topic)
        end = await end_of(cluster, tp)
        await until(manager, archived_up_to(topic, {0: end}))
        assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, end)
        segments = (await archive.view(tp)).segments
        assert sum(s.has_aborted_txns for s in segments) > 3
        for segment in segments:
            entries = await archive.aborted(segment)
            assert bool(entries) == segment.has_aborted_txns
            for header in walk(await archive.object(segment, SegmentFile.LOG)):
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


async def test_nothing_undecided_is_archived(
    kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    """A hanging transaction holds the archive at the LSO, even if other data follows it."""
    hanging = Producer(
        {"bootstrap.servers": kafka_server.bootstrap, "transactional.id": f"{topic}-hanging"}
    )
    produce(kafka_server, topic, 10)
    await asyncio.to_thread(hanging.init_transactions, 30)
    hanging.begin_transaction()
    hanging.produce(topic, value=b"undecided", partition=0)
    await asyncio.to_thread(hanging.flush, 30)
    produce(kafka_server, topic, 10)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka_server.bootstrap, archive, topic) as (manager, cluster),
    ):
        await until(manager, archived_up_to(topic, {0: 10}))
        await asyncio.sleep(0.5)  # many process intervals
        (tp,) = await tps(cluster, topic)
        assert (await archive.view(tp)).log_end_offset == 10
        await asyncio.to_thread(hanging.abort_transaction, 30)
        await until(manager, archived_up_to(topic, {0: 22}))  # 10 + 1 + 10 and the marker
        assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, 22)
        tail = (await archive.view(tp)).segments[-1]
        (entry,) = await archive.aborted(tail)
        assert (entry.first_offset, entry.last_offset) == (10, 21)


async def test_the_first_segment_begins_at_the_log_start(
    kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    """DeleteRecords inside a batch: the batch is kept whole, the segment starts at the offset."""
    produce(kafka_server, topic, 500)
    await asyncio.to_thread(delete_records, kafka_server, topic, 123)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka_server.bootstrap, archive, topic) as (manager, cluster),
    ):
        await until(manager, archived_up_to(topic, {0: 500}))
        (tp,) = await tps(cluster, topic)
        view = await archive.view(tp)
        assert view.log_start_offset == 123
        log = await archive.object(view.segments[0], SegmentFile.LOG)
        first = next(iter(walk(log)))
        assert first.base_offset <= 123 <= first.last_offset
        assert await archive.batches(tp) == await broker_batches(cluster, tp, 123, 500)


async def test_trimming_behind_the_archive_is_no_gap_and_ahead_of_it_is_one(
    kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    produce(kafka_server, topic, 300)
    async with open_archive(tmp_path / "store") as archive:
        async with running_archiver(kafka_server.bootstrap, archive, topic) as (manager, cluster):
            await until(manager, archived_up_to(topic, {0: 300}))
            (tp,) = await tps(cluster, topic)
            before = await archive.batches(tp)
            await asyncio.to_thread(delete_records, kafka_server, topic, 300)
            produce(kafka_server, topic, 300)
            await until(manager, archived_up_to(topic, {0: 600}))
            assert (await archive.view(tp)).gaps() == []
            assert (await archive.batches(tp)).startswith(before)
            status = manager.status()[0]
            assert status.margin_offsets == 300
        produce(kafka_server, topic, 300)
        await asyncio.to_thread(delete_records, kafka_server, topic, 700)
        async with running_archiver(kafka_server.bootstrap, archive, topic) as (manager, cluster):
            await until(manager, archived_up_to(topic, {0: 900}))
            assert (await archive.view(tp)).gaps() == [(600, 699)]


@pytest.mark.parametrize("log_start", [100, 300])
async def test_accumulated_records_that_the_broker_deletes_are_copied_early(
    kafka_server: KafkaServer, topic: str, tmp_path: Path, log_start: int
) -> None:
    produce(kafka_server, topic, 300)
    ages = {"segment_age_max_ms": 3_600_000, "last_copy_age_min_ms": 1}
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka_server.bootstrap, archive, topic, **ages) as (manager, cluster),
    ):
        await until(manager, lambda statuses: [each.accumulated_end for each in statuses] == [300])
        (tp,) = await tps(cluster, topic)
        written = await broker_batches(cluster, tp, 0, 300)
        assert (await archive.view(tp)).log_end_offset is None
        await asyncio.to_thread(delete_records, kafka_server, topic, log_start)
        await until(manager, archived_up_to(topic, {0: 300}))
        assert await archive.batches(tp) == written
        # What is read afterwards has all the time again.
        produce(kafka_server, topic, 300)
        await until(manager, lambda statuses: [each.accumulated_end for each in statuses] == [600])
        assert (await archive.view(tp)).log_end_offset == 300


async def test_compacted_topics_are_refused_once_and_clearly(
    kafka_server: KafkaServer, create_topic: CreateTopic, tmp_path: Path
) -> None:
    compacted = create_topic(config={"cleanup.policy": "compact,delete"})
    plain = create_topic()
    produce(kafka_server, plain, 10)
    produce(kafka_server, compacted, 10)
    with structlog.testing.capture_logs() as logs:
        async with (
            open_archive(tmp_path / "store") as archive,
            running_archiver(kafka_server.bootstrap, archive, f"{plain}|{compacted}") as (
                manager,
                _,
            ),
        ):
            await until(manager, archived_up_to(plain, {0: 10}))
            await asyncio.sleep(0.7)  # several discoveries
            assert [s.tp.topic for s in manager.status()] == [plain]
            assert list(manager.discovery.refused) == [compacted]
    refused = [entry for entry in logs if entry["event"] == "topic_refused"]
    assert [(r["topic"], r["log_level"]) for r in refused] == [(compacted, "error")]
    assert "compact" in refused[0]["error"]


async def test_a_recreated_topic_is_another_log(
    kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    produce(kafka_server, topic, 100)
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka_server.bootstrap, archive, topic) as (manager, cluster),
    ):
        await until(manager, archived_up_to(topic, {0: 100}))
        (old,) = await tps(cluster, topic)
        await asyncio.to_thread(admin.delete_topics([topic])[topic].result, 30)
        await until(manager, lambda statuses: not statuses)
        await recreate(kafka_server, topic)
        produce(kafka_server, topic, 50)
        await until(manager, archived_up_to(topic, {0: 50}))
        (new,) = await tps(cluster, topic)
        assert new.topic_id != old.topic_id
        assert (await archive.view(old)).log_end_offset == 100
        assert (await archive.view(new)).log_end_offset == 50


async def recreate(kafka: KafkaServer, topic: str) -> None:
    """Retry, as a deleted name stays in use for a moment."""
    for _ in range(50):
        try:
            await asyncio.to_thread(kafka.create_topic, topic)
            return
        except KafkaException:
            await asyncio.sleep(0.2)
    raise AssertionError(f"{topic} could not be created again")


async def test_a_broker_that_restarts(own_kafka_server: KafkaServer, tmp_path: Path) -> None:
    kafka = own_kafka_server
    topic = kafka.create_topic("restarts")
    produce(kafka, topic, 200)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka.bootstrap, archive, topic) as (manager, cluster),
    ):
        await until(manager, archived_up_to(topic, {0: 200}))
        await asyncio.to_thread(kafka.kill)
        await until(manager, lambda statuses: any(s.last_error for s in statuses))
        await asyncio.to_thread(kafka.start)
        await asyncio.to_thread(produce, kafka, topic, 200)
        await until(manager, archived_up_to(topic, {0: 400}))
        (tp,) = await tps(cluster, topic)
        assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, 400)
        segments: Sequence = (await archive.view(tp)).segments
        epochs = [e.epoch for s in segments for e in s.segment_leader_epochs]
        assert epochs == sorted(epochs)
        assert len(set(epochs)) > 1  # the restart was an election


async def test_cluster_asks_for_the_local_log_start(kafka_server: KafkaServer, topic: str) -> None:
    produce(kafka_server, topic, 100)
    await asyncio.to_thread(delete_records, kafka_server, topic, 40)
    async with Cluster(ClusterConfig(bootstrap=kafka_server.bootstrap)) as cluster:
        (tp,) = await tps(cluster, topic)
        log_offsets = await cluster.log_offsets(tp)
        assert (
            log_offsets.log_start_offset,
            log_offsets.high_watermark,
            log_offsets.last_stable_offset,
        ) == (
            40,
            100,
            100,
        )
        config = await cluster.topic_config(topic)
        assert config["cleanup.policy"] == "delete"
        below = await cluster.fetch(
            tp, 0, bytes_max=1000, wait_max_ms=0, isolation=IsolationLevel.READ_COMMITTED
        )
        assert below.error_code == 1
