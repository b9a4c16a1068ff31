"""Forgets topics that no longer exist, in every table of the process and in its metrics.

A topic exists while the archive or the cluster has it. The tables are caches: what was forgotten by
mistake is made again. So it does not matter which process has deleted a topic, and no deletion has
to be announced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.observability.metrics import series_by_topic
from fetchproxy.runtime.cooperative import chosen

# Each time, the top level of the archive is listed, unless a gateway has just done it, and brokers
# are asked about topics that nobody has asked about for this long.
FORGET_INTERVAL_S = 300.0


class TopicTable(Protocol):
    async def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        """Remove the entries of these topics, and yield to the event loop in between."""


@dataclass(eq=False, repr=False)
class Forgetting:
    """Forgets topics that no longer exist, in all tables and metrics. `cluster` None: archive-only.
    `tables`: all that the process has now.
    """

    rlmm: RemoteLogMetadataManager
    cluster: Cluster | None
    tables: Callable[[], Iterable[TopicTable]]

    async def run(self) -> None:
        """For ever. While store or brokers do not answer, nothing is forgotten."""
        while True:
            await asyncio.sleep(FORGET_INTERVAL_S)
            with suppress(ClusterError, RemoteStorageError):  # other parts report them
                await self.forget_gone_topics()

    async def forget_gone_topics(self) -> None:
        """Raises ClusterError, RemoteStorageError."""
        oldest = asyncio.get_running_loop().time() - FORGET_INTERVAL_S
        archived_ids = set(await self.rlmm.archived_topics(oldest))
        names = await self.rlmm.topic_names()
        if self.cluster is not None:
            for topic in await self.cluster.still_there(int(FORGET_INTERVAL_S * 1000)):
                archived_ids.add(topic.topic_id)
                names.add(topic.name)
        names.add("")  # a topic that was not known when it was counted
        for table in self.tables():
            await table.forget_topics(lambda topic_id: topic_id not in archived_ids)
        for remove, series in series_by_topic():
            for labels in await chosen(series, lambda labels: labels[0] not in names):
                remove(*labels)
