"""KIP-405's "Remote Storage Fetcher Thread Pool": single-flight, bounded, retried, and fair to
all clients.

A `Load` is one piece of work that several callers may ask for: a view, an index, a chunk. It runs
in its own task and is retried as long as a caller has asked for it recently. The response to a
client has a deadline; the work does not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog

from fetchproxy.config.schema import RemoteFetchConfig
from fetchproxy.errors import (
    CorruptSegment,
    FetchProxyError,
    KeyServiceError,
    KeyServiceUnavailable,
    ObjectNotFound,
    RangeNotSatisfiable,
    ReadCrashed,
    RemoteStorageError,
    StorageUnavailable,
)
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import (
    BACKOFFS,
    REMOTE_FETCH_ERRORS,
    REMOTE_FETCH_REQUESTS,
    REMOTE_LOG_READER_FETCH_TIME_MS,
    REMOTE_LOG_READER_TASK_QUEUE_SIZE,
    REMOTE_READS_IN_FLIGHT,
)
from fetchproxy.observability.tracing import span
from fetchproxy.reading.chunk_cache import Chunk
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.read_budget import PACKING_RESERVED_BYTES, ReadBudget, Slot
from fetchproxy.runtime.retrying import Backoff
from fetchproxy.storage.reader_accounts import paid_by
from fetchproxy.storage.store_health import OperationHealth
from fetchproxy.storage.stores.retries import tried_once

log = structlog.get_logger(__name__)

# A corrupt response may have been damaged in transit. It is read once more, then taken as corrupt.
CORRUPT_READS_MAX = 2


class MoreBytesNeeded(FetchProxyError):
    """An attempt has reserved too little for what it reads. `attempt` reads it, with `size_bytes`
    reserved.
    """

    def __init__(self, size_bytes: int, attempt: Callable[[], Awaitable[Chunk | None]]) -> None:
        super().__init__(f"{size_bytes} bytes must be reserved")
        self.size_bytes = size_bytes
        self.attempt = attempt


class Opening(Protocol):
    """See `packed_logs.SegmentOpening`."""

    @property
    def is_described(self) -> bool: ...
    @property
    def is_open(self) -> bool: ...
    async def describe(self) -> None: ...
    async def unlock(self, client: Hashable) -> None: ...
    def join(self, client: Hashable) -> None: ...


@dataclass(eq=False, repr=False)
class Load:
    """Once `done` is set, the load has succeeded, or `error` gives the reason. Times are loop time
    (s).

    `key`: makes the load single-flight. `attempt`: one try. `size_bytes`: reserved for each try.
    `on_corrupt`: called once if the stored bytes are wrong, before the load is done. `nearby`:
    called first, without a place among the reads of the store; returns None if it has no chunk.
    `opening`: opens a packed segment before its bytes are read.
    `chunk`: the loaded chunk, for the waiting callers, because the cache may have evicted it.
    """

    key: Hashable
    name: str  # for logs: "chunk 3 of …"
    tp: TopicIdPartition
    size_bytes: int
    attempt: Callable[[], Awaitable[Chunk | None]]
    on_corrupt: Callable[[CorruptSegment], None]
    needed_until: float
    is_read_ahead: bool = False
    client: Hashable = None  # the load takes this client's turn, and is on its account
    nearby: Callable[[], Awaitable[Chunk | None]] | None = None
    opening: Opening | None = None
    begun_at: float = 0.0
    failures: int = 0
    failing_since: float | None = None
    error: FetchProxyError | None = field(
        default_factory=lambda: StorageUnavailable("the read side is closed")
    )
    chunk: Chunk | None = None
    slot: Slot | None = None
    corrupt_reads: int = 0
    waiting: int = 0  # callers in `FetcherPool.wait`
    done: asyncio.Event = field(default_factory=asyncio.Event)


class FetcherPool:
    """Its loads run in the caller's `tasks`, which must outlive it."""

    def __init__(
        self,
        config: RemoteFetchConfig,
        tasks: asyncio.TaskGroup,
        rng: random.Random,
        health: OperationHealth,
        limits: ReadingLimits = ReadingLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._tasks = tasks
        self._random = rng
        self._health = health
        self._attempt_max_s = limits.chunk_read_max_ms / 1000
        self._backoff = Backoff(
            limits.backoff_initial_ms, limits.backoff_max_ms, limits.backoff_jitter
        )
        self.budget = ReadBudget(
            limits.fetcher_tasks_max, config.inflight_bytes_max, limits.small_reads_max
        )
        self._loads: dict[Hashable, tuple[Load, asyncio.Task[None]]] = {}
        self.ahead_bytes = 0  # of loads that read ahead and that no client has asked for yet

    def load(self, load: Load) -> Load:
        """Begin `load`, or join the running load with the same key. Returns the load that runs."""
        running = self._loads.get(load.key)
        if running is not None:
            self.touch(running[0], load.needed_until, load.is_read_ahead, load.client)
            return running[0]
        load.begun_at = asyncio.get_running_loop().time()
        if load.is_read_ahead:
            self.ahead_bytes += load.size_bytes
        task = self._tasks.create_task(self._run(load), name=f"remote load {load.name}")
        self._loads[load.key] = (load, task)
        # A task that is cancelled before its first step runs none of its own code.
        task.add_done_callback(lambda _: self._finish(load))
        return load

    def touch(
        self, load: Load, needed_until: float, is_read_ahead: bool = False, client: Hashable = None
    ) -> None:
        """A caller asks for the load (again): it is retried until `needed_until` at least."""
        load.needed_until = max(load.needed_until, needed_until)
        if load.is_read_ahead and not is_read_ahead:
            load.is_read_ahead = False
            self.ahead_bytes -= load.size_bytes
            load.client = client
            if load.slot is not None:
                self.budget.promote(load.slot, client)
        elif load.slot is not None:
            self.budget.join(load.slot, client)
        if load.opening is not None:
            load.opening.join(client)

    async def wait(self, load: Load) -> None:
        """Wait until the load is done. If all callers that wait are cancelled, as their clients
        are gone, so is the load: it would keep its place at the store from others.
        """
        load.waiting += 1
        try:
            await load.done.wait()
        finally:
            load.waiting -= 1
            if not (load.waiting or load.done.is_set()):
                self._cancel(load)

    def _cancel(self, load: Load) -> None:
        """Who asks for the same in this turn begins a new load."""
        _, task = self._loads[load.key]
        self._finish(load)
        task.cancel()

    def is_loading(self, key: Hashable) -> bool:
        return key in self._loads

    def is_ahead(self, key: Hashable) -> bool:
        """The load is running, and no client has asked for it yet."""
        running = self._loads.get(key)
        return running is not None and running[0].is_read_ahead

    def cancel_all(self) -> None:
        for _, task in self._loads.values():
            task.cancel()

    async def _run(self, load: Load) -> None:
        try:
            with span("remote load", what=load.name):
                await self._load(load)
        finally:
            self._finish(load)

    async def _load(self, load: Load) -> None:
        loop = asyncio.get_running_loop()
        if await self._found_nearby(load):
            return
        REMOTE_FETCH_REQUESTS.labels(load.tp.topic).inc()
        while (failure := await self._attempt(load)) is not None:
            if not self._may_retry(load, failure, loop.time()):
                load.error = failure
                if isinstance(failure, CorruptSegment):
                    load.on_corrupt(failure)
                REMOTE_FETCH_ERRORS.labels(load.tp.topic).inc()
                return
            if not isinstance(failure, CorruptSegment):
                BACKOFFS.inc()
                pause_ms = self._backoff.pause_ms(load.failures, self._random.random())
                await asyncio.sleep(pause_ms / 1000)
        load.error = None
        REMOTE_LOG_READER_FETCH_TIME_MS.observe((loop.time() - load.begun_at) * 1000)

    async def _found_nearby(self, load: Load) -> bool:
        if load.nearby is None:
            return False
        try:
            load.chunk = await load.nearby()
        except Exception:  # the chunk can still be read from the store
            log.exception("remote_read_crashed", read=load.name)
        if load.chunk is not None:
            load.error = None
        return load.chunk is not None

    def _finish(self, load: Load) -> None:
        if load.done.is_set():
            return
        del self._loads[load.key]
        if load.is_read_ahead:
            self.ahead_bytes -= load.size_bytes
        load.done.set()

    def _may_retry(self, load: Load, failure: FetchProxyError, now: float) -> bool:
        """Retry all failures except a missing object and a second corrupt read. This includes
        failures that an operator has to repair first.

        A denied request is retried too: expired credentials are renewed, and until then the client
        must keep its place as in any other outage.
        """
        if isinstance(failure, CorruptSegment):
            return load.corrupt_reads < CORRUPT_READS_MAX
        if isinstance(failure, ObjectNotFound):
            return False
        return now < load.needed_until

    async def _attempt(self, load: Load) -> FetchProxyError | None:
        """One try. Returns its error, or None."""
        opening = load.opening
        if opening is not None and not opening.is_described:
            failure = await self._run_at_store(load, opening.describe, PACKING_RESERVED_BYTES)
            if failure is not None:
                return failure
        if opening is not None and not opening.is_open:
            began_at = asyncio.get_running_loop().time()
            unlock = partial(opening.unlock, load.client)
            # The store has no part in it, so it fails no health of the store.
            failure = await self._try(load, unlock, KeyServiceUnavailable)
            if failure is not None:
                self._note(load, failure, began_at)
                return failure
        failure = await self._run_at_store(load, load.attempt, load.size_bytes)
        if isinstance(failure, MoreBytesNeeded):
            self._reserve_more(load, failure)
            failure = await self._run_at_store(load, load.attempt, load.size_bytes)
        return failure

    def _reserve_more(self, load: Load, needed: MoreBytesNeeded) -> None:
        """From now on. The load waits for them without a place."""
        if load.is_read_ahead:
            self.ahead_bytes += needed.size_bytes - load.size_bytes
        load.size_bytes, load.attempt = needed.size_bytes, needed.attempt

    async def _run_at_store(
        self, load: Load, work: Callable[[], Awaitable[Chunk | None]], size_bytes: int
    ) -> FetchProxyError | None:
        """Under a slot and a time-out."""
        slot = load.slot = Slot(size_bytes, load.is_read_ahead, load.client)
        REMOTE_LOG_READER_TASK_QUEUE_SIZE.inc()
        try:
            await self.budget.acquire(slot)
        finally:
            REMOTE_LOG_READER_TASK_QUEUE_SIZE.dec()
        began_at = asyncio.get_running_loop().time()
        REMOTE_READS_IN_FLIGHT.inc()
        try:
            failure = await self._try(load, work, StorageUnavailable)
        finally:
            REMOTE_READS_IN_FLIGHT.dec()
            load.slot = None
            self.budget.release(slot)
        self._note(load, failure, began_at)
        return failure

    async def _try(
        self,
        load: Load,
        work: Callable[[], Awaitable[Chunk | None]],
        late: type[RemoteStorageError],
    ) -> FetchProxyError | None:
        try:
            async with asyncio.timeout(self._attempt_max_s):
                # This pool's back-off repeats it.
                with tried_once(), paid_by(load.client):
                    load.chunk = await work()
        except TimeoutError:
            return late(f"{load.name}: no response in {self._attempt_max_s} s")
        except RangeNotSatisfiable as error:
            return CorruptSegment(f"{load.name}: the object is too short: {error}")
        except (RemoteStorageError, CorruptSegment, MoreBytesNeeded) as error:
            return error
        except Exception as error:  # a bug in one read must not end all reads
            log.exception("remote_read_crashed", read=load.name)
            self._health.crashed(error)
            return ReadCrashed(f"{load.name}: {type(error).__name__}: {error}")
        return None

    def _note(self, load: Load, failure: FetchProxyError | None, began_at: float) -> None:
        now = asyncio.get_running_loop().time()
        load.corrupt_reads += isinstance(failure, CorruptSegment)
        no_outage = CorruptSegment | ObjectNotFound | MoreBytesNeeded
        if failure is None or isinstance(failure, no_outage):
            load.failures = 0
            load.failing_since = None
            self._health.succeeded(now)
            return
        load.failures += 1
        if load.failing_since is None:
            load.failing_since = began_at
        if not isinstance(failure, KeyServiceError | ReadCrashed):  # they say nothing about it
            self._health.failed(now, began_at, failure)
        log.debug(
            "remote_read_failed",
            topic=load.tp.topic,
            partition=load.tp.partition,
            read=load.name,
            failures=load.failures,
            error=str(failure),
        )
