"""Copies of compacted topics, of a real broker with a busy log cleaner: each key's last value."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_harness import Archive, open_archive, running_archiver, tps, until_true
from keyed_log import COMPACTED, KeyedLog, archived_records, last_values

from fetchproxy.auditing.verify import verify_partition
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.model import CompactedCopy, TopicIdPartition
from fetchproxy.writing.remote_log_manager import RemoteLogManager
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

NO_TOPIC = "no topic"
HERE = Path(__file__).parent
# Copied anew as soon as it has doubled; segments far smaller than the log.
QUICK = {
    "segment_bytes_max": 6_000,
    "compacted_copy_interval_min_ms": 0,
    "retention_check_interval_ms": 200,
}


@pytest.fixture(scope="module")
def kafka(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    yield from serve_part("kafka", KafkaServer({"log.cleaner.backoff.ms": "100"}, heap="384m"))


async def stable_end(cluster: Cluster, tp: TopicIdPartition) -> int:
    """The end of a log whose transactions have ended."""
    while True:
        now = asyncio.get_running_loop().time()
        offsets = await cluster.log_offsets(tp, not_older_than=now)
        if offsets.last_stable_offset == offsets.high_watermark:
            return offsets.high_watermark
        await asyncio.sleep(0.02)


async def archived_to(
    manager: RemoteLogManager, archive: Archive, tp: TopicIdPartition, end: int
) -> CompactedCopy:
    def is_there() -> bool:
        view = archive.rlmm.view(tp)
        copy = None if view is None else view.history.compacted
        return bool(copy and copy.number and view and (view.log_end_offset or 0) >= end)

    await until_true(is_there)
    view = await archive.view(tp)
    assert view.history.compacted is not None
    return view.history.compacted


async def assert_right(archive: Archive, tp: TopicIdPartition, keyed: KeyedLog) -> None:
    view = await archive.view(tp)
    records = await archived_records(archive, tp)
    assert last_values(records[offset] for offset in sorted(records)) == keyed.values(
        view.log_end_offset or 0
    )
    assert view.gaps() == []
    await archive.batches(tp)


async def test_a_copy_grows_and_is_made_anew(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = kafka.create_topic("changelog", 1, COMPACTED)
    keyed = KeyedLog(kafka, topic, random.Random(1))
    await asyncio.to_thread(keyed.write, 40)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka.bootstrap, archive, NO_TOPIC, compacted_topics=topic, **QUICK) as (
            manager,
            cluster,
        ),
    ):
        (tp,) = await tps(cluster, topic)
        numbers = []
        for _ in range(6):
            end = await stable_end(cluster, tp)
            copy = await archived_to(manager, archive, tp, end)
            numbers.append(copy.number)
            await assert_right(archive, tp, keyed)
            await asyncio.to_thread(keyed.write, 60)
        end = await stable_end(cluster, tp)
        await archived_to(manager, archive, tp, end)
        await assert_right(archive, tp, keyed)
        assert numbers == sorted(numbers)
        assert len(set(numbers)) > 2, "it was not made anew"
        view = await archive.view(tp)
        size = sum(segment.segment_size_bytes for segment in view.segments)
        report = await verify_partition(archive.storage, archive.rlmm, tp)
        assert report.faults == []
        assert report.clean
        # What newer copies have replaced is gone.
        await until_true(
            lambda: all(
                segment.segment_id.id.int >> 64 >= numbers[-1]
                for segment in archive.rlmm.list_remote_log_segments(tp)
            )
        )
        assert size < 400_000


@pytest.mark.slow
async def test_killed_at_random_moments(kafka: KafkaServer, tmp_path: Path) -> None:
    """Whatever a killed archiver leaves behind: readers have one whole copy."""
    topic = kafka.create_topic("killed-changelog", 1, COMPACTED)
    keyed = KeyedLog(kafka, topic, random.Random(2))
    await asyncio.to_thread(keyed.write, 30)
    dice = random.Random(3)
    numbers: set[int] = set()
    async with (
        open_archive(tmp_path / "store") as archive,
        Cluster(ClusterConfig(bootstrap=kafka.bootstrap)) as cluster,
    ):
        (tp,) = await tps(cluster, topic)
        for kills in range(8):
            lives_s = dice.uniform(0.2, 2.5)
            await asyncio.to_thread(run_and_kill, kafka.bootstrap, tmp_path, topic, lives_s)
            view = await archive.view(tp)
            if view.history.compacted is not None and view.history.compacted.number:
                numbers.add(view.history.compacted.number)
                await assert_right(archive, tp, keyed)
            else:
                assert not view.segments
            await asyncio.to_thread(keyed.write, 30 * (kills + 1))
        async with running_archiver(
            kafka.bootstrap, archive, NO_TOPIC, compacted_topics=topic, **QUICK
        ) as (manager, _):
            end = await stable_end(cluster, tp)
            copy = await archived_to(manager, archive, tp, end)
            await assert_right(archive, tp, keyed)
        assert len({*numbers, copy.number}) > 1, "it was not made anew"


def run_and_kill(bootstrap: str, folder: Path, topic: str, lives_s: float) -> None:
    changes = json.dumps({**QUICK, "compacted_topics": topic})
    command = [sys.executable, str(HERE / "archiver_process.py"), bootstrap, str(folder / "store")]
    command += [str(folder / "spool"), NO_TOPIC, changes]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.getcwd()])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    with process.stdout:
        try:
            assert process.stdout.readline() == b"running\n"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(lives_s)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
