"""What the planner asks the archive: which partitions there are, what they hold, where a time lies.

Only metadata is read, from the store or from an archiver's cache files; for timestamps also the
index and one span of one segment a partition, as Kafka's brokers do when they are asked for one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from fetchproxy.config.secrets import mask_text
from fetchproxy.config.sections import MetadataConfig
from fetchproxy.errors import ArchiveMissing, ConfigError, CorruptSegment
from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.metadata.metadata_cache import MetadataCache
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.segment_table import SegmentTable
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import ByteRange, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.pipeline.holes import ALL_OFFSETS, holes_of
from fetchproxy.pipeline.planning_processes import PlanningProcesses, first_of
from fetchproxy.pipeline.source.options import EARLIEST, LATEST, Bound, BoundKind, SourceOptions
from fetchproxy.pipeline.source.planning import DataLoss, OffsetSpan
from fetchproxy.pipeline.source.store_thread import opened_store, with_retries
from fetchproxy.remote_log.verification.expected_offsets import Offsets
from fetchproxy.storage.api import Content
from fetchproxy.storage.layout import SegmentFile
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from protocol.errors import WireError
from protocol.record_batch import first_record_at_or_after, walk

# Of one partition at once, and partitions at once: both hide latency within the store's own limits.
METADATA_READS_MAX = 32
PARTITIONS_AT_ONCE_MAX = 16
# So long a store may take to say that it has the archive: a mistyped place is an error in seconds.
FIRST_ANSWER_MAX_S = 10.0
# Topics that an error names.
TOPICS_NAMED_MAX = 5
PASSED_OVER = "with failOnDataLoss=false it is passed over"

Views = Mapping[TopicIdPartition, PartitionView]
# Topic and number of each partition that has a trace in the archive, also without a segment.
Known = frozenset[tuple[str, int]]
Spans = dict[TopicIdPartition, OffsetSpan]


class ArchiveReading:
    """`async with` opens the store, and fails where no archive is there: RemoteStorageError.

    A second look at the same archive reads only what is new.
    """

    def __init__(self, options: SourceOptions, *, once: bool = False) -> None:
        """`once`: there is no second look, and other processes may help with the first one."""
        self._once = once
        self._options = options
        self.rsm = opened_store(options)
        config = MetadataConfig(
            metadata_read_max_ms=options.plan_max_ms, metadata_reads_max=METADATA_READS_MAX
        )
        self._rlmm = StoreBackedRemoteLogMetadataManager(self.rsm, config, plans=True)
        self._opened = AsyncExitStack()
        self._known: Known = frozenset()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(self.rsm)
            await self._check_there()
            await opened.enter_async_context(self._rlmm)
            self._opened = opened.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._opened.aclose()

    async def _check_there(self) -> None:
        what = f"remotelog: store {mask_text(self._options.store)}"

        async def look() -> None:
            try:
                await self.rsm.identity.check()
            except ArchiveMissing as missing:  # it has answered: to ask again is no use
                raise ConfigError(f"{what}: {missing}") from None

        await with_retries(what, look, FIRST_ANSWER_MAX_S)

    async def views(self) -> Views:
        """Of the chosen partitions, of each topic's last incarnation, as they are now.

        Raises RemoteStorageError; ConfigError, CorruptSegment, OSError of cache files.
        """
        if self._options.metadata_cache_dir is not None:
            self._known = _places(cache_of(self._options).partitions())
            return _last_incarnations(cached_views(self._options))
        max_s = self._options.plan_max_ms / 1000
        now = asyncio.get_running_loop().time()
        listed = await with_retries("the list of partitions", self._rlmm.list_partitions, max_s)
        self._known = _places(listed)
        waiting = [t for t in listed if self._options.topics.takes(t.topic, t.partition)]
        views: dict[TopicIdPartition, PartitionView] = {}

        all_taken = asyncio.Event()

        async def read_waiting() -> None:
            while waiting:
                tip = waiting.pop()
                refresh = partial(self._rlmm.refresh, tip, now)
                views[tip] = await with_retries(f"the metadata of {tip}", refresh, max_s)
            all_taken.set()

        others = PlanningProcesses(self._options, waiting, views, read_waiting)
        try:
            async with asyncio.TaskGroup() as readers:
                if self._once and waiting:
                    readers.create_task(others.read(all_taken))
                for _ in range(min(PARTITIONS_AT_ONCE_MAX, len(waiting))):
                    readers.create_task(read_waiting())
        except ExceptionGroup as group:
            raise first_of(group) from None
        return _last_incarnations(views)

    def check_topics(self) -> None:
        """Of the last look. Raises ConfigError where a topic or partition that the options name has
        no trace in the archive: it is mistyped, or nothing of it was archived yet."""
        topics = self._options.topics
        there = {topic for topic, _ in self._known}
        for topic in sorted(topics.names or topics.assigned or ()):
            if topic not in there:
                has = ", ".join(sorted(there)[:TOPICS_NAMED_MAX]) or "no topic"
                more = ", …" if len(there) > TOPICS_NAMED_MAX else ""
                raise ConfigError(
                    f"remotelog: the archive has nothing of topic {topic!r}; it has {has}{more}"
                )
        for topic, partitions in sorted((topics.assigned or {}).items()):
            missing = sorted(p for p in partitions if (topic, p) not in self._known)
            if missing:
                has = ", ".join(str(p) for t, p in sorted(self._known) if t == topic)
                raise ConfigError(
                    f"remotelog: assign names partition {missing[0]} of topic {topic!r}; the "
                    f"archive has {has}"
                )

    async def spans(self, views: Views) -> Spans:
        """Which offsets of each partition are asked for, all of which have to be there.

        Raises ConfigError, DataLoss, RemoteStorageError, CorruptSegment.
        """
        options = self._options
        self._check_partitions("ending", options.ending, views)
        starts = await self.starts(views)
        spans: Spans = {}
        for tip, view in views.items():
            end = await _resolved(options.ending, options, self.rsm, view)
            span = OffsetSpan(starts[tip], view.log_end_offset or 0 if end is None else end)
            spans[tip] = span
        await self.check_no_loss(
            views, {tip: asked_offsets(options, span) for tip, span in spans.items()}
        )
        return spans

    async def check_no_loss(self, views: Views, asked: Mapping[TopicIdPartition, Offsets]) -> None:
        """Raises DataLoss where one of them is not there, unless that is no failure by the
        options; RemoteStorageError. One rule for holes, that of `pipeline.holes`."""
        if not self._options.fail_on_data_loss:
            return
        of_store = self._options.metadata_cache_dir is None
        looked_at = [views[tip] for tip in asked]
        look = partial(holes_of, self.rsm, looked_at, asked, views_of_store=of_store)
        max_s = self._options.plan_max_ms / 1000
        for tip, holes in sorted((await with_retries("records of offsets", look, max_s)).items()):
            raise DataLoss(f"{tip}: {holes.in_words()}; {PASSED_OVER}")

    async def starts(self, views: Views) -> dict[TopicIdPartition, int]:
        """Where reading begins. Raises as `spans`."""
        options = self._options
        self._check_partitions("starting", options.starting, views)
        starts: dict[TopicIdPartition, int] = {}
        for tip, view in views.items():
            start = await _resolved(options.starting, options, self.rsm, view)
            if start is None and options.starting_after_end_is_error:
                raise ConfigError(
                    f"remotelog: no record of {tip} has the starting timestamp or a later one "
                    "(startingOffsetsByTimestampStrategy=latest starts at the end then)"
                )
            starts[tip] = view.log_end_offset or 0 if start is None else start
        return starts

    def _check_partitions(self, side: str, bound: Bound, views: Views) -> None:
        """As Spark's source: all of them or none, so that none is forgotten. An empty partition,
        of which the archive knows nothing, may be named: Spark's source asks for it."""
        if not bound.by_partition:
            return
        by_time = "ByTimestamp" if bound.kind is BoundKind.TIMESTAMPS else ""
        name = f"{side}Offsets{by_time}"
        there = _places(views)
        missing = sorted(there - set(bound.by_partition))
        if missing:
            raise ConfigError(f"remotelog: {name} names partitions, but not {missing[0]}")
        topics = {topic for topic, _ in self._known}
        for key in sorted(set(bound.by_partition) - there):
            if not self._options.topics.takes(*key) or key[0] not in topics:
                raise ConfigError(f"remotelog: {name} names {key}, which is not chosen")
            given = bound.by_partition[key]
            if not _is_of_nothing(bound, given):
                raise ConfigError(
                    f"remotelog: {name} names offset {given} of {key}, of which nothing is archived"
                )

    async def ends_so_far(self, views: Views) -> dict[TopicIdPartition, int]:
        """Where reading ends now, of an archive that may grow up to the ending offsets yet."""
        lenient = replace(self._options, fail_on_data_loss=False)
        ends = {}
        for tip, view in views.items():
            end = await _resolved(lenient.ending, lenient, self.rsm, view)
            ends[tip] = view.log_end_offset or 0 if end is None else end
        return ends


