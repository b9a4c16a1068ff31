"""Objects in any store that obstore supports. This Rust library (object_store) sends, receives,
signs and hashes on its own threads, while the event loop only waits.

The modules `clouds` and `s3` choose the library's store and its credentials.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from obstore import exceptions as obstore_errors

from fetchproxy import __version__
from fetchproxy.config.memory_plan import PART_BYTES, PARTS_IN_FLIGHT_MAX
from fetchproxy.config.schema import StoreConfig
from fetchproxy.config.values import mask_text
from fetchproxy.errors import (
    ConfigError,
    ObjectNotFound,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageDenied,
    StorageUnavailable,
    too_large,
)
from fetchproxy.model import ByteRange
from fetchproxy.runtime.folders import WatchedFile
from fetchproxy.segments.object_keys import check_folder_prefix, check_key, check_prefix
from fetchproxy.storage.stores.object_store import (
    OBJECT_BYTES_MAX,
    Content,
    ObjectStore,
    StoredObject,
    file_bytes,
    file_parts,
    responded,
    whole,
)
from fetchproxy.storage.stores.retries import PAUSES_S, REQUEST_TRIES_MAX, TRIES_BEGIN_WITHIN_S

log = structlog.get_logger(__name__)

# Apart from a few exception classes, only the library's error texts show the kind of failure.

_STATUS = re.compile(r"(?:status code: |\(code: )(\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,300})")
_CAUSE = re.compile(r"kind: (\w+)")
_REQUEST = re.compile(r"<RequestId>([\w+/=-]{1,100})</RequestId>")
_RETRIES = re.compile(r"after (\d+) retries")
_QUERY = re.compile(r"\?\S*")  # of a URL: it contains an Azure signature
_BEHIND_END = re.compile(r'Wanted range starting at|CONTENT_RANGE header: "bytes \S+/0"')
_TEXT_MAX = 300
_ABSENT = ("NoSuchKey", "BlobNotFound")
# S3 and Cloud Storage; Azure.
_COMPLETED_ALREADY = ("NoSuchUpload", "InvalidBlockList")
_BLOB_ABSENT = "The specified blob does not exist"  # in a batch response, which has no code
_NEVER_THERE = "fetchproxy-puts-nothing-here"
# Longer than any response: the library has no value for "no limit".
_UNLIMITED = timedelta(days=30)
# A connection that was idle for longer is not reused: servers close idle ones after 5 s or more.
_IDLE_MAX = timedelta(seconds=4)
PARTS_MAX = 10_000  # of an upload to S3 and Cloud Storage; Azure allows 50,000
_SLICE_BYTES = 1024 * 1024  # of a file, passed to the library at once
# The legal characters of a key in their order, without `/`.
_ALPHABET = "!+-.0123456789=@ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"


def obstore_error(error: Exception, operation: str) -> RemoteStorageError:
    """`error`: the library's. `operation`: the beginning of the text."""
    text = str(error)
    what_failed, _, debug = text.partition("Debug source")
    code, status = _CODE.search(what_failed), _STATUS.search(what_failed)
    if _BEHIND_END.search(what_failed):
        return RangeNotSatisfiable(f"{operation}: the object ends before that")
    if status is None:
        cause = _CAUSE.search(debug)
        short_text = _QUERY.sub("", what_failed.strip())[:_TEXT_MAX] + (
            f" ({cause[1]})" if cause else ""
        )
        if isinstance(
            error, obstore_errors.PermissionDeniedError | obstore_errors.UnauthenticatedError
        ):
            return StorageDenied(f"{operation}: {short_text}")
        if isinstance(error, obstore_errors.GenericError | FileNotFoundError):
            return StorageUnavailable(f"{operation}: {short_text}")
        return RemoteStorageError(f"{operation}: {short_text}")
    name = code[1] if code else ""
    message = _MESSAGE.search(what_failed)
    tried = int(retries[1]) + 1 if (retries := _RETRIES.search(what_failed)) else 1
    lines = [
        name,
        message[1].strip() if message else "",
        f"(request {request[1]})" if (request := _REQUEST.search(what_failed)) else "",
        f"(tried {tried} times)" if tried > 1 else "",
    ]
    text = " ".join(filter(None, [": ".join(filter(None, lines[:2])), *lines[2:]]))
    return responded(operation, int(status[1]), name, f"status {status[1]} {text}".rstrip())


