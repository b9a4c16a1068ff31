"""Logs and names that a broker has and that are seldom seen: all are archived, or named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from archive_harness import (
    archived_up_to,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
    until_true,
)
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from fetchproxy_protocol.record_batch import HEADER_BYTES, walk
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from fetchproxy.auditing.verify import verify_partition
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ArchiveConfig, ClusterConfig
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.observability.health import Kind
from fetchproxy.writing.discovery import TopicDiscovery
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

OLD, DAMAGED = "old-formats", "damaged"
OWN_NAMES = ["__audit", "__debezium-heartbeat.srv", "_under", ".dot", "-dash"]
CODECS = {0: [0, 1], 1: [0, 1]}  # by magic


@pytest.fixture(scope="module")
def kafka(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    for kafka in serve_part("kafka", KafkaServer(heap="384m")):
        kafka.create_topic(OLD)
        kafka.create_topic(DAMAGED)
        for number in range(3):
            produce(kafka, DAMAGED, [b"%d" % number] * 10)
        plant(kafka)
        produce(kafka, OLD, [b"new"] * 50)
        for name in OWN_NAMES:
            kafka.create_topic(name)
            produce(kafka, name, [b"one", b"two"])
        kafka.create_topic("__consumer_offsets")
        yield kafka


def produce(kafka: KafkaServer, topic: str, values: list[bytes]) -> None:
    """One batch."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 100})
    for value in values:
        producer.produce(topic, value=value, partition=0)
    assert producer.flush(30) == 0


def plant(kafka: KafkaServer) -> None:
    """Files as brokers of 2015 wrote them, and one that a disk has damaged."""
    process = kafka._process
    assert process is not None
    process.stop(timeout_s=60)
    folder = kafka.data_dir / f"{OLD}-0"
    for file in folder.glob("0*"):
        file.unlink()
    (folder / f"{0:020d}.log").write_bytes(b"".join(old_messages()))
    (folder / f"{100:020d}.log").touch()  # the active segment
    log = kafka.data_dir / f"{DAMAGED}-0" / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[list(walk(content))[1].position + HEADER_BYTES + 8] ^= 1
    log.write_bytes(content)
    kafka.start()


def old_messages() -> Iterator[bytes]:
    """100 offsets: of each magic plain messages and a compressed one."""
    offset = 0
    for magic, codecs in CODECS.items():
        for codec in codecs:
            numbers = range(25)
            for group in [numbers] if codec else [[number] for number in numbers]:
                builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
                for inside in range(len(group)):
                    at = inside if codec and magic else offset
                    builder.append(at, 1_000 + offset, b"key", b"%d" % offset)
                    offset += 1
                message = bytearray(builder.build())
                message[:8] = (offset - 1).to_bytes(8, "big")
                yield bytes(message)


def rows(records: bytes) -> list[tuple[int, int | None, bytes | None]]:
    found_records = []
    batches: Any = MemoryRecords(records)
    while (batch := batches.next_batch()) is not None:
        found_records += [(record.offset, record.timestamp, record.value) for record in batch]
    return found_records


@pytest.mark.parametrize("log_dirs", [False, True], ids=["broker", "log-dirs, then broker"])
async def test_old_formats_are_converted(
    kafka: KafkaServer, tmp_path: Path, log_dirs: bool
) -> None:
    async with open_archive(tmp_path / "store") as archive:
        if log_dirs:  # without the active segment
            settings = {"log_dirs": str(kafka.data_dir)}
            async with running_archiver(kafka.bootstrap, archive, OLD, **settings) as (manager, _):
                await until(manager, archived_up_to(OLD, {0: 100}))
        async with running_archiver(kafka.bootstrap, archive, OLD) as (manager, cluster):
            await until(manager, archived_up_to(OLD, {0: 150}))
            (tp,) = await tps(cluster, OLD)
        rows_read = rows(await archive.batches(tp))
        assert [offset for offset, _, _ in rows_read] == list(range(150))
        assert [value for _, _, value in rows_read[:100]] == [b"%d" % n for n in range(100)]
        assert [time for _, time, _ in rows_read[:100]] == [-1] * 50 + [
            1_000 + n for n in range(50, 100)
        ]
        assert (await verify_partition(archive.storage, archive.rlmm, tp)).clean


