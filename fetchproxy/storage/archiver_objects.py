"""The objects in which running archivers say what they are gathering. Knows nothing of segments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from fetchproxy.storage.api import ObjectStore, StoredObject
from fetchproxy.storage.layout import (
    archiver_positions_key,
    archivers_folder,
    is_archiver_positions_key,
)
from fetchproxy.storage.measured import measured


class ArchiverObjects:
    """`prefix` is one of `layout.normal_prefix`. Raises RemoteStorageError and subclasses."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def key(self, archiver: UUID) -> str:
        return archiver_positions_key(self._prefix, archiver)

    @measured
    async def put_archiver_positions(self, archiver: UUID, content: bytes) -> None:
        """Create or replace, atomically."""
        await self._store.put(self.key(archiver), content)

    async def list(self) -> AsyncIterator[StoredObject]:
        """Of every archiver that has not taken back what it said."""
        async for found in self._store.list(archivers_folder(self._prefix)):
            if is_archiver_positions_key(self._prefix, found.key):
                yield found

    @measured
    async def get_archiver_positions(self, key: str) -> bytes:
        """`key` is one of `list`. ObjectNotFound: deleted since."""
        return await self._store.get(key)

    @measured
    async def delete_archiver_positions(self, key: str) -> None:
        """Absent is no error."""
        await self._store.delete(key)
