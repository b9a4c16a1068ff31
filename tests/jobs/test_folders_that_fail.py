"""A folder that its disk or mount does not give out: its partition or topic is named, the rest
goes on, and it heals when the folder is back.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from errno import EACCES, EIO, ENOTCONN, ESTALE
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from planted_archive import batch
from stored_archives import config_at
from typer.testing import CliRunner
from written_archive import TP, WrittenArchive

from fetchproxy.auditing.mirroring import MirrorOptions
from fetchproxy.cli.keys import rewrap_archive
from fetchproxy.cli.main import app
from fetchproxy.cli.running import EXIT_USER_ERROR
from fetchproxy.config.schema import MetadataConfig, StoreConfig
from fetchproxy.jobs.backfill_plan import backfill_input
from fetchproxy.jobs.merge import merge
from fetchproxy.jobs.mirror import mirror
from fetchproxy.jobs.report import report
from fetchproxy.jobs.runner import Here, ItemFailure
from fetchproxy.jobs.verify import reindex, verify
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.model import TopicIdPartition
from fetchproxy.remotelog.options import parse_options
from fetchproxy.serving.archive_only import topics
from fetchproxy.serving.archive_only.topics import ArchiveWatch
from fetchproxy.storage.remote_storage import open_store
from fetchproxy.storage.stores import retries

OTHER = TopicIdPartition(TP.topic_id, TP.topic, 1)
THIRD = TopicIdPartition(UUID(int=2), "payments", 0)


class Mounts:
    """The system's calls, which refuse `away` and what is below it."""

    def __init__(self) -> None:
        self.away: Path | None = None
        self.error = EIO

    def refusing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any = ".", *more: Any, **others: Any) -> Any:
            named = not isinstance(path, int)  # a descriptor, of other code
            if named and self.away is not None and Path(path).is_relative_to(self.away):
                raise OSError(self.error, os.strerror(self.error), os.fspath(path))
            return call(path, *more, **others)

        return called


@pytest.fixture
def mounts(monkeypatch: pytest.MonkeyPatch) -> Mounts:
    monkeypatch.setattr(retries, "PAUSES_S", (0.001, 0.001, 0.001))
    mounts = Mounts()
    for name in ("scandir", "lstat"):
        monkeypatch.setattr(os, name, mounts.refusing(getattr(os, name)))
    return mounts


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    made = WrittenArchive(tmp_path / "archive")
    for tp in (TP, OTHER, THIRD):
        made.add([batch(0), batch(10)], tp=tp)
    return made


def folder_of(archive: WrittenArchive, tp: TopicIdPartition) -> Path:
    (folder,) = archive.folder.glob(f"{tp.topic}-*/{tp.partition}")
    return folder


def each_job(
    archive: WrittenArchive, out: Path
) -> Iterator[tuple[str, int, tuple[ItemFailure, ...]]]:
    """(job, partitions that it has done, failures)"""
    config, here = config_at(archive.url), Here()
    verified = verify(here, config)
    yield "verify", verified.report.segments, verified.failures
    for name, outcome in (
        ("reindex", reindex(here, config, dry_run=True)),
        ("merge", merge(here, config)),
    ):
        yield name, len(outcome.results), outcome.failures
    reported = report(here, config)
    yield "report", len(reported.figures), reported.failures
    mirrored = mirror(here, config, (out / "copy").as_uri(), MirrorOptions())
    yield "mirror", len(mirrored.partitions), mirrored.failures


@pytest.mark.parametrize("error", [EIO, ESTALE, ENOTCONN, EACCES])
def test_a_partitions_folder(
    archive: WrittenArchive, mounts: Mounts, tmp_path: Path, error: int
) -> None:
    mounts.away, mounts.error = folder_of(archive, TP), error
    for job, outcome, failures in each_job(archive, tmp_path):
        assert [failure.name for failure in failures] == [str(TP)], (job, failures)
        assert str(mounts.away.relative_to(archive.folder)) in failures[0].error, job
        assert os.strerror(error) in failures[0].error, job
        assert outcome == 2, job
    mounts.away = None
    for job, outcome, failures in each_job(archive, tmp_path):
        assert (outcome, failures) == (3, ()), job


