"""Writes what the archive knows of its topics besides their records (`topic_descriptions`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.errors import ClusterError
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.cooperative import cooperative, for_each
from fetchproxy.segments.topic_description import TopicDescription, encode_topic_description
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.writing.discovery import partitions_of

WRITTEN_AT_ONCE = 16
# The ends of the brokers' logs may be this old: other parts of an archiver ask for them too.
_LOG_OFFSETS_AGE_MAX_S = 30.0


class TopicRecorder:
    """Writes the descriptions of archived topics to the store. One per archiver. `wall_clock_ms`:
    epoch ms.
    """

    def __init__(
        self,
        cluster: Cluster,
        objects: ArchiveObjects,
        rlmm: RemoteLogMetadataManager,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self._cluster = cluster
        self._objects = objects
        self._rlmm = rlmm
        self._wall_clock_ms = wall_clock_ms
        self._known = TopicDescriptions(objects)
        self._archived: set[UUID] = set()  # topics with records, which the deletion removes

    async def record(self, topics: Sequence[TopicInfo]) -> None:
        """Describe `topics`, if that is new, and forget deleted topics that never had a record.
        May be done by two archivers at once. Raises RemoteStorageError, ClusterError.
        """
        topics_before = await self._known.refresh()
        cluster_id = await self._cluster.cluster_id() or ""
        oldest = asyncio.get_running_loop().time() - _LOG_OFFSETS_AGE_MAX_S
        log_offsets = await self._cluster.fetch_log_offsets(
            partitions_of(topics), not_older_than=oldest
        )

        def described(topic: TopicInfo) -> TopicDescription:
            before, empty = topics_before.get(topic.topic_id), dict[int, int]()
            for number in topic.leaders:
                offsets = log_offsets[TopicIdPartition(topic.topic_id, topic.name, number)]
                if isinstance(offsets, ClusterError):
                    if before is not None and number in before.empty:
                        empty[number] = before.empty[number]  # as last known
                elif offsets.log_start_offset == offsets.high_watermark:
                    empty[number] = offsets.log_start_offset
            count = max(topic.leaders, default=0) + 1
            return TopicDescription(
                topic.topic_id, topic.name, count, cluster_id, empty, self._wall_clock_ms()
            )

        async def write(description: TopicDescription) -> None:
            await self._objects.put_topic_description(
                description.topic_id, encode_topic_description(description)
            )

        descriptions = [described(topic) async for topic in cooperative(topics)]
        changed = [one for one in descriptions if topics_before.get(one.topic_id) != one]
        await for_each(changed, write, WRITTEN_AT_ONCE)
        await self._forget_deleted(cluster_id)

    async def _forget_deleted(self, cluster_id: str) -> None:
        """What is forgotten holds no record: it would be described again if the topic came back."""
        descriptions = self._known.by_id.values()
        of_cluster = {
            description.topic_id
            for description in descriptions
            if description.cluster_id == cluster_id
        }
        self._archived &= of_cluster
        deleted_ids = (
            of_cluster - self._archived - {t.topic_id for t in await self._cluster.topics()}
        )
        if not deleted_ids or not cluster_id:
            return
        self._archived |= {tp.topic_id for tp in await self._rlmm.list_partitions()}
        for topic_id in deleted_ids - self._archived:
            await self._objects.delete_topic_description(topic_id)
