"""How long ago each activity of the process last succeeded: an alarm on such an age needs no rate,
and a process that does nothing at all raises it.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum

from fetchproxy.observability.metrics import LAST_SUCCESS_AGE_SECONDS

_PUBLISH_INTERVAL_S = 1.0


class Activity(StrEnum):
    COPY = "copy"
    METADATA_WRITE = "metadata_write"
    TRIM = "trim"


class LastSuccesses:
    """An activity that never succeeded has no age."""

    def __init__(self) -> None:
        self._at: dict[Activity, float] = {}

    def note(self, activity: Activity, time: float) -> None:
        """`time`: loop time (s). The latest counts, in whatever order they are noted."""
        self._at[activity] = max(time, self._at.get(activity, time))

    def publish(self, now: float) -> None:
        for activity, noted_at in self._at.items():
            LAST_SUCCESS_AGE_SECONDS.labels(activity).set(max(now - noted_at, 0.0))

    async def run(self) -> None:
        """Updates the gauges, for ever."""
        while True:
            self.publish(asyncio.get_running_loop().time())
            await asyncio.sleep(_PUBLISH_INTERVAL_S)


LAST_SUCCESSES = LastSuccesses()
