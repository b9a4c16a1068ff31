"""Which RemoteLogMetadataManager a process has, by its configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fetchproxy.cluster.client import Cluster
from fetchproxy.cluster.metadata_log import KafkaMetadataLog
from fetchproxy.cluster.topic_writers import MetadataTopicWriters
from fetchproxy.config.sections import Config
from fetchproxy.errors import RemoteStorageError
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.tls.reloading import upstream_context


def metadata_manager(
    config: Config,
    rsm: RemoteStorageManager,
    cluster: Cluster,
    wall_clock_ms: Callable[[], int],
) -> StoreBackedRemoteLogMetadataManager | TopicBasedRemoteLogMetadataManager:
    """To be entered while `rsm` and `cluster` are open. Without a cluster it is the store."""
    if config.metadata.manager == "store" or config.archive_only.enabled:
        collects = not config.archive_only.enabled
        return StoreBackedRemoteLogMetadataManager(rsm, config.metadata, collects=collects)
    writers = MetadataTopicWriters(cluster, config)
    metadata_log = KafkaMetadataLog(
        cluster, config.cluster, config.metadata, wall_clock_ms, writers
    )
    return TopicBasedRemoteLogMetadataManager(metadata_log, rsm, config.metadata, wall_clock_ms)


@asynccontextmanager
async def metadata_topic_to_verify(
    config: Config, rsm: RemoteStorageManager, wall_clock_ms: Callable[[], int]
) -> AsyncIterator[TopicBasedRemoteLogMetadataManager | None]:
    """None where the store is the metadata manager. Creates no topic: here is only read.

    Raises RemoteStorageError where there is no such topic, ClusterError.
    """
    if config.metadata.manager == "store":
        yield None
        return
    async with Cluster(config.cluster, tls=upstream_context(config.cluster, config.tls)) as cluster:
        metadata_log = KafkaMetadataLog(cluster, config.cluster, config.metadata, wall_clock_ms)
        if not await metadata_log.exists():
            raise RemoteStorageError(
                f"there is no metadata topic {config.metadata.topic_name}: rebuild it with "
                "`fetchproxy restore`, or verify with metadata.manager=store"
            )
        # The cache is locked by the process that serves from it.
        metadata = config.metadata.model_copy(update={"cache_dir": None})
        async with TopicBasedRemoteLogMetadataManager(
            metadata_log, rsm, metadata, wall_clock_ms
        ) as manager:
            yield manager
