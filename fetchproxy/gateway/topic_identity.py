"""Does a topic's name still stand for the id whose archive a connection reads?

A topic that is deleted and made anew keeps its name, and a broker that is asked for the rest of a
fetch says nothing of the partitions that were withheld from it. So whoever reads the archive looks
at Metadata first, unless it did so a short while ago. Reads nothing and decides nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from uuid import UUID

from fetchproxy.cluster.client import Cluster
from fetchproxy.errors import ClusterError
from fetchproxy.many_items import each_of
from fetchproxy.model import TopicIdPartition

# So long a topic that was made anew may still be shown its predecessor's records.
IDENTITY_AGE_MAX_MS = 1_000
UNKNOWN_TOPIC = (3, 100)  # UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID


class TopicIdentities:
    """One per connection; `clock` gives loop seconds."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._looked_at: dict[UUID, float] = {}

    async def lost(self, tips: Iterable[TopicIdPartition], deadline: float) -> set[UUID]:
        """Ids among `tips` that are no longer what their topic's name stands for.

        A broker that does not answer until `deadline` (loop time) says nothing against an id, and
        is not waited for again before the next look is due. Never raises ClusterError.
        """
        now = self._clock()
        oldest = now - IDENTITY_AGE_MAX_MS / 1000
        due = {
            tip.topic_id: tip.topic
            async for tip in each_of(tips)
            if self._looked_at.get(tip.topic_id, oldest) <= oldest
        }
        if not due:
            return set()
        self._looked_at = {known: at for known, at in self._looked_at.items() if at > oldest}
        lost: set[UUID] = set()
        try:
            async with asyncio.timeout(deadline - now), asyncio.TaskGroup() as looks:
                for topic_id, name in due.items():
                    looks.create_task(self._look(topic_id, name, lost))
        except TimeoutError:
            pass  # the broker gave leave to read (the permit), which holds
        looked_at = self._clock()
        self._looked_at.update(dict.fromkeys(due.keys() - lost, looked_at))
        return lost

    async def _look(self, topic_id: UUID, name: str, lost: set[UUID]) -> None:
        try:
            topic = await self._cluster.topic_by_name(name, max_age_ms=IDENTITY_AGE_MAX_MS)
        except ClusterError as error:
            if error.error_code in UNKNOWN_TOPIC:
                lost.add(topic_id)
        else:
            if topic.topic_id != topic_id:
                lost.add(topic_id)
