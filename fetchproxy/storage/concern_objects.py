"""The objects in which archivers say what they want seen to; bytes, no meaning.

They lie in a folder of their own: one listing tells of the whole archive, and mostly it is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.errors import ObjectNotFound
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.api import ObjectStore
from fetchproxy.storage.layout import (
    concern_key,
    concerns_folder,
    parse_concern_key,
    partition_folder,
)
from fetchproxy.storage.measured import measured
from fetchproxy.storage.object_sizes import SMALL_OBJECT_BYTES_MAX


@dataclass(frozen=True, slots=True)
class ConcernObject:
    """`tip` None: it is of the archive as a whole. `name`: one of `concerns.Concern`, or newer."""

    tip: TopicIdPartition | None
    name: str
    key: str
    version: str  # changes with the content


class ConcernObjects:
    """`prefix` is one of `layout.normal_prefix`. Raises RemoteStorageError and subclasses."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    @measured
    async def put_concern(self, tip: TopicIdPartition | None, name: str, content: bytes) -> None:
        """Create or replace, atomically."""
        await self._store.put(concern_key(self._prefix, tip, name), content)

    @measured
    async def get_concern(self, found: ConcernObject) -> bytes | None:
        """None: it was deleted since it was listed."""
        try:
            return await self._store.get(found.key, SMALL_OBJECT_BYTES_MAX)
        except ObjectNotFound:
            return None

    @measured
    async def delete_concern(self, tip: TopicIdPartition | None, name: str) -> None:
        """Absent is no error."""
        await self._store.delete(concern_key(self._prefix, tip, name))

    @measured
    async def list_concerns(self) -> list[ConcernObject]:
        """Of the whole archive."""
        return await self._listed(concerns_folder(self._prefix))

    @measured
    async def forget_concerns(self, tip: TopicIdPartition) -> None:
        """All of a partition; may be repeated after a failure."""
        for found in await self._listed(partition_folder(concerns_folder(self._prefix), tip)):
            await self._store.delete(found.key)

    async def _listed(self, folder: str) -> list[ConcernObject]:
        return [
            ConcernObject(*parsed, stored.key, stored.version)
            async for stored in self._store.list(folder)
            if (parsed := parse_concern_key(self._prefix, stored.key)) is not None
        ]
