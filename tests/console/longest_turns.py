"""The longest turn of the event loop, for tests of work that is done in steps."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def longest_turn() -> AsyncIterator[list[float]]:
    """CPU seconds of the longest turn of the loop: other processes do not count. Nor does a search
    for garbage in all that the tests have made: a process spares it (`spare_collections`).
    """
    longest = [0.0]
    gc.freeze()

    async def watch() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest[0] = max(longest[0], now - before)
            before = now

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        yield longest
    finally:
        watching.cancel()
        gc.unfreeze()
