"""What a store must do. Two interfaces, as bytes and segments are two concerns.

`ObjectStore` moves bytes under keys; each backend is one. `RemoteStorageManager` (the KIP's name
and verbs) moves segments; it is one class over any `ObjectStore`, so every backend lays out the
same objects. `tests/contracts/` holds the suite that every backend passes.

All methods raise `fetchproxy.errors.RemoteStorageError` and its subclasses only (an illegal key is
a ValueError: a bug of the caller), may be cancelled at any await without leaving a readable
half-object, and take no time-out: callers use `asyncio.timeout`. A store that is away (bucket or
folder missing, nobody there) raises StorageUnavailable everywhere: it never looks like an empty
one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from fetchproxy.model import ByteRange
from fetchproxy.storage.object_sizes import OBJECT_BYTES_MAX

Content = bytes | bytearray  # of an object, as it was received; nobody changes it


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size_bytes: int
    version: str  # changes whenever the content does (ETag; mtime and inode for files)


class ObjectStore(ABC):
    """Keys are relative, `/`-separated, without `.`/`..` parts (alphabet: `storage.keys`).

    Sorted means by the bytes of the key. A key that is also a folder of other keys is legal for
    some backends only: do not use one.
    """

    @abstractmethod
    async def put(self, key: str, content: bytes) -> None:
        """Create or replace atomically: a reader sees the old or the new content, whole."""

    @abstractmethod
    async def put_new(self, key: str, content: bytes) -> bool:
        """As `put`, where there is no such object yet; False: there is one, and it is as it was.

        Of several at once one makes it. An S3 server that does not know conditions may let the
        last one win: look again.
        """

    @abstractmethod
    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        """As `put`, from a local file, in memory bounded by the backend's part size.

        `settled`: nobody will ever write to that file again, so a store on the same file system
        may take it itself (a hard link); the caller may remove its name as soon as it likes.
        """

    @abstractmethod
    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """Whole. Raises ObjectNotFound; DamagedObject above `bytes_max`, before it is read."""

    @abstractmethod
    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        """The bytes of the range, fewer where the object ends inside it.

        Raises ObjectNotFound; RangeNotSatisfiable where the range starts at or past the end.
        """

    @property
    def page_objects(self) -> int | None:
        """A listing comes in pages of so many objects, each one a request; None: it does not."""
        return None

    @abstractmethod
    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        """Objects whose key starts with `prefix` and sorts after `start_after`, sorted by key."""

    @abstractmethod
    def list_folders(self, prefix: str) -> AsyncIterator[str]:
        """The distinct next path parts below `prefix` (which ends in `/` or is empty).

        Only those with objects below; sorted as their keys are, that is with a `/` at the end.
        """

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Absent keys are no error."""

    @abstractmethod
    async def close(self) -> None:
        """Idempotent."""
