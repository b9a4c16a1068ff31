"""Answers the planner about the archive, once for a batch and for each micro-batch of a stream.

It reads only metadata, from the store or from an archiver's cache files. For timestamps it also
reads the index and one span of one segment a partition, as Kafka's brokers do.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import structlog
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import first_record_at_or_after, walk

from fetchproxy.config.values import mask_text
from fetchproxy.errors import ArchiveMissing, ConfigError, CorruptSegment, ObjectFailing, leaves
from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.metadata.flat_files import SegmentMetadataCache
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.model import ByteRange, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.remotelog.options import (
    EARLIEST,
    LATEST,
    Bound,
    BoundKind,
    NextOffsets,
    SourceOptions,
    TopicPartition,
    json_offsets,
    parse_offsets,
)
from fetchproxy.remotelog.planning import (
    ALL_OFFSETS,
    SKIPPED_RECORDS,
    DataLoss,
    OffsetSpan,
    ReadTask,
    Selection,
    holes_of,
    plan_tasks,
)
from fetchproxy.remotelog.planning_processes import (
    PARTITIONS_EACH,
    Failing,
    metadata_of,
    read_elsewhere,
    read_view,
)
from fetchproxy.remotelog.rate_limits import Views, ends_within_limits, first_new_offsets
from fetchproxy.remotelog.store_thread import LoopThread, opened_store, with_retries
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.storage.listings import Unlisted

log = structlog.get_logger(__name__)

# Hides latency, within the store's own limits.
PARTITIONS_AT_ONCE_MAX = 16
# Time for the store to confirm that it has the archive: a mistyped place fails within seconds.
FIRST_RESPONSE_MAX_S = 10.0
# Number of topics that an error names.
TOPICS_NAMED_MAX = 5

# Planning of most archives ends before a second process would have started.
ALONE_S = 2.0
# The next offset to read of each partition, as in Spark's Kafka source, and the topic's id:
# {"topic": {"0": 23, "topicId": "5b0c…"}}. Checkpoints of earlier versions lack the id.
StreamOffset = dict[str, dict[str, Any]]
_TOPIC_ID = "topicId"


class ArchiveReading:
    """`async with` opens the store. Raises RemoteStorageError if it holds no archive.

    A second look at the same archive reads only new metadata.
    """

    def __init__(self, options: SourceOptions, *, once: bool = False) -> None:
        """`once`: there is no second look, so other processes may help with the first."""
        self._once = once
        self._options = options
        self.storage = opened_store(options)
        self._rsm, self._identity = self.storage.rsm, self.storage.identity
        self._rlmm = metadata_of(options, self.storage)
        self._topics = TopicDescriptions(self.storage.objects)
        self._opened = AsyncExitStack()
        # Partitions with a trace in the archive, even without a segment.
        self._known: frozenset[TopicPartition] = frozenset()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.storage)
            await self._check_there()
            await stack.enter_async_context(self._rlmm)
            self._opened = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._opened.aclose()

    async def _check_there(self) -> None:
        message = f"remotelog: store {mask_text(self._options.store)}"

        async def look() -> None:
            try:
                await self._identity.check()
            except ArchiveMissing as missing:  # the store has answered: a retry is of no use
                raise ConfigError(f"{message}: {missing}") from None

        await with_retries(message, look, FIRST_RESPONSE_MAX_S)

    async def views(
        self, failing: Failing | None = None, unlisted: Unlisted | None = None
    ) -> Views:
        """The current views of the chosen partitions, of each topic's last incarnation. `failing`:
        for partitions with an object that fails alone (`each_object_alone`), which have no view.
        `unlisted`: for topics whose folder fails alone.

        Raises RemoteStorageError; with cache files ConfigError, CorruptSegment, OSError.
        """
        if self._options.metadata_cache_dir is not None:
            return self._cached_views(self._options.metadata_cache_dir)
        max_s = self._options.plan_max_ms / 1000
        now = asyncio.get_running_loop().time()
        listing = partial(self._rlmm.list_partitions, unlisted)
        listed = await with_retries("the list of partitions", listing, max_s)
        self._known = _topic_partitions(listed) | await self._described()
        waiting = [t for t in listed if self._options.topics.includes(t.topic, t.partition)]
        views: dict[TopicIdPartition, PartitionView] = {}

        async def read_waiting() -> None:
            while waiting:
                tp = waiting.pop()
                try:
                    views[tp] = await read_view(self._rlmm, tp, now, max_s)
                except ObjectFailing as error:
                    if failing is None:
                        raise
                    failing[tp] = error

        try:
            async with asyncio.TaskGroup() as readers:
                at_once = min(PARTITIONS_AT_ONCE_MAX, len(waiting))
                here = [readers.create_task(read_waiting()) for _ in range(at_once)]
                if self._once and here:
                    await asyncio.wait(here, timeout=ALONE_S)
                    others = min((os.cpu_count() or 1) - 1, -(-len(waiting) // PARTITIONS_EACH))
                    for _ in range(others):
                        readers.create_task(
                            read_elsewhere(self._options, waiting, views, read_waiting, failing)
                        )
        except ExceptionGroup as group:
            raise next(leaves(group)) from None
        if failing:  # once more, as the others have taken their time
            waiting, now = list(failing), asyncio.get_running_loop().time()
            failing.clear()
            await read_waiting()
        return _last_incarnations(views.values())

    async def _described(self) -> frozenset[TopicPartition]:
        """The partitions that the archive knows without a record of theirs."""
        max_s = self._options.plan_max_ms / 1000
        descriptions = await with_retries("what describes topics", self._topics.refresh, max_s)
        return frozenset(
            (description.topic, number)
            for description in descriptions.values()
            for number in range(description.partitions)
        )

    def _cached_views(self, cache_dir: str) -> Views:
        """The last views of an archiver with `metadata.manager=topic`, which may be running."""
        if not Path(cache_dir).is_dir():
            raise ConfigError(f"remotelog: metadataCacheDir {cache_dir}: no such folder")
        cache = SegmentMetadataCache(Path(cache_dir))  # not entered: the archiver owns it
        cached_tps = list(cache.partitions())
        self._known = _topic_partitions(cached_tps)
        chosen_tps = [t for t in cached_tps if self._options.topics.includes(t.topic, t.partition)]
        tables = (PartitionTable.load(tp, cache.file(tp).load().entries) for tp in chosen_tps)
        return _last_incarnations(table.view(0.0) for table in tables)

    def check_topics(self) -> None:
        """Raises ConfigError if `views` found no trace of a named topic or partition.

        The name is mistyped, or nothing of the topic or partition was archived yet.
        """
        topics = self._options.topics
        known_topics = {topic for topic, _ in self._known}
        for topic in sorted(topics.names or topics.assigned or ()):
            if topic not in known_topics:
                has = ", ".join(sorted(known_topics)[:TOPICS_NAMED_MAX]) or "no topic"
                more = ", …" if len(known_topics) > TOPICS_NAMED_MAX else ""
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

    async def selections(self, views: Views) -> list[Selection]:
        """The offsets to read of each partition. The archive has to have all of them.

        Raises ConfigError, DataLoss, RemoteStorageError, CorruptSegment.
        """
        self.check_bounds(views)
        selections = [(view, await self.span_of(view)) for view in views.values()]
        await self.check_no_loss((view, self.to_check(span)) for view, span in selections)
        return selections

    def to_check(self, span: OffsetSpan) -> OffsetSpan:
        """The offsets to check for loss: `earliest` and `latest` cover all that should be there."""
        first, last = self._options.starting.kind, self._options.ending.kind
        return OffsetSpan(
            ALL_OFFSETS.start if first is BoundKind.EARLIEST else span.start,
            ALL_OFFSETS.end if last is BoundKind.LATEST else span.end,
        )

    async def check_no_loss(self, selections: Iterable[Selection]) -> None:
        """Raises DataLoss if an offset is missing and `failOnDataLoss` is set.

        Also raises RemoteStorageError.
        """
        if self._options.fail_on_data_loss:
            for tp, holes in sorted((await self.holes(selections)).items()):
                raise DataLoss(f"{tp}: {holes}; {SKIPPED_RECORDS}")

    async def holes(self, selections: Iterable[Selection]) -> dict[TopicIdPartition, str]:
        """As `planning.holes_of`, which has the one rule for holes."""
        is_from_store = self._options.metadata_cache_dir is None
        look = partial(
            holes_of,
            self.storage,
            list(selections),
            views_of_store=is_from_store,
            problems=self._rlmm.problems,
        )
        return await with_retries("records of offsets", look, self._options.plan_max_ms / 1000)

    def check_bounds(self, views: Views) -> None:
        """Raises ConfigError if an option names some partitions and not others."""
        self._check_partitions("ending", self._options.ending, views)
        self._check_partitions("starting", self._options.starting, views)

    async def span_of(self, view: PartitionView) -> OffsetSpan:
        """The offsets to read of a partition, without a look for holes. Raises as `selections`."""
        return OffsetSpan(await self._start(view), await self._end(view))

    async def starts(self, views: Views) -> dict[TopicPartition, int]:
        """The offset at which reading of each partition begins. Raises as `selections`."""
        self._check_partitions("starting", self._options.starting, views)
        return {key: await self._start(view) for key, view in views.items()}

    async def ends(self, views: Views) -> dict[TopicPartition, int]:
        """The offset at which reading of each partition ends. The archive may still grow up to the
        ending offsets.
        """
        return {key: await self._end(view, so_far=True) for key, view in views.items()}

    async def _start(self, view: PartitionView) -> int:
        start = await self._resolved(self._options.starting, view)
        if start is None and self._options.starting_after_end_is_error:
            raise ConfigError(
                f"remotelog: no record of {view.tp} has the starting timestamp or a later one "
                "(startingOffsetsByTimestampStrategy=latest starts at the end then)"
            )
        return view.log_end_offset or 0 if start is None else start

    async def _end(self, view: PartitionView, *, so_far: bool = False) -> int:
        end = await self._resolved(self._options.ending, view, clipped=so_far)
        return view.log_end_offset or 0 if end is None else end

    def _check_partitions(self, side: str, bound: Bound, views: Views) -> None:
        """As in Spark's source, `bound` names all partitions or none, so that none is forgotten.

        It may name an empty partition that the archive does not know: Spark's source requires it.
        """
        if not bound.by_partition:
            return
        by_time = "ByTimestamp" if bound.kind is BoundKind.TIMESTAMPS else ""
        name = f"{side}Offsets{by_time}"
        missing = sorted(set(views) - set(bound.by_partition))
        if missing:
            raise ConfigError(f"remotelog: {name} names partitions, but not {missing[0]}")
        topics = {topic for topic, _ in self._known}
        for key in sorted(set(bound.by_partition) - set(views)):
            if not self._options.topics.includes(*key) or key[0] not in topics:
                raise ConfigError(f"remotelog: {name} names {key}, which is not chosen")
            offsets = bound.by_partition[key]
            if bound.kind is not BoundKind.TIMESTAMPS and offsets not in (EARLIEST, LATEST, 0):
                raise ConfigError(
                    f"remotelog: {name} names offset {offsets} of {key}, which has no archived "
                    "records"
                )

    async def _resolved(
        self, bound: Bound, view: PartitionView, *, clipped: bool = False
    ) -> int | None:
        """The offset of `bound`. None: its timestamp is after the last record."""
        first, last = view.log_start_offset or 0, view.log_end_offset or 0
        bound_offset = bound.by_partition.get((view.tp.topic, view.tp.partition), bound.everywhere)
        if bound.kind is BoundKind.EARLIEST:
            return first
        if bound.kind is BoundKind.LATEST:
            return last
        if bound.kind is BoundKind.TIMESTAMPS:
            assert bound_offset is not None, "checked before"
            return await self._first_offset_at(view, bound_offset)
        if bound_offset is None:
            return (
                last if bound is self._options.ending else first
            )  # the partition appeared later in a stream
        if bound_offset in (EARLIEST, LATEST):
            return first if bound_offset == EARLIEST else last
        if not first <= bound_offset <= last and self._options.fail_on_data_loss and not clipped:
            raise DataLoss(
                f"{view.tp}: offset {bound_offset} is not in the archive, which has {first} to "
                f"{last - 1}; with failOnDataLoss=false reading begins or ends there"
            )
        return min(max(bound_offset, first), last)

    async def _first_offset_at(self, view: PartitionView, timestamp_ms: int) -> int | None:
        """The first archived offset with this timestamp or later, as a broker's ListOffsets."""
        index = view.index_at_or_after_timestamp(timestamp_ms)
        while index is not None:
            segment = view.segments[index]
            from_offset = max(segment.start_offset, view.raised_log_start)
            first_offset = await self._first_in_segment(segment, timestamp_ms, from_offset)
            if first_offset is not None:
                return first_offset
            index = view.index_at_or_after_timestamp(timestamp_ms, index + 1)
        return None

    async def _first_in_segment(
        self, segment: RemoteLogSegmentMetadata, timestamp_ms: int, from_offset: int
    ) -> int | None:
        key = self._rsm.object_key(segment, SegmentFile.LOG)
        max_s = self._options.read_max_ms / 1000
        read_index = partial(self._rsm.fetch_index, segment, SegmentFile.INDEX)
        raw = await with_retries(f"the index of {key}", read_index, max_s)
        for span in RemoteLogIndex.parse(raw).spans():
            if span.max_timestamp_ms < timestamp_ms or span.last_offset < from_offset:
                continue
            if span.first_offset > segment.end_offset:
                break
            byte_range = ByteRange(span.position, span.end)
            data = await with_retries(
                f"{key}, bytes {span.position} to {span.end}",
                partial(self._rsm.fetch_log_segment, segment, byte_range),
                max_s,
            )
            try:
                hits = (
                    first_record_at_or_after(data, h, timestamp_ms, from_offset) for h in walk(data)
                )
                first_offset = next((hit[0] for hit in hits if hit is not None), None)
            except WireError as error:
                raise CorruptSegment(f"{key}, byte {span.position} ff.: {error}") from error
            if first_offset is not None:
                return first_offset if first_offset <= segment.end_offset else None
        return None


