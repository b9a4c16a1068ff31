"""An ObjectStore that notes how another one answers (`store_health`); changes nothing about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from fetchproxy.model import ByteRange
from fetchproxy.storage.api import Content, ObjectStore, StoredObject
from fetchproxy.storage.object_sizes import OBJECT_BYTES_MAX
from fetchproxy.storage.store_health import StoreHealth, StoreOperation


class WatchedObjectStore(ObjectStore):
    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.health = StoreHealth()
        self._lists = self.health[StoreOperation.LIST]
        self._reads = self.health[StoreOperation.READ]
        self._writes = self.health[StoreOperation.WRITE]
        self._deletions = self.health[StoreOperation.DELETE]

    async def put(self, key: str, content: bytes) -> None:
        with self._writes.asked() as request:
            await self.inner.put(key, content)
            request.answered()

    async def put_new(self, key: str, content: bytes) -> bool:
        with self._writes.asked() as request:
            made = await self.inner.put_new(key, content)
            request.answered()
        return made

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        with self._writes.asked(may_take_long=True) as request:
            await self.inner.put_file(key, path, settled=settled)
            request.answered()

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        with self._reads.asked() as request:
            content = await self.inner.get(key, bytes_max)
            request.answered()
        return content

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        with self._reads.asked() as request:
            content = await self.inner.get_range(key, byte_range)
            request.answered()
        return content

    @property
    def page_objects(self) -> int | None:
        return self.inner.page_objects

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        with self._lists.asked() as request:
            first = True
            async for found in self.inner.list(prefix, start_after):
                if first:
                    request.answered()
                first = False
                yield found
            request.answered()

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        with self._lists.asked() as request:
            first = True
            async for name in self.inner.list_folders(prefix):
                if first:
                    request.answered()
                first = False
                yield name
            request.answered()

    async def delete(self, key: str) -> None:
        with self._deletions.asked() as request:
            await self.inner.delete(key)
            request.answered()

    async def close(self) -> None:
        await self.inner.close()
