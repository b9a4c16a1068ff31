"""Archives one partition: resumes, gathers, closes, copies; one turn at a time, by one worker.

Where to go on is read from the archive itself, after a start, after every failure and before every
copy; nothing local counts. After an election, and before a copy counts, the archive is held against
the new leader's log (`log_truncation`). It owns no task and decides no schedule: that is `manager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from fetchproxy.errors import (
    ClusterError,
    CopyOvertaken,
    CorruptSegment,
    LogDiverged,
    LogTruncated,
    RemoteStorageError,
)
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.metadata.archiver_positions import NOT_KNOWN
from fetchproxy.metadata.lineage import archived_lineage, extend_lineage
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import EpochStart, TopicIdPartition
from fetchproxy.observability.metrics import ARCHIVE_GAPS
from fetchproxy.remote_log.archive_records import ArchiveRecords
from fetchproxy.remote_log.copier import CopyProgress, SegmentCopier
from fetchproxy.remote_log.log_truncation import LogTruncation
from fetchproxy.remote_log.sources.api import LogGap, SegmentSource
from fetchproxy.remote_log.sources.gathered_segment import GatheredSegment
from fetchproxy.remote_log.sources.spool import Spool

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the last turns have learned; None: not known yet. Ends are exclusive."""

    archive_start: int | None = None
    archive_end: int | None = None
    log_start_offset: int | None = None
    last_stable_offset: int | None = None
    gathered_bytes: int = 0
    gathered_end: int | None = None
    bytes_per_offset: float | None = None  # of what is gathered
    raised_log_start: int = 0  # below it everything was deleted on purpose
    closed_segments: int = 0
    first_unarchived_ms: int | None = None  # timestamp of the first record that was gathered
    copy: CopyProgress | None = None  # of the segment that is on its way to the store


@dataclass(slots=True)
class _Resumed:
    """Where the archive ended when it was last looked at, and the leader epochs up to there.

    `position` is where the next segment begins, None: not known yet. It is the archive's end, or
    above it where the log has a gap.
    """

    archive_start: int | None
    archive_end: int | None
    raised_log_start: int
    kept_below: int
    lineage: tuple[EpochStart, ...]
    position: int | None
    leader_epoch: int | None = None  # of the leader whose log this was found to be; None: not yet

    @property
    def archived(self) -> tuple[int, int] | None:
        if self.archive_start is None or self.archive_end is None:
            return None
        return self.archive_start, self.archive_end


