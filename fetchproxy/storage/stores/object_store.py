"""The interface of every store, with optional methods that only some stores implement."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple, Self

from fetchproxy.config.schema import KiB, MiB
from fetchproxy.errors import (
    ObjectNotFound,
    ObjectNotReadable,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
)
from fetchproxy.model import SEGMENT_BYTES_MAX, ByteRange, TopicIdPartition
from fetchproxy.segments.object_keys import KEY_BYTES_MAX, SegmentFile

# Codes that are more exact than their status (S3, Cloud Storage and Azure: API references).
_BY_CODE: dict[str, type[RemoteStorageError]] = {
    "NoSuchKey": ObjectNotFound,
    "BlobNotFound": ObjectNotFound,
    "InvalidRange": RangeNotSatisfiable,
    # A missing bucket is not an empty archive.
    "NoSuchBucket": StorageUnavailable,
    "ContainerNotFound": StorageUnavailable,
    "ContainerBeingDeleted": StorageUnavailable,
    # Another process removed the upload as stale; a new attempt starts a new upload.
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
    "XAdminUserNotFound": StorageDenied,  # versitygw, with status 404: no such access key
    "SignatureDoesNotMatch": StorageDenied,
    "BlobImmutableDueToPolicy": StorageDenied,
    # About one object, while the store works. (A disabled key may be that of one object or of all:
    # `store_health` asks for another object.)
    "InvalidObjectState": ObjectNotReadable,
    "BlobArchived": ObjectNotReadable,
    "BlobBeingRehydrated": ObjectNotReadable,
    "KMS.ThrottlingException": StorageThrottled,
    "KMS.KMSInternalException": StorageUnavailable,
    "KMS.DependencyTimeoutException": StorageUnavailable,
    "KMS.KeyUnavailableException": StorageUnavailable,
    "AuthorizationHeaderMalformed": StorageDenied,
    # Status 400, but caused by the transmission.
    "RequestTimeout": StorageUnavailable,
    "BadDigest": StorageUnavailable,
    "XAmzContentChecksumMismatch": StorageUnavailable,
    "XAmzContentSHA256Mismatch": StorageUnavailable,
    "IncompleteBody": StorageUnavailable,
    "InternalError": StorageUnavailable,
}
# What to do.
REMEDIES: Mapping[str, str] = {
    "RequestTimeTooSkewed": "correct this machine's clock",
    "InvalidObjectState": "it is in a cold storage class: restore it, or copy it back to a "
    "storage class that can be read at once",
    "BlobArchived": "it is in the archive tier: set its tier to hot or cool",
    "BlobBeingRehydrated": "it is being brought back from the archive tier: it takes hours",
}
# Also a remedy, of responses that send the client elsewhere.
ELSEWHERE = (
    "the server sends requests elsewhere: correct address (https?) and region in `store.url`"
)
# With status 404, only these say that an object is absent. Any other code is about something else:
# readers would skip records, if an access key that is unknown made every object look lost.
_ABSENT = frozenset(
    {"", "404", "NotFound", "NoSuchKey", "NoSuchVersion", "BlobNotFound", "ResourceNotFound"}
)
# Of a file's or a folder's name, on Linux file systems and on HDFS
# (`dfs.namenode.fs-limits.max-component-length`).
FILE_NAME_BYTES_MAX = 255

# Objects with few values: `.metadata` with 10,000 leader epochs, notes, records, conditions.
SMALL_OBJECT_BYTES_MAX = MiB
# Objects that name every topic of a cluster or partition of an archiver: about two million names.
OBJECT_BYTES_MAX = 64 * MiB
# An index has an entry for every 64 KiB of the log: the log's key and fewer bytes than this. A
# small log may also have an entry for each batch.
_INDEX_BYTES = 8 * MiB
_INDEX_INTERVAL_BYTES = 64 * KiB
_INDEX_ENTRY_BYTES = 80
# An abort marker takes 78 bytes of the log, its entry 34. Another 200,000 aborted transactions may
# have begun before the segment and end after it.
_ABORTED_AROUND_BYTES = 8 * MiB
# One line for every leader election that the partition has had.
_EPOCHS_BYTES = 8 * MiB
# A broker makes its index files this large and truncates them when it rolls the segment. With
# `index.interval.bytes = 0` each batch has an entry: 12 bytes for a batch of at least 61.
_KAFKA_INDEX_BYTES = 16 * MiB
Content = bytes | bytearray  # an object's bytes, as received; never modified


class Hazard(NamedTuple):
    """A setting of the store. `loses`: segments are deleted or become unreadable by it."""

    what: str
    remedy: str
    loses: bool


def http_date_ms(date: str | None) -> int | None:
    """Epoch ms from a response's Date header; None: it is missing or unreadable."""
    try:
        return None if date is None else round(parsedate_to_datetime(date).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return None


def whole(content: bytes, length: int, operation: str) -> bytes:
    """`content`. Raises StorageUnavailable if it does not have `length` bytes."""
    if len(content) != length:
        raise StorageUnavailable(f"{operation}: {len(content)} of {length} bytes came")
    return content


def file_bytes(path: Path) -> int:
    """The size of a local file. Raises RemoteStorageError. Blocks."""
    try:
        return path.stat().st_size
    except OSError as error:
        raise RemoteStorageError(f"cannot read {path} to store it: {error}") from error


def file_parts(path: Path, part_bytes: int, size_bytes: int | None = None) -> Iterator[bytes]:
    """The first `size_bytes` of a local file; None: all of it. Raises RemoteStorageError if the
    file cannot be read or became shorter. Blocks.
    """
    bytes_left = sys.maxsize if size_bytes is None else size_bytes
    try:
        with path.open("rb", buffering=0) as file:
            while bytes_left and (part := file.read(min(bytes_left, part_bytes))):
                bytes_left -= len(part)
                yield part
    except OSError as error:
        raise RemoteStorageError(f"cannot read {path} to store it: {error}") from error
    if bytes_left and size_bytes is not None:
        raise RemoteStorageError(f"{path} became shorter while it was stored")


# The meaning of HTTP error responses. Pure.


def error_of(status: int, code: str = "") -> type[RemoteStorageError]:
    if code in _BY_CODE:
        return _BY_CODE[code]
    if code.startswith("KMS."):
        return StorageDenied
    if status == 404:
        return ObjectNotFound if code in _ABSENT else StorageUnavailable
    if status == 416:
        return RangeNotSatisfiable
    if status in (401, 403):
        return StorageDenied
    if status in (429, 503):
        return StorageThrottled
    # S3 reports some errors inside a response with status 200, after it has begun to answer. What
    # sends the client elsewhere (3xx) is a gateway before the store.
    if status in (408, 409) or status >= 500 or status < 400:
        return StorageUnavailable
    return RemoteStorageError  # the store does not understand the request


def responded(
    operation: str, status: int, code: str, text: str, *, may_be_absent: bool = True
) -> RemoteStorageError:
    """The domain's error for a store's error response. `text`: what the response tells."""
    kind = error_of(status, code)
    if kind is ObjectNotFound and not may_be_absent:
        kind = StorageUnavailable
    remedy = f"; {REMEDIES[code]}" if code in REMEDIES else ""
    if 300 <= status < 400:
        remedy = f"; {ELSEWHERE}"
    error = kind(f"{operation}: {text}{remedy}")
    error.status = status
    return error


# The largest sizes of objects that are read whole. An object larger than any that was ever written
# under such a name is damaged: it is refused before any of it is read (`errors.DamagedObject`).
# Logs are read only in ranges.


def segment_file_bytes_max(file: SegmentFile, key: str, log_bytes: int) -> int:
    """The largest size of the object `key` beside a log of `log_bytes`."""
    log_bytes = min(log_bytes, SEGMENT_BYTES_MAX)
    entries = log_bytes // _INDEX_INTERVAL_BYTES
    limits: Mapping[SegmentFile, int] = {
        SegmentFile.METADATA: SMALL_OBJECT_BYTES_MAX,
        SegmentFile.PACKING: SMALL_OBJECT_BYTES_MAX,  # 350 KiB for a log of 16 GiB
        SegmentFile.INDEX: _INDEX_BYTES + entries * (len(key) + _INDEX_ENTRY_BYTES),
        SegmentFile.TXN: _ABORTED_AROUND_BYTES + log_bytes // 2,
        SegmentFile.EPOCHS: _EPOCHS_BYTES,
        SegmentFile.OFFSET_INDEX: _KAFKA_INDEX_BYTES + log_bytes // 5,
        SegmentFile.TIME_INDEX: _KAFKA_INDEX_BYTES + log_bytes // 5,
        SegmentFile.PRODUCER_SNAPSHOT: OBJECT_BYTES_MAX,
    }
    return limits[file]


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size_bytes: int
    version: str  # changes whenever the content does (ETag; mtime and inode for files)


class ObjectStore(ABC):
    """Keys are relative, `/`-separated, without `.`/`..` parts (alphabet: `segments.object_keys`).

    Keys sort by their bytes. Do not use a key that is also a folder of other keys: only some
    backends allow it.

    `RemoteStorageManager` (the KIP's name and verbs) works over any `ObjectStore`, so every backend
    stores the same objects. `storage.contract` is the test suite that every backend passes.

    All methods raise only `fetchproxy.errors.RemoteStorageError` and its subclasses; an illegal key
    is a ValueError, because it is a bug of the caller. A caller may cancel a method at any await:
    it leaves no readable half-object. Methods take no time-out: callers use `asyncio.timeout`. If
    the bucket, folder or server is missing, every method raises StorageUnavailable: the store never
    looks empty.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def put(self, key: str, content: bytes) -> str | None:
        """Create or replace atomically: a reader sees either the old or the new content. Returns
        the version that a listing shows of it (`StoredObject`); None: the store does not say.
        """

    @abstractmethod
    async def put_new(self, key: str, content: bytes) -> bool:
        """As `put`, if the object does not exist yet; False: it exists and is unchanged. Only one
        of several concurrent calls succeeds, but an S3 server without conditional puts may let the
        last one win.
        """

    @abstractmethod
    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        """As `put`, from a local file. The backend's part size bounds the memory.

        `settled`: nothing will ever write to that file again, so a store on the same file system
        may hard-link it. The caller may remove its name after the call.
        """

    @abstractmethod
    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        """The whole object. Raises ObjectNotFound; DamagedObject if it is larger than `bytes_max`,
        before reading it.
        """

    @abstractmethod
    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        """The bytes of the range, fewer if the object ends inside it. Raises ObjectNotFound;
        RangeNotSatisfiable if the range starts at or past the end.
        """

    @abstractmethod
    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        """Objects whose key starts with `prefix` and sorts after `start_after`, sorted by key."""

    @abstractmethod
    def list_folders(self, prefix: str) -> AsyncIterator[str]:
        """The names of the folders directly below `prefix` that contain objects.

        `prefix` ends in `/` or is empty. The names are sorted as if they ended in `/`, like keys.
        """

    @abstractmethod
    async def delete(self, key: str) -> None:
        """An absent key is not an error."""

    @abstractmethod
    async def close(self) -> None:
        """Idempotent."""

    # Only some stores implement these.

    @property
    def page_objects(self) -> int | None:
        """Objects in a page of a listing, each page one request; None: there are no pages."""
        return None

    @property
    def part_bytes_max(self) -> int:
        """The longest part of a key between slashes that the store takes. Never blocks."""
        return KEY_BYTES_MAX

    def origin(self, tp: TopicIdPartition) -> TopicIdPartition:
        """The partition's id and name in the archive it was written to. Never blocks."""
        return tp

    async def abort_stale_uploads(
        self, prefix: str, older_than_epoch_ms: int, is_ours: Callable[[str], bool]
    ) -> int:
        """Remove temporary files or multipart uploads that killed processes left below `prefix`.
        Returns how many.

        Uploads to keys that are not ours stay, as a bucket may be shared. Choose a time well before
        now: removing an upload that is still running makes it fail.
        """
        return 0

    async def clock_ms(self, prefix: str) -> int | None:
        """Epoch ms by the store's own clock, to about a second; None: the store does not tell.
        `prefix`: the process may list below it.
        """
        return None

    async def hazards(self, prefix: str) -> Sequence[Hazard]:
        """Settings of the store that would harm an archive below `prefix`, as far as the store
        tells them. Raises StorageDenied if the process may not read the settings.
        """
        return ()


class WrappedObjectStore(ObjectStore):
    """Another store, with the context manager `around` each call of it."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    @abstractmethod
    def around(
        self, verb: str, key: str | None = None
    ) -> AbstractAsyncContextManager[Callable[[], object]]:
        """`verb`: the method's name. `key`: its key or prefix. A listing calls the given function
        for each entry.
        """

    async def __aenter__(self) -> Self:
        async with self.around("open"):
            await self.inner.__aenter__()
        return self

    async def put(self, key: str, content: bytes) -> str | None:
        async with self.around("put", key):
            return await self.inner.put(key, content)

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
            async for stored in self.inner.list(prefix, start_after):
                came()
                yield stored

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

    @property
    def part_bytes_max(self) -> int:
        return self.inner.part_bytes_max

    def origin(self, tp: TopicIdPartition) -> TopicIdPartition:
        return self.inner.origin(tp)

    async def abort_stale_uploads(
        self, prefix: str, older_than_epoch_ms: int, is_ours: Callable[[str], bool]
    ) -> int:
        async with self.around("abort_stale_uploads"):
            return await self.inner.abort_stale_uploads(prefix, older_than_epoch_ms, is_ours)

    async def clock_ms(self, prefix: str) -> int | None:
        async with self.around("clock_ms"):
            return await self.inner.clock_ms(prefix)

    async def hazards(self, prefix: str) -> Sequence[Hazard]:
        async with self.around("hazards"):
            return await self.inner.hazards(prefix)
