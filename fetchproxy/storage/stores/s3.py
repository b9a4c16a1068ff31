"""Objects in a bucket of any S3 server, by aiobotocore."""

from __future__ import annotations

import asyncio
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cache, partial
from hashlib import md5
from io import BytesIO
from pathlib import Path
from typing import Any, Self, TypeVar
from xml.etree import ElementTree

import structlog
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError
from botocore.handlers import add_expect_header

from fetchproxy.config.memory_plan import PART_BYTES, PARTS_IN_FLIGHT_MAX
from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import ObjectNotFound, RemoteStorageError, too_large
from fetchproxy.model import ByteRange
from fetchproxy.segments.object_keys import check_folder_prefix, check_key, check_prefix
from fetchproxy.storage.stores.client_sockets import ClientSockets
from fetchproxy.storage.stores.object_store import (
    OBJECT_BYTES_MAX,
    Content,
    ObjectStore,
    StoreClock,
    StoredObject,
    UnfinishedUploads,
)
from fetchproxy.storage.stores.s3_answers import (
    Answer,
    answered_at_ms,
    error_code,
    listed_objects,
    next_page,
    object_length,
    range_length,
    translated,
    whole,
)
from fetchproxy.storage.stores.s3_ranges import S3RangeReads, Wanted, open_range_reads

# A page of a listing, taken apart while the event loop goes on.
#
# The S3 client holds the loop for 55 ms with a page of a thousand objects. Here what a page says
# of objects is cut out before the client parses the rest, in 7 ms and bit by bit.

# Parsed between two breaths of the event loop: some 50 objects, below 1 ms.
PARSED_AT_ONCE_BYTES = 16 * 1024
_SHOWN = ("Key", "Size", "ETag")


def register(client: Any) -> None:
    """For every listing of an aiobotocore S3 client from now on."""
    client.meta.events.register("before-parse.s3.ListObjectsV2", _take_objects)


async def _take_objects(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any
) -> None:
    """`Contents` as the client itself would have it, without what nobody asks for.

    A page that is no listing, or broken, is left to the client: it knows what that means.
    """
    if response_dict["status_code"] != 200:
        return
    body: bytes = response_dict["body"]
    objects: list[dict[str, str]] = []
    parser: ElementTree.XMLPullParser[Any] = ElementTree.XMLPullParser(("start", "end"))
    page = _Page(objects)
    try:
        for at in range(0, len(body), PARSED_AT_ONCE_BYTES):
            parser.feed(body[at : at + PARSED_AT_ONCE_BYTES])
            page.take(parser.read_events())
            await asyncio.sleep(0)
        parser.close()
        page.take(parser.read_events())
    except ElementTree.ParseError:
        return
    if page.rest is not None and page.rest.tag.endswith("ListBucketResult"):
        response_dict["body"] = ElementTree.tostring(page.rest)
        customized_response_dict["Contents"] = objects


class _Page:
    """`rest` is the page without its objects, which are added to `objects`."""

    def __init__(self, objects: list[dict[str, str]]) -> None:
        self._objects = objects
        self._depth = 0
        self._root: ElementTree.Element | None = None
        self.rest: ElementTree.Element | None = None

    def take(self, events: Iterator[Any]) -> None:
        for event, element in events:
            if event == "start":
                self._depth += 1
                if self._root is None:
                    self._root = element
                    self.rest = ElementTree.Element(element.tag)
                continue
            self._depth -= 1
            if self._depth == 1 and self._root is not None and self.rest is not None:
                self._root.remove(element)  # the first one, as all before it are gone
                if element.tag.rpartition("}")[2] == "Contents":
                    self._objects.append(_shown(element))
                else:
                    self.rest.append(element)


def _shown(element: ElementTree.Element) -> dict[str, str]:
    fields = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
    return {name: fields[name] for name in _SHOWN if name in fields}


# One multipart upload: an object becomes visible whole or not at all, in bounded memory.
#
# However the upload ends other than well, it is aborted, so that its parts do not stay stored
# (and billed). Where even that fails, `S3ObjectStore.abort_stale_uploads` finds them later.

log = structlog.get_logger(__name__)

PARTS_MAX = 10_000  # S3's limit
_ABORT_MAX_S = 5.0  # the caller is failing or cancelled already and should not wait for long
_ABORT_PAUSES_S = (0.1, 0.5)


@dataclass(frozen=True, slots=True)
class FileSpan:
    number: int  # from 1
    byte_range: ByteRange | None  # None: the file is empty


@dataclass(frozen=True, slots=True)
class Part:
    number: int
    content: bytes
    md5: str  # base64


