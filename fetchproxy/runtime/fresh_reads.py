"""Shared reads whose values are cached with their age."""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Hashable,
)
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from fetchproxy.errors import StorageUnavailable
from fetchproxy.runtime.cooperative import forget

V = TypeVar("V")


# `renew` begins a read only while fewer than this many are running. A caller that looks at
# thousands of old values must not make the proxy read them all from the store at once.
RENEWED_AT_ONCE = 16

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Running(Generic[V]):
    began_at: float
    outcome: asyncio.Future[V]
    task: asyncio.Task[None]


class FreshReads(Generic[K, V]):
    """Shared reads: many callers wait for one task per key. Values are cached with their age.

    An async context manager that owns the tasks, so a read goes on for the other callers if one is
    cancelled. A failed read raises in all callers that wait for it and is not kept.
    `read(key, began_at)` makes the value. `began_at`: loop time (s) before the read's first
    request. The value shows everything that the store held by then.
    """

    def __init__(self, read: Callable[[K, float], Awaitable[V]]) -> None:
        self._read = read
        self._running: dict[K, _Running[V]] = {}
        # The loop time at which the read of each value began, and the value.
        self.entries: dict[K, tuple[float, V]] = {}
        self._renewed: dict[K, float] = {}  # loop time of the last read begun by `renew`
        self._tasks: asyncio.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await asyncio.TaskGroup().__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks, self._tasks = self._tasks, None
        for running in self._running.values():
            running.task.cancel()
        if tasks is not None:
            # The error of the body is not passed on, because the group would wrap it. The tasks
            # themselves never raise.
            await tasks.__aexit__(None, None, None)

    def cached(self, key: K) -> V | None:
        entry = self.entries.get(key)
        return None if entry is None else entry[1]

    def offer(self, key: K, began_at: float, value: V) -> None:
        """Cache the value of another read, unless the cached value's read began later."""
        entry = self.entries.get(key)
        if entry is None or entry[0] <= began_at:
            self.entries[key] = (began_at, value)

    def replace(self, key: K, value: V) -> None:
        """Change the cached value, if there is one, and keep its age."""
        if (entry := self.entries.get(key)) is not None:
            self.entries[key] = (entry[0], value)

    async def forget(self, is_gone: Callable[[K], bool]) -> None:
        """Forget the values of these keys; the next caller reads them anew."""
        await forget(self.entries, is_gone)
        await forget(self._renewed, is_gone)

    def renew(self, key: K, oldest: float, pause_s: float) -> None:
        """Begin a read that no caller waits for, if the cached value's read began before `oldest`.

        Does nothing while a read of the key runs, nor within `pause_s` of its last renewal, so that
        not every caller asks a store that is down.
        """
        entry = self.entries.get(key)
        if entry is None or entry[0] >= oldest or key in self._running or self._tasks is None:
            return
        if len(self._running) >= RENEWED_AT_ONCE:
            return  # a later call begins it
        now = asyncio.get_running_loop().time()
        if now - self._renewed.get(key, float("-inf")) >= pause_s:
            self._renewed[key] = now
            self._start(key)

    async def get(self, key: K, not_older_than: float) -> V:
        """A value whose read began at or after `not_older_than` (loop time; a future time counts as
        now).

        Raises the error of the read, or StorageUnavailable if the owner closes meanwhile.
        """
        not_before = min(not_older_than, asyncio.get_running_loop().time())
        while True:
            entry = self.entries.get(key)
            if entry is not None and entry[0] >= not_before:
                return entry[1]
            running = self._running.get(key) or self._start(key)
            if running.began_at >= not_before:
                try:
                    # shield: callers share the outcome, and a bare await would cancel it with this
                    # one.
                    return await asyncio.shield(running.outcome)
                finally:
                    del running
            # That read began too early for this caller; wait for it and begin another. `wait` does
            # not change the outcome, whatever happens to this caller or to that read.
            await asyncio.wait([running.outcome])

    async def anew(self, key: K) -> V:
        """A value whose read begins after this call, even within the same clock tick."""
        before = self._running.get(key)
        while before is not None and self._running.get(key) is before:
            await asyncio.wait([before.outcome])
        running = self._running.get(key) or self._start(key)
        try:
            return await asyncio.shield(running.outcome)
        finally:
            del running, before

    def _start(self, key: K) -> _Running[V]:
        if self._tasks is None:
            raise StorageUnavailable("the metadata manager is closed")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[V] = loop.create_future()
        began_at = loop.time()
        task = self._tasks.create_task(self._run(key, began_at, outcome), name=f"read {key}")
        self._running[key] = running = _Running(began_at, outcome, task)
        # A task that is cancelled before its first step runs none of its own code.
        task.add_done_callback(lambda _: self._finish(key, running))
        return running

    async def _run(self, key: K, began_at: float, outcome: asyncio.Future[V]) -> None:
        try:
            value = await self._read(key, began_at)
        except Exception as error:  # noqa: BLE001 - it is raised again in everybody who waits
            outcome.set_exception(error)
        else:
            self.offer(key, began_at, value)
            outcome.set_result(value)
        finally:
            del outcome

    def _finish(self, key: K, running: _Running[V]) -> None:
        del self._running[key]
        if not running.outcome.done():
            running.outcome.set_exception(StorageUnavailable("the metadata manager is closed"))
        running.outcome.exception()  # marked as retrieved, in case every caller has left
