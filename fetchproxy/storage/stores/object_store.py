"""What a store must do, and what some stores can do besides; no store."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Self

from fetchproxy.errors import (
    ObjectNotFound,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
)
from fetchproxy.model import SEGMENT_BYTES_MAX, ByteRange, TopicIdPartition
from fetchproxy.segments.object_keys import SegmentFile


def http_date_ms(date: str | None) -> int | None:
    """Of an answer's header; None: it has none that can be read."""
    try:
        return None if date is None else round(parsedate_to_datetime(date).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return None


def whole(content: bytes, length: int, what: str) -> bytes:
    """`content`. Raises StorageUnavailable if it is not `length` bytes."""
    if len(content) != length:
        raise StorageUnavailable(f"{what}: {len(content)} of {length} bytes came")
    return content


def file_bytes(path: Path) -> int:
    """Of a local file. Raises RemoteStorageError. Blocks."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise RemoteStorageError(f"cannot read {path} to store it: {error}") from error


def file_parts(path: Path, part_bytes: int, size_bytes: int | None = None) -> Iterator[bytes]:
    """So many bytes of a local file; None: all of it. Raises RemoteStorageError where it cannot be
    read, or became shorter. Blocks.
    """
    left = sys.maxsize if size_bytes is None else size_bytes
    try:
        with path.open("rb", buffering=0) as file:
            while left and (part := file.read(min(left, part_bytes))):
                left -= len(part)
                yield part
    except OSError as error:
        raise RemoteStorageError(f"cannot read {path} to store it: {error}") from error
    if left and size_bytes is not None:
        raise RemoteStorageError(f"{path} became shorter while it was stored")


# What an HTTP answer with an error means. Pure.

# Codes that say more than their status does (S3, Cloud Storage and Azure: API references).
_BY_CODE: dict[str, type[RemoteStorageError]] = {
    "NoSuchKey": ObjectNotFound,
    "BlobNotFound": ObjectNotFound,
    "InvalidRange": RangeNotSatisfiable,
    # An archive whose bucket is missing is not an empty archive.
    "NoSuchBucket": StorageUnavailable,
    "ContainerNotFound": StorageUnavailable,
    "ContainerBeingDeleted": StorageUnavailable,
    # Somebody took the upload for a stale one; a new attempt starts a new upload.
    "NoSuchUpload": StorageUnavailable,
    "SlowDown": StorageThrottled,
    "Throttling": StorageThrottled,
    "ThrottlingException": StorageThrottled,
    "RequestLimitExceeded": StorageThrottled,
    "RequestThrottled": StorageThrottled,
    "TooManyRequests": StorageThrottled,
    "ServerBusy": StorageThrottled,
    "AccessDenied": StorageDenied,
    "ExpiredToken": StorageDenied,
    "InvalidToken": StorageDenied,
    "InvalidAccessKeyId": StorageDenied,
    "SignatureDoesNotMatch": StorageDenied,
    "AuthorizationHeaderMalformed": StorageDenied,
    # Status 400, but a matter of what happened on the way.
    "RequestTimeout": StorageUnavailable,
    "BadDigest": StorageUnavailable,
    "XAmzContentChecksumMismatch": StorageUnavailable,
    "XAmzContentSHA256Mismatch": StorageUnavailable,
    "IncompleteBody": StorageUnavailable,
    "InternalError": StorageUnavailable,
}


def error_of(status: int, code: str = "") -> type[RemoteStorageError]:
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status == 404:
        return ObjectNotFound
    if status == 416:
        return RangeNotSatisfiable
    if status in (401, 403):
        return StorageDenied
    if status in (429, 503):
        return StorageThrottled
    # S3 reports some errors within an answer of status 200, after it has begun to answer.
    if status in (408, 409) or status >= 500 or status < 300:
        return StorageUnavailable
    return RemoteStorageError  # a request that this store does not understand


# How large an object may be that is read whole. What is larger than all that was ever written under
# the archive's names is damaged, and refused before a byte of it is read (`errors.DamagedObject`).
# Logs are read in ranges alone.

KiB = 1024
MiB = 1024 * KiB

# Of what says a few values: `.metadata` objects of 10,000 leader epochs, notes, records, concerns.
SMALL_OBJECT_BYTES_MAX = MiB
# Of what names every topic of a cluster or every partition of an archiver: some two million.
OBJECT_BYTES_MAX = 64 * MiB

# An index has an entry for every 64 KiB of the log: the log's key and less than this. Beside that a
# small log may have one for each batch.
_INDEX_BYTES = 8 * MiB
_INDEX_INTERVAL_BYTES = 64 * KiB
_INDEX_ENTRY_BYTES = 80
# A marker that aborts a transaction takes 78 bytes of the log, its entry 34. 200,000 more may have
# begun before the segment and end behind it.
_ABORTED_AROUND_BYTES = 8 * MiB
# One line for each election of the partition's leader, ever.
_EPOCHS_BYTES = 8 * MiB
# A broker makes its index files this large and cuts them when it rolls the segment. With
# `index.interval.bytes = 0` each batch has an entry: 12 bytes of no less than 61.
_KAFKA_INDEX_BYTES = 16 * MiB


def segment_file_bytes_max(file: SegmentFile, key: str, log_bytes: int) -> int:
    """Of an object beside a log of that size; `key` is its own."""
    log_bytes = min(log_bytes, SEGMENT_BYTES_MAX)
    entries = log_bytes // _INDEX_INTERVAL_BYTES
    limits: Mapping[SegmentFile, int] = {
        SegmentFile.METADATA: SMALL_OBJECT_BYTES_MAX,
        SegmentFile.PACKING: SMALL_OBJECT_BYTES_MAX,  # of 16 GiB in blocks it has 350 KiB
        SegmentFile.INDEX: _INDEX_BYTES + entries * (len(key) + _INDEX_ENTRY_BYTES),
        SegmentFile.TXN: _ABORTED_AROUND_BYTES + log_bytes // 2,
        SegmentFile.EPOCHS: _EPOCHS_BYTES,
        SegmentFile.OFFSET_INDEX: _KAFKA_INDEX_BYTES + log_bytes // 5,
        SegmentFile.TIME_INDEX: _KAFKA_INDEX_BYTES + log_bytes // 5,
        SegmentFile.PRODUCER_SNAPSHOT: OBJECT_BYTES_MAX,
    }
    return limits[file]


# `RemoteStorageManager` (the KIP's name and verbs) moves segments over any `ObjectStore`, so every
# backend lays out the same objects. `storage.contract` is the suite that every backend passes.
#
# All methods raise `fetchproxy.errors.RemoteStorageError` and its subclasses only (an illegal key
# is a ValueError: a bug of the caller), may be cancelled at any await without leaving a readable
# half-object, and take no time-out: callers use `asyncio.timeout`. A store that is away (bucket
# or folder missing, nobody there) raises StorageUnavailable everywhere: it never looks like an
# empty one.

Content = bytes | bytearray  # of an object, as it was received; nobody changes it


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size_bytes: int
    version: str  # changes whenever the content does (ETag; mtime and inode for files)


class ObjectStore(ABC):
    """Keys are relative, `/`-separated, without `.`/`..` parts (alphabet: `segments.object_keys`).

    Sorted means by the bytes of the key. A key that is also a folder of other keys is legal for
    some backends only: do not use one.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def put(self, key: str, content: bytes) -> None:
        """Create or replace atomically: a reader sees the old or the new content, whole."""

    @abstractmethod
    async def put_new(self, key: str, content: bytes) -> bool:
        """As `put`, where there is no such object yet; False: there is one, and it is as it was. Of
        several at once one makes it; but an S3 server without conditions may let the last one win.
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
        """The bytes of the range, fewer where the object ends inside it. Raises ObjectNotFound;
        RangeNotSatisfiable where the range starts at or past the end.
        """

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

    # What only some stores can do.

    @property
    def page_objects(self) -> int | None:
        """A listing comes in pages of so many objects, each one a request; None: it does not."""
        return None

    def origin(self, tip: TopicIdPartition) -> TopicIdPartition:
        """What the partition is called where it was archived. Never blocks."""
        return tip

    async def abort_stale_uploads(
        self, prefix: str, older_than_epoch_ms: int, is_ours: Callable[[str], bool]
    ) -> int:
        """Remove what killed processes left below `prefix`: temporary files or multipart uploads.
        Returns how many.

        Those to a key that is not ours stay: a bucket may be shared. Choose the time well below
        now: an upload that somebody is still at fails when it is removed.
        """
        return 0

    async def clock_ms(self, prefix: str) -> int | None:
        """Epoch ms by the store's own clock, to about a second; None: it does not tell. `prefix`:
        below it we may list.
        """
        return None


class WrappedObjectStore(ObjectStore):
    """Another store, with something `around` each call of it."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    @abstractmethod
    def around(
        self, verb: str, key: str | None = None
    ) -> AbstractAsyncContextManager[Callable[[], object]]:
        """`verb`: the method's name; `key`: or the prefix. It gives what a listing calls whenever
        an entry has come.
        """

    async def __aenter__(self) -> Self:
        async with self.around("open"):
            await self.inner.__aenter__()
        return self

    async def put(self, key: str, content: bytes) -> None:
        async with self.around("put", key):
            await self.inner.put(key, content)

    async def put_new(self, key: str, content: bytes) -> bool:
        async with self.around("put_new", key):
            return await self.inner.put_new(key, content)

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        async with self.around("put_file", key):
            await self.inner.put_file(key, path, settled=settled)

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        async with self.around("get", key):
            return await self.inner.get(key, bytes_max)

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        async with self.around("get_range", key):
            return await self.inner.get_range(key, byte_range)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        async with self.around("list", prefix) as came:
            async for found in self.inner.list(prefix, start_after):
                came()
                yield found

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        async with self.around("list_folders", prefix) as came:
            async for name in self.inner.list_folders(prefix):
                came()
                yield name

    async def delete(self, key: str) -> None:
        async with self.around("delete", key):
            await self.inner.delete(key)

    async def close(self) -> None:
        async with self.around("close"):
            await self.inner.close()

    @property
    def page_objects(self) -> int | None:
        return self.inner.page_objects

    def origin(self, tip: TopicIdPartition) -> TopicIdPartition:
        return self.inner.origin(tip)

    async def abort_stale_uploads(
        self, prefix: str, older_than_epoch_ms: int, is_ours: Callable[[str], bool]
    ) -> int:
        async with self.around("abort_stale_uploads"):
            return await self.inner.abort_stale_uploads(prefix, older_than_epoch_ms, is_ours)

    async def clock_ms(self, prefix: str) -> int | None:
        async with self.around("clock_ms"):
            return await self.inner.clock_ms(prefix)
