"""The first RemoteLogMetadataManager: it reads the `.metadata` object beside each segment.

The store is the only truth, so any number of proxies and archivers agree without talking to each
other. Nothing is read but what somebody asks for: a refresh lists one partition and gets only the
metadata objects that are new or have changed.

Memory: a segment is a Python object here, about 1 KB each, for partitions that were asked for. The
topic-based manager keeps arrays (about 100 bytes a segment).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

import structlog

from fetchproxy.config.sections import MetadataConfig
from fetchproxy.errors import CorruptSegment, ObjectNotFound, RemoteStorageError, StorageUnavailable
from fetchproxy.metadata.api import MetadataProblem, RemoteLogMetadataManager
from fetchproxy.metadata.fresh_reads import FreshReads
from fetchproxy.metadata.log_start_json import encode_log_start
from fetchproxy.metadata.partition_view import PartitionView, build_view
from fetchproxy.metadata.segment_json import decode_segment, encode_segment
from fetchproxy.metadata.states import check_update
from fetchproxy.metadata.stored_deletions import StoredPartitionDeletions
from fetchproxy.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.observability.metrics import (
    METADATA_REFRESH_ERRORS,
    METADATA_REFRESH_SECONDS,
    METADATA_UNREADABLE,
)
from fetchproxy.storage.api import StoredObject
from fetchproxy.storage.remote_storage_manager import (
    LogStartObject,
    RemoteStorageManager,
    SegmentMetadataObject,
)

log = structlog.get_logger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class _Partition:
    """What is known of one partition; `objects` is by key, with the version that was read."""

    objects: dict[str, tuple[str, RemoteLogSegmentMetadata | MetadataProblem]] = field(
        default_factory=dict
    )
    segments: dict[UUID, RemoteLogSegmentMetadata] = field(default_factory=dict)
    problems: tuple[MetadataProblem, ...] = ()
    # What was put while a read was under way, as that read may have listed too early to see it.
    put_meanwhile: dict[UUID, RemoteLogSegmentMetadata] = field(default_factory=dict)
    put_at: float = float("-inf")  # loop time of the last put
    built_at: float = float("-inf")  # loop time at which the listing began that `segments` are of
    log_starts: tuple[LogStartObject, ...] = ()  # as last listed
    raised_log_start: int = 0  # never falls, so that a listing that began too early does no harm

    def apply(self, metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            self.segments.pop(metadata.segment_id.id, None)
        else:
            self.segments[metadata.segment_id.id] = metadata

    def has_read(self, stored: StoredObject) -> bool:
        """This version was read and understood; a damaged read may have been damaged on the way."""
        version, content = self.objects.get(stored.key, ("", None))
        return version == stored.version and not isinstance(content, MetadataProblem)

    def view(self, tip: TopicIdPartition, read_at: float) -> PartitionView:
        unreadable = {problem.base_offset for problem in self.problems}
        return build_view(tip, self.segments.values(), read_at, unreadable, self.raised_log_start)


class StoreBackedRemoteLogMetadataManager(RemoteLogMetadataManager):
    """`async with` owns the reads; `rsm` is opened and closed by the caller.

    One unreadable `.metadata` object does not hide the rest: it is logged once, counted, listed in
    `problems`, and its offsets are `uncertain_at` in the view, so nobody takes them for a gap.
    """

    def __init__(self, rsm: RemoteStorageManager, config: MetadataConfig) -> None:
        self._rsm = rsm
        self._config = config
        self._partitions: dict[TopicIdPartition, _Partition] = {}
        self._views = FreshReads(self._read_partition)
        self._topics = FreshReads(self._read_topic)
        self._archive = FreshReads(self._read_archive)
        self._deletions = StoredPartitionDeletions(rsm, config.metadata_read_max_ms)
        self._owned = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for reads in (self._views, self._topics, self._archive):
            await self._owned.enter_async_context(reads)
        await self._owned.enter_async_context(self._deletions)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._owned.aclose()

    def view(self, tip: TopicIdPartition) -> PartitionView | None:
        """As the interface says. One older than `view_age_max_ms` is read again meanwhile."""
        return self._views.shown(tip, self._config.view_age_max_ms / 1000)

    async def refresh(self, tip: TopicIdPartition, not_older_than: float) -> PartitionView:
        """As the interface says; `read_at` is when the listing *began*.

        Raises StorageUnavailable where the whole read takes longer than `metadata_read_max_ms`.
        What it had got by then is kept, so the next attempt is shorter.
        """
        return await self._views.get(tip, not_older_than)

    async def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Write the state to the store, then show it in the view without another read.

        The transition is checked against what was last read, so put in a partition that was never
        read reads it first. DELETE_SEGMENT_FINISHED writes nothing: the metadata object went with
        `RemoteStorageManager.delete_log_segment_data`, and its absence says it.
        Raises ValueError on an illegal transition, RemoteStorageError where the write failed; the
        store may then have either state, and the next refresh tells.
        """
        tip = metadata.topic_id_partition
        if self._views.cached(tip) is None:
            await self.refresh(tip, float("-inf"))
        partition = self._partition(tip)
        known = partition.segments.get(metadata.segment_id.id)
        check_update(known, metadata)
        if metadata.state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            await self._rsm.put_segment_metadata(metadata, encode_segment(metadata))
        partition.apply(metadata)
        partition.put_at = asyncio.get_running_loop().time()
        if self._views.is_running(tip):
            partition.put_meanwhile[metadata.segment_id.id] = metadata
        shown = self._views.cached(tip)
        if shown is not None:
            self._views.replace(tip, partition.view(tip, shown.read_at))
        if (partitions := self._topics.cached(tip.topic_id)) is not None:
            self._topics.replace(tip.topic_id, partitions | {tip.partition})

    async def raise_log_start_offset(self, tip: TopicIdPartition, offset: int) -> PartitionView:
        """As the interface says. An offset that is no higher than what is known writes nothing."""
        shown = await self.refresh(tip, float("-inf"))
        partition = self._partition(tip)
        if offset <= partition.raised_log_start:
            return shown
        await self._rsm.put_log_start_offset(tip, offset, encode_log_start(tip, offset))
        partition.raised_log_start = max(partition.raised_log_start, offset)
        shown = self._views.cached(tip) or shown
        view = partition.view(tip, shown.read_at)
        self._views.replace(tip, view)
        await self._tidy_log_starts(tip, partition)
        return view

    async def _tidy_log_starts(self, tip: TopicIdPartition, partition: _Partition) -> None:
        """Lower ones say nothing any more; one that stays does no harm and is tried again."""
        for lower in partition.log_starts:
            if lower.offset < partition.raised_log_start:
                try:
                    await self._rsm.delete_log_start_offset(lower)
                except RemoteStorageError as error:
                    log.warning(
                        "lower_log_start_kept",
                        topic=tip.topic,
                        partition=tip.partition,
                        error=str(error),
                    )
                    return

    async def put_partition_deletion(self, deletion: RemotePartitionDeleteMetadata) -> None:
        """As the interface says; the state is read before, so that of two writers one is refused.

        After the last state nothing of the partition is kept, neither in the store nor here.
        """
        tip = deletion.topic_id_partition
        await self._deletions.put(deletion)
        if deletion.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            self._partitions.pop(tip, None)
            if (shown := self._views.cached(tip)) is not None:
                self._views.replace(tip, build_view(tip, (), shown.read_at))
            if (partitions := self._topics.cached(tip.topic_id)) is not None:
                self._topics.replace(tip.topic_id, partitions - {tip.partition})

    async def partition_deletion(
        self, tip: TopicIdPartition, not_older_than: float
    ) -> RemotePartitionDeleteMetadata | None:
        return await self._deletions.get(tip, not_older_than)

    async def list_partitions(self) -> Iterable[TopicIdPartition]:
        """Listed anew; callers at the same time share one listing. Raises RemoteStorageError."""
        return await self._archive.get(None, asyncio.get_running_loop().time())

    async def topic_partitions(self, topic_id: UUID, not_older_than: float) -> frozenset[int]:
        """The archived partitions of a topic, read at or after loop time `not_older_than` (s).

        Empty: the archive does not know the topic. Raises RemoteStorageError, as `refresh`.
        """
        return await self._topics.get(topic_id, not_older_than)

    def list_remote_log_segments(
        self, tip: TopicIdPartition
    ) -> tuple[RemoteLogSegmentMetadata, ...]:
        """Every segment as last known, by start offset, also copies begun and deletions begun."""
        partition = self._partitions.get(tip)
        known = partition.segments.values() if partition is not None else ()
        return tuple(sorted(known, key=lambda s: (s.start_offset, s.segment_id.id)))

    def problems(self, tip: TopicIdPartition) -> tuple[MetadataProblem, ...]:
        """The partition's metadata objects that could not be read, as of the last read."""
        partition = self._partitions.get(tip)
        return () if partition is None else partition.problems

    def objects_known(self, tip: TopicIdPartition) -> int:
        """How many metadata objects have been read, also by reads that failed: their progress."""
        partition = self._partitions.get(tip)
        return 0 if partition is None else len(partition.objects)

    def _partition(self, tip: TopicIdPartition) -> _Partition:
        return self._partitions.setdefault(tip, _Partition())

    async def _read_archive(self, _: None, began_at: float) -> tuple[TopicIdPartition, ...]:
        listed = await self._within("list of partitions", self._rsm.list_partitions())
        return tuple(sorted({*listed, *self._put_since(began_at)}))

    async def _read_topic(self, topic_id: UUID, began_at: float) -> frozenset[int]:
        listed = await self._within(f"topic {topic_id}", self._rsm.list_topic(topic_id))
        known = (*listed, *self._put_since(began_at))
        return frozenset(tip.partition for tip in known if tip.topic_id == topic_id)

    def _put_since(self, began_at: float) -> list[TopicIdPartition]:
        """Partitions that a listing begun then may have missed."""
        return [tip for tip, p in self._partitions.items() if p.segments and p.put_at >= began_at]

    async def _read_partition(self, tip: TopicIdPartition, began_at: float) -> PartitionView:
        partition = self._partition(tip)
        partition.put_meanwhile.clear()
        try:
            listed = await self._within(f"metadata of {tip}", self._list_and_get(tip, partition))
        except RemoteStorageError:
            METADATA_REFRESH_ERRORS.inc()
            raise
        METADATA_REFRESH_SECONDS.observe(asyncio.get_running_loop().time() - began_at)
        if listed is None:
            shown = self._views.cached(tip)
            as_shown = shown is not None and shown.raised_log_start == partition.raised_log_start
            if shown is not None and as_shown and partition.put_at < partition.built_at:
                return replace(shown, read_at=began_at)
            listed = list(partition.objects)
        partition.built_at = began_at
        # From here on nothing waits: no put can come between reading and showing.
        kept = {key: partition.objects[key] for key in listed if key in partition.objects}
        contents = [content for _, content in kept.values()]
        partition.objects = kept
        partition.problems = tuple(c for c in contents if isinstance(c, MetadataProblem))
        found = [c for c in contents if isinstance(c, RemoteLogSegmentMetadata)]
        partition.segments = {}
        for metadata in (*found, *partition.put_meanwhile.values()):
            partition.apply(metadata)
        return partition.view(tip, began_at)

    async def _list_and_get(self, tip: TopicIdPartition, partition: _Partition) -> list[str] | None:
        """Bring `partition.objects` up to date; the keys that are listed now, None: as before.

        Making thousands of segments anew holds the loop, and mostly nothing has changed.
        """
        listed: list[SegmentMetadataObject] = []
        log_starts: list[LogStartObject] = []
        async for found in self._rsm.list_partition(tip):
            if isinstance(found, LogStartObject):
                log_starts.append(found)
            else:
                listed.append(found)
        partition.log_starts = tuple(log_starts)
        highest = max((found.offset for found in log_starts), default=0)
        partition.raised_log_start = max(partition.raised_log_start, highest)
        waiting = [entry for entry in listed if not partition.has_read(entry.stored)]
        waiting.reverse()  # taken from the end
        if not waiting and len(listed) == len(partition.objects):
            return None
        failures: list[RemoteStorageError] = []
        async with asyncio.TaskGroup() as readers:
            for _ in range(min(len(waiting), self._config.metadata_reads_max)):
                readers.create_task(self._get_waiting(waiting, partition, failures))
        if failures:
            raise failures[0]
        return [entry.stored.key for entry in listed]

    async def _get_waiting(
        self,
        waiting: list[SegmentMetadataObject],
        partition: _Partition,
        failures: list[RemoteStorageError],
    ) -> None:
        # The first failure ends the read; raised in here, the TaskGroup would wrap it.
        while waiting and not failures:
            entry = waiting.pop()
            try:
                raw = await self._rsm.get_segment_metadata(entry.stored.key)
            except ObjectNotFound:
                partition.objects.pop(entry.stored.key, None)  # deleted since it was listed
            except RemoteStorageError as error:
                failures.append(error)
            else:
                content = _decode(raw, entry)
                if isinstance(content, MetadataProblem):
                    _report(content, entry, partition)
                partition.objects[entry.stored.key] = (entry.stored.version, content)

    async def _within(self, what: str, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._config.metadata_read_max_ms / 1000):
                return await work
        except TimeoutError:
            raise StorageUnavailable(
                f"{what}: not read within {self._config.metadata_read_max_ms} ms"
            ) from None


def _decode(raw: bytes, entry: SegmentMetadataObject) -> RemoteLogSegmentMetadata | MetadataProblem:
    key = entry.stored.key
    try:
        metadata = decode_segment(raw, key)
        if (metadata.segment_id, metadata.start_offset) != (entry.segment_id, entry.base_offset):
            raise CorruptSegment(
                f"{key}: holds the metadata of segment {metadata.segment_id.id} of "
                f"{metadata.topic_id_partition} at {metadata.start_offset}"
            )
        return metadata
    except CorruptSegment as error:
        return MetadataProblem(key, entry.base_offset, str(error))


def _report(problem: MetadataProblem, entry: SegmentMetadataObject, partition: _Partition) -> None:
    """Once for each unreadable version of an object, however often it is read again."""
    known = partition.objects.get(problem.key)
    if known is not None and known[0] == entry.stored.version:
        return
    METADATA_UNREADABLE.inc()
    tip = entry.segment_id.topic_id_partition
    log.error(
        "segment_metadata_unreadable",
        topic=tip.topic,
        partition=tip.partition,
        segment_id=str(entry.segment_id.id),
        base_offset=entry.base_offset,
        error=problem.what,
    )
