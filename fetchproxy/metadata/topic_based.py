"""The second RemoteLogMetadataManager, which follows the events of `__remote_log_metadata`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Self
from uuid import UUID

import structlog
from kafka.partitioner.default import murmur2

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import ConfigError, CorruptSegment, RemoteStorageError, StorageUnavailable
from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.metadata.flat_files import CachedEvents
from fetchproxy.metadata.metadata_topic import KafkaMetadataLog
from fetchproxy.metadata.partition_ends import may_be_missed, must_be_announced
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import (
    READ_MAX_MS,
    READS_AT_ONCE_MAX,
    VIEWS_AT_ONCE,
    RemoteLogMetadataManager,
    counted,
    delete_log_starts,
)
from fetchproxy.model import (
    LogHistory,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.observability.health import Condition, Kind
from fetchproxy.observability.metrics import (
    METADATA_EVENTS_READ,
    METADATA_EVENTS_REFUSED,
    METADATA_EVENTS_WRITTEN,
    METADATA_LAG,
    METADATA_UNREADABLE,
)
from fetchproxy.runtime.cooperative import cooperative, for_each, forget, pieces
from fetchproxy.runtime.fresh_reads import FreshReads
from fetchproxy.runtime.retrying import within
from fetchproxy.segments.description import (
    encode_log_history,
    encode_log_start,
    encode_partition_deletion,
    encode_segment,
)
from fetchproxy.segments.records import (
    LogHistoryRecord,
    LogStartOffset,
    MetadataEvent,
    decode_message,
    encode_message,
)
from fetchproxy.storage.listings import LogStartObject, SegmentMetadataObject, Unlisted
from fetchproxy.storage.remote_storage import RemoteStorage

_INT32_MASK = 0xFFFFFFFF
_INT64_MASK = 0xFFFFFFFFFFFFFFFF
# Kept per metadata partition. One problem proves that events are missing; more are for people.
PROBLEMS_MAX = 100
_State = RemoteLogSegmentState
# How long the first list of archived topics waits for a slow store.
IN_STORE_WAIT_MAX_S = 1.0
# The store is listed again after this time if it had topics that the metadata topic lacks.
IN_STORE_AGE_MAX_S = 300.0

log = structlog.get_logger(__name__)


def metadata_partition(tp: TopicIdPartition, partitions: int) -> int:
    """The metadata partition of a partition's events, as in Kafka's
    RemoteLogMetadataTopicPartitioner. Pure.
    """
    most, least = tp.topic_id.int >> 64, tp.topic_id.int & _INT64_MASK
    java_hash = 1  # Objects.hash(least and most significant 64 bits, partition), unsigned
    for part in (least ^ (least >> 32), most ^ (most >> 32), tp.partition):
        java_hash = (31 * java_hash + (part & _INT32_MASK)) & _INT32_MASK
    hashed: int = murmur2(java_hash.to_bytes(4, "big"))
    return (hashed & 0x7FFFFFFF) % partitions


@dataclass(slots=True)
class _LogPartition:
    """One partition of the metadata topic: how far it was read, and the result."""

    number: int
    position: int  # the next offset to read
    tables: dict[TopicIdPartition, PartitionTable] = field(default_factory=dict)
    unloaded: set[TopicIdPartition] = field(default_factory=set)  # only their files were seen
    # Files newer than the last commit: events below this offset must not be taken again.
    skip_below: dict[TopicIdPartition, int] = field(default_factory=dict)
    problems: tuple[Condition, ...] = ()  # the first PROBLEMS_KEPT_MAX
    more_problems: bool = False
    puts_waiting: int = 0
    refused: dict[int, str] = field(default_factory=dict)  # while puts wait: offset -> why


class TopicFollower:
    """One table of segments per partition, from the events in the log.

    Every reader judges an event against the state at its place in the log. So all readers get the
    same tables, and know the same loser of two writers that raced.

    `async with` owns the reads. Raises RemoteStorageError if the log cannot be read.
    """

    def __init__(
        self, metadata_log: KafkaMetadataLog, cache_dir: Path | None, read_max_ms: int = READ_MAX_MS
    ) -> None:
        self._log = metadata_log
        self._read_max_ms = read_max_ms
        self._topic_name = ""
        self._partitions: list[_LogPartition] = []  # empty before the log was opened
        self._cached_events = CachedEvents(cache_dir)
        self._opening = FreshReads[None, None](self._open)
        self._reads = FreshReads(self._read)
        self._loading = asyncio.Lock()
        self._owned = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Raises ConfigError for a log that must not be used; retries a log that is away later."""
        async with AsyncExitStack() as stack:
            for part in (self._cached_events, self._opening, self._reads):
                await stack.enter_async_context(part)
            try:
                await self._open_tables()
            except RemoteStorageError as error:
                if isinstance(error.__cause__, ConfigError):
                    raise error.__cause__ from error
                log.warning("metadata_topic_unreachable", error=str(error))
            self._owned = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._owned.aclose()

    # --- reading ---
    async def table(self, tp: TopicIdPartition, not_older_than: float) -> PartitionTable:
        """The partition's table after a read of the log at or after that loop time (s)."""
        await self._open_tables()
        partition = self._partition(tp)
        await self._reads.get(partition.number, not_older_than)
        return await self._table(partition, tp)

    async def partitions(self, not_older_than: float) -> list[TopicIdPartition]:
        """Every partition that the log mentions; this reads the whole log."""
        await self._open_tables()
        numbers = range(len(self._partitions))

        async def read(number: int) -> None:
            await self._reads.get(number, not_older_than)

        await for_each(numbers, read, min(len(numbers), READS_AT_ONCE_MAX))
        return [tp for partition in self._partitions for tp in _known_tps(partition)]

    def read_at(self, tp: TopicIdPartition) -> float | None:
        """The loop time (s) at which the last read of the partition's log began. Never blocks."""
        return self._reads.cached(self._partition(tp).number) if self._partitions else None

    def renew(self, tp: TopicIdPartition, oldest: float, pause_s: float) -> None:
        """Read again in the background if the last read began before `oldest`."""
        if self._partitions:
            self._reads.renew(self._partition(tp).number, oldest, pause_s)

    def loaded(self, tp: TopicIdPartition) -> PartitionTable | None:
        return self._partition(tp).tables.get(tp) if self._partitions else None

    async def topic_names(self) -> set[str]:
        every = chain.from_iterable(map(_known_tps, self._partitions))
        return {tp.topic async for tp in cooperative(every)}

    async def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        """An empty table is as good as none: the topic's next event makes a new one."""
        for partition in self._partitions:
            await _forget_empty(partition, is_gone)

    def problems(self, tp: TopicIdPartition) -> tuple[Condition, ...]:
        """Unreadable events that may have been about the partition. Never blocks."""
        return self._partition(tp).problems if self._partitions else ()

    # --- writing ---
    async def append(self, event: MetadataEvent) -> str | None:
        """Write an event and read it back. Returns why the order of the log refused it, or None.

        If this raises, the event may be in the log or not.
        """
        await self._open_tables()
        partition = self._partition(event.topic_id_partition)
        partition.puts_waiting += 1
        try:
            async with self._within(f"append for {event.topic_id_partition}"):
                offset = await self._log.append(partition.number, encode_message(event))
            METADATA_EVENTS_WRITTEN.inc()
            await self._reads.anew(partition.number)
            if partition.position <= offset:
                raise StorageUnavailable(f"{self._place(partition, offset)} was not read back")
            return partition.refused.pop(offset, None)
        finally:
            partition.puts_waiting -= 1
            if not partition.puts_waiting:
                partition.refused.clear()

    # --- the log ---
    async def _open_tables(self) -> None:
        if not self._partitions:
            await self._opening.get(None, float("-inf"))

    async def _open(self, _: None, __: float) -> None:
        try:
            async with self._within("metadata topic"):
                topic = await self._log.open()
            positions, tps = await self._cached_events.open(topic.topic_id)
        except ConfigError as error:
            raise RemoteStorageError(str(error)) from error
        self._topic_name = topic.name
        numbers = range(len(topic.leaders))
        self._partitions = [_LogPartition(n, positions.get(n, 0)) for n in numbers]
        for tp in tps:
            self._partition(tp).unloaded.add(tp)

    def _partition(self, tp: TopicIdPartition) -> _LogPartition:
        return self._partitions[metadata_partition(tp, len(self._partitions))]

    def _place(self, partition: _LogPartition, offset: int) -> str:
        return f"{self._topic_name}-{partition.number} offset {offset}"

    async def _read(self, number: int, began_at: float) -> float:
        """Read to the log's present end. A failure keeps the events read so far."""
        partition = self._partitions[number]
        operation = f"{self._place(partition, partition.position)} to the end"
        async with counted(began_at), self._within(operation):
            await self._read_to_end(partition)
        return began_at

    def _within(self, operation: str) -> AbstractAsyncContextManager[object]:
        return within(self._read_max_ms / 1000, operation)

    async def _read_to_end(self, partition: _LogPartition) -> None:
        number = partition.number
        start, end = await self._log.bounds(number)
        if not start <= partition.position <= end:
            raise RemoteStorageError(
                f"{self._place(partition, partition.position)} is the next to read, but the "
                f"topic now has {start} to {end}: it has lost events. Delete the "
                "topic and rebuild it from the store with `fetchproxy restore`"
            )
        lag = METADATA_LAG.labels(str(number))
        while partition.position < end:
            lag.set(end - partition.position)
            chunk = await self._log.read(number, partition.position)
            for offset, value in chunk.values:
                await self._take(partition, offset, value)
                partition.position = offset + 1
            partition.position = max(partition.position, chunk.next_offset)
            if not partition.problems:
                self._cached_events.note_position(number, partition.position)
        lag.set(0)

    async def _take(self, partition: _LogPartition, offset: int, value: bytes) -> None:
        METADATA_EVENTS_READ.inc()
        try:
            event = decode_message(value, self._place(partition, offset))
        except CorruptSegment as error:
            self._note_problem(partition, offset, error)
            return
        tp = event.topic_id_partition
        table = await self._table(partition, tp)
        if offset < partition.skip_below.get(tp, 0):
            return  # a later state might judge it otherwise
        try:
            table.check(event)
        except ValueError as error:
            METADATA_EVENTS_REFUSED.inc()
            if partition.puts_waiting:
                partition.refused[offset] = str(error)
            return
        table.take(event)
        if not partition.problems:
            self._cached_events.note(tp, [event], offset + 1)

    def _note_problem(self, partition: _LogPartition, offset: int, error: CorruptSegment) -> None:
        """The event may be about any partition with events here, and about any of its offsets.

        No event after it is kept on disk, so that a newer program reads it again.
        """
        METADATA_UNREADABLE.inc()
        place = self._place(partition, offset)
        if len(partition.problems) == PROBLEMS_MAX:
            if not partition.more_problems:
                log.error("more_metadata_events_unreadable", place=place, told=PROBLEMS_MAX)
            partition.more_problems = True
            return
        log.error("metadata_event_unreadable", place=place, error=str(error))
        problem = Condition(Kind.SEGMENT_METADATA_UNREADABLE, str(error), object_key=place)
        partition.problems = (*partition.problems, problem)

    # --- tables ---
    async def _table(self, partition: _LogPartition, tp: TopicIdPartition) -> PartitionTable:
        if (table := partition.tables.get(tp)) is not None:
            return table
        async with self._loading:
            if (table := partition.tables.get(tp)) is not None:
                return table
            if tp in partition.unloaded:
                table, cached = await self._cached_events.load(tp)
                if cached.metadata_topic_offset > partition.position:
                    partition.skip_below[tp] = cached.metadata_topic_offset
                elif cached.damaged:
                    await self._read_again(partition, table, cached.metadata_topic_offset)
                partition.unloaded.discard(tp)
            else:
                table = PartitionTable(tp)
            partition.tables[tp] = table
        return table

    async def _read_again(
        self, partition: _LogPartition, table: PartitionTable, position: int
    ) -> None:
        """Read again the events that a damaged file lost, and keep all of them or none."""
        events: list[MetadataEvent] = []
        while position < partition.position:
            chunk = await self._log.read(partition.number, position)
            for offset, value in chunk.values:
                if offset >= partition.position:
                    break
                try:
                    event = decode_message(value, self._place(partition, offset))
                except CorruptSegment:
                    continue  # known as a problem: it was read before
                if event.topic_id_partition == table.tp and table.apply(event):
                    events.append(event)
            position = max(position, chunk.next_offset)
        self._cached_events.note(table.tp, events, partition.position)


