"""The composition root: the parts of a process, and the order in which they open and close.

This module gives the parts their wall clock and randomness. All permanent tasks run in one
TaskGroup. A defect of the archiver or the console is logged and that part is restarted, because the
relay must not suffer from it. A defect of the gateway ends the process, because a proxy that
accepts no client is useless, and a supervisor can restart it.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog

from fetchproxy.archive import metadata_manager, wall_clock_ms
from fetchproxy.brokers.broker_watch import BrokerWatch
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.memory_plan import memory_parts
from fetchproxy.config.reloading import take
from fetchproxy.config.schema import Config
from fetchproxy.config.values import HostPort
from fetchproxy.console.archived_records import ArchivedRecords, masked_names
from fetchproxy.console.collect import ConsoleLimits, StatusCollector, StatusSources
from fetchproxy.errors import ConfigError
from fetchproxy.metadata.archiver_positions import (
    NOT_KNOWN,
    ArchiverPositions,
    RecoveryPoint,
    of_all_archivers,
)
from fetchproxy.metadata.forgetting import Forgetting, TopicTable
from fetchproxy.metadata.leader_views import LeaderLog, LeaderViews
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews, RemoteLogMetadataManager
from fetchproxy.metadata.remote_reads import RemoteReads
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.ages import LAST_SUCCESSES
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.observability.logs import SparingWarnings, configure_logging
from fetchproxy.observability.metrics import (
    ARCHIVER_RESTARTS,
    BY_TOPIC,
    CPU_CORES_AVAILABLE,
    MEMORY_AVAILABLE_BYTES,
    MEMORY_BUDGET_BYTES,
    REGISTRY,
)
from fetchproxy.observability.tracing import tracing
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.reloads import NextReload, tell
from fetchproxy.runtime.control_groups import available_cpu_cores, available_memory_bytes
from fetchproxy.runtime.drills import DRILL
from fetchproxy.runtime.garbage import spare_collections, visit_exempt_objects
from fetchproxy.runtime.heap import give_back_freed_memory, glibc_allocator
from fetchproxy.runtime.retrying import keep_running
from fetchproxy.runtime.timed_loop import measure_event_loop_lag, publish_event_loop_time
from fetchproxy.serving.archive_only.kept_state import KeptState
from fetchproxy.serving.archive_only.server import open_archive_only
from fetchproxy.serving.client_groups import GroupsOfClients
from fetchproxy.serving.consumer_pacing import ConsumerPaces
from fetchproxy.serving.gateway.addresses import addresses_in_words
from fetchproxy.serving.gateway.server import open_gateway
from fetchproxy.serving.gateway.startup_lookup import FIRST_LOOKS_WAIT_MAX_S
from fetchproxy.serving.limits import ArchiveOnlyLimits
from fetchproxy.serving.listener import Listener
from fetchproxy.storage.attached_topics import open_archive
from fetchproxy.storage.index_files import LocalIndexes
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.store_health import StoreOperation
from fetchproxy.tls.reloading import (
    RELOAD_INTERVAL_MS,
    ReloadingContext,
    keep_fresh,
    listener_context,
    upstream_context,
)
from fetchproxy.writing.archive_pass import ArchivePass, NotArchived
from fetchproxy.writing.index_refresh import open_local_indexes
from fetchproxy.writing.leadership import LeadershipState
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.own_archive import OwnArchive
from fetchproxy.writing.partition_watch import deleted_at, until
from fetchproxy.writing.published_conditions import PublishedConditions
from fetchproxy.writing.remote_log_manager import RemoteLogManager, open_log_dirs
from fetchproxy.writing.status import PartitionArchiveStatus

if TYPE_CHECKING:  # it brings an HTTP server, see `load_console`
    from fetchproxy.console.server import ConsoleServer

log = structlog.get_logger(__name__)
# Records that one pass has not archived; and by topic, why a matching one is not archived at all.
Left = tuple[list[NotArchived], dict[str, str]]
Says = Callable[[HostPort | None], None]  # called when clients are let in; see `run_server`


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a process's parts that are not settings. Tests and trials pass other values."""

    serving: ArchiveOnlyLimits = field(default_factory=ArchiveOnlyLimits)  # of both servers
    reading: ReadingLimits = field(default_factory=ReadingLimits)
    writing: WritingLimits = field(default_factory=WritingLimits)
    console: ConsoleLimits = field(default_factory=ConsoleLimits)
    tls_reload_interval_ms: int = RELOAD_INTERVAL_MS


