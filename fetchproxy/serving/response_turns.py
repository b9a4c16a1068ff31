"""Consumers that replay the same history share the reads from the store only while all their
positions are within one cache. Without turns they drift apart: a slightly faster consumer always
finds its next chunk ready, and after a while the others read everything again. So only a few
answers are made and written at once. The waiting connection that was given the fewest bytes goes
next (`fairness`). No connection waits while a turn is free. A turn is only for work that uses
CPU: it ends when the response must wait for the store, and after a while if the client is slow.

Turns are by connection and not by client: many consumers of one host may share a client id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from fetchproxy.observability.metrics import (
    LIMITS_REACHED,
    REMOTE_RESPONSES_WAITING,
)
from fetchproxy.reading.read_budget import COST_BYTES_MIN
from fetchproxy.runtime.fairness import FairQueue


class ResponseTurns:
    """At most `turns_max` turns at once, each at most `turn_max_s` long while others wait. A
    connection has one fetch at a time; any object may stand for it.
    """

    def __init__(self, turns_max: int, turn_max_s: float) -> None:
        self._turns_max = turns_max
        self._turn_max_s = turn_max_s
        self._queue: FairQueue[Hashable] = FairQueue()
        self._begun: dict[Hashable, asyncio.Event] = {}  # for the connections in the queue
        self._taken: dict[Hashable, float] = {}  # begin of each turn (loop time, s), oldest first
        self._timer: asyncio.TimerHandle | None = None  # ends the oldest; only while others wait

    async def take(self, connection: Hashable, size_bytes: int, deadline: float) -> bool:
        """Wait for a turn; after `deadline` (loop time, s), go on without one. `give_back` must
        follow. True: it waited.

        `size_bytes`: most bytes of the response; they count as given to the connection.
        """
        if len(self._taken) < self._turns_max:  # then the queue is empty
            self._taken[connection] = asyncio.get_running_loop().time()
            return False
        LIMITS_REACHED.labels("remote_answer_turns_max").inc()
        begun = self._begun[connection] = asyncio.Event()
        self._queue.push(connection, connection, max(size_bytes, COST_BYTES_MIN))
        self._grant()
        try:
            async with asyncio.timeout_at(deadline):
                await begun.wait()
        except TimeoutError:
            self.give_back(connection)
        return True

    def give_back(self, connection: Hashable) -> None:
        """Give back its turn or its place in the queue; does nothing if it has neither."""
        if self._taken.pop(connection, None) is None and self._queue.remove(connection):
            del self._begun[connection]
        if self._timer is not None:
            self._grant()

    def _grant(self) -> None:
        now = asyncio.get_running_loop().time()
        while len(self._queue) and len(self._taken) < self._turns_max:
            connection = self._queue.pop()
            self._taken[connection] = now
            self._begun.pop(connection).set()
        REMOTE_RESPONSES_WAITING.set(len(self._queue))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(self._queue):
            oldest = next(iter(self._taken.values()))
            due_at = oldest + self._turn_max_s
            self._timer = asyncio.get_running_loop().call_at(due_at, self._end_oldest)

    def _end_oldest(self) -> None:
        del self._taken[next(iter(self._taken))]
        self._grant()
