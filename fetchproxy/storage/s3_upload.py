"""One multipart upload: an object becomes visible whole or not at all, in bounded memory.

However the upload ends other than well, it is aborted, so that its parts do not stay stored (and
billed). Where even that fails, `S3ObjectStore.abort_stale_uploads` finds them later.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import structlog
from botocore.exceptions import ClientError

from fetchproxy.config.sections import StoreConfig
from fetchproxy.errors import RemoteStorageError
from fetchproxy.model import ByteRange
from fetchproxy.storage.s3_errors import translated

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
        self._parts_in_flight_max = config.parts_in_flight_max
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
                for _ in range(min(self._parts_in_flight_max, len(readers))):
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
