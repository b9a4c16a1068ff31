"""Which manager the configuration means."""

from __future__ import annotations

import pytest
from memory_object_store import MemoryObjectStore

from fetchproxy.archive import metadata_manager
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.load import load_config
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from fetchproxy.storage.remote_storage import RemoteStorage


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, StoreBackedRemoteLogMetadataManager),
        ({"FETCHPROXY_METADATA_MANAGER": "store"}, StoreBackedRemoteLogMetadataManager),
        ({"FETCHPROXY_METADATA_MANAGER": "topic"}, TopicBasedRemoteLogMetadataManager),
        (
            {
                "FETCHPROXY_METADATA_MANAGER": "topic",
                "FETCHPROXY_ARCHIVE_ONLY_ENABLED": "true",
                "FETCHPROXY_STORE_URL": "file:///archive",
            },
            StoreBackedRemoteLogMetadataManager,
        ),
    ],
)
async def test_by_configuration(variables: dict[str, str], expected: type) -> None:
    config = load_config(None, variables)
    async with MemoryObjectStore() as store, Cluster(config.cluster) as cluster:
        manager = metadata_manager(config, RemoteStorage(store), cluster, lambda: 0)
        assert type(manager) is expected
