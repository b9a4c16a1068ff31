"""A range read that takes longer than most of the last ones gets a second request, so that one slow
response does not hold up a reader. The first response counts, and the other request is cancelled. A
store in trouble is slow for every read and must not get twice the requests. So only a small share
of all reads gets a second request, and only while no read waits for a place.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence

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
_Request = asyncio.Task[Content | RemoteStorageError]


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

    async def read(
        self, begin: Callable[[], Awaitable[Content]], size_bytes: int, client: Hashable = None
    ) -> Content:
        """The content from `begin()`, or from a second one. Raises their RemoteStorageError."""
        if not self._share:
            return await begin()
        self._saved = min(self._saved + self._share, SECOND_REQUESTS_SAVED_MAX)
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
                first_response = await _first_response(requests)
                for request in requests:
                    request.cancel()
        finally:
            if hedge.is_in_use:
                self._budget.release(hedge)
        if hedge.is_in_use:
            (_LOST if first_response is requests[0] else _WON).inc()
        content = first_response.result()
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


async def _outcome(begin: Callable[[], Awaitable[Content]]) -> Content | RemoteStorageError:
    try:
        return await begin()
    except RemoteStorageError as error:
        return error


async def _first_response(requests: Sequence[_Request]) -> _Request:
    """The first request with content; a failed request only if every request has failed."""
    failed_requests: list[_Request] = []
    while waiting := [request for request in requests if request not in failed_requests]:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for request in waiting:
            if request.done():
                if not isinstance(request.result(), RemoteStorageError):
                    return request
                failed_requests.append(request)
    return failed_requests[0]
