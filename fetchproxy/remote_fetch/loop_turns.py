"""One step of archived work in a turn of the event loop, however many clients replay.

The loop looks at its sockets once a turn and then runs all that is ready. Sixteen replaying clients
with a millisecond of work each would make a byte of the tail wait for sixteen; so their steps
stand in a queue, and between two of them the loop looks at the tail.
"""

from __future__ import annotations

import asyncio
from collections import deque


class LoopTurns:
    """First come, first served. Whoever is alone does not wait."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._taken = False

    async def next(self) -> None:
        """Returns when the caller may take its next step."""
        loop = asyncio.get_running_loop()
        if not self._taken:
            self._taken = True
            loop.call_soon(self._pass_on, loop)
            return
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its task was cancelled
                turn.set_result(None)
                loop.call_soon(self._pass_on, loop)
                return
        self._taken = False
