"""Which partitions this instance leads: a leader copies and deletes, a follower only keeps current.

Leadership saves work, it is no lock: two leaders of one partition at once (one of them was paused,
or has not heard yet) do no harm, because segments have ids of their own and each copy begins with a
fresh look at the archive. It decides nothing about what is to be done.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fetchproxy.cluster.client import TopicInfo
from fetchproxy.model import TopicIdPartition


@dataclass(frozen=True, slots=True)
class LeadershipState:
    """For status and console. `members`: of the group, None where only its leader knows."""

    kind: str
    state: str
    members: int | None = None
    error: str | None = None


class Leadership(ABC):
    """The manager owns `run()`, says what there is to lead, and hears of every change."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    @abstractmethod
    def leads(self, tip: TopicIdPartition) -> bool:
        """Now. Never blocks; asked again before each step that writes."""

    @abstractmethod
    async def run(self) -> None:
        """Ends only by cancellation, and gives the leadership back then."""

    @abstractmethod
    def state(self) -> LeadershipState:
        """Never blocks."""

    def manage(self, topics: Iterable[TopicInfo]) -> None:
        """The topics that are archived, at each discovery. By default nobody needs to know."""
        del topics

    def on_change(self, listener: Callable[[], None]) -> None:
        """`listener` is called on the loop whenever `leads` may answer differently than before."""
        self._listeners.append(listener)

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()


class SoleLeadership(Leadership):
    """The only archiver there is: everything is ours, from the start and for ever."""

    def leads(self, tip: TopicIdPartition) -> bool:
        return True

    async def run(self) -> None:
        await asyncio.Event().wait()

    def state(self) -> LeadershipState:
        return LeadershipState("sole", "stable", members=1)