async def _forget_empty(partition: _LogPartition, is_gone: Callable[[UUID], bool]) -> None:
    tables, ahead = partition.tables, partition.skip_below
    await forget(tables, lambda tp: is_gone(tp.topic_id) and tables[tp].is_empty)
    await forget(ahead, lambda tp: ahead[tp] <= partition.position)


def _known_tps(partition: _LogPartition) -> list[TopicIdPartition]:
    loaded_tps = [tp for tp, table in partition.tables.items() if not table.is_empty]
    return [*loaded_tps, *partition.unloaded]


class TopicBasedRemoteLogMetadataManager(RemoteLogMetadataManager):
    """Strongly consistent: a put returns after its own event was read back. If two puts raced, all
    readers refuse the second one in the log.

    The store has every segment's state too, so that it describes itself. The write order is chosen
    so that a crash between both writes leaves an unfinished copy or a deletion to repeat, never a
    served segment with missing objects (docs/adr/0015).

    `async with` owns the reads. `wall_clock_ms` stamps the events of log starts.
    """

    def __init__(
        self,
        metadata_log: KafkaMetadataLog,
        storage: RemoteStorage,
        config: MetadataConfig,
        wall_clock_ms: Callable[[], int],
        read_max_ms: int = READ_MAX_MS,
    ) -> None:
        super().__init__()
        self._rsm, self._objects = storage.rsm, storage.objects
        self._read_max_ms = read_max_ms
        self._config = config
        self._wall_clock_ms = wall_clock_ms
        self._follower = TopicFollower(metadata_log, config.cache_dir, read_max_ms)
        # Views, each with its inputs: a view is rebuilt when they change.
        self._views: dict[TopicIdPartition, tuple[tuple[float, int, int], PartitionView]] = {}
        self._in_store_checked: dict[TopicIdPartition, None] = {}
        self._in_store = FreshReads(self._list_store_topics)
        self._owned = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Raises ConfigError if the topic has settings that would lose events."""
        async with AsyncExitStack() as stack:
            for part in (self._follower, self._archived, self._in_store):
                await stack.enter_async_context(part)
            self._owned = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._owned.aclose()

    # --- reading ---
    def view(self, tp: TopicIdPartition) -> PartitionView | None:
        """A view older than `view_age_max_ms` is read again in the background."""
        if tp not in self._views:
            return None
        age_max_s = self._config.view_age_max_ms / 1000
        now = asyncio.get_running_loop().time()
        self._follower.renew(tp, now - age_max_s, age_max_s)
        return self._built_view(tp)

    async def refresh(self, tp: TopicIdPartition, not_older_than: float) -> PartitionView:
        """`read_at` is when the topic's end was asked for.

        Raises RemoteStorageError also if the store has segments of a partition that the topic does
        not know: a caller that took this for an empty archive would skip or copy all of it. The
        same for a partition whose restore is running or was interrupted.
        """
        table = await self._restored_table(tp, not_older_than)
        if table.is_empty and tp not in self._in_store_checked:
            await self._check_not_in_store(tp)
        self._in_store_checked[tp] = None
        return self._built_view(tp)

    async def partition_deletion(
        self, tp: TopicIdPartition, not_older_than: float
    ) -> RemotePartitionDeleteMetadata | None:
        return (await self._restored_table(tp, not_older_than)).deletion

    async def _restored_table(self, tp: TopicIdPartition, not_older_than: float) -> PartitionTable:
        table = await self._follower.table(tp, not_older_than)
        if table.restoring:
            raise RemoteStorageError(
                f"the metadata topic is being restored and does not have all of {tp} yet; if no "
                "restore is running, run `fetchproxy restore` again, because one was interrupted"
            )
        return table

    async def list_partitions(self, unlisted: Unlisted | None = None) -> Iterable[TopicIdPartition]:
        return sorted(await self._follower.partitions(asyncio.get_running_loop().time()))

    async def refresh_topic(
        self, topic_id: UUID, not_older_than: float
    ) -> Mapping[int, PartitionView]:
        """Reads the unread rest of the metadata topic."""
        # One time for all partitions: a later one would make each of them read again.
        oldest = min(not_older_than, asyncio.get_running_loop().time())
        topic_tps = [t for t in await self._follower.partitions(oldest) if t.topic_id == topic_id]
        if not topic_tps and topic_id in (self._in_store.cached(None) or ()):
            # Deleted since the store was listed, or the metadata topic was lost: `refresh` checks.
            topic_tps = await self._objects.list_topic(topic_id)
        views: dict[int, PartitionView] = {}
        for piece in pieces(topic_tps, VIEWS_AT_ONCE):
            for tp in piece:
                views[tp.partition] = await self.refresh(tp, oldest)
            await asyncio.sleep(0)
        return views

    def refresh_topic_in_background(self, topic_id: UUID, age_max_s: float) -> None:
        """The follower has read the log lately, or begins to: no read is for one topic alone."""
        oldest = asyncio.get_running_loop().time() - age_max_s
        for tp in [tp for tp in self._views if tp.topic_id == topic_id]:
            self._follower.renew(tp, oldest, age_max_s)

    async def _read_archived_topics(self, _: None, began_at: float) -> frozenset[UUID]:
        """From the metadata topic. The store is listed once, if it answers, so that a lost metadata
        topic does not look like an empty archive.
        """
        topic_ids = {tp.topic_id for tp in await self._follower.partitions(began_at)}
        with suppress(RemoteStorageError, TimeoutError):
            async with asyncio.timeout(IN_STORE_WAIT_MAX_S):
                await self._in_store.get(None, float("-inf"))
        await self._objects.renew_continued_topics()
        in_store = self._in_store.cached(None) or frozenset()
        if in_store - topic_ids:  # they were deleted since, or the topic was lost
            self._in_store.renew(None, began_at, IN_STORE_AGE_MAX_S)
        return frozenset(topic_ids | in_store | self._put_since(began_at))

    async def topic_names(self) -> set[str]:
        return await self._follower.topic_names()

    async def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        await forget(self._views, lambda tp: is_gone(tp.topic_id))
        await forget(self._in_store_checked, lambda tp: is_gone(tp.topic_id))
        await self._follower.forget_topics(is_gone)

    async def _list_store_topics(self, _: None, __: float) -> frozenset[UUID]:
        return frozenset(topic_id for _, topic_id in await self._objects.list_topics())

    def list_remote_log_segments(
        self, tp: TopicIdPartition
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        table = self._follower.loaded(tp)
        return () if table is None else tuple(table.segments())

    def problems(self, tp: TopicIdPartition) -> tuple[Condition, ...]:
        return self._follower.problems(tp)

    def _built_view(self, tp: TopicIdPartition) -> PartitionView:
        """Built from memory, after the partition was read once."""
        table, read_at = self._table(tp), self._follower.read_at(tp)
        assert read_at is not None  # `refresh` came first
        problems = self._follower.problems(tp)
        made_from = (read_at, table.changes, len(problems))
        cached = self._views.get(tp)
        # During a restore the old view stays: `refresh` says that nothing newer is known.
        if cached is not None and (table.restoring or cached[0] == made_from):
            return cached[1]
        view = table.view(read_at)
        if problems:
            # The events may be about any offset that no segment covers.
            ends = (end for _, end in view.segments.bounds())
            view = table.view(read_at, (0, *(end + 1 for end in ends)))
        self._views[tp] = made_from, view
        return view

    async def _check_not_in_store(self, tp: TopicIdPartition) -> None:
        if not await self._is_in_store(tp):
            return
        # Another instance's new copy is in the topic before it is in the store.
        table = await self._follower.table(tp, asyncio.get_running_loop().time())
        if table.is_empty:
            raise RemoteStorageError(
                f"the store has segments of {tp} that are missing in the metadata topic: "
                f"rebuild it with `fetchproxy restore`, or set metadata.manager=store"
            )

    async def _is_in_store(self, tp: TopicIdPartition) -> bool:
        operation = f"list of the segments of {tp} in the store"
        async with within(self._read_max_ms / 1000, operation):
            async for standing in self._objects.list_partition(tp):
                if isinstance(standing, SegmentMetadataObject):
                    return True
        return False

    # --- writing ---
    async def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """A finished copy goes to the store first, so that a crash leaves an unfinished copy. Other
        states go to the topic first. DELETE_SEGMENT_FINISHED goes only to the topic: the object
        went with `RemoteStorageManager.delete_log_segment_data`. Raises ValueError on an illegal
        transition, also if another writer was first, and RemoteStorageError: then it may have
        happened or not, and may be repeated.
        """
        tp = metadata.topic_id_partition
        table = await self._fresh(tp)
        table.check(metadata)
        if metadata.state is _State.COPY_SEGMENT_FINISHED:
            await self._put_finished(metadata, table)
            return
        await self._append(metadata)
        if metadata.state is not _State.DELETE_SEGMENT_FINISHED:
            await self._objects.put_segment_metadata(metadata, encode_segment(metadata))
        await self._tell(table, metadata)

    async def _put_finished(
        self, metadata: RemoteLogSegmentMetadata, table: PartitionTable
    ) -> None:
        await self._objects.put_segment_metadata(metadata, encode_segment(metadata))
        await self._tell(table, metadata)
        try:
            await self._append(metadata)
        except ValueError:
            # Another instance has begun to delete it meanwhile: the store must say the same.
            recorded = table.known(metadata)
            if recorded is None:
                await self._rsm.delete_log_segment_data(metadata)
            else:
                await self._objects.put_segment_metadata(recorded, encode_segment(recorded))
            if may_be_missed(table.segment_count):
                await self._objects.put_past_changed(metadata.topic_id_partition)
            raise

    async def _tell(
        self, table: PartitionTable, event: RemoteLogSegmentMetadata | LogStartOffset
    ) -> None:
        """For archive-only nodes, which read the store."""
        if must_be_announced(table, event):
            await self._objects.put_past_changed(event.topic_id_partition)

    async def raise_log_start_offset(self, tp: TopicIdPartition, offset: int) -> PartitionView:
        """To the store first, so that a topic lost later can be rebuilt from it."""
        table = await self._fresh(tp)
        before = table.raised_log_start
        if offset > before:
            after_epoch = table.history.after_epoch
            content = encode_log_start(tp, offset)
            log_start = LogStartOffset(tp, offset, self._wall_clock_ms(), after_epoch)
            await self._objects.put_log_start_offset(tp, offset, content, after_epoch)
            await self._tell(table, log_start)
            await self._append(log_start)
            if before:
                await delete_log_starts(self._objects, tp, [LogStartObject(before, after_epoch)])
        return self._built_view(tp)

    async def put_log_history(self, tp: TopicIdPartition, history: LogHistory) -> PartitionView:
        """To the store first, as for a log start."""
        await self._fresh(tp)
        content = encode_log_history(tp, history)
        await self._objects.put_partition_note(tp, content)
        await self._append(LogHistoryRecord(tp, history, self._wall_clock_ms()))
        return self._built_view(tp)

    async def put_partition_deletion(self, deletion: RemotePartitionDeleteMetadata) -> None:
        """The last state goes to the store first, the others to the topic.

        So a crash between both writes leaves a deletion to repeat.
        """
        tp = deletion.topic_id_partition
        (await self._fresh(tp)).check(deletion)
        if deletion.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            await self._objects.forget_partition(tp)
            await self._append(deletion)
        else:
            await self._append(deletion)
            await self._objects.put_partition_deletion(tp, encode_partition_deletion(deletion))

    async def _fresh(self, tp: TopicIdPartition) -> PartitionTable:
        """As of now, because other instances' writes decide which transitions are legal."""
        await self.refresh(tp, asyncio.get_running_loop().time())
        return self._table(tp)

    def _table(self, tp: TopicIdPartition) -> PartitionTable:
        """None is loaded if the topic was forgotten since: then it was empty."""
        return self._follower.loaded(tp) or PartitionTable(tp)

    async def _append(self, event: MetadataEvent) -> None:
        refusal = await self._follower.append(event)
        if refusal is not None:
            raise ValueError(f"another writer was first: {refusal}")
        self._note_put(event.topic_id_partition.topic_id)
