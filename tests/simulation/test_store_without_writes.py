"""An archiver whose store takes no more writes, while the brokers go on deleting.

The real RemoteLogManager over a simulated broker with retention by bytes, on a virtual-time loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from broker import SimulatedCluster
from broker_log import SimulatedLog
from calm_replay import BATCH_BYTES, BATCH_OFFSETS, now, whole_logs
from generated_archive import random_uuid
from memory_object_store import MemoryObjectStore
from network import Conditions, NetworkLoop, SimulatedNetwork
from structlog.testing import capture_logs
from virtual_loop import run_virtual

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ArchiveConfig, ClusterConfig, KiB, MetadataConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.observability import metrics
from fetchproxy.observability.health import Kind
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.store_health import StoreOperation
from fetchproxy.writing.remote_log_manager import RemoteLogManager
from fetchproxy.writing.status import PartitionArchiveStatus

PARTITIONS = 3
BATCHES = 3_000
BATCH_INTERVAL_S = 0.5
RETAINED_BATCHES = 120  # the brokers keep one minute
RETENTION_S = RETAINED_BATCHES * BATCH_INTERVAL_S


class ReadOnlyStore(MemoryObjectStore):
    """Once `full` is set, the store refuses writes; it still serves reads."""

    full = False

    async def put(self, key: str, content: bytes) -> None:
        if self.full:
            raise StorageUnavailable(f"{key}: no space")
        await super().put(key, content)


@dataclass
class Outage:
    logs: list[SimulatedLog]
    store: ReadOnlyStore
    storage: RemoteStorage
    manager: RemoteLogManager
    entries: list[Any]
    losses_begin: float | None = field(default=None)  # first deletion of unarchived data

    def status(self) -> PartitionArchiveStatus:
        return self.manager.status()[0]

    def conditions_of(self, kind: Kind) -> list[str]:
        conditions = self.manager.published_conditions.health.conditions(0.0)
        return [one.what for one in conditions if one.kind == kind]

    def logged(self, *events: str) -> list[Any]:
        return [entry for entry in self.entries if entry["event"] in events]


async def _live(here: Outage) -> None:
    """Producers write, and brokers delete what exceeds the retention."""
    while True:
        await asyncio.sleep(BATCH_INTERVAL_S)
        for log in here.logs:
            log.write(1)
            log.replicate(now())
            log.trim(log.log_end_offset - RETAINED_BATCHES * BATCH_OFFSETS)
        archived = {status.tp.partition: status for status in here.manager.status()}
        lost = [status for status in archived.values() if status.lost is not None]
        if lost and here.losses_begin is None:
            here.losses_begin = now()


@asynccontextmanager
async def _archiving(folder: Path, loop: NetworkLoop) -> AsyncIterator[Outage]:
    loop.network = network = SimulatedNetwork(Random(1), Conditions())
    logs, ids = whole_logs(Random(7), PARTITIONS, BATCHES), Random(9)
    cluster = SimulatedCluster(network, Random(2), logs, nodes=1)
    cluster.topic_configs["weather"] = {
        "cleanup.policy": "delete",
        "retention.bytes": str(RETAINED_BATCHES * BATCH_BYTES),
        "retention.ms": "-1",
    }
    config = ArchiveConfig(
        topics="weather",
        segment_bytes_max=8 * KiB,
        spool_dir=folder,
        # These brokers have no groups and no ACLs, so their state cannot be read.
        cluster_state_interval_ms=0,
    )
    store = ReadOnlyStore()
    storage = RemoteStorage(store)
    with capture_logs() as entries:
        async with (
            cluster.serving(),
            StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
            Cluster(ClusterConfig(bootstrap=cluster.bootstrap), Random(4)) as own_cluster,
        ):
            manager = RemoteLogManager(
                config, own_cluster, storage, rlmm,
                wall_clock_ms=lambda: int(loop.time() * 1000),
                uuid_factory=lambda: random_uuid(ids), rng=Random(3),
            )  # fmt: skip
            here = Outage(logs, store, storage, manager, entries)
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(manager.run()), tasks.create_task(_live(here))]
                await asyncio.sleep(2 * RETENTION_S)
                yield here
                for task in running:
                    task.cancel()


def run_outage(folder: Path, main: Callable[[Outage], Coroutine[Any, Any, None]]) -> None:
    loops: list[NetworkLoop] = []

    def new_loop() -> NetworkLoop:
        loops.append(NetworkLoop())
        return loops[-1]

    async def run() -> None:
        async with _archiving(folder, loops[-1]) as here:
            await main(here)

    run_virtual(run, new_loop)


def gauge(metric: Any, partition: int = 0) -> float:
    return float(metric.labels("weather", str(partition))._value.get())


def test_the_alarm_comes_before_the_loss_and_then_it_is_said(tmp_path: Path) -> None:
    async def main(here: Outage) -> None:
        assert here.manager.published_conditions.health.conditions(0.0) == ()
        here.store.full = True
        began = now()
        while not here.conditions_of(Kind.ARCHIVE_MARGIN_SMALL):
            await asyncio.sleep(1)
            assert now() < began + RETENTION_S
        warned = now() - began
        assert here.losses_begin is None
        assert warned < 0.75 * RETENTION_S
        left_ms = here.status().deleted_in_ms
        assert left_ms is not None
        assert left_ms / 1000 == pytest.approx(RETENTION_S - warned, abs=RETENTION_S / 5)
        await asyncio.sleep(3 * RETENTION_S)
        assert here.losses_begin is not None
        assert here.losses_begin > began + warned
        status = here.status()
        assert status.lost is not None
        assert status.lost[1] + 1 == pytest.approx(here.logs[0].start_offset, abs=100)
        assert len(here.conditions_of(Kind.UNARCHIVED_RECORDS_DELETED)) == PARTITIONS
        assert len(here.logged("unarchived_records_deleted")) == PARTITIONS
        here.store.full = False
        await asyncio.sleep(2 * RETENTION_S)
        assert here.status().lost is None
        assert here.manager.published_conditions.health.conditions(0.0) == ()
        assert len(here.logged("archive_gap")) == PARTITIONS

    run_outage(tmp_path, main)


def test_lag_margin_and_used_share_go_on_counting(tmp_path: Path) -> None:
    async def main(here: Outage) -> None:
        here.store.full = True
        await asyncio.sleep(5)
        margins = []
        for _ in range(4):
            await asyncio.sleep(RETENTION_S / 2)
            status, log = here.status(), here.logs[0]
            assert status.archive_end is not None
            assert status.lag_offsets is not None
            assert status.margin_offsets is not None
            assert status.retention_used is not None
            on_brokers = log.last_stable_offset - max(log.start_offset, status.archive_end)
            assert status.lag_offsets == pytest.approx(on_brokers, abs=150)
            assert status.margin_offsets == pytest.approx(
                status.archive_end - log.start_offset, abs=150
            )
            # /metrics shows the same, except for the time between two looks.
            assert gauge(metrics.ARCHIVE_LAG_OFFSETS) == pytest.approx(status.lag_offsets, abs=150)
            assert gauge(metrics.ARCHIVE_MARGIN_OFFSETS) == pytest.approx(
                status.margin_offsets, abs=150
            )
            used = gauge(metrics.ARCHIVE_RETENTION_USED_SHARE)
            assert used == pytest.approx(status.retention_used, abs=0.1)
            margins.append(status.margin_offsets)
        assert margins == sorted(margins, reverse=True)
        assert margins[-1] < 0

    run_outage(tmp_path, main)


@pytest.mark.remedy("partition_process_failed")
def test_failed_copies_back_off_and_are_said_once_a_minute(tmp_path: Path) -> None:
    async def main(here: Outage) -> None:
        requests = metrics.REMOTE_COPY_REQUESTS.labels("weather")
        here.store.full = True
        await asyncio.sleep(300)
        before = requests._value.get()
        here.entries.clear()
        await asyncio.sleep(600)
        # Every 30 s, and no longer every 5 s.
        assert requests._value.get() - before <= PARTITIONS * (600 / 30 + 1)
        assert 9 <= len(here.logged("partition_process_failed")) <= 11
        assert not [
            entry
            for entry in here.entries
            if entry["log_level"] != "debug" and entry["event"] != "partition_process_failed"
        ]
        here.store.full = False
        await asyncio.sleep(35)
        assert all(status.last_error is None for status in here.manager.status())
        assert len(here.logged("partition_recovered")) == 1

    run_outage(tmp_path, main)


@pytest.mark.remedy("store_failing")
def test_writes_are_shown_as_failing_while_reads_go_well(tmp_path: Path) -> None:
    async def main(here: Outage) -> None:
        here.store.full = True
        await asyncio.sleep(15)
        status = here.storage.health.status(now())
        assert {name: one.up for name, one in status.items()} == {
            StoreOperation.LIST: True,
            StoreOperation.READ: True,
            StoreOperation.WRITE: False,
            StoreOperation.DELETE: None,  # no delete was attempted
        }
        here.store.full = False
        await asyncio.sleep(30)
        assert here.storage.health.status(now())[StoreOperation.WRITE].up

    run_outage(tmp_path, main)
