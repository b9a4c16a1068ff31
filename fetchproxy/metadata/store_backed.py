"""The store-backed RemoteLogMetadataManager reads the `.metadata` object beside each segment.

`partition_ends` says what a look at a long partition lists.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self
from uuid import UUID

import structlog

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import CorruptSegment, DamagedObject, ObjectNotFound, RemoteStorageError
from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.metadata.collected_metadata import (
    NOTHING_COLLECTED,
    Collected,
    CollectedWriter,
    Read,
    SharedCollectedReads,
    collected_segment,
    read_collected,
)
from fetchproxy.metadata.partition_ends import (
    EndsLimits,
    at_the_ends,
    must_be_announced,
)
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import (
    READ_MAX_MS,
    READS_AT_ONCE_MAX,
    RemoteLogMetadataManager,
    counted,
    delete_log_starts,
)
from fetchproxy.model import (
    FIRST_HISTORY,
    LogHistory,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.observability.health import Condition, Kind, of_object
from fetchproxy.observability.metrics import METADATA_UNREADABLE
from fetchproxy.runtime.cooperative import at_once, for_each, forget, in_steps
from fetchproxy.runtime.fresh_reads import FreshReads
from fetchproxy.runtime.retrying import within
from fetchproxy.segments.description import (
    FinishedOffsets,
    decode_finished_offsets,
    decode_log_history,
    decode_partition_deletion,
    decode_segment,
    encode_log_history,
    encode_log_start,
    encode_partition_deletion,
    encode_segment,
)
from fetchproxy.segments.records import LogHistoryRecord, LogStartOffset
from fetchproxy.segments.states import check_deletion
from fetchproxy.storage.listings import (
    ArchiveGapObject,
    FinishedOffsetsObject,
    LogHistoryObject,
    LogStartObject,
    PastChangedObject,
    SegmentMetadataObject,
    Standing,
    Unlisted,
)
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import StoredObject

log = structlog.get_logger(__name__)

_Offsets = tuple[int, int]  # first and last, both inclusive

# By key: the version that was read, and its content.
_Content = RemoteLogSegmentMetadata | Condition | LogHistory | FinishedOffsets | None
Contents = dict[str, tuple[str, _Content]]
Readable = SegmentMetadataObject | LogHistoryObject | FinishedOffsetsObject
_GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
# Segments in one turn of the loop: to decode collected metadata takes some 20 µs for each, and its
# row of a table 5 µs. A partition counts as some more.
_SEGMENTS_AT_ONCE = 200
_AS_SEGMENTS = 4
# A table of more segments is made on a thread.
_SEGMENTS_ON_THE_LOOP_MAX = 2_000


@dataclass(slots=True)
class StoredPartition:
    """`objects`: read and still listed. `built`: the objects that `table` was built from."""

    table: PartitionTable
    objects: Contents = field(default_factory=dict)
    built: Contents = field(default_factory=dict)
    problems: tuple[Condition, ...] = ()
    keys: list[str] = field(default_factory=list)  # of `built`, sorted
    # By key: puts that a landed listing may have missed, with their loop time.
    puts: dict[str, tuple[float, RemoteLogSegmentMetadata]] = field(default_factory=dict)
    put_at: float = float("-inf")  # loop time of the last put
    built_at: float = float("-inf")  # loop time at which the listing for `table` began
    whole_at: float = float("-inf")  # loop time at which the last listing of everything began
    # The version of `past-changed` before everything was listed; "": absent; None: not known.
    past_changed: str | None = None
    doubted_at: float = float("-inf")  # loop time at which the store contradicted the view
    log_starts: tuple[LogStartObject, ...] = ()  # as last listed
    # Of a mirror: the recorded gaps, and what is not copied yet (`PartitionView.not_copied`).
    gaps: tuple[_Offsets, ...] | None = None
    uncopied: tuple[int, ...] = ()

    def put(
        self, key: str, metadata: RemoteLogSegmentMetadata, now: float, version: str | None
    ) -> None:
        """`version`: of the object, if the store has named it. It is not read back then."""
        self.table.take(metadata)
        if version is not None:
            self.objects[key] = (version, metadata)
        self.put_at = now
        self.puts[key] = (now, metadata)

    def has_read(self, stored_object: StoredObject) -> bool:
        """This version was read and decoded. An unreadable one does not count, because it may have
        been damaged in transit.
        """
        version, content = self.objects.get(stored_object.key, ("", None))
        return version == stored_object.version and not isinstance(content, Condition)

    def note(self, stored_object: StoredObject, content: _Content) -> None:
        self.objects[stored_object.key] = (stored_object.version, content)

    def note_content(self, entry: Readable, raw: bytes | DamagedObject) -> None:
        """Raises RemoteStorageError if the log's history cannot be read.

        Without the history, it is unknown which segments count, and none may be deleted.
        """
        if isinstance(entry, LogHistoryObject):
            self.note(entry.stored, _decode_history(raw, entry))
            return
        if isinstance(entry, FinishedOffsetsObject):
            self.note(entry.stored, _decode_finished(raw, entry, self.table.tp))
            return
        content = _decode(raw, entry)
        if isinstance(content, Condition):
            self._report(content, entry)
        self.note(entry.stored, content)

    def _report(self, problem: Condition, entry: SegmentMetadataObject) -> None:
        """Log and count each unreadable version of an object once, however often it is read."""
        cached = self.objects.get(entry.stored.key)
        if cached is not None and cached[0] == entry.stored.version:
            return
        METADATA_UNREADABLE.inc()
        tp = entry.segment_id.topic_id_partition
        log.error(
            "segment_metadata_unreadable",
            **tp.logged,
            segment_id=str(entry.segment_id.id),
            base_offset=entry.base_offset,
            error=problem.what,
        )

    def build(
        self,
        contents: Contents,
        began_at: float,
        gaps: tuple[_Offsets, ...] | None = None,
        made: PartitionTable | None = None,
    ) -> None:
        """Build `table` from `contents`, which a listing that began at `began_at` found. `gaps`:
        what a mirror lacks. `made`: `table_of` them.
        """
        self.built_at, self.built, self.objects = began_at, contents, dict(contents)
        self.keys = sorted(contents)
        documents = [content for _, content in contents.values()]
        self.problems = tuple(c for c in documents if isinstance(c, Condition))
        self.table.adopt(table_of(self.table.tp, contents) if made is None else made)
        self.puts = {key: put for key, put in self.puts.items() if put[0] >= began_at}
        for _, metadata in self.puts.values():
            self.table.take(metadata)
        self.gaps, self.uncopied = gaps, ()
        if gaps is not None:
            recorded_starts = [c.recorded_from for c in documents if isinstance(c, FinishedOffsets)]
            view = self.table.view(began_at)
            first = min(recorded_starts, default=view.log_start_offset or 0)
            self.uncopied = tuple(view.not_copied(first, gaps))

    def amend(self, contents: Contents, missing: Iterable[str], began_at: float) -> None:
        """As `build`, if only segments of `contents` may have changed, and those of `missing` went.

        To build the table of 200,000 segments again for each new one takes most of a core.
        """
        own_puts = ((key, put[1]) for key, put in self.puts.items() if put[0] < began_at)
        changes: dict[str, _Content] = dict(own_puts)
        self.puts = {key: put for key, put in self.puts.items() if put[0] >= began_at}
        for key in missing:
            _, changes[key] = self.built.pop(key)
            self.objects.pop(key, None)
            del self.keys[bisect_left(self.keys, key)]
        for key, version_and_content in contents.items():
            if key not in self.built:
                insort(self.keys, key)
            self.built[key] = self.objects[key] = version_and_content
            changes[key] = version_and_content[1]
        for key, content in changes.items():
            assert isinstance(content, RemoteLogSegmentMetadata)
            _, listed = self.built.get(key, ("", None))
            if isinstance(listed, RemoteLogSegmentMetadata):
                self.table.take(listed)
            else:
                self.table.take(content.with_state(_GONE, content.event_timestamp_ms))
        for _, metadata in self.puts.values():
            self.table.take(metadata)
        self.built_at = began_at

    def view(self, read_at: float) -> PartitionView:
        unreadable = {problem.first_offset or 0 for problem in self.problems}
        return self.table.view(read_at, unreadable.union(self.uncopied))


def table_of(tp: TopicIdPartition, contents: Contents) -> PartitionTable:
    """Pure, and for a thread."""
    documents = [content for _, content in contents.values()]
    history = next((c for c in documents if isinstance(c, LogHistory)), FIRST_HISTORY)
    table = PartitionTable(tp)
    table.replace((c for c in documents if isinstance(c, RemoteLogSegmentMetadata)), history)
    return table


class PartitionRead:
    """Turns one listing of a partition into a view. Other listings of it may run at the same time.

    `add` each listed object, `begin`, `read` each entry that `begin` returns, `prepare`, `finish`.
    """

    def __init__(
        self,
        tp: TopicIdPartition,
        partition: StoredPartition,
        began_at: float,
        *,
        of_mirror: bool = False,
        past_changed: str | None = None,
    ) -> None:
        """`past_changed`: see `StoredPartition`, as read before this listing; None: not read."""
        self.tp = tp
        self.partition = partition
        self._began_at = began_at
        self._of_mirror = of_mirror
        self._past = past_changed
        self._gaps: list[_Offsets] = []
        self._listed: list[Readable] = []
        self._log_starts: list[LogStartObject] = []
        self._contents: Contents = {}
        self._made: PartitionTable | None = None  # of `_contents`

    @property
    def work(self) -> int:
        """How much it is to `finish`, see `_SEGMENTS_AT_ONCE`."""
        return _AS_SEGMENTS + len(self._contents)

    def add(self, listed: Standing) -> None:
        if isinstance(listed, LogStartObject):
            self._log_starts.append(listed)
        elif isinstance(listed, ArchiveGapObject):
            self._gaps.append((listed.first, listed.last))
        elif isinstance(listed, PastChangedObject):
            pass  # it counts only if it is read before anything else
        elif self._of_mirror or not isinstance(listed, FinishedOffsetsObject):
            self._listed.append(listed)

    def begin(
        self, collected: Collected = NOTHING_COLLECTED
    ) -> Generator[None, None, list[Readable]]:
        """The objects that have to be read. The others are in memory or were collected. In steps,
        for a partition may have very many.
        """
        partition = self.partition
        partition.log_starts = self._all_log_starts()
        for listed in self._log_starts:
            partition.table.take(LogStartOffset(self.tp, listed.offset, -1, listed.after_epoch))
        waiting: list[Readable] = []
        for number, entry in enumerate(self._listed, 1):
            if not number % _SEGMENTS_AT_ONCE:
                yield
            if partition.has_read(entry.stored):
                # Kept here too, because a read that lands meanwhile may have missed this object.
                self._contents[entry.stored.key] = partition.objects[entry.stored.key]
            elif (
                isinstance(entry, SegmentMetadataObject)
                and (segment := collected_segment(collected, entry)) is not None
            ):
                partition.note(entry.stored, segment)
                self._contents[entry.stored.key] = (entry.stored.version, segment)
            else:
                waiting.append(entry)
        return waiting

    def read(self, entry: Readable, raw: bytes | DamagedObject | None) -> None:
        """Take the content of `entry`. None: it was deleted after it was listed."""
        key = entry.stored.key
        if raw is None:
            self.partition.objects.pop(key, None)
        else:
            # The partition keeps it too, so that the next read is shorter if this one fails.
            self.partition.note_content(entry, raw)
            self._contents[key] = self.partition.objects[key]

    async def prepare(self) -> None:
        """Make the table of very many segments, if it differs from the last one."""
        contents = self._contents
        if len(contents) > _SEGMENTS_ON_THE_LOOP_MAX and contents != self.partition.built:
            self._made = await asyncio.to_thread(table_of, self.tp, contents)

    def finish(self, cached: tuple[float, PartitionView] | None) -> PartitionView:
        """The new view. `cached`: the last view, with the loop time at which its listing began."""
        partition = self.partition
        if cached is not None and cached[0] > self._began_at:
            return cached[1]  # a listing that began later has ended before
        partition.whole_at = self._began_at
        if self._past is not None:
            partition.past_changed = self._past
        gaps = tuple(self._gaps) if self._of_mirror else None
        # A rebuild of thousands of segments holds the loop, and usually nothing has changed.
        if (
            cached is not None
            and self._contents == partition.built
            and partition.put_at < partition.built_at
            and cached[1].raised_log_start == partition.table.raised_log_start
            and partition.gaps == gaps
        ):
            return replace(cached[1], read_at=self._began_at)
        # This function does not await, so no put comes between the build and the view.
        made, self._made = self._made, None
        partition.build(self._contents, self._began_at, gaps, made)
        return partition.view(self._began_at)

    def _all_log_starts(self) -> tuple[LogStartObject, ...]:
        return tuple(self._log_starts)


class EndsRead(PartitionRead):
    """As `PartitionRead`, from the listings of both ends of a long partition (`partition_ends`).

    `add_last` each object after `last_after`. If that `suffices`, `add_first` those from the
    beginning on.
    """

    def __init__(
        self,
        tp: TopicIdPartition,
        partition: StoredPartition,
        began_at: float,
        limits: EndsLimits,
    ) -> None:
        super().__init__(tp, partition, began_at)
        self._limits = limits
        self.last_after = partition.keys[-limits.listed_segments - 1]
        self.past_changed = ""
        self._first_up_to = self.last_after  # unless enough of the first objects come before
        self._first_segments = 0
        self._is_continued = False

    def add_last(self, listed: Standing) -> None:
        if isinstance(listed, PastChangedObject):
            self.past_changed = listed.stored.version
        elif isinstance(listed, SegmentMetadataObject):
            self._is_continued |= listed.stored.key in self.partition.built
        self.add(listed)

    def suffices(self) -> bool:
        """Whether all that may have changed is at the ends. An end without any known segment is
        not believed: there are stores that answer a listing after a key with nothing.
        """
        partition, began_at = self.partition, self._began_at
        return (
            self.past_changed == partition.past_changed
            and self._is_continued
            and partition.doubted_at < partition.whole_at
            and began_at - partition.whole_at < self._limits.whole_listing_interval_ms / 1000
        )

    def add_first(self, listed: Standing) -> bool:
        """False: no more are needed."""
        if isinstance(listed, SegmentMetadataObject):
            if listed.stored.key > self.last_after:
                return False
            self._first_segments += 1
            self.add(listed)
            if self._first_segments == self._limits.listed_segments:
                self._first_up_to = listed.stored.key
                return False
        elif isinstance(listed, LogStartObject) and listed not in self._log_starts:
            self.add(listed)
        return True

    def finish(self, cached: tuple[float, PartitionView] | None) -> PartitionView:
        partition = self.partition
        if cached is not None and cached[0] > self._began_at:
            return cached[1]
        keys = at_the_ends(partition.keys, self._first_up_to, self.last_after)
        missing = [key for key in keys if key not in self._contents]
        changes = {k: new for k, new in self._contents.items() if partition.built.get(k) != new}
        if (
            cached is not None
            and not (changes or missing)
            and partition.put_at < partition.built_at
            and cached[1].raised_log_start == partition.table.raised_log_start
        ):
            return replace(cached[1], read_at=self._began_at)
        every = (*changes.values(), *map(partition.built.__getitem__, missing))
        if all(isinstance(content, RemoteLogSegmentMetadata) for _, content in every):
            partition.amend(changes, missing, self._began_at)
        else:  # an operator's decision, or metadata that cannot be read
            still_built = {k: old for k, old in partition.built.items() if k not in set(missing)}
            partition.build(still_built | changes, self._began_at)
        return partition.view(self._began_at)

    def _all_log_starts(self) -> tuple[LogStartObject, ...]:
        between = range(_offset_in(self._first_up_to) + 1, _offset_in(self.last_after))
        others = [
            log_start for log_start in self.partition.log_starts if log_start.offset in between
        ]
        return *others, *self._log_starts


def _offset_in(key: str) -> int:
    """The offset with which the name of a segment's object begins."""
    return int(key.rpartition("/")[2].partition("-")[0])


