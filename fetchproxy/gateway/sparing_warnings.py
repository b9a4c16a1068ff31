"""Warnings about a state that many fetches meet again and again: one line a minute for each."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import structlog
from cachetools import TTLCache

log = structlog.get_logger(__name__)

WARNING_INTERVAL_S = 60.0
WARNINGS_KNOWN_MAX = 1_000  # beyond it the oldest is forgotten, and may be logged again


class SparingWarnings:
    """`clock` gives loop seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._logged: TTLCache[Hashable, bool] = TTLCache(
            WARNINGS_KNOWN_MAX, WARNING_INTERVAL_S, timer=clock
        )

    def warn(self, event: str, about: Hashable, **context: object) -> None:
        """Log `event`, unless it was logged `about` the same thing a short while ago."""
        if (event, about) in self._logged:
            return
        self._logged[event, about] = True
        log.warning(event, **context)
