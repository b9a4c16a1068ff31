"""Work for the archive gives way to the tail. The loop runs all ready work before it polls its
sockets again. Many consumers of the archive may each have a step ready, such as a check of a
chunk or a response to write, and a record of the tail waits for all of these steps. So each such
step asks here first, and one step goes on in each turn of the loop. That slows many consumers of
the archive by a tenth, so no step waits while no client reads the tail.
"""

from __future__ import annotations

import asyncio
from collections import deque

# A consumer of the tail asks again at once. If it has not for this long, it has disconnected or is
# slow itself.
_RECENT_S = 1.0
# Bounds the wait that a client announces, because it may announce any number.
_WAIT_S_MAX = 30.0


class StepTurns:
    """Lets one step go on in each turn of the loop, in the order in which steps came."""

    __slots__ = ("_granting", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granting = False

    async def next(self) -> None:
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._granting:
            self._granting = True
            loop.call_soon(self._grant, loop)
        await turn

    def _grant(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let one step go on, and schedule the next: `call_soon` runs in the loop's next turn."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # it is done if its task was cancelled
                turn.set_result(None)
                loop.call_soon(self._grant, loop)
                return
        self._granting = False


class LoopSteps:
    def __init__(self) -> None:
        self._tail_until = float("-inf")  # loop time, s
        self._turns = StepTurns()

    def tail_is_read(self, wait_s: float) -> None:
        """A fetch at the end of a log went to a broker, which answers within `wait_s`."""
        now = asyncio.get_running_loop().time()
        self._tail_until = max(self._tail_until, now + min(wait_s, _WAIT_S_MAX) + _RECENT_S)

    async def begin(self) -> bool:
        """Call before a step. Returns at once if no client reads the tail. True: it waited."""
        if asyncio.get_running_loop().time() >= self._tail_until:
            return False
        await self._turns.next()
        return True

    async def go_on(self) -> None:
        """Call between two steps: all other ready work goes first."""
        if asyncio.get_running_loop().time() < self._tail_until:
            await self.begin()
        else:
            await asyncio.sleep(0)
