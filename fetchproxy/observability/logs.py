"""The log: structlog for fetchproxy's events, records of libraries that use the standard logging,
and the last events for the console, a bounded ring beside the log.

A structlog processor adds log lines at INFO and above. Events that are too frequent for a log (a
catch) are noted here only. Equal events in a row are counted, not repeated, so that many events of
one kind do not push the others out.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple, TextIO

import structlog
from cachetools import LRUCache
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from fetchproxy.config.schema import LogConfig
from fetchproxy.config.values import MASK, harmless, is_secret_name, mask_text
from fetchproxy.observability.health import MEANINGS
from fetchproxy.observability.log_events import EVENTS
from fetchproxy.observability.metrics import LOG_MESSAGES

RECENT_EVENTS_MAX = 100
# Some 5,000 lines: minutes of a process in trouble, days of a quiet one.
LINES_CHARS_MAX = 1024 * 1024
LINE_CHARS_MAX = 4_096  # a traceback is longer only if it repeats itself
_DETAIL_CHARS_MAX = 300
_NOT_DETAILS = frozenset({"event", "level", "timestamp", "logger", "exception", "exc_info"})
_SHOWN_LEVELS = frozenset({"info", "warning", "error", "critical"})
WARNING_INTERVAL_S = 60.0
# Lines of one event in that time, whatever they are about. A request may name thousands of topics,
# and a line takes 0.1 ms.
EVENT_LINES_MAX = 100
WARNINGS_KNOWN_MAX = 1_000  # above it, the oldest is forgotten and may be logged again
_FIRST_KEYS = ("timestamp", "level", "event", "logger")

log = structlog.get_logger(__name__)


def _wall_clock() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class RecentEvent:
    """`at` is the time of the last of `count` equal events, ISO 8601 in UTC."""

    at: str
    level: str
    event: str
    count: int
    details: dict[str, str]


@dataclass(slots=True)
class _NotedEvent:
    """As a RecentEvent whose details are not masked yet."""

    at: str
    level: str
    event: str
    count: int
    details: dict[str, str | int]

    def masked(self) -> RecentEvent:
        details = {
            name: MASK if is_secret_name(name) else harmless(mask_text(str(value)))
            for name, value in self.details.items()
        }
        return RecentEvent(self.at, self.level, self.event, self.count, details)


@dataclass(eq=False, slots=True)
class RecentEvents:
    """Secrets are masked when somebody looks: a response may have thousands of partitions that are
    noted, and masking takes 10 µs.
    """

    clock: Callable[[], str] = _wall_clock
    _ring: deque[_NotedEvent] = field(default_factory=lambda: deque(maxlen=RECENT_EVENTS_MAX))

    def note(self, event: str, level: str = "info", **details: object) -> None:
        """Notes an event. Cheap enough for each catch, too expensive for each frame."""
        fields: dict[str, str | int] = {
            name: value if isinstance(value, int) else str(value)[:_DETAIL_CHARS_MAX]
            for name, value in details.items()
        }
        last = self._ring[-1] if self._ring else None
        if last is not None and (last.event, last.level, last.details) == (event, level, fields):
            last.count += 1
            last.at = self.clock()
            return
        self._ring.append(_NotedEvent(self.clock(), level, event, 1, fields))

    def newest_first(self) -> list[RecentEvent]:
        return [noted.masked() for noted in reversed(self._ring)]

    def processor(self, _logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
        """A structlog processor that notes each event and changes nothing."""
        level = str(event_dict.get("level", "info"))
        if level in _SHOWN_LEVELS:
            details = {str(k): v for k, v in event_dict.items() if k not in _NOT_DETAILS}
            self.note(str(event_dict.get("event", "")), level, **details)
        return event_dict


RECENT_EVENTS = RecentEvents()


class RecentLine(NamedTuple):
    """A line of the log. `line`: all of it as a JSON object, cut at LINE_CHARS_MAX."""

    at: str
    level: str
    event: str
    line: str


class RecentLines:
    """The last minutes of the log: up to LINES_CHARS_MAX characters, the oldest go first."""

    def __init__(self, chars_max: int = LINES_CHARS_MAX) -> None:
        self._chars_max = chars_max
        self._lines: deque[RecentLine] = deque()
        self._chars = 0

    def newest_first(self) -> list[RecentLine]:
        return list(reversed(self._lines))

    def processor(self, _logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
        """A structlog processor behind `mask_secrets` that keeps each line and changes nothing."""
        text = json.dumps(event_dict, default=str)[:LINE_CHARS_MAX]
        at, level, event = (str(event_dict.get(key, "")) for key in ("timestamp", "level", "event"))
        self._lines.append(RecentLine(at, level, event, text))
        self._chars += len(text)
        while self._chars > self._chars_max:
            self._chars -= len(self._lines.popleft().line)
        return event_dict


RECENT_LINES = RecentLines()


# Warnings about a state that lasts: at most one line a minute for each.


class SparingWarnings:
    """`clock` returns loop time (s)."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # (when it was last logged, how often it was suppressed since)
        self._logged: LRUCache[Hashable, tuple[float, int]] = LRUCache(WARNINGS_KNOWN_MAX)
        # By event: when its first line of the present interval was logged, lines since then, and
        # how many more were suppressed. Events are constants, so there are few.
        self._interval_counts: dict[str, tuple[float, int, int]] = {}

    def warn(self, event: str, about: Hashable, **context: object) -> None:
        """Log `event`, unless it was logged about the same thing within WARNING_INTERVAL_S, or
        EVENT_LINES_MAX times about others.

        The next line then says how many events were `suppressed`, or `suppressed_of_others`.
        """
        self._log_sparingly(log.warning, event, about, context)

    def info(self, event: str, about: Hashable, **context: object) -> None:
        """As `warn`, for events that are not faults, such as the end of many faults."""
        self._log_sparingly(log.info, event, about, context)

    def _log_sparingly(
        self,
        log_method: Callable[..., object],
        event: str,
        about: Hashable,
        context: dict[str, object],
    ) -> None:
        now = self._clock()
        logged_at, suppressed = self._logged.get((event, about), (float("-inf"), 0))
        if now - logged_at < WARNING_INTERVAL_S:
            self._logged[event, about] = logged_at, suppressed + 1
            return
        since, lines, others = self._interval_counts.get(event, (now, 0, 0))
        if now - since >= WARNING_INTERVAL_S:
            since, lines = now, 0
        if lines >= EVENT_LINES_MAX:
            self._interval_counts[event] = since, lines, others + 1
            return
        if others:
            context["suppressed_of_others"] = others
        self._interval_counts[event] = since, lines + 1, 0
        if suppressed:
            context["suppressed"] = suppressed
        self._logged[event, about] = now, 0
        log_method(event, **context)


