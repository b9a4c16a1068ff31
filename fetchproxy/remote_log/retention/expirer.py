"""Deletes from the archive: step 1 of KIP-405's RemoteLogManager, for the leader of a partition.

The order keeps every reader safe, and every step may be the last before a crash:
1. the log start is raised and published: from then on nobody begins to read below it;
2. what lies below it, and what nobody can be working on, becomes DELETE_SEGMENT_STARTED;
3. `retention_grace_ms` after that, by the time stored with it, its objects go, then its metadata.
It does not decide what retention has passed: that is `retention`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
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
from fetchproxy.remote_log.retention.orphans import (
    OrphanWatch,
    delete_orphans,
    find_orphans,
    is_worthless,
)
from fetchproxy.remote_log.retention.plan import (
    Removals,
    counted_bytes,
    plan_removals,
    retained_from,
)
from fetchproxy.remote_log.retention.retention_settings import effective_retention
from fetchproxy.remote_log.retention.steady_clock import SteadyClock
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)

State = RemoteLogSegmentState
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
        clock_settle_ms: int | None = None,
    ) -> None:
        """`clock_settle_ms`: instead of the configured one, for a pass too short to watch it."""
        self._config = config
        self._rsm = rsm
        self._rlmm = rlmm
        self._topic_config = topic_config
        self._wall_clock_ms = wall_clock_ms
        settle_ms = config.retention_clock_settle_ms if clock_settle_ms is None else clock_settle_ms
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
        if self._partitions.pop(tip, None) is not None:
            for gauge in _GAUGES:
                if (tip.topic, str(tip.partition)) in gauge._metrics:
                    gauge.remove(tip.topic, str(tip.partition))

    async def _turn(self, tip: TopicIdPartition, now_ms: int) -> float:
        """How long until the next one (s)."""
        view = await self._rlmm.refresh(tip, asyncio.get_running_loop().time())
        retention = effective_retention(self._config, tip.topic, self._topic_config(tip.topic_id))
        start = retained_from(view, retention, now_ms)
        if start is not None:
            view = await self._rlmm.raise_log_start_offset(tip, start)
            log.info(
                "log_start_raised", topic=tip.topic, partition=tip.partition, log_start_offset=start
            )
        return await self._remove(tip, view, now_ms)

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
        done = await self._do(tip, to_do)
        undeleted = removals.delete[max(0, done - len(removals.hide)) :]
        self._publish(tip, view, (*removals.hide, *removals.waiting, *undeleted))
        return 0.0 if done < len(to_do) else self._wait_s(removals, now_ms)

    async def _do(
        self,
        tip: TopicIdPartition,
        to_do: Sequence[tuple[_Step, RemoteLogSegmentMetadata]],
    ) -> int:
        """How many of them were done: a part, where it takes long, as copying waits meanwhile."""
        loop = asyncio.get_running_loop()
        enough_at = loop.time() + _TURN_ENOUGH_S
        for done, (step, segment) in enumerate(to_do):
            if done >= self._config.retention_deletes_per_turn_max or loop.time() > enough_at:
                return done
            try:
                await self._within(step(segment), f"{step.__name__} of a segment of {tip}")
            except RemoteStorageError:
                REMOTE_DELETE_ERRORS.labels(tip.topic).inc()
                raise
        return len(to_do)

    def _wait_s(self, removals: Removals, now_ms: int) -> float:
        waits_ms = [self._config.retention_check_interval_ms]
        if removals.hide:
            waits_ms.append(self._config.retention_grace_ms)
        if removals.next_at_ms is not None:
            waits_ms.append(removals.next_at_ms - now_ms)
        return min(waits_ms) / 1000

    async def _within(self, work: Awaitable[None], what: str) -> None:
        """A store that hangs must not hold up the partition's copies for ever."""
        try:
            async with asyncio.timeout(self._config.copy_max_ms / 1000):
                await work
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
        await delete_orphans(self._rsm, tip, [found[segment_id] for segment_id in old])
        interval_s = self._config.orphan_check_interval_ms / 1000
        waits = age_min_s if len(old) < len(found) else interval_s
        partition.orphans_due_at = now + min(waits, interval_s)

    @staticmethod
    def _publish(
        tip: TopicIdPartition, view: PartitionView, to_go: tuple[RemoteLogSegmentMetadata, ...]
    ) -> None:
        place = (tip.topic, str(tip.partition))
        REMOTE_DELETE_LAG_SEGMENTS.labels(*place).set(len(to_go))
        REMOTE_DELETE_LAG_BYTES.labels(*place).set(sum(s.segment_size_bytes for s in to_go))
        REMOTE_LOG_SIZE_BYTES.labels(*place).set(sum(size for _, size in counted_bytes(view)))
