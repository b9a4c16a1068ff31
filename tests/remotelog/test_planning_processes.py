"""Many partitions are planned by several processes, with the result of one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from made_batches import Record, made_batch
from written_archive import TP, WrittenArchive

from fetchproxy.errors import RemoteStorageError, leaves
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from fetchproxy.remotelog import archive_reading, planning_processes
from fetchproxy.remotelog.archive_reading import plan_input
from fetchproxy.remotelog.options import SourceOptions, parse_options
from fetchproxy.remotelog.planning_processes import PARTITIONS_EACH
from fetchproxy.segments.object_keys import SegmentFile

Views = dict[TopicIdPartition, PartitionView]


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    """A partition more than is handed over at once, one of them with metadata to complain of."""
    made = WrittenArchive(tmp_path / "archive")
    for partition in range(PARTITIONS_EACH + 1):
        tp = TopicIdPartition(TP.topic_id, TP.topic, partition)
        made.add([made_batch(0, [Record()] * (partition + 1))], tp=tp)
    made.add([made_batch(20, [Record()])], tp=tp)
    made.path(made.segments[-1], SegmentFile.METADATA).write_bytes(b"{")
    return made


def options_of(archive: WrittenArchive) -> SourceOptions:
    return parse_options({"store": archive.url, "topics": TP.topic, "failOnDataLoss": "false"})


async def read_elsewhere(options: SourceOptions, tps: list[TopicIdPartition]) -> Views:
    views: Views = {}

    async def nobody_here() -> None:
        assert not tps, f"{len(tps)} partitions are left to this process"

    async with asyncio.TaskGroup() as reading:
        for _ in range(2):
            reading.create_task(planning_processes.read_elsewhere(options, tps, views, nobody_here))
    return views


def views_of(options: SourceOptions) -> Views:
    return {view.tp: view for view, _ in plan_input(options)}


def described(views: Views) -> dict[TopicIdPartition, tuple[object, ...]]:
    return {tp: (list(v.segments), v.unreadable, v.log_end_offset) for tp, v in views.items()}


def test_what_other_processes_find_is_what_one_finds(
    archive: WrittenArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = views_of(options_of(archive))
    assert len(views) == PARTITIONS_EACH + 1
    monkeypatch.setattr(archive_reading, "ALONE_S", 0.0)
    views_read = asyncio.run(read_elsewhere(options_of(archive), list(views)))
    assert described(views_read) == described(views)
    again = views_of(options_of(archive))
    assert described(again) == described(views)


def test_an_error_of_theirs_is_raised_here(
    archive: WrittenArchive, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(archive_reading, "ALONE_S", 0.0)
    gone = parse_options(
        {"store": (tmp_path / "gone").as_uri(), "topics": TP.topic, "planMaxMs": "200"}
    )
    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(read_elsewhere(gone, [TP]))
    assert isinstance(next(leaves(raised.value)), RemoteStorageError)


def test_processes_that_do_not_start_cost_time_alone(
    archive: WrittenArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = views_of(options_of(archive))
    monkeypatch.setattr(archive_reading, "ALONE_S", 0.0)
    monkeypatch.setattr(planning_processes.sys, "executable", "/bin/false")
    again = views_of(options_of(archive))
    assert described(again) == described(views)
