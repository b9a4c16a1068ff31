"""Whether the wall clock can be believed: retention by time deletes what a wrong one says."""

from __future__ import annotations

from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)

# What time synchronisation does without a jump is far below this, in any interval between looks.
JUMP_MIN_MS = 10_000


class SteadyClock:
    """Compares the wall clock with the loop's, which no one can set."""

    def __init__(self, wall_clock_ms: Callable[[], int], settle_ms: int) -> None:
        """`settle_ms`: how long both must have run evenly. 0: it is believed at once."""
        self._wall_clock_ms = wall_clock_ms
        self._settle_s = settle_ms / 1000
        self._even: tuple[float, float] | None = None  # (difference in ms, since loop time s)

    def now_ms(self, loop_s: float) -> int | None:
        """Epoch ms; None: the clock has jumped, or has not been watched for long enough."""
        now_ms = self._wall_clock_ms()
        ahead_ms = now_ms - 1000 * loop_s
        if self._even is None:
            self._even = (ahead_ms, loop_s)
        elif abs(jumped_ms := ahead_ms - self._even[0]) >= JUMP_MIN_MS:
            log.warning(
                "clock_jumped", jumped_ms=round(jumped_ms), retention_waits_s=self._settle_s
            )
            self._even = (ahead_ms, loop_s)
        return now_ms if loop_s - self._even[1] >= self._settle_s else None