def obstore_code(error: BaseException | None) -> str:
    """The server's error code; "" if the server gave none."""
    code = _CODE.search(str(error))
    return code[1] if code else ""


def _says_absent(error: Exception) -> bool:
    """Whether the response says that the object is missing, and not the bucket."""
    return obstore_code(error) in _ABSENT or _BLOB_ABSENT in str(error)


@contextmanager
def _translated(operation: str) -> Iterator[None]:
    """For calls that do not read one object: a 404 means that the store is unavailable."""
    try:
        yield
    except (obstore_errors.BaseError, FileNotFoundError) as error:
        mapped = obstore_error(error, operation)
        if isinstance(mapped, ObjectNotFound):
            mapped = StorageUnavailable(str(mapped))
        raise mapped from error


class Clients(NamedTuple):
    """Stores of the library, because its time-outs and tries are per store.

    `reader` ends a request that is silent for too long, `writer` a request that takes too long.
    Both send a request once, and `retries.retried` repeats it. `lister` and `uploader` are the
    same, and repeat the pages of a listing and the parts of an upload themselves.
    """

    reader: Any  # the library's types name no common class
    writer: Any
    lister: Any
    uploader: Any


def make_clients(
    make: Callable[..., Any], config: StoreConfig, *, plain_http: bool, trusted: bytes | None = None
) -> Clients:
    """`make`: makes a store of the library. `trusted`: certificates in addition to the system's."""
    options: dict[str, Any] = {
        "allow_http": plain_http,
        "connect_timeout": timedelta(milliseconds=config.connect_max_ms),
        "pool_idle_timeout": _IDLE_MAX,
        "user_agent": f"fetchproxy/{__version__}",
    }
    if trusted is not None:
        options["root_certificate"] = trusted
    reading = {"timeout": _UNLIMITED, "read_timeout": timedelta(milliseconds=config.read_max_ms)}
    writing = {"timeout": timedelta(milliseconds=config.write_max_ms)}
    reader, writer = (
        make(client_options={**options, **limits}, retry_config={"max_retries": 0})
        for limits in (reading, writing)
    )
    lister, uploader = (
        make(client_options={**options, **limits}, retry_config=_tries(limit_ms))
        for limits, limit_ms in ((reading, config.read_max_ms), (writing, config.write_max_ms))
    )
    return Clients(reader, writer, lister, uploader)


def _tries(request_max_ms: int) -> dict[str, Any]:
    """The numbers of `retries` for the library, whose pauses are random from the first one to five
    times the last one.
    """
    begin_within_s = max(TRIES_BEGIN_WITHIN_S, 1.5 * request_max_ms / 1000)
    return {
        "max_retries": REQUEST_TRIES_MAX - 1,
        "retry_timeout": timedelta(seconds=begin_within_s),
        "backoff": {
            "init_backoff": timedelta(seconds=PAUSES_S[0]),
            "max_backoff": timedelta(seconds=2 * PAUSES_S[-1]),
            "base": PAUSES_S[1] / PAUSES_S[0],
        },
    }


