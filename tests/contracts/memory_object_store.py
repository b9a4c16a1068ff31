"""Objects in a dict: for simulation on a virtual-time loop and for tests.

No threads and no clock. Like a real store, every call yields to the loop at least once before it
takes effect. So a caller that relies on not being interrupted fails here, too.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from fetchproxy.errors import ObjectNotFound, RangeNotSatisfiable, RemoteStorageError, too_large
from fetchproxy.model import ByteRange
from fetchproxy.segments.object_keys import check_folder_prefix, check_key, check_prefix
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, ObjectStore, StoredObject


class MemoryObjectStore(ObjectStore):
    """Passes the same contract as the persistent stores."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._writes = 0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def put(self, key: str, content: bytes) -> None:
        check_key(key)
        await self._turn()
        self._writes += 1
        self._objects[key] = (bytes(content), self._writes)

    async def put_new(self, key: str, content: bytes) -> bool:
        check_key(key)
        await self._turn()
        if key in self._objects:
            return False
        self._writes += 1
        self._objects[key] = (bytes(content), self._writes)
        return True

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        try:
            content = _read(path)
        except OSError as error:
            raise RemoteStorageError(f"cannot read {path} to store it: {error}") from error
        await self.put(key, content)

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        check_key(key)
        await self._turn()
        content = self._content(key)
        if len(content) > bytes_max:
            raise too_large(key, len(content), bytes_max)
        return content

    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        check_key(key)
        await self._turn()
        content = self._content(key)
        if byte_range.start >= len(content):
            raise RangeNotSatisfiable(
                f"{key}: range starts at {byte_range.start}, object has {len(content)} bytes"
            )
        return content[byte_range.start : byte_range.end]

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        check_prefix(prefix)
        await self._turn()
        keys = sorted(self._objects)
        for key in keys[bisect_right(keys, start_after) :]:
            # Looked up again: a real listing also shows changes made while it is read.
            if key.startswith(prefix) and (content_and_version := self._objects.get(key)):
                yield StoredObject(key, len(content_and_version[0]), str(content_and_version[1]))

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        check_folder_prefix(prefix)
        await self._turn()
        below = (key[len(prefix) :] for key in self._objects if key.startswith(prefix))
        folders = {rest[: rest.index("/") + 1] for rest in below if "/" in rest}
        for folder in sorted(folders):
            yield folder[:-1]

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._turn()
        self._objects.pop(key, None)

    async def close(self) -> None:
        self._closed = True

    def _content(self, key: str) -> bytes:
        try:
            return self._objects[key][0]
        except KeyError:
            raise ObjectNotFound(key) from None

    async def _turn(self) -> None:
        if self._closed:
            raise RemoteStorageError("the store is closed")
        await asyncio.sleep(0)


def _read(path: Path) -> bytes:
    return path.read_bytes()
