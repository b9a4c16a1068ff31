"""One pass of the archiver, for cron and tests: all that is there now, then the end.

The same PartitionArchiver does the work, so a pass resumes where any archiver stopped. An error of
store or brokers ends the pass; the next one goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

import structlog

from fetchproxy.cluster.client import Cluster
from fetchproxy.cluster.leader_log import ClusterLeaderLog
from fetchproxy.config.sections import ArchiveConfig
from fetchproxy.errors import LogTruncated
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.remote_log.archive_records import ArchiveRecords
from fetchproxy.remote_log.concerns import ArchiverConcerns, Concern
from fetchproxy.remote_log.copier import SegmentCopier
from fetchproxy.remote_log.discovery import TopicDiscovery
from fetchproxy.remote_log.log_truncation import LogTruncation
from fetchproxy.remote_log.partition_archiver import PartitionArchiver
from fetchproxy.remote_log.published_positions import PublishedPositions
from fetchproxy.remote_log.retention.expirer import Expirer
from fetchproxy.remote_log.retention.local_retention import LocalRetention
from fetchproxy.remote_log.sources.open_source import open_source
from fetchproxy.remote_log.sources.spool import Spool
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OncePass:
    """`refused`: topic -> why it was not archived although the pattern matches it."""

    archived: tuple[TopicIdPartition, ...]
    refused: dict[str, str]


async def archive_once(
    config: ArchiveConfig,
    cluster: Cluster,
    rsm: RemoteStorageManager,
    rlmm: RemoteLogMetadataManager,
    *,
    wall_clock_ms: Callable[[], int],
    uuid_factory: Callable[[], UUID],
) -> OncePass:
    """Copy up to the last stable offset of this moment, ending with a segment however short.

    Raises ClusterError, RemoteStorageError, LogTruncated, CompactedLog, CorruptSegment, OSError (in
    a group).
    """
    if config.topics is None:
        raise ValueError("archive.topics is not set")
    discovery = TopicDiscovery(cluster, config.topics, config.discovery_interval_ms)
    tips = (await discovery.look()).partitions()
    await archive_partitions(
        config,
        cluster,
        rsm,
        rlmm,
        tips,
        topic_config=discovery.topic_config,
        wall_clock_ms=wall_clock_ms,
        uuid_factory=uuid_factory,
    )
    return OncePass(tuple(tips), discovery.refused)


async def archive_partitions(
    config: ArchiveConfig,
    cluster: Cluster,
    rsm: RemoteStorageManager,
    rlmm: RemoteLogMetadataManager,
    tips: Iterable[TopicIdPartition],
    *,
    topic_config: Callable[[UUID], Mapping[str, str] | None],
    wall_clock_ms: Callable[[], int],
    uuid_factory: Callable[[], UUID],
) -> None:
    """As `archive_once`, of these partitions; `topic_config`: a topic's settings, None: not known.

    Another archiver may be at work on them: nothing is copied twice to a reader's eye. A partition
    whose log was cut or begins again (LogTruncated) is raised when all others are archived.
    """
    source = open_source(config, cluster)
    copier = SegmentCopier(
        rsm,
        rlmm,
        copy_max_ms=config.copy_max_ms,
        wall_clock_ms=wall_clock_ms,
        uuid_factory=uuid_factory,
    )
    truncation = LogTruncation(ClusterLeaderLog(cluster), rsm, rlmm, wall_clock_ms=wall_clock_ms)
    concerns = ArchiverConcerns(rsm.concerns)
    retention = _retention(config, cluster, rsm, rlmm, topic_config, wall_clock_ms, concerns)
    places = asyncio.Semaphore(config.workers_max)
    at_work: dict[TopicIdPartition, PartitionArchiver] = {}
    stopped: list[LogTruncated] = []

    def gathered_from(tip: TopicIdPartition) -> int | None:
        archiver = at_work.get(tip)
        return None if archiver is None else archiver.position

    told = PublishedPositions(rsm, uuid_factory(), lambda: at_work, gathered_from)
    async with Spool(config.spool_dir) as spool, asyncio.TaskGroup() as workers:
        telling = workers.create_task(told.run(), name="archive positions")
        passes = []
        for tip in tips:
            archiver = PartitionArchiver(
                tip,
                source=source,
                rlmm=rlmm,
                copier=copier,
                truncation=truncation,
                records=ArchiveRecords(rsm, tip),
                spool=spool,
            )
            work = _archive(archiver, at_work, cluster, places, retention)
            passes.append(
                workers.create_task(_or_stop(tip, work, stopped, concerns), name=f"archive {tip}")
            )
        if passes:
            await asyncio.wait(passes)
        telling.cancel()
        await concerns.publish()
    if stopped:
        raise ExceptionGroup("partitions were stopped", stopped)


def _retention(
    config: ArchiveConfig,
    cluster: Cluster,
    rsm: RemoteStorageManager,
    rlmm: RemoteLogMetadataManager,
    topic_config: Callable[[UUID], Mapping[str, str] | None],
    wall_clock_ms: Callable[[], int],
    concerns: ArchiverConcerns,
) -> tuple[Expirer, LocalRetention]:
    """Of both tiers. A pass is too short to watch the clock."""
    expirer = Expirer(
        config,
        rsm,
        rlmm,
        topic_config=topic_config,
        wall_clock_ms=wall_clock_ms,
        concerns=concerns,
        clock_settle_ms=0,
    )
    local_retention = LocalRetention(
        config,
        cluster,
        rsm,
        rlmm,
        topic_config=topic_config,
        wall_clock_ms=wall_clock_ms,
        concerns=concerns,
        clock_settle_ms=0,
    )
    return expirer, local_retention


async def _or_stop(
    tip: TopicIdPartition,
    work: Awaitable[None],
    stopped: list[LogTruncated],
    concerns: ArchiverConcerns,
) -> None:
    """One partition that waits for a person holds up no other."""
    try:
        await work
    except LogTruncated as error:
        concerns.hold(Concern.PARTITION_STOPPED, tip, str(error))
        stopped.append(error)
    else:
        concerns.release(Concern.PARTITION_STOPPED, tip)


async def _archive(
    archiver: PartitionArchiver,
    at_work: dict[TopicIdPartition, PartitionArchiver],
    cluster: Cluster,
    places: asyncio.Semaphore,
    retention: tuple[Expirer, LocalRetention],
) -> None:
    """Until the archive ends where the stable log ended at the beginning, or nothing more is.

    Then what retention has passed goes; what it hides now loses its objects in a later pass.
    """
    async with places:
        at_work[archiver.tip] = archiver
        edges = await cluster.log_edges(archiver.tip, max_age_ms=0)
        end: int | None = None
        try:
            while await archiver.process(close_short=True):
                end = archiver.progress.archive_end
                if end is not None and end >= edges.last_stable_offset:
                    break
            end = archiver.progress.archive_end
        finally:
            del at_work[archiver.tip]
            await archiver.release()
        expirer, local_retention = retention
        while await expirer.expire(archiver.tip):
            continue
        await local_retention.trim(archiver.tip)
    log.info(
        "partition_archived",
        topic=archiver.tip.topic,
        partition=archiver.tip.partition,
        archive_end=end,
        last_stable_offset=edges.last_stable_offset,
    )