def asked_offsets(options: SourceOptions, span: OffsetSpan) -> Offsets:
    """Whoever asks for the archive's ends asks for what should be there too."""
    first, last = ALL_OFFSETS
    if options.starting.kind is not BoundKind.EARLIEST:
        first = span.start
    if options.ending.kind is not BoundKind.LATEST:
        last = span.end - 1
    return first, last


def cache_of(options: SourceOptions) -> MetadataCache:
    """Raises ConfigError where the folder is none."""
    folder = Path(options.metadata_cache_dir or "")
    if not folder.is_dir():
        raise ConfigError(f"remotelog: metadataCacheDir {folder}: no such folder")
    return MetadataCache(folder)  # not entered: it stays the archiver's


def cached_views(options: SourceOptions) -> dict[TopicIdPartition, PartitionView]:
    """As an archiver with `metadata.manager=topic` has last written them; it may be running.

    Raises ConfigError where the folder is none; CorruptSegment, OSError.
    """
    cache = cache_of(options)
    chosen = [t for t in cache.partitions() if options.topics.takes(t.topic, t.partition)]
    return {t: SegmentTable.load(t, cache.file(t).load().entries).view(0.0) for t in chosen}


def _last_incarnations(views: Views) -> Views:
    """Of topics of one name the one that was archived last, as without a cluster elsewhere."""
    archived_at: dict[tuple[str, bytes], int] = {}
    for tip, view in views.items():
        if view.segments:
            key = (tip.topic, tip.topic_id.bytes)
            last = view.segments[len(view.segments) - 1].event_timestamp_ms
            archived_at[key] = max(last, archived_at.get(key, 0))
    chosen: dict[str, tuple[int, bytes]] = {}
    for (topic, topic_id), at in archived_at.items():
        chosen[topic] = max((at, topic_id), chosen.get(topic, (-1, b"")))
    return {
        tip: view
        for tip, view in views.items()
        if view.segments and chosen[tip.topic][1] == tip.topic_id.bytes
    }


