"""Who may read from the store now: a limit on reads and one on their bytes, with a fair queue.

A full budget makes readers wait, it never refuses. Clients that wait are served in turn
(`fair_queue`). Reads that a fetch waits for go before reads ahead, and these may take at most half
of the places, so that a hanging store cannot be full of reads that nobody asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from fetchproxy.observability.budget_metrics import INFLIGHT_BYTES, READERS_WAITING
from fetchproxy.remote_fetch.fair_queue import FairQueue

# What a read costs its client at least: a small one takes a place for as long as a large one.
COST_BYTES_MIN = 256 * 1024


class Permit:
    """One read's place: first in the queue, then in the store. `client`: whom it is read for."""

    __slots__ = ("ahead", "client", "granted", "size_bytes", "taken")

    def __init__(self, size_bytes: int, ahead: bool, client: Hashable = None) -> None:
        self.size_bytes = size_bytes
        self.ahead = ahead
        self.client = client
        self.taken = False
        self.granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class ReadBudget:
    def __init__(self, tasks_max: int, bytes_max: int) -> None:
        self._tasks_max = tasks_max
        self._ahead_max = max(1, tasks_max // 2)
        self._bytes_max = bytes_max
        self._asked: FairQueue[Permit] = FairQueue()
        self._ahead: FairQueue[Permit] = FairQueue()
        self._ahead_taken = 0
        self.tasks_taken = 0
        self.bytes_taken = 0

    @property
    def waiting(self) -> int:
        return len(self._asked) + len(self._ahead)

    async def acquire(self, permit: Permit) -> None:
        """Wait for a place, clients in turn. Cancelled: the place is given on."""
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

    def try_acquire(self, permit: Permit) -> bool:
        """Without waiting, for what can be done without: only where nobody waits for a place."""
        if self.waiting or not self._fits(permit):
            return False
        self._take(permit)
        return True

    def release(self, permit: Permit) -> None:
        self.tasks_taken -= 1
        self.bytes_taken -= permit.size_bytes
        self._ahead_taken -= permit.ahead
        self._grant()

    def join(self, permit: Permit, client: Hashable) -> None:
        """Another client waits for the same read: it goes with the first of them that has a turn.

        Of a permit that is taken, or that nobody has queued yet, nothing changes.
        """
        (self._ahead if permit.ahead else self._asked).join(permit, client)

    def promote(self, permit: Permit, client: Hashable = None) -> None:
        """A fetch of `client` now waits for what was to be read ahead."""
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

    def _grant_from(self, queue: FairQueue[Permit]) -> None:
        """The first that does not fit keeps its turn, or large reads would starve."""
        while (permit := queue.head()) is not None and self._fits(permit):
            if permit.ahead and self._ahead_taken >= self._ahead_max:
                return
            self._take(queue.pop())

    def _fits(self, permit: Permit) -> bool:
        """A read larger than the whole budget is let through alone, or it would wait for ever."""
        if self.tasks_taken >= self._tasks_max:
            return False
        return not self.bytes_taken or self.bytes_taken + permit.size_bytes <= self._bytes_max

    def _enter_queue(self, permit: Permit) -> None:
        queue = self._ahead if permit.ahead else self._asked
        queue.push(permit.client, permit, max(permit.size_bytes, COST_BYTES_MIN))

    def _leave_queue(self, permit: Permit) -> bool:
        return (self._ahead if permit.ahead else self._asked).remove(permit)

    def _take(self, permit: Permit) -> None:
        if permit.granted.cancelled():
            return  # its task is cancelled and has not run since
        permit.taken = True
        self.tasks_taken += 1
        self.bytes_taken += permit.size_bytes
        self._ahead_taken += permit.ahead
        permit.granted.set_result(None)
