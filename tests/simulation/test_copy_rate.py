"""archive.copy_bytes_per_s_max with the real archiver: its fetches from a simulated broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from broker import SimulatedCluster
from calm_replay import BATCH_BYTES, BATCH_OFFSETS, now, whole_logs
from generated_archive import random_uuid
from memory_object_store import MemoryObjectStore
from network import Conditions, NetworkLoop, SimulatedNetwork
from virtual_loop import run_virtual

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ArchiveConfig, ClusterConfig, KiB, MetadataConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.archive_pass import ArchivePass
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.remote_log_manager import RemoteLogManager

PARTITIONS, BATCHES = 4, 250
WHOLE = PARTITIONS * BATCHES * BATCH_BYTES
RATE = WHOLE // 20


@pytest.mark.parametrize("rate", [0, RATE])
@pytest.mark.parametrize("once", [True, False])
def test_all_partitions_together_take_no_more_than_the_rate(
    once: bool, rate: int, tmp_path: Path
) -> None:
    config = ArchiveConfig(
        topics="weather",
        segment_bytes_max=64 * KiB,
        segment_age_max_ms=1_000,
        copy_bytes_per_s_max=rate,
        copy_max_ms=5_000,
        spool_dir=tmp_path,
    )
    limits = WritingLimits(rlm_process_interval_ms=200, fetch_bytes_max=16 * KiB, turn_max_ms=5_000)
    loops: list[NetworkLoop] = []

    def new_loop() -> NetworkLoop:
        loops.append(NetworkLoop())
        return loops[-1]

    async def main() -> None:
        loop, ids = loops[-1], Random(9)
        loop.network = network = SimulatedNetwork(Random(1), Conditions())
        logs = whole_logs(Random(7), PARTITIONS, BATCHES)
        for log in logs:
            log.write(BATCHES)
            log.replicate(now())
        cluster = SimulatedCluster(network, Random(2), logs, nodes=1)
        storage = RemoteStorage(MemoryObjectStore())
        async with (
            cluster.serving(),
            StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
            Cluster(ClusterConfig(bootstrap=cluster.bootstrap), Random(4)) as own_cluster,
        ):
            began = now()

            def wall_clock_ms() -> int:
                return int(loop.time() * 1000)

            async def archived() -> list[int]:
                views = [await rlmm.refresh(log.tp, now()) for log in logs]
                return [view.log_end_offset or 0 for view in views]

            if once:
                archive_pass = ArchivePass(
                    config, own_cluster, storage, rlmm,
                    wall_clock_ms=wall_clock_ms, uuid_factory=lambda: random_uuid(ids),
                    limits=limits,
                )  # fmt: skip
                assert (await archive_pass.run())[1] == []
            else:
                manager = RemoteLogManager(
                    config, own_cluster, storage, rlmm,
                    wall_clock_ms=wall_clock_ms, uuid_factory=lambda: random_uuid(ids),
                    rng=Random(3), limits=limits,
                )  # fmt: skip
                async with asyncio.TaskGroup() as tasks:
                    running = tasks.create_task(manager.run())
                    for _ in range(200):
                        await asyncio.sleep(0.5)
                        if await archived() == [BATCHES * BATCH_OFFSETS] * PARTITIONS:
                            break
                    running.cancel()
            assert await archived() == [BATCHES * BATCH_OFFSETS] * PARTITIONS
            took_s = now() - began
        if rate:
            # One second's worth is saved up, and each worker's last read is not paid for.
            assert took_s >= (WHOLE - RATE - 4 * 16 * KiB) / RATE
            assert took_s <= WHOLE / RATE + 5
        else:
            assert took_s < 5

    run_virtual(main, new_loop)