def _is_of_nothing(bound: Bound, given: int) -> bool:
    """Whether an empty partition has what is asked for."""
    return bound.kind is BoundKind.TIMESTAMPS or given in (EARLIEST, LATEST, 0)


def _places(tips: Iterable[TopicIdPartition]) -> Known:
    return frozenset((tip.topic, tip.partition) for tip in tips)


async def _resolved(
    bound: Bound, options: SourceOptions, rsm: RemoteStorageManager, view: PartitionView
) -> int | None:
    """An offset; None: a timestamp after all that is there."""
    first, last = view.log_start_offset or 0, view.log_end_offset or 0
    given = bound.by_partition.get((view.tip.topic, view.tip.partition), bound.everywhere)
    if bound.kind is BoundKind.EARLIEST:
        return first
    if bound.kind is BoundKind.LATEST:
        return last
    if bound.kind is BoundKind.TIMESTAMPS:
        assert given is not None, "checked before"
        return await first_offset_at(options, rsm, view, given)
    if given is None:
        return last if bound is options.ending else first  # of a stream, it appeared later
    if given in (EARLIEST, LATEST):
        return first if given == EARLIEST else last
    if not first <= given <= last:
        if options.fail_on_data_loss:
            raise DataLoss(
                f"{view.tip}: offset {given} is not in the archive, which has {first} to "
                f"{last - 1}; with failOnDataLoss=false reading begins or ends there"
            )
        return min(max(given, first), last)
    return given


async def first_offset_at(
    options: SourceOptions, rsm: RemoteStorageManager, view: PartitionView, timestamp_ms: int
) -> int | None:
    """The first archived offset with so late a timestamp, as a broker's ListOffsets says it."""
    index = view.index_at_or_after_timestamp(timestamp_ms)
    while index is not None:
        segment = view.segments[index]
        from_offset = max(segment.start_offset, view.raised_log_start)
        found = await _first_in_segment(options, rsm, segment, timestamp_ms, from_offset)
        if found is not None:
            return found
        index = view.index_at_or_after_timestamp(timestamp_ms, index + 1)
    return None


async def _first_in_segment(
    options: SourceOptions,
    rsm: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    timestamp_ms: int,
    from_offset: int,
) -> int | None:
    key = rsm.object_key(segment, SegmentFile.LOG)
    max_s = options.read_max_ms / 1000
    raw = await with_retries(
        f"the index of {key}", partial(rsm.fetch_index, segment, SegmentFile.INDEX), max_s
    )
    for span in RemoteLogIndex.parse(raw).spans():
        if span.max_timestamp_ms < timestamp_ms or span.last_offset < from_offset:
            continue
        if span.first_offset > segment.end_offset:
            break
        wanted = ByteRange(span.position, span.end)
        data = await with_retries(
            f"{key}, bytes {span.position} to {span.end}",
            partial(rsm.fetch_log_segment, segment, wanted),
            max_s,
        )
        try:
            found = _first_in(data, timestamp_ms, from_offset)
        except WireError as error:
            raise CorruptSegment(f"{key}, byte {span.position} ff.: {error}") from error
        if found is not None:
            return found if found <= segment.end_offset else None
    return None


def _first_in(data: Content, timestamp_ms: int, from_offset: int) -> int | None:
    for header in walk(data):
        found = first_record_at_or_after(data, header, timestamp_ms, from_offset)
        if found is not None:
            return found[0]
    return None


async def _plan_input(options: SourceOptions) -> tuple[Views, Spans]:
    async with ArchiveReading(options, once=True) as reading:
        views = await reading.views()
        reading.check_topics()
        return views, await reading.spans(views)


def plan_input(options: SourceOptions) -> tuple[Views, Spans]:
    """The views of all chosen partitions, and what of them is to be read. Blocking.

    Raises ConfigError, also for a topic that the archive does not know; DataLoss,
    RemoteStorageError, CorruptSegment.
    """
    return asyncio.run(_plan_input(options))
