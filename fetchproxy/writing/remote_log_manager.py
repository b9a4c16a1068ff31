"""RemoteLogManager: finds the topics to archive and archives all their partitions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

import structlog

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.brokers.group_member import GroupSettings
from fetchproxy.config.schema import METADATA_TOPIC, ArchiveConfig
from fetchproxy.config.values import parse_paths
from fetchproxy.errors import (
    ClusterError,
    ClusterUnavailable,
    FetchProxyError,
    LogTruncated,
    RemoteStorageError,
)
from fetchproxy.metadata.archiver_positions import NOT_KNOWN, OperatorNotes, RecoveryPoint
from fetchproxy.metadata.leader_views import LeaderLog
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import CompactedCopy, TopicIdPartition
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import ARCHIVE_TURNS_ENDED
from fetchproxy.runtime.cooperative import chosen, cooperative
from fetchproxy.storage.index_files import LocalIndexes
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.cluster_state_writer import ClusterStateWriter
from fetchproxy.writing.compacted_log import CompactedLog, ViewsOfCopy
from fetchproxy.writing.compaction import delete_retention_ms
from fetchproxy.writing.completeness_records import CompletenessRecords, NothingStated
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.deletion.expirer import Expirer
from fetchproxy.writing.deletion.local_retention import LocalRetention
from fetchproxy.writing.deletion.old_journals import OldJournals
from fetchproxy.writing.deletion.partition_deletion import PartitionDeletion
from fetchproxy.writing.discovery import TopicDiscovery, partitions_of
from fetchproxy.writing.index_refresh import LocalIndexRefresher
from fetchproxy.writing.journal import Journal
from fetchproxy.writing.leadership import (
    ConsumerGroupLeadership,
    Leadership,
    LeadershipState,
    LogDirsLeadership,
)
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.log_truncation import LogTruncation
from fetchproxy.writing.partition_archiver import ManagedPartition, PartitionArchiver
from fetchproxy.writing.partition_watch import WATCH_INTERVAL_S, PartitionWatch
from fetchproxy.writing.published_conditions import PublishedConditions
from fetchproxy.writing.published_positions import PublishedPositions
from fetchproxy.writing.schedule import ProcessingSchedule
from fetchproxy.writing.sources.fetched_batches import BatchAccumulator
from fetchproxy.writing.sources.log_dirs import LogDir, LogDirsAccumulator, open_log_dir
from fetchproxy.writing.sources.segment_accumulator import SegmentAccumulator
from fetchproxy.writing.spool import Spool
from fetchproxy.writing.status import PartitionArchiveStatus, publish, withdraw
from fetchproxy.writing.topic_recorder import TopicRecorder

# heartbeat.interval.ms, or a sixth of a short session: a few lost heartbeats cost no partition.
HEARTBEAT_INTERVAL_MS = 3_000
HEARTBEATS_PER_SESSION = 6
# Unfinished uploads of killed copies cost money but harm nothing: a rare check is enough.
_STALE_UPLOADS_INTERVAL_S = 3600.0
# Without jitter all instances of a restarted fleet would look for topics in the same moment.
_DISCOVERY_JITTER = 0.1

log = structlog.get_logger(__name__)


def open_source(
    config: ArchiveConfig, cluster: Cluster, limits: WritingLimits, log_dirs: Sequence[LogDir]
) -> Callable[[TopicIdPartition, Spool], SegmentAccumulator]:
    """Starts nothing. `log_dirs`: the result of `open_log_dirs`."""
    pace = CopyPace(lambda: config.copy_bytes_per_s_max)
    if log_dirs:
        return partial(LogDirsAccumulator, cluster=cluster, pace=pace, log_dirs=log_dirs)
    return partial(
        BatchAccumulator,
        cluster=cluster,
        pace=pace,
        config=config,
        fetch_bytes_max=limits.fetch_bytes_max,
        last_copy_age_min_ms=limits.last_copy_age_min_ms,
    )


def open_log_dirs(config: ArchiveConfig) -> list[LogDir]:
    """Blocks for the brokers' disks. Raises ConfigError if one is not a log directory or cannot be
    read.
    """
    if config.log_dirs is None:
        return []
    return [open_log_dir(path) for path in parse_paths(config.log_dirs)]


def open_leadership(
    config: ArchiveConfig, cluster: Cluster, rng: random.Random, log_dirs: Sequence[LogDir]
) -> Leadership:
    if log_dirs:
        return LogDirsLeadership({log_dir.node_id for log_dir in log_dirs})
    if config.group_id is None:
        return Leadership()
    settings = GroupSettings(
        config.group_id,
        config.group_instance_id,
        config.group_session_timeout_ms,
        min(HEARTBEAT_INTERVAL_MS, config.group_session_timeout_ms // HEARTBEATS_PER_SESSION),
    )
    return ConsumerGroupLeadership(cluster, settings, rng)


# Each of a bounded number of workers takes one due partition at a time (`schedule`) and gives it
# one turn (`partition_archiver`). The instance follows the partitions that it does not lead.


@dataclass(eq=False, repr=False)
class ArchiverParts:
    """The parts that all partitions share. `log_dirs`: from `open_log_dirs`, which the loop does
    not wait for. Raises ValueError without archive.topics.
    """

    config: ArchiveConfig
    cluster: Cluster
    storage: RemoteStorage
    rlmm: RemoteLogMetadataManager
    _: KW_ONLY
    wall_clock_ms: Callable[[], int]
    uuid_factory: Callable[[], UUID]
    limits: WritingLimits = WritingLimits()  # noqa: RUF009 - frozen
    metadata_topic: str = METADATA_TOPIC
    log_dirs: Sequence[LogDir] = ()

    def __post_init__(self) -> None:
        config, cluster, rlmm = self.config, self.cluster, self.rlmm
        self._rsm, self._objects = rsm, objects = self.storage.rsm, self.storage.objects
        clock, limits = self.wall_clock_ms, self.limits
        if config.topics is None:
            raise ValueError("archive.topics is not set")
        if bool(config.log_dirs) != bool(self.log_dirs):
            raise ValueError("archive.log_dirs are not open")
        self.published_conditions = PublishedConditions(objects)  # for the parts that show it
        self.discovery = TopicDiscovery(
            cluster,
            config,
            limits.discovery_interval_ms,
            self.published_conditions.health,
            self.metadata_topic,
            objects.name_fault,
        )
        self.source = open_source(config, cluster, limits, self.log_dirs)
        self.recorder = TopicRecorder(cluster, objects, rlmm, clock)
        self.cluster_state = ClusterStateWriter(
            config, cluster, objects, self.published_conditions, self.discovery.names, clock
        )
        self.truncation = LogTruncation(LeaderLog(cluster), rsm, rlmm, wall_clock_ms=clock)
        self.copier = SegmentCopier(
            rsm,
            rlmm,
            copy_max_ms=config.copy_max_ms,
            wall_clock_ms=clock,
            uuid_factory=self.uuid_factory,
            long_uploads=asyncio.Semaphore(config.workers_max),
        )
        self.expirer = Expirer(
            config,
            rsm,
            objects,
            rlmm,
            topic_config=self.topic_config,
            wall_clock_ms=clock,
            published_conditions=self.published_conditions,
            limits=limits,
        )
        self.local_retention = LocalRetention(
            config,
            cluster,
            rsm,
            rlmm,
            topic_config=self.topic_config,
            check_owner=objects.check_owner,
            wall_clock_ms=clock,
            published_conditions=self.published_conditions,
            limits=limits,
        )

    def topic_config(self, topic_id: UUID) -> Mapping[str, str] | None:
        """A topic's settings. None: not known."""
        return self.discovery.topic_config(topic_id)

    def opened_spool(self) -> Spool:
        return Spool(self.config.spool_dir, encrypted=self._rsm.encrypts)

    def archiver(self, tp: TopicIdPartition, spool: Spool, **more: Any) -> PartitionArchiver:
        """`more`: other and further fields of the PartitionArchiver."""
        fields: dict[str, Any] = {
            "accumulator": self.source(tp, spool),
            "rlmm": self.rlmm,
            "copier": self.copier,
            "truncation": self.truncation,
            "records": CompletenessRecords(self._objects, tp),
            "check_own_log": self._objects.check_own_log,
        }
        return PartitionArchiver(tp, **fields | more)

    def compacted_log(
        self, tp: TopicIdPartition, spool: Spool, may_go_on: Callable[[], bool] = lambda: True
    ) -> CompactedLog:
        def new_archiver(copy: CompactedCopy | None) -> PartitionArchiver:
            if copy is None:
                return self.archiver(tp, spool, rlmm=ViewsOfCopy(self.rlmm))
            return self.archiver(
                tp,
                spool,
                rlmm=ViewsOfCopy(self.rlmm, copy),
                copier=replace(self.copier, compacted=copy),
                records=NothingStated(self._objects, tp),
            )

        return CompactedLog(
            tp,
            new_archiver=new_archiver,
            rsm=self._rsm,
            rlmm=self.rlmm,
            cluster=self.cluster,
            delete_retention_ms=lambda: delete_retention_ms(self.topic_config(tp.topic_id) or {}),
            wall_clock_ms=self.wall_clock_ms,
            uuid_factory=self.uuid_factory,
            published_conditions=self.published_conditions,
            limits=self.limits,
            may_go_on=may_go_on,
        )


