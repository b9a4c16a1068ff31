"""Which archived log each topic of the brokers continues, in memory.

A topic that was restored in another cluster has another id there. Everything in the archive has the
id of the archived topic, so the two are told apart only where brokers are asked. A topic that was
deleted and created again is in no document: it begins a log of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from uuid import UUID


class ContinuedTopics:
    """As the archive says, when its objects were last listed. It only grows. Not thread-safe."""

    def __init__(self) -> None:
        self._log_ids: dict[UUID, UUID] = {}
        self._successors: dict[UUID, list[UUID]] = {}
        self._on_change: list[Callable[[Iterable[UUID]], None]] = []

    def log_id(self, topic_id: UUID) -> UUID:
        """The id of its log: another one if the topic continues an archived topic."""
        return self._log_ids.get(topic_id, topic_id)

    def continues(self, topic_id: UUID) -> bool:
        return topic_id in self._log_ids

    def ids_at_brokers(self, log_id: UUID) -> list[UUID]:
        """The ids by which some cluster may know the topic with this log."""
        return [log_id, *self._successors.get(log_id, ())]

    @property
    def log_ids(self) -> Mapping[UUID, UUID]:
        """By the topic's id at the brokers."""
        return self._log_ids

    def __len__(self) -> int:
        return len(self._log_ids)

    def watch(self, on_change: Callable[[Iterable[UUID]], None]) -> None:
        """`on_change` is called with the brokers' ids of new ones, after each change."""
        self._on_change.append(on_change)

    def add(self, log_ids: Mapping[UUID, UUID]) -> None:
        """`log_ids`: by the topic's id at the brokers. One that is known stays as it is. A hundred
        take about a millisecond, if topics are known already.
        """
        new = {one: log_id for one, log_id in log_ids.items() if one not in self._log_ids}
        if not new:
            return
        self._log_ids.update(new)
        for topic_id, log_id in new.items():
            self._successors.setdefault(log_id, []).append(topic_id)
        for on_change in self._on_change:
            on_change(new)
