"""Objects as files below one folder of an HDFS, accessed by WebHDFS.

A put writes a temporary file in the object's folder and renames it over the old object, which HDFS
does in one step. This needs the NameNode's WebHDFS (Hadoop 3), which is on by default. HttpFS has
no such rename, so an archive behind it can only be read. For a cluster with Kerberos the client
uses a delegation token, which it gets with a ticket or reads from a file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import structlog

from fetchproxy.config.memory_plan import PART_BYTES
from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import (
    ObjectNotFound,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageUnavailable,
    StoreMissing,
    too_large,
)
from fetchproxy.model import ByteRange
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.segments.object_keys import check_folder_prefix, check_key, check_prefix
from fetchproxy.storage.stores.filesystem import OWN_MARK, TEMPORARY_START
from fetchproxy.storage.stores.locations import HdfsLocation
from fetchproxy.storage.stores.object_store import (
    FILE_NAME_BYTES_MAX,
    OBJECT_BYTES_MAX,
    ObjectStore,
    StoredObject,
    file_bytes,
    file_parts,
    http_date_ms,
)
from fetchproxy.storage.stores.retries import retried
from fetchproxy.storage.stores.webhdfs import (
    NOT_FOUND,
    TAKEN,
    FileStatus,
    KeyOrder,
    LongerThanWanted,
    RemoteFault,
    WebHdfsClient,
    file_status,
    list_after,
    listed_page,
    translated_webhdfs_error,
)

log = structlog.get_logger(__name__)

_Names = list[str]  # because `list` is a method within the class
Statuses = list[FileStatus]

_SEND_BYTES = 1024 * 1024  # of an object in memory, sent at once
_CLEAN_UP_MAX_S = 5.0  # the caller has failed or is cancelled, and should not wait for long
_LATE_FILE_PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)  # abort_stale_uploads finds later files
_FOLDERS_AT_ONCE = 16
# A folder with more entries than this is assumed to contain an object, because a look would list a
# page of a thousand entries. Killed uploads never leave so many files.
_CHILDREN_IN_DOUBT_MAX = 64


class HdfsObjectStore(ObjectStore):
    """Objects as files in HDFS, over WebHDFS. `create`: the first put makes the location's folder;
    then its absence is an outage.
    """

    def __init__(
        self,
        location: HdfsLocation,
        *,
        create: bool = False,
        config: StoreConfig | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._part_bytes = part_bytes
        self._folder = location.folder
        self._client = WebHdfsClient(location, config or StoreConfig())
        self._create = create

    @property
    def part_bytes_max(self) -> int:
        return FILE_NAME_BYTES_MAX

    async def put(self, key: str, content: bytes) -> None:
        await self._put(key, len(content), _slices(content))

    async def put_new(self, key: str, content: bytes) -> bool:
        try:
            await self._put(key, len(content), _slices(content), "NONE")
        except RemoteStorageError as error:
            if isinstance(error.__cause__, RemoteFault) and error.__cause__.exception == TAKEN:
                return False
            raise
        return True

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        """Bytes in memory: about two parts."""
        check_key(key)
        size_bytes = await asyncio.to_thread(file_bytes, path)
        # One request sends the whole file, so that is what is sent again.
        await retried(
            f"put {key}", lambda: self._put(key, size_bytes, self._file_content(path, size_bytes))
        )

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        try:
            return await self._read(key, f"get {check_key(key)}", bytes_max)
        except LongerThanWanted as longer:
            raise too_large(key, longer.size_bytes, bytes_max) from None

    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        start, length = byte_range.start, byte_range.length
        operation = f"get {check_key(key)} bytes {start} to {byte_range.end}"
        try:
            content = await self._read(
                key, operation, length, offset=str(start), length=str(length)
            )
        except StorageUnavailable as error:
            # For a range past the end, HDFS answers with an unspecific exception.
            if not isinstance(error.__cause__, RemoteFault):
                raise
            if start < (await self._status(key, operation)).size_bytes:
                raise
            raise RangeNotSatisfiable(f"{operation}: the object ends before that") from None
        if not content:
            raise RangeNotSatisfiable(f"{operation}: the object ends before that")
        return content

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        folder, slash, name_start = check_prefix(prefix).rpartition("/")
        await self._check_listed()
        async for key, status in self._walk(folder + slash, name_start, start_after):
            yield StoredObject(key, status.size_bytes, status.version)
        # If the folder has gone, files that vanished during the walk were not deleted.
        await self._check_listed()

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        check_folder_prefix(prefix)
        await self._check_listed()
        waiting: Statuses = []
        async for entry in self._entries(prefix):
            if entry.is_folder and entry.children:
                waiting.append(entry)
            if len(waiting) == _FOLDERS_AT_ONCE:
                for name in await self._with_objects(prefix, waiting):
                    yield name
                waiting = []
        for name in await self._with_objects(prefix, waiting):
            yield name
        await self._check_listed()

    async def delete(self, key: str) -> None:
        if not await self._delete(check_key(key)):
            await self._check_present()

    async def abort_stale_uploads(
        self, prefix: str, older_than_epoch_ms: int, is_ours: Callable[[str], bool]
    ) -> int:
        """Temporary files of this store have names that no other program uses."""
        folder, slash, _ = check_prefix(prefix).rpartition("/")
        await self._check_listed()
        removed = 0
        async for path, status in self._walk(folder + slash, "", "", temporaries=True):
            if status.modified_epoch_ms < older_than_epoch_ms:
                removed += await self._delete(path)
        return removed

    async def clock_ms(self, prefix: str) -> int | None:
        await self._check_present()
        return http_date_ms(self._client.date)

    async def close(self) -> None:
        await self._client.close()

    async def _put(
        self,
        key: str,
        size_bytes: int,
        content: AsyncIterator[bytes],
        rename_options: str = "OVERWRITE",
    ) -> None:
        """The rename is atomic (FileContext.rename with OVERWRITE). With NONE an existing object is
        a RemoteFault whose exception is TAKEN.
        """
        folder, slash, _ = check_key(key).rpartition("/")
        await self._check_writable()
        temporary = f"{folder}{slash}{TEMPORARY_START}{uuid4().hex}"
        with translated_webhdfs_error(f"put {key}"):
            target_url = await self._client.place_for(temporary)
            try:
                await self._client.create(target_url, size_bytes, content)
                await self._rename(temporary, key, rename_options)
            except BaseException:
                await self._remove_after_failure(temporary)
                raise

    async def _rename(self, temporary: str, key: str, options: str) -> None:
        destination = self._client.absolute(key)
        response = await self._client.ask(
            "PUT", "RENAME", temporary, destination=destination, renameoptions=options
        )
        if response.get("boolean") is False:
            raise RemoteStorageError(
                f"put {key}: not renamed; HttpFS cannot replace a file, use a NameNode's WebHDFS"
            )

    async def _remove_after_failure(self, temporary: str) -> None:
        """Tries several times, as a DataNode may make the file after its client has left."""
        try:
            async with asyncio.timeout(_CLEAN_UP_MAX_S):
                for pause_s in _LATE_FILE_PAUSES_S:
                    await asyncio.sleep(pause_s)
                    if await self._delete(temporary):
                        return
        except (RemoteStorageError, TimeoutError) as error:
            log.warning("temporary_not_removed", key=temporary, error=str(error))

    async def _read(self, key: str, operation: str, bytes_max: int, **span: str) -> bytes:
        try:
            with translated_webhdfs_error(operation, may_be_absent=True):
                content = await self._client.read(key, bytes_max, **span)
                self._create = False
                return content
        except ObjectNotFound:
            await self._check_present()
            raise

    async def _status(self, path: str, operation: str) -> FileStatus:
        with translated_webhdfs_error(operation, may_be_absent=True):
            return file_status(await self._client.ask("GET", "GETFILESTATUS", path), operation)

    async def _delete(self, path: str) -> bool:
        """Delete a file, and the folders that become empty. False: the file was missing."""
        with translated_webhdfs_error(f"delete {path}"):
            if not await self._delete_one(path):
                return False
            # Object stores have no empty folders. A concurrent put makes them again.
            while path := path.rpartition("/")[0]:
                if not await self._delete_one(path):
                    break
        return True

    async def _delete_one(self, path: str) -> bool:
        try:
            response = await self._client.ask("DELETE", "DELETE", path, recursive="false")
        except RemoteFault as fault:
            if fault.exception in NOT_FOUND | {"PathIsNotEmptyDirectoryException"}:
                return False
            raise
        return response.get("boolean") is True

    async def _check_present(self) -> None:
        operation = f"look for {self._folder}"
        may_be_absent = self._create  # read before the check: a put may be making it
        try:
            status = await self._status("", operation)
        except ObjectNotFound:
            if may_be_absent:
                return
            raise StoreMissing(f"the folder {self._folder} is not there") from None
        if not status.is_folder:
            raise StorageUnavailable(f"{self._folder} is a file")
        self._create = False

    async def _check_listed(self) -> None:
        """As `_check_present`, tried again. Other requests are tried again as a whole."""
        await retried(f"look for {self._folder}", self._check_present)

    async def _check_writable(self) -> None:
        """Makes the folder if `create` is set and it was never seen. Raises StorageUnavailable."""
        await self._check_present()
        if self._create:
            with translated_webhdfs_error(f"make {self._folder}"):
                await self._client.ask("PUT", "MKDIRS", "")
            self._create = False

    async def _walk(
        self, folder: str, name_start: str, start_after: str, *, temporaries: bool = False
    ) -> AsyncIterator[tuple[str, FileStatus]]:
        """(key, status) of all objects, or all temporary files, below `folder`, in key order."""
        after = start_after.removeprefix(folder) if start_after.startswith(folder) else ""
        if not after and start_after > folder:
            return
        async for entry in self._entries(folder, name_start, after, temporaries):
            key = folder + entry.name
            if not entry.is_folder:
                if key > start_after:
                    yield key, entry
            elif f"{key}/" > start_after or start_after.startswith(f"{key}/"):
                below = self._walk(f"{key}/", "", start_after, temporaries=temporaries)
                async for child in below:
                    yield child

    async def _entries(
        self, folder: str, name_start: str = "", start_after: str = "", temporaries: bool = False
    ) -> AsyncIterator[FileStatus]:
        """A folder's entries whose names begin with `name_start`, in key order; none if the folder
        is missing.
        """
        order = KeyOrder()
        after = list_after(start_after, name_start)
        more = True
        while more:
            page, more = await self._page(folder, after)
            for entry in page:
                after = entry.name
                if name_start and after > name_start and not after.startswith(name_start):
                    more = False
                    break
                is_own = OWN_MARK in entry.name
                matches = (entry.is_folder and not is_own) or is_own is temporaries
                if matches and entry.name.startswith(name_start):
                    for ready in order.add(entry):
                        yield ready
        for ready in order.rest():
            yield ready

    async def _page(self, folder: str, after: str) -> tuple[Statuses, bool]:
        operation = f"list {folder}"

        async def page() -> tuple[Statuses, bool]:
            with translated_webhdfs_error(operation, may_be_absent=True):
                response = await self._client.ask(
                    "GET", "LISTSTATUS_BATCH", folder, startAfter=after
                )
            return listed_page(response, after, operation)

        try:
            return await retried(operation, page)
        except ObjectNotFound:
            return [], False

    async def _with_objects(self, prefix: str, folders: Statuses) -> _Names:
        """The names of the folders that contain an object, in the given order."""
        holds: dict[str, bool] = {}

        async def look(entry: FileStatus) -> None:
            holds[entry.name] = await self._holds_object(f"{prefix}{entry.name}/", entry)

        await for_each(folders, look, len(folders))
        return [entry.name for entry in folders if holds[entry.name]]

    async def _holds_object(self, folder: str, status: FileStatus) -> bool:
        if status.children > _CHILDREN_IN_DOUBT_MAX:
            return True
        async for entry in self._entries(folder):
            if not entry.is_folder or await self._holds_object(f"{folder}{entry.name}/", entry):
                return True
        return False

    async def _file_content(self, path: Path, size_bytes: int) -> AsyncIterator[bytes]:
        parts = file_parts(path, self._part_bytes, size_bytes)
        while part := await asyncio.to_thread(next, parts, b""):
            yield part


async def _slices(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _SEND_BYTES):
        yield content[start : start + _SEND_BYTES]
