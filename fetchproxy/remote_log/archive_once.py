"""One pass of the archiver, for cron and tests: all that is there now, then the end.

The same PartitionArchiver does the work, so a pass resumes where any archiver stopped. An error of
store or brokers ends the pass; the next one goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import structlog

from fetchproxy.cluster.client import Cluster
from fetchproxy.config.sections import ArchiveConfig
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.remote_log.broker_source import BrokerSource
from fetchproxy.remote_log.copier import SegmentCopier
from fetchproxy.remote_log.partition_archiver import PartitionArchiver
from fetchproxy.remote_log.spool import Spool
from fetchproxy.remote_log.topic_selection import matching_topics, partitions_of, refusal
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

    Raises ClusterError, RemoteStorageError, LogTruncated, CorruptSegment, OSError (in a group).
    """
    if config.topics is None:
        raise ValueError("archive.topics is not set")
    refused: dict[str, str] = {}
    tips: list[TopicIdPartition] = []
    for topic in matching_topics(config.topics, await cluster.topics()):
        reason = refusal(topic, await cluster.topic_config(topic.name))
        if reason is None:
            tips += partitions_of(topic)
        else:
            refused[topic.name] = reason
            log.error("topic_refused", topic=topic.name, error=reason)
    source = BrokerSource(cluster)
    copier = SegmentCopier(
        rsm,
        rlmm,
        copy_max_ms=config.copy_max_ms,
        wall_clock_ms=wall_clock_ms,
        uuid_factory=uuid_factory,
    )
    places = asyncio.Semaphore(config.workers_max)
    async with Spool(config.spool_dir) as spool, asyncio.TaskGroup() as workers:
        for tip in tips:
            archiver = PartitionArchiver(
                tip,
                config,
                source=source,
                rlmm=rlmm,
                copier=copier,
                spool=spool,
                wall_clock_ms=wall_clock_ms,
            )
            workers.create_task(_archive(archiver, cluster, places), name=f"archive {tip}")
    return OncePass(tuple(tips), refused)


async def _archive(
    archiver: PartitionArchiver, cluster: Cluster, places: asyncio.Semaphore
) -> None:
    """Until the archive ends where the stable log ended at the beginning, or nothing more is."""
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
    log.info(
        "partition_archived",
        topic=archiver.tip.topic,
        partition=archiver.tip.partition,
        archive_end=end,
        last_stable_offset=edges.last_stable_offset,
    )
