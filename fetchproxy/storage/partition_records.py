"""The objects in which archivers say what a partition's archive has to hold. Decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from fetchproxy.errors import ObjectNotFound
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.api import ObjectStore
from fetchproxy.storage.layout import (
    archive_gap_key,
    finished_offsets_key,
    parse_archive_gap_key,
    partition_folder,
)
from fetchproxy.storage.measured import measured
from fetchproxy.storage.object_sizes import SMALL_OBJECT_BYTES_MAX


@dataclass(frozen=True, slots=True, order=True)
class GapObject:
    """Offsets that were lost before they could be copied, both inclusive."""

    first_offset: int
    last_offset: int
    key: str


class PartitionRecords:
    """`prefix` is one of `layout.normal_prefix`. Raises RemoteStorageError and subclasses."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def folder(self, tip: TopicIdPartition) -> str:
        """Of all objects of the partition."""
        return partition_folder(self._prefix, tip)

    def finished_offsets_key(self, tip: TopicIdPartition) -> str:
        return finished_offsets_key(self._prefix, tip)

    @measured
    async def put_archive_gap(
        self, tip: TopicIdPartition, first: int, last: int, content: bytes
    ) -> None:
        """`content` is for people: the key alone counts. May be repeated."""
        await self._store.put(archive_gap_key(self._prefix, tip, first, last), content)

    async def list_archive_gaps(self, tip: TopicIdPartition) -> AsyncIterator[GapObject]:
        """By first offset."""
        async for found in self._store.list(partition_folder(self._prefix, tip)):
            gap = parse_archive_gap_key(self._prefix, found.key)
            if gap is not None:
                yield GapObject(*gap, found.key)

    @measured
    async def put_finished_offsets(self, tip: TopicIdPartition, content: bytes) -> None:
        """Create or replace, atomically."""
        await self._store.put(finished_offsets_key(self._prefix, tip), content)

    @measured
    async def get_finished_offsets(self, tip: TopicIdPartition) -> bytes | None:
        """None: nobody has stated any."""
        try:
            key = finished_offsets_key(self._prefix, tip)
            return await self._store.get(key, SMALL_OBJECT_BYTES_MAX)
        except ObjectNotFound:
            return None

    @measured
    async def forget_records(self, tip: TopicIdPartition) -> None:
        """Of a partition without segments; may be repeated after a failure."""
        gaps = [gap async for gap in self.list_archive_gaps(tip)]
        for gap in gaps:
            await self._store.delete(gap.key)
        await self._store.delete(finished_offsets_key(self._prefix, tip))
