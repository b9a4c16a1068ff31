"""What the archive keeps of its cluster besides records, for clients that ask for it: leader
epochs, settings of topics, rights. A tool that copies a cluster by a link of its own needs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

import structlog

from fetchproxy.cluster_state.document import decode_without_groups
from fetchproxy.cluster_state.state import EPOCH_UNKNOWN, AclState, ClusterState, TopicState
from fetchproxy.errors import CorruptSegment, ObjectNotFound, RemoteStorageError
from fetchproxy.metadata.lineage import epoch_of
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from fetchproxy.serving.archive_only.topic_settings import TopicSetting, settings_of
from fetchproxy.storage.archive_objects import ArchiveObjects

log = structlog.get_logger(__name__)


class KeptState:
    """The newest state, without its groups. Without any state, nothing is known."""

    def __init__(self, objects: ArchiveObjects) -> None:
        self._objects = objects
        self._key = ""  # of the state that was read last
        self._refusal = ""  # why the store gives out none
        self._topics: Mapping[UUID, TopicState] = {}
        self._epochs: Mapping[tuple[UUID, int], int] = {}
        self._of_all_brokers: frozenset[str] = frozenset()
        self.acls: Sequence[AclState] = ()

    async def refresh(self) -> None:
        """One listing, and one read if there is a newer state. One that cannot be read is logged
        and left out: the records are served without it. Raises RemoteStorageError in an outage.
        """
        try:
            await self._refresh()
        except RemoteStorageError as error:
            if error.retriable:
                raise
            if str(error) != self._refusal:
                log.warning("cluster_state_unreadable", key=self._key, error=str(error))
            self._refusal = str(error)
        else:
            self._refusal = ""

    async def _refresh(self) -> None:
        states = await self._objects.list_cluster_states()
        if not states or states[-1].key == self._key:
            return
        newest = states[-1]
        try:
            raw = await self._objects.get_cluster_state(newest)
            state = await asyncio.to_thread(decode_without_groups, raw, newest.key)
        except ObjectNotFound:
            return  # a newer one has taken its place; the next look shows it
        except CorruptSegment as error:
            log.warning("cluster_state_unreadable", key=newest.key, error=str(error))
        else:
            await asyncio.to_thread(self._take, state)
        self._key = newest.key

    def _take(self, state: ClusterState) -> None:
        self._topics = {topic.topic_id: topic for topic in state.topics}
        self._epochs = {
            (topic.topic_id, one.partition): one.leader_epoch
            for topic in state.topics
            for one in topic.partitions
        }
        self._of_all_brokers = frozenset(name for name, _ in state.broker_configs)
        self.acls = state.acls

    def knows(self, topic_id: UUID) -> bool:
        return topic_id in self._topics

    def settings(self, topic_id: UUID) -> Iterator[TopicSetting]:
        """Of a topic that it knows, by name."""
        return settings_of(self._topics[topic_id], self._of_all_brokers)

    def leader_epoch(self, tp: TopicIdPartition, view: PartitionView | None) -> int:
        """-1: not known. Never below an epoch that a client may have from a record, because a Java
        client waits for Metadata with at least that one: `view` may have newer ones than the state.
        """
        epoch = self._epochs.get((tp.topic_id, tp.partition), EPOCH_UNKNOWN)
        if epoch == EPOCH_UNKNOWN or view is None or view.log_end_offset is None:
            return epoch
        return max(epoch, epoch_of(view, view.log_end_offset - 1))
