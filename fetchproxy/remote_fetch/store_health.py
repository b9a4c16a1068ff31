"""Since when the store fails: drives the error after a long outage, the metrics and the console.

Pure but for the gauges: loop times (s) are arguments. "Failing" means that no request has
succeeded since the first failed one began; a store that says "no such object" is a working one.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from fetchproxy.observability.metrics import STORE_FAILING_SECONDS, STORE_UP

log = structlog.get_logger(__name__)

# Shorter troubles show in the metrics alone: one throttled request is no news for a log.
LOGGED_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """`last_error` is kept after recovery, for the operator who asks what happened."""

    up: bool
    failing_for_s: float
    last_error: str | None


class StoreHealthTracker:
    def __init__(self) -> None:
        self._failing_since: float | None = None
        self._last_failure_at = float("-inf")
        self._last_success_at = float("-inf")
        self._last_error: str | None = None
        self._logged = False

    @property
    def failing_since(self) -> float | None:
        return self._failing_since

    @property
    def last_failure_at(self) -> float:
        return self._last_failure_at

    def succeeded(self, now: float) -> None:
        self._last_success_at = now
        if self._failing_since is not None:
            if self._logged:
                log.info("store_recovered", failed_for_s=round(now - self._failing_since, 3))
            self._failing_since = None
            self._logged = False
            STORE_UP.set(1)
            STORE_FAILING_SECONDS.set(0)

    def failed(self, now: float, began_at: float, error: Exception) -> None:
        """A request that began at `began_at` is known to have failed at `now`.

        The outage counts from the beginning of that request, as a store that hangs tells nobody
        before the time-out; but not from before the last success.
        """
        self._last_failure_at = now
        self._last_error = f"{type(error).__name__}: {error}"
        if self._failing_since is None:
            self._failing_since = max(began_at, self._last_success_at)
            STORE_UP.set(0)
        if not self._logged and now - self._failing_since >= LOGGED_AFTER_S:
            self._logged = True
            log.warning("store_failing", error=self._last_error)
        STORE_FAILING_SECONDS.set(now - self._failing_since)

    def failing_for_s(self, now: float) -> float:
        return 0.0 if self._failing_since is None else now - self._failing_since

    def health(self, now: float) -> StoreHealth:
        return StoreHealth(self._failing_since is None, self.failing_for_s(now), self._last_error)