# A terminal gets coloured lines, anything else one JSON object a line with the same keys
# (`timestamp`, `level`, `event`, `logger` first). Event names are constants; varying values are in
# the other keys. A value is masked if its key is named like a secret, whichever code logs it.


def configure_logging(config: LogConfig, stream: TextIO) -> None:
    """Send every log of the process to `stream`; a second call replaces the first."""
    for_console = config.format == "console" or (config.format == "auto" and stream.isatty())
    structlog.configure(
        processors=list(_processors(for_console, colors=stream.isatty())),
        wrapper_class=structlog.make_filtering_bound_logger(config.level),
        logger_factory=lambda *names: _NamedLogger(stream, names[0] if names else ""),
        # Off, so that a later call also changes existing loggers. There is no log line per request.
        cache_logger_on_first_use=False,
    )
    # Libraries log at WARNING and above only: fetchproxy's own events say what libraries did.
    logging.basicConfig(handlers=[_LibraryHandler()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


def _processors(for_console: bool, colors: bool) -> Iterator[Processor]:
    yield structlog.contextvars.merge_contextvars
    yield structlog.processors.add_log_level
    yield _add_logger_name
    yield structlog.processors.TimeStamper(fmt="iso", utc=True)
    yield structlog.processors.format_exc_info
    yield mask_secrets  # after `format_exc_info` has made the traceback a text
    yield RECENT_EVENTS.processor
    yield count_line
    yield RECENT_LINES.processor
    if for_console:
        plain = structlog.dev.plain_traceback
        yield structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)
        return
    yield _order_keys
    yield structlog.processors.JSONRenderer(ensure_ascii=False, default=str)


def count_line(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    """A structlog processor that counts the line and changes nothing. Only the names of the page of
    log events are labels: no text from outside becomes one.
    """
    event = str(event_dict.get("event", ""))
    is_known = event in EVENTS or event.removesuffix("_no_more") in MEANINGS
    LOG_MESSAGES.labels(str(event_dict.get("level", "")), event if is_known else "other").inc()
    return event_dict


class _NamedLogger(structlog.WriteLogger):
    """Flushes each line, as logs are read while the process runs."""

    def __init__(self, stream: TextIO, name: str) -> None:
        super().__init__(stream)
        self.name = name


class _LibraryHandler(logging.Handler):
    """Hands a library's record to structlog as the event `library_message`."""

    def emit(self, record: logging.LogRecord) -> None:
        logger: FilteringBoundLogger = structlog.get_logger(record.name)
        exc_info = record.exc_info if record.exc_info and record.exc_info[0] else None
        level = record.levelno - record.levelno % 10  # libraries may have levels in between
        logger.log(level, "library_message", message=record.getMessage(), exc_info=exc_info)


def _add_logger_name(logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    if logger is not None and logger.name:
        event_dict["logger"] = logger.name
    return event_dict


def mask_secrets(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    """A structlog processor: masks secrets at any depth, and within texts such as URLs, and makes
    texts from outside harmless. A traceback keeps its lines.
    """
    return {key: _masked(key, value) for key, value in event_dict.items()}


def _masked(key: str, value: object) -> object:
    if is_secret_name(key):
        return MASK
    if isinstance(value, str):
        return mask_text(value) if key == "exception" else harmless(mask_text(value))
    if isinstance(value, BaseException):
        return harmless(mask_text(str(value) or type(value).__name__))
    if isinstance(value, dict):
        return {inner: _masked(str(inner), content) for inner, content in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_masked("", content) for content in value]
    return value


def _order_keys(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    first = {key: event_dict[key] for key in _FIRST_KEYS if key in event_dict}
    return {**first, **event_dict}  # a repeated key keeps its first place


def utc_text(at_ms: int) -> str:
    """An epoch time (ms), whatever a producer wrote, for people."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms since 1970"
