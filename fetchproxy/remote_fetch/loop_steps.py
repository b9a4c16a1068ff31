"""Work for the archive gives way to the tail: in each turn of the event loop one step of it.

The loop runs all that is ready before it looks at its sockets again. Many consumers of the archive
have a step ready each, a check of a chunk or an answer to write, for a part of a millisecond. One
after the other they are what a record of the tail waits for, longer still on a machine whose cores
are busy. So whoever has such a step asks here first, and only one goes on before the next look.

That costs a tenth of the speed of many consumers, so nobody waits while no tail is read.
"""

from __future__ import annotations

import asyncio
from collections import deque

# A consumer of the tail asks again at once: who has not for so long is gone, or slow by itself.
_RECENT_S = 1.0
# Of what a client says that it will wait, as it may say anything.
_WAIT_S_MAX = 30.0


class LoopSteps:
    """Of one event loop."""

    def __init__(self) -> None:
        self._tail_until = float("-inf")  # loop time, s
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granting = False

    def tail_is_read(self, wait_s: float) -> None:
        """A broker is asked for the end of a log, and its answer comes within `wait_s`."""
        now = asyncio.get_running_loop().time()
        self._tail_until = max(self._tail_until, now + min(wait_s, _WAIT_S_MAX) + _RECENT_S)

    async def begin(self) -> None:
        """Before a step. Returns at once while no tail is read."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._tail_until:
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._granting:
            self._granting = True
            loop.call_soon(self._grant, loop)
        await turn

    async def go_on(self) -> None:
        """Between two steps: whatever else is ready comes first."""
        if asyncio.get_running_loop().time() < self._tail_until:
            await self.begin()
        else:
            await asyncio.sleep(0)

    def _grant(self, loop: asyncio.AbstractEventLoop) -> None:
        """What is called soon is called in the loop's next turn."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # as it is where its task was cancelled
                turn.set_result(None)
                loop.call_soon(self._grant, loop)
                return
        self._granting = False
