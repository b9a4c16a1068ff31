"""Logging: structlog for us, the standard library's records of other libraries routed into it.

People get coloured lines on a terminal, machines get one JSON object a line with the same keys
(`timestamp`, `level`, `event`, `logger` first). Event names are constants; what varies is in the
other keys. Values of keys that are named like secrets never leave, whoever logs them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from fetchproxy.config.secrets import MASK, is_secret_name, mask_text
from fetchproxy.config.sections import LogConfig
from fetchproxy.observability.recent import RECENT_EVENTS

_FIRST_KEYS = ("timestamp", "level", "event", "logger")


def configure_logging(config: LogConfig, stream: TextIO) -> None:
    """Send every log of the process to `stream`; a second call replaces the first."""
    for_people = config.format == "console" or (config.format == "auto" and stream.isatty())
    structlog.configure(
        processors=list(_processors(for_people, colors=stream.isatty())),
        wrapper_class=structlog.make_filtering_bound_logger(config.level),
        logger_factory=lambda *names: _StreamLogger(stream, names[0] if names else ""),
        # Off, so that a module's logger follows a later call; nothing is logged per request.
        cache_logger_on_first_use=False,
    )
    # What libraries say below WARNING is theirs; our own events tell what they did for us.
    logging.basicConfig(handlers=[_LibraryHandler()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


def _processors(for_people: bool, colors: bool) -> Iterator[Processor]:
    yield structlog.contextvars.merge_contextvars
    yield structlog.processors.add_log_level
    yield _add_logger_name
    yield structlog.processors.TimeStamper(fmt="iso", utc=True)
    yield structlog.processors.format_exc_info
    yield mask_secrets  # after the traceback has become text
    yield RECENT_EVENTS.processor
    if for_people:
        plain = structlog.dev.plain_traceback
        yield structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)
        return
    yield _order_keys
    yield structlog.processors.JSONRenderer(ensure_ascii=False, default=str)


class _StreamLogger:
    """Writes lines; flushes each, as logs are read while the process runs."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream = stream
        self.name = name

    def _write(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    debug = info = warning = error = critical = _write


class _LibraryHandler(logging.Handler):
    """Hands a library's record to structlog as the one event `library_message`."""

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
    """A structlog processor: covers secrets at any depth, and within texts such as URLs."""
    return {key: _masked(key, value) for key, value in event_dict.items()}


def _masked(key: str, value: object) -> object:
    if is_secret_name(key):
        return MASK
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, BaseException):
        return mask_text(str(value) or type(value).__name__)
    if isinstance(value, dict):
        return {inner: _masked(str(inner), content) for inner, content in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_masked("", content) for content in value]
    return value


def _order_keys(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    first = {key: event_dict[key] for key in _FIRST_KEYS if key in event_dict}
    return {**first, **event_dict}  # a key keeps the place where it first stood
