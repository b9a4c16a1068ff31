"""Archives one partition in turns: resumes, accumulates, closes, copies. One worker at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Protocol

import structlog

from fetchproxy.brokers.messages import RETRIABLE
from fetchproxy.errors import (
    ClusterError,
    CopyOvertaken,
    CorruptSegment,
    DamagedObject,
    FetchProxyError,
    LogDamaged,
    LogDiverged,
    LogTruncated,
    RemoteStorageError,
)
from fetchproxy.metadata.archiver_positions import NOT_KNOWN
from fetchproxy.metadata.lineage import archived_lineage, extend_lineage
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.observability.ages import LAST_SUCCESSES, Activity
from fetchproxy.observability.health import Kind, Offsets, of_partition
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import ARCHIVE_GAPS
from fetchproxy.segments.contents import AccumulatedSegment, SegmentSummary
from fetchproxy.segments.leader_epochs import uncounted
from fetchproxy.writing.completeness_records import CompletenessRecords
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.deletion.expirer import Expirer
from fetchproxy.writing.deletion.local_retention import LocalRetention
from fetchproxy.writing.index_refresh import LocalIndexRefresher
from fetchproxy.writing.leadership import Leadership
from fetchproxy.writing.log_truncation import LogTruncation, Resumed
from fetchproxy.writing.partition_watch import PartitionWatch
from fetchproxy.writing.published_conditions import PublishedConditions
from fetchproxy.writing.sources.segment_accumulator import LogGap, SegmentAccumulator
from fetchproxy.writing.status import PartitionArchiveStatus, Step, broker_retention

log = structlog.get_logger(__name__)

# The archiver reads from the archive itself where to go on: after a start, after every failure and
# before every copy. No local state counts. After an election, and before a copy counts, it compares
# the archive with the new leader's log (`log_truncation`).


@dataclass(eq=False, repr=False)
class PartitionArchiver:
    """Archives one partition in turns. `may_go_on` is called before each copy. A copy that has
    begun may finish. `check_own_log` raises if the records belong to another log: it is called
    before the first records of an archive are read, and before they are copied. `before_copy` is
    called before a copy counts; its error ends the copy. `on_lost` is called with offsets that were
    lost before they could be copied, once for each, from `log_start_offset` on if nothing is
    archived. None: from the log start at the first turn on. `is_bare`: a look at many partitions
    has shown no object of this one. Then its first copy needs no look of its own but the last one,
    which decides (`_confirm`).
    """

    tp: TopicIdPartition
    _: KW_ONLY
    accumulator: SegmentAccumulator
    rlmm: PartitionViews
    copier: SegmentCopier
    truncation: LogTruncation
    records: CompletenessRecords
    check_own_log: Callable[[TopicIdPartition], Awaitable[None]]
    may_go_on: Callable[[], bool] = lambda: True
    before_copy: Callable[[AccumulatedSegment], Awaitable[None]] | None = None
    on_lost: Callable[[Offsets], None] = lambda offsets: None
    log_start_offset: int | None = None
    is_bare: bool = False

    def __post_init__(self) -> None:
        self._resumed: Resumed | None = None
        # The position and leader epoch of the last `_accumulate_anew` since the last copy.
        self._accumulated_anew_at: tuple[int | None, int] | None = None

    @property
    def archive_end(self) -> int | None:
        """The archive's end as last known, exclusive. None: not known."""
        return None if self._resumed is None else self._resumed.archive_end

    @property
    def position(self) -> int:
        """Where the next segment begins. The archiver archives nothing more below it."""
        resumed = self._resumed
        return NOT_KNOWN if resumed is None or resumed.position is None else resumed.position

    @property
    def holds_records(self) -> bool:
        """Whether it has records that are not archived yet, perhaps the only copy of them."""
        return self._resumed is not None and self._accumulated_summary is not None

    @property
    def has_all(self) -> bool:
        """Whether it has the log up to the last stable offset that it knows."""
        accumulated = self._accumulated_summary
        position = accumulated.position if accumulated else self.position
        return position >= (self.accumulator.last_stable_offset or 0)

    @property
    def _accumulated_summary(self) -> SegmentSummary | None:
        """None: no byte is accumulated."""
        accumulated = self.accumulator.accumulated
        return accumulated if accumulated and accumulated.size_bytes > 0 else None

    def status(self) -> PartitionArchiveStatus:
        """The status as of the last turns. Never blocks."""
        resumed, accumulator, accumulated = (
            self._resumed,
            self.accumulator,
            self._accumulated_summary,
        )
        accumulated_bytes = accumulated.size_bytes if accumulated else 0
        end = accumulated.position if accumulated else None
        offsets = 0 if end is None or self.position == NOT_KNOWN else end - self.position
        return PartitionArchiveStatus(
            tp=self.tp,
            archive_start=resumed.archive_start if resumed else None,
            archive_end=self.archive_end,
            log_start_offset=accumulator.log_start_offset,
            last_stable_offset=accumulator.last_stable_offset,
            accumulated_bytes=accumulated_bytes,
            accumulated_end=end,
            bytes_per_offset=accumulated_bytes / offsets if offsets > 0 else None,
            raised_log_start=resumed.raised_log_start if resumed else 0,
            closed_segments=1 if accumulator.closed else 0,
            first_unarchived_ms=accumulated.first_timestamp_ms if accumulated else None,
            copy=self.copier.running(self.tp),
        )

    async def process(self, *, close_short: bool = False) -> bool:
        """One turn: accumulate the available records and copy at most one segment. True: more is
        available. `close_short`: close the segment when the log has no more records, even if it is
        short.

        Raises RemoteStorageError and ClusterError (worth another try), LogTruncated (is not),
        CorruptSegment (no retry mends it), OSError of the spool's disk.
        """
        with self._forgetting():
            return await self._turn(close_short)

    async def compare_with_leader(self) -> None:
        """Compare the archive with the leader's log, unless that was done. Raises as `process`."""
        with self._forgetting():
            await self._has_parted(await self._resume())

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """After an error the accumulator may hold half a batch, so the next turn resumes anew.
        After a store or broker error the accumulated data stay: the copy begins with a new look at
        the archive.
        """
        try:
            yield
        except BaseException as error:
            if not isinstance(error, RemoteStorageError | ClusterError):
                self._resumed = None
            raise

    async def release(self) -> None:
        """Forget all local state and free the disk space. The next turn resumes anew."""
        self._resumed = None
        await self.accumulator.discard()

    async def _turn(self, close_short: bool) -> bool:
        resumed = await self._resume()
        if await self._has_parted(resumed):
            return True
        if self.accumulator.closed is None:
            try:
                await self._accumulate(resumed, close_short)
            except LogTruncated:
                return await self._log_ends_below(resumed)
            except CorruptSegment as error:
                return await self._accumulate_anew(resumed, error)
        if self.accumulator.closed is None:
            return self._resumed is None  # the archive has moved on: resume again
        if not self.may_go_on():
            await self.release()
            return False
        await self._copy(resumed, self.accumulator.closed)
        return True

    # --- resume ---
    async def _resume(self) -> Resumed:
        if self._resumed is None:
            await self.release()
            is_bare, self.is_bare = self.is_bare, False
            self._resumed = _nothing_yet() if is_bare else await self._read_archive_state()
        return self._resumed

    async def _fresh_view(self) -> PartitionView:
        return await self.rlmm.refresh(self.tp, asyncio.get_running_loop().time())

    async def _read_archive_state(self) -> Resumed:
        view = await self._fresh_view()
        if await self.truncation.remove_buried(view):
            view = await self._fresh_view()
        await self.records.read()
        end = view.log_end_offset
        return Resumed(
            view.log_start_offset,
            end,
            view.raised_log_start,
            view.history.kept_below,
            archived_lineage(view),
            position=end,
        )

    # --- the leader's lineage ---
    async def _has_parted(self, resumed: Resumed) -> bool:
        """True: a new leader's log differs. The archive has been truncated and is read again."""
        if resumed.leader_epoch == self.truncation.leader_epoch(self.tp):
            return False
        return await self._truncate_if_parted(resumed)

    async def _truncate_if_parted(self, resumed: Resumed) -> bool:
        resumed.leader_epoch = await self.truncation.agrees(self.tp, resumed)
        if resumed.leader_epoch is not None:
            return False
        await self.release()
        await self.records.withdraw_end()
        await self.truncation.truncate(await self._fresh_view())
        return True

    async def _log_ends_below(self, resumed: Resumed) -> bool:
        """The log ends below the position. Raises LogTruncated again if there is no remedy."""
        accumulated = self._accumulated_summary
        if await self._truncate_if_parted(resumed) or accumulated:
            await self.release()  # the accumulated data are of a log that is gone
            return True
        if resumed.archive_end is None or resumed.archive_end <= resumed.kept_below:
            await self.release()  # the log is still below a deleted or kept range
            return False
        raise LogTruncated(
            f"{self.tp} is archived up to offset {resumed.archive_end}, but the leader's log ends "
            "below that, and no leader epoch explains why"
        )

    async def _accumulate_anew(self, resumed: Resumed, error: CorruptSegment) -> bool:
        """Accumulate again: a new leader's log may be sound although it does not continue the
        accumulated data. Raises `error` if it does not continue the archive either, or is damaged
        itself.
        """
        position_and_epoch = (resumed.position, self.truncation.leader_epoch(self.tp))
        if not self._accumulated_summary or self._accumulated_anew_at == position_and_epoch:
            raise error
        self._accumulated_anew_at = position_and_epoch
        self._note_dropped(resumed.position, error)
        await self.release()
        return True

    def _note_dropped(self, base_offset: int | None, error: Exception) -> None:
        log.warning(
            "gathered_segment_dropped", **self.tp.logged, base_offset=base_offset, error=str(error)
        )

    # --- accumulate ---
    async def _accumulate(self, resumed: Resumed, close_short: bool) -> None:
        """Accumulate the next segment, and close it if possible. Gaps before it are recorded."""
        if resumed.position is None:
            log_start = self.log_start_offset
            if log_start is None:
                log_start = await self.accumulator.find_log_start()
            await self.check_own_log(self.tp)
            resumed.position = max(log_start, resumed.raised_log_start)
        while True:
            accumulated = await self.accumulator.accumulate(
                resumed.position, close_short=close_short
            )
            if not isinstance(accumulated, LogGap):
                return
            view = await self._fresh_view()
            if view.log_end_offset != resumed.archive_end:
                await self._follow_other_copy(resumed, view)
                return
            await self._note_gap(resumed.position, view, accumulated)
            resumed.position = accumulated.log_start_offset

    async def _note_gap(self, position: int, view: PartitionView, gap: LogGap) -> None:
        """Record the gap at once, as no segment may ever follow. What is on record is not new."""
        if gap.log_start_offset <= view.raised_log_start:
            return  # deleted by DeleteRecords, on purpose
        if view.log_end_offset is None:  # the archive begins behind it
            self.on_lost((position, gap.log_start_offset - 1))
            return
        for first, last in await self.records.lost(view, gap.log_start_offset):
            self.on_lost((first, last))
            ARCHIVE_GAPS.labels(self.tp.topic, str(self.tp.partition)).inc()
            log.error(
                "archive_gap", **self.tp.logged, first_lost_offset=first, last_lost_offset=last
            )

    # --- copy ---
    async def _copy(self, resumed: Resumed, segment: AccumulatedSegment) -> None:
        """Copy the closed segment, unless the archive's end has changed since it was
        accumulated.
        """
        if not resumed.is_bare:
            view = await self._fresh_view()
            if view.log_end_offset != resumed.archive_end:
                await self._follow_other_copy(resumed, view)
                return
        if resumed.archive_end is None:
            await self.check_own_log(self.tp)  # it may have become a continued log since
        try:
            finished = await self.copier.copy(
                segment, resumed.lineage, lambda: self._confirm(resumed, segment)
            )
        except CopyOvertaken:
            await self._follow_other_copy(resumed, await self._fresh_view())
            return
        except LogDiverged as error:
            if await self._truncate_if_parted(resumed):
                self._note_dropped(segment.start_offset, error)
            elif _contradicts_itself(segment, resumed.leader_epoch):
                log.info("leader_epochs_left_out", **self.tp.logged, error=str(error))
                epochs = uncounted(segment.start_offset)
                self.accumulator.closed = replace(segment, leader_epochs=epochs)
            else:
                self._note_dropped(segment.start_offset, error)
                await self.release()
            return
        await self.records.finished(finished)
        self._accumulated_anew_at = None
        if resumed.archive_start is None:
            resumed.archive_start = finished.start_offset
        resumed.archive_end = resumed.position = finished.end_offset + 1
        resumed.is_bare = False
        resumed.lineage = extend_lineage(resumed.lineage, segment.leader_epochs)
        log.debug(
            "segment_copied",
            **finished.logged,
            end_offset=finished.end_offset,
            size_bytes=finished.segment_size_bytes,
        )
        await self.accumulator.discard()

    async def _follow_other_copy(self, resumed: Resumed, view: PartitionView) -> None:
        """Another archiver, or a copy of ours with a lost response, has extended the archive."""
        log.info(
            "archive_further_than_expected",
            **self.tp.logged,
            expected_end=resumed.archive_end,
            archive_end=view.log_end_offset,
        )
        await self.release()

    async def _confirm(self, resumed: Resumed, segment: AccumulatedSegment) -> None:
        """The last check before the copy counts, within the copy's time limit: the archive must
        still end where it ended. The rule for spare copies (`orphans`) relies on this.
        """
        resumed.leader_epoch = await self.truncation.confirm(segment, resumed)
        view = await self._fresh_view()
        if view.log_end_offset != resumed.archive_end:
            raise CopyOvertaken(f"{self.tp} is already archived up to {view.log_end_offset}")
        await self.records.begin(view, segment.start_offset)
        if self.before_copy is not None:
            await self.before_copy(segment)


