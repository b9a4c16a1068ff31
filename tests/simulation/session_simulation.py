"""Whole sessions: consumers, the unmodified proxy, and a faulty network, store and broker.

`simulate(seed)` runs the gateway and everything behind it on a virtual-time loop. A broker writes
and deletes its log. The real RemoteLogManager archives it, or a simpler archiver does, whose
segments the proxy finds in the store alone. Consumers read the log through the proxy and check
every response. When the faults are over, all consumers must finish, and nothing may be left. The
same seed gives the same trace.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from broker import SimulatedCluster
from broker_log import SimulatedLog
from faulty_store import HANG, NO_FAULTS, OUTAGE, Faults, FaultyObjectStore
from generated_archive import random_uuid, store_segment
from memory_object_store import MemoryObjectStore
from network import NetworkLoop, SimulatedNetwork
from reads_under_way import NOTHING, cached_bytes, under_way
from session_scenario import draw_conditions, draw_config, draw_logs, draw_start
from session_world import STALL_S_MAX, World
from simulated_consumer import BOOTSTRAP, Habits, SimulatedConsumer
from structlog.testing import capture_logs
from virtual_loop import START_S, run_virtual

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import KiB, MetadataConfig
from fetchproxy.metadata.archiver_positions import NOT_KNOWN, ArchiverPositions
from fetchproxy.metadata.leader_views import LeaderLog, LeaderViews
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.serving.gateway.server import open_gateway
from fetchproxy.serving.listener import Listener
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.remote_log_manager import RemoteLogManager

# After the faults all consumers must finish within this: hung reads, back-off, then reading.
FINISH_S_MAX = 300
# These have no checksum (as in Kafka), or the metadata manager's own tests cover their damage.
INTACT = (".txn", ".metadata", ".epochs", "layout")
# Events that no fault explains: they mean a defect of the proxy.
FATAL_EVENTS = frozenset(("session_crashed",))
FATAL_REASONS = frozenset(("wire_error", "half_frame_max_ms", "idle_max_ms"))


@dataclass(frozen=True, slots=True)
class Outcome:
    """`trace_hash` covers every response and its time."""

    trace_hash: str
    world: World


def simulate(seed: int, *, outage_s: float = 0.0) -> Outcome:
    """`outage_s`: besides the usual faults, the store fails or hangs this long."""
    loops: list[NetworkLoop] = []

    def new_loop() -> NetworkLoop:
        loops.append(NetworkLoop())
        return loops[-1]

    with tempfile.TemporaryDirectory() as folder, capture_logs() as logs:
        main = _Simulation(Random(seed), outage_s, Path(folder))
        try:
            run_virtual(lambda: main.run(loops[-1]), new_loop)
        except BaseException as error:
            error.add_note("\n".join(["the last events:", *main.last_events(logs)]))
            raise
    _check_logs(logs)
    return Outcome(main.world.trace_hash(), main.world)


def _check_logs(logs: Any) -> None:
    for entry in logs:
        if entry["event"] in FATAL_EVENTS or entry.get("reason") in FATAL_REASONS:
            raise AssertionError(f"the proxy logged {entry}")


class _Simulation:
    def __init__(self, rng: Random, outage_s: float, folder: Path) -> None:
        self.rng = rng
        self._outage_s = outage_s
        self._folder = folder
        self.world: World
        self._manager: RemoteLogManager | None = None
        self._rlmm: StoreBackedRemoteLogMetadataManager | None = None  # the proxy's

    def last_events(self, logs: Any) -> list[str]:
        events = self.world.events[-25:] if hasattr(self, "world") else []
        return [*events, *(str(entry) for entry in logs[-8:])]

    async def run(self, loop: NetworkLoop) -> None:
        rng = self.rng
        loop.network = network = SimulatedNetwork(Random(rng.random()), draw_conditions(rng))
        network.windows[BOOTSTRAP[0]] = rng.choice([2, 8, 64, 1024]) * KiB
        logs = draw_logs(rng)
        cluster = SimulatedCluster(network, Random(rng.random()), logs, rng.choice([1, 1, 2]))
        for node in cluster.nodes:
            node.sessions_max = rng.choice([1, 100, 100])
        store = FaultyObjectStore(MemoryObjectStore(), Random(rng.random()))
        faults_s = rng.uniform(8, 20) + self._outage_s
        self.world = World(
            Random(rng.random()), network, cluster, store, *draw_config(rng, cluster, self._folder),
            START_S + faults_s,
        )  # fmt: skip
        loop.set_exception_handler(self._on_exception)
        async with cluster.serving(), self._proxy() as gateway:
            await self._with_faults()
            await self._check_rest(gateway)
        await asyncio.sleep(1)
        addresses = [connection.address for connection in network.connections]
        assert not addresses, f"connections left open: {addresses}"
        assert not self.world.failures, self.world.failures

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.world.failures.append(context.get("exception") or context["message"])

    # -- the proxy -------------------------------------------------------------------------------
    @asynccontextmanager
    async def _proxy(self) -> AsyncIterator[Listener]:
        """Open the parts of `fetchproxy serve` in its order; check the purgatory after the run."""
        world, rng = self.world, self.world.rng
        config, storage = world.config, RemoteStorage(world.store)
        for log in world.logs:
            await self._begin(log)
        async with (
            StoreBackedRemoteLogMetadataManager(
                storage, config.metadata, read_max_ms=config.store.metadata_read_max_ms
            ) as rlmm,
            Cluster(config.cluster, Random(rng.random())) as cluster,
            RemoteFetchPurgatory(
                config.remote_fetch,
                views := self._views(rlmm, cluster),
                storage,
                Random(rng.random()),
                limits=world.limits.reading,
            ) as self._purgatory,
            ArchiverPositions(
                storage.objects,
                config.store.metadata_read_max_ms,
                asyncio.get_running_loop().time,
                self._archiver_position,
            ) as positions,
            asyncio.TaskGroup() as tasks,
        ):
            self._rlmm = rlmm
            if config.archive.topics is not None:
                archiving = tasks.create_task(
                    self._archive(cluster, storage, rlmm), name="archiver"
                )
            else:
                archiving = tasks.create_task(self._plant_forever(), name="planter")
            async with open_gateway(
                config,
                cluster,
                rlmm,
                views,
                self._purgatory,
                positions,
                self._is_archiving,
                Random(rng.random()),
                limits=world.limits.serving,
            ) as gateway:
                yield gateway
            archiving.cancel()

    def _views(self, rlmm: StoreBackedRemoteLogMetadataManager, cluster: Cluster) -> LeaderViews:
        warnings = SparingWarnings(asyncio.get_running_loop().time)
        return LeaderViews(rlmm, LeaderLog(cluster), warnings)

    def _is_archiving(self, tp: TopicIdPartition) -> bool:
        return self._manager is not None and any(s.tp == tp for s in self._manager.status())

    def _archiver_position(self, tp: TopicIdPartition) -> int | None:
        if self._manager is None:
            return None if self.world.config.archive.topics is None else NOT_KNOWN
        return self._manager.archiver_position(tp)

    async def _archive(
        self,
        cluster: Cluster,
        storage: RemoteStorage,
        rlmm: StoreBackedRemoteLogMetadataManager,
    ) -> None:
        loop, ids = asyncio.get_running_loop(), Random(self.world.rng.random())

        def new_id() -> UUID:
            return random_uuid(ids)

        self._manager = RemoteLogManager(
            self.world.config.archive,
            cluster,
            storage,
            rlmm,
            wall_clock_ms=lambda: int(loop.time() * 1000),
            uuid_factory=new_id,
            rng=Random(self.world.rng.random()),
            limits=self.world.limits.writing,
        )
        await self._manager.run()

    async def _begin(self, log: SimulatedLog) -> None:
        """Produce a part of the log at the start, and mostly archive and trim some of it."""
        world, rng = self.world, self.rng
        world.archived_end[log.tp] = log.first_offset
        log.write(rng.randint(1, len(log.batches) * 4 // 5))
        log.replicate(asyncio.get_running_loop().time())
        for _ in range(rng.randint(1, 10)):
            await self._plant(log)
        self._trim(log)

    async def _plant_forever(self) -> None:
        """An archiver in another process: this proxy learns of its segments from the store."""
        rng = Random(self.world.rng.random())
        while True:
            await asyncio.sleep(rng.uniform(0.2, 3))
            await self._plant(rng.choice(self.world.logs))

    async def _plant(self, log: SimulatedLog) -> None:
        world = self.world
        end, stable = world.archived_end[log.tp], log.last_stable_offset
        first = log.index_of(end) if end < stable else len(log.batches)
        last = first
        count = self.rng.randint(1, 30)
        while last < min(first + count, log.replicated) and log.batches[last].last_offset < stable:
            last += 1
        if last == first:
            return
        aborted = [(a.producer_id, a.first_offset, a.marker_offset) for a in log.aborted]
        metadata = await store_segment(
            world.store.inner, self.rng, log.tp, list(log.batches[first:last]), aborted
        )
        world.archived_end[log.tp] = metadata.end_offset + 1

    # -- the world -------------------------------------------------------------------------------
    async def _with_faults(self) -> None:
        world, rng = self.world, self.world.rng
        faults = [self._weather, self._network_weather, self._broker_weather]
        async with asyncio.TaskGroup() as group:
            background = [group.create_task(fault(), name=fault.__name__) for fault in faults]
            background.append(group.create_task(self._forget_forever(), name="trimmer"))
            try:
                async with (
                    asyncio.timeout_at(world.faults_end_s + FINISH_S_MAX),
                    asyncio.TaskGroup() as consumers,
                ):
                    for log in world.logs:
                        consumers.create_task(self._produce(log), name=f"producer of {log.tp}")
                    for number in range(rng.randint(2, 4)):
                        consumers.create_task(self._consume(number), name=f"consumer {number}")
            except TimeoutError:
                raise AssertionError("a consumer did not finish after the faults") from None
            finally:
                for task in background:
                    task.cancel()

    async def _produce(self, log: SimulatedLog) -> None:
        world, rng = self.world, Random(self.world.rng.random())
        turns = max(1, (len(log.batches) - log.written) // 4)
        seconds = (world.faults_end_s - START_S) / turns
        loop = asyncio.get_running_loop()
        while not log.complete:
            # Consumers wait for the end of the log, and get no extra time for it after the faults.
            left_s = max(0, world.faults_end_s - loop.time())
            await asyncio.sleep(min(rng.uniform(0, 2 * seconds), left_s))
            log.write(rng.randint(1, 8))
            await asyncio.sleep(rng.choice([0.0, 0.001, 0.2]))  # for the followers
            log.replicate(loop.time())
            world.cluster.moved()

    async def _consume(self, number: int) -> None:
        """Run one consumer after the other, as long as there are faults."""
        world, rng = self.world, Random(self.world.rng.random())
        turn = 0
        while not turn or not world.faults_over:
            await asyncio.sleep(rng.uniform(0, 3))
            logs = rng.sample(world.logs, rng.randint(1, len(world.logs)))
            positions = {log.tp: draw_start(rng, log) for log in logs}
            habits = Habits.draw(rng)
            name = f"consumer-{number}.{turn}"
            world.note(name, habits, *((str(tp), at) for tp, at in positions.items()))
            await SimulatedConsumer(world, name, rng, habits, positions).run()
            turn += 1

    async def _weather(self) -> None:
        """Store weather: fair, usual and bad turns, with the long outage somewhere among them."""
        world, rng, loop = self.world, Random(self.world.rng.random()), asyncio.get_running_loop()
        outage_at = START_S + rng.uniform(2, 12) if self._outage_s else world.faults_end_s
        always_fair, damages = rng.random() < 0.25, rng.random() < 0.3
        while not world.faults_over:
            latency_s_max = rng.choice([0.01, 0.3, 2.0])
            usual = Faults(0.001, latency_s_max, 0.1, 0.03, 0.05 if damages else 0.0, INTACT)
            kind, seconds = rng.choice([NO_FAULTS, usual, usual, OUTAGE, HANG]), rng.uniform(0.5, 8)
            if always_fair:
                kind = NO_FAULTS
            if loop.time() >= outage_at:
                outage_at = world.faults_end_s
                kind, seconds = rng.choice([OUTAGE, HANG]), self._outage_s
            self._set_faults(kind)
            await asyncio.sleep(min(seconds, max(0, world.faults_end_s - loop.time())))
        self._set_faults(NO_FAULTS)

    def _set_faults(self, faults: Faults) -> None:
        world, now = self.world, asyncio.get_running_loop().time()
        remembered_s = world.limits.reading.corrupt_retry_ms / 1000 + 10
        if world.store.faults.corrupting_share:
            world.corrupt_until = now + remembered_s
        if faults.corrupting_share:
            world.corrupt_until = float("inf")
        if faults is NO_FAULTS:
            world.fair_since = min(world.fair_since, now)
        elif now > world.fair_since + world.recovery_s:
            world.faulty_since = now
        if faults is not NO_FAULTS:
            world.fair_since = float("inf")
        world.store.faults = faults
        world.note("store", faults)

    async def _network_weather(self) -> None:
        world, rng = self.world, Random(self.world.rng.random())
        pause_s = rng.choice([0.5, 3.0, 1e9])
        while True:
            await asyncio.sleep(rng.uniform(0, 2 * pause_s))
            if world.faults_over:
                return
            open_ones = world.network.connections
            fate = rng.random()
            if fate < 0.05:
                node = rng.choice(world.cluster.nodes)
                world.note("unreachable", node.node_id)
                world.network.cut_off(node.address)
                await asyncio.sleep(rng.uniform(0.1, 2))
                world.network.unreachable.discard(node.address)
            elif open_ones and fate < 0.5:
                rng.choice(open_ones).reset()
            elif open_ones:
                rng.choice(open_ones).stall(rng.uniform(0, STALL_S_MAX))

    async def _broker_weather(self) -> None:
        """Brokers forget fetch sessions when their cache is full."""
        world, rng = self.world, Random(self.world.rng.random())
        pause_s = rng.choice([4.0, 1e9])
        while True:
            await asyncio.sleep(rng.uniform(0, 2 * pause_s))
            if world.faults_over:
                return
            sessions = rng.choice(world.cluster.nodes).sessions
            if sessions:
                del sessions[rng.choice(list(sessions))]

    async def _forget_forever(self) -> None:
        """Brokers trim their logs up to the archive's end, often exactly to it, never further."""
        world, rng = self.world, Random(self.world.rng.random())
        storage = RemoteStorage(world.store.inner)
        async with StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as truth:
            while True:
                await asyncio.sleep(rng.uniform(0.1, 4))
                log = rng.choice(world.logs)
                view = await truth.refresh(log.tp, asyncio.get_running_loop().time())
                if view.log_end_offset is not None:
                    world.archived_end[log.tp] = view.log_end_offset
                self._trim(log)

    def _trim(self, log: SimulatedLog) -> None:
        end = self.world.archived_end[log.tp]
        known = self._rlmm.known_archived_topics() if self._rlmm else None
        if known and log.tp.topic_id not in known[0]:
            return  # known limit: the proxy does not see an archive that began in an outage
        if end > log.start_offset:
            log.trim(self.rng.choice([end, end, self.rng.randint(log.start_offset, end)]))
            self.world.note("trimmed", str(log.tp), log.start_offset, end)
            self.world.cluster.moved()

    # -- the end ---------------------------------------------------------------------------------
    async def _check_rest(self, gateway: Listener) -> None:
        """Without clients, sessions, reads and budgets come back to nothing by themselves."""
        world, config = self.world, self.world.config.remote_fetch
        unasked_s = world.limits.reading.unasked_read_max_ms / 1000
        await asyncio.sleep(unasked_s + 2 * world.recovery_s)
        assert gateway.connections == 0
        assert under_way(self._purgatory) == NOTHING
        assert cached_bytes(self._purgatory) <= config.chunk_cache_bytes_max
        to_gateway = [c for c in world.network.connections if c.address[0] == BOOTSTRAP[0]]
        assert not to_gateway
        for log in world.logs:
            assert log.complete
        world.note("at rest", world.network.pieces)
