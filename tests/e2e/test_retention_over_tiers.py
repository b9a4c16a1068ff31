"""Retention, local retention and topic deletion against a real broker, with active readers."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from archived_topics import NO_MEMORY, SETTINGS, new_topic
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from held_reader import HeldReader
from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from removable_store import folder_store
from topic_data import TopicData, archived_ends, produce, trim

from fetchproxy.segments.object_keys import LAYOUT_OBJECT
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

OUT_OF_RANGE = 1
COUNT = 1200
QUICK: dict[str, object] = {
    **SETTINGS,
    "limits.writing.retention_check_interval_ms": 200,
    "limits.writing.retention_clock_settle_ms": 0,
    "archive.retention_grace_ms": 0,
    "archive.retention_step_grace_ms": 0,
}
DELETE_LAG = "kafka_server_brokertopicmetrics_remotedeletelagsegments"
DELETIONS = "kafka_server_brokertopicmetrics_remotedeleterequests_total"
KEPT_BYTES = 150_000  # of about 390 KB


@contextmanager
def archiving(
    kafka: KafkaServer, store: str, name: str, folder: Path, **settings: Any
) -> Iterator[ProxyProcess]:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    with ProxyProcess(
        kafka.bootstrap, store, folder, archive=name, settings={**QUICK, **changes}
    ) as process:
        yield process
        assert process.running, process.log_text()[-4000:]
        crashed = process.logged("part_failed") + process.logged("partition_process_crashed")
        assert not crashed, crashed[0]


def archived(kafka: KafkaServer, store: str, name: str, keep: int = 100) -> TopicData:
    data = new_topic(kafka, name)
    produce(kafka.bootstrap, data, COUNT)
    wait_for("the archive", lambda: archived_ends(store, name) == {0: COUNT})
    trim(kafka.bootstrap, name, {0: COUNT - keep})
    return data


def log_files(store: str) -> set[str]:
    return {path.name for path in Path(store.removeprefix("file://")).rglob("*.log")}


def broker_start(kafka: KafkaServer, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "edges"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)[0])
    finally:
        consumer.close()


def log_start(raw: RawConnection, topic: str) -> int:
    error, _, offset = raw.list_offset(6, topic, -2)
    assert error == 0
    return int(offset)


def test_readers_while_retention_deletes(kafka_server: KafkaServer, tmp_path: Path) -> None:
    """One proxy knows soon, one has an old view: both are right, and neither shows an error 56."""
    name, store = "retention-readers", (tmp_path / "store").as_uri()
    with archiving(kafka_server, store, name, tmp_path):
        data = archived(kafka_server, store, name)
    # The console's look at the store would also refresh the view of the only partition.
    old_views = ("metadata.view_age_max_ms", "limits.console.refresh_interval_ms")
    stale = {**QUICK, **NO_MEMORY, **dict.fromkeys(old_views, 3_600_000)}
    fresh = {**QUICK, **NO_MEMORY, "metadata.view_age_max_ms": 200}
    with (
        ProxyProcess(kafka_server.bootstrap, store, tmp_path, settings=stale) as old,
        ProxyProcess(kafka_server.bootstrap, store, tmp_path, settings=fresh) as new,
        RawConnection(old.bootstrap) as at_old,
        RawConnection(new.bootstrap) as at_new,
        HeldReader("kafka-python", new.bootstrap, name, {0: COUNT}, hold_at=100) as behind,
        HeldReader("confluent-kafka", new.bootstrap, name, {0: COUNT}, hold_at=1000) as ahead,
    ):
        for reader in (behind, ahead):
            reader.wait_until_held()
        for raw in (at_old, at_new):
            assert raw.fetch_until_data(12, name, None, 0).records
        before = log_files(store)
        retention = {"archive__remote_log_retention_bytes": KEPT_BYTES}
        # In the grace, the log start is raised, and readers with an old view continue.
        with archiving(
            kafka_server, store, name, tmp_path, archive__retention_grace_ms=3_600_000, **retention
        ) as archiver:
            wait_for("the new log start", lambda: log_start(at_new, name) > 0)
            wait_for("all hidden", lambda: archiver.metric(DELETE_LAG) > 3)
            start = log_start(at_new, name)
            assert 500 < start < 900
            assert archiver.metric(DELETE_LAG) == sum(int(log[:20]) < start for log in before)
            assert at_old.fetch_until_data(12, name, None, 200).records
            assert at_new.fetch_until_data(12, name, None, start - 1).error == OUT_OF_RANGE
            assert at_new.fetch_until_data(12, name, None, start).records
            assert log_files(store) == before
        # After it, another process deletes the objects, and the proxy notices that its view is old.
        with archiving(kafka_server, store, name, tmp_path, **retention) as archiver:
            logs_left = {log for log in before if int(log[:20]) >= start}
            wait_for("the objects to go", lambda: log_files(store) == logs_left)
            wait_for("the lag to end", lambda: archiver.metric(DELETE_LAG) == 0)
            assert at_old.fetch_until_data(12, name, None, 300).error == OUT_OF_RANGE
            assert at_old.fetch_until_data(12, name, None, start).records
            ahead.go_on()
            assert ahead.records()[0] == data.written[0]
            behind.go_on()
            wait_for("the reader that was behind", lambda: behind.finished)
            assert "OutOfRange" in type(behind.errors[0]).__name__
            assert behind.read[0] == data.written[0][: len(behind.read[0])]
            assert archiver.metric(DELETIONS) == len(before) - len(logs_left)
            # Nothing is archived again; new records are archived.
            produce(kafka_server.bootstrap, data, 200)
            wait_for("the rest", lambda: archived_ends(store, name) == {0: COUNT + 200})
            assert not archiver.logged("archive_gap")


@pytest.mark.remedy("retention_step_announced")
def test_a_large_step_is_announced_and_taken_back(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    name, store = "retention-step", (tmp_path / "store").as_uri()
    with archiving(kafka_server, store, name, tmp_path):
        archived(kafka_server, store, name)
    before = log_files(store)
    mistyped = {"archive__remote_log_retention_bytes": KEPT_BYTES}
    day = {"archive__retention_step_grace_ms": 86_400_000}
    with archiving(kafka_server, store, name, tmp_path, **mistyped, **day) as proxy:
        wait_for("the headline", lambda: json.loads(proxy.get("/api/status"))["headlines"])
        [line] = proxy.logged("retention_step_announced")
        assert 50 < line["percent"] < 100
        with RawConnection(proxy.bootstrap) as raw:
            assert log_start(raw, name) == 0
    with archiving(kafka_server, store, name, tmp_path, **day) as proxy:
        announced = list((tmp_path / "store").rglob("retention-step"))
        assert len(announced) <= 1
        wait_for("it to be taken back", lambda: not any(path.exists() for path in announced))
        assert json.loads(proxy.get("/api/status"))["headlines"] == []
    # The step was intended: it happens by itself after the grace.
    soon = {"archive__retention_step_grace_ms": 8_000}
    with archiving(kafka_server, store, name, tmp_path, **mistyped, **soon) as proxy:
        wait_for("the headline", lambda: proxy.logged("retention_step_announced"))
        assert log_files(store) == before
        wait_for("it to go", lambda: log_files(store) < before)
        wait_for("its end", lambda: not json.loads(proxy.get("/api/status"))["headlines"])


def delete_records(bootstrap: str, topic: str, offset: int) -> tuple[int, int]:
    request_topic = DeleteRecordsRequest.DeleteRecordsTopic
    partition = request_topic.DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[request_topic(name=topic, partitions=[partition])], timeout_ms=20_000
    )
    request.API_VERSION = 2
    with RawConnection(bootstrap) as raw:
        response = raw.ask(request, DeleteRecordsResponse, 2)
    [partition_response] = response.topics[0].partitions
    return partition_response.error_code, partition_response.low_watermark


def test_delete_records_at_the_proxy_and_at_the_broker(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    name, store = "retention-delete-records", (tmp_path / "store").as_uri()
    with (
        archiving(kafka_server, store, name, tmp_path, archive__retention_grace_ms=0) as proxy,
        RawConnection(proxy.bootstrap) as raw,
    ):
        archived(kafka_server, store, name)
        everything = log_files(store)
        # At the broker: only the local tier is trimmed.
        assert delete_records(kafka_server.bootstrap, name, COUNT - 50) == (0, COUNT - 50)
        time.sleep(1)
        assert log_start(raw, name) == 0
        assert log_files(store) == everything
        # Through the proxy: both tiers are trimmed.
        assert delete_records(proxy.bootstrap, name, 777) == (0, 777)
        assert log_start(raw, name) == 777
        below = {log for log in everything if int(log[:20]) < 777}
        inside = max(below)
        wait_for("the objects", lambda: log_files(store) == (everything - below) | {inside})
        assert raw.fetch_until_data(12, name, None, 776).error == OUT_OF_RANGE
        assert raw.fetch_until_data(12, name, None, 777).records


def test_local_retention_after_the_copy(kafka_server: KafkaServer, tmp_path: Path) -> None:
    name, store = "retention-local", folder_store(tmp_path)
    unlimited = {"retention.ms": "-1", "retention.bytes": "-1"}
    kafka_server.create_topic(name, 1, config=unlimited)
    data = TopicData(name)
    with archiving(
        kafka_server, store.url, name, tmp_path, archive__local_retention_bytes=100_000
    ) as proxy:
        produce(kafka_server.bootstrap, data, COUNT)
        wait_for("the trimming", lambda: broker_start(kafka_server, name) > 500)
        wait_for("the archive", lambda: archived_ends(store.url, name) == {0: COUNT})

        def stands_still() -> bool:
            start = broker_start(kafka_server, name)
            time.sleep(7)  # longer than a busy machine may hold up the proxy
            return broker_start(kafka_server, name) == start

        wait_for("the end of the trimming", stands_still)
        trimmed_to = broker_start(kafka_server, name)
        assert trimmed_to < COUNT - 200  # the local retention was kept
        # In a store outage nothing is archived, so nothing is trimmed, however much is produced.
        store.take_away()
        try:
            produce(kafka_server.bootstrap, data, COUNT)
            time.sleep(2)
            assert broker_start(kafka_server, name) == trimmed_to
        finally:
            store.bring_back()
        wait_for("more of it", lambda: broker_start(kafka_server, name) > COUNT + 500)
        wait_for("the archive", lambda: archived_ends(store.url, name) == {0: 2 * COUNT})
        with HeldReader("kafka-python", proxy.bootstrap, name, {0: 2 * COUNT}) as reader:
            assert reader.records()[0] == data.written[0]
        with RawConnection(proxy.bootstrap) as raw:
            assert log_start(raw, name) == 0
        assert not proxy.logged("archive_gap")


@pytest.mark.parametrize(
    ("manager", "lost"),
    [
        pytest.param("store", "*.log", id="a lifecycle rule"),
        pytest.param("topic", "*", id="all but its name", marks=pytest.mark.slow),
    ],
)
@pytest.mark.remedy("local_trimming_stopped")
def test_the_brokers_keep_what_the_store_has_lost(
    kafka_server: KafkaServer, tmp_path: Path, manager: str, lost: str
) -> None:
    """Objects disappear without the archiver, and only their absence shows it.

    (Without the object that names the archive, an archiver refuses to start.)
    """
    name, folder = f"retention-lost-{manager}", tmp_path / "store"
    store, away = folder.as_uri(), tmp_path / "away"
    kafka_server.create_topic(name, 1, config={"retention.ms": "-1", "retention.bytes": "-1"})
    data = TopicData(name)
    settings: dict[str, Any] = {"metadata__manager": manager}
    settings |= {"metadata__topic_name": f"{name}-metadata", "metadata__topic_partitions": 1}
    settings["metadata__topic_replication_factor"] = 1
    with archiving(kafka_server, store, name, tmp_path, **settings) as proxy:
        produce(kafka_server.bootstrap, data, COUNT)
        end = "fetchproxy_archive_end_offset"
        wait_for("the archive", lambda: proxy.metric(end, name) == COUNT)
    shutil.copytree(folder, away)
    for path in [path for path in folder.rglob(lost) if path.is_file()]:
        if path.name != LAYOUT_OBJECT:
            path.unlink()
    settings["archive__local_retention_bytes"] = 50_000
    with archiving(kafka_server, store, name, tmp_path, **settings) as proxy:
        wait_for("the headline", lambda: json.loads(proxy.get("/api/status"))["headlines"])
        [headline] = json.loads(proxy.get("/api/status"))["headlines"]
        assert f"the brokers keep their records of {name}-0" in headline
        assert "is missing" in headline
        # Archiving goes on, and the message stays.
        produce(kafka_server.bootstrap, data, COUNT)
        wait_for("the rest", lambda: proxy.metric(end, name) == 2 * COUNT)
        time.sleep(1)
        assert broker_start(kafka_server, name) == 0
        assert len(proxy.logged("local_trimming_stopped")) == 1
        place = ("fetchproxy_conditions", "local_trimming_stopped")
        wait_for("the gauge, at the next look", lambda: proxy.metric(*place) == 1)
        [condition] = [
            one for one in json.loads(proxy.get("/api/status"))["conditions"] if one["waits"]
        ]
        assert (condition["kind"], condition["topic"]) == ("local_trimming_stopped", name)
        assert condition["what"] == headline
        # Restore the lost objects.
        shutil.copytree(away, folder, dirs_exist_ok=True)
        wait_for("the trimming", lambda: broker_start(kafka_server, name) > COUNT)
        wait_for("its end", lambda: not json.loads(proxy.get("/api/status"))["headlines"])


def test_local_retention_is_refused_where_the_broker_may_delete_first(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    name, store = "retention-refused", (tmp_path / "store").as_uri()
    week = {"retention.ms": "604800000"}  # a broker's default
    data = TopicData(kafka_server.create_topic(name, config=week))
    produce(kafka_server.bootstrap, data, COUNT)
    with archiving(kafka_server, store, name, tmp_path, archive__local_retention_ms=1) as proxy:
        wait_for("the archive", lambda: archived_ends(store, name) == {0: COUNT})
        wait_for("the refusal", lambda: proxy.logged("local_retention_refused"))
        [line] = proxy.logged("local_retention_refused")
        assert "set retention.ms=-1 and retention.bytes=-1" in line["error"]
        wait_for("the page", lambda: "set retention.ms=-1" in proxy.get("/api/status"))
        assert proxy.metric("fetchproxy_local_trimming_refused") == 1
        assert broker_start(kafka_server, name) == 0


DELETION = {
    "limits__writing__topic_deletion_check_interval_ms": 100,
    "archive__topic_deletion_grace_ms": 1_500,
}


def test_a_topic_that_is_deleted_and_created_again(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    name, other, store = "retention-again", "retention-again-not", (tmp_path / "store").as_uri()
    folder = Path(store.removeprefix("file://"))
    slowly = {**DELETION, "archive__topic_deletion_grace_ms": 8_000}
    with archiving(kafka_server, store, "retention-again.*", tmp_path, **slowly) as proxy:
        archived(kafka_server, store, name)
        archived(kafka_server, store, other)
        [first] = [f for f in folder.glob(f"{name}-*") if not f.name.startswith(other)]
        wait_for("the word that it is ours", lambda: (first / "cluster-id").exists())
        admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
        admin.delete_topics([name])[name].result()
        wait_for("its absence", lambda: proxy.logged("archived_topic_is_gone"))
        proxy.stop()
        assert list(first.rglob("*.log"))  # its grace is not over
        proxy.start()
        again = new_topic(kafka_server, name)
        produce(kafka_server.bootstrap, again, 300)
        wait_for("its archive to go", lambda: not list(first.rglob("*.*")))
        wait_for("the new one", lambda: 300 in archived_ends(store, name).values())
        trim(kafka_server.bootstrap, name, {0: 290})
        with HeldReader("kafka-python", proxy.bootstrap, name, {0: 300}) as reader:
            assert reader.records()[0] == again.written[0]
        assert archived_ends(store, other) == {0: COUNT}
        states = [line["state"] for line in proxy.logged("partition_deletion")]
        assert [state.rpartition("_")[2] for state in states] == ["MARKED", "STARTED", "FINISHED"]


@pytest.mark.slow
def test_archives_that_are_kept(kafka_server: KafkaServer, tmp_path: Path) -> None:
    """Archives kept by setting, and archives of topics that this cluster never had."""
    name, store = "retention-kept", (tmp_path / "store").as_uri()
    folder = Path(store.removeprefix("file://"))
    keep = {**DELETION, "archive__topic_deletion": "keep"}
    with archiving(kafka_server, store, name, tmp_path, **keep):
        archived(kafka_server, store, name)
        admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
        admin.delete_topics([name])[name].result()
        time.sleep(3)
    assert list(folder.rglob("*.log"))
    # This process has never seen the topic alive, so it does not delete its archive.
    with archiving(kafka_server, store, name, tmp_path, **DELETION):
        time.sleep(3)
    assert list(folder.rglob("*.log"))
