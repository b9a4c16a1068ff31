"""The archiver is killed with SIGKILL at random moments: no record is missing or doubled."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from archive_harness import archived_up_to, broker_batches, open_archive, running_archiver, until
from archive_harness import tps as tps_of
from archiver_process import SMALL
from confluent_kafka import Producer

from fetchproxy.storage.key_rings import NO_KEYS, FileKeyRing, write_keys
from fetchproxy.storage.packed_logs import NO_ENCRYPTION, AtRest
from lab.mock_cluster import MockCluster

TOPIC = "orders"
PARTITIONS = 4
WITHIN_A_COPY = "before put_file log"
HERE = Path(__file__).parent


def produce(bootstrap: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 1_000})
    for i in range(count):
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, value=b"v" * 100, key=str(i).encode(), partition=partition)
        if i % 500 == 499:
            assert producer.flush(180) == 0
    assert producer.flush(180) == 0


def run_and_kill(bootstrap: str, folder: Path, lives_s: float | None, ring: Path | None) -> None:
    """None: it kills itself in the middle of a copy."""
    command = [sys.executable, str(HERE / "archiver_process.py"), bootstrap]
    command += [str(folder / "store"), str(folder / "spool"), TOPIC, SMALL]
    command += [WITHIN_A_COPY if lives_s is None else "", *([] if ring is None else [str(ring)])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.getcwd()])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        if lives_s is None:
            assert process.wait() == -signal.SIGKILL
        else:
            assert process.stdout.readline() == b"running\n"
            time.sleep(lives_s)
            assert process.poll() is None, "it must be killed, not end by itself"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.mark.parametrize("encrypted", [False, True], ids=["as-they-are", "encrypted"])
@pytest.mark.parametrize(
    "kills", [5, pytest.param(50, marks=pytest.mark.slow)], ids=["5-kills", "50-kills"]
)
async def test_killed_at_random_moments(
    mock_cluster: MockCluster, tmp_path: Path, kills: int, encrypted: bool
) -> None:
    ring, at_rest = None, NO_ENCRYPTION
    if encrypted:
        ring = tmp_path / "keys.json"
        write_keys(ring, NO_KEYS.with_new("k1", bytes(range(32))), new=True)
        at_rest = AtRest(compress=True, keys=FileKeyRing(ring))
    rng = random.Random(kills)
    count = min(500 * kills, 10_000)
    await asyncio.to_thread(produce, mock_cluster.bootstrap, count)
    moments = [rng.uniform(0.0, min(2.0, 20.0 / kills)) for _ in range(kills - 1)]
    for lives_s in [*moments, None]:
        await asyncio.to_thread(run_and_kill, mock_cluster.bootstrap, tmp_path, lives_s, ring)
        await asyncio.to_thread(produce, mock_cluster.bootstrap, 20)
        count += 20
    async with open_archive(tmp_path / "store", at_rest) as archive:
        async with running_archiver(
            mock_cluster.bootstrap, archive, TOPIC, spool_dir=tmp_path / "spool"
        ) as (manager, cluster):
            await until(manager, archived_up_to(TOPIC, dict.fromkeys(range(PARTITIONS), count)))
            dangling = 0
            for tp in await tps_of(cluster, TOPIC):
                view = await archive.view(tp)
                dangling += len(view.unfinished)
                assert view.gaps() == []
                assert {segment.packed for segment in view.segments} == {encrypted}
                # Equal bytes: no offset is missing or doubled.
                expected = await broker_batches(cluster, tp, 0, count)
                assert await archive.batches(tp) == expected
        assert dangling > 0, "no kill met a copy"
        assert list((tmp_path / "spool").iterdir()) == []  # leftovers of killed processes are gone
