"""State that the parts of a session simulation share: truth, weather, bounds and trace."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field
from random import Random

from broker import SimulatedCluster
from broker_log import SimulatedLog
from faulty_store import FaultyObjectStore
from network import Conditions, SimulatedNetwork
from virtual_loop import START_S

from fetchproxy.app import Limits
from fetchproxy.config.schema import Config
from fetchproxy.model import TopicIdPartition
from fetchproxy.serving.gateway.apis.fetch import PARKED_WAIT_MAX_MS
from fetchproxy.serving.gateway.fetch_conversation import TAIL_GRACE_S

PARKED_S = PARKED_WAIT_MAX_MS / 1000
STALL_S_MAX = 0.3
# Network hops that one fetch may need: up and down both connections, the parked poll before it, and
# dialing the broker if the fetch is the connection's first request.
HOPS = 12


@dataclass(slots=True)
class World:
    rng: Random
    network: SimulatedNetwork
    cluster: SimulatedCluster
    store: FaultyObjectStore
    config: Config
    limits: Limits
    faults_end_s: float
    archived_end: dict[TopicIdPartition, int] = field(default_factory=dict)
    # When the store's present faults began, or those that ended at `fair_since`. A fair spell
    # shorter than `recovery_s` does not end them, as a read may have slept through it.
    faulty_since: float = 0.0
    fair_since: float = float("-inf")
    corrupt_until: float = 0.0  # until then damaged answers may still be remembered
    production_over: bool = False
    responses: int = 0
    consumed_batches: int = 0
    storage_errors: int = 0
    told_out_of_range: int = 0
    sessions_lost: int = 0
    slowest_s: float = 0.0  # the longest time over the client's own wait
    failures: list[BaseException | str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    _hash: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def logs(self) -> list[SimulatedLog]:
        return list(self.cluster.logs.values())

    @property
    def faults_over(self) -> bool:
        return asyncio.get_running_loop().time() >= self.faults_end_s

    @property
    def recovery_s(self) -> float:
        """Within this time a failed or hanging read learns that the store is well again."""
        limits = self.limits.reading
        pause_ms = limits.backoff_max_ms * (1 + limits.backoff_jitter)
        return (pause_ms + limits.chunk_read_max_ms) / 1000

    def outage_s(self, now: float) -> float:
        """The longest time the store can have kept a read from its data by now."""
        return now - self.faulty_since if now <= self.fair_since + self.recovery_s else 0.0

    def log_of(self, tp: TopicIdPartition) -> SimulatedLog:
        return self.cluster.logs[tp.topic, tp.partition]

    def note(self, *event: object) -> None:
        line = f"{asyncio.get_running_loop().time() - START_S:.6f} {event}"
        self._hash.update(line.encode())
        self.events.append(line)

    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def margin_s(self, size: int) -> float:
        """How long after the client's own wait a response of `size` bytes may arrive, in s.

        It covers the parked poll, the grace for tail data, and the network's own time.
        """
        c: Conditions = self.network.conditions
        windows = (
            2 + size / self.network.smallest_window
        )  # each needs a round trip on both connections
        network_s = (HOPS + 4 * windows) * c.latency_s_max + 2 * STALL_S_MAX
        return PARKED_S + TAIL_GRACE_S + network_s
