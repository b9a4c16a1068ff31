"""A real cluster with an archiver is lost with its disks; the command restores an empty one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest
from archive_process import archive_process
from archived_topics import new_store
from fetchproxy_command import fetchproxy, output_of
from group_commit import commit
from proxy_process import wait_for
from test_cluster_restore import assert_no_phantom, consumed, ends, produced
from topic_data import TopicData, archived_ends, produce

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

NAME, RECORDS = "orders", 300


# Beyond those that are archived before the first state; only the archive and the journal get them.
LATER = 50
SETTINGS = {"archive.cluster_state_interval_ms": 300}


@pytest.fixture
def lost_clusters_store(own_kafka_server: KafkaServer, tmp_path: Path) -> str:
    """The store of a cluster that has been killed."""
    kafka, store = own_kafka_server, new_store(tmp_path)
    kafka.create_topic(NAME, 1, {"max.message.bytes": "654321"})
    produce(kafka.bootstrap, TopicData(NAME), RECORDS)
    commit(kafka.bootstrap, "billing", NAME, RECORDS)
    archiver = archive_process(kafka.bootstrap, store, NAME, tmp_path, SETTINGS)
    archiver.start()
    try:
        wait_for("the archive", lambda: archived_ends(store, NAME) == {0: RECORDS})
        wait_for("the state", lambda: '"billing"' in state_of(store))
    finally:
        archiver.stop()
    kafka.kill()
    return store


class TwoStates(NamedTuple):
    store: str
    first_ms: int


@pytest.fixture
def store_of_two_states(own_kafka_server: KafkaServer, tmp_path: Path) -> TwoStates:
    """More was written, archived and committed after the first of two states."""
    kafka, store = own_kafka_server, new_store(tmp_path)
    kafka.create_topic(NAME, 1)
    data = TopicData(NAME)
    produce(kafka.bootstrap, data, RECORDS)
    commit(kafka.bootstrap, "billing", NAME, RECORDS)
    archiver = archive_process(kafka.bootstrap, store, NAME, tmp_path, SETTINGS)
    archiver.start()
    try:
        wait_for("the archive", lambda: archived_ends(store, NAME) == {0: RECORDS})
        wait_for("the state", lambda: '"billing"' in state_of(store))
        first_ms = int(json.loads(state_of(store))["read_at_ms"])
        produce(kafka.bootstrap, data, LATER)
        commit(kafka.bootstrap, "billing", NAME, RECORDS + LATER)
        wait_for("the archive", lambda: archived_ends(store, NAME) == {0: RECORDS + LATER})
        wait_for("the later state", lambda: int(state_end(store)) == RECORDS + LATER)
    finally:
        archiver.stop()
    kafka.kill()
    return TwoStates(store, first_ms)


@pytest.fixture
def store_with_a_journal(own_kafka_server: KafkaServer, tmp_path: Path) -> str:
    """Of a cluster and an archiver that were killed: only the journal has the records."""
    kafka, store = own_kafka_server, new_store(tmp_path)
    kafka.create_topic(NAME, 1)
    produce(kafka.bootstrap, TopicData(NAME), RECORDS)
    commit(kafka.bootstrap, "billing", NAME, RECORDS)
    settings = {
        **SETTINGS,
        "archive.recovery_point_ms": 100,
        "archive.segment_age_max_ms": 3_600_000,
        "archive.segment_bytes_max": 64 << 20,
    }
    archiver = archive_process(kafka.bootstrap, store, NAME, tmp_path, settings)
    archiver.start()
    try:
        wait_for("the state", lambda: '"billing"' in state_of(store))
        folder = Path(urlsplit(store).path)
        wait_for(
            "the journal",
            lambda: sum(one.stat().st_size for one in folder.glob("journals/*/*")) > RECORDS * 300,
        )
    finally:
        archiver.kill()
    kafka.kill()
    return store


def state_of(store: str) -> str:
    return fetchproxy("cluster", "show", "--store", store, "--json").stdout


def state_end(store: str) -> int:
    [row] = json.loads(state_of(store))["partitions"]
    return int(row["log_end_offset"])


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


def test_partitions_begin_at_the_ends_of_a_chosen_state(
    store_of_two_states: TwoStates, new_cluster: KafkaServer, tmp_path: Path
) -> None:
    store, first_ms = store_of_two_states
    bootstrap = new_cluster.bootstrap
    where = ("--store", store, "--bootstrap", bootstrap, "--state", str(tmp_path / "job"))
    command = ("cluster", "restore", *where, "--at", str(first_ms))
    beyond = (
        f"{NAME}-0: the archive has offsets {RECORDS} to {RECORDS + LATER - 1}, which are later"
    )

    plan = output_of(*command, "--dry-run")
    assert f"partition 0: begins at {RECORDS}, " in plan
    assert f"! not in the new log: {beyond}" in plan
    report = json.loads(output_of(*command, "--json"))

    assert not report["faults"] + report["lost"] + report["differences"]
    assert [text.startswith(beyond) for text in report["beyond_state"]] == [True]
    assert ends(bootstrap, NAME, 1) == [(RECORDS, RECORDS)]
    assert produced(bootstrap, NAME, 0, b"goes on") == RECORDS
    records = consumed(bootstrap, NAME, "billing")
    assert next(records) == (0, RECORDS, b"goes on")
    records.close()


def test_segments_are_made_of_the_journal_first(
    store_with_a_journal: str, new_cluster: KafkaServer, tmp_path: Path
) -> None:
    store, bootstrap = store_with_a_journal, new_cluster.bootstrap
    assert archived_ends(store, NAME) == {}
    where = ("--store", store, "--bootstrap", bootstrap, "--state", str(tmp_path / "job"))
    command = ("cluster", "restore", *where, "--by", "padding")

    planned = fetchproxy(*command, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "the journal has records of 1 partition beyond the archive" in planned.stderr
    assert f"partition 0: begins at {RECORDS}, {RECORDS} offsets of padding" in planned.stdout
    assert archived_ends(store, NAME) == {}
    report = json.loads(output_of(*command, "--json"))

    assert not report["faults"] + report["lost"] + report["differences"]
    assert archived_ends(store, NAME) == {0: RECORDS}
    assert ends(bootstrap, NAME, 1) == [(RECORDS, RECORDS)]
    records = consumed(bootstrap, NAME, "billing")
    assert produced(bootstrap, NAME, 0, b"goes on") == RECORDS
    assert next(records) == (0, RECORDS, b"goes on")
    records.close()


def test_an_archive_without_a_state_is_an_error(kafka_server: KafkaServer, tmp_path: Path) -> None:
    where = ("--store", new_store(tmp_path), "--bootstrap", kafka_server.bootstrap)
    done = fetchproxy("cluster", "restore", *where)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
