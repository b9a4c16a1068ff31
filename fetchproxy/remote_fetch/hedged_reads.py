"""A second request for a range read that is slow, so that one bad answer does not hold up a reader.

Slow is what takes longer than most of the last reads did. Which request answers first is taken, the
other one is cancelled. A store in trouble is slow for everybody, and must not be asked twice as
much for it: a small share of all reads has a second one, and only while nobody waits for a place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable

from fetchproxy.config.sections import RemoteFetchConfig
from fetchproxy.errors import RemoteStorageError
from fetchproxy.observability.metrics import HEDGED_READS
from fetchproxy.remote_fetch.read_budget import Permit, ReadBudget
from fetchproxy.storage.api import Content

# Reads that "slow" is measured by; with fewer than the second number it is the ceiling.
TIMES_KEPT = 200
TIMES_MIN = 20
SLOW_QUANTILE = 0.95
# What may be saved up of the share: so many reads may be slow at once.
SAVED_MAX = 10.0

_WON = HEDGED_READS.labels("won")
_LOST = HEDGED_READS.labels("lost")
_REFUSED = HEDGED_READS.labels("refused")
_LIMITED = HEDGED_READS.labels("limited")


def slow_after_s(times_s: Iterable[float], floor_s: float, ceiling_s: float) -> float:
    """When a read counts as slow, by how long the last ones took. The ceiling wins."""
    ordered = sorted(times_s)
    if len(ordered) < TIMES_MIN:
        return ceiling_s
    return min(max(ordered[int(SLOW_QUANTILE * len(ordered))], floor_s), ceiling_s)


class HedgedReads:
    def __init__(self, config: RemoteFetchConfig, budget: ReadBudget) -> None:
        self._share = config.hedged_reads_share_max
        self._floor_s = config.hedge_after_min_ms / 1000
        self._ceiling_s = config.hedge_after_max_ms / 1000
        self._budget = budget
        self._times_s: deque[float] = deque(maxlen=TIMES_KEPT)
        self._saved = SAVED_MAX  # second requests that may be made

    async def read(
        self, begin: Callable[[], Awaitable[Content]], size_bytes: int, client: Hashable = None
    ) -> Content:
        """What `begin()` gives, or a second `begin()`. Raises RemoteStorageError as they do."""
        if not self._share:
            return await begin()
        self._saved = min(self._saved + self._share, SAVED_MAX)
        clock = asyncio.get_running_loop().time
        began_at = clock()
        race, hedge = _Race(), Permit(size_bytes, False, client)
        try:
            async with asyncio.TaskGroup() as tasks:
                race.enter(tasks, begin, "range-read")
                slow_s = slow_after_s(self._times_s, self._floor_s, self._ceiling_s)
                if not await race.settled_within(slow_s):
                    if self._may_hedge(hedge):
                        race.enter(tasks, begin, "hedged-read")
                    await race.settled()
                race.cancel()
        finally:
            if hedge.taken:
                self._budget.release(hedge)
        if hedge.taken:
            (_WON if race.winner else _LOST).inc()
        content = race.take()
        self._times_s.append(clock() - began_at)
        return content

    def _may_hedge(self, permit: Permit) -> bool:
        if self._saved < 1:
            _LIMITED.inc()
            return False
        if not self._budget.try_acquire(permit):
            _REFUSED.inc()
            return False
        self._saved -= 1
        return True


class _Race:
    """Who has an answer first; an error is one only when nobody is left who could do better."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._errors: list[RemoteStorageError] = []
        self._content: Content | None = None
        self._changed = asyncio.Event()
        self.winner = 0  # number of the request that answered

    def enter(
        self, tasks: asyncio.TaskGroup, begin: Callable[[], Awaitable[Content]], name: str
    ) -> None:
        self._tasks.append(tasks.create_task(self._run(begin, len(self._tasks)), name=name))

    async def _run(self, begin: Callable[[], Awaitable[Content]], number: int) -> None:
        try:
            content = await begin()
        except RemoteStorageError as error:
            self._errors.append(error)
        else:
            if self._content is None:
                self._content, self.winner = content, number
        self._changed.set()

    async def settled(self) -> None:
        while self._content is None and len(self._errors) < len(self._tasks):
            self._changed.clear()
            await self._changed.wait()

    async def settled_within(self, time_s: float) -> bool:
        try:
            async with asyncio.timeout(time_s):
                await self.settled()
        except TimeoutError:
            return False
        return True

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def take(self) -> Content:
        """Once, at the end. A cancelled request's traceback refers to this race and back, and bytes
        that stayed here would be memory that nobody counts until the garbage is collected."""
        content, self._content = self._content, None
        if content is None:
            raise self._errors[0]
        return content
