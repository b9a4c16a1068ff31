"""Retries: time limits, pauses after a failure, and parts of a process that are restarted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from fetchproxy.errors import StorageUnavailable, leaves
from fetchproxy.observability.health import Condition, Health, Kind

# Python ints do not overflow, but no `max_ms` needs more doublings than this.
_DOUBLINGS_MAX = 30
RESTART_PAUSE_INITIAL_S = 1.0
RESTART_PAUSE_MAX_S = 60.0
RESTART_JITTER = 0.2

log = structlog.get_logger(__name__)


@asynccontextmanager
async def within(max_s: float, operation: str) -> AsyncIterator[asyncio.Timeout]:
    """Raises StorageUnavailable, with `operation`, after `max_s`: a hang counts as an outage."""
    try:
        async with asyncio.timeout(max_s) as limit:
            yield limit
    except TimeoutError:
        raise StorageUnavailable(f"{operation}: not done within {max_s:g} s") from None


@dataclass(frozen=True, slots=True)
class Backoff:
    """Kafka's ExponentialBackoff: doubles from `initial_ms` to `max_ms`, spread by `jitter`."""

    initial_ms: int
    max_ms: int
    jitter: float  # 0 … 1: the pause lies within ± this share of its nominal length

    def pause_ms(self, failures: int, unit: float) -> float:
        """The pause after `failures` (1, 2, …) failures. `unit`: a random number in 0 … 1. Never
        above `max_ms`, so that the delay after the end of an outage stays bounded.
        """
        if failures < 1:
            raise ValueError(f"{failures} failures need no pause")
        nominal = self.initial_ms << min(failures - 1, _DOUBLINGS_MAX)
        spread = 1 + self.jitter * (2 * unit - 1)
        return min(min(nominal, self.max_ms) * spread, self.max_ms)


async def keep_running(
    part: str,
    run: Callable[[], Awaitable[None]],
    rng: random.Random,
    health: Health,
    rests: str,
    on_failure: Callable[[], None] = lambda: None,
) -> None:
    """Call `run()` again and again, so that a part that fails does not stop the others. The pauses
    grow while it fails soon. `rests`: a sentence about what is not done meanwhile; the condition
    `part_failed` has it until the part has run for RESTART_PAUSE_MAX_S. Ends only by cancellation.
    """
    loop = asyncio.get_running_loop()
    pause_s = RESTART_PAUSE_INITIAL_S
    while True:
        begun_at = loop.time()
        recovery = loop.call_later(RESTART_PAUSE_MAX_S, health.clear, Kind.PART_FAILED, part)
        try:
            await run()
        except Exception as error:  # the top of a part that must not stop the relay
            on_failure()
            log.exception("part_failed", part=part, error=repr(error), pause_s=round(pause_s, 1))
            message = f'the part "{part}" fails: {next(leaves(error))!r}; {rests}'
            health.hold(Condition(Kind.PART_FAILED, message, part))
        finally:
            recovery.cancel()
        if loop.time() - begun_at > RESTART_PAUSE_MAX_S:
            pause_s = RESTART_PAUSE_INITIAL_S
        await asyncio.sleep(pause_s * (1 + RESTART_JITTER * rng.random()))
        pause_s = min(2 * pause_s, RESTART_PAUSE_MAX_S)
