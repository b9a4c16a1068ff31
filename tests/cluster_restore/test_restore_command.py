"""A real cluster with an archiver is lost with its disks; the command restores an empty one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_process import archive_process
from archived_topics import new_store
from confluent_kafka import Consumer, TopicPartition
from fetchproxy_command import fetchproxy, output_of
from proxy_process import wait_for
from test_cluster_restore import assert_no_phantom, consumed, ends, produced
from topic_data import TopicData, archived_ends, produce

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

NAME, RECORDS = "orders", 300


@pytest.fixture
def lost_clusters_store(own_kafka_server: KafkaServer, tmp_path: Path) -> str:
    """The store of a cluster that has been killed."""
    kafka, store = own_kafka_server, new_store(tmp_path)
    kafka.create_topic(NAME, 1, {"max.message.bytes": "654321"})
    produce(kafka.bootstrap, TopicData(NAME), RECORDS)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "billing"})
    place = TopicPartition(NAME, 0, RECORDS)
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()
    settings = {"archive.cluster_state_interval_ms": 300}
    archiver = archive_process(kafka.bootstrap, store, NAME, tmp_path, settings)
    archiver.start()
    try:
        wait_for("the archive", lambda: archived_ends(store, NAME) == {0: RECORDS})
        wait_for("the state", lambda: '"billing"' in state_of(store))
    finally:
        archiver.stop()
    kafka.kill()
    return store


def state_of(store: str) -> str:
    return fetchproxy("cluster", "show", "--store", store, "--json").stdout


@pytest.fixture
def new_cluster(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    yield from serve_part("kafka", KafkaServer())


def test_a_lost_cluster_is_restored_by_one_command(
    lost_clusters_store: str, new_cluster: KafkaServer, tmp_path: Path
) -> None:
    bootstrap = new_cluster.bootstrap
    where = ("--store", lost_clusters_store, "--bootstrap", bootstrap)
    command = ("cluster", "restore", *where, "--state", str(tmp_path / "job"))

    plan = output_of(*command, "--dry-run").splitlines()
    assert plan[0] == f"+ topic {NAME}: 1 partition, new"
    assert "+     max.message.bytes=654321" in plan
    assert not (tmp_path / "job").exists()

    report = json.loads(output_of(*command, "--json"))

    assert (report["topics"], report["partitions"], report["groups"]) == (1, 1, 1)
    assert not report["faults"] + report["lost"] + report["differences"]
    assert ends(bootstrap, NAME, 1) == [(RECORDS, RECORDS)]
    assert produced(bootstrap, NAME, 0, b"goes on") == RECORDS
    records = consumed(bootstrap, NAME, "billing")
    assert next(records) == (0, RECORDS, b"goes on")
    records.close()
    assert_no_phantom(bootstrap, {1})


def test_the_plan_and_the_report_say_what_is_local(
    lost_clusters_store: str, new_cluster: KafkaServer, tmp_path: Path
) -> None:
    bootstrap = new_cluster.bootstrap
    where = ("--store", lost_clusters_store, "--bootstrap", bootstrap)
    command = ("cluster", "restore", *where, "--state", str(tmp_path / "job"), "--local", "30d")

    wrong = fetchproxy(*command[:-1], "much")
    assert wrong.returncode == 2
    assert "--local much: expected a size such as 10GiB, or an age such as 7d" in wrong.stderr
    plan = output_of(*command, "--dry-run").splitlines()
    assert [line for line in plan if f"begins at 0 with local history up to {RECORDS}" in line]
    assert json.loads(output_of(*command, "--dry-run", "--json"))["producer_id_blocks"] == 0

    report = output_of(*command).splitlines()

    assert f"local history: {NAME}-0: offsets 0 to {RECORDS - 1}" in report
    assert ends(bootstrap, NAME, 1) == [(0, RECORDS)]


def test_an_archive_without_a_state_is_an_error(kafka_server: KafkaServer, tmp_path: Path) -> None:
    where = ("--store", new_store(tmp_path), "--bootstrap", kafka_server.bootstrap)
    done = fetchproxy("cluster", "restore", *where)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
