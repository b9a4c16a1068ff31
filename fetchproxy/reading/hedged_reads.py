"""A range read that takes longer than most of the last ones gets a second request, so that one slow
response does not hold up a reader. The first response counts, and the other request is cancelled. A
store in trouble is slow for every read and must not get twice the requests. So only a small share
of all reads gets a second request, and only while no read waits for a place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable
from functools import partial

from fetchproxy.errors import (
    RemoteStorageError,
)
from fetchproxy.observability.metrics import (
    HEDGED_READS,
)
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.read_budget import ReadBudget, Slot
from fetchproxy.storage.stores.object_store import Content

# The number of last reads that define "slow". With fewer than TIMES_MIN, the ceiling applies.
TIMES_KEPT = 200
TIMES_MIN = 20
SLOW_QUANTILE = 0.95
# Unused second requests are saved up to this number, so this many reads may be slow at once.
SECOND_REQUESTS_SAVED_MAX = 10.0

_WON = HEDGED_READS.labels("won")
_LOST = HEDGED_READS.labels("lost")
_REFUSED = HEDGED_READS.labels("refused")
_LIMITED = HEDGED_READS.labels("limited")
_Begin = Callable[[], Awaitable[Content]]
_Outcome = Content | RemoteStorageError


def slow_after_s(times_s: Iterable[float], floor_s: float, ceiling_s: float) -> float:
    """When a read is slow, in seconds, by the last reads' times. The ceiling wins."""
    sorted_times_s = sorted(times_s)
    if len(sorted_times_s) < TIMES_MIN:
        return ceiling_s
    return min(max(sorted_times_s[int(SLOW_QUANTILE * len(sorted_times_s))], floor_s), ceiling_s)


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
        self._saved = SECOND_REQUESTS_SAVED_MAX  # second requests that may be made

    async def read(self, begin: _Begin, size_bytes: int, client: Hashable = None) -> Content:
        """The content from `begin()`, or from a second one. Raises their RemoteStorageError."""
        if not self._share:
            return await begin()
        self._saved = min(self._saved + self._share, SECOND_REQUESTS_SAVED_MAX)
        clock = asyncio.get_running_loop().time
        began_at = clock()
        hedge = Slot(size_bytes, False, client)
        slow_s = slow_after_s(self._times_s, self._floor_s, self._ceiling_s)
        try:
            async with asyncio.TaskGroup() as tasks:
                second = _SecondRequest(tasks, begin, partial(self._may_hedge, hedge))
                content, is_firsts = await second.race(slow_s)
        finally:
            if hedge.is_in_use:
                self._budget.release(hedge)
        if hedge.is_in_use:
            (_LOST if is_firsts else _WON).inc()
        if isinstance(content, RemoteStorageError):
            raise content
        self._times_s.append(clock() - began_at)
        return content

    def _may_hedge(self, slot: Slot) -> bool:
        if self._saved < 1:
            _LIMITED.inc()
            return False
        if not self._budget.try_acquire(slot):
            _REFUSED.inc()
            return False
        self._saved -= 1
        return True


class _SecondRequest:
    """Begins when the first request is slow. The caller's own task makes the first one, because
    most reads have no second, and a task for each costs as much as the rest of a small read.
    """

    def __init__(
        self, tasks: asyncio.TaskGroup, begin: _Begin, may_begin: Callable[[], bool]
    ) -> None:
        self._tasks = tasks
        self._begin = begin
        self._may_begin = may_begin
        self._task: asyncio.Task[_Outcome] | None = None
        self._first_counts: asyncio.Timeout | None = None  # ended by the second's content

    async def race(self, slow_s: float) -> tuple[_Outcome, bool]:
        """(the first content; if both fail, the first error; whether it is the first request's)."""
        timer = asyncio.get_running_loop().call_later(slow_s, self._start)
        first: _Outcome | None = None
        try:
            async with asyncio.timeout(None) as first_counts:
                self._first_counts = first_counts
                first = await _outcome(self._begin)
        except TimeoutError:
            if self._task is None or not first_counts.expired():
                raise
        finally:
            timer.cancel()
            self._first_counts = None
        if first is None:
            assert self._task is not None, "its content has ended the first request"
            return self._task.result(), False
        if self._task is None:
            return first, True
        if not isinstance(first, RemoteStorageError):
            self._task.cancel()
            return first, True
        failed_before = self._task.done()
        second = await self._task
        is_seconds = failed_before or not isinstance(second, RemoteStorageError)
        return (second, False) if is_seconds else (first, True)

    def _start(self) -> None:
        if self._may_begin():
            self._task = self._tasks.create_task(_outcome(self._begin), name="hedged-read")
            self._task.add_done_callback(self._end_first)

    def _end_first(self, second: asyncio.Task[_Outcome]) -> None:
        if self._first_counts is None or second.cancelled() or second.exception() is not None:
            return
        if not isinstance(second.result(), RemoteStorageError):
            self._first_counts.reschedule(asyncio.get_running_loop().time())


async def _outcome(begin: _Begin) -> _Outcome:
    try:
        return await begin()
    except RemoteStorageError as error:
        return error
