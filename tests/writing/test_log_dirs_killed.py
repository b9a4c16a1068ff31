"""The archiver beside a broker is killed with SIGKILL at each step of a copy and of a removal.

The tests include compressed and encrypted segments.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archive_harness import broker_batches, open_archive, running_archiver, tps, until
from labelled_store import (
    COPY_STEPS,
    DELETE_STEPS,
    PACKED_COPY_STEPS,
    WITHIN_PACKING,
    labels,
)
from planted_archive import gaps_of
from test_log_dirs_kafka import (
    SMALL_SEGMENTS,
    archived_to,
    folder_of,
    produce,
    rolled_bases,
    transactions,
)
from whole_archive import verify_archive

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.segments.object_keys import SegmentFile, parse_segment_key
from fetchproxy.storage.key_rings import NO_KEYS, FileKeyRing, write_keys
from fetchproxy.storage.packed_logs import NO_ENCRYPTION, AtRest
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

HERE = Path(__file__).parent
QUICK_REMOVAL = {"copy_max_ms": 1_000}  # attempts older than twice this are removed

# Before two of the objects, and around the write that makes a copy count.
SOME = [
    "before put index",
    "before put_file log",
    "before put metadata COPY_SEGMENT_FINISHED",
    "after put metadata COPY_SEGMENT_FINISHED",
]
EACH_PACKED = [WITHIN_PACKING, *labels(PACKED_COPY_STEPS)]
SOME_PACKED = [WITHIN_PACKING, "before put packing", "after put packing", "after put_file log"]


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    write_keys(path, NO_KEYS.with_new("k1", bytes(range(32))), new=True)
    return path


def run_until_killed(
    bootstrap: str,
    folder: Path,
    topic: str,
    changes: dict[str, Any],
    label: str,
    ring: Path | None = None,
) -> None:
    """Run the process until it kills itself at the step, which it must reach."""
    command = [sys.executable, str(HERE / "archiver_process.py"), bootstrap]
    command += [str(folder / "store"), str(changes["spool_dir"]), topic]
    rest = {key: value for key, value in changes.items() if key != "spool_dir"}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.getcwd()])}
    result = subprocess.run(
        [*command, json.dumps(rest), label, *([] if ring is None else [str(ring)])],
        env=environment,
        stdout=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert result.returncode == -signal.SIGKILL, result.returncode


def beside(kafka: KafkaServer) -> dict[str, Any]:
    return {
        "log_dirs": str(kafka.data_dir),
        "spool_dir": str(kafka.data_dir.parent / "spool"),
    }


@pytest.mark.parametrize(
    "steps", [SOME, pytest.param(labels(COPY_STEPS), marks=pytest.mark.slow)], ids=["some", "all"]
)
async def test_killed_in_a_copy(
    kafka_server: KafkaServer,
    create_topic: Callable[..., str],
    tmp_path: Path,
    steps: list[str],
) -> None:
    """Each process is killed at another step; the last one can continue the archive."""
    topic = create_topic(config=SMALL_SEGMENTS)
    changes = beside(kafka_server)
    for life, label in enumerate(steps):
        # Data to copy, with aborted transactions.
        await asyncio.to_thread(transactions, kafka_server, topic, 25, life)
        await asyncio.to_thread(produce, kafka_server, topic, 1.1, life)
        await asyncio.to_thread(
            run_until_killed, kafka_server.bootstrap, tmp_path, topic, changes, label
        )
    await finish(kafka_server, topic, tmp_path, changes)


@pytest.mark.parametrize(
    "steps",
    [
        SOME_PACKED,
        pytest.param([WITHIN_PACKING, *labels(PACKED_COPY_STEPS)], marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
async def test_killed_in_a_copy_that_is_compressed_and_encrypted(
    kafka_server: KafkaServer,
    create_topic: Callable[..., str],
    ring: Path,
    tmp_path: Path,
    steps: list[str],
) -> None:
    """After each kill the archive shows the broker's bytes; the last process finishes."""
    topic = create_topic(config=SMALL_SEGMENTS)
    changes, at_rest = beside(kafka_server), AtRest(compress=True, keys=FileKeyRing(ring))
    for life, label in enumerate(steps):
        await asyncio.to_thread(transactions, kafka_server, topic, 25, life)
        await asyncio.to_thread(produce, kafka_server, topic, 1.1, life)
        await asyncio.to_thread(
            run_until_killed, kafka_server.bootstrap, tmp_path, topic, changes, label, ring
        )
        await shows_the_brokers_bytes(kafka_server, topic, tmp_path, at_rest)
    await finish(kafka_server, topic, tmp_path, changes, at_rest)
    nothing_in_the_clear(kafka_server, topic, tmp_path / "store")