def _last_incarnations(views: Iterable[PartitionView]) -> Views:
    """Of topics with one name, keeps the one archived last, as archive-only serving does. A
    partition of which no segment's metadata can be read is not an empty one.
    """
    archived_views = [view for view in views if view.segments or view.unreadable]
    newest: dict[str, tuple[int, bytes]] = {}
    for view in archived_views:
        at_ms = view.segments[-1].event_timestamp_ms if view.segments else -1
        order = (at_ms, view.tp.topic_id.bytes)
        newest[view.tp.topic] = max(order, newest.get(view.tp.topic, order))
    return {
        (view.tp.topic, view.tp.partition): view
        for view in archived_views
        if newest[view.tp.topic][1] == view.tp.topic_id.bytes
    }


def _topic_partitions(tps: Iterable[TopicIdPartition]) -> frozenset[TopicPartition]:
    return frozenset((tp.topic, tp.partition) for tp in tps)


def plan_input(options: SourceOptions) -> list[Selection]:
    """The offsets to read of all chosen partitions. Blocking.

    Raises ConfigError, also for a topic that is not in the archive; DataLoss,
    RemoteStorageError, CorruptSegment.
    """

    async def planned() -> list[Selection]:
        async with ArchiveReading(options, once=True) as reading:
            views = await reading.views()
            reading.check_topics()
            return await reading.selections(views)

    return asyncio.run(planned())


