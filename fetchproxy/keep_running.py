"""Parts of a process that run for ever: one that fails begins again, and the others go on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

log = structlog.get_logger(__name__)

RESTART_PAUSE_INITIAL_S = 1.0
RESTART_PAUSE_MAX_S = 60.0
RESTART_JITTER = 0.2


async def keep_running(
    part: str,
    run: Callable[[], Awaitable[None]],
    rng: random.Random,
    on_failure: Callable[[], None] = lambda: None,
) -> None:
    """`run()` again and again; pauses grow while it fails soon. Ends only by cancellation."""
    clock = asyncio.get_running_loop().time
    pause_s = RESTART_PAUSE_INITIAL_S
    while True:
        begun_at = clock()
        try:
            await run()
        except Exception as error:  # the top of a part that must not take the relay down
            on_failure()
            log.exception("part_failed", part=part, error=repr(error), pause_s=round(pause_s, 1))
        if clock() - begun_at > RESTART_PAUSE_MAX_S:
            pause_s = RESTART_PAUSE_INITIAL_S
        await asyncio.sleep(pause_s * (1 + RESTART_JITTER * rng.random()))
        pause_s = min(2 * pause_s, RESTART_PAUSE_MAX_S)
