"""Warnings about a state that is met again and again: one line a minute for each."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import structlog
from cachetools import LRUCache

log = structlog.get_logger(__name__)

WARNING_INTERVAL_S = 60.0
WARNINGS_KNOWN_MAX = 1_000  # beyond it the oldest is forgotten, and may be logged again


class _Logged:
    __slots__ = ("at", "suppressed")

    def __init__(self, at: float) -> None:
        self.at = at
        self.suppressed = 0


class SparingWarnings:
    """`clock` gives loop seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged: LRUCache[Hashable, _Logged] = LRUCache(WARNINGS_KNOWN_MAX)

    def warn(self, event: str, about: Hashable, **context: object) -> None:
        """Log `event`, unless it was logged `about` the same thing a short while ago.

        The next line about it then says how many were `suppressed`.
        """
        self._say(log.warning, event, about, context)

    def info(self, event: str, about: Hashable, **context: object) -> None:
        """As `warn`, of what is no fault: that many of them are over, for one."""
        self._say(log.info, event, about, context)

    def _say(
        self,
        say: Callable[..., object],
        event: str,
        about: Hashable,
        context: dict[str, object],
    ) -> None:
        now = self._clock()
        known = self._logged.get((event, about))
        if known is not None and now - known.at < WARNING_INTERVAL_S:
            known.suppressed += 1
            return
        if known is not None and known.suppressed:
            context["suppressed"] = known.suppressed
        self._logged[event, about] = _Logged(now)
        say(event, **context)
