"""Deletes from the archive: step 1 of KIP-405's RemoteLogManager, for a partition's leader.

A retention step that would hide much of a partition at once is announced first and done later,
because a mistyped retention or a wrong clock shows only in how much a step would hide. So a step of
more than STEP_SHARE_MAX is announced, in the store too. It is done after its grace, unless
retention computed anew would not take it by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from uuid import UUID

import structlog
from cachetools import TTLCache

from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.errors import (
    CorruptSegment,
    ObjectNotFound,
    ObjectNotReadable,
    RangeNotSatisfiable,
    RemoteStorageError,
    SegmentLocked,
)
from fetchproxy.metadata.partition_ends import may_be_missed
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import (
    ByteRange,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.observability import metrics
from fetchproxy.observability.health import Kind
from fetchproxy.observability.logs import utc_text
from fetchproxy.runtime.retrying import within
from fetchproxy.segments.json_fields import INT64_LIMIT, JsonFields, decode_document, json_document
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.watched_store import FAILING_IN_A_ROW_MAX
from fetchproxy.writing.deletion.orphans import (
    Objects,
    Segments,
    delete_orphans,
    find_orphans,
    holders,
    in_other_segments,
    is_worthless,
    log_offsets_of,
)
from fetchproxy.writing.deletion.retention import (
    UNLIMITED,
    ClockWitness,
    Removals,
    Retention,
    SteadyClock,
    counted_bytes,
    effective_retention,
    plan_removals,
    retained_from,
    segments_kept,
    stopped_by,
)
from fetchproxy.writing.deletion.segment_deletion import SegmentDeletion, is_hidden
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.published_conditions import PublishedConditions

log = structlog.get_logger(__name__)

# Steady retention hides a few of many segments; a typo, or a clock weeks ahead, hides nearly all.
STEP_SHARE_MAX = 0.5
# Older ones do not count: their settings are forgotten. A weekly `archive --once` finds its own.
FORGOTTEN_AFTER_GRACES = 30
_VERSION = 1
# A check counts this long, so that twenty replaced segments need only one check of their
# replacement. Less than `retention_grace_ms`, so segments that were checked before hiding are
# checked again before deletion.
LOOK_LASTS_S = 60.0
_REMEMBERED_MAX = 10_000
# The index of a segment of 64 MiB. Parsing a larger one would hold the loop for a noticeable time.
_PARSED_INLINE_BYTES_MAX = 128 * 1024
# A turn leaves the rest to the next one after this time (s): the copies need the slow store too.
_TURN_ENOUGH_S = 5.0
_GAUGES = (
    metrics.REMOTE_DELETE_LAG_BYTES,
    metrics.REMOTE_DELETE_LAG_SEGMENTS,
    metrics.REMOTE_LOG_METADATA_COUNT,
    metrics.REMOTE_LOG_SIZE_BYTES,
)


@dataclass(frozen=True, slots=True)
class Announcement:
    """Retention was about to hide all offsets below `offset`, at `at_ms` (epoch ms)."""

    offset: int
    at_ms: int


def hidden_share(view: PartitionView, start: int) -> float:
    """The share of the partition's bytes in segments below `start`."""
    sizes = [(segment.end_offset < start, size) for segment, size in counted_bytes(view)]
    total = sum(size for _, size in sizes)
    return sum(size for below, size in sizes if below) / total if total > 0 else 0.0


def plan_step(
    view: PartitionView,
    start: int | None,
    announced: Announcement | None,
    now_ms: int,
    grace_ms: int,
    *,
    doubtful: bool = False,
) -> int | Announcement | None:
    """The new log start; or the announcement that waits; or None: nothing to do. `start`: the first
    offset that retention keeps now. None: it deletes nothing. `doubtful`: announce even a small
    step.
    """
    small = start is not None and hidden_share(view, start) <= STEP_SHARE_MAX and not doubtful
    if start is None or grace_ms == 0 or small:
        return start
    # An announcement from the future does not count: the clock was wrong.
    counts = announced is not None and 0 <= now_ms - announced.at_ms < (
        FORGOTTEN_AFTER_GRACES * grace_ms
    )
    if announced is None or not counts or announced.offset <= view.raised_log_start:
        return Announcement(start, now_ms)
    announced = replace(announced, offset=min(announced.offset, start))
    return announced if now_ms - announced.at_ms < grace_ms else announced.offset