def test_a_topics_folder(archive: WrittenArchive, mounts: Mounts, tmp_path: Path) -> None:
    mounts.away = folder_of(archive, TP).parent
    for job, outcome, failures in each_job(archive, tmp_path):
        # `mirror` also copies a note about the topic.
        named = {failure.name for failure in failures} - {f"{mounts.away.name}/cluster-id"}
        assert named == {TP.topic}, (job, failures)
        assert f"{mounts.away}: {os.strerror(EIO)}" in failures[0].error, job
        assert outcome == 1, job
    mounts.away = None
    for job, outcome, failures in each_job(archive, tmp_path):
        assert (outcome, failures) == (3, ()), job


async def test_a_backfill(archive: WrittenArchive, mounts: Mounts) -> None:
    options = parse_options({"store": archive.url, "topicPattern": ".*"})
    folder = folder_of(archive, TP)
    for away, named, expected_views in (
        (folder, str(TP), [OTHER, THIRD]),
        (folder.parent, TP.topic, [THIRD]),
        (None, None, [TP, OTHER, THIRD]),
    ):
        mounts.away = away
        views, failures = await backfill_input(options)
        assert sorted(view.tp for view, _ in views) == sorted(expected_views)
        assert [failure.name for failure in failures] == ([named] if named else [])


@pytest.mark.parametrize("whole_topic", [False, True])
def test_segments(archive: WrittenArchive, mounts: Mounts, whole_topic: bool) -> None:
    folder = folder_of(archive, TP)
    mounts.away = folder.parent if whole_topic else folder
    result = CliRunner().invoke(app, ["segments", "--store", archive.url, "--json"])
    assert result.exit_code == EXIT_USER_ERROR, result.output
    assert len(json.loads(result.stdout)) == (1 if whole_topic else 2)
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("failed: ")]
    assert f"the folder {mounts.away}: {os.strerror(EIO)}" in line


@pytest.mark.parametrize("whole_topic", [False, True])
async def test_keys_rewrap(archive: WrittenArchive, mounts: Mounts, whole_topic: bool) -> None:
    folder = folder_of(archive, TP)
    mounts.away = folder.parent if whole_topic else folder
    async with open_store(archive.url, StoreConfig()) as storage:
        (fault,) = (await rewrap_archive(storage)).faults
        assert fault == f"the folder {mounts.away}: {os.strerror(EIO)}"
        mounts.away = None
        assert (await rewrap_archive(storage)).faults == []


async def test_archive_only_serves_the_others(
    archive: WrittenArchive, mounts: Mounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "PARTITIONS_ALONE_MAX", 1)  # a topic's views by one listing
    async with (
        open_store(archive.url, StoreConfig()) as storage,
        StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
    ):
        watch = ArchiveWatch(rlmm, TopicDescriptions(storage.objects), refresh_interval_s=0.0)
        await watch.load()
        known = watch.catalogue
        assert known.by_name[TP.topic].partition_count == 2
        mounts.away = folder_of(archive, TP)
        views = await watch.views([TP, OTHER])
        assert [isinstance(views[tp], PartitionView) for tp in (TP, OTHER)] == [False, True]
        mounts.away = mounts.away.parent
        archive_grown = WrittenArchive(archive.folder)
        archive_grown.segments = list(archive.segments)
        await archive_grown._add(batch(0), THIRD._replace(partition=1), None, (), 300, 0)
        await watch.load()
        assert watch.catalogue.by_name[TP.topic] == known.by_name[TP.topic]
        assert watch.catalogue.by_name[THIRD.topic].partition_count == 2
        mounts.away = None
        views = await watch.views([TP, OTHER])
        assert all(isinstance(view, PartitionView) for view in views.values())