def segments_in(partitions: Sequence[StoredPartition]) -> Iterator[Read]:
    """The metadata of each segment that was read: key, version, metadata."""
    for partition in partitions:
        for key, (version, content) in list(partition.objects.items()):
            if isinstance(content, RemoteLogSegmentMetadata):
                yield key, version, content


def _decode_history(raw: bytes | DamagedObject, entry: LogHistoryObject) -> LogHistory:
    if isinstance(raw, DamagedObject):
        raise raw
    try:
        return decode_log_history(raw, entry.stored.key)
    except CorruptSegment as error:
        raise RemoteStorageError(str(error)) from None


def _decode_finished(
    raw: bytes | DamagedObject, entry: FinishedOffsetsObject, tp: TopicIdPartition
) -> FinishedOffsets | None:
    """None: the record is damaged, which `verify` reports."""
    if isinstance(raw, DamagedObject):
        return None
    try:
        return decode_finished_offsets(raw, entry.stored.key, tp)
    except CorruptSegment:
        return None


def _decode(
    raw: bytes | DamagedObject, entry: SegmentMetadataObject
) -> RemoteLogSegmentMetadata | Condition:
    key = entry.stored.key
    try:
        if isinstance(raw, DamagedObject):
            raise raw
        metadata = decode_segment(raw, key)
        if (metadata.segment_id, metadata.start_offset) != (entry.segment_id, entry.base_offset):
            raise CorruptSegment(
                f"{key}: holds the metadata of segment {metadata.segment_id.id} of "
                f"{metadata.topic_id_partition} at {metadata.start_offset}"
            )
        return metadata
    except (CorruptSegment, DamagedObject) as error:
        tp, base = entry.segment_id.topic_id_partition, entry.base_offset
        kind, again = Kind.SEGMENT_METADATA_UNREADABLE, error.retriable
        return of_object(kind, tp, key, str(error), base, retriable=again)