class Body(BytesIO):
    """`content` for a request, without a copy.

    The HTTP client asks a BytesIO for its buffer to learn the size, and a BytesIO of `bytes` then
    copies them: for a part of 8 MiB that holds up the loop for several milliseconds.
    """

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._content = content

    def getbuffer(self) -> memoryview:
        return memoryview(self._content)


def plan_parts(size_bytes: int, part_bytes: int) -> list[FileSpan]:
    """At least one; larger than `part_bytes` where there would be too many."""
    if size_bytes == 0:
        return [FileSpan(1, None)]
    part_bytes = max(part_bytes, -(-size_bytes // PARTS_MAX))
    return [
        FileSpan(number, ByteRange(start, min(start + part_bytes, size_bytes)))
        for number, start in enumerate(range(0, size_bytes, part_bytes), 1)
    ]


def file_parts(path: Path, part_bytes: int) -> list[FileSpan]:
    """The plan for a local file. Raises RemoteStorageError if it cannot be read. Blocks."""
    try:
        return plan_parts(path.stat().st_size, part_bytes)
    except OSError as error:
        raise RemoteStorageError(f"cannot read {path} to store it: {error}") from error


def read_part(path: Path, span: FileSpan, digest: Callable[[bytes], str]) -> Part:
    """Raises RemoteStorageError if the file cannot be read or has become shorter. Blocks."""
    wanted = span.byte_range
    try:
        content = b"" if wanted is None else _read(path, wanted)
    except OSError as error:
        raise RemoteStorageError(f"cannot read {path} to store it: {error}") from error
    if wanted is not None and len(content) != wanted.length:
        raise RemoteStorageError(f"{path} became shorter while it was stored")
    return Part(span.number, content, digest(content))


def _read(path: Path, wanted: ByteRange) -> bytes:
    with open(path, "rb", buffering=0) as file:
        file.seek(wanted.start, os.SEEK_SET)
        parts: list[bytes] = []
        left = wanted.length
        while left and (part := file.read(left)):
            parts.append(part)
            left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class MultipartUpload:
    """`client` is aiobotocore's, whose methods exist at run time only."""

    def __init__(self, client: Any, bucket: str, key: str, config: StoreConfig) -> None:
        self._client = client
        self._object = {"Bucket": bucket, "Key": key}
        self._what = f"upload {key}"
        self._write_max_s = config.write_max_ms / 1000

    async def send(self, readers: Sequence[Callable[[], Awaitable[Part]]]) -> None:
        """Upload the parts that `readers` deliver; each is called when there is room for one."""
        with translated(self._what):
            answer = await self._client.create_multipart_upload(**self._object)
        upload_id: str = answer["UploadId"]
        try:
            etags = await self._send_parts(upload_id, readers)
            with translated(self._what):
                await self._client.complete_multipart_upload(
                    **self._object,
                    UploadId=upload_id,
                    MultipartUpload={
                        "Parts": [
                            {"PartNumber": number, "ETag": etag}
                            for number, etag in sorted(etags.items())
                        ]
                    },
                )
        except BaseException:
            await self._abort_after_failure(upload_id)
            raise

    async def abort(self, upload_id: str) -> bool:
        """False: it was gone already."""
        with translated(f"abort {self._what}"):
            try:
                await self._client.abort_multipart_upload(**self._object, UploadId=upload_id)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") != "NoSuchUpload":
                    raise
                return False
        return True

    async def _send_parts(
        self, upload_id: str, readers: Sequence[Callable[[], Awaitable[Part]]]
    ) -> dict[int, str]:
        etags: dict[int, str] = {}
        waiting = iter(readers)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(PARTS_IN_FLIGHT_MAX, len(readers))):
                    group.create_task(self._send_in_turn(upload_id, waiting, etags))
        except ExceptionGroup as failures:
            # They fail together when the store does: the first stands for all.
            raise failures.exceptions[0] from failures
        return etags

    async def _send_in_turn(
        self,
        upload_id: str,
        waiting: Iterator[Callable[[], Awaitable[Part]]],
        etags: dict[int, str],
    ) -> None:
        for reader in waiting:
            part = await reader()
            with translated(f"{self._what} part {part.number}"):
                async with asyncio.timeout(self._write_max_s):
                    answer = await self._client.upload_part(
                        **self._object,
                        UploadId=upload_id,
                        PartNumber=part.number,
                        Body=Body(part.content),
                        ContentMD5=part.md5,
                    )
            etags[part.number] = answer["ETag"]

    async def _abort_after_failure(self, upload_id: str) -> None:
        try:
            async with asyncio.timeout(_ABORT_MAX_S):
                await self._abort_in_spite_of_parts(upload_id)
        except (RemoteStorageError, TimeoutError) as error:
            log.warning("multipart_abort_failed", key=self._object["Key"], error=str(error))

    async def _abort_in_spite_of_parts(self, upload_id: str) -> None:
        """Until it is gone: the server may still work on a part that was cancelled here.

        Then it may fail to abort, or the upload is there again with that part (AWS, on
        AbortMultipartUpload: "it might be necessary to abort multiple times").
        """
        for pause_s in _ABORT_PAUSES_S:
            try:
                if not await self.abort(upload_id):
                    return
            except RemoteStorageError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(pause_s)
        await self.abort(upload_id)


# One client, made at the first call or by `async with`, neither of which needs the server to be
# there. Every request is tried once: back-off is the caller's. Bodies are protected by
# Content-MD5, which every S3 server checks, in place of the newer checksums, which not every
# server knows.

T = TypeVar("T")

# Whole objects are asked for as this range, which metadata and most indexes do not fill. What is
# not there, is empty or is larger takes a second request.
SMALL_OBJECT = ByteRange(0, 256 * 1024)
PAGE_OBJECTS = 1000  # of a listing, at most
_HASH_INLINE_BYTES_MAX = 256 * 1024  # hashed on the loop: less than half a millisecond
_FILE_THREADS = 2  # read and hash the parts of local files


class S3ObjectStore(ObjectStore, UnfinishedUploads, StoreClock):
    """`endpoint_url` set: path-style addresses, as servers other than AWS want them.

    Credentials, and the region where none is given, are found as boto3 finds them.
    """

    def __init__(
        self,
        bucket: str,
        *,
        endpoint_url: str | None = None,
        region: str | None = None,
        config: StoreConfig | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._part_bytes = part_bytes
        self._bucket = bucket
        self._endpoint_url = endpoint_url
        self._region = region
        self._config = config or StoreConfig()
        self._client: Any = None  # aiobotocore makes its methods at run time
        self._ranges: S3RangeReads | None = None
        self._sockets = ClientSockets(self._config.write_max_ms)
        self._opening = asyncio.Lock()
        self._resources = AsyncExitStack()
        self._threads = ThreadPoolExecutor(_FILE_THREADS, thread_name_prefix="s3-store")
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def put(self, key: str, content: bytes) -> None:
        check_key(key)
        if len(content) <= _HASH_INLINE_BYTES_MAX:
            digest = _md5(content)
        else:
            digest = await self._run(partial(_md5, content))
        await self._put_part(key, Part(1, content, digest))

    async def put_new(self, key: str, content: bytes) -> bool:
        """By If-None-Match; where the server does not know that, by a look before."""
        check_key(key)
        part = Part(1, content, _md5(content))
        try:
            await self._put_part(key, part, IfNoneMatch="*")
        except RemoteStorageError as error:
            code = error_code(error.__cause__)
            if code == "PreconditionFailed":
                return False
            if code != "NotImplemented":
                raise
        else:
            return True
        try:
            await self.get(key)
        except ObjectNotFound:
            await self._put_part(key, part)
            return True
        return False

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        """Bytes in memory: at most part_bytes × PARTS_IN_FLIGHT_MAX."""
        check_key(key)
        client = await self._opened()
        spans = await self._run(partial(file_parts, path, self._part_bytes))
        if len(spans) == 1:
            await self._put_part(key, await self._run(partial(read_part, path, spans[0], _md5)))
            return
        upload = MultipartUpload(client, self._bucket, key, self._config)
        await upload.send(
            [partial(self._run, partial(read_part, path, span, _md5)) for span in spans]
        )

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        client = await self._opened()
        what = f"get {check_key(key)}"
        with translated(what, may_be_absent=True):
            ranges = self._ranges
            if ranges is not None:
                small = await ranges.get(key, Wanted(SMALL_OBJECT, to_end=True), what)
                if small is not None:
                    if len(small) > bytes_max:
                        raise too_large(key, len(small), bytes_max)
                    return bytes(small)
            answer: Answer = await client.get_object(Bucket=self._bucket, Key=key)
            async with answer["Body"] as body:  # on an error: the connection is not used again
                length = object_length(answer, what)
                if length > bytes_max:
                    raise too_large(key, length, bytes_max)
                content = whole(await body.read(), length, what)
            if ranges is not None and 0 < length <= SMALL_OBJECT.length:
                ranges.was_needless(key)
            return content

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        client = await self._opened()
        what = f"get {check_key(key)} bytes {byte_range.start} to {byte_range.end}"
        with translated(what, may_be_absent=True):
            ranges = self._ranges
            if ranges is not None:
                part = await ranges.get(key, Wanted(byte_range), what)
                if part is not None:
                    return part
            answer: Answer = await client.get_object(
                Bucket=self._bucket, Key=key, Range=f"bytes={byte_range.start}-{byte_range.end - 1}"
            )
            async with answer["Body"] as body:
                length = range_length(answer, byte_range, what)
                content = whole(await body.read(), length, what)
            if ranges is not None and length == byte_range.length:
                ranges.was_needless(key)
            return content

    @property
    def page_objects(self) -> int:
        return PAGE_OBJECTS

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        last = start_after
        what = f"list {check_prefix(prefix)}"
        async for page in self._pages(what, Prefix=prefix, StartAfter=start_after):
            for found in listed_objects(page, last, what):
                last = found.key
                yield found

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        what = f"list folders of {check_folder_prefix(prefix)}"
        async for page in self._pages(what, Prefix=prefix, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                yield str(entry["Prefix"])[len(prefix) : -1]

    async def delete(self, key: str) -> None:
        client = await self._opened()
        with translated(f"delete {check_key(key)}"):
            await client.delete_object(Bucket=self._bucket, Key=key)

    async def abort_stale_uploads(
        self, prefix: str, older_than_epoch_ms: int, is_ours: Callable[[str], bool]
    ) -> int:
        client = await self._opened()
        stale: list[tuple[str, str]] = []
        with translated(f"list uploads to {check_prefix(prefix)}"):
            pages = client.get_paginator("list_multipart_uploads")
            async for page in pages.paginate(Bucket=self._bucket, Prefix=prefix):
                stale += [
                    (entry["Key"], entry["UploadId"])
                    for entry in page.get("Uploads", ())
                    if is_ours(entry["Key"])
                    and entry["Initiated"].timestamp() * 1000 < older_than_epoch_ms
                ]
        for key, upload_id in stale:
            await MultipartUpload(client, self._bucket, key, self._config).abort(upload_id)
        return len(stale)

    async def clock_ms(self, prefix: str) -> int | None:
        """By the Date of an answer."""
        client = await self._opened()
        with translated(f"list {check_prefix(prefix)}"):
            answer: Answer = await client.list_objects_v2(
                Bucket=self._bucket, Prefix=prefix, MaxKeys=1
            )
        return answered_at_ms(answer)

    async def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client = None
        await self._resources.aclose()
        await self._sockets.shut()

    async def _pages(self, what: str, **request: str) -> AsyncIterator[Answer]:
        client = await self._opened()
        arguments = {name: value for name, value in request.items() if value}
        while True:
            with translated(what):
                page: Answer = await client.list_objects_v2(Bucket=self._bucket, **arguments)
                token = next_page(page, what)
            yield page
            if token is None:
                return
            arguments["ContinuationToken"] = token

    async def _opened(self) -> Any:
        if self._closed:
            raise RemoteStorageError("the store is closed")
        async with self._opening:
            if self._client is None:
                session = get_session()
                session.register_component("data_loader", _service_descriptions())
                with translated(f"open bucket {self._bucket}"):
                    client = await self._resources.enter_async_context(
                        session.create_client(
                            "s3",
                            endpoint_url=self._endpoint_url,
                            region_name=self._region,
                            config=self._client_config(),
                        )
                    )
                # With "Expect: 100-continue" a server that never says so is waited for without
                # end: no time-out of the HTTP client covers it.
                client.meta.events.unregister("before-call.s3", add_expect_header)
                register(client)
                with translated(f"open bucket {self._bucket}"):
                    self._ranges = await open_range_reads(
                        self._resources, session, client, self._bucket, self._config
                    )
                self._client = client
            return self._client

    def _client_config(self) -> Any:
        return AioConfig(
            connect_timeout=self._config.connect_max_ms / 1000,
            read_timeout=self._config.read_max_ms / 1000,
            max_pool_connections=self._config.connections_max,
            retries={"total_max_attempts": 1},
            connector_args={"socket_factory": self._sockets.new},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            warm_up_loader_caches=True,  # the service description is read on a thread
            s3={
                "addressing_style": "path" if self._endpoint_url else "auto",
                # The signed Content-MD5 stands for the body; hashing it a second time with
                # SHA-256 would be done on the loop, 16 ms for a part.
                "payload_signing_enabled": False,
            },
        )

    async def _put_part(self, key: str, part: Part, **conditions: str) -> None:
        """One part that is the whole object."""
        client = await self._opened()
        # The client's own time-outs do not cover a server that stops taking bytes.
        with translated(f"put {key}"):
            async with asyncio.timeout(self._config.write_max_ms / 1000):
                await client.put_object(
                    Bucket=self._bucket,
                    Key=key,
                    Body=Body(part.content),
                    ContentMD5=part.md5,
                    **conditions,
                )

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise RemoteStorageError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


@cache
def _service_descriptions() -> Any:
    """botocore's own loader, which keeps what it has parsed: 0.1 s of CPU per store otherwise."""
    return get_session().get_component("data_loader")


def _md5(content: bytes) -> str:
    return b64encode(md5(content, usedforsecurity=False).digest()).decode("ascii")
