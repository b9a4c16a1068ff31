"""Who may read from the store now: a limit on reads and one on their bytes, with a fair queue.

A full budget makes readers wait, it never refuses. Reads that a fetch waits for go before reads
ahead, and these may take at most half of the places, so that a hanging store cannot be full of
reads that nobody asked for.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Permit:
    """One read's place: first in the queue, then in the store."""

    __slots__ = ("ahead", "granted", "size_bytes", "taken")

    def __init__(self, size_bytes: int, ahead: bool) -> None:
        self.size_bytes = size_bytes
        self.ahead = ahead
        self.taken = False
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class ReadBudget:
    def __init__(self, tasks_max: int, bytes_max: int) -> None:
        self._tasks_max = tasks_max
        self._ahead_max = max(1, tasks_max // 2)
        self._bytes_max = bytes_max
        self._asked: deque[Permit] = deque()
        self._ahead: deque[Permit] = deque()
        self._ahead_taken = 0
        self.tasks_taken = 0
        self.bytes_taken = 0

    @property
    def waiting(self) -> int:
        return len(self._asked) + len(self._ahead)

    async def acquire(self, permit: Permit) -> None:
        """Wait for a place in the order of asking. Cancelled: the place is given on."""
        (self._ahead if permit.ahead else self._asked).append(permit)
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

    def release(self, permit: Permit) -> None:
        self.tasks_taken -= 1
        self.bytes_taken -= permit.size_bytes
        self._ahead_taken -= permit.ahead
        self._grant()

    def promote(self, permit: Permit) -> None:
        """A fetch now waits for what was to be read ahead."""
        if not permit.ahead:
            return
        if permit.taken:
            self._ahead_taken -= 1
        elif self._leave_queue(permit):
            self._asked.append(permit)
        permit.ahead = False
        self._grant()

    def _grant(self) -> None:
        while self._asked and self._fits(self._asked[0]):
            self._take(self._asked.popleft())
        if self._asked:
            return  # the first that does not fit keeps its turn, or large reads would starve
        while self._ahead and self._ahead_taken < self._ahead_max and self._fits(self._ahead[0]):
            self._take(self._ahead.popleft())

    def _fits(self, permit: Permit) -> bool:
        """A read larger than the whole budget is let through alone, or it would wait for ever."""
        if self.tasks_taken >= self._tasks_max:
            return False
        return not self.bytes_taken or self.bytes_taken + permit.size_bytes <= self._bytes_max

    def _leave_queue(self, permit: Permit) -> bool:
        queue = self._ahead if permit.ahead else self._asked
        if permit not in queue:
            return False
        queue.remove(permit)
        return True

    def _take(self, permit: Permit) -> None:
        if permit.granted.cancelled():
            return  # its task is cancelled and has not run since
        permit.taken = True
        self.tasks_taken += 1
        self.bytes_taken += permit.size_bytes
        self._ahead_taken += permit.ahead
        permit.granted.set_result(None)