class StoreBackedRemoteLogMetadataManager(RemoteLogMetadataManager):
    """`async with` owns the reads. The caller opens and closes `storage`.

    The store is the only truth, so any number of proxies and archivers agree without talking to
    each other. The manager reads a partition only on request: a refresh lists one partition, or
    the ends of a long one, and gets only the metadata objects that are new or have changed. Memory:
    about 1 KB a segment of requested partitions; the topic-based manager takes 100 bytes.

    An unreadable `.metadata` object does not hide the other segments. It is logged once, counted,
    and listed in `problems`. Its offsets are `uncertain_at` in the view, so they are not treated as
    a gap. The same holds for what a mirror does not have yet.
    """

    def __init__(
        self,
        storage: RemoteStorage,
        config: MetadataConfig,
        *,
        collects: bool = False,
        plans: bool = False,
        serves: bool = False,
        looks_at_ends: bool = False,
        ends_limits: EndsLimits = EndsLimits(),  # noqa: B008 - frozen
        reads_max: int = READS_AT_ONCE_MAX,
        read_max_ms: int = READ_MAX_MS,
    ) -> None:
        """`collects`: reads and writes the collected metadata of topics (`collected_metadata`).
        `plans`: only reads the collected metadata, for partitions that are read for the first time.
        `serves`: for readers who must not skip what a mirror does not have yet.
        `looks_at_ends`: lists only the ends of a long partition (`partition_ends`). Without it
        everything: for checks and jobs, which must judge the archive itself.
        """
        super().__init__()
        self._objects = objects = storage.objects
        self._identity = storage.identity
        self._collecting = CollectedWriter(objects) if collects else None
        self._collected_once = SharedCollectedReads(objects) if plans else None
        self._serves = serves
        self._looks_at_ends = looks_at_ends
        self._ends_limits = ends_limits
        self._config = config
        self._reads_max = reads_max
        self._read_max_ms = read_max_ms
        # By topic: a read of one of ten thousand topics must not look through all of them.
        self._topics: dict[UUID, dict[TopicIdPartition, StoredPartition]] = {}
        self._views = FreshReads(self._read_partition)
        self._topic_views = FreshReads(self._read_topic_views)
        # Names by topic id, from the last listing. A topic id normally has one name.
        self._names: dict[UUID, set[str]] = {}
        self._listed = FreshReads(self._list_partitions)
        self._deletions = FreshReads(self._read_deletion)
        self._owned = AsyncExitStack()

    async def __aenter__(self) -> Self:
        kinds = self._views, self._topic_views, self._archived, self._listed, self._deletions
        for reads in kinds:
            await self._owned.enter_async_context(reads)
        if self._collecting is not None:
            await self._owned.enter_async_context(self._collecting)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._owned.aclose()

    @property
    def of_mirror(self) -> bool:
        return self._serves and self._identity.is_mirror

    def view(self, tp: TopicIdPartition) -> PartitionView | None:
        """If the view is older than `view_age_max_ms`, a new read begins meanwhile."""
        entry = self._views.entries.get(tp)
        if entry is None:
            return None
        age_max_s = self._config.view_age_max_ms / 1000
        oldest = asyncio.get_running_loop().time() - age_max_s
        if entry[0] < oldest:
            self._views.renew(tp, oldest, age_max_s)
        return entry[1]

    async def refresh(self, tp: TopicIdPartition, not_older_than: float) -> PartitionView:
        """`read_at` is the time when the listing *began*. Raises StorageUnavailable if no response
        arrives for `read_max_ms`. The objects read by then are kept, so the next attempt is
        shorter.
        """
        # A later listing of the whole topic counts too: a partition that it lacks is empty.
        topic = self._topic_views.entries.get(tp.topic_id)
        if topic is not None and tp.partition not in topic[1]:
            cached = self._views.entries.get(tp)
            if cached is None or cached[0] < topic[0]:
                self._views.offer(tp, topic[0], PartitionTable(tp).view(topic[0]))
        return await self._views.get(tp, not_older_than)

    async def refresh_topic(
        self, topic_id: UUID, not_older_than: float
    ) -> Mapping[int, PartitionView]:
        """A partition's own `refresh` does not wait for this, because it has less to list."""
        return await self._topic_views.get(topic_id, not_older_than)

    def note_empty(self, tp: TopicIdPartition, as_of: float) -> None:
        if self._views.cached(tp) is None:
            self._views.offer(tp, as_of, PartitionTable(tp).view(as_of))

    def refresh_topic_in_background(self, topic_id: UUID, age_max_s: float) -> None:
        oldest = asyncio.get_running_loop().time() - age_max_s
        self._topic_views.renew(topic_id, oldest, age_max_s)

    def doubt(self, tp: TopicIdPartition) -> None:
        if (partition := self._cached_partition(tp)) is not None:
            partition.doubted_at = asyncio.get_running_loop().time()

    async def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Write the state to the store, then show it in the view without another read.

        The transition is checked against the last read, so a partition that was never read is read
        first. DELETE_SEGMENT_FINISHED writes nothing:
        `RemoteStorageManager.delete_log_segment_data` deleted the metadata object, and its absence
        stands for this state.
        Raises ValueError on an illegal transition. Raises RemoteStorageError if the write failed;
        the store may then have either state, and the next refresh shows which.
        """
        tp = metadata.topic_id_partition
        if self._views.cached(tp) is None:
            await self.refresh(tp, float("-inf"))
        partition = self._partition(tp)
        partition.table.check(metadata)
        put = None
        if metadata.state is not _GONE:
            put = self._objects.put_segment_metadata(metadata, encode_segment(metadata))
        version = await self._put_and_announce(metadata, put)
        now = asyncio.get_running_loop().time()
        partition.put(self._objects.segment_metadata_key(metadata), metadata, now, version)
        cached = self._views.cached(tp)
        if cached is not None:
            self._views.replace(tp, partition.view(cached.read_at))
        self._names.setdefault(tp.topic_id, set()).add(tp.topic)
        self._note_put(tp.topic_id)

    async def _put_and_announce(
        self,
        event: RemoteLogSegmentMetadata | LogStartOffset,
        put: Awaitable[str | None] | None,
    ) -> str | None:
        """`put`: writes the event, if there is anything to write, and returns the object's version.
        One that failed may have happened, so that is announced, too.
        """
        version = None
        tp = event.topic_id_partition
        must_announce = must_be_announced(self._partition(tp).table, event, self._ends_limits)
        if must_announce:
            self.doubt(tp)
        try:
            if put is not None:
                version = await put
        except RemoteStorageError:
            if must_announce:
                await self._objects.put_past_changed(tp)
            raise
        if must_announce:
            await self._objects.put_past_changed(tp)
        return version

    async def raise_log_start_offset(self, tp: TopicIdPartition, offset: int) -> PartitionView:
        fresh = await self.refresh(tp, float("-inf"))
        partition = self._partition(tp)
        if offset <= partition.table.raised_log_start:
            return fresh
        after_epoch = partition.table.history.after_epoch
        event, content = LogStartOffset(tp, offset, -1, after_epoch), encode_log_start(tp, offset)
        put = self._objects.put_log_start_offset(tp, offset, content, after_epoch)
        await self._put_and_announce(event, put)
        partition.table.take(event)
        fresh = self._views.cached(tp) or fresh
        view = partition.view(fresh.read_at)
        self._views.replace(tp, view)
        raised = partition.table.raised
        lower = [
            log_start
            for log_start in partition.log_starts
            if log_start.offset < raised(log_start.after_epoch)
        ]
        await delete_log_starts(self._objects, tp, lower)
        return view

    async def put_log_history(self, tp: TopicIdPartition, history: LogHistory) -> PartitionView:
        content = encode_log_history(tp, history)
        await self._objects.put_partition_note(tp, content)
        view = await self.refresh(tp, asyncio.get_running_loop().time())
        if view.history != history:  # read in the very moment of the put
            partition = self._partition(tp)
            partition.table.take(LogHistoryRecord(tp, history, -1))
            view = partition.view(view.read_at)
            self._views.replace(tp, view)
        return view

    async def put_partition_deletion(self, deletion: RemotePartitionDeleteMetadata) -> None:
        """The state is read first, so that one of two writers is refused."""
        tp = deletion.topic_id_partition
        current = await self._deletions.get(tp, asyncio.get_running_loop().time())
        check_deletion(None if current is None else current.state, deletion.state)
        if deletion.state is not RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            await self._objects.put_partition_deletion(tp, encode_partition_deletion(deletion))
        else:
            await self._objects.forget_partition(tp)
            self._topics.get(tp.topic_id, {}).pop(tp, None)
            if (cached := self._views.cached(tp)) is not None:
                self._views.replace(tp, PartitionTable(tp).view(cached.read_at))

    async def partition_deletion(
        self, tp: TopicIdPartition, not_older_than: float
    ) -> RemotePartitionDeleteMetadata | None:
        return await self._deletions.get(tp, not_older_than)

    async def list_partitions(self, unlisted: Unlisted | None = None) -> Iterable[TopicIdPartition]:
        listed, failed_topics = await self._listed.get(None, asyncio.get_running_loop().time())
        if failed_topics and unlisted is None:
            raise next(iter(failed_topics.values()))
        if unlisted is not None:
            unlisted.update(failed_topics)
        return listed

    def list_remote_log_segments(
        self, tp: TopicIdPartition
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        partition = self._cached_partition(tp)
        return () if partition is None else tuple(partition.table.segments())

    def problems(self, tp: TopicIdPartition) -> tuple[Condition, ...]:
        partition = self._cached_partition(tp)
        return () if partition is None else partition.problems

    def objects_known(self, tp: TopicIdPartition) -> int:
        """How many metadata objects have been read, also by failed reads: it shows progress."""
        partition = self._cached_partition(tp)
        return 0 if partition is None else len(partition.objects)

    def _partition(self, tp: TopicIdPartition) -> StoredPartition:
        partition = self._cached_partition(tp)
        if partition is None:
            partition = StoredPartition(PartitionTable(tp))
            self._topics.setdefault(tp.topic_id, {})[tp] = partition
        return partition

    def _cached_partition(self, tp: TopicIdPartition) -> StoredPartition | None:
        topic_partitions = self._topics.get(tp.topic_id)
        return None if topic_partitions is None else topic_partitions.get(tp)

    async def _read_deletion(
        self, tp: TopicIdPartition, _: float
    ) -> RemotePartitionDeleteMetadata | None:
        async with within(self._read_max_ms / 1000, f"deletion of {tp}"):
            raw = await self._objects.get_partition_deletion(tp)
        if raw is None:
            return None
        try:
            return decode_partition_deletion(raw, f"delete-partition-state of {tp}")
        except CorruptSegment as error:
            # An unreadable state is not "no deletion", and no state to continue from. An operator
            # has to look.
            raise RemoteStorageError(str(error)) from error

    async def _read_archived_topics(self, _: None, began_at: float) -> frozenset[UUID]:
        async with within(self._read_max_ms / 1000, "list of topics"):
            listed = await self._objects.list_topics()
        put = self._put_since(began_at)
        names = {topic_id: self._names[topic_id] for topic_id in put}
        for name, topic_id in listed:
            names.setdefault(topic_id, set()).add(name)
        self._names = names
        return frozenset(names)

    async def topic_names(self) -> set[str]:
        return {name for names in self._names.values() for name in names}

    async def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        def topic_is_gone(tp: TopicIdPartition) -> bool:
            return is_gone(tp.topic_id)

        await forget(self._topics, is_gone)
        for reads in (self._views, self._deletions):
            await reads.forget(topic_is_gone)
        await self._topic_views.forget(is_gone)
        if self._collecting is not None:
            await self._collecting.forget_topics(is_gone)

    async def _list_partitions(
        self, _: None, began_at: float
    ) -> tuple[tuple[TopicIdPartition, ...], Unlisted]:
        unlisted: Unlisted = {}
        async with self._while_progressing("list of partitions") as on_progress:
            listed = await self._objects.list_partitions(on_progress, unlisted)
        tps = {*listed, *self._tps_put_since(began_at)}
        return tuple(sorted(tps, key=TopicIdPartition.order)), unlisted

    def _tps_put_since(self, began_at: float) -> list[TopicIdPartition]:
        """Partitions that a listing that began at `began_at` may have missed."""
        return [
            tp
            for topic_partitions in self._topics.values()
            for tp, p in topic_partitions.items()
            if p.table.has_segments and p.put_at >= began_at
        ]

    async def _read_partition(self, tp: TopicIdPartition, began_at: float) -> PartitionView:
        if self._serves:
            await self._identity.check()  # whether this is a mirror
        partition, collected, past_changed = self._partition(tp), NOTHING_COLLECTED, None
        operation = f"metadata of {tp}"
        async with counted(began_at), self._while_progressing(operation) as on_progress:
            if self._is_long(partition):
                ends = EndsRead(tp, partition, began_at, self._ends_limits)
                if await self._read_ends(ends, on_progress):
                    return ends.finish(self._views.entries.get(tp))
                past_changed = ends.past_changed
            read = PartitionRead(
                tp, partition, began_at, of_mirror=self.of_mirror, past_changed=past_changed
            )
            async for listed in self._objects.list_partition(tp):
                on_progress()
                read.add(listed)
            # After the listing: objects newer than the collected copy are read one by one.
            if self._collected_once is not None and partition.built_at == float("-inf"):
                collected = await self._collected_once.read(tp.topic_id)
            await self._get_listed([read], on_progress, collected)
        await read.prepare()
        return read.finish(self._views.entries.get(tp))

    def _is_long(self, partition: StoredPartition) -> bool:
        """Whether a look may do with the ends. A mirror gets its objects in any order; and what
        cannot be read is tried again in each look.
        """
        return (
            self._looks_at_ends
            and len(partition.keys) >= self._ends_limits.whole_below_segments
            and not partition.problems
            and not self._identity.is_mirror
        )

    async def _read_ends(self, read: EndsRead, on_progress: Callable[[], None]) -> bool:
        """False: everything has to be listed. The last objects come first, because `past-changed`
        has to be read before the beginning is.
        """
        tp = read.tp
        async for listed in self._objects.list_partition(tp, read.last_after):
            on_progress()
            read.add_last(listed)
        if not read.suffices():
            return False
        async with aclosing(self._objects.list_partition(tp)) as firsts:
            async for listed in firsts:
                on_progress()
                if not read.add_first(listed):
                    break
        await self._get_listed([read], on_progress, NOTHING_COLLECTED)
        return read.suffices()  # again: `doubt` may have been called meanwhile

    async def _read_topic_views(
        self, topic_id: UUID, began_at: float
    ) -> Mapping[int, PartitionView]:
        if self._is_long_topic(topic_id):
            return await self._read_each(topic_id, began_at)
        reads: dict[TopicIdPartition, PartitionRead] = {}
        async with counted(began_at):
            alone = await self._list_topic_and_get(topic_id, began_at, reads)
        # Partitions that are not listed any more land too, and those that were put meanwhile.
        for tp, partition in self._topics.get(topic_id, {}).items():
            if tp not in reads:
                reads[tp] = PartitionRead(tp, partition, began_at)
                at_once(reads[tp].begin())
        views: dict[int, PartitionView] = {}
        work = 0
        for tp, read in reads.items():
            await read.prepare()
            view = read.finish(self._views.entries.get(tp))
            self._views.offer(tp, began_at, view)
            views[tp.partition] = view
            work += read.work
            if work >= _SEGMENTS_AT_ONCE:
                work = 0
                await asyncio.sleep(0)
        if self._collecting is not None and alone:
            partitions = [read.partition for read in reads.values()]
            object_count = sum(len(partition.objects) for partition in partitions)
            self._collecting.note_single_reads(
                topic_id, alone, object_count, lambda: segments_in(partitions)
            )
        return views

    def _is_long_topic(self, topic_id: UUID) -> bool:
        """Whether a listing of the whole topic takes more requests than its partitions' ends."""
        partitions = self._topics.get(topic_id, {}).values()
        segments = sum(len(partition.keys) for partition in partitions)
        by_ends = (len(partitions) + 1) * self._ends_limits.whole_below_segments
        return segments > by_ends and any(map(self._is_long, partitions))

    async def _read_each(self, topic_id: UUID, began_at: float) -> Mapping[int, PartitionView]:
        """As `_read_topic_views`, each partition by itself. Raises RemoteStorageError."""
        async with self._while_progressing(f"partitions of topic {topic_id}"):
            listed = await self._objects.list_topic(topic_id)
        tps = {*listed, *self._topics.get(topic_id, {})}
        views: dict[int, PartitionView] = {}

        async def read(tp: TopicIdPartition) -> None:
            views[tp.partition] = await self._views.get(tp, began_at)

        await for_each(sorted(tps), read, min(len(tps), self._reads_max))
        return views

    async def _list_topic_and_get(
        self, topic_id: UUID, began_at: float, reads: dict[TopicIdPartition, PartitionRead]
    ) -> int:
        """List the topic and read its objects. Returns how many were read one by one."""
        if self._serves:
            await self._identity.check()
        async with self._while_progressing(f"metadata of topic {topic_id}") as on_progress:

            def take(tp: TopicIdPartition, listed: Standing) -> None:
                on_progress()
                read = reads.get(tp)
                if read is None:
                    read = reads[tp] = PartitionRead(
                        tp, self._partition(tp), began_at, of_mirror=self.of_mirror
                    )
                read.add(listed)

            async with asyncio.TaskGroup() as reading:
                collected = reading.create_task(self._read_collected(topic_id))
                listed = reading.create_task(self._list_topic(topic_id, began_at, take))
            if (failure := listed.result()) is not None:
                raise failure
            return await self._get_listed(reads.values(), on_progress, collected.result())

    async def _get_listed(
        self, reads: Iterable[PartitionRead], on_progress: Callable[[], None], collected: Collected
    ) -> int:
        """Read new objects that were not collected; returns how many. Raises RemoteStorageError."""
        waiting: list[tuple[PartitionRead, Readable]] = []
        work = 0
        for read in reads:
            entries = await in_steps(read.begin(collected), partial(asyncio.sleep, 0))
            waiting += [(read, entry) for entry in entries]
            work += read.work
            if work >= _SEGMENTS_AT_ONCE:
                work = 0
                await asyncio.sleep(0)

        async def get(request: tuple[PartitionRead, Readable]) -> None:
            read, entry = request
            raw: bytes | DamagedObject | None = None
            try:
                raw = await self._objects.get_segment_metadata(entry.stored.key)
            except DamagedObject as damage:
                raw = damage
            except ObjectNotFound:
                pass
            finally:
                on_progress()
            read.read(entry, raw)

        await for_each(waiting, get, min(len(waiting), self._reads_max))
        return len(waiting)

    async def _read_collected(self, topic_id: UUID) -> Collected:
        """Only before the topic's first view: later reads find nearly all objects in memory."""
        if self._collecting is None or self._topic_views.cached(topic_id) is not None:
            return NOTHING_COLLECTED
        return await read_collected(self._objects, topic_id)

    async def _list_topic(
        self, topic_id: UUID, began_at: float, take: Callable[[TopicIdPartition, Standing], None]
    ) -> RemoteStorageError | None:
        """Returns its error instead of raising it, because the TaskGroup would wrap it."""
        try:
            for name in await self._names_of(topic_id, began_at):
                await self._objects.take_topic_objects(name, topic_id, take)
        except RemoteStorageError as error:
            return error
        return None

    @asynccontextmanager
    async def _while_progressing(self, operation: str) -> AsyncIterator[Callable[[], None]]:
        """Bounds the silence of a read, not its length. The body calls the yielded function for
        each response. Raises StorageUnavailable if no call comes for `read_max_ms`.
        """
        loop, silence_max_s = asyncio.get_running_loop(), self._read_max_ms / 1000
        async with within(silence_max_s, operation) as limit:

            def on_progress() -> None:
                if not limit.expired():
                    limit.reschedule(loop.time() + silence_max_s)

            yield on_progress

    async def _names_of(self, topic_id: UUID, began_at: float) -> list[str]:
        """The names under which the topic is in the archive: one, or none."""
        # Names do not change, so any list with the topic is good. Only a fresh list shows that the
        # topic is absent.
        if topic_id in (self._archived.cached(None) or ()):
            return sorted(self._names[topic_id])
        listed = await self._archived.get(None, began_at)
        return sorted(self._names[topic_id]) if topic_id in listed else []
