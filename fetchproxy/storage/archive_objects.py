"""Everything that the store holds of an archive besides segments' logs and indexes, as bytes and
names: listings, segments' metadata, the state of partitions, topics and archivers.

`segments.object_keys` describes the purpose of each object. It parses no content: the metadata
manager knows which segments count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from fetchproxy.errors import (
    DamagedObject,
    ObjectNotFound,
    RangeNotSatisfiable,
    StorageUnavailable,
)
from fetchproxy.model import AnySegment, ByteRange, SegmentRef, TopicIdPartition
from fetchproxy.segments import object_keys as keys
from fetchproxy.segments.continued_topic import (
    ContinuedTopic,
    decode_continued_topic,
    encode_continued_topic,
)
from fetchproxy.segments.object_keys import SegmentFile, SegmentKey
from fetchproxy.storage.archive_identity import AT_ONCE_S, OwnIdentity
from fetchproxy.storage.continued_topics import ContinuedTopics
from fetchproxy.storage.listings import (
    LogHistoryObject,
    LogStartObject,
    PastChangedObject,
    Standing,
    Unlisted,
    listed_partitions,
    standing,
    take_topic_objects,
)
from fetchproxy.storage.store_health import measured
from fetchproxy.storage.stores.object_store import (
    OBJECT_BYTES_MAX,
    SMALL_OBJECT_BYTES_MAX,
    ObjectStore,
    StoredObject,
)

T = TypeVar("T")

LISTED_AT_ONCE = 100  # objects between two pauses for the event loop: below 1 ms


@dataclass(frozen=True, slots=True)
class ConditionsObject:
    """`tp`: None if it concerns the whole archive. `name`: a `health.Kind`, or a newer kind."""

    tp: TopicIdPartition | None
    name: str
    key: str
    version: str  # changes with the content


@dataclass(frozen=True, slots=True)
class ClusterStateObject:
    """A kept state of a cluster. `read_at_ms`: epoch ms."""

    read_at_ms: int
    cluster_id: str
    key: str


class ArchiveObjects:
    """`prefix`: from `object_keys.normal_prefix`. Raises RemoteStorageError and subclasses.

    A put creates or replaces atomically. Deleting an absent object is not an error. A listing first
    checks the archive's identity: an archive with a later layout or another metadata manager would
    look empty. A put or deletion first checks whose archive it is (`OwnIdentity.check_owner`).

    `continued`: as of the last listing of topics, or `read_continued_topics`.
    """

    def __init__(self, store: ObjectStore, prefix: str, identity: OwnIdentity) -> None:
        self._store = store
        self._prefix = prefix
        self._identity = identity
        self.continued = ContinuedTopics()

    async def check_owner(self) -> None:
        """For who changes something else than the store on the grounds of this archive. Raises
        ArchiveMismatch if it is another cluster's by now.
        """
        await self._identity.check_owner(AT_ONCE_S)

    async def _put(self, key: str, content: bytes) -> None:
        await self._identity.check_owner()
        await self._store.put(key, content)

    async def _delete(self, key: str) -> None:
        await self._identity.check_owner()
        await self._store.delete(key)

    async def _get(self, key: str, bytes_max: int = SMALL_OBJECT_BYTES_MAX) -> bytes | None:
        try:
            return await self._store.get(key, bytes_max)
        except ObjectNotFound:
            return None

    # --- listings: partitions, and what there is of each; an empty one may be a missing archive ---

    async def list_partition(
        self, tp: TopicIdPartition, start_after: str = ""
    ) -> AsyncGenerator[Standing, None]:
        """The objects that describe the partition's state, by offset, in one listing. Who leaves it
        early closes it.
        """
        await self._identity.check()
        folder = keys.partition_folder(self._prefix, tp)
        async with aclosing(self._listed(folder, start_after)) as every:
            async for listed in every:
                objects = standing(self._prefix, listed)
                if objects is not None:
                    yield objects

    @measured
    async def list_partitions(
        self, on_progress: Callable[[], None] = lambda: None, unlisted: Unlisted | None = None
    ) -> list[TopicIdPartition]:
        """Every partition that has an object in the store, sorted. This may take long:
        `on_progress` is called after each response of the store. `unlisted`: see
        `listed_partitions`.
        """
        await self._identity.check()
        return await self._or_missing(
            await listed_partitions(self._store, self._prefix, None, on_progress, unlisted)
        )

    @measured
    async def list_topic(self, topic_id: UUID) -> list[TopicIdPartition]:
        await self._identity.check()
        return await self._or_missing(
            await listed_partitions(self._store, self._prefix, topic_id, lambda: None)
        )

    @measured
    async def list_topics(self) -> list[tuple[str, UUID]]:
        """Every topic that has an object in the store; lists only the top level, once."""
        await self._identity.check()
        folders = [name async for name in self._store.list_folders(self._prefix)]
        if keys.CONTINUED_TOPICS_NAME in folders:
            await self.read_continued_topics()
        return await self._or_missing(
            [topic for name in folders if (topic := keys.parse_topic_folder(name)) is not None]
        )

    async def take_topic_objects(
        self, topic: str, topic_id: UUID, take: Callable[[TopicIdPartition, Standing], None]
    ) -> None:
        """As `list_partition`, for all partitions of a topic: `take` is called with each object."""
        await self._identity.check()
        if not await take_topic_objects(self._store, self._prefix, topic, topic_id, take):
            await self._identity.check_still_there()

    async def list_segment_objects(
        self, tp: TopicIdPartition
    ) -> AsyncIterator[tuple[SegmentKey, StoredObject]]:
        """All objects of segments, even without metadata; a segment's objects are adjacent."""
        await self._identity.check()
        async for stored in self._listed(keys.partition_folder(self._prefix, tp)):
            segment_key = keys.parse_segment_key(self._prefix, stored.key)
            if segment_key is not None:
                yield segment_key, stored

    async def list_packed(self, tp: TopicIdPartition) -> AsyncIterator[SegmentRef]:
        """Each segment that has a `.packing`, even without metadata."""
        async for key, _ in self.list_segment_objects(tp):
            if key.file is SegmentFile.PACKING:
                yield key.ref(0, has_aborted_txns=False, packed=True)

    async def _listed(
        self, folder: str, start_after: str = ""
    ) -> AsyncGenerator[StoredObject, None]:
        """Pauses for the event loop: stores give thousands at once, and each key is parsed."""
        number, objects = 0, self._store.list(folder, start_after)
        try:
            async for stored in objects:
                yield stored
                number += 1
                if not number % LISTED_AT_ONCE:
                    await asyncio.sleep(0)
        finally:
            if isinstance(objects, AsyncGenerator):
                await objects.aclose()  # so it does not request its next page
        if not number:
            await self._identity.check_still_there()

    async def _or_missing(self, items: list[T]) -> list[T]:
        """`items`. If it is empty, this checks that the archive still exists."""
        if not items:
            await self._identity.check_still_there()
        return items

    # --- segments' metadata, and objects of segments without metadata -----------------------------

    def segment_metadata_key(self, segment: AnySegment) -> str:
        id_and_start = segment.segment_id, segment.start_offset
        return keys.segment_key(self._prefix, *id_and_start, SegmentFile.METADATA)

    @measured
    async def put_segment_metadata(self, segment: AnySegment, content: bytes) -> str | None:
        """This makes a segment visible, or hides it: the archive's owner is read just before.
        Returns the object's version, see `ObjectStore.put`.
        """
        await self._identity.check_to_put(AT_ONCE_S)
        return await self._store.put(self.segment_metadata_key(segment), content)

    @measured
    async def get_segment_metadata(self, key: str) -> bytes:
        """`key`: a key from a listing. Raises ObjectNotFound if deleted since; DamagedObject."""
        return await self._store.get(key, SMALL_OBJECT_BYTES_MAX)

    @measured
    async def delete_segment_object(self, stored: StoredObject) -> None:
        """`stored`: an object of `list_segment_objects` to which no metadata refer any more."""
        await self._delete(stored.key)

    async def abort_stale_uploads(self, older_than_epoch_ms: int) -> int:
        """See `ObjectStore`. Only logs and journals are large enough for an upload in parts."""
        await self._identity.check_owner()
        return await self._store.abort_stale_uploads(
            self._prefix,
            older_than_epoch_ms,
            lambda key: (
                keys.parse_segment_key(self._prefix, key) is not None
                or keys.parse_journal_key(self._prefix, key) is not None
            ),
        )

    # --- the state of partitions, as their metadata manager keeps it ------------------------------

    @measured
    async def put_log_start_offset(
        self, tp: TopicIdPartition, offset: int, content: bytes, after_epoch: int = -1
    ) -> None:
        """Only the key counts; `content` is for people. Lower log start offsets that are stored
        stay there.
        """
        await self._identity.check_to_put()
        await self._store.put(keys.log_start_key(self._prefix, tp, offset, after_epoch), content)

    @measured
    async def delete_log_start_offset(self, tp: TopicIdPartition, lower: LogStartObject) -> None:
        """Delete a log start offset that a higher one has replaced."""
        await self._delete(keys.log_start_key(self._prefix, tp, lower.offset, lower.after_epoch))

    @measured
    async def put_partition_note(self, tp: TopicIdPartition, content: bytes) -> None:
        """Store an operator's decision about a log that began again."""
        await self._put(keys.log_history_key(self._prefix, tp), content)

    @measured
    async def put_past_changed(self, tp: TopicIdPartition) -> None:
        """Tell those who look only at the ends of a partition that its past has changed. The
        content is new each time, because versions may come from it.
        """
        await self._put(keys.past_changed_key(self._prefix, tp), f"{uuid4()}\n".encode())

    @measured
    async def put_partition_deletion(self, tp: TopicIdPartition, content: bytes) -> None:
        """Store the progress of the partition's deletion."""
        await self._identity.check_to_put()
        await self._store.put(keys.partition_deletion_key(self._prefix, tp), content)

    @measured
    async def get_partition_deletion(self, tp: TopicIdPartition) -> bytes | None:
        await self._identity.check()
        return await self._get(keys.partition_deletion_key(self._prefix, tp))

    @measured
    async def forget_partition(self, tp: TopicIdPartition) -> None:
        """For a partition without segments; may be repeated after a failure. The object that marks
        the deletion goes last.
        """
        async for listed in self.list_partition(tp):
            if isinstance(listed, LogStartObject):
                await self.delete_log_start_offset(tp, listed)
            elif isinstance(listed, LogHistoryObject | PastChangedObject):
                await self._delete(listed.stored.key)
        await self.forget_records(tp)
        await self.delete_retention_step(tp)
        await self.forget_published_conditions(tp)
        await self._delete(keys.partition_deletion_key(self._prefix, tp))

    def name_fault(self, topic: str, topic_id: UUID) -> str | None:
        """Why the store cannot hold the topic, as a sentence. None: it can. Never blocks."""
        folder = keys.topic_folder("", topic, topic_id).rstrip("/")
        limit = self._store.part_bytes_max
        if len(folder) <= limit:
            return None
        return (
            f"its name has {len(topic)} characters, but in this store it can have only "
            f"{len(topic) - len(folder) + limit}, because a folder's name can have {limit} bytes"
        )

    # --- positions: what the running archivers are accumulating -----------------------------------

    def archiver_positions_key(self, archiver: UUID) -> str:
        return keys.archiver_positions_key(self._prefix, archiver)

    @measured
    async def put_archiver_positions(self, archiver: UUID, content: bytes) -> None:
        await self._put(self.archiver_positions_key(archiver), content)

    async def list_archiver_positions(self) -> AsyncIterator[StoredObject]:
        """The positions of every archiver that has not deleted its own."""
        async for stored in self._store.list(keys.archivers_folder(self._prefix)):
            if keys.is_archiver_positions_key(self._prefix, stored.key):
                yield stored

    @measured
    async def get_archiver_positions(self, key: str) -> bytes:
        """`key`: a listed key. Raises ObjectNotFound if it was deleted since."""
        return await self._store.get(key)

    @measured
    async def delete_archiver_positions(self, key: str) -> None:
        await self._delete(key)

    # --- collected metadata: copies of the metadata of a topic's segments -------------------------

    @measured
    async def put_collected_metadata(self, topic_id: UUID, content: bytes) -> None:
        await self._put(keys.collected_metadata_key(self._prefix, topic_id), content)

    @measured
    async def get_collected_metadata(self, topic_id: UUID) -> bytes | None:
        return await self._get(
            keys.collected_metadata_key(self._prefix, topic_id), OBJECT_BYTES_MAX
        )

    # --- descriptions: what the archive knows of its topics besides their records -----------------

    async def list_topic_descriptions(self) -> AsyncIterator[StoredObject]:
        async for stored in self._store.list(keys.topics_folder(self._prefix)):
            if keys.parse_topic_description_key(self._prefix, stored.key) is not None:
                yield stored

    async def described_topics(self) -> AsyncIterator[UUID]:
        """The ids of the topics that have a description."""
        async for stored in self.list_topic_descriptions():
            topic_id = keys.parse_topic_description_key(self._prefix, stored.key)
            if topic_id is not None:
                yield topic_id

    @measured
    async def get_topic_description(self, key: str) -> bytes:
        """`key`: a listed key. Raises ObjectNotFound if it was deleted since."""
        return await self._store.get(key)

    @measured
    async def put_topic_description(self, topic_id: UUID, content: bytes) -> None:
        await self._identity.check_to_put()
        await self._store.put(keys.topic_description_key(self._prefix, topic_id), content)

    @measured
    async def delete_topic_description(self, topic_id: UUID) -> None:
        await self._delete(keys.topic_description_key(self._prefix, topic_id))

    # --- topics of a restored cluster, and the logs that they continue ----------------------------

    @measured
    async def read_continued_topics(self) -> None:
        """One listing, into `continued`."""
        log_ids: dict[UUID, UUID] = {}
        async for stored in self._store.list(keys.continued_topics_folder(self._prefix)):
            if (pair := keys.parse_continued_topic_key(self._prefix, stored.key)) is not None:
                log_ids[pair[0]] = pair[1]
            if len(log_ids) == LISTED_AT_ONCE:
                self.continued.add(log_ids)
                log_ids = {}
                await asyncio.sleep(0)
        self.continued.add(log_ids)

    async def renew_continued_topics(self) -> None:
        """As `read_continued_topics`. No request for an archive that was never another cluster's,
        as far as this process has read its identity.
        """
        if self._identity.was_handed_over:
            await self.read_continued_topics()

    async def check_own_log(self, tp: TopicIdPartition) -> None:
        """For an archiver that is about to begin the archive of a partition. Raises
        StorageUnavailable if its records belong to the log of another topic id.
        """
        await self.renew_continued_topics()
        if self.continued.continues(tp.topic_id):
            raise StorageUnavailable(
                f"{tp} continues an archived log since a moment ago: it is archived there"
            )

    @measured
    async def put_continued_topic(self, continued: ContinuedTopic) -> bool:
        """False: that was recorded before, and stays as it is."""
        key = self._continued_topic_key(continued.topic, continued.topic_id, continued.log_id)
        return await self._store.put_new(key, encode_continued_topic(continued))

    @measured
    async def get_continued_topic(self, topic: str, topic_id: UUID) -> ContinuedTopic | None:
        """`topic_id`: at the brokers. None: it continues no log, as of `continued`. Raises
        CorruptSegment.
        """
        if not self.continued.continues(topic_id):
            return None
        key = self._continued_topic_key(topic, topic_id, self.continued.log_id(topic_id))
        raw = await self._get(key)
        return None if raw is None else decode_continued_topic(raw, key)

    def _continued_topic_key(self, topic: str, topic_id: UUID, log_id: UUID) -> str:
        return keys.continued_topic_key(self._prefix, topic, topic_id, log_id)

    # --- conditions that archivers publish; the folder is usually empty ---------------------------

    @measured
    async def put_conditions(self, tp: TopicIdPartition | None, name: str, content: bytes) -> None:
        await self._put(keys.conditions_key(self._prefix, tp, name), content)

    @measured
    async def get_conditions(self, listed: ConditionsObject) -> bytes | None:
        return await self._get(listed.key)

    @measured
    async def delete_conditions(self, tp: TopicIdPartition | None, name: str) -> None:
        await self._delete(keys.conditions_key(self._prefix, tp, name))

    @measured
    async def list_published_conditions(self) -> list[ConditionsObject]:
        return await self._published_conditions(keys.conditions_folder(self._prefix))

    @measured
    async def forget_published_conditions(self, tp: TopicIdPartition) -> None:
        """Delete all conditions of a partition; may be repeated after a failure."""
        for conditions_object in await self._published_conditions(
            keys.partition_folder(keys.conditions_folder(self._prefix), tp)
        ):
            await self._delete(conditions_object.key)

    async def _published_conditions(self, folder: str) -> list[ConditionsObject]:
        return [
            ConditionsObject(*conditions_object, stored.key, stored.version)
            async for stored in self._store.list(folder)
            if (conditions_object := keys.parse_conditions_key(self._prefix, stored.key))
            is not None
        ]

    # --- journals: what archivers have read and not copied yet -----------------------------------

    def journal_key(self, archiver: UUID, number: int) -> str:
        return keys.journal_key(self._prefix, archiver, number)

    @measured
    async def put_journal(self, archiver: UUID, number: int, path: Path) -> None:
        """Store a file that nobody writes to again."""
        await self._identity.check_to_put()
        await self._store.put_file(self.journal_key(archiver, number), path, settled=True)

    @measured
    async def get_journal_bytes(self, key: str, byte_range: ByteRange) -> bytes:
        """Raises ObjectNotFound if it was deleted since it was listed; DamagedObject if it ends
        inside the range.
        """
        try:
            content = await self._store.get_range(key, byte_range)
        except RangeNotSatisfiable as error:
            raise DamagedObject(f"{key}: {error}") from None
        if len(content) != byte_range.length:
            raise DamagedObject(f"{key}: it ends inside {byte_range}")
        return bytes(content)

    @measured
    async def delete_journal(self, archiver: UUID, number: int) -> None:
        await self._delete(self.journal_key(archiver, number))

    async def list_journals(self) -> AsyncIterator[tuple[UUID, int, StoredObject]]:
        """Every object of every archiver's journal, by archiver and number."""
        await self._identity.check()
        async for stored in self._listed(keys.journals_folder(self._prefix)):
            parsed = keys.parse_journal_key(self._prefix, stored.key)
            if parsed is not None:
                yield *parsed, stored

    # --- mirrors: the places of the archive's copies, as `fetchproxy mirror` made them ------------

    @measured
    async def note_mirror(self, url: str) -> None:
        """`url`: without secrets. Writes nothing if it is noted already."""
        key = keys.mirror_key(self._prefix, uuid5(NAMESPACE_URL, url))
        if await self._get(key) is None:
            await self._put(key, url.encode() + b"\n")

    async def list_mirrors(self) -> list[tuple[str, str]]:
        """The URL of each copy, and the key of its note. Raises RemoteStorageError."""
        listed = self._store.list(keys.mirrors_folder(self._prefix))
        names = [
            stored.key async for stored in listed if keys.is_mirror_key(self._prefix, stored.key)
        ]
        noted = [(await self._get(key), key) for key in names]
        return [(raw.decode(errors="replace").strip(), key) for raw, key in noted if raw]

    # --- states of the cluster: what a new cluster needs besides records --------------------------

    @measured
    async def put_cluster_state(
        self, cluster_id: str, read_at_ms: int, content: bytes
    ) -> ClusterStateObject:
        """If another archiver has written a state of the same ms, that one stays."""
        await self._identity.check_to_put()
        key = keys.cluster_state_key(self._prefix, cluster_id, read_at_ms)
        await self._store.put_new(key, content)
        return ClusterStateObject(read_at_ms, cluster_id, key)

    @measured
    async def list_cluster_states(self) -> list[ClusterStateObject]:
        """By time, the oldest first."""
        await self._identity.check()
        return [
            ClusterStateObject(parsed[1], parsed[0], stored.key)
            async for stored in self._store.list(keys.cluster_states_folder(self._prefix))
            if (parsed := keys.parse_cluster_state_key(self._prefix, stored.key)) is not None
        ]

    @measured
    async def get_cluster_state(self, state: ClusterStateObject) -> bytes:
        """Raises ObjectNotFound if it was removed since; DamagedObject if it is too large."""
        return await self._store.get(state.key, OBJECT_BYTES_MAX)

    @measured
    async def delete_cluster_state(self, state: ClusterStateObject) -> None:
        await self._delete(state.key)

    # --- records: the offsets that a partition's archive must hold --------------------------------

    def folder(self, tp: TopicIdPartition) -> str:
        return keys.partition_folder(self._prefix, tp)

    def finished_offsets_key(self, tp: TopicIdPartition) -> str:
        return keys.finished_offsets_key(self._prefix, tp)

    @measured
    async def put_archive_gap(
        self, tp: TopicIdPartition, first: int, last: int, content: bytes
    ) -> None:
        """Only the key counts; `content` is for people. May be repeated."""
        await self._put(keys.archive_gap_key(self._prefix, tp, first, last), content)

    async def list_archive_gaps(self, tp: TopicIdPartition) -> AsyncIterator[tuple[int, int]]:
        """Offsets that were lost before they could be copied, both inclusive."""
        async for stored in self._store.list(keys.partition_folder(self._prefix, tp)):
            gap = keys.parse_archive_gap_key(self._prefix, stored.key)
            if gap is not None:
                yield gap

    @measured
    async def put_finished_offsets(self, tp: TopicIdPartition, content: bytes) -> None:
        await self._put(keys.finished_offsets_key(self._prefix, tp), content)

    @measured
    async def get_finished_offsets(self, tp: TopicIdPartition) -> bytes | None:
        return await self._get(keys.finished_offsets_key(self._prefix, tp))

    @measured
    async def forget_records(self, tp: TopicIdPartition) -> None:
        """For a partition without segments; may be repeated after a failure."""
        gaps = [gap async for gap in self.list_archive_gaps(tp)]
        for gap in gaps:
            await self._delete(keys.archive_gap_key(self._prefix, tp, *gap))
        await self._delete(keys.finished_offsets_key(self._prefix, tp))

    # --- planned deletions, so that a restarted process and other processes see them --------------

    @measured
    async def put_retention_step(self, tp: TopicIdPartition, content: bytes) -> None:
        await self._put(keys.retention_step_key(self._prefix, tp), content)

    @measured
    async def get_retention_step(self, tp: TopicIdPartition) -> bytes | None:
        return await self._get(keys.retention_step_key(self._prefix, tp))

    @measured
    async def delete_retention_step(self, tp: TopicIdPartition) -> None:
        await self._delete(keys.retention_step_key(self._prefix, tp))

    @measured
    async def put_cluster_topics(self, cluster_id: str, content: bytes) -> None:
        await self._put(keys.cluster_topics_key(self._prefix, cluster_id), content)

    @measured
    async def get_cluster_topics(self, cluster_id: str) -> bytes | None:
        return await self._get(keys.cluster_topics_key(self._prefix, cluster_id), OBJECT_BYTES_MAX)

    @measured
    async def put_topic_cluster(self, topic: str, topic_id: UUID, cluster_id: str) -> None:
        """Record the cluster in which the topic exists."""
        content = cluster_id.encode() + b"\n"
        await self._put(keys.topic_cluster_key(self._prefix, topic, topic_id), content)

    @measured
    async def get_topic_cluster(self, topic: str, topic_id: UUID) -> str | None:
        """None: no archiver has seen the topic in a cluster, or `forget_topic` removed this."""
        key = keys.topic_cluster_key(self._prefix, topic, topic_id)
        content = await self._get(key)
        return None if content is None else content.decode(errors="replace").strip()

    @measured
    async def forget_topic(self, topic: str, topic_id: UUID) -> None:
        """Delete the remaining objects of a topic without partitions; may be repeated."""
        await self._delete(keys.collected_metadata_key(self._prefix, topic_id))
        await self._delete(keys.topic_description_key(self._prefix, topic_id))
        await self._delete(keys.topic_cluster_key(self._prefix, topic, topic_id))

    async def store_clock_ms(self) -> int | None:
        """Epoch ms by the store's own clock; None: the store does not tell its time."""
        return await self._store.clock_ms(self._prefix)
