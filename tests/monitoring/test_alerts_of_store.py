"""Alerts on the store, and on records that are lost or about to be. The store is a real S3 server
behind a relay that refuses or damages."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from alert_play import Watched, assert_fires
from archived_topics import NO_MEMORY, SETTINGS, archive_and_trim
from confluent_kafka import Consumer, TopicPartition
from held_reader import HeldReader
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, archived_ends, produce, trim

from benchmarks.fault_relay import NO_FAULT, Fault, FaultRelay
from lab.kafka import KafkaServer
from lab.s3 import S3Server

pytestmark = [pytest.mark.kafka, pytest.mark.s3, pytest.mark.usefixtures("promtool")]

COUNT = 600
STORE_FAILS = ("list", "read", "write", "delete")


@dataclass
class Scene:
    kafka: KafkaServer
    relay: FaultRelay
    store: str
    folder: Path

    def topic(self, name: str, config: dict[str, str] | None = None) -> TopicData:
        self.kafka.create_topic(name, 1, config)
        data = TopicData(name)
        produce(self.kafka.bootstrap, data, COUNT)
        return data

    def proxy(self, data: TopicData, **more: object) -> ProxyProcess:
        settings = {**SETTINGS, **{key.replace("__", "."): value for key, value in more.items()}}
        return ProxyProcess(
            self.kafka.bootstrap, self.store, self.folder, archive=data.topic, settings=settings
        )


@pytest.fixture
def scene(
    kafka_server: KafkaServer, s3_server: S3Server, s3_bucket: str, tmp_path: Path
) -> Iterator[Scene]:
    with FaultRelay(s3_server.port) as relay:
        store = f"s3://{s3_bucket}/a?endpoint_url={quote(relay.endpoint_url, safe='')}"
        yield Scene(kafka_server, relay, f"{store}&region={s3_server.region}", tmp_path)


@pytest.mark.slow
def test_a_store_that_refuses_everything(scene: Scene) -> None:
    """Retention of archive and brokers goes on meanwhile, and a reader needs what is not copied."""
    data = scene.topic("refused", {"retention.bytes": "400000", "segment.bytes": "1048576"})
    retention: dict[str, object] = {
        "archive__remote_log_retention_bytes": 50_000,
        "archive__retention_step_grace_ms": 0,
        "archive__retention_grace_ms": 0,
        "limits__writing__retention_check_interval_ms": 100,
        "limits__writing__retention_clock_settle_ms": 0,
    }
    with scene.proxy(data, **retention, **NO_MEMORY) as proxy:
        watched = Watched(proxy.console_port)
        wait_for("the archive", lambda: archived_ends(scene.store, data.topic) == {0: COUNT})
        watched.look()
        failing = "fetchproxy_store_failing_seconds"
        scene.relay.set(Fault(refuse=("delete",)))  # without listings, nothing would be deleted
        produce(scene.kafka.bootstrap, data, COUNT)
        wait_for("deletions", watched.above(failing, 1, '"delete"'))
        wait_for("more", lambda: archived_ends(scene.store, data.topic) == {0: 2 * COUNT})
        scene.relay.set(Fault(refuse=("delete", "write")))
        produce(scene.kafka.bootstrap, data, 2 * COUNT)  # 400 KB
        share = "fetchproxy_archive_retention_used_share"
        wait_for("the share", watched.above(share, 0.7))
        trim(scene.kafka.bootstrap, data.topic, {0: 2 * COUNT + 40})
        with reads(proxy, data.topic, 2 * COUNT + 10):
            wait_for("a reader that waits", watched.above("fetchproxy_held_partitions", 0))
            scene.relay.set(Fault(refuse=STORE_FAILS))
            for operation in STORE_FAILS:
                wait_for(operation, watched.above(failing, 1, f'"{operation}"'))
            watched.look_twice()
        scene.relay.set(NO_FAULT)
    assert_fires(
        watched.scrapes,
        "FetchproxyStoreWritesFail",
        "FetchproxyStoreReadsFail",
        "FetchproxyStoreDeletionsFail",
        "FetchproxyRecordsAboutToBeLost",
        "FetchproxyNothingCopied",
        "FetchproxyReadersHeld",
        "FetchproxyLogErrors",
        after_min=90,
    )


@contextmanager
def reads(proxy: ProxyProcess, topic: str, offset: int) -> Iterator[None]:
    """A stock consumer that wants the offset, and gets nothing."""
    ended = threading.Event()
    settings = {"bootstrap.servers": proxy.bootstrap, "group.id": "waits"}
    consumer = Consumer({**settings, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0, offset)])

    def poll() -> None:
        while not ended.is_set():
            consumer.poll(0.1)

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        consumer.close()


def test_records_that_the_brokers_delete_before_they_are_archived(scene: Scene) -> None:
    data = scene.topic("lost")
    with scene.proxy(data) as proxy:
        watched = Watched(proxy.console_port)
        wait_for("the archive", lambda: archived_ends(scene.store, data.topic) == {0: COUNT})
        watched.look()
        os.kill(proxy.pid, signal.SIGSTOP)
        produce(scene.kafka.bootstrap, data, COUNT)
        trim(scene.kafka.bootstrap, data.topic, {0: COUNT + 300})
        os.kill(proxy.pid, signal.SIGCONT)
        wait_for("the gap", watched.above("fetchproxy_archive_gaps_total", 0))
        wait_for("the rest", lambda: archived_ends(scene.store, data.topic) == {0: 2 * COUNT})
        watched.look_twice()
    assert_fires(watched.scrapes, "FetchproxyRecordsLost", "FetchproxyLogErrors")


def test_bytes_that_the_store_changes(scene: Scene) -> None:
    data = scene.topic("changed")
    with scene.proxy(data, **NO_MEMORY) as proxy:
        archive_and_trim(scene.kafka.bootstrap, scene.store, data)
        watched = Watched(proxy.console_port)
        watched.look()
        scene.relay.set(Fault(corrupt=True, corrupt_suffix=".log"))
        with HeldReader("confluent-kafka", proxy.bootstrap, data.topic, {0: COUNT}) as reader:
            wait_for("damage", watched.above("fetchproxy_corrupt_chunks_total", 0))
            time.sleep(1)
            watched.look_twice()
            assert reader.count == 0
            scene.relay.set(NO_FAULT)
    assert_fires(watched.scrapes, "FetchproxyArchiveDamaged", "FetchproxyLogErrors")
