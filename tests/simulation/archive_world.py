"""The choices a seed makes before two archivers run: logs, configuration and leadership."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from broker import SimulatedCluster
from broker_log import SimulatedLog
from memory_metadata_log import MemoryMetadataLog
from memory_object_store import MemoryObjectStore
from network import SimulatedNetwork
from session_scenario import draw_conditions, draw_logs

from fetchproxy.config.schema import ArchiveConfig, ClusterConfig, Config, KiB, StoreConfig
from fetchproxy.model import TopicIdPartition
from fetchproxy.writing.leadership import Leadership, LeadershipState
from fetchproxy.writing.limits import WritingLimits
from lab.limited import section_and_limits

COPY_MS_MAX = 2_000
ORPHAN_AGE_MS = 8_000
# After the faults, all must be in order within this time. By then hung copies have ended, dangling
# attempts and orphans are found and old enough, and the grace of expired segments is over.
SETTLE_S_MAX = 60


@dataclass
class ArchiveWorld:
    network: SimulatedNetwork
    cluster: SimulatedCluster
    config: Config
    limits: WritingLimits
    topic_based: bool
    faults_s: float
    store: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    metadata_log: MemoryMetadataLog = field(default_factory=lambda: MemoryMetadataLog(3, 50))
    kills: int = 0
    freezes: int = 0
    segments_seen: int = 0
    failures: list[object] = field(default_factory=list)

    @property
    def logs(self) -> list[SimulatedLog]:
        return list(self.cluster.logs.values())


class ScriptedLeadership(Leadership):
    """Leads the partitions the scenario names; neither archiver learns what the other leads."""

    def __init__(self) -> None:
        super().__init__()
        self._led: set[TopicIdPartition] = set()

    def leads(self, tp: TopicIdPartition) -> bool:
        return tp in self._led

    def state(self) -> LeadershipState:
        return LeadershipState("scripted", "stable")

    def change(self, tp: TopicIdPartition, leads: bool) -> None:
        (self._led.add if leads else self._led.discard)(tp)
        self.on_change()

    def lead(self, tps: Iterable[TopicIdPartition]) -> None:
        self._led = set(tps)
        self.on_change()


def draw_world(rng: Random, folder: Path) -> ArchiveWorld:
    network = SimulatedNetwork(Random(rng.random()), draw_conditions(rng))
    cluster = SimulatedCluster(network, Random(rng.random()), draw_logs(rng), rng.choice([1, 2]))
    for log in cluster.logs.values():
        log.write(rng.randint(1, len(log.batches) // 2))
        log.replicate(0.0)
    store = StoreConfig(timeout_ms=2 * rng.choice([1_000, 5_000]))
    archive, limits = section_and_limits(
        ArchiveConfig,
        WritingLimits,
        topics="weather|harvest",
        segment_bytes_max=rng.choice([1, 8, 64]) * KiB,
        segment_age_max_ms=rng.choice([500, 3_000]),
        rlm_process_interval_ms=rng.choice([300, 1_000, 2_000, 2_000]),
        rlm_retry_interval_ms=500,
        workers_max=rng.choice([1, 4]),
        copy_max_ms=COPY_MS_MAX,
        turn_max_ms=5 * COPY_MS_MAX,
        fetch_bytes_max=rng.choice([1, 64]) * KiB,
        spool_dir=folder,
        discovery_interval_ms=5_000,
        remote_log_retention_bytes=rng.choice([-1, -1, 4 * KiB, 64 * KiB]),
        retention_check_interval_ms=rng.choice([500, 2_000]),
        retention_grace_ms=rng.choice([1, 2_000]),
        retention_clock_settle_ms=0,
        retention_step_grace_ms=500,
        orphan_check_interval_ms=3_000,
        orphan_age_min_ms=ORPHAN_AGE_MS,
    )
    config = Config(
        cluster=ClusterConfig(bootstrap=cluster.bootstrap, request_max_ms=2_000),
        store=store,
        archive=archive,
    )
    return ArchiveWorld(network, cluster, config, limits, rng.random() < 0.5, rng.uniform(5, 25))
