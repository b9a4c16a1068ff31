"""RemoteLogManager, first version: finds the topics to archive and keeps every partition at it.

A bounded number of workers takes one due partition at a time (`schedule`) and gives it one turn
(`partition_archiver`). All partitions belong to this instance; leadership by consumer group comes
later. Retention is not done here yet: nothing that was finished is ever deleted.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import structlog

from fetchproxy.cluster.answers import RETRIABLE
from fetchproxy.cluster.client import Cluster, TopicInfo
from fetchproxy.config.sections import ArchiveConfig
from fetchproxy.errors import ClusterError, FetchProxyError, LogTruncated, RemoteStorageError
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import ARCHIVE_REFUSED_TOPICS, ARCHIVE_STOPPED_PARTITIONS
from fetchproxy.remote_log.broker_source import BrokerSource
from fetchproxy.remote_log.copier import SegmentCopier
from fetchproxy.remote_log.partition_archiver import PartitionArchiver
from fetchproxy.remote_log.schedule import ProcessingSchedule
from fetchproxy.remote_log.spool import Spool
from fetchproxy.remote_log.status import PartitionArchiveStatus, publish, withdraw
from fetchproxy.remote_log.topic_selection import matching_topics, partitions_of, refusal
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)

# Unfinished uploads of killed copies cost money in a store, but harm nothing: rarely is enough.
_STALE_UPLOADS_INTERVAL_S = 3600.0
# All instances of a restarted fleet would otherwise look for topics in the same moment.
_DISCOVERY_JITTER = 0.1


@dataclass(slots=True)
class _Partition:
    archiver: PartitionArchiver
    last_error: str | None = None
    last_success_ms: int | None = None
    stopped: bool = False


class RemoteLogManager:
    """`await manager.run()` inside a TaskGroup of the app; it ends only by cancellation."""

    def __init__(
        self,
        config: ArchiveConfig,
        cluster: Cluster,
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        *,
        wall_clock_ms: Callable[[], int],
        uuid_factory: Callable[[], UUID],
        rng: random.Random,
    ) -> None:
        """Raises ValueError where `archive.topics` is not set."""
        if config.topics is None:
            raise ValueError("archive.topics is not set")
        self._pattern = config.topics
        self._config = config
        self._cluster = cluster
        self._rsm = rsm
        self._rlmm = rlmm
        self._wall_clock_ms = wall_clock_ms
        self._rng = rng
        self._source = BrokerSource(cluster)
        self._copier = SegmentCopier(
            rsm,
            rlmm,
            copy_max_ms=config.copy_max_ms,
            wall_clock_ms=wall_clock_ms,
            uuid_factory=uuid_factory,
        )
        self._schedule = ProcessingSchedule(
            config.rlm_process_interval_ms, config.rlm_retry_interval_ms
        )
        self._partitions: dict[TopicIdPartition, _Partition] = {}
        self._refused: dict[str, str] = {}
        self._discovery_error: str | None = None
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Raises OSError where the spool folder cannot be made."""
        async with Spool(self._config.spool_dir) as spool, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._discover_forever(spool), name="archive discovery")
            for number in range(self._config.workers_max):
                tasks.create_task(self._work_forever(), name=f"archive worker {number}")

    def status(self) -> list[PartitionArchiveStatus]:
        """Every partition of this archiver, sorted. Never blocks."""
        return [self._status(tip) for tip in sorted(self._partitions)]

    @property
    def refused_topics(self) -> dict[str, str]:
        """Topic -> why it is not archived although `archive.topics` matches it."""
        return dict(self._refused)

    # --- discovery ---
    async def _discover_forever(self, spool: Spool) -> None:
        loop = asyncio.get_running_loop()
        interval_s = self._config.discovery_interval_ms / 1000
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
            await asyncio.sleep(interval_s * (1 + _DISCOVERY_JITTER * self._rng.random()))

    async def _abort_stale_uploads(self) -> None:
        oldest_ms = self._wall_clock_ms() - 2 * self._config.copy_max_ms
        try:
            async with asyncio.timeout(self._config.copy_max_ms / 1000):
                aborted = await self._rsm.abort_stale_uploads(oldest_ms)
        except (RemoteStorageError, TimeoutError) as error:
            log.warning("stale_uploads_kept", error=str(error) or type(error).__name__)
        else:
            if aborted:
                log.info("stale_uploads_aborted", count=aborted)

    async def _discover(self, spool: Spool) -> None:
        topics = await self._cluster.topics(self._config.discovery_interval_ms // 2)
        wanted: set[TopicIdPartition] = set()
        refused: dict[str, str] = {}
        for topic in matching_topics(self._pattern, topics):
            reason = await self._refusal(topic)
            if reason is None:
                wanted.update(partitions_of(topic))
            else:
                refused[topic.name] = reason
        self._publish_refused(refused)
        for tip in sorted(wanted):
            self._assign(tip, spool)
        for tip in [known for known in self._partitions if known not in wanted]:
            await self._unassign(tip)

    async def _refusal(self, topic: TopicInfo) -> str | None:
        try:
            return refusal(topic, await self._cluster.topic_config(topic.name))
        except ClusterError as error:
            if error.retriable or error.error_code in RETRIABLE:
                raise  # an outage, or a topic that is being deleted: look again later
            if any(tip in self._partitions for tip in partitions_of(topic)):
                return None  # it could be read before
            # Without the right to read the configuration nobody knows whether it is compacted.
            return f"its configuration cannot be read ({error})"

    def _publish_refused(self, refused: dict[str, str]) -> None:
        for name, reason in refused.items():
            if self._refused.get(name) != reason:
                log.error("topic_refused", topic=name, error=reason)
        self._refused = refused
        ARCHIVE_REFUSED_TOPICS.set(len(refused))

    def _assign(self, tip: TopicIdPartition, spool: Spool) -> None:
        if tip in self._partitions and tip in self._schedule:
            return
        if tip not in self._partitions:
            self._partitions[tip] = _Partition(
                PartitionArchiver(
                    tip,
                    self._config,
                    source=self._source,
                    rlmm=self._rlmm,
                    copier=self._copier,
                    spool=spool,
                    wall_clock_ms=self._wall_clock_ms,
                )
            )
            log.info("partition_assigned", topic=tip.topic, partition=tip.partition)
        if not self._partitions[tip].stopped:
            self._schedule.assign(tip)
            self._wake.set()

    async def _unassign(self, tip: TopicIdPartition) -> None:
        if self._schedule.unassign(tip) or self._partitions[tip].stopped:
            await self._drop(tip)

    async def _drop(self, tip: TopicIdPartition) -> None:
        partition = self._partitions.pop(tip)
        withdraw(tip)
        if partition.stopped:
            ARCHIVE_STOPPED_PARTITIONS.dec()
        log.info("partition_unassigned", topic=tip.topic, partition=tip.partition)
        await partition.archiver.release()

    # --- work ---
    async def _work_forever(self) -> None:
        while True:
            tip = await self._next_due()
            await self._process(tip, self._partitions[tip])
            self._wake.set()

    async def _next_due(self) -> TopicIdPartition:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            tip = self._schedule.take_due(loop.time())
            if tip is not None:
                return tip
            # Nothing is awaited between the look and the wait, so no wake-up is lost.
            due_at = self._schedule.next_due_at()
            try:
                async with asyncio.timeout_at(due_at):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _process(self, tip: TopicIdPartition, partition: _Partition) -> None:
        loop = asyncio.get_running_loop()
        try:
            more = await partition.archiver.process()
        except LogTruncated as error:
            await self._stop(tip, partition, error)
            self._schedule.unassign(tip)
            kept = self._schedule.failed(tip, loop.time())
        except (FetchProxyError, OSError) as error:
            self._note_failure(tip, partition, error)
            kept = self._schedule.failed(tip, loop.time())
        except Exception as error:
            # The top of a background loop: one partition's defect must not end the others' archive.
            log.exception("partition_process_crashed", topic=tip.topic, partition=tip.partition)
            partition.last_error = repr(error)
            kept = self._schedule.failed(tip, loop.time())
        else:
            self._note_success(tip, partition)
            done = self._schedule.more_waits if more else self._schedule.succeeded
            kept = done(tip, loop.time())
        publish(self._status(tip), partition.archiver.progress)
        if not kept and not partition.stopped:
            await self._drop(tip)

    async def _stop(
        self, tip: TopicIdPartition, partition: _Partition, error: LogTruncated
    ) -> None:
        """Nothing that was archived is overwritten: what is right only an operator can say."""
        await partition.archiver.release()
        partition.stopped = True  # from here on nothing is awaited until the turn is over
        partition.last_error = str(error)
        ARCHIVE_STOPPED_PARTITIONS.inc()
        log.error("partition_stopped", topic=tip.topic, partition=tip.partition, error=str(error))

    @staticmethod
    def _note_failure(tip: TopicIdPartition, partition: _Partition, error: Exception) -> None:
        message = str(error) or type(error).__name__
        if partition.last_error is None:  # once per outage
            log.warning(
                "partition_process_failed",
                topic=tip.topic,
                partition=tip.partition,
                error=message,
            )
        partition.last_error = message

    def _note_success(self, tip: TopicIdPartition, partition: _Partition) -> None:
        if partition.last_error is not None:
            log.info("partition_recovered", topic=tip.topic, partition=tip.partition)
        partition.last_error = None
        partition.last_success_ms = self._wall_clock_ms()

    def _status(self, tip: TopicIdPartition) -> PartitionArchiveStatus:
        partition = self._partitions[tip]
        progress = partition.archiver.progress
        return PartitionArchiveStatus(
            tip=tip,
            archive_start=progress.archive_start,
            archive_end=progress.archive_end,
            log_start_offset=progress.log_start_offset,
            last_stable_offset=progress.last_stable_offset,
            gathered_bytes=progress.gathered_bytes,
            last_error=partition.last_error,
            last_success_ms=partition.last_success_ms,
            stopped=partition.stopped,
        )
