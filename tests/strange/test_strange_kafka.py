"""Logs that Kafka may hold, in a real broker, through every part: what fetchproxy says of them is
what the broker said.

One broker holds them all: it takes longer to start than the rest takes. `make strange EXAMPLES=N
SEED=N` tries other logs.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import asked
import compared
import pyarrow.parquet as pq
import pytest
from archive_only_process import ArchiveOnlyProcess
from asked import key_of
from corpus import EXAMPLES, SEED, corpus
from fetchproxy_command import Ended, fetchproxy, output_of
from oracle import Oracle, ask_broker
from oracle_sides import until
from oracle_wire import WireConnection
from planted_kafka import PlantedPartition, plant, planted_kafka
from proxy_process import ProxyProcess
from read_records import read_records, records_of
from topic_data import archived_ends

from lab.hdfs import HdfsServer
from lab.kafka import KafkaServer
from lab.store_server import StoreServer

pytestmark = pytest.mark.kafka

NODE_ID = 2**31 - 1
SEGMENT_BYTES = 4_000
PARQUET_TOPICS = 5


@dataclass(frozen=True)
class Strange:
    """The broker with its logs, what it said of them, and the store that holds them all."""

    kafka: KafkaServer
    oracle: Oracle
    store: str
    folder: Path
    from_files: Ended  # the archiver that copied the broker's files
    ends_from_files: dict[str, dict[int, int]]  # how far it came, by its topics and partitions


@pytest.fixture(scope="module")
def planted_server(
    tmp_path_factory: pytest.TempPathFactory,
    serve_part: Callable[[str, KafkaServer], Iterator[KafkaServer]],
) -> Iterator[tuple[KafkaServer, list[PlantedPartition]]]:
    planted = corpus(EXAMPLES, SEED)
    kafka = planted_kafka(tmp_path_factory.mktemp("kafka"), NODE_ID, {})
    plant(kafka, NODE_ID, planted)
    for server in serve_part("kafka", kafka):
        yield server, planted


@pytest.fixture(scope="module")
def strange(
    planted_server: tuple[KafkaServer, list[PlantedPartition]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Strange]:
    """The broker's own words first; then all is archived, every second topic from the broker's
    files as far as that goes, and most is deleted from the broker.
    """
    kafka, planted = planted_server
    folder = tmp_path_factory.mktemp("strange")
    store = (folder / "archive").as_uri()
    with WireConnection(kafka.bootstrap) as wire:
        until("every partition has its leader", lambda: _leads_all(wire, planted))
        oracle = ask_broker(wire, planted)
        once = ("archive", "--once", "--bootstrap", kafka.bootstrap, "--store", store)
        topics = sorted({p.topic for p in planted})[::2]
        names = "|".join(map(re.escape, topics))
        from_files = fetchproxy(
            *once, f"--topics={names}", "--set", f"archive.log_dirs={kafka.data_dir}"
        )
        ends = {topic: archived_ends(store, topic) for topic in topics}
        output_of(*once, "--topics", ".*", "--set", f"archive.segment_bytes_max={SEGMENT_BYTES}")
        yield Strange(kafka, oracle, store, folder, from_files, ends)


def _leads_all(wire: WireConnection, planted: list[PlantedPartition]) -> bool:
    offsets = asked.list_offsets(wire, [(key_of(p), -1) for p in planted])
    return len(offsets) == len(planted) and not any(error for error, *_ in offsets.values())


def assert_same(differences: Iterator[str]) -> None:
    all_differences = list(differences)
    excerpt = "\n".join(all_differences[:20])
    assert not all_differences, (
        f"{len(all_differences)} differences, with EXAMPLES={EXAMPLES} SEED={SEED}:\n{excerpt}"
    )


def test_the_brokers_files_are_archived(strange: Strange) -> None:
    """Also where compaction has taken a segment's last records."""
    for planted in strange.oracle.planted:
        if planted.topic in strange.ends_from_files:
            end = compared.end_by_log_dirs(planted.log)
            end_of_files = strange.ends_from_files[planted.topic].get(planted.partition)
            assert (end_of_files or planted.log.log_start) == end, planted
    assert strange.from_files.returncode == 0, strange.from_files.stderr


@pytest.mark.hdfs
@pytest.mark.slow
def test_hdfs_keeps_the_logs_too(strange: Strange, hdfs_server: HdfsServer) -> None:
    """Archived there from the broker, before it deletes anything."""
    store = hdfs_server.store_url("strange-logs")
    bootstrap = ("--bootstrap", strange.kafka.bootstrap)
    output_of("archive", "--once", *bootstrap, "--store", store, "--topics", ".*")
    output_of("verify", "--store", store)
    _check_archive(strange, store)


def test_relayed_and_archived_logs_are_the_brokers(strange: Strange) -> None:
    """Before anything is deleted, and after the brokers' logs start inside the archived part."""
    with (
        ProxyProcess(strange.kafka.bootstrap, strange.store, strange.folder) as proxy,
        WireConnection(proxy.bootstrap) as wire,
        WireConnection(strange.kafka.bootstrap) as broker,
    ):
        assert_same(compared.cluster_differences(wire, broker, strange.oracle))
        asked.delete_records(broker, _new_starts(strange.oracle))
        assert_same(compared.cluster_differences(wire, broker, strange.oracle))
        assert_same(compared.console_differences(proxy.get("/api/status"), strange.oracle))
        assert not proxy.logged("session_crashed")