def _nothing_yet() -> Resumed:
    return Resumed(None, None, 0, 0, (), position=None, is_bare=True)


def _contradicts_itself(segment: AccumulatedSegment, leader_epoch: int | None) -> bool:
    """All of `segment` comes from the leader that now denies having it. A leader never cuts its own
    log, so its cache of epochs does not fit its batches (`segments.leader_epochs`).
    """
    counts = segment.leader_epochs != uncounted(segment.start_offset)
    return counts and segment.leader_epoch == leader_epoch != -1


class CompactedTurns(Protocol):
    """`compacted_log.CompactedLog`, which has an archiver of its own for each copy."""

    async def process(self) -> bool: ...

    async def release(self) -> None: ...

    def forget(self) -> None: ...


# The three steps of KIP-405's RemoteLogManager. Step 1, leader: delete segments that retention has
# passed, and stale temporaries. Step 2, leader: copy records that are not in the archive yet. Step
# 3, leader and follower: update the remote information.


@dataclass(eq=False, repr=False, kw_only=True)
class ManagedPartition:
    """A partition's turns, and the result of the last one. A follower accumulates nothing.
    `compacted`: of a compacted log, whose growth `archiver` archives.
    """

    archiver: PartitionArchiver
    leadership: Leadership
    expirer: Expirer
    local_retention: LocalRetention
    refresher: LocalIndexRefresher | None
    refresh_interval_ms: int
    published_conditions: PublishedConditions
    warnings: SparingWarnings
    watch: PartitionWatch
    compacted: CompactedTurns | None = None
    step: Step | None = None  # of the turn under way; None: no turn
    view: PartitionView | None = None  # as of the last step 3
    last_error: str | None = None
    last_success_ms: int | None = None
    stopped: bool = False
    failure: Exception | None = None  # of the last turn
    led: bool = False  # by this archiver, at the last change of leadership
    # Loop time (s) before which it has all records of the log, up to the last stable offset. -inf:
    # it has read none.
    caught_up_at: float = float("-inf")

    @property
    def tp(self) -> TopicIdPartition:
        return self.archiver.tp

    @property
    def leads(self) -> bool:
        return self.leadership.leads(self.tp)

    async def process(self) -> bool:
        """One turn. True: more is available. Raises the errors of the steps; an error of step 1
        only after the other steps, because new segments must be copied all the same. Nothing is
        deleted in either tier before the leader has confirmed that its log is the archived one.
        """
        try:
            failure, more = None, False
            if self.leads:
                failure = await self._attempt(Step.COPY, self.archiver.compare_with_leader())
                if failure is None:
                    failure = await self._attempt(Step.DELETE, self.expirer.expire(self.tp))
                if failure is None and self.compacted is None:
                    failure = await self._attempt(Step.DELETE, self.local_retention.trim(self.tp))
                self.step = Step.COPY
                more = await (self.compacted or self.archiver).process()
                if self.archiver.has_all:
                    # Not this turn's begin: it may have read nothing (`CopyPace`).
                    self.caught_up_at = self.archiver.accumulator.read_at
            else:
                await self.release()
            more = await self._refresh() or more
            if failure is not None:
                raise failure
            return more
        finally:
            self.step = None

    async def release(self) -> None:
        """Forget the partition's local state: this archiver does not lead it any more."""
        self.expirer.forget(self.tp)
        self.local_retention.forget(self.tp)
        await (self.compacted or self.archiver).release()
        if self.compacted is not None:
            self.compacted.forget()

    async def _attempt(self, step: Step, work: Awaitable[object]) -> Exception | None:
        """The error of `work`, or None. Raises LogTruncated."""
        self.step = step
        try:
            await work
        except LogTruncated:
            raise
        except (FetchProxyError, OSError) as error:
            return error
        return None

    async def _refresh(self) -> bool:
        self.step = Step.REFRESH
        now = asyncio.get_running_loop().time()
        oldest = now - self.refresh_interval_ms / 1000
        self.view = await self.archiver.rlmm.refresh(self.tp, oldest)
        if self.refresher is None:
            return False
        return await self.refresher.refresh(self.tp, self.view)

    # --- how it stands ---
    def status(
        self, topic_config: Mapping[str, str] | None, log_offsets: LogOffsets | None
    ) -> PartitionArchiveStatus:
        """The status. The range is from step 3; a leader's end includes its own copies since.
        `log_offsets`: the offsets of the brokers' log, read independently of the turns.
        """
        retention_used, deleted_in_ms = self.watch.margin(self.tp)
        archiver_status, view = self.archiver.status(), self.view
        start, end = archiver_status.archive_start, archiver_status.archive_end
        bytes_per_offset = archiver_status.bytes_per_offset
        if view is not None:
            start = start if view.log_start_offset is None else view.log_start_offset
            end = view.log_end_offset if end is None else end
            bytes_per_offset = _bytes_per_offset(view) or bytes_per_offset
        log_start, stable = archiver_status.log_start_offset, archiver_status.last_stable_offset
        high_watermark = None
        if log_offsets is not None and self.leads:
            # Log start and last stable offset only rise, except in a log that begins again.
            log_start = max(log_offsets.log_start_offset, 0 if self.stopped else log_start or 0)
            stable = max(log_offsets.last_stable_offset, 0 if self.stopped else stable or 0)
            high_watermark = max(log_offsets.high_watermark, stable)
        return replace(
            archiver_status,
            archive_start=start,
            archive_end=end,
            log_start_offset=log_start,
            last_stable_offset=stable,
            high_watermark=high_watermark,
            bytes_per_offset=bytes_per_offset,
            last_error=self.last_error or self.local_retention.refusal(self.tp.topic),
            last_success_ms=self.last_success_ms,
            stopped=self.stopped,
            leads=self.leads,
            step=self.step,
            broker_retention=broker_retention(topic_config or {}),
            retention_used=retention_used,
            deleted_in_ms=deleted_in_ms,
        )

    def note_stop(self, error: FetchProxyError) -> None:
        """Overwrite nothing archived: only an operator can say which log is right."""
        self.last_error = str(error)
        self.stopped = True
        self.published_conditions.hold(Kind.PARTITION_STOPPED, self.tp, str(error))
        self.published_conditions.health.forget(Kind.PARTITION_FAILING, self.tp)

    @property
    def brings_nothing(self) -> bool:
        """The last turn failed, nothing is accumulated, and the next turn will fail too: readers
        must not wait for this partition. A store, brokers or a disk may work again by themselves.
        """
        return (
            self.failure is not None
            and not may_pass(self.failure)
            and not self.archiver.holds_records
        )

    def note_failure(self, error: Exception) -> None:
        message = str(error) or type(error).__name__
        if isinstance(error, OSError):
            self.watch.disk_failed(self.tp, error)
        if self.stopped:
            return  # the operator must see why it stopped, not this error
        # A failing store fails for all partitions: log one line a minute for all of them.
        about = "store" if isinstance(error, RemoteStorageError) else self.tp.topic
        self.warnings.warn("partition_process_failed", about, **self.tp.logged, error=message)
        self.failed(message, error)

    def failed(self, message: str, error: Exception) -> None:
        """Report the failure. The caller has logged it."""
        self.last_error, self.failure = message, error
        if isinstance(error, LogDamaged):
            self.published_conditions.health.forget(Kind.PARTITION_FAILING, self.tp)
            self.published_conditions.hold(Kind.LOG_DAMAGED, self.tp, message)
        else:
            failing = of_partition(Kind.PARTITION_FAILING, self.tp, message)
            self.published_conditions.health.hold(failing, self.tp)

    def note_success(self, now_ms: int) -> None:
        if self.last_error is not None:
            self.warnings.info("partition_recovered", self.tp.topic, **self.tp.logged)
        self.stopped = False
        self.failure = None
        self.published_conditions.health.forget(Kind.PARTITION_FAILING, self.tp)
        self.watch.disk_works(self.tp)
        if self.leads:
            self.published_conditions.release(Kind.PARTITION_STOPPED, self.tp)
            self.published_conditions.release(Kind.LOG_DAMAGED, self.tp)
        else:  # only the leader ends these conditions
            self.published_conditions.forget(self.tp, Kind.PARTITION_STOPPED, Kind.LOG_DAMAGED)
        self.last_error = None
        if self.last_success_ms is None:
            self._note_copies_before(now_ms)
        self.last_success_ms = now_ms

    def _note_copies_before(self, now_ms: int) -> None:
        """The archive knows when its last segment was copied, by whichever process."""
        if self.leads and self.view is not None and self.view.segments:
            ago_s = max(now_ms - self.view.segments[-1].event_timestamp_ms, 0) / 1000
            time = asyncio.get_running_loop().time() - ago_s
            for activity in (Activity.COPY, Activity.METADATA_WRITE):
                LAST_SUCCESSES.note(activity, time)

    async def drop(self) -> None:
        """Another archiver, or none, manages the partition from now on."""
        lasting = Kind.PARTITION_STOPPED, Kind.LOG_DAMAGED
        self.published_conditions.forget(self.tp, *lasting, Kind.PARTITION_FAILING)
        self.watch.forget(self.tp)
        self.watch.disk_works(self.tp)
        log.info("partition_unassigned", **self.tp.logged)
        await self.release()


def may_pass(error: Exception) -> bool:
    """Whether a turn that failed with `error` may succeed later although nobody acts."""
    if isinstance(error, ClusterError):
        code = error.error_code
        return error.retriable or code is None or code in RETRIABLE
    # The state of one object stays as it is.
    away = isinstance(error, RemoteStorageError) and not isinstance(error, DamagedObject)
    return away or isinstance(error, OSError)


def _bytes_per_offset(view: PartitionView) -> float | None:
    if not view.segments:
        return None
    last = view.segments[-1]
    return last.segment_size_bytes / (last.end_offset - last.start_offset + 1)