async def test_what_is_before_and_after_damage_is_archived(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka.bootstrap, archive, DAMAGED) as (manager, cluster),
    ):
        health = manager.published_conditions.health
        (tp,) = await tps(cluster, DAMAGED)
        await until(manager, archived_up_to(DAMAGED, {0: 10}))
        await until_true(lambda: health.reported(Kind.LOG_DAMAGED, tp) is not None)
        condition = health.reported(Kind.LOG_DAMAGED, tp)
        assert condition is not None
        assert "offsets 10 to 19 fails its CRC" in condition.what
        assert manager.archiver_position(tp) is None, "no reader may wait"
        # The condition's remedy.
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for deleted in admin.delete_records([TopicPartition(DAMAGED, 0, 20)]).values():
            await asyncio.to_thread(deleted.result, 30)
        await until(manager, archived_up_to(DAMAGED, {0: 30}))
        await until_true(lambda: health.reported(Kind.LOG_DAMAGED, tp) is None)
        last = (await archive.view(tp)).segments[-1]
        assert (last.start_offset, last.end_offset) == (20, 29)


async def test_names_that_only_look_internal_are_archived(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    pattern = "|".join(name.replace(".", r"\.") for name in [*OWN_NAMES, "__consumer_offsets"])
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka.bootstrap, archive, pattern) as (manager, cluster),
    ):
        for name in OWN_NAMES:
            await until(manager, archived_up_to(name, {0: 2}))
            (tp,) = await tps(cluster, name)
            assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, 2)
        assert {status.tp.topic for status in manager.status()} == set(OWN_NAMES)
        assert manager.discovery.internal == ["__consumer_offsets"]
        assert {tp.topic for tp in await archive.rlmm.list_partitions()} == set(OWN_NAMES)


async def test_the_archive_knows_each_topics_partitions(kafka: KafkaServer, tmp_path: Path) -> None:
    """Empty ones, those whose records are all deleted, topics without a record; it forgets deleted
    ones.
    """
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for name, count in (("some", 4), ("none", 3)):
        kafka.create_topic(name, count)
    produce(kafka, "some", [b"one", b"two"])
    gone = Producer({"bootstrap.servers": kafka.bootstrap})
    gone.produce("some", b"gone", partition=3)
    assert gone.flush(30) == 0
    for deleted in admin.delete_records([TopicPartition("some", 3, 1)]).values():
        await asyncio.to_thread(deleted.result, 30)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka.bootstrap, archive, "some|none") as (manager, _),
    ):
        descriptions = TopicDescriptions(archive.storage.objects)

        async def described(expected: dict[str, tuple[int, dict[int, int]]]) -> None:
            while True:
                descriptions_read = (await descriptions.refresh()).values()
                if {
                    one.topic: (one.partitions, dict(one.empty)) for one in descriptions_read
                } == expected:
                    return
                await asyncio.sleep(0.1)

        async with asyncio.timeout(60):
            some, none = (4, {1: 0, 2: 0, 3: 1}), (3, {0: 0, 1: 0, 2: 0})
            await described({"some": some, "none": none})
            more = admin.create_partitions([NewPartitions("none", 5)])
            await asyncio.to_thread(more["none"].result, 30)
            await described({"some": some, "none": (5, dict.fromkeys(range(5), 0))})
            await until(manager, archived_up_to("some", {0: 2}))
            await asyncio.to_thread(admin.delete_topics(["none"])["none"].result, 30)
            await described({"some": some})


async def test_names_that_the_store_cannot_hold_are_refused_before_anything_is_gathered(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    fits, long = "n" * 232, "n" * 233
    for name in (fits, long):
        kafka.create_topic(name)
        produce(kafka, name, [b"one"])
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka.bootstrap, archive, "n+") as (manager, cluster),
    ):
        await until(manager, archived_up_to(fits, {0: 1}))
        assert manager.discovery.refused == {
            long: "its name has 233 characters, but in this store it can have only 232, because a "
            "folder's name can have 255 bytes"
        }
        assert manager.published_conditions.health.reported(Kind.TOPIC_REFUSED, long) is not None
        (tp,) = await tps(cluster, long)
        assert manager.archiver_position(tp) is None
        assert {tp.topic for tp in await archive.rlmm.list_partitions()} == {fits}


async def test_a_pattern_of_internal_topics_alone_is_named_as_that(kafka: KafkaServer) -> None:
    async with Cluster(ClusterConfig(bootstrap=kafka.bootstrap)) as cluster:
        discovery = TopicDiscovery(
            cluster, ArchiveConfig(topics="__consumer_offsets|absent"), 1_000
        )
        assert await discovery.look() == []
        assert discovery.why_nothing() == (
            "archive.topics = '__consumer_offsets|absent' matches only internal topics, which are "
            "not archived: __consumer_offsets"
        )
        nothing = TopicDiscovery(cluster, ArchiveConfig(topics="absent"), 1_000)
        await nothing.look()
        assert nothing.why_nothing() == "archive.topics = 'absent' matches no topic"
