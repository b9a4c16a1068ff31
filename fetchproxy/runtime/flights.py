"""Work that many wait for and one does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from fetchproxy.errors import ClusterError, StorageUnavailable

V = TypeVar("V")


class SingleFlight(Generic[V]):
    """One piece of work per key at a time: who comes while it runs shares the outcome.

    It keeps nothing afterwards. No tasks are made; the first caller does the work itself, and if it
    is cancelled one of those who wait takes over.
    """

    def __init__(self) -> None:
        # The outcome: (value, error), or None when the one who did the work was cancelled.
        self._flights: dict[Hashable, asyncio.Future[tuple[V | None, Exception | None] | None]] = {}

    async def run(self, key: Hashable, work: Callable[[], Awaitable[V]]) -> V:
        """The value of `work()` or of the same key's work that is under way; raises its error."""
        while (flight := self._flights.get(key)) is not None:
            # shield: a waiter that is cancelled leaves, the others go on waiting.
            outcome = await asyncio.shield(flight)
            if outcome is None:
                continue
            value, error = outcome
            if error is not None:
                raise error
            return value  # type: ignore[return-value]  # set together with error=None
        return await self._lead(key, work)

    async def _lead(self, key: Hashable, work: Callable[[], Awaitable[V]]) -> V:
        flight = asyncio.get_running_loop().create_future()
        self._flights[key] = flight
        try:
            value = await work()
        except Exception as error:
            self._land(key, (None, error))
            raise
        except BaseException:
            self._land(key, None)
            raise
        self._land(key, (value, None))
        return value

    def _land(self, key: Hashable, outcome: tuple[V | None, Exception | None] | None) -> None:
        self._flights.pop(key).set_result(outcome)


# Reads for nobody in particular begin while fewer than so many are under way: whoever looks at
# thousands of old values must not have the store read them all at once.
RENEWED_AT_ONCE = 16

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Running(Generic[V]):
    began_at: float
    outcome: asyncio.Future[V]
    task: asyncio.Task[None]


class FreshReads(Generic[K, V]):
    """Reads that many wait for and one task does: single-flight per key, cached, honest about age.

    An async context manager that owns the tasks, so a caller that is cancelled leaves the read to
    the others. A failed read fails those who wait for it and is not kept. `read(key, began_at)`
    makes the value; `began_at` is the loop time (s) before the read's first request: what the store
    held by then, the value shows.
    """

    def __init__(self, read: Callable[[K, float], Awaitable[V]]) -> None:
        self._read = read
        self._running: dict[K, _Running[V]] = {}
        self._cached: dict[K, tuple[float, V]] = {}
        self._renewed: dict[K, float] = {}  # loop time of the last read begun by `renew`
        self._tasks: asyncio.TaskGroup | None = None
        self._clock: Callable[[], float] = float  # the loop's, once it is entered

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._clock = asyncio.get_running_loop().time
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks, self._tasks = self._tasks, None
        for running in self._running.values():
            running.task.cancel()
        if tasks is not None:
            # Not the error of the body: the group would wrap it. The tasks themselves never raise.
            await tasks.__aexit__(None, None, None)

    def cached(self, key: K) -> V | None:
        entry = self._cached.get(key)
        return None if entry is None else entry[1]

    def entry(self, key: K) -> tuple[float, V] | None:
        """What is cached, and the loop time at which its read began."""
        return self._cached.get(key)

    def offer(self, key: K, began_at: float, value: V) -> None:
        """What another read, begun then, has found; what began later stays."""
        entry = self._cached.get(key)
        if entry is None or entry[0] <= began_at:
            self._cached[key] = (began_at, value)

    def shown(self, key: K, age_max_s: float) -> V | None:
        """What is cached; where that is older, it is read again meanwhile (`renew`)."""
        entry = self._cached.get(key)
        if entry is None:
            return None
        oldest = self._clock() - age_max_s
        if entry[0] < oldest:
            self.renew(key, oldest, age_max_s)
        return entry[1]

    def replace(self, key: K, value: V) -> None:
        """Change what is cached without saying that it is any fresher."""
        self._cached[key] = (self._cached[key][0], value)

    def renew(self, key: K, oldest: float, pause_s: float) -> None:
        """Begin a read, for nobody in particular, where what is cached was read before `oldest`.

        Not while one runs, and not within `pause_s` of the last one: a store that is away is not
        asked by every caller.
        """
        entry = self._cached.get(key)
        if entry is None or entry[0] >= oldest or key in self._running or self._tasks is None:
            return
        if len(self._running) >= RENEWED_AT_ONCE:
            return  # whoever looks next begins it
        now = asyncio.get_running_loop().time()
        if now - self._renewed.get(key, float("-inf")) >= pause_s:
            self._renewed[key] = now
            self._start(key)

    async def get(self, key: K, not_older_than: float) -> V:
        """A value whose read began at or after `not_older_than` (loop time; the future is now).

        Raises what the read raises; StorageUnavailable where the owner closes meanwhile.
        """
        asked_from = min(not_older_than, asyncio.get_running_loop().time())
        while True:
            entry = self._cached.get(key)
            if entry is not None and entry[0] >= asked_from:
                return entry[1]
            running = self._running.get(key) or self._start(key)
            if running.began_at >= asked_from:
                # shield: the outcome is everybody's, and a bare await would cancel it with us.
                return await asyncio.shield(running.outcome)
            # It began too early to show what this caller must see; the next one will. `wait` leaves
            # the outcome alone, whatever happens to this caller or to that read.
            await asyncio.wait([running.outcome])

    async def anew(self, key: K) -> V:
        """A value whose read begins from here on, even if no clock tick lies in between."""
        before = self._running.get(key)
        while before is not None and self._running.get(key) is before:
            await asyncio.wait([before.outcome])
        running = self._running.get(key) or self._start(key)
        return await asyncio.shield(running.outcome)

    def _start(self, key: K) -> _Running[V]:
        if self._tasks is None:
            raise StorageUnavailable("the metadata manager is closed")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[V] = loop.create_future()
        began_at = loop.time()
        task = self._tasks.create_task(self._run(key, began_at, outcome), name=f"read {key}")
        self._running[key] = running = _Running(began_at, outcome, task)
        # A task that is cancelled before its first step runs none of its own code.
        task.add_done_callback(lambda _: self._land(key, running))
        return running

    async def _run(self, key: K, began_at: float, outcome: asyncio.Future[V]) -> None:
        try:
            value = await self._read(key, began_at)
        except Exception as error:  # noqa: BLE001 - it is raised again in everybody who waits
            outcome.set_exception(error)
        else:
            self.offer(key, began_at, value)
            outcome.set_result(value)

    def _land(self, key: K, running: _Running[V]) -> None:
        del self._running[key]
        if not running.outcome.done():
            running.outcome.set_exception(StorageUnavailable("the metadata manager is closed"))
        running.outcome.exception()  # seen, also where everybody has left


