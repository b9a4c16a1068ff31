"""A query's filters on topic, partition, offset and timestamp, as ranges for planner and reader.

Spark passes them from 4.1 on (spark.sql.python.filterPushdown.enabled). The code knows Spark's
filter classes by name, as older releases have none. Filters that are not ranges are left to Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from fetchproxy.remotelog.decoder.record_rows import TIMESTAMP_MAX_MS, TIMESTAMP_MIN_MS

_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_RANGES = ("EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")
_COLUMNS = ("topic", "partition", "offset", "timestamp")


@dataclass(slots=True)
class Range:
    """Both bounds are inclusive."""

    least: int = -(2**63)
    greatest: int = 2**63 - 1

    def narrow(self, comparison: str, lower: int, upper: int) -> None:
        """`lower`, `upper`: the whole numbers around the value; both equal a whole value."""
        if comparison in ("EqualTo", "GreaterThanOrEqual"):
            self.least = max(self.least, upper)
        if comparison in ("EqualTo", "LessThanOrEqual"):
            self.greatest = min(self.greatest, lower)
        if comparison == "GreaterThan":
            self.least = max(self.least, lower + 1)
        if comparison == "LessThan":
            self.greatest = min(self.greatest, upper - 1)

    def has(self, number: int) -> bool:
        return self.least <= number <= self.greatest


@dataclass(slots=True)
class PushedFilters:
    """A set is None if no filter names it. Timestamps are in ms."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition: Range = field(default_factory=Range)
    offset: Range = field(default_factory=Range)
    timestamp: Range = field(default_factory=Range)

    def push(self, filters: Iterable[Any]) -> list[Any]:
        """Takes the filters that it can apply and returns the rest. All filters hold together."""
        return [filter_ for filter_ in filters if not self._take(filter_)]

    def takes_partition(self, topic: str, partition: int) -> bool:
        return (
            (self.topics is None or topic in self.topics)
            and (self.partitions is None or partition in self.partitions)
            and self.partition.has(partition)
        )

    def _take(self, pushed: Any) -> bool:
        kind = type(pushed).__name__
        path: tuple[str, ...] = getattr(pushed, "attribute", ())
        value: Any = getattr(pushed, "value", None)
        if len(path) != 1 or path[0] not in _COLUMNS:
            return False
        name = path[0]
        if kind == "IsNotNull":
            if name == "timestamp":
                self._timestamp_not_null()
            return True
        if kind == "In":
            return self._take_set(name, value)
        if name == "topic":
            return kind == "EqualTo" and self._take_set(name, (value,))
        if kind not in _RANGES or value is None:
            return False
        if name == "timestamp":
            if not isinstance(value, datetime) or value.tzinfo is None:
                return False
            since = value - _UNIX_EPOCH
            self._timestamp_not_null()
            self.timestamp.narrow(kind, since // _MILLISECOND, -(-since // _MILLISECOND))
            return True
        if not isinstance(value, int):
            return False
        (self.partition if name == "partition" else self.offset).narrow(kind, value, value)
        return True

    def _timestamp_not_null(self) -> None:
        """A timestamp without microseconds is null, and no comparison with null holds."""
        self.timestamp.narrow("GreaterThanOrEqual", TIMESTAMP_MIN_MS, TIMESTAMP_MIN_MS)
        self.timestamp.narrow("LessThanOrEqual", TIMESTAMP_MAX_MS, TIMESTAMP_MAX_MS)

    def _take_set(self, name: str, values: Iterable[Any]) -> bool:
        """A null in `values` equals nothing."""
        known_values = frozenset(value for value in values if value is not None)
        if name == "topic":
            self.topics = known_values if self.topics is None else self.topics & known_values
        elif name == "partition":
            self.partitions = (
                known_values if self.partitions is None else self.partitions & known_values
            )
        else:
            return False
        return True