def part_size(size_bytes: int, part_bytes: int) -> int:
    """Bytes of a part: larger than `part_bytes` if there would be more than PARTS_MAX parts."""
    return max(part_bytes, -(-size_bytes // PARTS_MAX))


def _whole_if_small(path: Path, bytes_max: int) -> tuple[int, bytes | None]:
    """The size of a file, and its content if that is not larger than `bytes_max`. Raises as
    `file_parts`. Blocks.
    """
    size_bytes = file_bytes(path)
    if size_bytes > bytes_max:
        return size_bytes, None
    return size_bytes, b"".join(file_parts(path, _SLICE_BYTES, size_bytes))


def shortly_before(prefix: str) -> str:
    """A key that sorts shortly before all keys that begin with `prefix`; "" if there is none."""
    if not prefix or prefix.endswith("/"):
        return ""
    index = _ALPHABET.index(prefix[-1])
    return prefix[:-1] + _ALPHABET[index - 1] + "z" * 8 if index else prefix[:-1].rstrip("/")


class Renewal(NamedTuple):
    """When `file` changes, `make` makes clients with the credentials that are in it now."""

    file: WatchedFile
    make: Callable[[], Clients]


class ObstoreObjectStore(ObjectStore):
    """A bucket or container that is read and written by obstore. `clients`: of one bucket or
    container. `page_objects`: objects per request of a listing.
    """

    def __init__(
        self,
        clients: Clients,
        *,
        page_objects: int,
        config: StoreConfig,
        part_bytes: int = PART_BYTES,
        file_attributes: Mapping[str, str] | None = None,
        renewal: Renewal | None = None,
    ) -> None:
        self._file_attributes = dict(file_attributes or {}) or None
        self._clients: Clients | None = clients
        self._renewal = renewal
        self._page_objects = page_objects
        self._part_bytes = part_bytes
        self._places = asyncio.Semaphore(config.connections_max)

    async def put(self, key: str, content: bytes) -> str | None:
        result = await self._put(check_key(key), content, use_multipart=False)
        return _version(result) if result["e_tag"] else None

    async def put_new(self, key: str, content: bytes) -> bool:
        try:
            await self._put(check_key(key), content, use_multipart=False, mode="create")
        except RemoteStorageError as error:
            if not isinstance(error.__cause__, obstore_errors.AlreadyExistsError):
                raise
            return False
        return True

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        """Bytes in memory: part_bytes × PARTS_IN_FLIGHT_MAX at most, and a slice."""
        check_key(key)
        size_bytes, content = await asyncio.to_thread(_whole_if_small, path, self._part_bytes)
        if content is not None:
            how: dict[str, Any] = {"use_multipart": False, "attributes": self._file_attributes}
            await self._put(key, content, uploads=True, **how)
            return
        part_bytes = part_size(size_bytes, self._part_bytes)
        # The library copies its input, so small slices are freed at once.
        contents = file_parts(path, min(part_bytes, _SLICE_BYTES), size_bytes)
        try:
            await self._put(
                key,
                contents,
                uploads=True,
                use_multipart=True,
                attributes=self._file_attributes,
                chunk_size=part_bytes,
                max_concurrency=PARTS_IN_FLIGHT_MAX,
            )
        except RemoteStorageError as error:
            # The response to the completion was lost, and the library has asked for it again.
            if obstore_code(error.__cause__) not in _COMPLETED_ALREADY:
                raise
            if not await self._has(key, path, size_bytes):
                raise

    async def _has(self, key: str, path: Path, size_bytes: int) -> bool:
        """Whether the object is the file, by all its bytes: an older object may have its size."""
        offset = 0
        try:
            for part in file_parts(path, self._part_bytes, size_bytes):
                if await self.get_range(key, ByteRange(offset, offset + len(part))) != part:
                    return False
                offset += len(part)
            await self.get_range(key, ByteRange(size_bytes, size_bytes + 1))
        except RangeNotSatisfiable:
            return offset == size_bytes
        except ObjectNotFound:
            return False
        return False

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        operation = f"get {check_key(key)}"
        async with self._reading(key, operation) as reader:
            response = await reader.get_async(key)
            size_bytes = int(response.meta["size"])
            if size_bytes > bytes_max:
                raise too_large(key, size_bytes, bytes_max)
            return whole(bytes(await response.bytes_async()), size_bytes, operation)

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        operation = f"get {check_key(key)} bytes {byte_range.start} to {byte_range.end}"
        async with self._reading(key, operation) as reader:
            bounds = (byte_range.start, byte_range.end)
            response = await reader.get_async(key, options={"range": bounds})
            start, end = response.range
            if start != byte_range.start or end > byte_range.end:
                raise StorageUnavailable(f"{operation}: the response has bytes {start} to {end}")
            return whole(bytes(await response.bytes_async()), end - start, operation)

    @property
    def page_objects(self) -> int:
        return self._page_objects

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        """The library lists whole folders; entries outside the prefix are skipped."""
        operation = f"list {check_prefix(prefix)}"
        folder = prefix.rpartition("/")[0] or None
        last, objects_seen, offset = "", 0, max(start_after, shortly_before(prefix)) or None
        with _translated(operation):
            lister = (await self._opened()).lister
            pages = lister.list(folder, offset=offset, chunk_size=self._page_objects)
            while page := await self._next_page(pages):
                objects_seen += len(page)
                for item in page:
                    key = str(item["path"])
                    if key <= last:
                        raise StorageUnavailable(f"{operation}: {key} is listed after {last}")
                    last = key
                    if key <= start_after or not key.startswith(prefix):
                        if key > prefix and key > start_after:
                            return
                        continue
                    yield StoredObject(key, int(item["size"]), _version(item))
            if objects_seen % self._page_objects == 0 and not start_after:
                await self._confirm_end(prefix, operation)

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        operation = f"list folders of {check_folder_prefix(prefix)}"
        with _translated(operation):
            lister = (await self._opened()).lister
            async with self._places:
                result = await lister.list_with_delimiter_async(prefix.rstrip("/") or None)
            if not result["common_prefixes"] and not result["objects"]:
                await self._confirm_end(prefix, operation)
        names = [str(path)[len(prefix) :] for path in result["common_prefixes"]]
        for name in sorted(names, key=lambda name: name + "/"):
            yield name

    async def delete(self, key: str) -> None:
        operation = f"delete {check_key(key)}"
        writer = (await self._opened()).writer
        with _translated(operation):
            try:
                async with self._places:
                    await writer.delete_async(key)
            except FileNotFoundError as error:
                if not _says_absent(error):
                    await self._check_present(key)

    async def close(self) -> None:
        self._clients = None

    async def _opened(self) -> Clients:
        if self._renewal is not None:
            renewed = await self._renewal.file.when_changed(partial(_renewed, self._renewal.make))
            if self._clients is not None:  # not closed meanwhile
                self._clients = renewed or self._clients
        if self._clients is None:
            raise RemoteStorageError("the store is closed")
        return self._clients

    async def _put(
        self, key: str, content: bytes | Iterator[bytes], *, uploads: bool = False, **how: Any
    ) -> Any:
        clients = await self._opened()
        writer = clients.uploader if uploads else clients.writer
        with _translated(f"put {key}"):
            async with self._places:
                return await writer.put_async(key, content, **how)

    @asynccontextmanager
    async def _reading(self, key: str, operation: str) -> AsyncIterator[Any]:
        reader = (await self._opened()).reader
        try:
            async with self._places:
                yield reader
        except FileNotFoundError as error:
            if not _says_absent(error):
                with _translated(operation):
                    await self._check_present(key)
            raise ObjectNotFound(f"{operation}: there is no such object") from error
        except obstore_errors.BaseError as error:
            raise obstore_error(error, operation) from error

    async def _check_present(self, key: str) -> None:
        """Raises the library's error if the whole store is missing."""
        folder = key.rpartition("/")[0] or None
        pages = (await self._opened()).reader.list(folder, chunk_size=1)
        await self._next_page(pages)

    async def _confirm_end(self, prefix: str, operation: str) -> None:
        """Confirm an empty page: the library takes any other page, such as an HTTP proxy's, for an
        empty listing. Only a store answers that an object is missing. The object asked for is below
        `prefix`, because the process may have no rights elsewhere.
        """
        try:
            async with self._places:
                await (await self._opened()).reader.head_async(prefix + _NEVER_THERE)
        except FileNotFoundError:
            return
        raise StorageUnavailable(f"{operation}: the response is not a listing")

    async def _next_page(self, pages: Any) -> Sequence[Any]:
        async with self._places:
            try:
                page: Sequence[Any] = await anext(pages)
            except StopAsyncIteration:
                return ()
            return page


def _renewed(make: Callable[[], Clients]) -> Clients | None:
    """None: the last clients stay in use."""
    try:
        clients = make()
    except (obstore_errors.BaseError, OSError, ValueError, ConfigError) as error:
        text = str(error).partition("Debug source")[0].strip()
        log.error(
            "store_credentials_unusable",
            error=mask_text(text),
            hint="correct the file; it is read again without a restart",
        )
        return None
    log.info("store_credentials_changed")
    return clients


def _version(meta: Any) -> str:
    return str(meta["e_tag"] or meta["version"] or meta["last_modified"]).strip('"')
