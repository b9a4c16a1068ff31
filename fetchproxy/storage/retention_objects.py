"""What retention and the deletion of topics keep in the store besides segments; bytes, no meaning.

Whoever deletes says there what it is about to do, so that it is known after a restart and to other
archivers. And the store's own clock, where it has one.
"""

from __future__ import annotations

from uuid import UUID

from fetchproxy.errors import ObjectNotFound
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.api import ObjectStore
from fetchproxy.storage.layout import (
    cluster_topics_key,
    collected_metadata_key,
    retention_step_key,
    topic_cluster_key,
)
from fetchproxy.storage.measured import measured
from fetchproxy.storage.object_sizes import OBJECT_BYTES_MAX, SMALL_OBJECT_BYTES_MAX
from fetchproxy.storage.store_clock import StoreClock


class RetentionObjects:
    """`prefix` is one of `layout.normal_prefix`. `clock`: the store's own, if it tells the time.

    Raises RemoteStorageError and subclasses.
    """

    def __init__(self, store: ObjectStore, prefix: str, clock: StoreClock | None) -> None:
        self._store = store
        self._prefix = prefix
        self._clock = clock

    @measured
    async def put_retention_step(self, tip: TopicIdPartition, content: bytes) -> None:
        """Create or replace, atomically."""
        await self._store.put(retention_step_key(self._prefix, tip), content)

    @measured
    async def get_retention_step(self, tip: TopicIdPartition) -> bytes | None:
        """None: retention has announced nothing."""
        return await self._get(retention_step_key(self._prefix, tip), SMALL_OBJECT_BYTES_MAX)

    @measured
    async def delete_retention_step(self, tip: TopicIdPartition) -> None:
        """Absent is no error."""
        await self._store.delete(retention_step_key(self._prefix, tip))

    @measured
    async def put_cluster_topics(self, cluster_id: str, content: bytes) -> None:
        """Create or replace, atomically."""
        await self._store.put(cluster_topics_key(self._prefix, cluster_id), content)

    @measured
    async def get_cluster_topics(self, cluster_id: str) -> bytes | None:
        """None: nobody has looked at the cluster's topics yet."""
        return await self._get(cluster_topics_key(self._prefix, cluster_id), OBJECT_BYTES_MAX)

    @measured
    async def put_topic_cluster(self, topic: str, topic_id: UUID, cluster_id: str) -> None:
        """The cluster in which the topic is alive."""
        content = cluster_id.encode() + b"\n"
        await self._store.put(topic_cluster_key(self._prefix, topic, topic_id), content)

    @measured
    async def get_topic_cluster(self, topic: str, topic_id: UUID) -> str | None:
        """None: no archiver has seen the topic alive, or it is forgotten."""
        key = topic_cluster_key(self._prefix, topic, topic_id)
        content = await self._get(key, SMALL_OBJECT_BYTES_MAX)
        return None if content is None else content.decode(errors="replace").strip()

    @measured
    async def forget_topic(self, topic: str, topic_id: UUID) -> None:
        """Remove what is left of a topic without partitions; may be repeated."""
        await self._store.delete(collected_metadata_key(self._prefix, topic_id))
        await self._store.delete(topic_cluster_key(self._prefix, topic, topic_id))

    async def store_clock_ms(self) -> int | None:
        """Epoch ms by the store's own clock; None: it has none that it tells."""
        return None if self._clock is None else await self._clock.clock_ms(self._prefix)

    async def _get(self, key: str, bytes_max: int) -> bytes | None:
        try:
            return await self._store.get(key, bytes_max)
        except ObjectNotFound:
            return None
