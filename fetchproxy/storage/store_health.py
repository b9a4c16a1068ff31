"""How the store answers: listings, reads, writes and deletions, each with a state of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from uuid import UUID

from fetchproxy.errors import (
    DamagedObject,
    ObjectNotFound,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageThrottled,
)
from fetchproxy.model import ByteRange, StoredSegment, TopicIdPartition
from fetchproxy.observability.health import Condition, Health, Kind, of_partition
from fetchproxy.observability.metrics import (
    STORE_FAILING_SECONDS,
    STORE_REQUESTS_PER_S_MAX,
    STORE_UP,
)
from fetchproxy.storage.request_budget import RequestBudget
from fetchproxy.storage.stores.object_store import (
    OBJECT_BYTES_MAX,
    Content,
    ObjectStore,
    StoredObject,
)

# They fail apart: a bucket that is full or read-only is read well, and a key that may not delete
# writes well. It drives the error after a long outage, the log, the metrics and the console.
#
# Pure but for log and gauges: loop times (s) are arguments. "Failing" means that no request of
# the kind has succeeded since the first failed one began; a store that says "no such object" is a
# working one. A request that is not answered at all fails when it has been silent for
# SILENT_AFTER_S.

# Shorter troubles show in the metrics alone: one throttled request is no news.
REPORTED_AFTER_S = 1.0
# Small objects, ranges and listings are answered in less by any store that works. As the console
# looks each 5 s, a store that falls silent is named within 15 s.
SILENT_AFTER_S = 8.0
LOOK_INTERVAL_S = 1.0


class StoreOperation(StrEnum):
    """The value is the name everywhere: in the log, as the metrics' label, in `/api/status`."""

    LIST = "list"
    READ = "read"
    WRITE = "write"
    DELETE = "delete"

    @property
    def requests(self) -> str:
        return {"list": "listings", "delete": "deletions"}.get(self.value, f"{self.value}s")


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """`up` is None before the first answer. `last_error` is kept after recovery, for the operator
    who asks what happened."""

    up: bool | None
    failing_for_s: float
    last_error: str | None


class Request:
    """One that is under way."""

    __slots__ = ("began_at", "health")

    def __init__(self, health: OperationHealth, began_at: float) -> None:
        self.health = health
        self.began_at = began_at

    def answered(self) -> None:
        self.health.waiting.pop(self, None)
        self.health.succeeded(asyncio.get_running_loop().time())


class OperationHealth:
    def __init__(self, operation: StoreOperation, health: Health | None = None) -> None:
        self.operation = operation
        self._health = health or Health()
        self.waiting: dict[Request, None] = {}  # for an answer, oldest first
        self._failing_since: float | None = None
        self._last_failure_at = float("-inf")
        self._last_success_at = float("-inf")
        self._last_error: str | None = None
        self._budget = RequestBudget()
        self._turns = asyncio.Lock()

    @property
    def failing_since(self) -> float | None:
        return self._failing_since

    @property
    def last_failure_at(self) -> float:
        return self._last_failure_at

    def succeeded(self, now: float) -> None:
        self._last_success_at = now
        if self._failing_since is not None:
            self._failing_since = None
            self._health.clear(Kind.STORE_FAILING, self.operation.value, now)
            STORE_UP.labels(self.operation).set(1)
            STORE_FAILING_SECONDS.labels(self.operation).set(0)

    def failed(self, now: float, began_at: float, error: Exception) -> None:
        """A request that began at `began_at` is known to have failed at `now`.

        The outage counts from the beginning of that request, as a store that hangs tells nobody
        before the time-out; but not from before the last success.
        """
        self._last_failure_at = now
        self._note(now, began_at, f"{type(error).__name__}: {error}")

    def look(self, now: float) -> None:
        """Whether a request has been silent for too long; and how long it has been failing."""
        oldest = next(iter(self.waiting), None)
        if oldest is not None and now - oldest.began_at >= SILENT_AFTER_S:
            if self._last_success_at < oldest.began_at:
                silent_s = int(now - oldest.began_at)
                self._note(now, oldest.began_at, f"no answer for {silent_s} s")
        elif self._failing_since is not None:
            self._note(now, self._failing_since, self._last_error or "")
        self._look_at_budget(now)

    def _look_at_budget(self, now: float) -> None:
        per_s = self._budget.per_s(now)
        STORE_REQUESTS_PER_S_MAX.labels(self.operation).set(per_s or 0)
        kind, name = Kind.STORE_THROTTLES, self.operation.value
        if per_s is None:
            self._health.clear(kind, name, now)
            return
        what = (
            f"The store refuses {self.operation.requests} as too many: it gets at most "
            f"{per_s:.0f} a second, and slowly more"
        )
        self._health.report(Condition(kind, what, name, since=self._budget.refused_at))

    def failing_for_s(self, now: float) -> float:
        return 0.0 if self._failing_since is None else now - self._failing_since

    def status(self, now: float) -> OperationStatus:
        asked = self._failing_since is not None or self._last_success_at > float("-inf")
        up = self._failing_since is None if asked else None
        return OperationStatus(up, self.failing_for_s(now), self._last_error)

    def _note(self, now: float, began_at: float, error: str) -> None:
        self._last_error = error
        if self._failing_since is None:
            self._failing_since = max(began_at, self._last_success_at)
            STORE_UP.labels(self.operation).set(0)
        if now - self._failing_since >= REPORTED_AFTER_S:
            self._health.report(self._condition(error, self._failing_since), error=error)
        STORE_FAILING_SECONDS.labels(self.operation).set(now - self._failing_since)

    def _condition(self, error: str, since: float) -> Condition:
        what = f"The store's {self.operation.requests} have been failing: {error}"
        return Condition(Kind.STORE_FAILING, what, self.operation.value, since=since)

    @asynccontextmanager
    async def asked(self, *, may_take_long: bool = False) -> AsyncIterator[Request]:
        """Around one request, which waits for its turn where the store has refused requests as too
        many. `may_take_long`: its silence tells nothing."""
        loop = asyncio.get_running_loop()
        if self._budget.wait_s(loop.time()):
            async with self._turns:  # first come, first served
                await asyncio.sleep(self._budget.wait_s(loop.time()))
        request = Request(self, loop.time())
        self._budget.begins(request.began_at)
        if not may_take_long:
            self.waiting[request] = None
        try:
            yield request
        except (ObjectNotFound, RangeNotSatisfiable, DamagedObject):
            request.answered()
            raise
        except RemoteStorageError as error:
            if isinstance(error, StorageThrottled):
                self._budget.refused(loop.time())
            self.failed(loop.time(), request.began_at, error)
            raise
        finally:
            self.waiting.pop(request, None)