def _new_starts(oracle: Oracle) -> dict[asked.Key, int]:
    """At a batch's border, inside a batch, or the archive's end."""
    starts = {}
    for key, end in compared.archived_ends(oracle).items():
        log = next(p.log for p in oracle.planted if key_of(p) == key)
        inside = {end, *(b.base_offset for b in log.batches), *(b.last_offset for b in log.batches)}
        legal = sorted(offset for offset in inside if log.log_start < offset <= end)
        if legal:
            starts[key] = Random(log.log_start).choice(legal)
    return starts


def test_archive_only_says_what_the_broker_said(strange: Strange) -> None:
    output_of("verify", "--store", strange.store)
    before = _files(strange.folder / "archive")
    output_of("verify", "--repair", "--store", strange.store)
    assert _files(strange.folder / "archive") == before, "there was nothing to repair"
    _check_archive(strange, strange.store)


def _files(folder: Path) -> dict[Path, tuple[int, int, bytes]]:
    """(inode, time of the last change, content) by path."""
    files = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
    return {path: (stat.st_ino, stat.st_mtime_ns, path.read_bytes()) for path, stat in files}


def test_jobs_keep_the_logs(strange: Strange) -> None:
    """Side files that are lost are made anew, and segments merged: readers notice nothing."""
    copy = strange.folder / "copy"
    shutil.copytree(strange.folder / "archive", copy)
    for path in sorted(copy.rglob("*.index"))[::2]:
        path.unlink()
    assert fetchproxy("verify", "--store", copy.as_uri()).returncode == 1
    output_of("reindex", "--store", copy.as_uri())
    output_of("verify", "--store", copy.as_uri())
    output_of("merge", "--store", copy.as_uri())
    output_of("verify", "--store", copy.as_uri())
    _check_archive(strange, copy.as_uri())


MIRRORS = [
    "files",
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("gcs", marks=pytest.mark.gcs),
    pytest.param("azure", marks=pytest.mark.azure),
]


@pytest.mark.parametrize("kind", MIRRORS)
def test_a_mirror_on_every_store_has_the_logs(
    strange: Strange, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = (strange.folder / "mirror").as_uri()
    if kind != "files":
        server: StoreServer = request.getfixturevalue(f"{kind}_server")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        mirror = server.store_url(server.create_bucket("strange-logs"), "mirror")
    output_of("mirror", "--from", strange.store, "--to", mirror)
    output_of("verify", "--store", mirror)
    _check_archive(strange, mirror)


def _check_archive(strange: Strange, store: str) -> None:
    with (
        ArchiveOnlyProcess(store, strange.folder) as node,
        WireConnection(node.bootstrap) as wire,
    ):
        assert_same(compared.archive_differences(wire, strange.oracle))
        assert_same(compared.console_differences(node.get("/api/status"), strange.oracle))
        node.assert_sound()


def test_lists_and_reports_name_every_segment(strange: Strange) -> None:
    """As text and as JSON, with timestamps that no calendar has."""
    listed = json.loads(output_of("segments", "--store", strange.store, "--json"))
    output_of("segments", "--store", strange.store)
    output_of("report", "--store", strange.store, "--out", str(strange.folder / "report"))
    ends: dict[asked.Key, int] = {}
    for segment in listed:
        key = (segment["topic"], segment["partition"])
        ends[key] = max(ends.get(key, 0), segment["last_offset"] + 1)
    assert ends == compared.ends_with_archive(strange.oracle)


def test_parquet_has_every_committed_record(strange: Strange) -> None:
    folder = strange.folder / "parquet"
    topics = set(_topics_with_most_records(strange.oracle, PARQUET_TOPICS))
    names = f"--topics={','.join(sorted(topics))}"
    output_of("backfill", "--store", strange.store, names, "--parquet", str(folder))
    columns = ["topic", "partition", "offset", "key", "value"]
    rows_read = {
        (row["topic"], row["partition"], row["offset"]): (row["key"], row["value"])
        for path in folder.rglob("*.parquet")
        for row in pq.ParquetFile(path).read(columns).to_pylist()
    }
    expected = {
        (p.topic, p.partition, record.offset): (record.key, record.value)
        for p in strange.oracle.planted
        if p.topic in topics
        for record in records_of(p.log, p.log.last_stable, p.log.aborted)
    }
    assert rows_read == expected


def test_another_topic_gets_the_same_records(strange: Strange) -> None:
    """Bytes stay bytes, also those that clients take for text."""
    (source,) = _topics_with_most_records(strange.oracle, 1)
    partitions = [p for p in strange.oracle.planted if p.topic == source]
    target = strange.kafka.create_topic("copy-of-strange", len(partitions))
    output_of(
        *("backfill", "--store", strange.store, f"--topics={source}"),
        *("--bootstrap", strange.kafka.bootstrap, "--to-topic", target),
    )
    with WireConnection(strange.kafka.bootstrap) as wire:
        for planted in partitions:
            records_read = [
                r[1:] for r in read_records(asked.read_topic(wire, target, planted.partition))
            ]
            log = planted.log
            assert records_read == [r[1:] for r in records_of(log, log.last_stable, log.aborted)], (
                planted
            )


def _topics_with_most_records(oracle: Oracle, count: int) -> list[str]:
    counts: Counter[str] = Counter()
    for planted in oracle.planted:
        log = planted.log
        counts[planted.topic] += len(records_of(log, log.last_stable, log.aborted))
    return [topic for topic, _ in counts.most_common(count)]