async def test_killed_in_a_removal_of_what_is_encrypted(
    kafka_server: KafkaServer, create_topic: Callable[..., str], ring: Path, tmp_path: Path
) -> None:
    """An attempt whose keys are already deleted is removed like any other."""
    topic = create_topic(config=SMALL_SEGMENTS)
    changes, at_rest = beside(kafka_server), AtRest(compress=True, keys=FileKeyRing(ring))
    await asyncio.to_thread(produce, kafka_server, topic, 1.1)
    for life, label in enumerate(["before delete packing", "after delete packing"]):
        await asyncio.to_thread(produce, kafka_server, topic, 1.1, life)
        left_behind = ("before put metadata COPY_SEGMENT_FINISHED", changes)
        for step, limits in (left_behind, (label, {**changes, **QUICK_REMOVAL})):
            await asyncio.to_thread(
                run_until_killed, kafka_server.bootstrap, tmp_path, topic, limits, step, ring
            )
    await finish(kafka_server, topic, tmp_path, {**changes, **QUICK_REMOVAL}, at_rest)


@pytest.mark.parametrize(
    "steps",
    [
        ["before delete log", "before delete metadata"],
        pytest.param(labels(DELETE_STEPS), marks=pytest.mark.slow),
    ],
    ids=["some", "all"],
)
async def test_killed_in_a_removal(
    kafka_server: KafkaServer,
    create_topic: Callable[..., str],
    tmp_path: Path,
    steps: list[str],
) -> None:
    """An attempt is left behind; each process is killed in its removal, the last one ends it."""
    topic = create_topic(config=SMALL_SEGMENTS)
    changes = beside(kafka_server)
    await asyncio.to_thread(produce, kafka_server, topic, 1.1)
    for life, label in enumerate(steps):
        await asyncio.to_thread(produce, kafka_server, topic, 1.1, life)
        left_behind = ("before put metadata COPY_SEGMENT_FINISHED", changes)
        for step, limits in (left_behind, (label, {**changes, **QUICK_REMOVAL})):
            await asyncio.to_thread(
                run_until_killed, kafka_server.bootstrap, tmp_path, topic, limits, step
            )
    await finish(kafka_server, topic, tmp_path, {**changes, **QUICK_REMOVAL})


async def shows_the_brokers_bytes(
    kafka: KafkaServer, topic: str, tmp_path: Path, at_rest: AtRest
) -> None:
    async with (
        open_archive(tmp_path / "store", at_rest) as archive,
        Cluster(ClusterConfig(bootstrap=kafka.bootstrap)) as cluster,
    ):
        (tp,) = await tps(cluster, topic)
        if segments := (await archive.view(tp)).segments:
            end = segments[-1].end_offset + 1
            assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, end)


def nothing_in_the_clear(kafka: KafkaServer, topic: str, store: Path) -> None:
    log = (folder_of(kafka, topic) / f"{0:020d}.log").read_bytes()
    sample = log[len(log) // 2 :][:100]
    stored = [path.read_bytes() for path in store.rglob("*") if path.is_file()]
    assert sample not in b"".join(stored)


async def finish(
    kafka: KafkaServer,
    topic: str,
    tmp_path: Path,
    changes: dict[str, Any],
    at_rest: AtRest = NO_ENCRYPTION,
) -> None:
    """Check that no data is missing or doubled, and that no old attempt is left."""
    changes = {**changes, "spool_dir": Path(changes["spool_dir"])}
    end = rolled_bases(kafka, topic)[-1]
    async with open_archive(tmp_path / "store", at_rest) as archive:
        async with running_archiver(kafka.bootstrap, archive, topic, **changes) as (
            manager,
            cluster,
        ):
            await until(manager, archived_to(topic, end))
            (tp,) = await tps(cluster, topic)
            assert await archive.batches(tp) == await broker_batches(cluster, tp, 0, end)
        changes = {**changes, **QUICK_REMOVAL}
        async with running_archiver(kafka.bootstrap, archive, topic, **changes):
            async with asyncio.timeout(60):
                while (await archive.view(tp)).unfinished:  # noqa: ASYNC110 - knows no events
                    await asyncio.sleep(0.1)
        report = await verify_archive(archive.storage, archive.rlmm)
        assert report.faults == []
        assert gaps_of(report) == []
        named = {
            archive.storage.rsm.object_key(segment, file)
            for segment in (await archive.view(tp)).segments
            for file in SegmentFile
        }
        keys = {stored.key async for stored in archive.storage.store.list("")}
        assert {key for key in keys if parse_segment_key("", key)} - named == set()
    assert list(changes["spool_dir"].iterdir()) == []