async def first_of(waits: Sequence[Coroutine[None, None, object]], timeout_s: float) -> None:
    """Returns when one of `waits` is done or the time is over; the others are cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wait, name="first-of") for wait in waits]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        else:
            await asyncio.sleep(timeout_s)


# Told of each key's answer as soon as it is there.
Tell = Callable[[K, V | ClusterError], None]
Work = Callable[[Collection[K], Tell[K, V]], Awaitable[None]]


class Gathering(Generic[K, V]):
    """Questions that many ask one by one, put together: those of turns of the loop that follow.

    `work` tells the answer of each of the keys it is given, once, and raises no ClusterError. The
    first who asks does it for all; if it is cancelled one of the others does the rest.
    """

    def __init__(self, work: Work[K, V]) -> None:
        self._work = work
        # Whom one may still join: by key, what it will be told; None where the work was cancelled.
        self._next: dict[K, asyncio.Future[V | ClusterError | _Left]] | None = None

    async def ask(self, key: K) -> V:
        """Raises ClusterError."""
        answer: V | ClusterError | _Left = _LEFT
        while isinstance(answer, _Left):
            if self._next is None:
                answer = await self._lead(key)
            else:
                flight = self._next.get(key)
                if flight is None:
                    flight = self._next[key] = asyncio.get_running_loop().create_future()
                # shield: a waiter that is cancelled leaves, the others go on waiting.
                answer = await asyncio.shield(flight)
        if isinstance(answer, ClusterError):
            raise answer
        return answer

    async def _lead(self, key: K) -> V | ClusterError | _Left:
        mine: asyncio.Future[V | ClusterError | _Left]
        mine = asyncio.get_running_loop().create_future()
        flights = {key: mine}
        self._next = flights

        def tell(asked: K, answer: V | ClusterError) -> None:
            if not flights[asked].done():
                flights[asked].set_result(answer)

        try:
            try:
                gathered = 0
                while gathered < len(flights):  # who asks for very many does so in several turns
                    gathered = len(flights)
                    await asyncio.sleep(0)
            finally:
                self._next = None
            await self._work(list(flights), tell)
        finally:
            for flight in flights.values():
                if not flight.done():
                    flight.set_result(_LEFT)
        return mine.result()


class _Left:
    """The one who asked was cancelled before this was answered."""


_LEFT = _Left()
