"""KIP-405's "Remote Storage Fetcher Thread Pool": single-flight, bounded, retried, and fair to
all clients.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
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
    RemoteStorageError,
    StorageUnavailable,
)
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import (
    BACKOFFS,
    HEDGED_READS,
    INFLIGHT_BYTES,
    READERS_WAITING,
    REMOTE_FETCH_ERRORS,
    REMOTE_FETCH_REQUESTS,
    REMOTE_LOG_READER_FETCH_TIME_MS,
    REMOTE_LOG_READER_TASK_QUEUE_SIZE,
    REMOTE_READS_IN_FLIGHT,
)
from fetchproxy.reading.chunk_cache import Chunk
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.runtime.fairness import FairQueue
from fetchproxy.runtime.retrying import Backoff
from fetchproxy.storage.store_health import OperationHealth
from fetchproxy.storage.stores.object_store import Content
from fetchproxy.storage.stores.retries import tried_once

# A full budget makes readers wait; it never refuses them. Clients that wait are served in turn
# (`fairness`). Reads that a fetch waits for go before reads ahead. Reads ahead may take at most
# half of the places, so that they do not fill a hanging store.

# The least that a read costs its client: a small read takes a place for as long as a large one.
COST_BYTES_MIN = 256 * 1024
# Reserved while a packing is read, because its size is not known: one of a segment of 1 GiB.
PACKING_RESERVED_BYTES = 32 * 1024


@dataclass(eq=False, repr=False, slots=True)
class Slot:
    """One read's place, first in the queue, then at the store. `client`: the client it is for."""

    size_bytes: int
    ahead: bool
    client: Hashable = None
    taken: bool = False
    granted: asyncio.Future[None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class ReadBudget:
    def __init__(self, tasks_max: int, bytes_max: int) -> None:
        self._tasks_max = tasks_max
        self._ahead_max = max(1, tasks_max // 2)
        self._bytes_max = bytes_max
        self._asked: FairQueue[Slot] = FairQueue()
        self._ahead: FairQueue[Slot] = FairQueue()
        self._ahead_taken = 0
        self.tasks_taken = 0
        self.bytes_taken = 0

    @property
    def waiting(self) -> int:
        return len(self._asked) + len(self._ahead)

    async def acquire(self, permit: Slot) -> None:
        """Wait for a place; clients take turns. If cancelled, it passes the place on."""
        self._enter_queue(permit)
        self._grant()
        try:
            await permit.granted
        except asyncio.CancelledError:
            if permit.taken:
                self.release(permit)
            else:
                self._leave_queue(permit)
                self._grant()
            raise

    def try_acquire(self, permit: Slot) -> bool:
        """Take a place without waiting. False: none is free, or another read waits for one."""
        if self.waiting or not self._fits(permit):
            return False
        self._take(permit)
        return True

    def release(self, permit: Slot) -> None:
        self.tasks_taken -= 1
        self.bytes_taken -= permit.size_bytes
        self._ahead_taken -= permit.ahead
        self._grant()

    def join(self, permit: Slot, client: Hashable) -> None:
        """Another client waits for the same read, which goes at the first turn of any of them. Does
        nothing if the permit is not in the queue.
        """
        (self._ahead if permit.ahead else self._asked).join(permit, client)

    def promote(self, permit: Slot, client: Hashable = None) -> None:
        """A fetch of `client` now waits for this read, which began as a read ahead."""
        if not permit.ahead:
            return
        permit.client = client
        if permit.taken:
            self._ahead_taken -= 1
        elif self._leave_queue(permit):
            permit.ahead = False
            self._enter_queue(permit)
        permit.ahead = False
        self._grant()

    def _grant(self) -> None:
        self._grant_from(self._asked)
        if not self._asked:
            self._grant_from(self._ahead)
        READERS_WAITING.set(self._asked.clients)
        INFLIGHT_BYTES.set(self.bytes_taken)

    def _grant_from(self, queue: FairQueue[Slot]) -> None:
        """A permit that does not fit keeps its turn, or large reads would starve."""
        while (permit := queue.head()) is not None and self._fits(permit):
            if permit.ahead and self._ahead_taken >= self._ahead_max:
                return
            self._take(queue.pop())

    def _fits(self, permit: Slot) -> bool:
        """A read larger than the whole budget runs alone, or it would wait for ever."""
        if self.tasks_taken >= self._tasks_max:
            return False
        return not self.bytes_taken or self.bytes_taken + permit.size_bytes <= self._bytes_max

    def _enter_queue(self, permit: Slot) -> None:
        queue = self._ahead if permit.ahead else self._asked
        queue.push(permit.client, permit, max(permit.size_bytes, COST_BYTES_MIN))

    def _leave_queue(self, permit: Slot) -> bool:
        return (self._ahead if permit.ahead else self._asked).remove(permit)

    def _take(self, permit: Slot) -> None:
        if permit.granted.cancelled():
            return  # its task was cancelled and has not run since
        permit.taken = True
        self.tasks_taken += 1
        self.bytes_taken += permit.size_bytes
        self._ahead_taken += permit.ahead
        permit.granted.set_result(None)


# A range read that takes longer than most of the last ones gets a second request, so that one slow
# answer does not hold up a reader. The first response counts, and the other request is cancelled. A
# store in trouble is slow for every read and must not get twice the requests. So only a small share
# of all reads gets a second request, and only while no read waits for a place.

# The number of last reads that define "slow". With fewer than TIMES_MIN, the ceiling applies.
TIMES_KEPT = 200
TIMES_MIN = 20
SLOW_QUANTILE = 0.95
# Unused second requests are saved up to this number, so this many reads may be slow at once.
SAVED_MAX = 10.0

_WON = HEDGED_READS.labels("won")
_LOST = HEDGED_READS.labels("lost")
_REFUSED = HEDGED_READS.labels("refused")
_LIMITED = HEDGED_READS.labels("limited")


def slow_after_s(times_s: Iterable[float], floor_s: float, ceiling_s: float) -> float:
    """When a read is slow, in seconds, by the last reads' times. The ceiling wins."""
    ordered = sorted(times_s)
    if len(ordered) < TIMES_MIN:
        return ceiling_s
    return min(max(ordered[int(SLOW_QUANTILE * len(ordered))], floor_s), ceiling_s)


class HedgedReads:
    def __init__(
        self,
        budget: ReadBudget,
        limits: ReadingLimits = ReadingLimits(),  # noqa: B008 - frozen
    ) -> None:
        self._share = limits.hedged_reads_share_max
        self._floor_s = limits.hedge_after_min_ms / 1000
        self._ceiling_s = limits.hedge_after_max_ms / 1000
        self._budget = budget
        self._times_s: deque[float] = deque(maxlen=TIMES_KEPT)
        self._saved = SAVED_MAX  # second requests that may be made

    async def read(
        self, begin: Callable[[], Awaitable[Content]], size_bytes: int, client: Hashable = None
    ) -> Content:
        """The content from `begin()`, or from a second one. Raises their RemoteStorageError."""
        if not self._share:
            return await begin()
        self._saved = min(self._saved + self._share, SAVED_MAX)
        clock = asyncio.get_running_loop().time
        began_at = clock()
        hedge = Slot(size_bytes, False, client)
        try:
            async with asyncio.TaskGroup() as tasks:
                requests = [tasks.create_task(_outcome(begin), name="range-read")]
                slow_s = slow_after_s(self._times_s, self._floor_s, self._ceiling_s)
                done, _ = await asyncio.wait(requests, timeout=slow_s)
                if not done and self._may_hedge(hedge):
                    requests.append(tasks.create_task(_outcome(begin), name="hedged-read"))
                responded = await _first_response(requests)
                for request in requests:
                    request.cancel()
        finally:
            if hedge.taken:
                self._budget.release(hedge)
        if hedge.taken:
            (_LOST if responded is requests[0] else _WON).inc()
        content = responded.result()
        if isinstance(content, RemoteStorageError):
            raise content
        self._times_s.append(clock() - began_at)
        return content

    def _may_hedge(self, permit: Slot) -> bool:
        if self._saved < 1:
            _LIMITED.inc()
            return False
        if not self._budget.try_acquire(permit):
            _REFUSED.inc()
            return False
        self._saved -= 1
        return True


async def _outcome(begin: Callable[[], Awaitable[Content]]) -> Content | RemoteStorageError:
    try:
        return await begin()
    except RemoteStorageError as error:
        return error


_Request = asyncio.Task[Content | RemoteStorageError]


async def _first_response(requests: Sequence[_Request]) -> _Request:
    """The first request with content; a failed request only if every request has failed."""
    failed: list[_Request] = []
    while waiting := [request for request in requests if request not in failed]:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for request in waiting:
            if request.done():
                if not isinstance(request.result(), RemoteStorageError):
                    return request
                failed.append(request)
    return failed[0]


# A `Load` is one piece of work that several callers may ask for: a view, an index, a chunk. It runs
# in its own task and is retried as long as a caller has asked for it recently. The reply to a
# client has a deadline; the work does not.

log = structlog.get_logger(__name__)

# A corrupt answer may have been damaged in transit. It is read once more, then taken as corrupt.
CORRUPT_READS_MAX = 2


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
    `opening`: of a packed segment, before its bytes are read.
    `chunk`: the loaded chunk, for the waiting callers, because the cache may have evicted it.
    """

    key: Hashable
    what: str  # for logs: "chunk 3 of …"
    tp: TopicIdPartition
    size_bytes: int
    attempt: Callable[[], Awaitable[Chunk | None]]
    on_corrupt: Callable[[CorruptSegment], None]
    wanted_until: float
    ahead: bool = False
    client: Hashable = None  # the load takes this client's turn
    nearby: Callable[[], Awaitable[Chunk | None]] | None = None
    opening: Opening | None = None
    begun_at: float = 0.0
    failures: int = 0
    failing_since: float | None = None
    error: FetchProxyError | None = field(
        default_factory=lambda: StorageUnavailable("the read side is closed")
    )
    chunk: Chunk | None = None
    permit: Slot | None = None
    corrupt_reads: int = 0
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
        self.budget = ReadBudget(limits.fetcher_tasks_max, config.inflight_bytes_max)
        self._loads: dict[Hashable, tuple[Load, asyncio.Task[None]]] = {}
        self.ahead_bytes = 0  # of loads that read ahead and that no client has asked for yet

    def load(self, load: Load) -> Load:
        """Begin `load`, or join the running load with the same key. Returns the load that runs."""
        running = self._loads.get(load.key)
        if running is not None:
            self.touch(running[0], load.wanted_until, load.ahead, load.client)
            return running[0]
        load.begun_at = asyncio.get_running_loop().time()
        if load.ahead:
            self.ahead_bytes += load.size_bytes
        task = self._tasks.create_task(self._run(load), name=f"remote load {load.what}")
        self._loads[load.key] = (load, task)
        # A task that is cancelled before its first step runs none of its own code.
        task.add_done_callback(lambda _: self._land(load))
        return load

    def touch(
        self, load: Load, wanted_until: float, ahead: bool = False, client: Hashable = None
    ) -> None:
        """A caller asks for the load (again): it is retried until `wanted_until` at least."""
        load.wanted_until = max(load.wanted_until, wanted_until)
        if load.ahead and not ahead:
            load.ahead = False
            self.ahead_bytes -= load.size_bytes
            load.client = client
            if load.permit is not None:
                self.budget.promote(load.permit, client)
        elif load.permit is not None:
            self.budget.join(load.permit, client)
        if load.opening is not None:
            load.opening.join(client)

    def is_loading(self, key: Hashable) -> bool:
        return key in self._loads

    def is_ahead(self, key: Hashable) -> bool:
        """The load is running, and no client has asked for it yet."""
        running = self._loads.get(key)
        return running is not None and running[0].ahead

    def cancel_all(self) -> None:
        for _, task in self._loads.values():
            task.cancel()

    async def _run(self, load: Load) -> None:
        loop = asyncio.get_running_loop()
        try:
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
        finally:
            self._land(load)

    async def _found_nearby(self, load: Load) -> bool:
        if load.nearby is None:
            return False
        try:
            load.chunk = await load.nearby()
        except Exception:  # the chunk can still be read from the store
            log.exception("remote_read_crashed", read=load.what)
        if load.chunk is not None:
            load.error = None
        return load.chunk is not None

    def _land(self, load: Load) -> None:
        if load.done.is_set():
            return
        del self._loads[load.key]
        if load.ahead:
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
        return now < load.wanted_until

    async def _attempt(self, load: Load) -> FetchProxyError | None:
        """One try. Returns its error, or None."""
        opening = load.opening
        if opening is not None and not opening.is_described:
            failure = await self._at_store(load, opening.describe, PACKING_RESERVED_BYTES)
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
        return await self._at_store(load, load.attempt, load.size_bytes)

    async def _at_store(
        self, load: Load, work: Callable[[], Awaitable[Chunk | None]], size_bytes: int
    ) -> FetchProxyError | None:
        """Under a permit and a time-out."""
        permit = load.permit = Slot(size_bytes, load.ahead, load.client)
        REMOTE_LOG_READER_TASK_QUEUE_SIZE.inc()
        try:
            await self.budget.acquire(permit)
        finally:
            REMOTE_LOG_READER_TASK_QUEUE_SIZE.dec()
        began_at = asyncio.get_running_loop().time()
        REMOTE_READS_IN_FLIGHT.inc()
        try:
            failure = await self._try(load, work, StorageUnavailable)
        finally:
            REMOTE_READS_IN_FLIGHT.dec()
            load.permit = None
            self.budget.release(permit)
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
                with tried_once():  # this pool's back-off repeats it
                    load.chunk = await work()
        except TimeoutError:
            return late(f"{load.what}: no answer in {self._attempt_max_s} s")
        except RangeNotSatisfiable as error:
            return CorruptSegment(f"{load.what}: the object is too short: {error}")
        except (RemoteStorageError, CorruptSegment) as error:
            return error
        except Exception as error:  # a bug in one read must not end all reads
            log.exception("remote_read_crashed", read=load.what)
            return StorageUnavailable(f"{load.what}: {type(error).__name__}: {error}")
        return None

    def _note(self, load: Load, failure: FetchProxyError | None, began_at: float) -> None:
        now = asyncio.get_running_loop().time()
        load.corrupt_reads += isinstance(failure, CorruptSegment)
        if failure is None or isinstance(failure, CorruptSegment | ObjectNotFound):
            load.failures = 0
            load.failing_since = None
            self._health.succeeded(now)
            return
        load.failures += 1
        if load.failing_since is None:
            load.failing_since = began_at
        if not isinstance(failure, KeyServiceError):  # it has a health of its own
            self._health.failed(now, began_at, failure)
        log.debug(
            "remote_read_failed",
            topic=load.tp.topic,
            partition=load.tp.partition,
            read=load.what,
            failures=load.failures,
            error=str(failure),
        )
