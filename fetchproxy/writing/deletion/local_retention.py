"""Deletes archived records from the brokers, if the archiver owns local retention.

Outside a broker nothing makes retention wait for the copy (in KIP-405 local segments do). So the
topic's own retention is unlimited. The archiver sends DeleteRecords to the broker itself, up to the
offset below which local retention has passed and the archive, read anew, holds every record. Before
that it checks each of those segments in the store: if one is not whole, it trims nothing of the
partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from uuid import UUID

import structlog

from fetchproxy.brokers.cluster import Cluster, delete_records
from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.metadata.leader_views import LeaderLog
from fetchproxy.metadata.lineage import epoch_of
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import LogOffsets, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.ages import LAST_SUCCESSES, Activity
from fetchproxy.observability.health import Kind, of_topic
from fetchproxy.observability.logs import utc_text
from fetchproxy.observability.metrics import LOCAL_LOG_TRIMMED, LOCAL_TRIMMING_REFUSED
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.writing.deletion.expirer import SegmentProbe
from fetchproxy.writing.deletion.retention import (
    Retention,
    SteadyClock,
    effective_retention,
    passed_up_to,
    stopped_by,
    trimming_refusal,
)
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.published_conditions import PublishedConditions

log = structlog.get_logger(__name__)

# After this time (s) a turn trims the checked part and goes on: copying waits meanwhile.
_LOOKS_ENOUGH_S = 5.0


def trim_target(
    view: PartitionView, log_offsets: LogOffsets, retention: Retention, now_ms: int
) -> int | None:
    """The offset below which the broker's log may be deleted. None: nothing may. It advances by
    whole segments of the archive, oldest first, and never above an unarchived offset.
    """
    if log_offsets.log_start_offset < view.history.kept_below:
        return None  # the broker's records there are not the archived ones
    run = _archived_from(view, log_offsets.log_start_offset)
    if not run or run[-1].end_offset >= log_offsets.last_stable_offset:
        return None  # the log ends below the archive: another lineage, or an old response
    sizes = [_bytes_above(segment, log_offsets.log_start_offset) for segment in run]
    surplus = sum(sizes) - retention.local_bytes if retention.local_bytes >= 0 else 0
    return passed_up_to(zip(run, sizes, strict=True), retention.local_ms, surplus, now_ms)


def _archived_from(view: PartitionView, offset: int) -> list[RemoteLogSegmentMetadata]:
    """The segments that hold every record from `offset` on, up to the first missing one. Records
    that were deleted from the archive on purpose may be deleted at the broker too.
    """
    run: list[RemoteLogSegmentMetadata] = []
    offset = max(offset, view.raised_log_start)
    segment = view.segment_at_or_after(offset)
    while segment is not None and segment.start_offset <= offset:
        run.append(segment)
        offset = segment.end_offset + 1
        segment = view.segment_at_or_after(offset)
    return run


def _bytes_above(segment: RemoteLogSegmentMetadata, offset: int) -> int:
    """About how many of the segment's bytes the broker still has."""
    kept_offsets = segment.end_offset - max(segment.start_offset, offset) + 1
    return (
        segment.segment_size_bytes
        * kept_offsets
        // (segment.stored_end_offset - segment.start_offset + 1)
    )


