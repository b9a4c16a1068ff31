"""One pass of the archiver, for cron and tests: all that is there now, then the end.

The same PartitionArchiver does the work, so a pass resumes where any archiver stopped. An error of
store or brokers ends the pass; the next one goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

import structlog

from fetchproxy.cluster.client import Cluster
from fetchproxy.cluster.leader_log import ClusterLeaderLog
from fetchproxy.config.sections import ArchiveConfig
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.remote_log.copier import SegmentCopier
from fetchproxy.remote_log.discovery import TopicDiscovery
from fetchproxy.remote_log.log_truncation import LogTruncation
from fetchproxy.remote_log.partition_archiver import PartitionArchiver
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

    Another archiver may be at work on them: nothing is copied twice to a reader's eye.
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
    # A pass is too short to watch the clock.
    expirer = Expirer(
        config,
        rsm,
        rlmm,
        topic_config=topic_config,
        wall_clock_ms=wall_clock_ms,
        clock_settle_ms=0,
    )
    local_retention = LocalRetention(
        config,
        cluster,
        rlmm,
        topic_config=topic_config,
        wall_clock_ms=wall_clock_ms,
        clock_settle_ms=0,
    )
    places = asyncio.Semaphore(config.workers_max)
    async with Spool(config.spool_dir) as spool, asyncio.TaskGroup() as workers:
        for tip in tips:
            archiver = PartitionArchiver(
                tip,
                source=source,
                rlmm=rlmm,
                copier=copier,
                truncation=truncation,
                spool=spool,
            )
            work = _archive(archiver, cluster, places, expirer, local_retention)
            workers.create_task(work, name=f"archive {tip}")


async def _archive(
    archiver: PartitionArchiver,
    cluster: Cluster,
    places: asyncio.Semaphore,
    expirer: Expirer,
    local_retention: LocalRetention,
) -> None:
    """Until the archive ends where the stable log ended at the beginning, or nothing more is.

    Then what retention has passed goes; what it hides now loses its objects in a later pass.
    """
    async with places:
        edges = await cluster.log_edges(archiver.tip, max_age_ms=0)
        end: int | None = None
        try:
            while await archiver.process(close_short=True):
                end = archiver.progress.archive_end
                if end is not None and end >= edges.last_stable_offset:
                    break
            end = archiver.progress.archive_end
        finally:
            await archiver.release()
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