@dataclass(eq=False, repr=False)
class RetentionBrake:
    """Announces a step of retention that would hide much at once, and releases it later. One for
    all partitions. Each method raises RemoteStorageError.
    """

    objects: ArchiveObjects
    published_conditions: PublishedConditions
    grace_ms: Callable[[], int]

    def __post_init__(self) -> None:
        # Only the partition's leader writes it, so the last value read or written is current.
        self._known: dict[TopicIdPartition, Announcement | None] = {}

    async def released(
        self, view: PartitionView, start: int | None, now_ms: int, *, doubtful: bool
    ) -> int | None:
        """The log start that retention may raise to now. None: there is nothing to do, or the step
        was announced and still waits. Call `done` after the step.
        """
        announced = await self._announced(view.tp)
        step = plan_step(view, start, announced, now_ms, self.grace_ms(), doubtful=doubtful)
        if isinstance(step, Announcement):
            await self._announce(view, step)
            return None
        if step is None:
            await self.done(view.tp)
        return step

    async def done(self, tp: TopicIdPartition) -> None:
        """The step was made or is withdrawn: delete the announcement."""
        if self._known.get(tp) is not None:
            await self.objects.delete_retention_step(tp)
        self._known[tp] = None
        self.published_conditions.release(Kind.RETENTION_STEP_ANNOUNCED, tp)

    def forget(self, tp: TopicIdPartition) -> None:
        """Another archiver, or none, manages the partition from now on."""
        self._known.pop(tp, None)
        self.published_conditions.forget(tp, Kind.RETENTION_STEP_ANNOUNCED)

    async def _announced(self, tp: TopicIdPartition) -> Announcement | None:
        if tp not in self._known:
            raw = await self.objects.get_retention_step(tp)
            self._known[tp] = None
            try:
                if raw is not None:
                    step = decode_document(raw, "retention-step", _VERSION, _announcement)
                    self._known[tp] = step
            except CorruptSegment as error:  # the step is announced anew
                log.warning("announced_retention_unreadable", topic=tp.topic, error=str(error))
        return self._known[tp]

    async def _announce(self, view: PartitionView, announced: Announcement) -> None:
        tp = view.tp
        if self._known.get(tp) != announced:
            await self.objects.put_retention_step(tp, encode_announcement(tp, announced))
            self._known[tp] = announced
        percent = round(100 * hidden_share(view, announced.offset))
        due = utc_text(announced.at_ms + self.grace_ms())
        self.published_conditions.hold(
            Kind.RETENTION_STEP_ANNOUNCED,
            tp,
            f"{tp}: retention will hide {percent} % of the archive, all below offset "
            f"{announced.offset}, at {due}; to stop it, correct the retention or the clock "
            "before then",
            (view.log_start_offset or 0, announced.offset - 1),
            log_start_offset=announced.offset,
            percent=percent,
            due=due,
        )


def encode_announcement(tp: TopicIdPartition, announced: Announcement) -> bytes:
    """{"version": 1, "topic": "orders", "partition": 0, "offset": 100, "announced_at_ms": …}"""
    fields = {
        "version": _VERSION,
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": announced.offset,
        "announced_at_ms": announced.at_ms,
    }
    return json_document(fields)


def _announcement(fields: JsonFields) -> Announcement:
    return Announcement(
        fields.integer("offset", 0, INT64_LIMIT), fields.integer("announced_at_ms", 0, INT64_LIMIT)
    )


