"""Logs on a simulated broker, and archivers of them over one store, in virtual time. Not a test."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from broker import SimulatedCluster
from broker_log import SimulatedLog
from generated_archive import make_batch, random_uuid
from memory_object_store import MemoryObjectStore
from network import Conditions, NetworkLoop, SimulatedNetwork
from virtual_loop import START_S, run_virtual

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ArchiveConfig, ClusterConfig, MetadataConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Condition
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import ObjectStore
from fetchproxy.writing.archive_health import partition_health
from fetchproxy.writing.archive_pass import ArchivePass, NotArchived
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.remote_log_manager import RemoteLogManager
from lab.limited import section_and_limits

TOPIC = "orders"
BATCH_OFFSETS, BATCH_BYTES = 10, 200
START_MS = 1_700_000_000_000  # the wall clock at the start
HOUR_MS = 3_600_000
QUICK: dict[str, Any] = {
    "segment_age_max_ms": 1_000,
    "rlm_process_interval_ms": 500,
    "rlm_retry_interval_ms": 500,
    "discovery_interval_ms": 2_000,
    "retention_clock_settle_ms": 0,
    "retention_check_interval_ms": 5_000,
    # The brokers of this world have no groups and no ACLs, so their state cannot be read.
    "cluster_state_interval_ms": 0,
}


def wall_clock_ms() -> int:
    return START_MS + int((asyncio.get_running_loop().time() - START_S) * 1000)


@dataclass
class World:
    """`logs` of one topic, by partition."""

    logs: list[SimulatedLog]
    cluster: SimulatedCluster
    client_cluster: Cluster
    store: ObjectStore
    storage: RemoteStorage
    rlmm: StoreBackedRemoteLogMetadataManager
    folder: Path
    ids: Random = field(default_factory=lambda: Random(9))

    def write(self, partition: int, batches: int) -> None:
        log = self.logs[partition]
        log.write(batches)
        log.replicate(asyncio.get_running_loop().time())
        self.cluster.moved()

    def trim(self, partition: int, offset: int) -> None:
        """As the brokers' retention does."""
        self.logs[partition].trim(offset)
        self.cluster.moved()

    def archive_pass(self, **changes: Any) -> ArchivePass:
        return ArchivePass(**self._parts(changes))

    async def once(self, **changes: Any) -> list[NotArchived]:
        return (await self.archive_pass(**changes).run())[1]

    @asynccontextmanager
    async def archiving(self, **changes: Any) -> AsyncIterator[RemoteLogManager]:
        manager = RemoteLogManager(**self._parts(changes), rng=Random(3))
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(manager.run())
            yield manager
            running.cancel()

    def _parts(self, changes: dict[str, Any]) -> dict[str, Any]:
        config, limits = section_and_limits(
            ArchiveConfig, WritingLimits, **{"topics": TOPIC, "spool_dir": self.folder, **QUICK,
                                             **changes}
        )  # fmt: skip
        return {
            "config": config, "limits": limits, "cluster": self.client_cluster,
            "storage": self.storage, "rlmm": self.rlmm, "wall_clock_ms": wall_clock_ms,
            "uuid_factory": lambda: random_uuid(self.ids),
        }  # fmt: skip

    async def archive_end(self, partition: int) -> int | None:
        now = asyncio.get_running_loop().time()
        return (await self.rlmm.refresh(self.logs[partition].tp, now)).log_end_offset

    async def conditions_of(self, partition: int) -> list[Condition]:
        """What every process finds in the archive itself."""
        await asyncio.sleep(1)  # a look at this very moment would not be repeated
        return await partition_health(self.storage.objects, self.rlmm, self.logs[partition].tp)


def run_world(
    main: Callable[[World], Awaitable[None]],
    *,
    partitions: int = 1,
    batches: int = 40,
    store: ObjectStore | None = None,
    timestamp_ms: Callable[[int], int] = lambda batch: START_MS + 1_000 * batch,
) -> None:
    """`timestamp_ms`: of a batch, by its number."""
    loops: list[NetworkLoop] = []

    def new_loop() -> NetworkLoop:
        loops.append(NetworkLoop())
        return loops[-1]

    def log(rng: Random, tp: TopicIdPartition) -> SimulatedLog:
        content = [
            make_batch(
                BATCH_OFFSETS * i, BATCH_OFFSETS, rng.randbytes(BATCH_BYTES - 61),
                timestamp_ms=timestamp_ms(i),
            )
            for i in range(batches)
        ]  # fmt: skip
        return SimulatedLog(tp, content, (), [BATCH_OFFSETS * batches] * (batches + 1))

    async def whole() -> None:
        rng = Random(7)
        loops[-1].network = network = SimulatedNetwork(Random(1), Conditions())
        topic_id = random_uuid(rng)
        logs = [log(rng, TopicIdPartition(topic_id, TOPIC, p)) for p in range(partitions)]
        cluster = SimulatedCluster(network, Random(2), logs, nodes=1)
        cluster.topic_configs[TOPIC] = {}
        objects = store or MemoryObjectStore()
        storage = RemoteStorage(objects)
        cluster_config = ClusterConfig(bootstrap=cluster.bootstrap, request_max_ms=2_000)
        with tempfile.TemporaryDirectory() as folder:
            async with (
                cluster.serving(),
                StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
                Cluster(cluster_config, Random(4)) as requests,
            ):
                await main(World(logs, cluster, requests, objects, storage, rlmm, Path(folder)))

    run_virtual(whole, new_loop)
