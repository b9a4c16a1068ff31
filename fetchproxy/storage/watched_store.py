"""A store as the rest of the program uses it: its requests are sent again after passing errors, its
health is known, and a fault of one object is told from a fault of the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TypeVar

from cachetools import TTLCache

from fetchproxy.errors import (
    ArchiveMissing,
    KeyServiceError,
    ObjectFailing,
    ObjectNotReadable,
    RemoteStorageError,
    StorageDenied,
    StorageThrottled,
    StoreMissing,
)
from fetchproxy.model import ByteRange
from fetchproxy.storage.reader_accounts import ReaderAccounts, StoreRequest
from fetchproxy.storage.store_health import OperationHealth, StoreHealth, StoreOperation
from fetchproxy.storage.stores.object_store import (
    OBJECT_BYTES_MAX,
    SMALL_OBJECT_BYTES_MAX,
    Content,
    ObjectStore,
    WrappedObjectStore,
)
from fetchproxy.storage.stores.retries import is_each_object_alone, retried

T = TypeVar("T")
C = TypeVar("C", bound=Content)

# A refusal without a code that says whether the store refuses every object or only this one.
_OF_STORE_OR_OBJECT = (StorageDenied, RemoteStorageError)
PROBE_GOOD_FOR_S = 5.0
# These are never about one object alone.
_OF_STORE = (ArchiveMissing, KeyServiceError, StoreMissing)
# A store that gives out the probed object may fail for all others. If so many segments (or other
# objects) fail one after the other, the store fails.
FAILING_IN_A_ROW_MAX = 5


# Cloud Storage accepts one write of a name in a second, and answers 429 to others.
TOO_MANY_REQUESTS = 429
NAME_WRITTEN_EACH_S = 1.05
WRITTEN_MAX = 10_000


class WatchedObjectStore(WrappedObjectStore):
    """Another store, whose requests are sent again after passing errors (`stores.retries`). Records
    its health, and slows down if that store refuses many requests as too many.

    `probe_key`: an object that every reader of the archive may read. If it can be read and another
    object is refused, the fault is of that object (ObjectNotReadable), and not of the store.
    """

    def __init__(self, inner: ObjectStore, probe_key: str | None = None) -> None:
        super().__init__(inner)
        self.health = StoreHealth()
        self.accounts = ReaderAccounts()
        self._probe_key = probe_key
        self._probed_at = float("-inf")  # loop time of the last probe that succeeded
        self._read_at = float("-inf")  # loop time of the last read that succeeded
        self._failing: set[str] = set()  # segments that have failed since then
        # Loop times (s) of the last writes, by key.
        self._written: TTLCache[str, float] = TTLCache(
            WRITTEN_MAX, NAME_WRITTEN_EACH_S, lambda: asyncio.get_running_loop().time()
        )

    async def put(self, key: str, content: bytes) -> str | None:
        return await self._write(key, lambda: self.inner.put(key, content))

    async def put_new(self, key: str, content: bytes) -> bool:
        """If a try may have succeeded without a response, an object with this content is its
        own.
        """
        failed: list[RemoteStorageError] = []

        async def put() -> bool:
            try:
                if await self.inner.put_new(key, content):
                    return True
            except RemoteStorageError as error:
                failed.append(error)
                raise
            if not failed:
                return False
            self.accounts.requested(StoreRequest.GET)
            return await self.inner.get(key) == content

        return await self._write(key, put)

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        """The store itself repeats the requests of an upload: this would repeat the whole file."""
        health = self.health[StoreOperation.WRITE]
        async with health.watch_request(key=key, may_take_long=True):
            try:
                await self.inner.put_file(key, path, settled=settled)
            except StorageThrottled as error:
                health.refused(error, key)
                raise

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        return await self._read(key, lambda: self.inner.get(key, bytes_max))

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        return await self._read(key, lambda: self.inner.get_range(key, byte_range))

    async def delete(self, key: str) -> None:
        health = self.health[StoreOperation.DELETE]
        await self._request(health, None, key, lambda: self.inner.delete(key), health.refused)

    async def _write(self, key: str, call: Callable[[], Awaitable[T]]) -> T:
        health = self.health[StoreOperation.WRITE]
        clock = asyncio.get_running_loop().time

        def failed(error: RemoteStorageError) -> None:
            written_at = self._written.get(key)
            if written_at is not None and error.status == TOO_MANY_REQUESTS:
                # A limit of this name, and not of the store.
                left_s = written_at + NAME_WRITTEN_EACH_S - clock()
                error.retry_after_s = max(error.retry_after_s, left_s)
            else:
                health.refused(error, key)

        result = await self._request(health, StoreRequest.PUT, key, call, failed)
        self._written[key] = clock()
        return result

    async def _read(self, key: str, call: Callable[[], Awaitable[C]]) -> C:
        health = self.health[StoreOperation.READ]

        async def read() -> C:
            async with self._blamed(key):
                content = await call()
                self.accounts.received(len(content))
                return content

        clock = asyncio.get_running_loop().time
        begun_at = clock()
        try:
            content = await self._request(health, StoreRequest.GET, key, read, health.refused)
        except RemoteStorageError as error:
            if is_each_object_alone() and await self._fails_alone(key, error, begun_at):
                raise ObjectFailing(f"{error}; the store returns other objects") from error
            raise
        self._read_at = clock()
        self._failing.clear()
        return content

    async def _fails_alone(self, key: str, error: RemoteStorageError, begun_at: float) -> bool:
        """Whether the store works after the last try of a read that began at `begun_at`."""
        if not error.retriable or isinstance(error, _OF_STORE):
            return False
        if not await self._gives_others(key, known_for_s=0.0):
            return False
        if self._read_at < begun_at:
            folder, _, name = key.rpartition("/")
            self._failing.add(f"{folder}/{name.partition('.')[0]}")
        return len(self._failing) < FAILING_IN_A_ROW_MAX

    async def _request(
        self,
        health: OperationHealth,
        kind: StoreRequest | None,
        key: str,
        call: Callable[[], Awaitable[T]],
        on_failure: Callable[[RemoteStorageError], object],
    ) -> T:
        """`kind`: the kind of request as which each try counts; None: it does not count."""
        attempt_times: list[float] = []

        async def one() -> T:
            if attempt_times:
                await health.turn()
            attempt_times.append(asyncio.get_running_loop().time())
            if kind is not None:
                self.accounts.requested(kind)
            return await call()

        async with health.watch_request(key=key, attempt_times=attempt_times):
            return await retried(key, one, on_failure)

    @asynccontextmanager
    async def _blamed(self, key: str) -> AsyncIterator[None]:
        try:
            yield
        except RemoteStorageError as error:
            of_disk = error.may_be_of_object
            if not of_disk and type(error) not in _OF_STORE_OR_OBJECT:
                raise
            if not await self._gives_others(key, 0.0 if of_disk else PROBE_GOOD_FOR_S):
                raise
            remedy = (
                "check the disks that it lies on, or copy it again"
                if of_disk
                else "give access to this object or its key, or copy it again"
            )
            raise ObjectNotReadable(
                f"{error}; the store returns other objects: {remedy}"
            ) from error

    async def _gives_others(self, key: str, known_for_s: float = PROBE_GOOD_FOR_S) -> bool:
        """`known_for_s`: how old a successful probe may be."""
        now = asyncio.get_running_loop().time()
        if self._probe_key is None or key == self._probe_key:
            return False
        if now - self._probed_at >= known_for_s:
            self.accounts.requested(StoreRequest.GET)
            try:
                await self.inner.get(self._probe_key, SMALL_OBJECT_BYTES_MAX)
            except RemoteStorageError:
                return False
            self._probed_at = now
        return True

    def around(
        self, verb: str, key: str | None = None
    ) -> AbstractAsyncContextManager[Callable[[], object]]:
        if verb not in ("list", "list_folders"):
            return nullcontext(lambda: None)
        return self._listing()

    def _counting_pages(self, responded: Callable[[], None]) -> Callable[[], None]:
        """`responded`, which also counts the request for each page but the first."""
        page_objects, entries = self.inner.page_objects, 0

        def came() -> None:
            nonlocal entries
            responded()
            entries += 1
            if page_objects is not None and entries % page_objects == 1 and entries > 1:
                self.accounts.requested(StoreRequest.LIST)

        return came

    @asynccontextmanager
    async def _listing(self) -> AsyncIterator[Callable[[], None]]:
        """The store itself repeats the request for a page. One folder that its disk does not give
        out is no failure of the store.
        """
        health, of_folder = self.health[StoreOperation.LIST], None
        self.accounts.requested(StoreRequest.LIST)
        async with health.watch_request() as responded:
            try:
                yield self._counting_pages(responded)
            except StorageThrottled as error:
                health.refused(error)
                raise
            except RemoteStorageError as error:
                if error.may_be_of_object and not await self._gives_others("", 0.0):
                    error.may_be_of_object = False
                if not error.may_be_of_object:
                    raise
                of_folder = error
        if of_folder is None:
            return
        if is_each_object_alone():
            message = f"{of_folder}; the store returns other objects: check the disks and mounts"
            failing = ObjectFailing(message)
            failing.may_be_of_object = True
            raise failing from of_folder
        raise of_folder
