"""KIP-405's "Remote Storage Fetcher Thread Pool": single-flight, bounded, stubborn.

A `Load` is one piece of work that several may ask for: a listing, an index, a chunk. It runs in
its own task and is retried with exponential back-off for as long as somebody has asked for it
recently: *the reply is time-boxed, the work is not*. What is read and what it means is the
caller's; the pool knows places, time-outs, pauses and which errors a retry may mend.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Iterator
from dataclasses import dataclass

import structlog

from fetchproxy.config.sections import RemoteFetchConfig
from fetchproxy.errors import (
    CorruptSegment,
    FetchProxyError,
    ObjectNotFound,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageUnavailable,
)
from fetchproxy.observability.metrics import (
    BACKOFFS,
    REMOTE_FETCH_ERRORS,
    REMOTE_FETCH_REQUESTS,
    REMOTE_LOG_READER_FETCH_TIME_MS,
    REMOTE_LOG_READER_TASK_QUEUE_SIZE,
    REMOTE_READS_IN_FLIGHT,
)
from fetchproxy.remote_fetch.backoff import Backoff
from fetchproxy.remote_fetch.chunk_cache import Chunk
from fetchproxy.remote_fetch.read_budget import Permit, ReadBudget
from fetchproxy.storage.store_health import OperationHealth

log = structlog.get_logger(__name__)

# A corrupt answer may have been damaged on its way: read once more, then believe it.
CORRUPT_READS_MAX = 2


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """`key` makes it single-flight; `attempt` is one try; `size_bytes` is reserved for each.

    `on_corrupt` hears once that the bytes are wrong where they lie, before the load is done.
    `nearby` is asked first, without a place among the readers of the store; None: not there.
    """

    key: Hashable
    what: str  # for logs and the console: "chunk 3 of …"
    topic: str
    partition: int
    size_bytes: int
    attempt: Callable[[], Awaitable[Chunk | None]]
    on_corrupt: Callable[[CorruptSegment], None]
    nearby: Callable[[], Awaitable[Chunk | None]] | None = None


class Load:
    """Work under way; once `done`, either `error` says why not, or it succeeded.

    `chunk` is what was loaded, for those who waited: the cache may have let it go already.
    Times are loop time (s).
    """

    def __init__(
        self,
        plan: LoadPlan,
        now: float,
        wanted_until: float,
        ahead: bool,
        client: Hashable = None,
    ) -> None:
        self.plan = plan
        self.ahead = ahead
        self.client = client  # whose turn it takes
        self.begun_at = now
        self.wanted_until = wanted_until
        self.failures = 0
        self.failing_since: float | None = None
        self.last_error: FetchProxyError | None = None
        self.error: FetchProxyError | None = StorageUnavailable("the read side is closed")
        self.chunk: Chunk | None = None
        self.permit: Permit | None = None
        self.corrupt_reads = 0
        self.done = asyncio.Event()


class FetcherPool:
    """Owns no task group: its loads run in `tasks`, which must outlive it."""

    def __init__(
        self,
        config: RemoteFetchConfig,
        tasks: asyncio.TaskGroup,
        rng: random.Random,
        health: OperationHealth,
    ) -> None:
        self._tasks = tasks
        self._random = rng
        self._health = health
        self._attempt_max_s = config.chunk_read_max_ms / 1000
        self._backoff = Backoff(
            config.backoff_initial_ms, config.backoff_max_ms, config.backoff_jitter
        )
        self.budget = ReadBudget(config.fetcher_tasks_max, config.inflight_bytes_max)
        self._loads: dict[Hashable, tuple[Load, asyncio.Task[None]]] = {}
        self.ahead_bytes = 0  # of loads that were begun ahead and are not asked for yet

    def load(
        self, plan: LoadPlan, wanted_until: float, ahead: bool = False, client: Hashable = None
    ) -> Load:
        """Begin the load, or join the one under way under the same key."""
        running = self._loads.get(plan.key)
        if running is not None:
            self.touch(running[0], wanted_until, ahead, client)
            return running[0]
        load = Load(plan, asyncio.get_running_loop().time(), wanted_until, ahead, client)
        if ahead:
            self.ahead_bytes += plan.size_bytes
        task = self._tasks.create_task(self._run(load), name=f"remote load {plan.what}")
        self._loads[plan.key] = (load, task)
        # A task that is cancelled before its first step runs none of its own code.
        task.add_done_callback(lambda _: self._land(load))
        return load

    def touch(
        self, load: Load, wanted_until: float, ahead: bool = False, client: Hashable = None
    ) -> None:
        """Somebody asks for it (again): retried until `wanted_until` at least."""
        load.wanted_until = max(load.wanted_until, wanted_until)
        if load.ahead and not ahead:
            load.ahead = False
            self.ahead_bytes -= load.plan.size_bytes
            load.client = client
            if load.permit is not None:
                self.budget.promote(load.permit, client)
        elif load.permit is not None:
            self.budget.join(load.permit, client)

    def is_loading(self, key: Hashable) -> bool:
        return key in self._loads

    def is_ahead(self, key: Hashable) -> bool:
        """Under way, and nobody has asked for it yet."""
        running = self._loads.get(key)
        return running is not None and running[0].ahead

    def loads(self) -> Iterator[Load]:
        """Under way, oldest first."""
        return (load for load, _ in self._loads.values())

    def cancel_all(self) -> None:
        for _, task in self._loads.values():
            task.cancel()

    async def _run(self, load: Load) -> None:
        loop = asyncio.get_running_loop()
        try:
            if await self._found_nearby(load):
                return
            REMOTE_FETCH_REQUESTS.labels(load.plan.topic).inc()
            while (failure := await self._attempt(load)) is not None:
                load.last_error = failure
                if not self._may_retry(load, failure, loop.time()):
                    load.error = failure
                    if isinstance(failure, CorruptSegment):
                        load.plan.on_corrupt(failure)
                    REMOTE_FETCH_ERRORS.labels(load.plan.topic).inc()
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
        if load.plan.nearby is None:
            return False
        try:
            load.chunk = await load.plan.nearby()
        except Exception:  # the store has it too
            log.exception("remote_read_crashed", read=load.plan.what)
        if load.chunk is not None:
            load.error = None
        return load.chunk is not None

    def _land(self, load: Load) -> None:
        if load.done.is_set():
            return
        del self._loads[load.plan.key]
        if load.ahead:
            self.ahead_bytes -= load.plan.size_bytes
        load.done.set()

    def _may_retry(self, load: Load, failure: FetchProxyError, now: float) -> bool:
        """Everything but a settled answer is tried again, also what an operator must mend first.

        A denied request is one of these: credentials that expired come back, and meanwhile the
        client must keep its place as in any other outage.
        """
        if isinstance(failure, CorruptSegment):
            return load.corrupt_reads < CORRUPT_READS_MAX
        if isinstance(failure, ObjectNotFound):
            return False
        return now < load.wanted_until

    async def _attempt(self, load: Load) -> FetchProxyError | None:
        """One try under a permit and a time-out; its error, or None."""
        permit = load.permit = Permit(load.plan.size_bytes, load.ahead, load.client)
        REMOTE_LOG_READER_TASK_QUEUE_SIZE.inc()
        try:
            await self.budget.acquire(permit)
        finally:
            REMOTE_LOG_READER_TASK_QUEUE_SIZE.dec()
        began_at = asyncio.get_running_loop().time()
        REMOTE_READS_IN_FLIGHT.inc()
        try:
            failure = await self._try(load)
        finally:
            REMOTE_READS_IN_FLIGHT.dec()
            load.permit = None
            self.budget.release(permit)
        self._note(load, failure, began_at)
        return failure

    async def _try(self, load: Load) -> FetchProxyError | None:
        try:
            async with asyncio.timeout(self._attempt_max_s):
                load.chunk = await load.plan.attempt()
        except TimeoutError:
            return StorageUnavailable(f"{load.plan.what}: no answer in {self._attempt_max_s} s")
        except RangeNotSatisfiable as error:
            return CorruptSegment(f"{load.plan.what}: the object is too short: {error}")
        except (RemoteStorageError, CorruptSegment) as error:
            return error
        except Exception as error:  # a bug in one read must not end all of them
            log.exception("remote_read_crashed", read=load.plan.what)
            return StorageUnavailable(f"{load.plan.what}: {type(error).__name__}: {error}")
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
        self._health.failed(now, began_at, failure)
        log.debug(
            "remote_read_failed",
            topic=load.plan.topic,
            partition=load.plan.partition,
            read=load.plan.what,
            failures=load.failures,
            error=str(failure),
        )