LIMITS = Limits()


class Leaving:
    """Asks a serving process to let its clients go, and then to end by itself."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._serves = False

    def ask(self) -> bool:
        """False: it serves nobody yet, or was asked before: it has to be cancelled."""
        if not self._serves or self._requested.is_set():
            return False
        self._requested.set()
        return True

    @property
    def is_requested(self) -> bool:
        return self._requested.is_set()

    async def requested(self) -> None:
        self._serves = True
        await self._requested.wait()


@dataclass(slots=True)
class Parts:
    """The parts that every kind of process has. `gateway`, `manager`: None if they do not run."""

    config: Config
    limits: Limits
    storage: RemoteStorage
    rlmm: RemoteLogMetadataManager
    cluster: Cluster
    own_archive: OwnArchive
    health: Health
    random: random.Random
    serves: bool
    listener_tls: ReloadingContext | None = None
    upstream_tls: ReloadingContext | None = None
    gateway: Listener | None = None
    manager: RemoteLogManager | None = None
    positions: ArchiverPositions | None = None
    local_indexes: LocalIndexes | None = None
    records: ArchivedRecords | None = None  # for the console; None: nothing is read here
    console: ConsoleServer | None = None
    next_reload: NextReload | None = None
    leaving: Leaving = field(default_factory=Leaving)
    brokers: BrokerWatch = field(init=False)
    remote_reads: RemoteReads = field(init=False)
    views: LeaderViews = field(init=False)  # views of the archive that clients may see

    def __post_init__(self) -> None:
        warnings = SparingWarnings(asyncio.get_running_loop().time)
        self.brokers = BrokerWatch(self.cluster)
        for source in (self.conditions, self.brokers.conditions, self.cluster.conditions):
            self.health.watch(source)
        self.remote_reads = RemoteReads(self.rlmm)
        self.views = LeaderViews(self.remote_reads, LeaderLog(self.cluster), warnings)
        self.health.watch(self.views.conditions)
        self.health.watch(self.storage.packed.conditions)
        for tls in (self.listener_tls, self.upstream_tls):
            if tls is not None:
                self.health.watch(tls.health.all)

    def is_archiving(self, tp: TopicIdPartition) -> bool:
        return self.manager is not None and self.manager.manages(tp)

    def archiver_position(self, tp: TopicIdPartition) -> int | None:
        """The offset from which this process accumulates `tp`. None: it does not accumulate it.
        NOT_KNOWN: also if the archiver does not run yet and will match the topic.
        """
        if self.manager is not None:
            return self.manager.archiver_position(tp)
        return NOT_KNOWN if self.config.archive.names(tp.topic) else None

    @property
    def mode(self) -> str:
        if self.config.archive_only.enabled:
            return "archive-only"
        return "serve" if self.serves else "archive"

    def listeners(self) -> list[str]:
        if self.gateway is None:
            return []
        host = self.config.gateway.listen.rpartition(":")[0]
        return [f"{host}:{self.gateway.port}", *addresses_in_words(self.gateway.node_addresses())]

    def conditions(self, now: float) -> Iterator[Condition]:
        """Conditions of parts that come and go, and of parts that do not report to `health`."""
        if self.serves and self.gateway is None:
            listener = f"gateway listener {self.config.gateway.listen}"
            message = f"The gateway does not listen at {self.config.gateway.listen} yet"
            yield Condition(Kind.GATEWAY_NOT_LISTENING, message, missing=listener)
        elif self.leaving.is_requested:
            message = "The process is stopping and disconnects its clients"
            yield Condition(
                Kind.GATEWAY_NOT_LISTENING, message, missing="new clients: it is stopping"
            )
        for condition in self.storage.health.conditions(now):
            # The others are about an object, a key or a pace, and say themselves what rests.
            yield (
                self._with_consequences(condition)
                if condition.kind == Kind.STORE_FAILING
                else condition
            )

    def _with_consequences(self, failing: Condition) -> Condition:
        words, deleted_in_ms = self._consequences(failing.subject)
        return replace(failing, what=f"{failing.what}. {words}", until=deleted_at(deleted_in_ms))

    def _consequences(self, operation: str) -> tuple[str, int | None]:
        """The consequences of a failing store operation; ms until the brokers begin to delete."""
        if operation == StoreOperation.DELETE:
            return "Copies and reads continue; nothing is deleted from the archive.", None
        words = []
        if self.serves and operation != StoreOperation.WRITE:
            tail = "" if self.config.archive_only.enabled else "Reads from the brokers continue; "
            readers = "readers of the archive" if tail else "Readers"
            words.append(f"{tail}{readers} wait and keep their position.")
        if self.manager is None:
            return " ".join(words), None
        least_ms = self.manager.watch.least_deleted_in_ms()
        words.append(f"Nothing is being archived; {until(least_ms, 'what is not archived')}.")
        return " ".join(words), least_ms

    def tables(self) -> Iterator[TopicTable]:
        """All that is kept by topic; see `Forgetting`."""
        yield from (self.cluster, self.rlmm, self.remote_reads, self.views, self.storage.health)
        if self.gateway is not None:
            yield from self.gateway.tables

    def work(self, tp: TopicIdPartition) -> PartitionArchiveStatus | None:
        return None if self.manager is None else self.manager.status_of(tp)

    def archiver(self) -> tuple[LeadershipState, tuple[int, int], dict[str, str]] | None:
        if (manager := self.manager) is None:
            return None
        return manager.leadership_state, manager.leads_and_follows, manager.discovery.refused

    def recovery_point(self) -> RecoveryPoint | None:
        """Over all archivers with a journal, wherever they run. None: none is known."""
        points = [] if self.positions is None else list(self.positions.recovery_points())
        own_point = None if self.manager is None else self.manager.recovery_point()
        return of_all_archivers(points if own_point is None else [*points, own_point])

    def consumer_paces(self) -> ConsumerPaces | None:
        return None if self.gateway is None else self.gateway.consumer_paces

    def groups(self) -> GroupsOfClients | None:
        return None if self.gateway is None else self.gateway.groups

    def published_conditions(self) -> PublishedConditions | None:
        return None if self.manager is None else self.manager.published_conditions


def _no_callback(console: HostPort | None) -> None:
    """For callers that need no news of the start."""


async def run_server(
    config: Config,
    *,
    create: bool = False,
    limits: Limits = LIMITS,
    leaving: Leaving | None = None,
    next_reload: NextReload | None = None,
    on_ready: Says = _no_callback,
) -> None:
    """Serve until cancelled, or until `leaving` is asked and the clients have gone. `create`: see
    `OwnArchive`. `on_ready` is called when clients are let in, with the console's address. With
    `next_reload`, `config` is an `own_copy`: what changes without a restart is taken into it.

    Raises ConfigError, RemoteStorageError if it cannot start.
    """
    archives = config.archive.topics is not None
    async with _open_parts(
        config, limits, serves=True, writes=archives, create=create, leaving=leaving
    ) as parts:
        parts.next_reload = next_reload
        await serve(parts, on_ready)


async def serve(parts: Parts, on_ready: Says = _no_callback) -> None:
    """As `run_server`. Raises ConfigError, RemoteStorageError if it cannot start."""
    archives = parts.config.archive.topics is not None
    async with (
        _local_indexes(parts) if archives else nullcontext() as parts.local_indexes,
        _console(parts) as collector,
        _purgatory(parts, parts.views) as purgatory,
        _positions(parts) as positions,
        _gateway(parts, purgatory, positions) as gateway,
        asyncio.TaskGroup() as tasks,
    ):
        parts.gateway, parts.positions = gateway, positions
        parts.records = _records(parts, purgatory, parts.views, collector)
        running_tasks = _keep_up(parts, collector, tasks)
        if archives:
            archiving = _keep_archiving(parts, positions)
            running_tasks.append(tasks.create_task(archiving, name="archiver"))
        running_tasks.append(tasks.create_task(parts.own_archive.run(), name="own archive"))
        on_ready(None if parts.console is None else parts.console.address)
        # The gateway's own tasks cancel this one if they fail.
        await parts.leaving.requested()
        await gateway.drain()
        for task in running_tasks:
            task.cancel()


async def run_archive_only(
    config: Config,
    *,
    limits: Limits = LIMITS,
    leaving: Leaving | None = None,
    next_reload: NextReload | None = None,
) -> None:
    """Serve the archive without any broker. All else is as in `run_server`."""
    async with (
        _open_parts(config, limits, serves=True, writes=False, leaving=leaving) as parts,
        _console(parts) as collector,
        _purgatory(parts, parts.rlmm) as purgatory,
        asyncio.TaskGroup() as tasks,
    ):
        parts.next_reload = next_reload
        running_tasks = _keep_up(parts, collector, tasks)
        running_tasks.append(tasks.create_task(parts.own_archive.run(), name="own archive"))
        parts.records = _records(parts, purgatory, parts.rlmm, collector)
        # The console opens first, so it can show that the listener waits for the store.
        async with _archive_only(parts, purgatory) as parts.gateway:
            await parts.leaving.requested()
            await parts.gateway.drain()
        for task in running_tasks:
            task.cancel()


async def run_archiver(
    config: Config,
    *,
    once: bool = False,
    create: bool = False,
    limits: Limits = LIMITS,
    next_reload: NextReload | None = None,
) -> Left:
    """Archive until cancelled. `once`: archive the records that exist now, then return what was not
    archived of them. All else is as in `run_server`.
    """
    async with (
        _open_parts(config, limits, serves=False, writes=True, create=create) as parts,
        _console(parts) as collector,
        _positions(parts) as positions,
        asyncio.TaskGroup() as tasks,
    ):
        parts.next_reload, parts.positions = next_reload, positions
        kept_up = _keep_up(parts, collector, tasks)
        if not once:
            tasks.create_task(positions.run(), name="archivers")
            tasks.create_task(parts.own_archive.run(), name="own archive")
            async with _local_indexes(parts) as parts.local_indexes:
                await _keep_archiving(parts, positions)
        await parts.own_archive.confirm()
        not_archived = await _archive_once(parts)
        for task in kept_up:
            task.cancel()
    return not_archived


@asynccontextmanager
async def _open_parts(
    config: Config,
    limits: Limits,
    *,
    serves: bool,
    writes: bool,
    create: bool = False,
    leaving: Leaving | None = None,
) -> AsyncIterator[Parts]:
    if writes:
        await asyncio.to_thread(open_log_dirs, config.archive)  # raises before anything starts
    if config.drills.enabled:
        DRILL.allow()
    listener = listener_context(config.gateway, config.tls) if serves else None
    upstream = upstream_context(config.cluster, config.tls)
    async with (
        tracing(config.tracing.enabled),
        open_archive(config, create=writes) as storage,
        Cluster(config.cluster, tls=upstream, continued=storage.objects.continued) as cluster,
        metadata_manager(config, storage, cluster, wall_clock_ms) as rlmm,
    ):
        health = Health()
        parts_opened = storage, rlmm, cluster
        own_archive = OwnArchive(
            config, *parts_opened, uuid4, archives=writes, create=create, health=health
        )
        await own_archive.at_start()
        spare_collections()
        rng = random.Random()
        parts = Parts(
            config, limits, *parts_opened, own_archive, health, rng, serves, listener, upstream
        )
        parts.leaving = leaving or parts.leaving
        yield parts


def _keep_up(
    parts: Parts, collector: StatusCollector | None, tasks: asyncio.TaskGroup
) -> list[asyncio.Task[None]]:
    """Start the tasks that every process runs beside its work, until they are cancelled."""
    running_tasks = [
        tasks.create_task(_keep_tls_fresh(parts), name="tls files"),
        tasks.create_task(_watch_process(parts), name="process watch"),
    ]
    if parts.next_reload is not None:
        follow = partial(_follow_settings, parts, parts.next_reload)
        rests = "changed settings wait for a restart"
        following = keep_running("settings", follow, parts.random, parts.health, rests)
        running_tasks.append(tasks.create_task(following, name="settings"))
    if collector is not None:
        rests = "the page, `/api/status` and part of `/metrics` are not updated"
        showing = keep_running("console", collector.run, parts.random, parts.health, rests)
        running_tasks.append(tasks.create_task(showing, name="console"))
    return running_tasks


def _purgatory(parts: Parts, views: PartitionViews) -> RemoteFetchPurgatory:
    config, reading = parts.config, parts.limits.reading
    limits = replace(
        reading,
        fetcher_tasks_max=config.store.connections_max,
        small_reads_max=config.store.small_reads_max,
        # A range read lasts longer than the store's own time-out, whatever that is.
        chunk_read_max_ms=max(reading.chunk_read_max_ms, 3 * config.store.timeout_ms // 2),
    )
    purgatory = RemoteFetchPurgatory(
        config.remote_fetch,
        views,
        parts.storage,
        parts.random,
        parts.local_indexes,
        skips_gaps=config.gateway.gap_policy == "skip",
        limits=limits,
    )
    parts.health.watch(purgatory.conditions)
    return purgatory


def _positions(parts: Parts) -> ArchiverPositions:
    also_archives = parts.serves and parts.config.archive.topics is not None
    return ArchiverPositions(
        parts.storage.objects,
        parts.config.store.metadata_read_max_ms,
        asyncio.get_running_loop().time,
        parts.archiver_position if also_archives else None,
        parts.health,
        lambda: None if parts.manager is None else parts.manager.published_positions.key,
    )


def _local_indexes(parts: Parts) -> AbstractAsyncContextManager[LocalIndexes | None]:
    """Only the RemoteLogManager maintains these, so only processes that archive enter them."""
    return open_local_indexes(parts.config.archive, parts.storage.rsm, parts.limits.writing)


def load_console(config: Config) -> None:
    """Before the event loop runs, which it would hold for 0.15 s: the HTTP server's modules. They
    are a tenth of a start, so a process without a console goes without them.
    """
    if config.console.listen is not None:
        for name in ("process", "rows", "server"):
            import_module(f"fetchproxy.console.{name}")


@asynccontextmanager
async def _console(parts: Parts) -> AsyncIterator[StatusCollector | None]:
    if parts.config.console.listen is None:
        yield None
        return
    # See `load_console`.
    from fetchproxy.console.process import ProcessFacts
    from fetchproxy.console.rows import Rows
    from fetchproxy.console.server import ConsoleServer

    sources = StatusSources(
        mode=parts.mode,
        health=parts.health,
        listeners=parts.listeners,
        brokers=parts.brokers.status,
        work=parts.work,
        archiver=parts.archiver,
        published_conditions=parts.published_conditions,
        recovery_point=parts.recovery_point,
        consumer_paces=parts.consumer_paces,
        groups=parts.groups,
    )
    cluster = None if parts.config.archive_only.enabled else parts.cluster
    collector = StatusCollector(
        parts.config, parts.storage, parts.rlmm, cluster, sources, limits=parts.limits.console
    )
    facts = ProcessFacts(parts.config, parts.storage.objects, wall_clock_ms)
    rows = Rows(collector, parts.storage.accounts, facts)
    where = parts.config.console
    registry = REGISTRY if where.metrics_by_partition else BY_TOPIC
    server = ConsoleServer(where, collector, registry, lambda: parts.records, rows, DRILL)
    async with server as parts.console:
        yield collector


def _records(
    parts: Parts,
    purgatory: RemoteFetchPurgatory,
    views: PartitionViews,
    collector: StatusCollector | None,
) -> ArchivedRecords | None:
    """Also while `console.show_records` is false: the console then refuses to show them."""
    console = parts.config.console
    if collector is None:
        return None
    read_masked_names = lambda: masked_names(console.masked_fields)  # noqa: E731
    return ArchivedRecords(views, purgatory, collector.archived_partition, read_masked_names)


def _gateway(
    parts: Parts, purgatory: RemoteFetchPurgatory, positions: ArchiverPositions
) -> AbstractAsyncContextManager[Listener]:
    return open_gateway(
        parts.config,
        parts.cluster,
        parts.remote_reads,
        parts.views,
        purgatory,
        positions,
        parts.is_archiving,
        tls=(parts.listener_tls, parts.upstream_tls),
        limits=parts.limits.serving,
        health=parts.health,
        first_looks_max_s=FIRST_LOOKS_WAIT_MAX_S,
    )


def _archive_only(
    parts: Parts, purgatory: RemoteFetchPurgatory
) -> AbstractAsyncContextManager[Listener]:
    return open_archive_only(
        parts.config,
        parts.rlmm,
        TopicDescriptions(parts.storage.objects),
        purgatory,
        lambda prefix: f"{prefix}-{uuid4()}",
        tls=parts.listener_tls,
        limits=parts.limits.serving,
        health=parts.health,
        kept_state=KeptState(parts.storage.objects),
    )


async def _keep_tls_fresh(parts: Parts) -> None:
    async def look() -> None:
        contexts = (parts.listener_tls, parts.upstream_tls)
        await keep_fresh(contexts, wall_clock_ms, parts.limits.tls_reload_interval_ms)

    rests = "changed certificates and keys are not loaded"
    await keep_running("tls files", look, parts.random, parts.health, rests)


async def _follow_settings(parts: Parts, next_reload: NextReload) -> None:
    while True:
        reload = await next_reload()
        if parts.console is not None:
            reload = await parts.console.read_token(reload)
        if not reload.fault:
            take(parts.config, reload.config)
            configure_logging(parts.config.log, sys.stderr)
        tell(reload, parts.health)
        for tls in (parts.listener_tls, parts.upstream_tls):
            if tls is not None:
                await tls.reload_if_changed()


async def _watch_process(parts: Parts) -> None:
    for part, size_bytes in memory_parts(parts.config).items():
        MEMORY_BUDGET_BYTES.labels(part).set(size_bytes)
    MEMORY_AVAILABLE_BYTES.set(await asyncio.to_thread(available_memory_bytes))
    CPU_CORES_AVAILABLE.set(await asyncio.to_thread(available_cpu_cores))

    cluster = None if parts.config.archive_only.enabled else parts.cluster
    forgetting = Forgetting(parts.rlmm, cluster, parts.tables)
    # Each loop runs in its own task, so an error in one does not stop the others.
    watches: list[tuple[str, Callable[[], Awaitable[None]], str]] = [
        ("memory", partial(give_back_freed_memory, glibc_allocator()), "freed memory is kept"),
        ("objects", visit_exempt_objects, "unused memory is not freed"),
        ("event loop time", publish_event_loop_time, "its metrics stand still"),
        ("event loop lag", measure_event_loop_lag, "its metrics stand still"),
        ("store watch", parts.storage.health.run, "conditions of the store are not updated"),
        ("readers", parts.storage.accounts.run, "readers that are gone stay in the metrics"),
        ("conditions", parts.health.run, "`fetchproxy_conditions` stands still"),
        ("ages", LAST_SUCCESSES.run, "`fetchproxy_last_success_age_seconds` stands still"),
        ("forgetting", forgetting.run, "deleted topics stay in memory and in the metrics"),
    ]
    if cluster is not None:
        rests = "brokers that go down or come back are not noticed"
        watches.append(("broker watch", parts.brokers.run, rests))
    async with asyncio.TaskGroup() as tasks:
        for part, watch, rests in watches:
            loop = keep_running(part, watch, parts.random, parts.health, rests)
            tasks.create_task(loop, name=part)


async def _keep_archiving(parts: Parts, positions: ArchiverPositions) -> None:
    await parts.own_archive.confirmed.wait()

    async def archive() -> None:
        parts.manager = RemoteLogManager(
            parts.config.archive,
            parts.cluster,
            parts.storage,
            parts.rlmm,
            wall_clock_ms=wall_clock_ms,
            uuid_factory=uuid4,
            rng=parts.random,
            local_indexes=parts.local_indexes,
            accumulated=positions.archiver_position,
            limits=parts.limits.writing,
            metadata_topic=parts.config.metadata.topic_name,
            log_dirs=await asyncio.to_thread(open_log_dirs, parts.config.archive),
        )
        await parts.manager.run()

    rests = "nothing is archived, and what the archive keeps is not watched"
    await keep_running(
        "archiver", archive, parts.random, parts.health, rests, on_failure=ARCHIVER_RESTARTS.inc
    )


async def _archive_once(parts: Parts) -> Left:
    archive_pass = ArchivePass(
        parts.config.archive,
        parts.cluster,
        parts.storage,
        parts.rlmm,
        wall_clock_ms=wall_clock_ms,
        uuid_factory=uuid4,
        limits=parts.limits.writing,
        metadata_topic=parts.config.metadata.topic_name,
        log_dirs=await asyncio.to_thread(open_log_dirs, parts.config.archive),
    )
    _, not_archived = await archive_pass.run()
    if why := archive_pass.discovery.why_nothing():
        raise ConfigError(why)
    return not_archived, archive_pass.discovery.refused
