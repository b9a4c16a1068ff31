"""How long the brokers keep what is not archived, if the archiver that knows it is away.

An archiver knows the time left of its partitions. While none works, a process that only serves
finds it from what it has: the newest archived timestamp and the topic's retention. Records behind
it are newer, so the brokers delete them no earlier. Retention by bytes is not considered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.errors import ClusterError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.writing.status import broker_retention

# One request each. The next looks ask for the rest.
TOPICS_ASKED_A_LOOK = 20
# An operator may raise the retention meanwhile, as the remedy says.
RETENTION_ASKED_AGAIN_S = 60.0


@dataclass(eq=False, slots=True)
class TimeLeft:
    """`retention_ms` by topic, as last heard. None: unlimited, or not known."""

    _retention_ms: dict[str, tuple[float, int | None]] = field(default_factory=dict)

    async def look(self, cluster: Cluster, topics: Iterable[str]) -> None:
        """`topics`: those with records that nobody archives now."""
        now = asyncio.get_running_loop().time()
        before, self._retention_ms = self._retention_ms, {}
        due: list[str] = []
        for name in sorted(set(topics)):
            if (heard := before.get(name)) is not None:
                self._retention_ms[name] = heard
            if heard is None or now - heard[0] > RETENTION_ASKED_AGAIN_S:
                due.append(name)
        due.sort(key=lambda name: before.get(name, (0.0, None))[0])  # none waits for ever
        for name in due[:TOPICS_ASKED_A_LOOK]:
            try:
                retention_ms = broker_retention(await cluster.topic_config(name)).ms
            except ClusterError:
                retention_ms = None  # the page says that it is not known
            self._retention_ms[name] = now, retention_ms

    def seconds(self, topic: str, view: PartitionView | None, now_ms: int) -> int | None:
        """Until the brokers may delete the first record behind the archive's end."""
        _, retention_ms = self._retention_ms.get(topic, (0.0, None))
        if retention_ms is None or view is None or not view.segments:
            return None
        newest = view.segments[len(view.segments) - 1]
        if not 0 < newest.max_timestamp_ms <= now_ms:
            return None
        return max(newest.max_timestamp_ms + retention_ms - now_ms, 0) // 1000
