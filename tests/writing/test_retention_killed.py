"""An archiver killed with SIGKILL at every step of a deletion: the next one completes it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
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
from confluent_kafka import Producer
from labelled_store import DELETE_STEPS, labels
from whole_archive import verify_archive

from lab.mock_cluster import MockCluster

TOPIC = "orders"
HERE = Path(__file__).parent
COUNT = 2_000
SMALL = {"segment_bytes_max": 4_096, "fetch_bytes_max": 16_384}
RETENTION = {
    **SMALL,
    "remote_log_retention_bytes": 20_000,
    "retention_deletes_per_turn_max": 2,
    "retention_check_interval_ms": 50,
    "retention_step_grace_ms": 0,
}
SOME = ["after put metadata DELETE_SEGMENT_STARTED", "after delete log", "before delete metadata"]


def produce(bootstrap: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 1_000})
    for i in range(count):
        producer.produce(TOPIC, value=b"v" * 100, key=str(i).encode(), partition=0)
        if i % 500 == 499:
            assert producer.flush(180) == 0
    assert producer.flush(180) == 0


def run_until_killed(bootstrap: str, folder: Path, label: str) -> None:
    command = [sys.executable, str(HERE / "archiver_process.py"), bootstrap]
    command += [str(folder / "store"), str(folder / "spool"), TOPIC, json.dumps(RETENTION), label]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.getcwd()])}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    try:
        assert process.wait(60) == -signal.SIGKILL, f"it has not come to {label!r}"
    finally:
        process.kill()
        process.wait()


def logs(folder: Path) -> list[int]:
    """Base offsets of the logs in the store."""
    return sorted(int(path.name[:20]) for path in (folder / "store").rglob("*.log"))


@pytest.mark.parametrize(
    "steps", [SOME, pytest.param(labels(DELETE_STEPS), marks=pytest.mark.slow)], ids=["some", "all"]
)
async def test_killed_at_every_step_of_a_deletion(
    mock_cluster: MockCluster, tmp_path: Path, steps: list[str]
) -> None:
    await asyncio.to_thread(produce, mock_cluster.bootstrap, COUNT)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(mock_cluster.bootstrap, archive, TOPIC, **SMALL) as (manager, _),
    ):
        await until(manager, archived_up_to(TOPIC, {0: COUNT}))
    before = logs(tmp_path)
    assert len(before) > len(steps) + 10
    for label in steps:
        await asyncio.to_thread(run_until_killed, mock_cluster.bootstrap, tmp_path, label)
    async with open_archive(tmp_path / "store") as archive:
        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC, **RETENTION) as (
            manager,
            cluster,
        ):
            await until(manager, archived_up_to(TOPIC, {0: COUNT}))
            (tp,) = [tp for tp in await tps(cluster, TOPIC) if tp.partition == 0]
            view = await archive.view(tp)
            start = view.log_start_offset
            assert start is not None
            assert start > 0
            bases_kept = [base for base in before if base >= start]
            await until_true(lambda: logs(tmp_path) == bases_kept)
            # Nothing below the log start, and everything from there on.
            expected = await broker_batches(cluster, tp, start, COUNT)
            assert await archive.batches(tp) == expected
        assert (await archive.view(tp)).unfinished == ()
        assert (await verify_archive(archive.storage, archive.rlmm)).faults == []
        names = {path.name[:20] for path in (tmp_path / "store").rglob("*-*.*")}
        assert {int(name) for name in names if name.isdigit()} - {start} == set(bases_kept) - {
            start
        }
