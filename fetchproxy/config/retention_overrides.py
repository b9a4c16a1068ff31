"""`archive.retention_overrides`: retention by topic pattern. Text only; decides nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

_KEYS = (
    "remote_log_retention_ms",
    "remote_log_retention_bytes",
    "local_retention_ms",
    "local_retention_bytes",
)


@dataclass(frozen=True, slots=True)
class RetentionOverride:
    """For topics whose whole name matches; None: this one does not say."""

    pattern: str
    remote_log_retention_ms: int | None = None
    remote_log_retention_bytes: int | None = None
    local_retention_ms: int | None = None
    local_retention_bytes: int | None = None

    def matches(self, topic: str) -> bool:
        return re.fullmatch(self.pattern, topic) is not None


def overrides_text(value: object) -> object:
    """A TOML table as the text that the other places write; anything else as it is."""
    return json.dumps(value) if isinstance(value, dict) else value


@lru_cache(maxsize=4)  # one configuration, asked for every partition
def parse_retention_overrides(text: str) -> tuple[RetentionOverride, ...]:
    """In the order written. Raises ValueError, naming pattern and key."""
    table = json.loads(text) if text.strip() else {}
    if not isinstance(table, dict):
        raise ValueError("expected a table of patterns")
    return tuple(_override(pattern, settings) for pattern, settings in table.items())


def _override(pattern: str, settings: object) -> RetentionOverride:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    if not isinstance(settings, Mapping) or not settings:
        raise ValueError(f"{pattern!r}: expected one of {', '.join(_KEYS)}")
    for key, value in settings.items():
        if key not in _KEYS:
            raise ValueError(f"{pattern!r}: {key} is none of {', '.join(_KEYS)}")
        if not isinstance(value, int) or isinstance(value, bool) or value < -1:
            raise ValueError(f"{pattern!r}: {key} must be an integer, at least -1")
    return RetentionOverride(pattern, **settings)
