"""A real store behind a door: it counts calls, and a test can hold it or make it fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from fetchproxy.errors import RemoteStorageError, StorageUnavailable
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, ObjectStore, StoredObject


class ScriptedStore(ObjectStore):
    """`calls` has (verb, key or prefix). Every read is counted and then waits at `door`."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.calls: list[tuple[str, str]] = []
        self.error: RemoteStorageError | None = None
        self.door = asyncio.Event()
        self.door.set()
        self.gets_let_through: int | None = None  # after this many the door shuts
        self.unlisted = ""  # a folder on a disk that does not give it out

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def count(self, verb: str, part: str = "") -> int:
        return sum(1 for called, what in self.calls if called == verb and part in what)

    async def _pass(self, verb: str, what: str) -> None:
        self.calls.append((verb, what))
        if verb == "get" and what.endswith(".metadata") and self.gets_let_through is not None:
            if self.gets_let_through == 0:
                self.door.clear()
            self.gets_let_through -= 1
        if verb not in ("put", "put_file", "delete"):
            await self.door.wait()
        if self.error is not None:
            raise self.error

    async def put(self, key: str, content: bytes) -> None:
        await self._pass("put", key)
        await self.inner.put(key, content)

    async def put_new(self, key: str, content: bytes) -> bool:
        await self._pass("put", key)
        return await self.inner.put_new(key, content)

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        await self._pass("put_file", key)
        await self.inner.put_file(key, path, settled=settled)

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        await self._pass("get", key)
        return await self.inner.get(key, bytes_max)

    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        await self._pass("get_range", key)
        return await self.inner.get_range(key, byte_range)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        # The listing is as of its beginning, however late it arrives.
        objects = [stored_object async for stored_object in self.inner.list(prefix, start_after)]
        await self._pass("list", prefix)
        if self.unlisted and (prefix.startswith(self.unlisted) or self.unlisted.startswith(prefix)):
            error = StorageUnavailable(f"the folder {self.unlisted}: Input/output error")
            error.may_be_of_object = True
            raise error
        for stored_object in objects:
            yield stored_object

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        await self._pass("list_folders", prefix)
        async for folder in self.inner.list_folders(prefix):
            yield folder

    async def delete(self, key: str) -> None:
        await self._pass("delete", key)
        await self.inner.delete(key)

    async def close(self) -> None:
        await self.inner.close()