def tasks_of(options: SourceOptions, selections: Iterable[Selection]) -> list[ReadTask]:
    return plan_tasks(
        selections,
        partition_bytes_max=options.partition_bytes_max,
        partitions_min=options.partitions_min,
        records_max=options.partition_records_max,
    )


@dataclass(frozen=True, slots=True)
class _Position:
    """`ids`: topic ids by topic; a topic may lack its id."""

    ends: NextOffsets
    ids: Mapping[str, str]

    def encode(self) -> StreamOffset:
        document: StreamOffset = {**json_offsets(self.ends)}
        for topic in document.keys() & self.ids.keys():
            document[topic] = {**document[topic], _TOPIC_ID: self.ids[topic]}
        return document

    @classmethod
    def decode(cls, offset: StreamOffset) -> _Position:
        ids = {
            topic: partitions[_TOPIC_ID]
            for topic, partitions in offset.items()
            if _TOPIC_ID in partitions
        }
        ends = {
            topic: {key: end for key, end in partitions.items() if key != _TOPIC_ID}
            for topic, partitions in offset.items()
        }
        return cls(parse_offsets(ends), ids)

    def without(self, topics: Collection[str]) -> _Position:
        """Reading of `topics` has not begun."""
        ends = {key: end for key, end in self.ends.items() if key[0] not in topics}
        ids = {topic: topic_id for topic, topic_id in self.ids.items() if topic not in topics}
        return _Position(ends, ids)


