"""What an answer without the broker may show of the tail's partitions. Asks nobody for it."""

from __future__ import annotations

from collections.abc import Iterable, Set

from fetchproxy_protocol.fetch import PartitionKey, PartitionPatch, TopicRef

from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.loop import each_of
from fetchproxy.serving.fetch_answer import PartitionAnswer
from fetchproxy.serving.relay.fetches import SharedByFetches
from fetchproxy.serving.relay.withheld import FetchJudging


class TailMarks:
    """Their ends, where the broker has let this connection see them lately.

    `is_read`: nothing of the broker's last answer was out of range, so this client reads the tail.
    """

    def __init__(self, shared: SharedByFetches, judging: FetchJudging) -> None:
        self._shared = shared
        self._clock = shared.archive.clock
        self._judging = judging
        self._readable: Set[PartitionKey] = frozenset()  # the broker answered them, without error
        self._readable_until = 0.0
        self._refused: set[TopicRef] = set()  # with an error in the answer under way
        self.is_read = False
        self._caught = False

    def refuse(self, topic: TopicRef) -> None:
        """The broker's answer under way has an error for it."""
        self._refused.add(topic)

    def caught(self) -> None:
        """Something in the broker's answer under way is out of range, and the archive's to tell."""
        self._caught = True

    def answered(self, lists_all: bool, keys: Set[PartitionKey]) -> None:
        """The broker's answer about `keys` has left; where it lists all, it says who may read."""
        if lists_all:
            refused = self._refused
            fine = (key for key in keys if key[0] not in refused) if refused else keys
            self._readable = set(fine)
            self._readable_until = self._clock() + self._shared.limits.permit_ttl_s
        if self._refused:
            self._refused = set()
        self.is_read, self._caught = not self._caught, False

    async def answers(self, keys: Iterable[PartitionKey]) -> list[PartitionAnswer]:
        """Nothing new of them; their ends only where the broker lets this client see them."""
        now = self._clock()
        answers: list[PartitionAnswer] = []
        shown_tips: list[TopicIdPartition] = []
        async for key in each_of(keys):
            shown = PartitionPatch()
            readable = key in self._readable and now < self._readable_until
            if readable or self._judging.marks.permitted(key[0], now):
                tip = self._judging.identify(*key)
                shown = self._shared.watermarks(tip)
                if tip is not None:
                    shown_tips.append(tip)
            answers.append(PartitionAnswer(key, shown))
        await self._judging.refresh_edges(shown_tips)
        return answers
