"""Deletes from the archive: step 1 of KIP-405's RemoteLogManager, for the leader of a partition.

The order keeps every reader safe, and every step may be the last before a crash:
0. what retention would hide of it at once is announced before, if it is much (`retention_step`);
1. the log start is raised and published: from then on nobody begins to read below it;
2. what lies below it, and what nobody can be working on, becomes DELETE_SEGMENT_STARTED;
3. `retention_grace_ms` after that, by the time stored with it, its objects go, then its metadata.
What goes because others hold its offsets goes only while these are seen to be in the store.
It does not decide what retention has passed: that is `retention`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID

import structlog

from fetchproxy.config.archive import ArchiveConfig
from fetchproxy.errors import RemoteStorageError, StorageUnavailable
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.observability.metrics import (
    REMOTE_DELETE_ERRORS,
    REMOTE_DELETE_LAG_BYTES,
    REMOTE_DELETE_LAG_SEGMENTS,
    REMOTE_DELETE_REQUESTS,
    REMOTE_LOG_METADATA_COUNT,
    REMOTE_LOG_SIZE_BYTES,
)
from fetchproxy.remote_log.concerns import ArchiverConcerns, Concern
from fetchproxy.remote_log.retention.clock_witness import ClockWitness
from fetchproxy.remote_log.retention.orphans import (
    Objects,
    OrphanWatch,
    delete_orphans,
    find_orphans,
    is_worthless,
    offsets_held,
)
from fetchproxy.remote_log.retention.plan import (
    Removals,
    counted_bytes,
    plan_removals,
    retained_from,
)
from fetchproxy.remote_log.retention.retention_settings import (
    UNLIMITED,
    Retention,
    effective_retention,
)
from fetchproxy.remote_log.retention.retention_step import RetentionBrake
from fetchproxy.remote_log.retention.segment_looks import SegmentLooks
from fetchproxy.remote_log.retention.spare_copies import Segments, held_by_others, holders
from fetchproxy.remote_log.retention.steady_clock import SteadyClock
from fetchproxy.storage.layout import SegmentFile
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)

State = RemoteLogSegmentState
T = TypeVar("T")
_Step = Callable[[RemoteLogSegmentMetadata], Coroutine[Any, Any, None]]

# After this a turn leaves the rest to the next one: a slow store is shared with the copies.
_TURN_ENOUGH_S = 5.0

_GAUGES = (
    REMOTE_DELETE_LAG_BYTES,
    REMOTE_DELETE_LAG_SEGMENTS,
    REMOTE_LOG_METADATA_COUNT,
    REMOTE_LOG_SIZE_BYTES,
)


@dataclass(slots=True)
class _Partition:
    due_at: float = float("-inf")  # loop time
    orphans_due_at: float = float("-inf")
    orphans: OrphanWatch = field(default_factory=OrphanWatch)
    orphan_kept: bool = False  # by the last look for them, as what replaces it is damaged


@dataclass(slots=True)
class _Turn:
    looked_at: int = 0
    done: int = 0
    kept: int = 0


class Expirer:
    """One for all partitions. `topic_config`: a topic's settings as last read; None: not known."""

    def __init__(
        self,
        config: ArchiveConfig,
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        *,
        topic_config: Callable[[UUID], Mapping[str, str] | None],
        wall_clock_ms: Callable[[], int],
        concerns: ArchiverConcerns | None = None,
        clock_settle_ms: int | None = None,
    ) -> None:
        """`clock_settle_ms`: instead of the configured one, for a pass too short to watch it."""
        self._config = config
        self._rsm = rsm
        self._rlmm = rlmm
        self._topic_config = topic_config
        self._wall_clock_ms = wall_clock_ms
        settle_ms = config.retention_clock_settle_ms if clock_settle_ms is None else clock_settle_ms
        self._concerns = concerns or ArchiverConcerns()
        self._looks = SegmentLooks(rsm)
        self._brake = RetentionBrake(rsm.retention, self._concerns, config.retention_step_grace_ms)
        self._witness = ClockWitness()
        self._clock = SteadyClock(wall_clock_ms, settle_ms)
        self._partitions: dict[TopicIdPartition, _Partition] = {}

    async def expire(self, tip: TopicIdPartition) -> bool:
        """Some of what is due, so that copying goes on; does nothing while nothing is due.

        True: more is due already. Raises RemoteStorageError: the next call goes on where this one
        ended.
        """
        loop = asyncio.get_running_loop()
        now_ms = self._clock.now_ms(loop.time())
        partition = self._partitions.setdefault(tip, _Partition())
        if now_ms is None or loop.time() < partition.due_at:
            return False
        wait_s = await self._turn(tip, now_ms)
        if loop.time() >= partition.orphans_due_at:
            await self._within(self._sweep(tip, partition), f"search for orphans of {tip}")
        partition.due_at = min(loop.time() + wait_s, partition.orphans_due_at)
        return wait_s <= 0

    async def tidy(self, tip: TopicIdPartition) -> None:
        """All that may go now whatever the retention is: copies that others replace, attempts that
        nobody works on, what was hidden before. Raises RemoteStorageError.
        """
        loop = asyncio.get_running_loop()
        while (now_ms := self._clock.now_ms(loop.time())) is not None:
            view = await self._rlmm.refresh(tip, loop.time())
            if await self._remove(tip, view, now_ms) > 0:
                return

    def forget(self, tip: TopicIdPartition) -> None:
        """Another archiver does it from now on, or nobody."""
        self._concerns.forget(tip, Concern.REPLACED_SEGMENT_KEPT, Concern.RETENTION_CLOCK_DOUBTED)
        self._brake.forget(tip)
        if self._partitions.pop(tip, None) is not None:
            for gauge in _GAUGES:
                if (tip.topic, str(tip.partition)) in gauge._metrics:
                    gauge.remove(tip.topic, str(tip.partition))

    async def _turn(self, tip: TopicIdPartition, now_ms: int) -> float:
        """How long until the next one (s)."""
        view = await self._rlmm.refresh(tip, asyncio.get_running_loop().time())
        retention = effective_retention(self._config, tip.topic, self._topic_config(tip.topic_id))
        start, doubtful = await self._retained_from(view, retention, now_ms)
        start = await self._brake.released(tip, view, start, now_ms, doubtful=doubtful)
        if start is not None:
            view = await self._rlmm.raise_log_start_offset(tip, start)
            log.info(
                "log_start_raised", topic=tip.topic, partition=tip.partition, log_start_offset=start
            )
            await self._brake.done(tip)
        return await self._remove(tip, view, now_ms)

    async def _retained_from(
        self, view: PartitionView, retention: Retention, now_ms: int
    ) -> tuple[int | None, bool]:
        """The first offset that retention keeps, None: all; and whether the clock is in doubt.

        By a clock that is wrong for sure nothing goes; by bytes it does.
        """
        self._witness.saw(view)
        start = retained_from(view, retention, now_ms)
        by_bytes = retained_from(view, replace(retention, remote_ms=UNLIMITED), now_ms)
        doubt = None
        if start != by_bytes and self._config.retention_step_grace_ms > 0:
            doubt = self._witness.doubt(now_ms, await self._rsm.retention.store_clock_ms())
        if doubt is None or not doubt.sure:
            self._concerns.release(Concern.RETENTION_CLOCK_DOUBTED, view.tip)
            return start, doubt is not None
        sentence = f"{view.tip}: retention by time waits, as {doubt.what}; set the clock right"
        self._concerns.hold(Concern.RETENTION_CLOCK_DOUBTED, view.tip, sentence)
        return by_bytes, False

    async def _remove(self, tip: TopicIdPartition, view: PartitionView, now_ms: int) -> float:
        """Some of what may go. `view` was just read. How long until more may (s)."""
        segments = self._rlmm.list_remote_log_segments(tip)
        REMOTE_LOG_METADATA_COUNT.labels(tip.topic, str(tip.partition)).set(len(segments))
        removals = plan_removals(
            segments,
            view,
            now_ms=now_ms,
            grace_ms=self._config.retention_grace_ms,
            # The longest copy, twice: another archiver may be at it, by a clock of its own.
            attempt_age_max_ms=2 * self._config.copy_max_ms,
        )
        to_do = [
            *((self._hide, segment) for segment in removals.hide),
            *((self._delete, segment) for segment in removals.delete),
        ]
        turn = await self._do(tip, to_do, removals)
        if turn.looked_at == len(to_do) and not turn.kept:
            self._settle_kept(tip)
        undeleted = removals.delete[max(0, turn.looked_at - len(removals.hide)) :]
        to_go = (*removals.hide, *removals.waiting, *undeleted)
        self._publish(tip, view, to_go)
        if turn.done and turn.looked_at < len(to_do):
            return 0.0
        hidden = turn.done > 0 and bool(removals.hide)
        return self._wait_s(removals, now_ms, hidden=hidden)

    async def _do(
        self,
        tip: TopicIdPartition,
        to_do: Sequence[tuple[_Step, RemoteLogSegmentMetadata]],
        removals: Removals,
    ) -> _Turn:
        """A part of them, where it takes long, as copying waits meanwhile."""
        loop = asyncio.get_running_loop()
        enough_at = loop.time() + _TURN_ENOUGH_S
        turn = _Turn()
        for step, segment in to_do:
            if turn.done >= self._config.retention_deletes_per_turn_max or loop.time() > enough_at:
                break
            try:
                done = await self._within(
                    self._do_one(step, segment, removals), f"{step.__name__} of a segment of {tip}"
                )
            except RemoteStorageError:
                REMOTE_DELETE_ERRORS.labels(tip.topic).inc()
                raise
            turn.looked_at += 1
            turn.done += done
            turn.kept += not done
        return turn

    async def _do_one(
        self, step: _Step, segment: RemoteLogSegmentMetadata, removals: Removals
    ) -> bool:
        """Unless it is the last that has its offsets; then it stays, and that is told."""
        stand_ins = removals.stand_ins.get(segment.segment_id.id, ())
        why = await self._why_kept(segment, stand_ins)
        if why is None:
            await step(segment)
            return True
        for other in stand_ins or ():
            if await self._is_word_alone(other):
                await self._hide(other)
                return True
        tip = segment.topic_id_partition
        self._concerns.hold(
            Concern.REPLACED_SEGMENT_KEPT,
            tip,
            f"{tip}: the segment {segment.segment_id.id} with offsets {segment.start_offset} to "
            f"{segment.end_offset} is not deleted: {why}; run fetchproxy verify",
            (segment.start_offset, segment.end_offset),
        )
        return False

    async def _why_kept(
        self, segment: RemoteLogSegmentMetadata, stand_ins: Segments | None
    ) -> str | None:
        if stand_ins is None:
            whole = await self._looks.damage([segment]) is None
            return "it is whole, and no other has all of its offsets" if whole else None
        damage = await self._looks.damage(stand_ins)
        return None if damage is None else f"of what replaces it {damage}"

    async def _is_word_alone(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Readers get a segment whose objects are gone, though others hold all of its offsets."""
        tip = segment.topic_id_partition
        view = self._rlmm.view(tip)
        if view is None or not await self._looks.only_metadata_left(segment):
            return False
        others = held_by_others(segment, self._rlmm.list_remote_log_segments(tip), view)
        return others is not None and await self._looks.damage(others) is None

    def _settle_kept(self, tip: TopicIdPartition) -> None:
        """All that may go was looked at: what was wrong before is mended."""
        partition = self._partitions.get(tip)
        if partition is None or not partition.orphan_kept:
            self._concerns.release(Concern.REPLACED_SEGMENT_KEPT, tip)

    def _wait_s(self, removals: Removals, now_ms: int, *, hidden: bool) -> float:
        waits_ms = [self._config.retention_check_interval_ms]
        if hidden:
            waits_ms.append(self._config.retention_grace_ms)
        if removals.next_at_ms is not None:
            waits_ms.append(removals.next_at_ms - now_ms)
        return min(waits_ms) / 1000

    async def _within(self, work: Awaitable[T], what: str) -> T:
        """A store that hangs must not hold up the partition's copies for ever."""
        try:
            async with asyncio.timeout(self._config.copy_max_ms / 1000):
                return await work
        except TimeoutError:
            raise StorageUnavailable(
                f"{what}: not done within {self._config.copy_max_ms} ms"
            ) from None

    async def _hide(self, segment: RemoteLogSegmentMetadata) -> None:
        await self._put(segment, State.DELETE_SEGMENT_STARTED)
        log.info(
            "segment_hidden",
            topic=segment.topic_id_partition.topic,
            partition=segment.topic_id_partition.partition,
            segment_id=str(segment.segment_id.id),
            base_offset=segment.start_offset,
            end_offset=segment.end_offset,
            state=segment.state.name,
        )

    async def _delete(self, segment: RemoteLogSegmentMetadata) -> None:
        tip = segment.topic_id_partition
        REMOTE_DELETE_REQUESTS.labels(tip.topic).inc()
        await self._rsm.delete_log_segment_data(segment)
        await self._put(segment, State.DELETE_SEGMENT_FINISHED)
        log.info(
            "segment_deleted",
            topic=tip.topic,
            partition=tip.partition,
            segment_id=str(segment.segment_id.id),
            base_offset=segment.start_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.segment_size_bytes,
        )

    async def _put(self, segment: RemoteLogSegmentMetadata, state: State) -> None:
        try:
            await self._rlmm.put(segment.with_state(state, self._wall_clock_ms()))
        except ValueError as error:
            # Another archiver that leads, or has led until now, was faster: the next look tells.
            log.info(
                "segment_deleted_by_another",
                topic=segment.topic_id_partition.topic,
                partition=segment.topic_id_partition.partition,
                segment_id=str(segment.segment_id.id),
                error=str(error),
            )

    async def _sweep(self, tip: TopicIdPartition, partition: _Partition) -> None:
        """Orphans; their age is known only from a second look on."""
        now = asyncio.get_running_loop().time()
        unnamed = await find_orphans(self._rsm, self._rlmm, tip)
        view = await self._rlmm.refresh(tip, now)
        found = {i: o for i, o in unnamed.items() if is_worthless(self._rsm, view, o)}
        age_min_s = self._config.orphan_age_min_ms / 1000
        old = partition.orphans.old_enough(found, now, age_min_s)
        partition.orphan_kept = False
        gone = [i for i in old if await self._may_go(view, found[i], partition)]
        await delete_orphans(self._rsm, tip, [found[segment_id] for segment_id in gone])
        interval_s = self._config.orphan_check_interval_ms / 1000
        waits = age_min_s if len(old) < len(found) else interval_s
        partition.orphans_due_at = now + min(waits, interval_s)

    async def _may_go(self, view: PartitionView, objects: Objects, partition: _Partition) -> bool:
        """Not the only log that has its offsets, nor while the other one is not whole."""
        offsets = await offsets_held(self._rsm, objects)
        if offsets is None:
            return True
        found = holders(*offsets, view)
        if SegmentFile.METADATA not in objects:
            end = view.log_end_offset
            deleted = offsets[1] < view.raised_log_start
            if found is None or (not deleted and (end is None or end <= offsets[1])):
                return False
        damage = await self._looks.damage(found or ())
        if damage is not None:
            partition.orphan_kept = True
            self._concerns.hold(
                Concern.REPLACED_SEGMENT_KEPT,
                view.tip,
                f"{view.tip}: no metadata name {objects[SegmentFile.LOG].key}, but it is not "
                f"deleted, as the segment with its offsets is damaged: {damage}; run "
                "fetchproxy verify",
                offsets,
            )
        return damage is None

    @staticmethod
    def _publish(
        tip: TopicIdPartition, view: PartitionView, to_go: tuple[RemoteLogSegmentMetadata, ...]
    ) -> None:
        place = (tip.topic, str(tip.partition))
        REMOTE_DELETE_LAG_SEGMENTS.labels(*place).set(len(to_go))
        REMOTE_DELETE_LAG_BYTES.labels(*place).set(sum(s.segment_size_bytes for s in to_go))
        REMOTE_LOG_SIZE_BYTES.labels(*place).set(sum(size for _, size in counted_bytes(view)))
