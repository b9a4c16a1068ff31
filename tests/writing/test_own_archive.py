"""When an archiver makes an archive, and when the operator has to confirm, with a real Kafka."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from fetchproxy.archive import metadata_manager
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.load import load_config
from fetchproxy.config.schema import Config, StoreConfig
from fetchproxy.errors import ArchiveMismatch, ArchiveMissing, ConfigError
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Health, Kind, headlines
from fetchproxy.segments.object_keys import LAYOUT_OBJECT, layout_text
from fetchproxy.storage.archive_identity import ArchiveIdentity, encode_identity
from fetchproxy.storage.attached_topics import open_archive
from fetchproxy.storage.remote_storage import RemoteStorage, open_store
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.writing import own_archive
from fetchproxy.writing.own_archive import OwnArchive, state_metadata_topic
from lab.kafka import KafkaServer


def configured(kafka: KafkaServer, folder: Path, topics: str | None, **more: str) -> Config:
    variables = {
        "FETCHPROXY_CLUSTER_BOOTSTRAP": kafka.bootstrap,
        "FETCHPROXY_STORE_URL": (folder / "store").as_uri(),
    }
    if topics is not None:
        variables["FETCHPROXY_ARCHIVE_TOPICS"] = topics
    variables |= {f"FETCHPROXY_{key.upper()}": value for key, value in more.items()}
    return load_config(None, variables)


class Process(NamedTuple):
    own_archive: OwnArchive
    storage: RemoteStorage
    rlmm: RemoteLogMetadataManager
    cluster: Cluster
    health: Health

    def headlines(self) -> tuple[str, ...]:
        return headlines(self.health.conditions(asyncio.get_running_loop().time()))


@asynccontextmanager
async def process(config: Config, *, create: bool = False) -> AsyncIterator[Process]:
    archives = config.archive.topics is not None
    async with (
        open_archive(config, create=archives) as storage,
        Cluster(config.cluster) as cluster,
        metadata_manager(config, storage, cluster, lambda: 0) as rlmm,
    ):
        health = Health()
        own_archive = OwnArchive(
            config, storage, rlmm, cluster, uuid4, archives=archives, create=create, health=health
        )
        yield Process(own_archive, storage, rlmm, cluster, health)


def written_topic(kafka: KafkaServer, name: str, *, forgotten: int = 0) -> None:
    kafka.create_topic(name, 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(10):
        producer.produce(name, b"%d" % number, partition=0)
    assert producer.flush(180) == 0
    if forgotten:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        (future,) = admin.delete_records([TopicPartition(name, 0, forgotten)]).values()
        future.result(30)


async def test_the_first_archiver_makes_the_archive_and_says_whose_it_is(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    written_topic(kafka_server, "own-first")
    config = configured(kafka_server, tmp_path, "own-first")
    async with process(config) as one:
        await one.own_archive.confirm()
        assert one.own_archive.confirmed.is_set()
        identity = await one.storage.identity.look()
        assert identity is not None
        assert identity.cluster_id == await one.cluster.cluster_id() != ""
        assert identity.manager == "store"
    async with process(config) as one:
        await one.own_archive.confirm()
        assert await one.storage.identity.look() == identity, "who comes later changes nothing"


async def test_what_brokers_have_deleted_by_themselves_is_in_no_archive(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    written_topic(kafka_server, "own-expired", forgotten=4)
    async with process(configured(kafka_server, tmp_path, "own-expired")) as one:
        await one.own_archive.at_start()
        assert one.own_archive.confirmed.is_set()


async def test_a_place_that_lost_its_archive_begins_none_unless_a_person_says_so(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    written_topic(kafka_server, "own-seen")
    config = configured(kafka_server, tmp_path, "own-seen")
    async with process(config) as one:
        await one.own_archive.confirm()
    (tmp_path / "store").rename(tmp_path / "unmounted")
    for make in (lambda: None, (tmp_path / "store").mkdir):
        make()
        async with process(config) as one:
            with pytest.raises(ConfigError, match=r"no archive at .* any more.*--create"):
                await one.own_archive.at_start()
            assert not one.own_archive.confirmed.is_set()
    async with process(config, create=True) as one:
        await one.own_archive.confirm()


@pytest.mark.parametrize("follows", ["false", "true"])
async def test_where_archivers_have_trimmed_the_brokers_a_person_says_that_there_was_no_archive(
    kafka_server: KafkaServer, tmp_path: Path, follows: str
) -> None:
    topic = f"own-forgotten-{follows}"
    written_topic(kafka_server, topic, forgotten=4)
    local = {"archive_local_retention_ms": "3600000", "archive_follow_topic_retention": follows}
    config = configured(kafka_server, tmp_path, topic, **local)
    async with process(config) as one:
        with pytest.raises(ConfigError, match=rf"{topic}-0.* below offset 4.*--create"):
            await one.own_archive.at_start()
        assert not one.own_archive.confirmed.is_set()
    assert not (tmp_path / "store").exists(), "a mount point stays as it is"
    async with process(config, create=True) as one:
        await one.own_archive.confirm()
        assert await one.storage.objects.list_partitions() == []


async def test_another_archive_of_the_same_cluster_is_not_taken_for_the_one_with_what_was_trimmed(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """A mistyped prefix may lead to an archive of this cluster and this metadata manager."""
    written_topic(kafka_server, "own-trimmed", forgotten=4)
    written_topic(kafka_server, "own-elsewhere")
    async with process(configured(kafka_server, tmp_path, "own-elsewhere")) as other:
        await other.own_archive.confirm()
    trimming = {"archive_local_retention_ms": "3600000", "archive_spool_dir": str(tmp_path / "new")}
    config = configured(kafka_server, tmp_path, "own-trimmed", **trimming)
    for response in (False, True):
        async with process(config, create=response) as one:
            if response:
                await one.own_archive.confirm()
            else:
                with pytest.raises(ConfigError, match=r"has none of the topics .*--create"):
                    await one.own_archive.at_start()
            assert one.own_archive.confirmed.is_set() == response
    async with process(config) as one:
        await one.own_archive.confirm()  # this machine knows it now


async def test_an_archiver_that_moves_to_another_machine_finds_what_was_trimmed(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    written_topic(kafka_server, "own-moved", forgotten=4)
    trimming = {"archive_local_retention_ms": "3600000"}
    first = configured(kafka_server, tmp_path, "own-moved", **trimming)
    async with process(first, create=True) as one:
        await one.own_archive.confirm()
        [topic] = [t for t in await one.cluster.topics(0) if t.name == "own-moved"]
        tp = TopicIdPartition(topic.topic_id, topic.name, 0)
        await one.rlmm.raise_log_start_offset(tp, 1)
    spool = {"archive_spool_dir": str(tmp_path / "new")}
    async with process(configured(kafka_server, tmp_path, "own-moved", **trimming, **spool)) as one:
        await one.own_archive.confirm()


async def test_a_reader_waits_for_the_archive(kafka_server: KafkaServer, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()  # an empty mount point
    reading = configured(kafka_server, tmp_path, None)
    async with process(reading) as one, asyncio.TaskGroup() as tasks:
        await one.own_archive.at_start()
        assert not one.own_archive.confirmed.is_set()
        with pytest.raises(ArchiveMissing):
            await one.storage.objects.list_partitions()
        running = tasks.create_task(one.own_archive.run())
        async with asyncio.timeout(60):
            while not one.headlines():  # noqa: ASYNC110 - it knows no events
                await asyncio.sleep(0.02)
        assert "there is no archive" in one.headlines()[0]
        written_topic(kafka_server, "own-awaited")
        async with process(configured(kafka_server, tmp_path, "own-awaited")) as writing:
            await writing.own_archive.confirm()
        async with asyncio.timeout(60):
            await one.own_archive.confirmed.wait()
        assert one.headlines() == ()
        running.cancel()


async def test_who_is_set_otherwise_does_not_start(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    written_topic(kafka_server, "own-otherwise")
    config = configured(kafka_server, tmp_path, "own-otherwise")
    async with process(config) as one:
        await one.own_archive.confirm()
    async with open_store((tmp_path / "store").as_uri(), StoreConfig()) as storage:
        await state_metadata_topic(storage.identity, "elsewhere")
    for topics in ("own-otherwise", None):
        async with process(configured(kafka_server, tmp_path, topics)) as one:
            with pytest.raises(ArchiveMismatch, match=r"metadata\.manager.*topic elsewhere"):
                await one.own_archive.at_start()
    other = configured(
        kafka_server,
        tmp_path,
        None,
        metadata_manager="topic",
        metadata_topic_name="mine",
        metadata_topic_replication_factor="1",
    )
    async with process(other) as one:
        with pytest.raises(ArchiveMismatch, match=r"topic elsewhere.*topic mine"):
            await one.own_archive.at_start()


async def named(one: Process) -> None:
    while not one.headlines():  # noqa: ASYNC110 - there is no event for what health is told
        await asyncio.sleep(0.05)


@pytest.mark.remedy("archive_mismatch")
async def test_an_archive_whose_metadata_move_is_named_until_a_restart_with_the_right_settings(
    kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_archive, "ARCHIVE_LOOK_INTERVAL_S", 0.1)
    written_topic(kafka_server, "own-moves")
    config = configured(kafka_server, tmp_path, "own-moves")
    async with process(config) as one, asyncio.timeout(60):
        running = asyncio.create_task(one.own_archive.run())
        await one.own_archive.confirmed.wait()
        assert one.headlines() == ()
        async with open_store((tmp_path / "store").as_uri(), StoreConfig()) as storage:
            await state_metadata_topic(storage.identity, "moved-here")
        await named(one)
        now = asyncio.get_running_loop().time()
        [condition] = one.health.conditions(now)
        assert condition.kind is Kind.ARCHIVE_MISMATCH
        assert "metadata.manager" in condition.what
        assert "topic moved-here" in condition.what
        running.cancel()
    corrected = configured(
        kafka_server,
        tmp_path,
        "own-moves",
        metadata_manager="topic",
        metadata_topic_name="moved-here",
        metadata_topic_replication_factor="1",
        metadata_topic_partitions="1",
    )
    async with process(corrected) as one:
        await one.own_archive.confirm()
        await one.storage.identity.check()
        assert one.headlines() == ()


async def test_an_archive_of_another_cluster_is_left_alone(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    written_topic(kafka_server, "own-cluster")
    config = configured(kafka_server, tmp_path, "own-cluster")
    async with process(config) as one:
        await one.storage.identity.state(ArchiveIdentity(UUID(int=1), "another", "store"))
        with pytest.raises(ArchiveMismatch, match=r"cluster\.bootstrap.* cluster another"):
            await one.own_archive.at_start()


async def test_an_archive_that_another_cluster_makes_at_the_same_moment_is_left_alone(
    kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with process(configured(kafka_server, tmp_path, "orders")) as one:
        foreign_identity = ArchiveIdentity(UUID(int=1), "another", "store")
        put_new = FilesystemObjectStore.put_new

        async def put_late(store: FilesystemObjectStore, key: str, content: bytes) -> bool:
            """The other process was faster, after this one looked."""
            await put_new(store, LAYOUT_OBJECT, encode_identity(foreign_identity))
            return await put_new(store, key, content)

        monkeypatch.setattr(FilesystemObjectStore, "put_new", put_late)
        with pytest.raises(ArchiveMismatch, match=r"cluster\.bootstrap: .* the cluster another"):
            await one.own_archive.at_start()
        assert await one.storage.identity.look() == foreign_identity


async def test_an_archive_of_before_is_claimed(kafka_server: KafkaServer, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / LAYOUT_OBJECT).write_bytes(layout_text())
    written_topic(kafka_server, "own-claimed", forgotten=4)
    config = configured(kafka_server, tmp_path, "own-claimed")
    async with process(config) as one:
        await one.own_archive.confirm()
        identity = await one.storage.identity.look()
        assert identity is not None
        assert (identity.cluster_id, identity.manager) == (await one.cluster.cluster_id(), "store")
        assert identity.generation is not None


async def test_a_metadata_topic_that_knows_an_archive_makes_no_second_one(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    written_topic(kafka_server, "own-topic")
    config = configured(
        kafka_server,
        tmp_path,
        "own-topic",
        metadata_manager="topic",
        metadata_topic_name="own-topic-metadata",
        metadata_topic_replication_factor="1",
        metadata_topic_partitions="2",
    )
    async with process(config) as one:
        await one.own_archive.confirm()
        topic = await one.cluster.topic_by_name("own-topic")
        tp = TopicIdPartition(topic.topic_id, topic.name, 0)
        await one.rlmm.raise_log_start_offset(tp, 3)
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file():
            path.unlink()
    async with process(config, create=True) as one:
        with pytest.raises(ConfigError, match=r"own-topic-metadata has segments"):
            await one.own_archive.at_start()


async def test_a_spool_whose_disk_hangs_does_not_hold_up_the_start(
    kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_topic(kafka_server, "own-hanging")
    config = configured(
        kafka_server, tmp_path, "own-hanging", archive_spool_dir=str(tmp_path / "spool")
    )
    look, hangs, mended = os.lstat, threading.Event(), threading.Event()

    def hang(path: Path) -> os.stat_result:
        if Path(path).is_relative_to(tmp_path / "spool"):
            hangs.set()
            mended.wait(60)
        return look(path)

    monkeypatch.setattr(os, "lstat", hang)
    monkeypatch.setattr(own_archive, "AT_START_MAX_S", 1.0)
    async with process(config) as one:
        while not hangs.is_set():
            await one.own_archive.at_start()
        assert not one.own_archive.confirmed.is_set(), "`run` goes on with it"
        mended.set()
        await one.own_archive.confirm()
        assert one.own_archive.confirmed.is_set()
