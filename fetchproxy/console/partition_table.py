"""The partitions of a status: which of them are shown, in which order, and all of them by topic.

Pure. Lines come one by one, by topic and partition, so that whoever makes them can breathe.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fetchproxy.console.status import Asked, PartitionStatus, TopicStatus
from fetchproxy.remote_log.concerns import ON_RECORD, Finding


@dataclass(slots=True)
class _Rows:
    """At most `rows_max` of those that were added."""

    rows_max: int | None
    lines: list[PartitionStatus]

    def add(self, line: PartitionStatus) -> None:
        if self.rows_max is None or len(self.lines) < self.rows_max:
            self.lines.append(line)


class PartitionTable:
    def __init__(self, asked: Asked, findings: Iterable[Finding]) -> None:
        self._name_part = asked.name_part.lower()
        self._rows_max = asked.rows_max
        self._told = {(f.topic, f.partition) for f in findings if f.concern not in ON_RECORD}
        self._faulty = _Rows(asked.rows_max, [])
        self._others = _Rows(asked.rows_max, [])
        self._topics: dict[str, TopicStatus] = {}
        self.total = 0
        self.matching = 0

    def add(self, line: PartitionStatus) -> None:
        faulty = self._is_faulty(line)
        self._count(line, faulty)
        self.total += 1
        if self._name_part in f"{line.topic}-{line.partition}".lower():
            self.matching += 1
            (self._faulty if faulty else self._others).add(line)

    def rows(self) -> tuple[PartitionStatus, ...]:
        """Those with a fault first."""
        return tuple([*self._faulty.lines, *self._others.lines][: self._rows_max])

    def concerns_of_rows(self, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """Of the partitions that are shown, and of the archive as a whole."""
        if self._rows_max is None and not self._name_part:
            return findings
        shown = {(row.topic, row.partition) for row in self.rows()}
        return tuple(f for f in findings if f.topic is None or (f.topic, f.partition) in shown)

    def topics(self) -> tuple[TopicStatus, ...]:
        """Those with a fault first, then by name."""
        every = self._topics.values()
        return tuple(sorted(every, key=lambda topic: (not topic.faulty, topic.topic)))

    def _is_faulty(self, line: PartitionStatus) -> bool:
        told = (line.topic, line.partition) in self._told
        return told or line.error is not None

    def _count(self, line: PartitionStatus, faulty: bool) -> None:
        before = self._topics.get(line.topic) or TopicStatus(line.topic)
        left = [s for s in (before.deleted_in_seconds, line.deleted_in_seconds) if s is not None]
        self._topics[line.topic] = replace(
            before,
            partitions=before.partitions + 1,
            faulty=before.faulty + faulty,
            lag_offsets=before.lag_offsets + (line.lag_offsets or 0),
            size_bytes=before.size_bytes + line.size_bytes,
            deleted_in_seconds=min(left, default=None),
        )