class StoreHealth:
    """Of one store. What it shows is kept right by `run`, also while nobody asks the store."""

    def __init__(self) -> None:
        self._health = Health()
        self._of = {one: OperationHealth(one, self._health) for one in StoreOperation}
        self._changed: dict[TopicIdPartition, UUID] = {}  # the segment that is told

    def __getitem__(self, operation: StoreOperation) -> OperationHealth:
        return self._of[operation]

    def status(self, now: float) -> dict[StoreOperation, OperationStatus]:
        return {operation: health.status(now) for operation, health in self._of.items()}

    def conditions(self, now: float) -> Iterable[Condition]:
        """One for each operation that has failed for at least a second."""
        return self._health.all(now)

    def locked(self, key_id: str, why: str | None) -> None:
        """Whether segments can be opened that are encrypted with the key; None: they can."""
        if why is None:
            self._health.clear(Kind.SEGMENTS_LOCKED, key_id)
        else:
            what = f"Encrypted segments cannot be read: {why}"
            self._health.report(Condition(Kind.SEGMENTS_LOCKED, what, key_id))

    def changed(self, segment: StoredSegment, what: str | None) -> None:
        """Whether a segment's metadata are not those that it was encrypted with; None: they are.

        One of each partition is told.
        """
        tip, segment_id = segment.segment_id.topic_id_partition, segment.segment_id.id
        if what is not None:
            self._changed.setdefault(tip, segment_id)
        if self._changed.get(tip) != segment_id:
            return
        if what is None:
            del self._changed[tip]
            self._health.clear(Kind.SEGMENT_METADATA_CHANGED, tip)
        else:
            self._health.report(of_partition(Kind.SEGMENT_METADATA_CHANGED, tip, what), tip)

    def look(self, now: float) -> None:
        for health in self._of.values():
            health.look(now)

    async def run(self) -> None:
        """For ever."""
        while True:
            self.look(asyncio.get_running_loop().time())
            await asyncio.sleep(LOOK_INTERVAL_S)


# An ObjectStore that notes how another one answers, and asks less where that one refuses requests
# as too many.


class WatchedObjectStore(ObjectStore):
    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.health = StoreHealth()
        self._lists = self.health[StoreOperation.LIST]
        self._reads = self.health[StoreOperation.READ]
        self._writes = self.health[StoreOperation.WRITE]
        self._deletions = self.health[StoreOperation.DELETE]

    async def put(self, key: str, content: bytes) -> None:
        async with self._writes.asked() as request:
            await self.inner.put(key, content)
            request.answered()

    async def put_new(self, key: str, content: bytes) -> bool:
        async with self._writes.asked() as request:
            made = await self.inner.put_new(key, content)
            request.answered()
        return made

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        async with self._writes.asked(may_take_long=True) as request:
            await self.inner.put_file(key, path, settled=settled)
            request.answered()

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        async with self._reads.asked() as request:
            content = await self.inner.get(key, bytes_max)
            request.answered()
        return content

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        async with self._reads.asked() as request:
            content = await self.inner.get_range(key, byte_range)
            request.answered()
        return content

    @property
    def page_objects(self) -> int | None:
        return self.inner.page_objects

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        async with self._lists.asked() as request:
            first = True
            async for found in self.inner.list(prefix, start_after):
                if first:
                    request.answered()
                first = False
                yield found
            request.answered()

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        async with self._lists.asked() as request:
            first = True
            async for name in self.inner.list_folders(prefix):
                if first:
                    request.answered()
                first = False
                yield name
            request.answered()

    async def delete(self, key: str) -> None:
        async with self._deletions.asked() as request:
            await self.inner.delete(key)
            request.answered()

    async def close(self) -> None:
        await self.inner.close()
