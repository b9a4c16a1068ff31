"""Two leaders of the same partitions at once: nothing is missing, nothing is doubled.

The second one is a process that stops itself (SIGSTOP) in the middle of a copy, is given up by the
first, and wakes up when that has copied the same range and more. Here both go on as leaders, as
there is no group; test_leadership_kafka.py has one, in which the woken process was replaced.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from archive_harness import (
    broker_batches,
    open_archive,
    running_archiver,
    tips,
    until_true,
)
from two_archivers import MEETING_COUNT, SMALL, meet, readable

from fetchproxy.model import TopicIdPartition
from lab.mock_cluster import MockCluster

TOPIC = "orders"
PARTITIONS = 4


async def tidied(bootstrap: str, topic: str, folder: Path) -> None:
    """Whoever is left removes the copies that add nothing, once nobody can be at them any more."""
    changes = {**SMALL, "copy_max_ms": 1_000, "retention_check_interval_ms": 100}
    async with (
        open_archive(folder / "store") as archive,
        running_archiver(bootstrap, archive, topic, spool_dir=folder / "spool", **changes) as (
            _,
            cluster,
        ),
    ):
        for tip in await tips(cluster, topic):
            assert (await archive.view(tip)).segments

            def redundant(tip: TopicIdPartition = tip) -> int:
                view = archive.rlmm.view(tip)
                assert view is not None
                return len(archive.rlmm.list_remote_log_segments(tip)) - len(view.segments)

            await until_true(lambda check=redundant: not check())
            expected = await broker_batches(cluster, tip, 0, 2 * MEETING_COUNT)
            assert await readable(archive, tip) == expected


@pytest.mark.parametrize(
    "label",
    [
        pytest.param("before put metadata COPY_SEGMENT_STARTED", marks=pytest.mark.slow),
        "before put_file log",
        pytest.param("before put metadata COPY_SEGMENT_FINISHED", marks=pytest.mark.slow),
    ],
)
async def test_two_that_do_not_know_of_each_other(
    mock_cluster: MockCluster, tmp_path: Path, label: str
) -> None:
    finished, seen = await meet(mock_cluster.bootstrap, TOPIC, PARTITIONS, tmp_path, label)
    assert finished > seen, "no range was copied twice: this run has shown nothing"
    await tidied(mock_cluster.bootstrap, TOPIC, tmp_path)
