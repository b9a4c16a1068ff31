"""Deletes the archive of a topic that the cluster has deleted: by itself, never by mistake.

Records a cluster's topics, and decides if it can still be the same cluster as at the last look.
Pure.

A cluster that was wiped and formatted again with the same id denies every topic that it had: each
looks like a deleted topic. So the store keeps a list of the cluster's topics
(`clusters/<id>.topics`), and a look renews it only if some of them still exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Set
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from uuid import UUID

import structlog
from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.errors import ClusterError, CorruptSegment, ObjectNotFound, RemoteStorageError
from fetchproxy.metadata.archiver_positions import decode_positions
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import (
    LogOffsets,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.observability.health import Kind, of_topic
from fetchproxy.observability.metrics import DELETED_PARTITIONS
from fetchproxy.segments.json_fields import JsonFields, decode_document, json_document
from fetchproxy.segments.object_keys import uuid_text
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.writing.deletion.orphans import Objects, delete_orphans
from fetchproxy.writing.deletion.segment_deletion import SegmentDeletion
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.published_conditions import PublishedConditions

_VERSION = 1
# Share of the archived topics. If two or more, and a larger share, are gone at once, an operator
# must confirm that they were deleted.
GONE_SHARE_MAX = 0.5
_Deletion = RemotePartitionDeleteState

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ClusterTopics:
    """Topic ids. `alive`: all of the cluster's topics, archived or not, at the last look that
    counted. `gone`: archived topics that were deleted since, while others stayed: their archive may
    be deleted.
    """

    alive: frozenset[UUID] = frozenset()
    gone: frozenset[UUID] = frozenset()


def doubt_of_cluster(
    before: ClusterTopics, alive: Set[UUID], denied: Set[UUID], archived: Set[UUID]
) -> str | None:
    """Why the denied topics may not have been deleted, in words. None: no doubt.

    `alive`: all of the cluster's topics now. `denied`: those of `archived` that the cluster says it
    does not have.
    """
    alive_ids = before.alive & archived
    missing = alive_ids & denied
    if missing and not before.alive & alive:
        return f"none of the {len(before.alive)} topics that the cluster had is left"
    if len(missing) > 1 and len(missing) > GONE_SHARE_MAX * len(alive_ids):
        return f"{len(missing)} of {len(alive_ids)} archived topics are gone at once"
    return None


def moved_on(
    before: ClusterTopics, alive: Set[UUID], denied: Set[UUID], archived: Set[UUID]
) -> ClusterTopics:
    """The topics after a look that counts. A topic neither seen nor denied stays as it was."""
    unseen = (before.alive & archived) - alive - denied
    gone = ((before.gone | (before.alive & denied)) & archived) - alive
    return ClusterTopics(frozenset(alive | unseen), frozenset(gone))


def encode_cluster_topics(cluster_id: str, topics: ClusterTopics) -> bytes:
    """{"version": 1, "cluster_id": "…", "alive": ["…"], "gone": []}, ids in Kafka's notation."""
    fields = {
        "version": _VERSION,
        "cluster_id": cluster_id,
        "alive": sorted(map(uuid_text, topics.alive)),
        "gone": sorted(map(uuid_text, topics.gone)),
    }
    return json_document(fields)


def decode_cluster_topics(raw: bytes) -> ClusterTopics:
    """Raises CorruptSegment, which names the field; NewerMetadataVersion."""

    def topics(fields: JsonFields) -> ClusterTopics:
        return ClusterTopics(frozenset(fields.uuids("alive")), frozenset(fields.uuids("gone")))

    return decode_document(raw, "topics of the cluster", _VERSION, topics)


