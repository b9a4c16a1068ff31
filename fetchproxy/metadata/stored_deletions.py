"""How far the deletions of partitions are, from the objects that say it in the store."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from fetchproxy.errors import CorruptSegment, RemoteStorageError, StorageUnavailable
from fetchproxy.metadata.fresh_reads import FreshReads
from fetchproxy.metadata.partition_deletion_json import (
    decode_partition_deletion,
    encode_partition_deletion,
)
from fetchproxy.metadata.states import check_deletion
from fetchproxy.model import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager


class StoredPartitionDeletions:
    """`async with` owns the reads; callers at the same time share one."""

    def __init__(self, rsm: RemoteStorageManager, read_max_ms: int) -> None:
        self._rsm = rsm
        self._read_max_ms = read_max_ms
        self._reads = FreshReads(self._read)

    async def __aenter__(self) -> Self:
        await self._reads.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._reads.__aexit__(kind, error, traceback)

    async def get(
        self, tip: TopicIdPartition, not_older_than: float
    ) -> RemotePartitionDeleteMetadata | None:
        """As RemoteLogMetadataManager.partition_deletion."""
        return await self._reads.get(tip, not_older_than)

    async def put(self, deletion: RemotePartitionDeleteMetadata) -> None:
        """As RemoteLogMetadataManager.put_partition_deletion; looks first how far it is."""
        tip = deletion.topic_id_partition
        known = await self.get(tip, asyncio.get_running_loop().time())
        check_deletion(None if known is None else known.state, deletion.state)
        if deletion.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            await self._rsm.forget_partition(tip)
        else:
            await self._rsm.put_partition_deletion(tip, encode_partition_deletion(deletion))

    async def _read(self, tip: TopicIdPartition, _: float) -> RemotePartitionDeleteMetadata | None:
        try:
            async with asyncio.timeout(self._read_max_ms / 1000):
                raw = await self._rsm.get_partition_deletion(tip)
        except TimeoutError:
            raise StorageUnavailable(
                f"deletion of {tip}: not read within {self._read_max_ms} ms"
            ) from None
        if raw is None:
            return None
        try:
            return decode_partition_deletion(raw, f"delete-partition-state of {tip}")
        except CorruptSegment as error:
            # Neither "nobody deletes it" nor a state to go on from: somebody has to look.
            raise RemoteStorageError(str(error)) from error
