"""Archiver and proxy as two processes with metadata in a topic, each with its own cache."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from archive_process import archive_process, verify
from archived_topics import SETTINGS, archive_and_trim, new_store, new_topic
from held_reader import HeldReader
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from topic_data import archived_ends, produce

from fetchproxy.config.schema import StoreConfig
from fetchproxy.storage.remote_storage import open_store
from fetchproxy.writing.own_archive import state_metadata_topic
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

UNKNOWN = "partitions_unknown_to_metadata_topic"


def by_topic(metadata_topic: str, cache: Path) -> dict[str, object]:
    return {
        **SETTINGS,
        "metadata.manager": "topic",
        "metadata.topic_name": metadata_topic,
        "metadata.topic_partitions": 4,
        "metadata.topic_replication_factor": 1,
        "metadata.cache_dir": cache,
    }


def test_what_one_process_archives_another_serves(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    name = "by-metadata-topic"
    store = new_store(tmp_path)
    data = new_topic(kafka_server, name, partition_count=2)
    produce(kafka_server.bootstrap, data, 400, partition_count=2)
    archiver = archive_process(
        kafka_server.bootstrap, store, name, tmp_path, by_topic("__e2e_events", tmp_path / "a")
    )
    archiver.start()
    try:
        archive_and_trim(kafka_server.bootstrap, store, data)
        settings = by_topic("__e2e_events", tmp_path / "p")
        with ProxyProcess(kafka_server.bootstrap, store, tmp_path, settings=settings) as proxy:
            ends = data.ends(kafka_server.bootstrap)
            with HeldReader("kafka-python", proxy.bootstrap, name, ends, hold_at=100) as reader:
                reader.wait_until_held()
                archiver.kill()  # at any point of its work
                archiver.start()
                reader.go_on()
                assert reader.records() == data.written
            produce(kafka_server.bootstrap, data, 400, partition_count=2)
            archive_and_trim(kafka_server.bootstrap, store, data)
            events_read = proxy.metric("fetchproxy_metadata_events_read_total")
            assert events_read >= 8  # at least two states of two segments of two partitions
            proxy.stop()
            proxy.start()
            ends = data.ends(kafka_server.bootstrap)
            with HeldReader("confluent-kafka", proxy.bootstrap, name, ends, hold_at=1) as reader:
                reader.wait_until_held()
                reader.go_on()
                assert reader.records() == data.written
            assert proxy.logged(UNKNOWN) == []
            assert proxy.metric("fetchproxy_metadata_lag_events") == 0
    finally:
        archiver.stop()
    verify(store)


async def ruled_by_topic(store: str, topic: str) -> None:
    async with open_store(store, StoreConfig()) as storage:
        await state_metadata_topic(storage.identity, topic)


def test_an_archive_that_the_topic_does_not_know_is_neither_served_nor_skipped(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    name = "not-in-metadata-topic"
    store = new_store(tmp_path)
    data = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, data, 300)
    archiver = archive_process(kafka_server.bootstrap, store, name, tmp_path)
    archiver.start()
    try:
        archive_and_trim(kafka_server.bootstrap, store, data)
    finally:
        archiver.stop()
    before = archived_ends(store, name)
    asyncio.run(ruled_by_topic(store, "__e2e_lost_events"))  # now the topic seems lost
    settings = by_topic("__e2e_lost_events", tmp_path / "p")
    with (
        ProxyProcess(
            kafka_server.bootstrap, store, tmp_path, archive=name, settings=settings
        ) as proxy,
        RawConnection(proxy.bootstrap) as raw,
    ):
        wait_for("its warning", lambda: proxy.logged(UNKNOWN))
        (warned,) = proxy.logged(UNKNOWN)
        assert (warned["first"], warned["remedy"]) == (f"{name}-0", "run fetchproxy restore")
        for _ in range(3):
            fetched = raw.fetch(12, name, None, 10)
            # OffsetOutOfRange would make the client skip archived records.
            assert (fetched.error, fetched.records) == (0, b"")
        wait_for("the archiver's error", lambda: proxy.logged("partition_process_failed"))
    assert archived_ends(store, name) == before  # nothing was copied over it
