"""Two leaders of the same partitions at once: no data is missing or doubled.

The second one is a process that stops itself (SIGSTOP) in the middle of a copy. The first archiver
copies the same range and more, then the second one wakes up. Here both go on as leaders, as there
is not a group. test_leadership_kafka.py has a group that replaced the woken process.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from archive_harness import (
    archived_up_to,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
    until_true,
)
from memory_object_store import MemoryObjectStore
from structlog.testing import capture_logs
from two_archivers import (
    MEETING_COUNT,
    OVERTAKEN_TOO_LATE,
    SMALL,
    archiver_process,
    meet,
    produce,
    readable,
)
from whole_archive import verify_archive

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.model import RemoteLogSegmentState, TopicIdPartition
from fetchproxy.segments.description import decode_segment, encode_segment
from lab.mock_cluster import MockCluster

TOPIC = "orders"
PARTITIONS = 4


async def tidied(bootstrap: str, topic: str, folder: Path) -> None:
    """The last archiver removes redundant copies once no other can still work on them."""
    changes = {**SMALL, "copy_max_ms": 1_000, "retention_check_interval_ms": 100}
    async with (
        open_archive(folder / "store") as archive,
        running_archiver(bootstrap, archive, topic, spool_dir=folder / "spool", **changes) as (
            _,
            cluster,
        ),
    ):
        for tp in await tps(cluster, topic):
            assert (await archive.view(tp)).segments

            def redundant(tp: TopicIdPartition = tp) -> int:
                view = archive.rlmm.view(tp)
                assert view is not None
                return len(archive.rlmm.list_remote_log_segments(tp)) - len(view.segments)

            await until_true(lambda check=redundant: not check())
            expected = await broker_batches(cluster, tp, 0, 2 * MEETING_COUNT)
            assert await readable(archive, tp) == expected


@pytest.mark.parametrize(
    "label",
    [
        pytest.param("before put metadata COPY_SEGMENT_STARTED", marks=pytest.mark.slow),
        pytest.param("before put_file log", marks=pytest.mark.slow),
        OVERTAKEN_TOO_LATE,
    ],
)
async def test_two_that_do_not_know_of_each_other(
    mock_cluster: MockCluster, tmp_path: Path, label: str
) -> None:
    finished, visible = await meet(mock_cluster.bootstrap, TOPIC, PARTITIONS, tmp_path, label)
    # The other copies are taken back at their confirmation, unless timing prevents it.
    assert finished > visible or label != OVERTAKEN_TOO_LATE, "no range was copied twice"
    await tidied(mock_cluster.bootstrap, TOPIC, tmp_path)


@pytest.mark.parametrize("lives", [True, False])
async def test_finished_when_its_objects_had_been_deleted(
    mock_cluster: MockCluster, tmp_path: Path, lives: bool
) -> None:
    """The other archiver stops in the last call of its copy and then wakes.

    Meanwhile this one has copied the same offsets and removed the attempt. Then only the other's
    metadata is in the store, without any object of the segment.
    """
    produce(mock_cluster.bootstrap, TOPIC, 1, MEETING_COUNT)
    quick = {**SMALL, "copy_max_ms": 5_000, "retention_check_interval_ms": 100}
    label = "within put metadata COPY_SEGMENT_FINISHED"
    store = tmp_path / "store"
    with archiver_process(mock_cluster.bootstrap, tmp_path, TOPIC, label, **quick) as other:
        await asyncio.to_thread(other.wait_for, "stopped")
        await until_true(lambda: other.stopped)
        (attempt,) = store.rglob("*.metadata")
        begun = attempt.read_bytes()
        async with (
            open_archive(store) as archive,
            running_archiver(
                mock_cluster.bootstrap, archive, TOPIC, spool_dir=tmp_path / "spool", **quick
            ) as (manager, cluster),
        ):
            await until(manager, archived_up_to(TOPIC, {0: MEETING_COUNT}))
            await until_true(lambda: not attempt.exists())
            tp = (await tps(cluster, TOPIC))[0]
            if lives:
                other.send(signal.SIGCONT)
                await asyncio.to_thread(other.wait_for, "written")
            else:
                # The test writes its metadata for it: the woken process might take it back at once.
                other.send(signal.SIGKILL)
                finished_attempt = replace(
                    decode_segment(begun, attempt.name),
                    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                )
                copied = (await archive.view(tp)).segments
                first = build_view(tp, [finished_attempt, *copied], read_at=0.0).segments[0]
                assert first.segment_id == finished_attempt.segment_id, "readers are not sent there"
                attempt.parent.mkdir(exist_ok=True)
                attempt.write_bytes(encode_segment(finished_attempt))
            await until_true(lambda: not attempt.exists())
            expected = await broker_batches(cluster, tp, 0, MEETING_COUNT)
            assert await readable(archive, tp) == expected
            report = await verify_archive(archive.storage, archive.rlmm)
            assert report.clean, report.faults


class SlowStore(MemoryObjectStore):
    """Another process's access to the same objects; uploads of logs wait for `go_on`."""

    def __init__(self, shared: MemoryObjectStore) -> None:
        super().__init__()
        self._objects = shared._objects
        self.write_begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        if key.endswith(".log"):
            self.write_begun.set()
            await self.go_on.wait()
        await super().put_file(key, path, settled=settled)


async def test_a_copy_that_was_overtaken_does_not_count(mock_cluster: MockCluster) -> None:
    produce(mock_cluster.bootstrap, TOPIC, 1, MEETING_COUNT)
    bootstrap, ends = mock_cluster.bootstrap, archived_up_to(TOPIC, {0: MEETING_COUNT})
    quick = MemoryObjectStore()
    slow = SlowStore(quick)
    with capture_logs() as logs:
        async with open_archive(slow) as slow_archive, open_archive(quick) as archive:
            async with running_archiver(bootstrap, slow_archive, TOPIC, **SMALL) as (overtaken, _):
                await slow.write_begun.wait()
                async with running_archiver(bootstrap, archive, TOPIC, **SMALL) as (manager, _):
                    await until(manager, ends)
                slow.go_on.set()
                await until(overtaken, ends)
            (tp,) = await archive.rlmm.list_partitions()
            view = await archive.view(tp)
            finished = archive.rlmm.list_remote_log_segments(tp)
            assert [s.segment_id for s in finished] == [s.segment_id for s in view.segments]
            assert (await verify_archive(archive.storage, archive.rlmm)).clean
    assert any(entry["event"] == "archive_further_than_expected" for entry in logs)
