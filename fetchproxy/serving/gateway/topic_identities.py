"""Finds out whether a topic's name still stands for the id whose archive a connection reads.

A topic that is deleted and created again keeps its name, and a broker says nothing about partitions
for which it was not asked. So before a connection reads the archive, it looks at Metadata, unless
it did so a short while ago.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Callable,
    Iterable,
)
from uuid import UUID

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.errors import ClusterError
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.cooperative import checkpoint, pieces
from fetchproxy.serving.gateway.route_decision import (
    IDENTITY_AGE_MAX_MS,
    UNKNOWN_TOPIC,
)


class TopicIdentities:
    """Finds out whether a topic's name still stands for the same topic id. One per connection;
    `clock` gives loop time in seconds.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._checked_at: dict[UUID, float] = {}

    async def replaced_topics(
        self, tps: Iterable[TopicIdPartition], deadline: float
    ) -> set[UUID] | None:
        """The topic ids of `tps` whose topic name now stands for another topic or for none. None:
        all were looked up a short while ago.

        If the brokers do not answer until `deadline` (loop time), the ids count as valid until the
        next look-up is due. Never raises ClusterError.
        """
        now = self._clock()
        oldest = now - IDENTITY_AGE_MAX_MS / 1000
        due: dict[UUID, str] = {}
        for piece in pieces(tps):
            for tp in piece:
                if self._checked_at.get(tp.topic_id, oldest) <= oldest:
                    due[tp.topic_id] = tp.topic
            await checkpoint(len(piece))
        if not due:
            return None
        self._checked_at = {known: at for known, at in self._checked_at.items() if at > oldest}
        lost: set[UUID] = set()
        try:
            async with asyncio.timeout(deadline - now), asyncio.TaskGroup() as looks:
                for topic_id, name in due.items():
                    looks.create_task(self._look(topic_id, name, lost))
        except TimeoutError:
            pass  # the broker's permit still holds
        checked_at = self._clock()
        self._checked_at.update(dict.fromkeys(due.keys() - lost, checked_at))
        return lost

    async def _look(self, topic_id: UUID, name: str, replaced_topics: set[UUID]) -> None:
        try:
            topic = await self._cluster.topic_by_name(name, max_age_ms=IDENTITY_AGE_MAX_MS)
        except ClusterError as error:
            if error.error_code in UNKNOWN_TOPIC:
                replaced_topics.add(topic_id)
        else:
            if topic.topic_id != topic_id:
                replaced_topics.add(topic_id)