@dataclass(eq=False, repr=False)
class PartitionDeletion:
    """`await deletion.run()` inside a TaskGroup; it ends only by cancellation.

    The order is DELETE_PARTITION_MARKED, STARTED, the segments, FINISHED. Each state is recorded,
    so any archiver may go on where another stopped. A deleted topic has no leader, so every step
    may be done twice.

    An archive is deleted only if all of this holds, however long it takes:

    - this cluster, by its id, has had the topic: an archiver has seen it alive there and recorded
      that in the store. Archives of other clusters, and restored ones, have no such record;
    - the cluster denies the topic by name and by id. An error, or no right to see it, denies
      nothing. A topic of the same name that was created again has another id, and is another log;
    - the cluster has denied it at every look for `topic_deletion_grace_ms`;
    - other topics of the cluster were there when this topic disappeared (see above).
    """

    config: ArchiveConfig
    cluster: Cluster
    rsm: RemoteStorageManager
    objects: ArchiveObjects
    rlmm: RemoteLogMetadataManager
    _: KW_ONLY
    wall_clock_ms: Callable[[], int]
    published_conditions: PublishedConditions = field(default_factory=PublishedConditions)
    limits: WritingLimits = WritingLimits()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        self._segments = SegmentDeletion(self.rsm, self.rlmm, self.wall_clock_ms)
        self._owned: dict[UUID, str] = {}  # topic id -> cluster id, as stored
        self._absent_since: dict[UUID, float] = {}  # loop time
        # High watermarks up to which the archive had all, of topics that no pattern matches.
        self._covered: dict[TopicIdPartition, int] = {}
        self._not_deletable: set[UUID] = set()  # denied, and not recorded as deleted alone
        self._failing = False

    async def run(self) -> None:
        """Looks at an interval. An error is logged once per outage, and the look is tried again."""
        while True:
            try:
                await self.look()
                self._failing = False
            except (ClusterError, RemoteStorageError) as error:
                if not self._failing:
                    log.warning("deleted_topics_check_failed", error=str(error))
                self._failing = True
            await asyncio.sleep(self.limits.topic_deletion_check_interval_ms / 1000)

    async def look(self) -> None:
        """Look for deleted topics; delete what is due. Raises ClusterError, RemoteStorageError."""
        topics: dict[tuple[UUID, str], list[TopicIdPartition]] = {}
        for tp in await self.rlmm.list_partitions():
            topics.setdefault((tp.topic_id, tp.topic), []).append(tp)
        archived = {topic_id for topic_id, _ in topics}
        self._forget_others(archived)
        if not archived:
            return
        alive = {topic.topic_id for topic in await self.cluster.topics(max_age_ms=0)}
        await self._look_for_left_out(
            {name: tps for (topic_id, name), tps in topics.items() if topic_id in alive}
        )
        cluster_id = await self.cluster.cluster_id()
        if not cluster_id:
            return
        if self.config.topic_deletion == "keep":  # topics gone by now keep their archive for good
            noted = await self._note_alive_topics(cluster_id)
            await self._note(cluster_id, noted, ClusterTopics(frozenset(alive)))
            return
        denied: set[UUID] = set()
        for partitions in topics.values():
            tp = partitions[0]
            if tp.topic_id in alive:
                await self._record_cluster(tp, cluster_id)
            elif await self._is_owned(partitions, cluster_id) and await self._is_denied(
                tp, cluster_id
            ):
                denied.add(tp.topic_id)
        may_go = await self._may_go(cluster_id, alive, denied, archived)
        for (topic_id, _), partitions in topics.items():
            if topic_id in may_go or (
                topic_id in denied and await self._is_any_started(partitions)
            ):
                await self._delete_when_due(partitions)
            else:
                self._absent_since.pop(topic_id, None)

    def _forget_others(self, archived: Set[UUID]) -> None:
        """Another archiver may have deleted a topic's archive."""
        self._not_deletable &= archived
        for by_tp in (self._owned, self._absent_since):
            for topic_id in by_tp.keys() - archived:
                del by_tp[topic_id]

    # --- topics that nobody archives any more ---
    async def _look_for_left_out(self, topics: Mapping[str, list[TopicIdPartition]]) -> None:
        """Of the archived topics that the cluster has: those that grow and that no archiver's
        pattern matches. A mistyped `archive.topics` has no other sign.
        """
        pattern, kind = self.config.topics or "", Kind.TOPIC_LEFT_OUT
        unmatched = {n: tps for n, tps in topics.items() if not self.config.names(n)}
        still = {tp for tps in unmatched.values() for tp in tps}
        self._covered = {tp: offset for tp, offset in self._covered.items() if tp in still}
        elsewhere = await self._accumulated_elsewhere() if unmatched else set()
        left_out = [
            of_topic(
                kind,
                name,
                f"{name} was archived, and archive.topics = {pattern!r} does not match it: the "
                "brokers delete its new records without a copy",
            )
            for name, tps in unmatched.items()
            if tps[0].topic_id not in elsewhere and await self._grows(tps)
        ]
        self.published_conditions.health.keep(kind, left_out)

    async def _accumulated_elsewhere(self) -> set[UUID]:
        """The topics that archivers with other patterns archive."""
        topic_ids: set[UUID] = set()
        async for stored in self.objects.list_archiver_positions():
            with suppress(ObjectNotFound, CorruptSegment):  # it has ended, or says nothing
                raw = await self.objects.get_archiver_positions(stored.key)
                topic_ids |= {topic_id for topic_id, _ in decode_positions(raw, stored.key)[0]}
        return topic_ids

    async def _grows(self, tps: list[TopicIdPartition]) -> bool:
        """Whether the brokers have records above the archive's end."""
        now = asyncio.get_running_loop().time()
        log_offsets = await self.cluster.fetch_log_offsets(tps, not_older_than=now)
        for tp, offsets in log_offsets.items():
            if (
                not isinstance(offsets, LogOffsets)
                or self._covered.get(tp) == offsets.high_watermark
            ):
                continue
            view = await self.rlmm.refresh(tp, now)
            if offsets.high_watermark > max(view.log_end_offset or 0, offsets.log_start_offset):
                return True
            self._covered[tp] = offsets.high_watermark
        return False

    # --- whether it is the same cluster ---
    async def _may_go(
        self, cluster_id: str, alive: set[UUID], denied: set[UUID], archived: set[UUID]
    ) -> frozenset[UUID]:
        """The topics of `denied` that were deleted one by one, or that an operator gives up."""
        before = await self._note_alive_topics(cluster_id)
        if self.config.topic_deletion == "delete-all":
            before = replace(before, alive=before.alive | denied)
        elif doubt := doubt_of_cluster(before, alive, denied, archived):
            self.published_conditions.hold(
                Kind.TOPIC_DELETION_STOPPED,
                None,
                f"the archive of deleted topics is kept: {doubt}, so this may be another cluster "
                f"with the id {cluster_id}; if the topics were deleted, set "
                "archive.topic_deletion=delete-all until their archive is deleted",
                cluster_id=cluster_id,
            )
            return frozenset()
        after = moved_on(before, alive, denied, archived)
        self.published_conditions.release(Kind.TOPIC_DELETION_STOPPED, None)
        await self._note(cluster_id, before, after)
        for topic_id in denied - after.gone - self._not_deletable:
            log.warning("archived_topic_kept", topic_id=str(topic_id))
            self._not_deletable.add(topic_id)
        return after.gone & denied

    async def _note_alive_topics(self, cluster_id: str) -> ClusterTopics:
        raw = await self.objects.get_cluster_topics(cluster_id)
        try:
            return ClusterTopics() if raw is None else decode_cluster_topics(raw)
        except CorruptSegment as error:
            raise RemoteStorageError(str(error)) from error

    async def _note(self, cluster_id: str, before: ClusterTopics, after: ClusterTopics) -> None:
        if after != before:
            content = encode_cluster_topics(cluster_id, after)
            await self.objects.put_cluster_topics(cluster_id, content)

    # --- whose it is ---
    async def _record_cluster(self, tp: TopicIdPartition, cluster_id: str) -> None:
        if self._owned.get(tp.topic_id) != cluster_id:
            topic = tp.topic, tp.topic_id
            if await self.objects.get_topic_cluster(*topic) != cluster_id:
                await self.objects.put_topic_cluster(*topic, cluster_id)
            self._owned[tp.topic_id] = cluster_id

    async def _is_owned(self, partitions: list[TopicIdPartition], cluster_id: str) -> bool:
        """Whether this cluster has had the topic."""
        tp = partitions[0]
        if tp.topic_id not in self._owned:
            owner = await self.objects.get_topic_cluster(tp.topic, tp.topic_id)
            if owner is None:
                # Or this is the end of a deletion, which has already removed the record.
                return await self._is_any_started(partitions)
            self._owned[tp.topic_id] = owner
        return self._owned[tp.topic_id] == cluster_id

    async def _is_denied(self, tp: TopicIdPartition, cluster_id: str) -> bool:
        """Whether the cluster now says that it has no such topic."""
        by_name = self.cluster.topic_by_name(tp.topic, max_age_ms=0)
        if not await _is_denial(by_name, tp.topic_id, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            return False
        by_id = self.cluster.topic_by_id(tp.topic_id, max_age_ms=0)
        if not await _is_denial(by_id, tp.topic_id, ErrorCode.UNKNOWN_TOPIC_ID):
            return False
        # Another cluster may have answered: addresses are given to other clusters.
        return await self.cluster.cluster_id() == cluster_id

    # --- the deletion ---
    async def _delete_when_due(self, partitions: list[TopicIdPartition]) -> None:
        topic, topic_id = partitions[0].topic, partitions[0].topic_id
        now = asyncio.get_running_loop().time()
        if topic_id not in self._absent_since:
            self._absent_since[topic_id] = now
            log.warning(
                "archived_topic_is_gone",
                topic=topic,
                topic_id=str(topic_id),
                hint="to keep its archive, set archive.topic_deletion = keep before "
                "archive.topic_deletion_grace_ms is over",
            )
        grace_s = self.config.topic_deletion_grace_ms / 1000
        due = now - self._absent_since[topic_id] >= grace_s
        try:
            emptied = [tp for tp in partitions if await self._empty(tp, due)]
            if len(emptied) == len(partitions):
                await self.objects.forget_topic(topic, topic_id)
                self._absent_since.pop(topic_id)
                self._owned.pop(topic_id, None)
            for tp in emptied:
                await self._put(tp, _Deletion.DELETE_PARTITION_FINISHED)
                DELETED_PARTITIONS.inc()
        except ValueError as error:  # another archiver has changed the state
            log.info("topic_deleted_by_another", topic=topic, error=str(error))

    async def _empty(self, tp: TopicIdPartition, due: bool) -> bool:
        """False: it is not due yet. A deletion that was started before a restart waits no more."""
        if not await self._is_started(tp):
            if not due:
                return False
            await self._put(tp, _Deletion.DELETE_PARTITION_MARKED)
            await self._put(tp, _Deletion.DELETE_PARTITION_STARTED)
        await self._delete_all(tp)
        return True

    async def _is_any_started(self, partitions: list[TopicIdPartition]) -> bool:
        return any([await self._is_started(tp) for tp in partitions])

    async def _is_started(self, tp: TopicIdPartition) -> bool:
        deletion = await self.rlmm.partition_deletion(tp, asyncio.get_running_loop().time())
        return deletion is not None and deletion.state is not _Deletion.DELETE_PARTITION_MARKED

    async def _delete_all(self, tp: TopicIdPartition) -> None:
        self.rlmm.doubt(tp)  # nothing may be left
        await self.rlmm.refresh(tp, asyncio.get_running_loop().time())
        for segment in self.rlmm.list_remote_log_segments(tp):
            await self._segments.delete(segment)
        # Orphans, and segments whose metadata cannot be read.
        other_objects: list[Objects] = []
        async for key, stored in self.objects.list_segment_objects(tp):
            other_objects.append({key.file: stored})
        await delete_orphans(self.objects, tp, other_objects)

    async def _put(self, tp: TopicIdPartition, state: _Deletion) -> None:
        await self.rlmm.put_partition_deletion(
            RemotePartitionDeleteMetadata(tp, state, self.wall_clock_ms())
        )
        log.info("partition_deletion", **tp.logged, state=state.name)


async def _is_denial(lookup: Awaitable[TopicInfo], topic_id: UUID, code: ErrorCode) -> bool:
    try:
        return (await lookup).topic_id != topic_id
    except ClusterError as error:
        if error.retriable or error.error_code is None:
            raise
        return error.error_code == code