class SegmentProbe:
    """Checks that segments are in the store as their metadata say, before the segments that they
    replace go. Each part that deletes has one.

    Metadata say what was copied. A lifecycle rule, a person or a mistyped prefix may remove objects
    but leave their metadata, and a listing may be old. So the checks request the objects in small
    reads. They do not read the records: `verify` does.
    """

    def __init__(self, rsm: RemoteStorageManager) -> None:
        self._rsm = rsm
        self._sound: TTLCache[UUID, bool] = TTLCache(
            _REMEMBERED_MAX, LOOK_LASTS_S, timer=lambda: asyncio.get_running_loop().time()
        )

    async def damage(self, segments: Iterable[RemoteLogSegmentMetadata]) -> str | None:
        """The damage of the first damaged segment, if any. Raises RemoteStorageError, also for a
        segment that the store or its key does not give out now: it may be the only one.
        """
        for segment in segments:
            if segment.segment_id.id not in self._sound:
                if segment_damage := await self._damage(segment):
                    return segment_damage
                self._sound[segment.segment_id.id] = True
        return None

    async def only_metadata_left(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether only metadata of a deleted segment are left: its archiver recorded it as finished
        after the deletion, from a pause or by a late request. Raises RemoteStorageError if unknown.
        """
        for fetched in (
            partial(self._rsm.fetch_log_segment, segment, ByteRange(0, 1)),
            partial(self._rsm.fetch_index, segment, SegmentFile.INDEX),
            partial(self._rsm.fetch_index, segment, SegmentFile.EPOCHS),
        ):
            try:
                await fetched()
            except ObjectNotFound:
                continue
            except (RangeNotSatisfiable, CorruptSegment):
                pass
            return False
        return True

    async def _damage(self, segment: RemoteLogSegmentMetadata) -> str | None:
        file = SegmentFile.LOG
        try:
            if wrong := await self._wrong_size(segment):
                return f"{self._rsm.object_key(segment, file)} {wrong}"
            file = SegmentFile.INDEX
            raw = await self._rsm.fetch_index(segment, file)
            if len(raw) <= _PARSED_INLINE_BYTES_MAX:
                index = RemoteLogIndex.parse(raw)
            else:
                index = await asyncio.to_thread(RemoteLogIndex.parse, raw)
            index.check_covers(segment.stored_end_offset, segment.segment_size_bytes)
            file = SegmentFile.TXN
            await self._rsm.fetch_index(segment, file)
        except ObjectNotFound:
            return f"{self._rsm.object_key(segment, file)} is missing"
        except (ObjectNotReadable, SegmentLocked):
            raise
        except CorruptSegment as error:
            return f"{self._rsm.object_key(segment, file)}: {error}"
        return None

    async def _wrong_size(self, segment: RemoteLogSegmentMetadata) -> str | None:
        """Requests the last byte and the byte after it: only the last one may exist."""
        size = segment.segment_size_bytes
        try:
            tail = await self._rsm.fetch_log_segment(segment, ByteRange(max(size - 1, 0), size + 1))
        except RangeNotSatisfiable:
            return f"is shorter than the {size} bytes of its metadata"
        return None if len(tail) == 1 else f"is longer than the {size} bytes of its metadata"


@dataclass(slots=True)
class _Partition:
    due_at: float = float("-inf")  # loop time
    orphans_due_at: float = float("-inf")
    # Segment id -> its objects without metadata, and the loop time since which they are unchanged.
    # The loop's clock counts, because stores' clocks differ: a restart begins anew, so no early
    # deletion.
    orphans: dict[UUID, tuple[frozenset[tuple[str, str]], float]] = field(default_factory=dict)
    orphan_kept: bool = False  # by the last look, because its replacement is damaged
    failed: set[UUID] = field(default_factory=set)  # segments for which the store failed last time

    def old_orphans(
        self, objects_by_id: Mapping[UUID, Objects], now: float, age_min_s: float
    ) -> list[UUID]:
        """The ids of those orphans whose objects have not changed for `age_min_s`.

        `objects_by_id`: all orphans of now.
        """
        before, self.orphans = self.orphans, {}
        for segment_id, objects in objects_by_id.items():
            versions = frozenset((o.key, o.version) for o in objects.values())
            previous = before.get(segment_id)
            self.orphans[segment_id] = (
                previous if previous and previous[0] == versions else (versions, now)
            )
        return [s for s, (_, since) in self.orphans.items() if now - since >= age_min_s]


@dataclass(eq=False, repr=False)
class Expirer:
    """Deletes from the archive what retention has passed, and what no reader needs. One for all
    partitions. `topic_config`: a topic's settings as last read. None: not known.

    The order keeps every reader safe, and a crash may follow any step:

    1. a step of retention (`retention`) that would hide much at once is announced before;
    2. the log start is raised and published: from then on no client begins to read below it;
    3. segments below it, stale attempts and spare copies become DELETE_SEGMENT_STARTED;
    4. `retention_grace_ms` after that, by the time stored with it, a segment's objects are deleted,
       then its metadata. If others hold its offsets, those must be seen to be in the store.
    """

    config: ArchiveConfig
    rsm: RemoteStorageManager
    objects: ArchiveObjects
    rlmm: RemoteLogMetadataManager
    _: KW_ONLY
    topic_config: Callable[[UUID], Mapping[str, str] | None]
    wall_clock_ms: Callable[[], int]
    published_conditions: PublishedConditions = field(default_factory=PublishedConditions)
    limits: WritingLimits = WritingLimits()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        self._deletion = SegmentDeletion(self.rsm, self.rlmm, self.wall_clock_ms)
        self._looks = SegmentProbe(self.rsm)
        self._brake = RetentionBrake(
            self.objects,
            self.published_conditions,
            lambda: self.config.retention_step_grace_ms,
        )
        self._witness = ClockWitness()
        self._clock = SteadyClock(self.wall_clock_ms, self.limits.retention_clock_settle_ms)
        self._partitions: dict[TopicIdPartition, _Partition] = {}

    async def expire(self, tp: TopicIdPartition) -> bool:
        """Do some of the deletions that are due. True: more are due. Raises RemoteStorageError."""
        loop = asyncio.get_running_loop()
        now_ms = self._clock.now_ms(loop.time())
        partition = self._partitions.setdefault(tp, _Partition())
        if now_ms is None or loop.time() < partition.due_at:
            return False
        wait_s = await self._turn(tp, now_ms)
        if loop.time() >= partition.orphans_due_at:
            async with within(self.config.copy_max_ms / 1000, f"search for orphans of {tp}"):
                await self._sweep(tp, partition)
        partition.due_at = min(loop.time() + wait_s, partition.orphans_due_at)
        return wait_s <= 0

    async def delete_all_due(self, tp: TopicIdPartition) -> None:
        """Delete everything that may be deleted under any retention. Raises RemoteStorageError."""
        loop = asyncio.get_running_loop()
        while (now_ms := self._clock.now_ms(loop.time())) is not None:
            view = await self.rlmm.refresh(tp, loop.time())
            if await self._remove(view, now_ms) > 0:
                return

    def forget(self, tp: TopicIdPartition) -> None:
        """Another archiver, or none, manages the partition from now on."""
        self.published_conditions.forget(
            tp,
            Kind.REPLACED_SEGMENT_KEPT,
            Kind.RETENTION_CLOCK_DOUBTED,
            Kind.RETENTION_HELD_UP,
        )
        self._brake.forget(tp)
        self._witness.forget(tp)
        if self._partitions.pop(tp, None) is not None:
            for gauge in _GAUGES:
                gauge.remove(tp.topic, tp.partition)

    async def _turn(self, tp: TopicIdPartition, now_ms: int) -> float:
        """Returns the time until the next turn (s)."""
        view = await self.rlmm.refresh(tp, asyncio.get_running_loop().time())
        topic_config = self.topic_config(tp.topic_id)
        retention = effective_retention(self.config, tp.topic, topic_config)
        if topic_config is None and view.history.compacted is not None:
            retention = Retention()  # perhaps it is compacted still
        start, doubtful = await self._retained_from(view, retention, now_ms)
        start = await self._brake.released(view, start, now_ms, doubtful=doubtful)
        if start is not None:
            view = await self.rlmm.raise_log_start_offset(tp, start)
            log.info("log_start_raised", **tp.logged, log_start_offset=start)
            await self._brake.done(tp)
        return await self._remove(view, now_ms)

    async def _retained_from(
        self, view: PartitionView, retention: Retention, now_ms: int
    ) -> tuple[int | None, bool]:
        """(the first offset that retention keeps, None for all; whether the clock is doubted)."""
        self._witness.note(view, now_ms)
        start = retained_from(view, retention, now_ms)
        self._look_for_future(view, start, retention.remote_ms, now_ms)
        by_bytes = retained_from(view, replace(retention, remote_ms=UNLIMITED), now_ms)
        doubt = None
        if start != by_bytes and self.config.retention_step_grace_ms > 0:
            doubt = self._witness.doubt(now_ms, await self.objects.store_clock_ms())
        if doubt is None or not doubt.sure:
            self.published_conditions.release(Kind.RETENTION_CLOCK_DOUBTED, view.tp)
            return start, doubt is not None
        sentence = f"{view.tp}: retention by time waits, as {doubt.what}; correct the clock"
        self.published_conditions.hold(Kind.RETENTION_CLOCK_DOUBTED, view.tp, sentence)
        return by_bytes, False

    def _look_for_future(
        self, view: PartitionView, start: int | None, age_max_ms: int, now_ms: int
    ) -> None:
        segment = stopped_by(segments_kept(view, start), age_max_ms, now_ms)
        if segment is None:
            self.published_conditions.release(Kind.RETENTION_HELD_UP, view.tp)
            return
        self.published_conditions.hold(
            Kind.RETENTION_HELD_UP,
            view.tp,
            f"{view.tp}: time-based retention has stopped at offsets {segment.start_offset} to "
            f"{segment.end_offset}: a record there has the timestamp "
            f"{utc_text(segment.max_timestamp_ms)}, and nothing after it is deleted by time "
            f"before {utc_text(segment.max_timestamp_ms + age_max_ms)}; DeleteRecords below "
            f"offset {segment.end_offset + 1} through the proxy deletes it, and "
            "archive.remote_log_retention_bytes passes it over",
            (segment.start_offset, segment.end_offset),
        )

    async def _remove(self, view: PartitionView, now_ms: int) -> float:
        """Hide and delete some segments. `view` was just read. Returns the time until more (s)."""
        tp = view.tp
        segments = self.rlmm.list_remote_log_segments(tp)
        metrics.REMOTE_LOG_METADATA_COUNT.labels(tp.topic, str(tp.partition)).set(len(segments))
        removals = plan_removals(
            segments,
            view,
            now_ms=now_ms,
            grace_ms=self.config.retention_grace_ms,
            # Twice the longest copy: another archiver may be at it, with a clock of its own.
            attempt_age_max_ms=2 * self.config.copy_max_ms,
        )
        visits, done = await self._do(tp, removals)
        count = len(removals.hide) + len(removals.delete)
        managed = self._partitions.get(tp)
        if count == visits == done and not (managed and managed.orphan_kept):
            # Every removal was checked and done: earlier damage is mended.
            self.published_conditions.release(Kind.REPLACED_SEGMENT_KEPT, tp)
        undeleted = removals.delete[max(0, visits - len(removals.hide)) :]
        self._publish(view, (*removals.hide, *removals.waiting, *undeleted))
        if done and visits < count:
            return 0.0
        waits_ms = [self.limits.retention_check_interval_ms]
        if done and removals.hide:
            waits_ms.append(self.config.retention_grace_ms)
        if removals.next_at_ms is not None:
            waits_ms.append(removals.next_at_ms - now_ms)
        return min(waits_ms) / 1000

    async def _do(self, tp: TopicIdPartition, removals: Removals) -> tuple[int, int]:
        """(number checked, number done). Stops early if it takes long, because copying waits.

        If the store fails for a segment, the others are done before its error is raised, and come
        first in the next turn, unless so many fail in a row that the store itself fails.
        """
        loop = asyncio.get_running_loop()
        enough_at = loop.time() + _TURN_ENOUGH_S
        visits = done = in_a_row = 0
        first: RemoteStorageError | None = None
        failed = self._partitions.setdefault(tp, _Partition()).failed
        segments = (*removals.hide, *removals.delete)
        failed &= {segment.segment_id.id for segment in segments}
        for segment in sorted(segments, key=lambda segment: segment.segment_id.id in failed):
            if done >= self.limits.retention_deletes_per_turn_max or loop.time() > enough_at:
                break
            step = self._delete if is_hidden(segment) else self._hide
            operation = f"{step.__name__} of a segment of {tp}"
            try:
                # A store that hangs must not hold up the partition's copies for ever.
                async with within(self.config.copy_max_ms / 1000, operation):
                    done += await self._do_one(step, segment, removals)
            except RemoteStorageError as error:
                metrics.REMOTE_DELETE_ERRORS.labels(tp.topic).inc()
                failed.add(segment.segment_id.id)
                first, in_a_row = first or error, in_a_row + 1
                if in_a_row >= FAILING_IN_A_ROW_MAX:
                    break
                continue
            failed.discard(segment.segment_id.id)
            in_a_row = 0
            visits += 1
        if first is not None:
            raise first
        return visits, done

    async def _do_one(
        self,
        step: Callable[[RemoteLogSegmentMetadata], Awaitable[None]],
        segment: RemoteLogSegmentMetadata,
        removals: Removals,
    ) -> bool:
        """False: the segment stays, because no sound segment has its offsets. A condition
        says so.
        """
        stand_ins = removals.replacements.get(segment.segment_id.id, ())
        damage = await self._looks.damage([segment] if stand_ins is None else stand_ins)
        # Without stand-ins it may go only if it is damaged itself.
        if (damage is not None) == (stand_ins is None):
            await step(segment)
            return True
        reason = f"its replacement is damaged ({damage})"
        if stand_ins is None:
            reason = "it is undamaged, and no other segment has all of its offsets"
        for other in stand_ins or ():
            if await self._is_word_alone(other):
                await self._hide(other)
                return True
        tp = segment.topic_id_partition
        self.published_conditions.hold(
            Kind.REPLACED_SEGMENT_KEPT,
            tp,
            f"{tp}: the segment {segment.segment_id.id} with offsets {segment.start_offset} to "
            f"{segment.end_offset} is not deleted: {reason}; run fetchproxy verify",
            (segment.start_offset, segment.end_offset),
        )
        return False

    async def _is_word_alone(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether readers get the segment without objects, although whole ones have its offsets."""
        tp = segment.topic_id_partition
        view = self.rlmm.view(tp)
        if view is None or not await self._looks.only_metadata_left(segment):
            return False
        others = in_other_segments(segment, self.rlmm.list_remote_log_segments(tp), view)
        return others is not None and await self._looks.damage(others) is None

    async def _hide(self, segment: RemoteLogSegmentMetadata) -> None:
        if await self._unless_overtaken(segment, self._deletion.hide(segment)):
            end_offset, state = segment.end_offset, segment.state.name
            log.info("segment_hidden", **segment.logged, end_offset=end_offset, state=state)

    async def _delete(self, segment: RemoteLogSegmentMetadata) -> None:
        metrics.REMOTE_DELETE_REQUESTS.labels(segment.topic_id_partition.topic).inc()
        if await self._unless_overtaken(segment, self._deletion.delete(segment)):
            end_offset, size = segment.end_offset, segment.segment_size_bytes
            log.info("segment_deleted", **segment.logged, end_offset=end_offset, size_bytes=size)

    @staticmethod
    async def _unless_overtaken(segment: RemoteLogSegmentMetadata, step: Awaitable[None]) -> bool:
        try:
            await step
        except ValueError as error:
            # Another archiver that leads, or has led until now, was faster. The next look shows it.
            log.info("segment_deleted_by_another", **segment.logged, error=str(error))
            return False
        return True

    async def _sweep(self, tp: TopicIdPartition, partition: _Partition) -> None:
        """Delete orphans. Their age is known only from a second look on."""
        now = asyncio.get_running_loop().time()
        orphans = await find_orphans(self.objects, self.rlmm, tp)
        view = await self.rlmm.refresh(tp, now)
        worthless = {i: o for i, o in orphans.items() if is_worthless(self.rsm, view, o)}
        age_min_s = self.limits.orphan_age_min_ms / 1000
        old = partition.old_orphans(worthless, now, age_min_s)
        partition.orphan_kept = False
        deletable = [i for i in old if await self._may_go(view, worthless[i], partition)]
        await delete_orphans(self.objects, tp, [worthless[segment_id] for segment_id in deletable])
        had_metadata = any(
            SegmentFile.METADATA in worthless[segment_id] for segment_id in deletable
        )
        if had_metadata and may_be_missed(len(view.segments)):
            await self.objects.put_past_changed(tp)  # for archive-only, which knew the attempt
        interval_s = self._orphan_check_interval_s(len(view.segments))
        waits = age_min_s if len(old) < len(worthless) else interval_s
        partition.orphans_due_at = now + min(waits, interval_s)

    def _orphan_check_interval_s(self, segments: int) -> float:
        limits = self.limits
        by_length_ms = segments / limits.orphan_check_segments_per_hour * 3_600_000
        longest_ms = max(limits.orphan_check_interval_ms, limits.orphan_check_interval_max_ms)
        return min(max(limits.orphan_check_interval_ms, by_length_ms), longest_ms) / 1000

    async def _may_go(self, view: PartitionView, objects: Objects, partition: _Partition) -> bool:
        """False if it is the only log with its offsets, or while its replacement is damaged."""
        offsets = await log_offsets_of(self.rsm, objects)
        if offsets is None:
            return True
        replacements = holders(*offsets, view)
        if SegmentFile.METADATA not in objects:
            end = view.log_end_offset
            deleted = offsets[1] < view.raised_log_start
            if replacements is None or (not deleted and (end is None or end <= offsets[1])):
                return False
        damage = await self._looks.damage(replacements or ())
        if damage is not None:
            partition.orphan_kept = True
            self.published_conditions.hold(
                Kind.REPLACED_SEGMENT_KEPT,
                view.tp,
                f"{view.tp}: no metadata names {objects[SegmentFile.LOG].key}, but it is not "
                f"deleted, because the segment with its offsets is damaged: {damage}; run "
                "fetchproxy verify",
                offsets,
            )
        return damage is None

    @staticmethod
    def _publish(view: PartitionView, to_go: Segments) -> None:
        label_values = (view.tp.topic, str(view.tp.partition))
        metrics.REMOTE_DELETE_LAG_SEGMENTS.labels(*label_values).set(len(to_go))
        metrics.REMOTE_DELETE_LAG_BYTES.labels(*label_values).set(
            sum(s.segment_size_bytes for s in to_go)
        )
        metrics.REMOTE_LOG_SIZE_BYTES.labels(*label_values).set(
            sum(size for _, size in counted_bytes(view))
        )
