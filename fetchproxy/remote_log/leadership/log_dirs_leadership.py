"""Leadership with the `log-dirs` source: an instance leads what the broker beside it leads.

So with a sidecar beside every broker each partition has one leader, and it moves with the broker's.
No group is needed. What leads here at any moment is as old as the last discovery; the source asks
again before it takes a segment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

from fetchproxy.cluster.client import TopicInfo
from fetchproxy.model import TopicIdPartition
from fetchproxy.remote_log.leadership.api import Leadership, LeadershipState


class LogDirsLeadership(Leadership):
    """`node_ids`: of the brokers whose log directories this instance has."""

    def __init__(self, node_ids: Collection[int]) -> None:
        super().__init__()
        self._node_ids = frozenset(node_ids)
        self._led: frozenset[TopicIdPartition] = frozenset()

    def leads(self, tip: TopicIdPartition) -> bool:
        return tip in self._led

    def manage(self, topics: Iterable[TopicInfo]) -> None:
        led = frozenset(
            TopicIdPartition(topic.topic_id, topic.name, partition)
            for topic in topics
            for partition, (leader, _) in topic.leaders.items()
            if leader in self._node_ids
        )
        if led != self._led:
            self._led = led
            self._changed()

    async def run(self) -> None:
        await asyncio.Event().wait()  # every discovery brings the leaders along

    def state(self) -> LeadershipState:
        return LeadershipState("log-dirs", "stable")