@dataclass(eq=False, repr=False)
class LocalRetention:
    """Deletes archived records from the brokers. One for all partitions. `topic_config`: a topic's
    settings as last read. None: not known. `check_owner` raises if the archive is another cluster's
    by now.
    """

    config: ArchiveConfig
    cluster: Cluster
    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    _: KW_ONLY
    topic_config: Callable[[UUID], Mapping[str, str] | None]
    check_owner: Callable[[], Awaitable[None]]
    wall_clock_ms: Callable[[], int]
    published_conditions: PublishedConditions
    limits: WritingLimits = WritingLimits()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        self._leader = LeaderLog(self.cluster)
        self._looks = SegmentProbe(self.rsm)
        self._clock = SteadyClock(self.wall_clock_ms, self.limits.retention_clock_settle_ms)
        self._due_at: dict[TopicIdPartition, float] = {}  # loop time
        self._refused: dict[str, str] = {}

    def refusal(self, topic: str) -> str | None:
        """Why the topic is not trimmed although local retention is set, as a sentence."""
        return self._refused.get(topic)

    def forget(self, tp: TopicIdPartition) -> None:
        """Another archiver, or none, manages the partition from now on."""
        self.published_conditions.forget(
            tp, Kind.LOCAL_TRIMMING_STOPPED, Kind.LOCAL_RETENTION_HELD_UP
        )
        if self._due_at.pop(tp, None) is None:
            return
        if all(other.topic != tp.topic for other in self._due_at):
            self._allow(tp.topic)

    async def trim(self, tp: TopicIdPartition) -> None:
        """For the leader, at an interval. Idempotent. Raises RemoteStorageError, ClusterError."""
        loop_s = asyncio.get_running_loop().time()
        now_ms = self._clock.now_ms(loop_s)
        # Every proxy has to know of the partition's archive before the broker's records go.
        known_at = loop_s + self.limits.retention_clock_settle_ms / 1000
        due_at = self._due_at.setdefault(tp, known_at)
        if now_ms is None or loop_s < due_at:
            return
        topic_config = self.topic_config(tp.topic_id)
        retention = effective_retention(self.config, tp.topic, topic_config)
        reason = trimming_refusal(topic_config) if retention.trims_locally else None
        more = False
        if reason is not None:
            self._refuse(tp.topic, reason)
        elif retention.trims_locally:
            self._allow(tp.topic)
            more = await self._trim(tp, retention, loop_s, now_ms)
            LAST_SUCCESSES.note(Activity.TRIM, loop_s)
        else:
            self._allow(tp.topic)
            self.published_conditions.release(Kind.LOCAL_TRIMMING_STOPPED, tp)
            self.published_conditions.release(Kind.LOCAL_RETENTION_HELD_UP, tp)
        wait_ms = 0 if more else self.limits.retention_check_interval_ms
        self._due_at[tp] = loop_s + wait_ms / 1000

    async def _trim(
        self, tp: TopicIdPartition, retention: Retention, not_older_than: float, now_ms: int
    ) -> bool:
        """True: more may be trimmed after further checks."""
        view = await self.rlmm.refresh(tp, not_older_than)
        log_offsets = await self.cluster.log_offsets(tp, not_older_than=not_older_than)
        target = trim_target(view, log_offsets, retention, now_ms)
        self._look_for_future(
            view, target or log_offsets.log_start_offset, retention.local_ms, now_ms
        )
        if target is None or target <= log_offsets.log_start_offset:
            return False
        whole_to = await self._whole_up_to(view, log_offsets.log_start_offset, target)
        if whole_to is None:
            return False
        if not await self._is_same_log(view, whole_to):
            log.warning(
                "local_log_not_trimmed",
                **tp.logged,
                offset=whole_to,
                error="the leader's log below this offset differs from the archived log",
            )
            return False
        await self.check_owner()  # another cluster's archive has other records above its start
        low_watermark = await delete_records(self.cluster, tp, whole_to)
        LOCAL_LOG_TRIMMED.labels(tp.topic).inc()
        log.info(
            "local_log_trimmed",
            **tp.logged,
            log_start_offset=low_watermark,
            archive_end=view.log_end_offset,
        )
        return whole_to < target

    def _look_for_future(
        self, view: PartitionView, start: int, age_max_ms: int, now_ms: int
    ) -> None:
        segment = stopped_by(_archived_from(view, start), age_max_ms, now_ms)
        if segment is None:
            self.published_conditions.release(Kind.LOCAL_RETENTION_HELD_UP, view.tp)
            return
        self.published_conditions.hold(
            Kind.LOCAL_RETENTION_HELD_UP,
            view.tp,
            f"{view.tp}: time-based local retention has stopped at offsets {segment.start_offset} "
            f"to {segment.end_offset}: a record there has the timestamp "
            f"{utc_text(segment.max_timestamp_ms)}, and the brokers keep everything after it "
            f"until {utc_text(segment.max_timestamp_ms + age_max_ms)}; DeleteRecords below offset "
            f"{segment.end_offset + 1}, sent to a broker, trims its log (the archive keeps the "
            "records), and archive.local_retention_bytes passes it over",
            (segment.start_offset, segment.end_offset),
        )

    async def _whole_up_to(self, view: PartitionView, start: int, target: int) -> int | None:
        """The offset, at most `target`, up to which the archive's objects are whole. None: some are
        damaged or gone, so others may be too.
        """
        loop = asyncio.get_running_loop()
        enough_at = loop.time() + _LOOKS_ENOUGH_S
        for segment in _archived_from(view, start):
            if segment.end_offset >= target:
                break
            damage = await self._looks.damage([segment])
            if damage is not None:
                message = (
                    f"the brokers keep their records of {view.tp}, because the archive's copy is "
                    f"damaged: {damage}; run fetchproxy verify"
                )
                stopped = Kind.LOCAL_TRIMMING_STOPPED
                self.published_conditions.hold(stopped, view.tp, message, (start, target - 1))
                return None
            if loop.time() > enough_at:
                return segment.end_offset + 1
        self.published_conditions.release(Kind.LOCAL_TRIMMING_STOPPED, view.tp)
        return target

    async def _is_same_log(self, view: PartitionView, target: int) -> bool:
        """Whether the leader's log up to `target` is the archived one."""
        epoch = epoch_of(view, target - 1)
        epoch_end = await self._leader.epoch_end(view.tp, epoch)
        if epoch_end is None:
            return False
        _, end = epoch_end
        return end.epoch == epoch and end.end_offset >= target

    def _refuse(self, topic: str, reason: str) -> None:
        self._refused[topic] = message = f"local retention of {topic} is refused: {reason}"
        self.published_conditions.health.report(
            of_topic(Kind.LOCAL_RETENTION_REFUSED, topic, message)
        )
        LOCAL_TRIMMING_REFUSED.set(len(self._refused))

    def _allow(self, topic: str) -> None:
        self._refused.pop(topic, None)
        self.published_conditions.health.clear(Kind.LOCAL_RETENTION_REFUSED, topic)
        LOCAL_TRIMMING_REFUSED.set(len(self._refused))
