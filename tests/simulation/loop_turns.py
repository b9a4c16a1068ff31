"""Counts the turns of the running loop, for tests of work in steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class LoopTurns:
    """`count`: since the start."""

    def __init__(self) -> None:
        self.count = 0

    async def run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)


@asynccontextmanager
async def loop_turns() -> AsyncIterator[LoopTurns]:
    turns = LoopTurns()
    counting = asyncio.create_task(turns.run())
    try:
        yield turns
    finally:
        counting.cancel()
