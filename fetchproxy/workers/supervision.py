"""When a worker that has ended is started again. Pure: it knows no process and no clock.

A worker that ends soon after its start is started again after a pause that doubles each time. One
that has never served and says that somebody has to change something (exit code 2) is not: nor are
the others, as they have the same configuration.
"""

from __future__ import annotations

RESTART_MIN_S = 0.5
RESTART_MAX_S = 30.0
# A worker that has lived for this long has recovered.
CALM_S = 60.0
# The exit code of a command whose user has to change something (`fetchproxy.cli.running`).
_EXIT_USER_ERROR = 2


class Supervision:
    """Of one worker. Times are loop times (s)."""

    def __init__(self) -> None:
        self._pause_s = RESTART_MIN_S
        self._started_at = 0.0
        self._has_served = False

    def started(self, now: float) -> None:
        self._started_at = now

    def serves(self) -> None:
        self._has_served = True

    def pause_after(self, exit_code: int, now: float) -> float | None:
        """It has ended: how long to wait before its next start. None: give up."""
        if exit_code == _EXIT_USER_ERROR and not self._has_served:
            return None
        if now - self._started_at >= CALM_S:
            self._pause_s = RESTART_MIN_S
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, RESTART_MAX_S)
        return pause_s
