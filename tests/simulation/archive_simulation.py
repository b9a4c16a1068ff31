"""Two unmodified RemoteLogManagers over one broker, one store and one metadata log, all faulty.

`simulate_archive(seed)` runs them on a virtual-time loop. Leadership changes at random; at times
both lead a partition, or neither does. Each process is stopped, thawed, killed and started again.
The broker deletes data that is archived. An auditor reads the archive like any reader and compares
it with the log. When the faults are over, everything must be archived exactly once and nothing may
be left over.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from archive_audit import Audit
from archive_weather import ArchiversMetadataLog, ArchiversStore, Door, Weather
from archive_world import SETTLE_S_MAX, ArchiveWorld, ScriptedLeadership, draw_world
from broker_log import SimulatedLog
from faulty_store import HANG, NO_FAULTS, OUTAGE, Faults
from generated_archive import random_uuid
from network import NetworkLoop
from structlog.testing import capture_logs
from virtual_loop import START_S, run_virtual

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.remote_log_manager import RemoteLogManager

# A crashed turn is a defect of the archiver, whatever the faults.
FATAL_EVENTS = frozenset(("partition_process_crashed", "archive_gap", "partition_stopped"))


def simulate_archive(seed: int) -> ArchiveWorld:
    loops: list[NetworkLoop] = []

    def new_loop() -> NetworkLoop:
        loops.append(NetworkLoop())
        return loops[-1]

    with tempfile.TemporaryDirectory() as folder, capture_logs() as logs:
        main = _Simulation(Random(seed), Path(folder))
        try:
            run_virtual(lambda: main.run(loops[-1]), new_loop)
            for entry in logs:
                assert entry["event"] not in FATAL_EVENTS, f"the archiver logged {entry}"
        except BaseException as error:
            events = [*main.events[-25:], *(str(entry) for entry in logs[-12:])]
            error.add_note("\n".join(["the last events:", *events]))
            raise
    return main.world


class _Simulation:
    def __init__(self, rng: Random, folder: Path) -> None:
        self.rng = rng
        self.events: list[str] = []
        self.world: ArchiveWorld
        self._folder = folder
        self._doors: dict[str, Door] = {}
        self._leaderships: dict[str, ScriptedLeadership] = {}
        self._over = asyncio.Event()

    async def run(self, loop: NetworkLoop) -> None:
        self.world = world = draw_world(self.rng, self._folder)
        loop.network = world.network
        loop.set_exception_handler(self._on_exception)
        async with world.cluster.serving(), self._reader(None) as (_, truth):
            audit = Audit(world, truth)
            async with asyncio.TaskGroup() as processes:
                running = [
                    processes.create_task(self._process_forever(name), name=name)
                    for name in ("first", "second")
                ]
                await self._with_faults(audit)
                await self._settle(audit)
                for process in running:
                    process.cancel()
            await audit.at_rest()
        assert not world.failures, world.failures

    def _note(self, *event: object) -> None:
        now = asyncio.get_running_loop().time() - START_S
        self.events.append(f"{now:.3f} " + " ".join(map(str, event)))

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.world.failures.append(context.get("exception") or context["message"])

    # --- a process ---
    @asynccontextmanager
    async def _reader(
        self, door: Door | None
    ) -> AsyncIterator[tuple[RemoteStorage, RemoteLogMetadataManager]]:
        """The store and metadata as one process opens them; without a door nothing ever fails."""
        world, loop = self.world, asyncio.get_running_loop()
        store = world.store if door is None else ArchiversStore(world.store, door)
        storage = RemoteStorage(store)
        async with AsyncExitStack() as opened:
            if world.topic_based:
                log = world.metadata_log
                rlmm: Any = TopicBasedRemoteLogMetadataManager(
                    log if door is None else ArchiversMetadataLog(log, door),
                    storage,
                    world.config.metadata,
                    wall_clock_ms=lambda: int(loop.time() * 1000),
                    read_max_ms=world.config.store.metadata_read_max_ms,
                )
            else:
                rlmm = StoreBackedRemoteLogMetadataManager(
                    storage,
                    world.config.metadata,
                    read_max_ms=world.config.store.metadata_read_max_ms,
                )
            yield storage, await opened.enter_async_context(rlmm)

    async def _process_forever(self, name: str) -> None:
        """One archiver process, started again each time it is killed."""
        rng = Random(self.rng.random())
        door = self._doors[name] = Door(Random(rng.random()))
        leadership = self._leaderships[name] = ScriptedLeadership()
        while True:
            # While there are faults, a process never runs longer than this before it is killed.
            lifetime_s = rng.choice([1.0, 5.0, 1e6])
            if self._over.is_set():
                lifetime_s = 1e9
            try:
                async with asyncio.timeout(rng.uniform(0, 2 * lifetime_s)):
                    await self._run_manager(door, leadership, Random(rng.random()))
            except TimeoutError:
                self.world.kills += 1
                self._note(name, "killed")
            door.thaw()
            await asyncio.sleep(rng.uniform(0, 1))

    async def _run_manager(self, door: Door, leadership: ScriptedLeadership, rng: Random) -> None:
        world, loop = self.world, asyncio.get_running_loop()
        async with (
            self._reader(door) as (storage, rlmm),
            Cluster(world.config.cluster, Random(rng.random())) as cluster,
        ):
            manager = RemoteLogManager(
                world.config.archive,
                cluster,
                storage,
                rlmm,
                wall_clock_ms=lambda: int(loop.time() * 1000),
                uuid_factory=lambda: random_uuid(rng),
                rng=Random(rng.random()),
                leadership=leadership,
                limits=world.limits,
            )
            await manager.run()

    # --- the world ---
    async def _with_faults(self, audit: Audit) -> None:
        world, rng = self.world, self.rng
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._lead_forever(), name="leadership"),
                tasks.create_task(self._forget_forever(audit), name="trimmer"),
                tasks.create_task(self._audit_forever(audit), name="auditor"),
                *(tasks.create_task(self._weather_forever(name)) for name in ("first", "second")),
            ]
            async with asyncio.TaskGroup() as producers:
                for log in world.logs:
                    producers.create_task(self._produce(log, Random(rng.random())))
            for task in background:
                task.cancel()

    async def _settle(self, audit: Audit) -> None:
        """No faults and one leader for each partition: then all work has to come to an end."""
        self._over.set()
        for name, door in self._doors.items():
            door.weather = Weather(NO_FAULTS)
            door.thaw()
            own_tps = [
                log.tp for log in self.world.logs if (log.tp.partition % 2) == (name == "first")
            ]
            self._leaderships[name].lead(own_tps)
        for _ in range(4):
            await asyncio.sleep(SETTLE_S_MAX / 4)
            await audit.look()

    async def _produce(self, log: SimulatedLog, rng: Random) -> None:
        world = self.world
        turns = max(1, len(log.batches) // 4)
        while not log.complete:
            await asyncio.sleep(rng.uniform(0, 2 * world.faults_s / turns))
            log.write(rng.randint(1, 8))
            log.replicate(asyncio.get_running_loop().time())
            world.cluster.moved()

    async def _lead_forever(self) -> None:
        """One leader half of the time; otherwise both lead, or neither does."""
        rng = Random(self.rng.random())
        while True:
            for log in self.world.logs:
                leaders = rng.choice([("first",), ("second",), ("first", "second"), ()])
                for name, leadership in self._leaderships.items():
                    leadership.change(log.tp, name in leaders)
            await asyncio.sleep(rng.uniform(0.5, 5))

    async def _weather_forever(self, name: str) -> None:
        rng = Random(self.rng.random())
        always_fair = rng.random() < 0.15
        while True:
            door = self._doors.get(name)
            if door is not None:
                usual = Faults(0.001, rng.choice([0.01, 0.3, 2.0]), 0.08, 0.02)
                faults = rng.choice([NO_FAULTS, usual, usual, usual, OUTAGE, HANG])
                lost = rng.choice([0.0, 0.05, 0.3])
                door.weather = Weather(NO_FAULTS) if always_fair else Weather(faults, lost)
                if rng.random() < 0.2:
                    self.world.freezes += 1
                    self._note(name, "stopped")
                    door.freeze()
                    await asyncio.sleep(rng.choice([0.5, 3, 10]))
                    self._note(name, "goes on")
                    door.thaw()
            await asyncio.sleep(rng.uniform(0.5, 5))

    async def _forget_forever(self, audit: Audit) -> None:
        """Brokers trim their logs up to the archive's end, often exactly to it, never further."""
        rng = Random(self.rng.random())
        while True:
            await asyncio.sleep(rng.uniform(0.1, 4))
            log = rng.choice(self.world.logs)
            end = await audit.archived_end(log)
            if end is not None and end > log.start_offset:
                log.trim(rng.choice([end, end, rng.randint(log.start_offset, end)]))
                self._note(log.tp, "trimmed to", log.start_offset)
                self.world.cluster.moved()

    async def _audit_forever(self, audit: Audit) -> None:
        rng = Random(self.rng.random())
        while True:
            await asyncio.sleep(rng.uniform(0.5, 5))
            await audit.look()