class FollowedArchive:
    """The archive of one running stream, read again for each micro-batch. Blocking.

    The caller has to `close` it when the query ends.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._reading = ArchiveReading(options)
        self._loop = LoopThread("archive", self._reading)
        self._views: Views = {}
        self._read_up_to = _Position({}, {})
        # Set for a query with availableNow: it ends at these offsets.
        self._last_ends: NextOffsets | None = None
        self._batch_at: float | None = None

    def initial(self) -> StreamOffset:
        """The offsets at which a new query begins. Raises ConfigError for an unknown topic."""
        self._refresh_views()
        self._reading.check_topics()
        starts = self._loop.done(self._reading.starts(self._views))
        if self._options.starting.kind is BoundKind.EARLIEST:
            # The first segments may be lost: then the archive begins too late.
            below = [(self._views[tp], OffsetSpan(0, start)) for tp, start in starts.items()]
            self._loop.done(self._reading.check_no_loss(below))
        self._read_up_to = self._position(starts)
        return self._read_up_to.encode()

    def stop_at_current_ends(self) -> None:
        self._last_ends = self._ends()

    def latest(
        self, start: StreamOffset | None = None, *, apply_batch_limits: bool = False
    ) -> StreamOffset:
        """The archive's current ends; never below `start` (None: the end of the last batch) unless
        the archive was truncated or a topic made again, and `failOnDataLoss` is false.

        `apply_batch_limits`: the options' limits for one batch apply. Raises DataLoss.
        """
        before = self._read_up_to if start is None else _Position.decode(start)
        ends = dict(self._ends())
        if self._last_ends is not None:
            ends = {
                k: min(end, self._last_ends[k]) for k, end in ends.items() if k in self._last_ends
            }
        starts = dict(before.without(self._recreated_topics(before)).ends)
        for key, offset in list(starts.items()):
            if (end := self._truncated_to(key, offset)) is not None:
                starts[key] = ends[key] = end
            else:
                ends[key] = max(offset, ends.get(key, offset))
        if not apply_batch_limits:
            return self._position(ends, before).encode()
        new_starts = first_new_offsets(self._views, starts, ends)
        if self._must_wait(sum(ends[key] - begin for key, begin in new_starts.items())):
            return self._position(starts, before).encode()
        trigger = self._options.trigger
        return self._position(
            ends_within_limits(self._views, new_starts, ends, trigger), before
        ).encode()

    def ends_at_last_read(self) -> StreamOffset:
        """The archive's ends at the last look, for the query's progress."""
        ends = {key: view.log_end_offset or 0 for key, view in self._views.items()}
        return self._position(ends).encode()

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[ReadTask]:
        """Raises DataLoss if the archive lacks an offset between `start` and `end`."""
        end_position = _Position.decode(end)
        before = _Position.decode(start)
        others = {t for t, known in before.ids.items() if end_position.ids.get(t, known) != known}
        new_starts = before.without(others).ends
        views = self._views
        if any(
            key not in views or (views[key].log_end_offset or 0) < e
            for key, e in end_position.ends.items()
        ):
            views = self._refresh_views()
        ends = end_position.without(self._recreated_topics(end_position)).ends
        selections: list[Selection] = []
        for key, offset_end in ends.items():
            if key not in views:
                if new_starts.get(key, offset_end) < offset_end and self._options.fail_on_data_loss:
                    raise DataLoss(f"{key[0]}-{key[1]} is not in the archive any more")
                continue
            view = views[key]
            first = view.log_start_offset or 0
            span = OffsetSpan(new_starts.get(key, first), offset_end)
            if span.start < span.end and self._options.fail_on_data_loss:
                _check_ends(view, span, first)
            selections.append((view, span))
        self._loop.done(self._reading.check_no_loss(selections))
        self._read_up_to = end_position
        return tasks_of(self._options, selections)

    def _position(self, ends: NextOffsets, before: _Position | None = None) -> _Position:
        """With the ids of the last look, or of `before` for topics that it did not find."""
        ids = dict(before.ids) if before is not None else {}
        return _Position(ends, {**ids, **_ids(self._views)})

    def _recreated_topics(self, position: _Position) -> set[str]:
        """The topics that are other ones in the archive now. Raises DataLoss."""
        now = _ids(self._views)
        recreated = {t for t, known in position.ids.items() if now.get(t, known) != known}
        for topic in sorted(recreated):
            message = (
                f"topic {topic} was deleted and recreated: its id was {position.ids[topic]}, and "
                f"is {now[topic]}"
            )
            if self._options.fail_on_data_loss:
                raise DataLoss(
                    f"{message}; start a query with a new checkpoint, or with "
                    "failOnDataLoss=false this one continues at the start of the new topic"
                )
            log.warning(
                "archived_data_lost", error=message, hint="fetchproxy verify names what is missing"
            )
        return recreated

    def _truncated_to(self, key: TopicPartition, offset: int) -> int | None:
        """The archive's end, if it lies below `offset`, up to which was read. Raises DataLoss.

        Metadata that cannot be read, or files that are older than the store, prove nothing.
        """
        view = self._views.get(key)
        if view is None or view.unreadable or self._options.metadata_cache_dir is not None:
            return None
        end = view.log_end_offset or 0
        if end >= offset:
            return None
        message = (
            f"{view.tp}: offsets {end} to {offset - 1} were read and are not in the archive any "
            f"more, which ends at {end - 1}: the log was truncated, or segments are lost"
        )
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{message}; with failOnDataLoss=false reading continues at {end}")
        log.warning(
            "archived_data_lost", error=message, hint="fetchproxy verify names what is missing"
        )
        return end

    def close(self) -> None:
        self._loop.close()

    def _refresh_views(self) -> Views:
        self._views = self._loop.done(self._reading.views())
        return self._views

    def _ends(self) -> NextOffsets:
        return self._loop.done(self._reading.ends(self._refresh_views()))

    def _must_wait(self, new: int) -> bool:
        """True: the batch waits for more offsets. `new`: the number of new offsets.

        As in Spark's Kafka source, the first batch does not wait. A query with an end does not
        wait either: the offsets would never come.
        """
        limits, now = self._options.trigger, self._loop.time()
        if not limits.offsets_min or self._last_ends is not None:
            return False
        due = self._batch_at is None or now - self._batch_at >= limits.delay_max_ms / 1000
        if not due and new < limits.offsets_min:
            return True
        self._batch_at = now
        return False


def _ids(views: Views) -> dict[str, str]:
    return {topic: str(view.tp.topic_id) for (topic, _), view in views.items()}


def _check_ends(view: PartitionView, span: OffsetSpan, first: int) -> None:
    """Raises DataLoss if `span` is gone: an earlier batch planned it or read up to it."""
    end = view.log_end_offset or 0
    if span.start < first:
        raise DataLoss(
            f"{view.tp}: offset {span.start} is not in the archive any more, which begins at "
            f"{first}; with failOnDataLoss=false reading continues there"
        )
    if span.end > end:
        raise DataLoss(
            f"{view.tp}: offset {span.end - 1} is not in the archive any more, which ends at "
            f"{end - 1}; {SKIPPED_RECORDS}"
        )
