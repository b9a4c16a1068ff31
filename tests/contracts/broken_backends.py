"""Backends with one defect each, which the contract must find. Pytest does not collect this file.

`test_broken_backends` runs it and lists the tests that have to fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from memory_object_store import MemoryObjectStore

from fetchproxy.errors import ObjectNotFound
from fetchproxy.model import ByteRange
from fetchproxy.storage.contract import ObjectStoreContract
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, StoredObject


class Sound(MemoryObjectStore):
    """It has no defect."""


class PutInTwoSteps(MemoryObjectStore):
    async def put(self, key: str, content: bytes) -> None:
        await super().put(key, content[: len(content) // 2])
        await super().put(key, content)


class OnePage(MemoryObjectStore):
    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        number = 0
        async for stored_object in super().list(prefix, start_after):
            yield stored_object
            number += 1
            if number == 1000:
                return


class RangeOneTooLong(MemoryObjectStore):
    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        return await super().get_range(key, ByteRange(byte_range.start, byte_range.end + 1))


class EmptyBehindTheEnd(MemoryObjectStore):
    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        return (await self.get(key))[byte_range.start : byte_range.end]


class DeleteOfMissingRaises(MemoryObjectStore):
    async def delete(self, key: str) -> None:
        await self.get(key)
        await super().delete(key)


class ForeignErrors(MemoryObjectStore):
    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        try:
            return await super().get(key, bytes_max)
        except ObjectNotFound as error:
            raise KeyError(key) from error


class PutNewReplaces(MemoryObjectStore):
    async def put_new(self, key: str, content: bytes) -> bool:
        is_new = key not in self._objects
        await self.put(key, content)
        return is_new


class LooksBeforeItPuts(MemoryObjectStore):
    async def put_new(self, key: str, content: bytes) -> bool:
        if key in self._objects:
            return False
        await asyncio.sleep(0)
        await self.put(key, content)
        return True


class ListsUnsorted(MemoryObjectStore):
    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        for stored_object in reversed([one async for one in super().list(prefix, start_after)]):
            yield stored_object


class StartsAtTheKey(MemoryObjectStore):
    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        async for stored_object in super().list(prefix):
            if stored_object.key >= start_after:
                yield stored_object


class FoldersSortedByName(MemoryObjectStore):
    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        for name in sorted([one async for one in super().list_folders(prefix)]):
            yield name


class OneVersion(MemoryObjectStore):
    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        async for stored_object in super().list(prefix, start_after):
            yield StoredObject(stored_object.key, stored_object.size_bytes, "1")


class ReadsHoweverLarge(MemoryObjectStore):
    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        return await super().get(key)


class TakesAnyKey(MemoryObjectStore):
    async def put(self, key: str, content: bytes) -> None:
        await self._turn()
        self._writes += 1
        self._objects[key] = (content, self._writes)


class FileOfTheCaller(MemoryObjectStore):
    """Keeps a file's name instead of its content."""

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, Path] = {}

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        await super().put_file(key, path, settled=settled)
        self._files[key] = path

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        content = await super().get(key, bytes_max)
        return self._files[key].read_bytes() if key in self._files else content


class GoesOnWhenClosed(MemoryObjectStore):
    async def close(self) -> None:
        """Does not close."""


BACKENDS = [one for one in list(globals().values()) if isinstance(one, type)]
BACKENDS = [one for one in BACKENDS if one.__module__ == __name__]


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
def store(request: pytest.FixtureRequest) -> MemoryObjectStore:
    made: MemoryObjectStore = request.param()
    return made


class TestBackend(ObjectStoreContract):
    pass
