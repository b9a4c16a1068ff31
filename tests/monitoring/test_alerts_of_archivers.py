"""Alerts on archivers: killed, without space, or with topics that they cannot archive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from alert_play import Watched, assert_fires
from archive_process import archive_process
from archived_topics import SETTINGS, new_store
from proxy_process import ProxyProcess, wait_for
from small_disk import SmallDisk, mount_small_disk
from test_outages_named import filled
from topic_data import TopicData, archived_ends, produce

from fetchproxy.metadata.archiver_positions import decode_positions
from lab.kafka import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("promtool")]


@pytest.fixture
def small_disk(
    find_part: Callable[[str, Callable[[], SmallDisk]], SmallDisk], tmp_path: Path
) -> Iterator[SmallDisk]:
    with ExitStack() as mounted:
        yield find_part("small disk", lambda: mounted.enter_context(mount_small_disk(tmp_path)))


def test_an_archiver_that_is_killed(kafka_server: KafkaServer, tmp_path: Path) -> None:
    name, store = "silent-archiver", new_store(tmp_path)
    kafka_server.create_topic(name, 1)
    data = TopicData(name)
    produce(kafka_server.bootstrap, data, 300)
    archiver = archive_process(kafka_server.bootstrap, store, name, tmp_path, SETTINGS)
    archiver.start()
    try:
        wait_for("an archive", lambda: archived_ends(store, name) == {0: 300})
        with ProxyProcess(kafka_server.bootstrap, store, tmp_path) as proxy:
            watched = Watched(proxy.console_port)
            wait_for("its word", watched.above("fetchproxy_archivers_heard", 0))
            wait_for("its partition", lambda: has_said_its_partitions(tmp_path / "store"))
            watched.look()
            archiver.kill()
            wait_for("silence", watched.above("fetchproxy_archivers_silent", 0))
            watched.look_twice()
    finally:
        archiver.stop()
    assert_fires(watched.scrapes, "FetchproxyArchiverSilent", "FetchproxyLogErrors")


def has_said_its_partitions(store: Path) -> bool:
    """An archiver that is killed before nobody misses."""
    has_positions = [
        decode_positions(path.read_bytes(), "")[0] for path in store.glob("archivers/*")
    ]
    return any(has_positions)


def test_a_full_disk(own_kafka_server: KafkaServer, small_disk: SmallDisk, tmp_path: Path) -> None:
    kafka, name, store = own_kafka_server, "full-disk", new_store(tmp_path)
    kafka.create_topic(name, 1)
    data = TopicData(name)
    produce(kafka.bootstrap, data, 300)
    settings = {**SETTINGS, "archive.spool_dir": small_disk.folder / "spool"}
    with ProxyProcess(kafka.bootstrap, store, tmp_path, archive=name, settings=settings) as proxy:
        watched = Watched(proxy.console_port)
        wait_for("an archive", lambda: archived_ends(store, name) == {0: 300})
        watched.look()
        failing = watched.above("fetchproxy_archiver_disk_failing", 0)
        wait_for("a full disk", lambda: filled(small_disk, kafka, data) and failing())
        watched.look_twice()
        small_disk.free()
    assert_fires(watched.scrapes, "FetchproxyArchiverDiskFailing", "FetchproxyLogErrors")


def test_topics_that_cannot_be_archived_or_trimmed(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """One is compacted. The other has a retention of its own, and local retention is asked for."""
    store = new_store(tmp_path)
    kafka_server.create_topic("odd-compacted", 1, {"cleanup.policy": "compact"})
    kafka_server.create_topic("odd-retention", 1, {"retention.ms": "86400000"})
    produce(kafka_server.bootstrap, TopicData("odd-retention"), 300)
    settings = {
        **SETTINGS,
        "archive.local_retention_ms": 3_600_000,
        "limits.writing.retention_clock_settle_ms": 0,
    }
    with ProxyProcess(
        kafka_server.bootstrap, store, tmp_path, archive="odd-.*", settings=settings
    ) as proxy:
        watched = Watched(proxy.console_port)
        watched.look()
        wait_for("a refused topic", watched.above("fetchproxy_archive_refused_topics", 0))
        refused = '"local_retention_refused"'
        wait_for("the condition", watched.above("fetchproxy_conditions", 0, refused))
        watched.look_twice()
    assert_fires(
        watched.scrapes, "FetchproxyTopicRefused", "FetchproxyCondition", "FetchproxyLogErrors"
    )
