"""What an answer without the broker may show of the tail's partitions. Asks nobody for it."""

from __future__ import annotations

from collections.abc import Iterable, Set

from fetchproxy.gateway.fetch_answer import PartitionAnswer
from fetchproxy.gateway.fetch_judging import FetchJudging
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.remote_side import watermarks
from protocol.fetch_request import PartitionKey, TopicRef
from protocol.fetch_response import PartitionPatch


class TailMarks:
    """Their ends, where the broker has let this connection see them lately."""

    def __init__(self, parts: GatewayParts, judging: FetchJudging) -> None:
        self._parts = parts
        self._judging = judging
        self._readable: Set[PartitionKey] = frozenset()  # the broker answered them, without error
        self._readable_until = 0.0
        self._refused: set[TopicRef] = set()  # with an error in the answer under way

    def refuse(self, topic: TopicRef) -> None:
        """The broker's answer under way has an error for it."""
        self._refused.add(topic)

    def answered(self, lists_all: bool, keys: Set[PartitionKey]) -> None:
        """The broker's answer about `keys` has left; where it lists all, it says who may read."""
        if lists_all:
            self._readable = {key for key in keys if key[0] not in self._refused}
            self._readable_until = self._parts.clock() + self._parts.config.permit_ttl_ms / 1000
        self._refused = set()

    def answers(self, keys: Iterable[PartitionKey]) -> list[PartitionAnswer]:
        """Nothing new of them; their ends only where the broker lets this client see them."""
        now = self._parts.clock()
        answers = []
        for key in sorted(keys):
            shown = PartitionPatch()
            readable = key in self._readable and now < self._readable_until
            if readable or self._judging.marks.permitted(key[0], now):
                tip = self._judging.identify(*key)
                shown = watermarks(self._parts, tip)
                if tip is not None:
                    self._judging.refresh_edges(tip)
            answers.append(PartitionAnswer(key, shown))
        return answers
