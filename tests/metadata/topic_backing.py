"""The metadata of topic-based managers in tests: a log and a store, each with a door."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from memory_metadata_log import MemoryMetadataLog
from metadata_contract import Backing, MetadataContract
from scripted_metadata_log import Script, ScriptedMetadataLog
from scripted_store import ScriptedStore

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.metadata.remote_log_metadata_manager import READ_MAX_MS
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicBasedRemoteLogMetadataManager, metadata_partition
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.segments.records import MetadataEvent, encode_message
from fetchproxy.storage.remote_storage import RemoteStorage

PARTITIONS = 3
Manager = TopicBasedRemoteLogMetadataManager


class TopicBacking(Backing):
    """Backed by a log in memory."""

    def __init__(self, store: ScriptedStore) -> None:
        self.log = MemoryMetadataLog(PARTITIONS)
        self.script = Script()
        self.store = store
        self.storage = RemoteStorage(store, "archive")

    def manager(
        self,
        config: MetadataConfig | None = None,
        storage: RemoteStorage | None = None,
        read_max_ms: int = READ_MAX_MS,
    ) -> AbstractAsyncContextManager[Manager]:
        return Manager(
            ScriptedMetadataLog(self.log, self.script),
            storage or self.storage,
            config or MetadataConfig(),
            wall_clock_ms=lambda: 17,
            read_max_ms=read_max_ms,
        )

    def cached(self, cache_dir: Path) -> AbstractAsyncContextManager[Manager]:
        return self.manager(MetadataConfig(cache_dir=cache_dir))

    def in_store(self) -> AbstractAsyncContextManager[StoreBackedRemoteLogMetadataManager]:
        return StoreBackedRemoteLogMetadataManager(self.storage, MetadataConfig())

    def reads(self, tp: TopicIdPartition) -> int:
        return self.script.bounds_asked.count(self.number(tp))

    @staticmethod
    def number(tp: TopicIdPartition) -> int:
        return metadata_partition(tp, PARTITIONS)

    def hold(self) -> None:
        self.script.door.clear()

    def release(self) -> None:
        self.script.door.set()

    def fail(self) -> None:
        self.store.error = self.script.error = StorageUnavailable("all is away")

    def heal(self) -> None:
        self.store.error = self.script.error = None

    async def events(self, *events: MetadataEvent) -> None:
        """Append events as another instance would, without a check."""
        for event in events:
            await self.log.append(self.number(event.topic_id_partition), encode_message(event))


class TopicContract(MetadataContract):
    async def delete_data(self, backing: Backing, metadata: RemoteLogSegmentMetadata) -> None:
        assert isinstance(backing, TopicBacking)
        await backing.storage.rsm.delete_log_segment_data(metadata)
