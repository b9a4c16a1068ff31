"""A restored topic continues its archived log, and the archive belongs to the new cluster alone."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import url2pathname

import pytest
from archive_process import archive_process, segments, verify
from archived_topics import SETTINGS, new_store
from client_readers import PYTHON_CLIENTS, read_confluent
from confluent_kafka.admin import AdminClient, NewTopic
from fetchproxy_command import COMMAND, PROJECT, fetchproxy, output_of
from proxy_process import ProxyProcess, wait_for
from test_cluster_restore import ends as log_edges
from topic_data import TopicData, archived_ends, produce, trim

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.remotelog.archive_reading import ArchiveReading
from fetchproxy.remotelog.options import parse_options
from fetchproxy.segments.object_keys import uuid_text
from lab.kafka import KafkaServer, run_tool

pytestmark = pytest.mark.kafka

NAME, PARTITIONS = "orders", 2
STATES = {"archive.cluster_state_interval_ms": 300}


@pytest.fixture
def old(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    yield from serve_part("kafka", KafkaServer())


@pytest.fixture
def new(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    yield from serve_part("kafka", KafkaServer())


def restore_command(store: str, new: KafkaServer, folder: Path) -> list[str]:
    where = ["--store", store, "--bootstrap", new.bootstrap]
    return ["cluster", "restore", *where, "--state", str(folder / "job")]


def state_of(store: str) -> str:
    return fetchproxy("cluster", "show", "--store", store, "--json").stdout


def topic_id(bootstrap: str, name: str) -> str:
    async def ask() -> str:
        async with Cluster(ClusterConfig(bootstrap=bootstrap)) as cluster:
            return uuid_text((await cluster.topic_by_name(name, max_age_ms=0)).topic_id)

    return asyncio.run(ask())


def listing(store: str) -> dict[str, bytes]:
    folder = Path(url2pathname(store.removeprefix("file://")))
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def planned_by_spark(store: str) -> dict[tuple[str, int], tuple[int | None, int | None]]:
    """Where each partition begins and ends for the data source."""

    async def look() -> dict[tuple[str, int], tuple[int | None, int | None]]:
        async with ArchiveReading(parse_options({"store": store, "topics": NAME})) as reading:
            views = await reading.views()
        return {place: (v.log_start_offset, v.log_end_offset) for place, v in views.items()}

    return asyncio.run(look())


def values_of(data: TopicData) -> list[str]:
    return sorted(value.decode() for some in data.written.values() for _, _, value in some)


def read_by_java(bootstrap: str, data: TopicData) -> list[str]:
    """Its fetches name topics by id."""
    done = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", NAME, "--from-beginning"),
        *("--max-messages", str(len(values_of(data)))),
    )
    return sorted(done.stdout.splitlines())


def killed_at(step: str, command: list[str]) -> None:
    process = subprocess.Popen(
        [*COMMAND, *command], cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.decode().strip() == f"step: {step}":
            break
    else:
        pytest.fail(f"the restore has no step {step}")
    process.kill()
    process.wait()
    process.stderr.close()


def archived_by_old(old: KafkaServer, store: str, data: TopicData, folder: Path) -> None:
    """Everything of the topic, by an archiver that has stopped; and the state of the cluster."""
    old.create_topic(NAME, PARTITIONS)
    produce(old.bootstrap, data, 400, partition_count=PARTITIONS)
    archiver = archive_process(old.bootstrap, store, NAME, folder, STATES)
    archiver.start()
    try:
        ends = data.ends(old.bootstrap)
        wait_for("the archive", lambda: archived_ends(store, NAME) == ends)
        wait_for("the state", lambda: f'"{NAME}"' in state_of(store))
    finally:
        archiver.stop()


def test_one_log_over_both_clusters(old: KafkaServer, new: KafkaServer, tmp_path: Path) -> None:
    store, data = new_store(tmp_path), TopicData(NAME)
    archived_by_old(old, store, data, tmp_path)
    first_id, seam = topic_id(old.bootstrap, NAME), data.ends(old.bootstrap)
    old.kill()
    command = restore_command(store, new, tmp_path)

    assert "~ archive: it passes from cluster" in output_of(*command, "--dry-run")
    killed_at("continue", command)
    report = output_of(*command)

    assert "topics that continue an archived log: 1" in report
    assert topic_id(new.bootstrap, NAME) != first_id
    with ProxyProcess(
        new.bootstrap, store, tmp_path, archive=NAME, settings=SETTINGS | STATES
    ) as proxy:
        produce(new.bootstrap, data, 400, partition_count=PARTITIONS)
        ends = data.ends(new.bootstrap)
        wait_for("the new archive", lambda: archived_ends(store, NAME) == ends)
        assert read_confluent(proxy.bootstrap, NAME, ends) == data.written
        # Now the seam is inside the archive.
        trim(new.bootstrap, NAME, {partition: end - 100 for partition, end in ends.items()})
        for name, read_all in PYTHON_CLIENTS.items():
            assert read_all(proxy.bootstrap, NAME, ends) == data.written, name
        assert read_by_java(proxy.bootstrap, data) == values_of(data)
        report_of_again = output_of(*command)  # while the new archiver is at work
        assert "refused" not in report_of_again

    rows = segments(store, NAME)
    assert {row["topic_id"] for row in rows} == {first_id}
    for partition, end in ends.items():
        of_partition = [row for row in rows if row["partition"] == partition]
        borders = [(row["base_offset"], row["last_offset"] + 1) for row in of_partition]
        assert [start for start, _ in borders] == [0, *(last for _, last in borders[:-1])]
        assert borders[-1][1] == end
        assert seam[partition] in [start for start, _ in borders]
    assert "clean" in verify(store)
    assert planned_by_spark(store) == {
        (NAME, partition): (0, end) for partition, end in ends.items()
    }

    old_cluster_changes_nothing(old, store, tmp_path)
    a_topic_made_again_is_another_log(new, store, first_id, tmp_path)


def test_a_log_goes_on_by_padding_also_if_it_was_killed(
    old: KafkaServer, new: KafkaServer, tmp_path: Path
) -> None:
    """Nothing of the padding is archived, and nothing that was archived is cut."""
    store, data = new_store(tmp_path), TopicData(NAME)
    archived_by_old(old, store, data, tmp_path)
    first_id, seam = topic_id(old.bootstrap, NAME), data.ends(old.bootstrap)
    old.kill()
    command = [*restore_command(store, new, tmp_path), "--by", "padding"]
    assert "~ archive: it passes from cluster" in output_of(*command, "--dry-run")
    killed_at("record", command)

    report = output_of(*command)

    assert "topics that continue an archived log: 1" in report
    assert "does not continue" not in report
    assert dict(enumerate(log_edges(new.bootstrap, NAME, PARTITIONS))) == {
        partition: (end, end) for partition, end in seam.items()
    }
    with ProxyProcess(
        new.bootstrap, store, tmp_path, archive=NAME, settings=SETTINGS | STATES
    ) as proxy:
        produce(new.bootstrap, data, 400, partition_count=PARTITIONS)
        ends = data.ends(new.bootstrap)
        wait_for("the new archive", lambda: archived_ends(store, NAME) == ends)
        trim(new.bootstrap, NAME, {partition: end - 100 for partition, end in ends.items()})
        for name, read_all in PYTHON_CLIENTS.items():
            assert read_all(proxy.bootstrap, NAME, ends) == data.written, name
        assert read_by_java(proxy.bootstrap, data) == values_of(data)
        assert "refused" not in output_of(*command)  # while the new archiver is at work
    assert {row["topic_id"] for row in segments(store, NAME)} == {first_id}
    assert "clean" in verify(store)
    old_cluster_changes_nothing(old, store, tmp_path)


def old_cluster_changes_nothing(old: KafkaServer, store: str, folder: Path) -> None:
    """Its brokers and its archiver are started again beside the new ones."""
    before = listing(store)
    old.start()
    produce(old.bootstrap, TopicData(NAME), 400, partition_count=PARTITIONS)
    archiver = archive_process(old.bootstrap, store, NAME, folder / "again", STATES)
    archiver.start()
    try:
        wait_for("the refusal", lambda: not archiver.running)
    finally:
        archiver.stop()
    assert "when `fetchproxy cluster restore` handed it over" in archiver.log_tail()
    assert listing(store) == before


def a_topic_made_again_is_another_log(
    new: KafkaServer, store: str, first_id: str, folder: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": new.bootstrap})
    admin.delete_topics([NAME], operation_timeout=30)[NAME].result(timeout=60)
    wait_for("the deletion", lambda: NAME not in admin.list_topics(timeout=30).topics)
    admin.create_topics([NewTopic(NAME, 1, 1)], operation_timeout=30)[NAME].result(timeout=60)
    made_again = TopicData(NAME)
    wait_for("the topic", lambda: NAME in admin.list_topics(timeout=30).topics)
    produce(new.bootstrap, made_again, 50)
    archiver = archive_process(new.bootstrap, store, NAME, folder / "made-again", STATES)
    archiver.start()
    try:
        another_id = topic_id(new.bootstrap, NAME)
        wait_for(
            "its own archive",
            lambda: another_id in {row["topic_id"] for row in segments(store, NAME)},
        )
    finally:
        archiver.stop()
    bases = [row["base_offset"] for row in segments(store, NAME) if row["topic_id"] == another_id]
    assert min(bases) == 0
    assert another_id != first_id


def test_an_archiver_that_was_away_is_refused_when_it_goes_on(
    old: KafkaServer, new: KafkaServer, tmp_path: Path
) -> None:
    """It stood still while the archive changed hands. Its brokers are back, too, and its retention
    is due.
    """
    store, data = new_store(tmp_path), TopicData(NAME)
    archived_by_old(old, store, data, tmp_path)
    settings = {
        **STATES,
        "archive.recovery_point_ms": 200,
        "archive.remote_log_retention_bytes": 1,
        "archive.local_retention_bytes": 1,
        "limits.writing.retention_check_interval_ms": 200,
        "limits.writing.retention_clock_settle_ms": 15_000,
    }
    archiver = archive_process(old.bootstrap, store, NAME, tmp_path / "away", settings)
    archiver.start()
    command = restore_command(store, new, tmp_path)
    try:
        folder = Path(url2pathname(store.removeprefix("file://"))) / "archivers"
        wait_for("a beat", lambda: any(folder.glob("*.positions")))
        refused = fetchproxy(*command)
        assert refused.returncode == 2
        assert "is still using this archive" in refused.stderr
        archiver.pause()
        output_of(*command, "--take-over")
        before = listing(store)
        produce(old.bootstrap, TopicData(NAME), 400, partition_count=PARTITIONS)
        archiver.resume()
        wait_for("the condition", lambda: "handed it over" in archiver.log.read_text())
        wait_for(
            "a refused copy or beat",
            lambda: "archiver_positions_not_written" in archiver.log.read_text(),
        )
        wait_for("a refused turn", lambda: "partition_process_failed" in archiver.log.read_text())
    finally:
        archiver.stop()
    assert listing(store) == before
    # Its brokers' records were not trimmed by the archive of the new cluster either.
    assert {first for first, _ in log_edges(old.bootstrap, NAME, PARTITIONS)} == {0}
