"""Wait for whichever of several things happens first, leaving no task behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence


async def first_of(waits: Sequence[Coroutine[None, None, object]], timeout_s: float) -> None:
    """Returns when one of `waits` is done or the time is over; the others are cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wait, name="first-of") for wait in waits]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        else:
            await asyncio.sleep(timeout_s)
