"""A merge killed with SIGKILL at every step, and a merge beside an active archiver.

Readers notice nothing, no data is missing or doubled, and leftovers are removed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from archive_harness import (
    Archive,
    archived_up_to,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
)
from labelled_store import COPY_STEPS, DELETE_STEPS, labels
from merger_process import COPIES_OLD_MS, merge_all
from two_archivers import SMALL, produce, readable
from whole_archive import verify_archive

from fetchproxy.segments.object_keys import KAFKA_FILES, SegmentFile
from lab.mock_cluster import MockCluster

TOPIC = "orders"
COUNT = 1_200
BYTES_MAX = 40_000
HERE = Path(__file__).parent
# No segment here has these: no transactions, no broker's own files.
ABSENT = {f"put {file.value}" for file in (SegmentFile.TXN, *KAFKA_FILES)}
STEPS = labels([step for step in COPY_STEPS if step not in ABSENT])
SOME = ["after put metadata COPY_SEGMENT_STARTED", "before put metadata COPY_SEGMENT_FINISHED"]


def run_until_killed(folder: Path, label: str, later_ms: int) -> None:
    command = [sys.executable, str(HERE / "merger_process.py"), str(folder / "store")]
    command += [str(folder / "spool"), str(BYTES_MAX), str(later_ms), label]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.getcwd()])}
    result = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert result.returncode == -signal.SIGKILL, f"it has not come to {label!r}: {result.stderr!r}"


async def archived(bootstrap: str, folder: Path) -> bytes:
    """Archive one partition in many small segments; return its bytes."""
    await asyncio.to_thread(produce, bootstrap, TOPIC, 1, COUNT)
    async with (
        open_archive(folder / "store") as archive,
        running_archiver(bootstrap, archive, TOPIC, **SMALL) as (manager, cluster),
    ):
        await until(manager, archived_up_to(TOPIC, {0: COUNT}))
        tp = next(tp for tp in await tps(cluster, TOPIC) if tp.partition == 0)
        return await broker_batches(cluster, tp, 0, COUNT)


async def shape(archive: Archive) -> list[tuple[int, int]]:
    (tp,) = [tp for tp in await archive.rlmm.list_partitions() if tp.partition == 0]
    view = await archive.view(tp)
    assert view.unfinished == ()
    return list(view.segments.bounds())


async def merged_until_settled(folder: Path) -> list[tuple[int, int]]:
    async with open_archive(folder / "store") as archive:
        await merge_all(archive, folder / "spool", BYTES_MAX)
        await merge_all(archive, folder / "spool", 1, COPIES_OLD_MS)  # only removes
        return await shape(archive)


@pytest.mark.parametrize(
    "steps", [SOME, pytest.param(STEPS, marks=pytest.mark.slow)], ids=["some", "all"]
)
async def test_killed_at_every_step_of_a_merge(
    mock_cluster: MockCluster, tmp_path: Path, steps: list[str]
) -> None:
    expected = await archived(mock_cluster.bootstrap, tmp_path)
    for label in steps:
        await asyncio.to_thread(run_until_killed, tmp_path, label, 0)
        async with open_archive(tmp_path / "store") as archive:
            (tp,) = [tp for tp in await archive.rlmm.list_partitions() if tp.partition == 0]
            assert await readable(archive, tp) == expected
    ranges = await merged_until_settled(tmp_path)
    async with open_archive(tmp_path / "store") as archive:
        assert await readable(archive, tp) == expected
        assert (await verify_archive(archive.storage, archive.rlmm)).clean
    assert ranges[0][1] - ranges[0][0] > 300
    assert ranges == await merged_until_settled(tmp_path)
    logs = list((tmp_path / "store").rglob("*.log"))
    assert len(logs) == len(ranges)


@pytest.mark.slow
async def test_killed_at_every_step_of_the_removal(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    expected = await archived(mock_cluster.bootstrap, tmp_path)
    async with open_archive(tmp_path / "store") as archive:
        await merge_all(archive, tmp_path / "spool", BYTES_MAX)
    for label in labels(DELETE_STEPS):
        await asyncio.to_thread(run_until_killed, tmp_path, label, COPIES_OLD_MS)
        async with open_archive(tmp_path / "store") as archive:
            (tp,) = [tp for tp in await archive.rlmm.list_partitions() if tp.partition == 0]
            assert await readable(archive, tp) == expected
    ranges = await merged_until_settled(tmp_path)
    assert len(list((tmp_path / "store").rglob("*.log"))) == len(ranges)


async def test_merged_while_it_is_archived_and_read(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    """Copies are old after one second here, so the archiver removes replaced segments."""
    bootstrap, merged, reads = mock_cluster.bootstrap, 0, 0
    changes = {**SMALL, "copy_max_ms": 500, "retention_check_interval_ms": 50}
    async with (
        open_archive(tmp_path / "store") as archive,
        open_archive(tmp_path / "store") as other,
        open_archive(tmp_path / "store") as reader,
        running_archiver(bootstrap, archive, TOPIC, **changes) as (manager, cluster),
    ):
        for part in range(1, 5):
            await asyncio.to_thread(produce, bootstrap, TOPIC, 1, 300)
            await until(manager, archived_up_to(TOPIC, {0: 300 * part}))
            merged += await merge_all(other, tmp_path / "spool", BYTES_MAX)
            tp = next(tp for tp in await tps(cluster, TOPIC) if tp.partition == 0)
            expected = await broker_batches(cluster, tp, 0, 300 * part)
            for _ in range(2):
                assert await readable(reader, tp) == expected
                reads += 1
                await asyncio.sleep(0.4)
        segments = archive.rlmm.list_remote_log_segments(tp)
    assert merged >= 3
    assert reads == 8
    offsets_archived = sum(s.end_offset - s.start_offset + 1 for s in segments)
    assert offsets_archived < 2 * 1_200, "the replaced segments are still there"