class PartitionArchiver:
    def __init__(
        self,
        tip: TopicIdPartition,
        *,
        source: SegmentSource,
        rlmm: RemoteLogMetadataManager,
        copier: SegmentCopier,
        truncation: LogTruncation,
        records: ArchiveRecords,
        spool: Spool,
        may_go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_go_on` is asked before each copy; what runs by then may end."""
        self.tip = tip
        self._may_go_on = may_go_on
        self._rlmm = rlmm
        self._copier = copier
        self._truncation = truncation
        self._records = records
        self._gatherer = source.gatherer(tip, spool)
        self._resumed: _Resumed | None = None
        self._closed: GatheredSegment | None = None
        # Where, and under which leader, that was done; since the last copy.
        self._gathered_anew_at: tuple[int | None, int] | None = None

    @property
    def progress(self) -> Progress:
        resumed, gatherer = self._resumed, self._gatherer
        position, end = resumed.position if resumed else None, gatherer.gathered_end
        offsets = 0 if position is None or end is None else end - position
        return Progress(
            archive_start=resumed.archive_start if resumed else None,
            archive_end=resumed.archive_end if resumed else None,
            log_start_offset=self._gatherer.log_start_offset,
            last_stable_offset=self._gatherer.last_stable_offset,
            gathered_bytes=self._gatherer.gathered_bytes,
            gathered_end=end,
            bytes_per_offset=gatherer.gathered_bytes / offsets if offsets > 0 else None,
            raised_log_start=resumed.raised_log_start if resumed else 0,
            closed_segments=1 if self._closed else 0,
            first_unarchived_ms=self._gatherer.first_timestamp_ms,
            copy=self._copier.running(self.tip),
        )

    @property
    def position(self) -> int:
        """Where the next segment begins: below it nothing more will be archived."""
        resumed = self._resumed
        return NOT_KNOWN if resumed is None or resumed.position is None else resumed.position

    async def process(self, *, close_short: bool = False) -> bool:
        """One turn: gather what is there and copy at most one segment. True: more waits already.

        `close_short`: what was gathered when nothing more is there makes a segment, however short.

        Raises RemoteStorageError and ClusterError (worth another try), LogTruncated (is not),
        CorruptSegment, CompactedLog (no retry mends it), OSError of the spool's disk.
        """
        try:
            return await self._turn(close_short)
        except (RemoteStorageError, ClusterError):
            raise  # what is gathered stays; the copy begins with a new look at the archive
        except BaseException:
            self._resumed = None  # the gatherer may have taken a batch by half
            raise

    async def compare_with_leader(self) -> None:
        """Hold the archive against the leader's log, unless that was done. Raises as `process`."""
        try:
            await self._has_parted(await self._resume())
        except (RemoteStorageError, ClusterError):
            raise
        except BaseException:
            self._resumed = None
            raise

    async def release(self) -> None:
        """Forget all that is local, give the disk space back. The next turn resumes anew."""
        self._resumed = None
        self._closed = None
        await self._gatherer.discard()

    async def _turn(self, close_short: bool) -> bool:
        resumed = await self._resume()
        if await self._has_parted(resumed):
            return True
        if self._closed is None:
            try:
                self._closed = await self._gather(resumed, close_short)
            except LogTruncated:
                return await self._cut_short(resumed)
            except CorruptSegment as error:
                return await self._gather_anew(resumed, error)
        if self._closed is None:
            return self._resumed is None  # the archive has moved on: look at it again
        if not self._may_go_on():
            await self.release()
            return False
        await self._copy(resumed, self._closed)
        return True

    # --- resume ---
    async def _resume(self) -> _Resumed:
        if self._resumed is None:
            await self.release()
            self._resumed = await self._look()
        return self._resumed

    async def _fresh_view(self) -> PartitionView:
        return await self._rlmm.refresh(self.tip, asyncio.get_running_loop().time())

    async def _look(self) -> _Resumed:
        view = await self._fresh_view()
        if await self._truncation.remove_buried(self.tip, view):
            view = await self._fresh_view()
        await self._records.read()
        end = view.log_end_offset
        return _Resumed(
            view.log_start_offset,
            end,
            view.raised_log_start,
            view.history.kept_below,
            archived_lineage(view),
            position=end,
        )

    # --- the leader's lineage ---
    async def _has_parted(self, resumed: _Resumed) -> bool:
        """The leader is new and its log is not what was archived: the archive has been truncated.

        Then all that is known here is forgotten, too. What waits to be archived from a former
        leader is confirmed at the end of its copy.
        """
        if resumed.leader_epoch == self._truncation.leader_epoch(self.tip):
            return False
        return await self._truncate_if_parted(resumed)

    async def _truncate_if_parted(self, resumed: _Resumed) -> bool:
        archived = resumed.archived
        if archived is None:
            if resumed.raised_log_start > resumed.kept_below:
                await self._truncation.check_log_start(self.tip, resumed.raised_log_start)
            resumed.leader_epoch = self._truncation.leader_epoch(self.tip)
            return False
        epoch = await self._truncation.agrees(
            self.tip, resumed.lineage, archived, resumed.kept_below
        )
        if epoch is None:
            await self.release()
            await self._records.withdraw_end()
            await self._truncation.truncate(self.tip, await self._fresh_view())
            return True
        resumed.leader_epoch = epoch
        return False

    async def _cut_short(self, resumed: _Resumed) -> bool:
        """The log ends below the position. Raises LogTruncated again where that has no remedy."""
        gathered = self._gatherer.gathered_bytes > 0
        if await self._truncate_if_parted(resumed) or gathered:
            await self.release()  # what was gathered is of a log that is no more
            return True
        if resumed.archive_end is None or resumed.archive_end <= resumed.kept_below:
            await self.release()  # deleted, or kept, further than the log has come: it will
            return False
        raise LogTruncated(
            f"{self.tip} ends below offset {resumed.archive_end}, up to which it is archived, and "
            "has no leader epoch that says why"
        )

    async def _gather_anew(self, resumed: _Resumed, error: CorruptSegment) -> bool:
        """What does not continue what was gathered may be sound: a new leader's log is another one.

        Raises `error` where it does not continue the archive either, or not by itself.
        """
        place = (resumed.position, self._truncation.leader_epoch(self.tip))
        if self._gatherer.gathered_bytes == 0 or self._gathered_anew_at == place:
            raise error
        self._gathered_anew_at = place
        self._note_dropped(resumed.position, error)
        await self.release()
        return True

    def _note_dropped(self, base_offset: int | None, error: Exception) -> None:
        log.warning(
            "gathered_segment_dropped",
            topic=self.tip.topic,
            partition=self.tip.partition,
            base_offset=base_offset,
            error=str(error),
        )

    # --- gather ---
    async def _gather(self, resumed: _Resumed, close_short: bool) -> GatheredSegment | None:
        """The next segment, if it can be closed already; gaps before it are recorded."""
        if resumed.position is None:
            log_start = await self._gatherer.find_log_start()
            resumed.position = max(log_start, resumed.raised_log_start)
        while True:
            gathered = await self._gatherer.gather(resumed.position, close_short=close_short)
            if not isinstance(gathered, LogGap):
                return gathered
            view = await self._fresh_view()
            if view.log_end_offset != resumed.archive_end:
                await self._moved_on(resumed, view)
                return None
            self._note_gap(resumed, view, gathered)
            resumed.position = gathered.log_start_offset

    def _note_gap(self, resumed: _Resumed, view: PartitionView, gap: LogGap) -> None:
        """It is a gap only if something was archived before it."""
        deleted = gap.log_start_offset <= view.raised_log_start  # by DeleteRecords, on purpose
        if resumed.archive_end is None or deleted:
            return
        ARCHIVE_GAPS.labels(self.tip.topic, str(self.tip.partition)).inc()
        log.error(
            "archive_gap",
            topic=self.tip.topic,
            partition=self.tip.partition,
            first_lost_offset=resumed.position,
            last_lost_offset=gap.log_start_offset - 1,
        )

    # --- copy ---
    async def _copy(self, resumed: _Resumed, segment: GatheredSegment) -> None:
        """Copy the closed segment, if the archive still ends where it ended before it."""
        view = await self._fresh_view()
        if view.log_end_offset != resumed.archive_end:
            await self._moved_on(resumed, view)
            return
        try:
            finished = await self._copier.copy(
                segment, resumed.lineage, lambda: self._confirm(resumed, segment)
            )
        except CopyOvertaken:
            await self._moved_on(resumed, await self._fresh_view())
            return
        except LogDiverged as error:
            self._note_dropped(segment.start_offset, error)
            if not await self._truncate_if_parted(resumed):
                await self.release()
            return
        await self._records.finished(finished)
        self._gathered_anew_at = None
        if resumed.archive_start is None:
            resumed.archive_start = finished.start_offset
        resumed.archive_end = resumed.position = finished.end_offset + 1
        resumed.lineage = extend_lineage(resumed.lineage, segment.leader_epochs)
        log.debug(
            "segment_copied",
            topic=self.tip.topic,
            partition=self.tip.partition,
            segment_id=str(finished.segment_id.id),
            base_offset=finished.start_offset,
            end_offset=finished.end_offset,
            size_bytes=finished.segment_size_bytes,
        )
        self._closed = None
        await self._gatherer.discard()

    async def _moved_on(self, resumed: _Resumed, view: PartitionView) -> None:
        """By another archiver, or by a copy of ours whose last answer was lost."""
        log.info(
            "archive_moved_on",
            topic=self.tip.topic,
            partition=self.tip.partition,
            expected_end=resumed.archive_end,
            archive_end=view.log_end_offset,
        )
        await self.release()

    async def _confirm(self, resumed: _Resumed, segment: GatheredSegment) -> None:
        """The last word before the copy counts: see `SegmentCopier.copy`.

        That nobody has gone on from the same end is asked here again, within the time limit of the
        copy: what retention takes for spare (`spare_copies`) rests on that.
        """
        resumed.leader_epoch = await self._truncation.confirm(
            segment, resumed.lineage, resumed.archived, resumed.kept_below
        )
        view = await self._fresh_view()
        if view.log_end_offset != resumed.archive_end:
            raise CopyOvertaken(f"{self.tip} is archived up to {view.log_end_offset} by now")
        await self._records.begin(view, segment.start_offset)