@dataclass(eq=False, repr=False, kw_only=True)
class RemoteLogManager(ArchiverParts):
    """Finds the topics to archive and archives all their partitions. `run` ends only by
    cancellation. `leadership`: None for the one that `config` names.
    """

    rng: random.Random
    leadership: Leadership | None = None
    local_indexes: LocalIndexes | None = None
    accumulated: Callable[[TopicIdPartition], int | None] | None = None  # by whichever archiver

    def __post_init__(self) -> None:
        super().__post_init__()
        config, cluster = self.config, self.cluster
        self._schedule = ProcessingSchedule(
            self.limits.rlm_process_interval_ms, self.limits.rlm_retry_interval_ms
        )
        self._partitions: dict[TopicIdPartition, ManagedPartition] = {}
        self._deletion = PartitionDeletion(
            config,
            cluster,
            self._rsm,
            self._objects,
            self.rlmm,
            wall_clock_ms=self.wall_clock_ms,
            published_conditions=self.published_conditions,
            limits=self.limits,
        )
        indexes = self.local_indexes
        self._refresher = LocalIndexRefresher(indexes, self._rsm) if indexes else None
        self._leadership = self.leadership or open_leadership(
            config, cluster, self.rng, self.log_dirs
        )
        self._leadership.on_change = self._leadership_changed
        self._warnings = SparingWarnings(lambda: asyncio.get_running_loop().time())
        # A group leaves no partition without a leader; a broker may have no archiver beside it.
        accumulated = self.accumulated if config.log_dirs is not None else None
        self.watch = PartitionWatch(config, self.published_conditions, accumulated)
        self._woken = asyncio.Event()  # at the next wake-up of the workers
        self._discovered = False
        self._topics: list[TopicInfo] = []  # by the last discovery
        self._discovery_error: str | None = None
        archiver, at_rest = self.uuid_factory(), self.storage.at_rest
        self.journal = (
            Journal(
                self._objects,
                archiver,
                interval_ms=config.recovery_point_ms,
                keys=at_rest.keys,
                cluster=cluster,
                partitions=lambda: self._partitions,
                health=self.published_conditions.health,
                wall_clock_ms=self.wall_clock_ms,
            )
            if config.recovery_point_ms
            else None
        )
        self._old_journals = OldJournals(
            self._objects, self.rlmm, archiver, wall_clock_ms=self.wall_clock_ms
        )
        self.published_positions = PublishedPositions(
            self._objects,
            archiver,
            lambda: self._partitions,
            self.archiver_position,
            self._operator_notes,
            self.recovery_point,
        )

    async def run(self) -> None:
        """Raises OSError if the spool folder cannot be created."""
        async with self.opened_spool() as spool, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._leadership.run(), name="archive leadership")
            tasks.create_task(self._discover_forever(spool), name="archive discovery")
            tasks.create_task(self._watch_forever(), name="archive watch")
            tasks.create_task(self._deletion.run(), name="deleted topics")
            tasks.create_task(self.published_positions.run(), name="archive positions")
            tasks.create_task(self.published_conditions.run(), name="published conditions")
            tasks.create_task(self._record_topics_forever(), name="archive topics")
            state = self.cluster_state.run(self._leads_first)
            tasks.create_task(state, name="state of the cluster")
            tasks.create_task(self._old_journals.run(), name="old journals")
            if self.journal is not None:
                tasks.create_task(self.journal.run(spool), name="journal")
            for number in range(self.config.workers_max):
                tasks.create_task(self._work_forever(), name=f"archive worker {number}")

    def status(self) -> list[PartitionArchiveStatus]:
        """The status of every partition of this archiver, sorted. Never blocks."""
        return [self._status(tp) for tp in sorted(self._partitions)]

    def status_of(self, tp: TopicIdPartition) -> PartitionArchiveStatus | None:
        """None: this archiver does not manage the partition. Never blocks."""
        return self._status(tp) if self.manages(tp) else None

    @property
    def leads_and_follows(self) -> tuple[int, int]:
        """The numbers of led and followed partitions. Never blocks."""
        leads = sum(map(self._leadership.leads, self._partitions))
        return leads, len(self._partitions) - leads

    def manages(self, tp: TopicIdPartition) -> bool:
        """Whether this archiver leads or follows the partition, or has stopped it. Never blocks."""
        return tp in self._partitions

    def archiver_position(self, tp: TopicIdPartition) -> int | None:
        """The offset from which on this archiver accumulates the partition. None: it does not, or
        its turns fail for a reason that no retry mends, so readers must not wait for it. NOT_KNOWN:
        the offset is not known, or after a start the archiver's partitions are not.
        Never blocks.
        """
        partition = self._partitions.get(tp)
        if partition is None:
            may_be = not self._discovered and self.discovery.names(tp.topic)
            return NOT_KNOWN if may_be else None
        if partition.stopped or not partition.leads or partition.brings_nothing:
            return None
        return partition.archiver.position

    def recovery_point(self) -> RecoveryPoint | None:
        """What would be lost with brokers and archiver now. None: there is no journal. Never
        blocks.
        """
        return None if self.journal is None else self.journal.recovery_point()

    def _operator_notes(self, topics: Iterable[UUID]) -> OperatorNotes:
        return self.watch.operator_notes(map(self.topic_config, topics))

    @property
    def leadership_state(self) -> LeadershipState:
        """This instance's leadership among the archivers. Never blocks."""
        return self._leadership.state()

    # --- discovery ---
    async def _discover_forever(self, spool: Spool) -> None:
        loop = asyncio.get_running_loop()
        interval_s = self.limits.discovery_interval_ms / 1000
        uploads_checked_at = float("-inf")
        while True:
            if loop.time() - uploads_checked_at >= _STALE_UPLOADS_INTERVAL_S:
                uploads_checked_at = loop.time()
                await self._abort_stale_uploads()
            try:
                await self._discover(spool)
                self._discovery_error = None
            except ClusterError as error:
                if self._discovery_error is None:  # once per outage
                    log.warning("archive_discovery_failed", error=str(error))
                self._discovery_error = str(error)
            await asyncio.sleep(interval_s * (1 + _DISCOVERY_JITTER * self.rng.random()))

    def _leads_first(self) -> bool:
        """Whether this archiver leads the first partition of all: it does what only one does."""
        first = min(self._partitions, default=None)
        return first is not None and self._leadership.leads(first)

    async def _record_topics_forever(self) -> None:
        """The leader of a topic's first partition describes it."""
        failing = False
        while True:
            await asyncio.sleep(self.limits.discovery_interval_ms / 1000)
            first = [partitions_of([topic])[0] for topic in self._topics if topic.leaders]
            led = {tp.topic_id for tp in first if self._leadership.leads(tp)}
            try:
                await self.recorder.record([t for t in self._topics if t.topic_id in led])
                failing = False
            except (ClusterError, RemoteStorageError) as error:
                if not failing:  # once per outage
                    log.warning("topics_not_described", error=str(error))
                failing = True

    async def _abort_stale_uploads(self) -> None:
        oldest_ms = self.wall_clock_ms() - 2 * self.config.copy_max_ms
        try:
            async with asyncio.timeout(self.config.copy_max_ms / 1000):
                aborted = await self._objects.abort_stale_uploads(oldest_ms)
        except (RemoteStorageError, TimeoutError) as error:
            log.warning(
                "stale_uploads_not_aborted",
                error=str(error) or type(error).__name__,
                hint="if it happens again, allow the store's user to list and abort multipart "
                "uploads",
            )
        else:
            if aborted:
                log.info("stale_uploads_aborted", count=aborted)

    async def _discover(self, spool: Spool) -> None:
        self._topics = topics = await self.discovery.look()
        self._leadership.manage(topics)
        # One whose cleanup.policy has changed is managed anew, from the next discovery on.
        tps = [tp for tp in partitions_of(topics) if not self._has_other_policy(tp)]
        async for tp in cooperative(tps):  # 10,000 new ones took a second at once
            self._assign(tp, spool)
        self._wake()
        self._discovered = True
        for tp in self._partitions.keys() - set(tps):
            await self._unassign(tp)
        if self._refresher is not None:
            await self._refresher.keep_only(tps)

    def _assign(self, tp: TopicIdPartition, spool: Spool) -> None:
        if tp not in self._partitions:
            self._partitions[tp] = self._manage(tp, spool)
            log.info("partition_assigned", **tp.logged)
        self._schedule.assign(tp)

    def _has_other_policy(self, tp: TopicIdPartition) -> bool:
        partition = self._partitions.get(tp)
        is_compacted = self.discovery.is_compacted(tp.topic_id)
        return partition is not None and (partition.compacted is not None) != is_compacted

    def _manage(self, tp: TopicIdPartition, spool: Spool) -> ManagedPartition:
        leads = lambda: self._leadership.leads(tp)  # noqa: E731
        compacted = None
        if self.discovery.is_compacted(tp.topic_id):
            compacted = self.compacted_log(tp, spool, leads)
        return ManagedPartition(
            archiver=compacted.growth if compacted else self.archiver(tp, spool, may_go_on=leads),
            compacted=compacted,
            leadership=self._leadership,
            expirer=self.expirer,
            local_retention=self.local_retention,
            refresher=self._refresher,
            refresh_interval_ms=self.limits.remote_refresh_interval_ms,
            published_conditions=self.published_conditions,
            warnings=self._warnings,
            watch=self.watch,
        )

    def _leadership_changed(self) -> None:
        """A newly led partition is due at once; one that is not led any more is released."""
        for tp, partition in self._partitions.items():
            if partition.led != partition.leads:
                partition.led = partition.leads
                self._schedule.hasten(tp)
        self._wake()

    async def _unassign(self, tp: TopicIdPartition) -> None:
        if self._schedule.unassign(tp):
            await self._drop(tp)

    async def _drop(self, tp: TopicIdPartition) -> None:
        partition = self._partitions.pop(tp)
        withdraw(tp)
        await partition.drop()

    async def _watch_forever(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            await self._read_log_offsets()
            now = asyncio.get_running_loop().time()
            await self.watch.look(self._watched_statuses(), now, self.wall_clock_ms())
            await self.watch.ask(self.cluster)

    async def _read_log_offsets(self) -> None:
        """Ask for the ends of the brokers' logs: turns do not get that far while copies fail."""
        loop = asyncio.get_running_loop()
        led = await chosen(list(self._partitions), self._leadership.leads)
        try:
            async with asyncio.timeout(WATCH_INTERVAL_S):
                oldest = loop.time() - WATCH_INTERVAL_S
                await self.cluster.fetch_log_offsets(led, not_older_than=oldest)
        except TimeoutError:
            return  # use the log offsets that arrived in time

    def _watched_statuses(self) -> Iterator[PartitionArchiveStatus]:
        """Yields one at a time: a partition may go while the others are checked."""
        for tp in list(self._partitions):
            if self.manages(tp):
                self._publish(tp)
                yield self._status(tp)

    # --- work ---
    async def _work_forever(self) -> None:
        while True:
            tp = await self._next_due()
            await self._process(tp, self._partitions[tp])
            self._wake()

    def _wake(self) -> None:
        """All workers look again, also one that has looked and does not wait yet."""
        self._woken.set()
        self._woken = asyncio.Event()

    async def _next_due(self) -> TopicIdPartition:
        loop = asyncio.get_running_loop()
        while True:
            woken = self._woken
            tp = self._schedule.take_due(loop.time())
            if tp is not None:
                return tp
            due_at = self._schedule.next_due_at()
            try:
                async with asyncio.timeout_at(due_at):
                    await woken.wait()
            except TimeoutError:
                continue

    async def _process(self, tp: TopicIdPartition, partition: ManagedPartition) -> None:
        outcome: bool | Exception
        try:
            outcome = await self._turn(partition)
        except LogTruncated as error:
            await partition.release()
            outcome = error
        except (FetchProxyError, OSError) as error:
            outcome = error
        except Exception as error:
            # The top of a background loop: one partition's defect must not end other partitions'
            # turns.
            log.exception("partition_process_crashed", **tp.logged)
            outcome = error
        if not self._end_turn(tp, partition, outcome):
            await self._drop(tp)

    def _end_turn(
        self, tp: TopicIdPartition, partition: ManagedPartition, outcome: bool | Exception
    ) -> bool:
        """Note `outcome` (True: there is more to do) at once in the partition, the schedule and the
        gauges. False: the partition is not managed here any more.
        """
        now = asyncio.get_running_loop().time()
        if not isinstance(outcome, Exception):
            partition.note_success(self.wall_clock_ms())
            is_known = self._schedule.succeeded(tp, now, more_waits=outcome)
        elif isinstance(outcome, LogTruncated):
            partition.note_stop(outcome)
            # The partition stays scheduled: an operator's decision takes effect without a restart.
            is_known = self._schedule.succeeded(tp, now)
        else:
            if isinstance(outcome, FetchProxyError | OSError):
                partition.note_failure(outcome)
            else:
                partition.failed(repr(outcome), outcome)
            is_known = self._schedule.failed(tp, now)
        self._publish(tp)
        return is_known

    async def _turn(self, partition: ManagedPartition) -> bool:
        """Limits the whole turn too: a broker or a disk may hang in unforeseen ways."""
        # A copy may take copy_max_ms, and as long again to be removed after a failure.
        limit_ms = self.limits.turn_max_ms + 2 * self.config.copy_max_ms
        try:
            async with asyncio.timeout(limit_ms / 1000) as limit:
                return await partition.process()
        except TimeoutError:
            if not limit.expired():
                raise
            ARCHIVE_TURNS_ENDED.inc()
            raise ClusterUnavailable(
                f"a turn took longer than {limit_ms} ms and was ended"
            ) from None

    def _publish(self, tp: TopicIdPartition) -> None:
        """Publishes only a leader's figures: a follower's would contradict them."""
        partition = self._partitions[tp]
        if partition.leads:
            publish(self._status(tp))
        else:
            withdraw(tp)

    def _status(self, tp: TopicIdPartition) -> PartitionArchiveStatus:
        topic_config = self.topic_config(tp.topic_id)
        return self._partitions[tp].status(topic_config, self.cluster.cached_log_offsets(tp))
