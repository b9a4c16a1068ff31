"""The last events of the process, for the console: a bounded ring beside the log.

Log lines at INFO and above come here by a structlog processor; what is too frequent for a log (a
catch) is noted here only. Alike events in a row are counted, not repeated, so a storm of one kind
does not push the others out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from structlog.typing import EventDict, WrappedLogger

from fetchproxy.config.secrets import MASK, is_secret_name, mask_text

RECENT_EVENTS_MAX = 100
_DETAIL_CHARS_MAX = 300
_NOT_DETAILS = frozenset({"event", "level", "timestamp", "logger", "exception", "exc_info"})
_SHOWN_LEVELS = frozenset({"info", "warning", "error", "critical"})


def _wall_clock() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class RecentEvent:
    """`at` is ISO 8601 in UTC, of the last of `count` alike ones."""

    at: str
    level: str
    event: str
    details: dict[str, str]
    count: int = 1


@dataclass(slots=True)
class RecentEvents:
    clock: Callable[[], str] = _wall_clock
    _ring: deque[RecentEvent] = field(default_factory=lambda: deque(maxlen=RECENT_EVENTS_MAX))

    def note(self, event: str, level: str = "info", **details: object) -> None:
        """Cheap enough for once per catch; not for once per frame."""
        shown = {
            name: MASK if is_secret_name(name) else mask_text(str(value)[:_DETAIL_CHARS_MAX])
            for name, value in details.items()
        }
        last = self._ring[-1] if self._ring else None
        if last is not None and (last.event, last.level, last.details) == (event, level, shown):
            last.count += 1
            last.at = self.clock()
            return
        self._ring.append(RecentEvent(self.clock(), level, event, shown))

    def newest_first(self) -> list[RecentEvent]:
        return list(reversed(self._ring))

    def processor(self, _logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
        """A structlog processor that notes what passes and changes nothing."""
        level = str(event_dict.get("level", "info"))
        if level in _SHOWN_LEVELS:
            details = {str(k): v for k, v in event_dict.items() if k not in _NOT_DETAILS}
            self.note(str(event_dict.get("event", "")), level, **details)
        return event_dict


RECENT_EVENTS = RecentEvents()
