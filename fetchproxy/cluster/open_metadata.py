"""Which RemoteLogMetadataManager a process has, by its configuration."""

from __future__ import annotations

from collections.abc import Callable

from fetchproxy.cluster.client import Cluster
from fetchproxy.cluster.metadata_log import KafkaMetadataLog
from fetchproxy.cluster.topic_writers import MetadataTopicWriters
from fetchproxy.config.sections import Config
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager


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
