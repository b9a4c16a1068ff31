"""Archives a partition of a compacted topic: its copy grows, and is made anew from time to time.

A copy is a number that its segments have in their ids (`model.CompactedCopy`). A new one is made
beside the current one, by an archiver of its own that knows only its segments. When it has all of
the log, one write makes it the current copy (`put_log_history`): readers see the old copy or the
new one, whole. The segments of the old copy are hidden then, and deleted after the readers' grace
(`deletion.retention`). A process that is killed leaves the current copy as it was; what it had made
of the next one is deleted once another copy counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from uuid import UUID

import structlog

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.errors import FetchProxyError
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import (
    PartitionViews,
    RemoteLogMetadataManager,
)
from fetchproxy.model import (
    CompactedCopy,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.observability.health import Kind
from fetchproxy.observability.metrics import (
    COMPACTED_COPIES,
    COMPACTED_COPIES_GIVEN_UP,
    COMPACTED_COPY_AGE_SECONDS,
)
from fetchproxy.segments.contents import AccumulatedSegment
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.writing.compaction import (
    GROWTH_STOPS,
    RECORDED_SHARE,
    CopySize,
    WhyAnew,
    may_lack_deletes,
    why_anew,
)
from fetchproxy.writing.deletion.expirer import SegmentProbe
from fetchproxy.writing.deletion.segment_deletion import SegmentDeletion
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.partition_archiver import PartitionArchiver
from fetchproxy.writing.published_conditions import PublishedConditions

log = structlog.get_logger(__name__)

_NEVER_S = 1e9  # longer than any retention


class ViewsOfCopy(PartitionViews):
    """The archive with all that `copy` has. None: the current copy."""

    def __init__(self, rlmm: RemoteLogMetadataManager, copy: CompactedCopy | None = None) -> None:
        self._rlmm = rlmm
        self._copy = copy

    def view(self, tp: TopicIdPartition) -> PartitionView | None:
        view = self._rlmm.view(tp)
        return None if view is None else self.with_copy(view)

    async def refresh(self, tp: TopicIdPartition, not_older_than: float) -> PartitionView:
        return self.with_copy(await self._rlmm.refresh(tp, not_older_than))

    def with_copy(self, view: PartitionView) -> PartitionView:
        current = view.history.compacted
        copy = replace(self._copy or current or CompactedCopy(), shown_to=-1)
        if copy == current:
            return view
        return build_view(
            view.tp,
            self._rlmm.list_remote_log_segments(view.tp),
            view.read_at,
            view.unreadable,
            view.raised_log_start,
            replace(view.history, compacted=copy),
        )


@dataclass(slots=True)
class _Making:
    """`leader_epoch`: of the leader that it is read from; None: nothing was read yet. Replicas
    compact their logs each on its own, so what was read from two of them may lack deletions.
    """

    copy: CompactedCopy
    why: WhyAnew
    archiver: PartitionArchiver
    leader_epoch: int | None = None


@dataclass(eq=False, repr=False)
class CompactedLog:
    """One partition. `new_archiver`: makes an archiver that copies into this copy; None: into the
    current one. `delete_retention_ms`: the topic's `delete.retention.ms`. `may_go_on`: False:
    another archiver leads.
    """

    tp: TopicIdPartition
    _: KW_ONLY
    new_archiver: Callable[[CompactedCopy | None], PartitionArchiver]
    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    cluster: Cluster
    delete_retention_ms: Callable[[], int]
    wall_clock_ms: Callable[[], int]
    uuid_factory: Callable[[], UUID]
    published_conditions: PublishedConditions
    limits: WritingLimits
    may_go_on: Callable[[], bool] = lambda: True

    def __post_init__(self) -> None:
        self.growth = self.new_archiver(None)
        self.growth.may_go_on = lambda: self.may_go_on() and not self._is_late()
        self.growth.before_copy = self._before_growth
        self._making: _Making | None = None
        self._retry_at = float("-inf")  # loop time
        self._caught_up_ms: int | None = None  # None: as recorded
        self._recorded = CompactedCopy()
        self._sized: tuple[PartitionView, CopySize] | None = None
        self._deletion = SegmentDeletion(self.rsm, self.rlmm, self.wall_clock_ms)
        self._probe = SegmentProbe(self.rsm)

    @property
    def is_whole(self) -> bool:
        """Whether it has all of the log, up to the last stable offset that it knows."""
        counts = self._recorded.number and self._recorded.shown_to < 0
        return bool(counts) and self.growth.has_all and not self._is_late()

    async def process(self, *, close_short: bool = False) -> bool:
        """One turn: see `PartitionArchiver.process`, whose errors it raises."""
        # Not as of now: that would be a listing each second.
        interval_s = self.limits.remote_refresh_interval_ms / 1000
        oldest = asyncio.get_running_loop().time() - interval_s
        current_view = await self.rlmm.refresh(self.tp, oldest)
        copy = current_view.history.compacted or await self._first(current_view)
        view = ViewsOfCopy(self.rlmm).with_copy(current_view)
        if copy != self._recorded:
            self._recorded, self._caught_up_ms, self._sized = copy, None, None
        why = await self._why_anew(view)
        more = False
        if why not in GROWTH_STOPS:
            more = await self._grow(close_short)
        if why is not None or self._making is not None:
            more = await self._make(view, why) or more
        return more

    async def release(self) -> None:
        """Forget all local state. The next turn begins anew."""
        making, self._making = self._making, None
        self._caught_up_ms = None
        self._recorded = CompactedCopy()
        await self.growth.release()
        if making is not None:
            await making.archiver.release()

    def forget(self) -> None:
        """Another archiver, or none, manages the partition from now on."""
        self.published_conditions.forget(self.tp, Kind.COMPACTED_COPY_LATE)
        COMPACTED_COPY_AGE_SECONDS.remove(self.tp.topic, self.tp.partition)

    # --- whether to copy anew ---
    async def _first(self, view: PartitionView) -> CompactedCopy:
        """From now on the archive has a compacted log, which is shown once it is whole."""
        if view.segments:
            raise FetchProxyError(
                f"{self.tp} is compacted now, but the archive has records from before that, which "
                "the brokers may no longer have. So these records stay, and the partition is not "
                "archived. Set the topic's cleanup.policy to delete, or exclude it from "
                "archive.compacted_topics"
            )
        await self._show(CompactedCopy())
        return CompactedCopy()

    @property
    def _known_caught_up_ms(self) -> int:
        known = self._caught_up_ms
        return self._recorded.caught_up_ms if known is None else known

    def _is_late(self) -> bool:
        return may_lack_deletes(
            self._known_caught_up_ms, self.wall_clock_ms(), self.delete_retention_ms()
        )

    async def _why_anew(self, view: PartitionView) -> WhyAnew | None:
        if self._recorded.number and self._is_late():
            await self._look_at_end(view)
        now_ms = self.wall_clock_ms()
        age_s = (now_ms - self._known_caught_up_ms) / 1000 if self._recorded.number else 0.0
        COMPACTED_COPY_AGE_SECONDS.labels(self.tp.topic, self.tp.partition).set(max(age_s, 0.0))
        return why_anew(
            self._recorded,
            self._size_of(view),
            log_start_offset=self.growth.accumulator.log_start_offset or 0,
            caught_up_ms=self._known_caught_up_ms,
            now_ms=now_ms,
            retention_ms=self.delete_retention_ms(),
            interval_min_ms=self.limits.compacted_copy_interval_min_ms,
        )

    def _size_of(self, view: PartitionView) -> CopySize:
        """Worked out once for each view: a turn of 10,000 partitions must not read all segments."""
        if self._sized is None or self._sized[0] is not view:
            self._sized = view, CopySize.of(self._recorded, view.segments)
        return self._sized[1]

    async def _look_at_end(self, view: PartitionView) -> None:
        """After a long break nothing may have been written: then nothing was missed."""
        at_ms, now = self.wall_clock_ms(), asyncio.get_running_loop().time()
        log_offsets = await self.cluster.log_offsets(self.tp, not_older_than=now)
        end = view.log_end_offset or self._recorded.made_to
        if log_offsets.last_stable_offset <= end:
            self._caught_up_ms = at_ms

    # --- growth ---
    async def _grow(self, close_short: bool) -> bool:
        end = self.growth.archive_end
        more = await self.growth.process(close_short=close_short)
        if self.growth.has_all:
            self._caught_up_ms = max(self._known_caught_up_ms, self._read_at_ms(self.growth))
            more = await self._show_growth() or more
            if self._making is None:
                self.published_conditions.release(Kind.COMPACTED_COPY_LATE, self.tp)
        due_ms = self._recorded.caught_up_ms + RECORDED_SHARE * self.delete_retention_ms()
        if self.growth.archive_end != end and self._known_caught_up_ms >= due_ms:
            await self._show(replace(self._recorded, caught_up_ms=self._known_caught_up_ms))
        return more

    def _read_at_ms(self, archiver: PartitionArchiver) -> int:
        """Epoch ms before the last read of the log's end."""
        ago_s = asyncio.get_running_loop().time() - archiver.accumulator.read_at
        return self.wall_clock_ms() - round(1000 * min(ago_s, _NEVER_S))

    async def _before_growth(self, segment: AccumulatedSegment) -> None:
        """Before a segment counts. If it ends below the last stable offset of its last read, it may
        lack values of keys that were written again above it: nothing counts from there on.
        """
        stable = self.growth.accumulator.last_stable_offset or 0
        if segment.end_offset + 1 < stable and self._recorded.shown_to < 0:
            await self._show(replace(self._recorded, shown_to=segment.start_offset))

    async def _show_growth(self) -> bool:
        """Let all that was added count. It has all of the log. True: there is more to do."""
        if self._recorded.shown_to < 0:
            return False
        if self.growth.holds_records:
            return await self.growth.process(close_short=True)
        stable = self.growth.accumulator.last_stable_offset or 0
        if (self.growth.archive_end or 0) >= stable:
            await self._show(
                replace(self._recorded, shown_to=-1, caught_up_ms=self._known_caught_up_ms)
            )
        return False

    # --- a new copy ---
    async def _make(self, view: PartitionView, why: WhyAnew | None) -> bool:
        """One step. True: there is more to do."""
        loop, making = asyncio.get_running_loop(), self._making
        if making is None:
            if loop.time() < self._retry_at:
                return False
            making = self._begin(why or WhyAnew.FIRST)
        if making.copy.number <= self._recorded.number:  # another archiver's is newer
            await self._give_up(making, None)
            return True
        more = await self._read_on(making)
        begun_ms, now_ms = making.copy.begun_at_ms, self.wall_clock_ms()
        if may_lack_deletes(begun_ms, now_ms, self.delete_retention_ms()):
            await self._give_up(making, self._late_words(making))
            return False
        if self._has_other_leader(making):
            await self._give_up(making, None)
            return True
        archiver = making.archiver
        end, stable = archiver.position, archiver.accumulator.last_stable_offset or 0
        if archiver.holds_records or end < max(stable, view.log_end_offset or 0):
            return more
        caught_up_ms = self._read_at_ms(making.archiver)
        await self._switch(making, replace(making.copy, made_to=end, caught_up_ms=caught_up_ms))
        return True

    def _begin(self, why: WhyAnew) -> _Making:
        copy = CompactedCopy.begun(self.wall_clock_ms(), self.uuid_factory())
        log.debug("compacted_copy_begun", **self.tp.logged, why=why.value)
        self._making = making = _Making(copy, why, self.new_archiver(copy))
        making.archiver.may_go_on = self.may_go_on
        return making

    async def _read_on(self, making: _Making) -> bool:
        """True: there is more to read or to copy."""
        archiver = making.archiver
        more = await archiver.process()
        if not more and archiver.has_all and archiver.holds_records:
            more = await archiver.process(close_short=True)
        return more

    def _has_other_leader(self, making: _Making) -> bool:
        before = making.leader_epoch
        making.leader_epoch = making.archiver.truncation.leader_epoch(self.tp)
        return before not in (None, making.leader_epoch)

    async def _switch(self, making: _Making, copy: CompactedCopy) -> None:
        """Make it the current copy, if it is whole. Raises RemoteStorageError: try again."""
        now = asyncio.get_running_loop().time()
        made = await ViewsOfCopy(self.rlmm, copy).refresh(self.tp, now)
        end = made.log_end_offset
        whole = not made.gaps() and not made.unreadable and end in (None, copy.made_to)
        damage = await self._probe.damage(made.segments)
        if not whole or damage is not None:
            await self._give_up(making, damage or "the log lost its beginning while it was copied")
            return
        if not self.may_go_on():
            return
        before = (await self.rlmm.refresh(self.tp, now)).log_start_offset
        start = copy.made_to if made.log_start_offset is None else made.log_start_offset
        if before is not None and before < start:  # the brokers have deleted what is below
            await self.rlmm.raise_log_start_offset(self.tp, start)
        await self._show(copy)
        self._caught_up_ms = copy.caught_up_ms
        self._making = None
        await making.archiver.release()
        await self.growth.release()
        self.published_conditions.release(Kind.COMPACTED_COPY_LATE, self.tp)
        COMPACTED_COPIES.labels(self.tp.topic, making.why.value).inc()
        log.info(
            "compacted_log_copied",
            **self.tp.logged,
            why=making.why.value,
            archive_end=copy.made_to,
            size_bytes=sum(segment.segment_size_bytes for segment in made.segments),
        )

    async def _show(self, copy: CompactedCopy) -> None:
        """Record `copy` as the current one, unless another archiver has made a newer one. Raises
        RemoteStorageError.
        """
        now = asyncio.get_running_loop().time()
        history = (await self.rlmm.refresh(self.tp, now)).history
        if history.compacted is not None and history.compacted.number > copy.number:
            self._recorded = history.compacted
            return
        await self.rlmm.put_log_history(self.tp, replace(history, compacted=copy))
        self._recorded = copy

    async def _give_up(self, making: _Making, why: str | None) -> None:
        """Begin again later; at once if there is no reason that somebody has to know."""
        self._making = None
        await making.archiver.release()
        COMPACTED_COPIES_GIVEN_UP.labels(self.tp.topic).inc()
        if why is not None:
            pause_s = self.limits.compacted_copy_retry_ms / 1000
            self._retry_at = asyncio.get_running_loop().time() + pause_s
            self.published_conditions.hold(
                Kind.COMPACTED_COPY_LATE, self.tp, f"{self.tp} was not copied in time: {why}"
            )
        for segment in self.rlmm.list_remote_log_segments(self.tp):
            if segment.is_finished and making.copy.has(segment.segment_id):
                await self._hide(segment)

    async def _hide(self, segment: RemoteLogSegmentMetadata) -> None:
        try:
            await self._deletion.hide(segment)
        except ValueError as error:  # another archiver was faster
            log.debug("segment_removal_not_needed", **segment.logged, error=str(error))

    def _late_words(self, making: _Making) -> str:
        retention_s = self.delete_retention_ms() / 1000
        read_to = max(making.archiver.archive_end or 0, 0)
        return (
            f"the copy was only at offset {read_to} when most of delete.retention.ms "
            f"({retention_s:g} s) had passed, so it could lack deletions of keys"
        )
