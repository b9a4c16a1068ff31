"""Whose turn it is to be given archived records, when more connections want them than CPU is there.

Consumers that replay the same history share what is read from the store only while they stay within
a cache of each other. Left to chance they part: who is faster by a little finds its next chunk just
as ready, and after a while the others read all of it again. So only a few answers are made and
written at once, and of those that wait the connection that was given the fewest bytes goes next
(`fair_queue`). Nobody waits while a turn is free, and no turn is kept for what uses no CPU: it ends
where the store must be waited for, and after a while for clients that take their time.

By connection and not by client: many consumers of one host may share a client id.
"""

from __future__ import annotations

import asyncio

from fetchproxy.observability.budget_metrics import REMOTE_ANSWERS_WAITING
from fetchproxy.observability.metrics import LIMITS_REACHED
from fetchproxy.remote_fetch.fair_queue import FairQueue
from fetchproxy.remote_fetch.read_budget import COST_BYTES_MIN


class AnswerTurns:
    """At most `turns_max` at once, each for at most `turn_max_s` while others wait."""

    def __init__(self, turns_max: int, turn_max_s: float) -> None:
        self._turns_max = turns_max
        self._turn_max_s = turn_max_s
        self._queue: FairQueue[ConnectionTurn] = FairQueue()
        self._taken: dict[ConnectionTurn, float] = {}  # since loop time, s; the oldest first
        self._timer: asyncio.TimerHandle | None = None  # for the oldest; only while others wait

    @property
    def taken(self) -> int:
        return len(self._taken)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def begin(self, turn: ConnectionTurn, size_bytes: int) -> bool:
        """True: `turn` has begun. False: it is in the queue, and `turn.begun` tells."""
        if len(self._taken) < self._turns_max:  # so nobody waits
            self._taken[turn] = asyncio.get_running_loop().time()
            return True
        self._queue.push(turn, turn, max(size_bytes, COST_BYTES_MIN))
        self._grant()
        return False

    def end(self, turn: ConnectionTurn) -> None:
        """Of one that has it, or waits for it, or neither."""
        if self._taken.pop(turn, None) is None:
            self._queue.remove(turn)
        if self._timer is not None:
            self._grant()

    def _grant(self) -> None:
        now = asyncio.get_running_loop().time()
        while len(self._queue) and len(self._taken) < self._turns_max:
            turn = self._queue.pop()
            self._taken[turn] = now
            turn.begun.set()
        REMOTE_ANSWERS_WAITING.set(len(self._queue))
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


class ConnectionTurn:
    """One connection's: it has one fetch at a time."""

    __slots__ = ("_turns", "begun")

    def __init__(self, turns: AnswerTurns) -> None:
        self._turns = turns
        self.begun = asyncio.Event()  # after it had to wait

    async def take(self, size_bytes: int, deadline: float) -> None:
        """Wait for a turn; from `deadline` (loop time, s) on without one. `give_back` must follow.

        `size_bytes`: what the answer may take, which counts as given to the connection.
        """
        self.begun.clear()
        if self._turns.begin(self, size_bytes):
            return
        LIMITS_REACHED.labels("remote_answer_turns_max").inc()
        try:
            async with asyncio.timeout_at(deadline):
                await self.begun.wait()
        except TimeoutError:
            self.give_back()

    def give_back(self) -> None:
        """Also where there is nothing to give back."""
        self._turns.end(self)
