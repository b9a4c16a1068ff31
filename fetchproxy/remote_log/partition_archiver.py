"""Archives one partition: resumes, gathers, closes, copies; one turn at a time, by one worker.

Where to go on is read from the archive itself, after a start, after every failure and before every
copy; nothing local counts. It owns no task and decides no schedule: that is `manager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from fetchproxy.config.sections import ArchiveConfig
from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.metadata.lineage import extend_lineage
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import EpochStart, TopicIdPartition
from fetchproxy.observability.metrics import ARCHIVE_GAPS
from fetchproxy.remote_log.copier import SegmentCopier
from fetchproxy.remote_log.segment_cut import CutReason, cut_reason, plan_take
from fetchproxy.remote_log.segment_writer import GatheredSegment, SegmentWriter
from fetchproxy.remote_log.source import LogGap, LogRead, LogSource
from fetchproxy.remote_log.spool import Spool

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the last turns have learned; None: not known yet. Ends are exclusive."""

    archive_start: int | None = None
    archive_end: int | None = None
    log_start_offset: int | None = None
    last_stable_offset: int | None = None
    gathered_bytes: int = 0
    closed_segments: int = 0


@dataclass(slots=True)
class _Resumed:
    """Where the archive ended when it was last looked at, and the leader epochs up to there."""

    archive_start: int | None
    archive_end: int | None
    lineage: tuple[EpochStart, ...]


class PartitionArchiver:
    def __init__(
        self,
        tip: TopicIdPartition,
        config: ArchiveConfig,
        *,
        source: LogSource,
        rlmm: RemoteLogMetadataManager,
        copier: SegmentCopier,
        spool: Spool,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self.tip = tip
        self._config = config
        self._source = source
        self._rlmm = rlmm
        self._copier = copier
        self._spool = spool
        self._wall_clock_ms = wall_clock_ms
        self._resumed: _Resumed | None = None
        self._writer: SegmentWriter | None = None
        self._closed: GatheredSegment | None = None
        self._log_start_offset: int | None = None
        self._last_stable_offset: int | None = None

    @property
    def progress(self) -> Progress:
        resumed = self._resumed
        return Progress(
            archive_start=resumed.archive_start if resumed else None,
            archive_end=resumed.archive_end if resumed else None,
            log_start_offset=self._log_start_offset,
            last_stable_offset=self._last_stable_offset,
            gathered_bytes=self._writer.size_bytes if self._writer else 0,
            closed_segments=1 if self._closed else 0,
        )

    async def process(self, *, close_short: bool = False) -> bool:
        """One turn: gather what is there and copy at most one segment. True: more waits already.

        `close_short`: what was gathered when nothing more is there makes a segment, however short.

        Raises RemoteStorageError and ClusterError (worth another try), LogTruncated (is not),
        CorruptSegment, OSError of the spool's disk.
        """
        try:
            return await self._turn(close_short)
        except (RemoteStorageError, ClusterError):
            raise  # what is gathered stays; the copy begins with a new look at the archive
        except BaseException:
            self._resumed = None  # the writer may have taken a batch by half
            raise

    async def release(self) -> None:
        """Forget all that is local, give the disk space back. The next turn resumes anew."""
        self._resumed = None
        self._closed = None
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.discard()

    async def _turn(self, close_short: bool) -> bool:
        if self._resumed is None:
            await self.release()
            self._resumed = await self._look(await self._fresh_view())
        if self._closed is None:
            writer = self._writer or await self._begin(self._resumed)
            reason = await self._gather(writer)
            if reason is None and close_short and self._writer is not None:
                reason = CutReason.SHORT if self._writer.size_bytes > 0 else None
            if reason is None:
                return False
            self._close(self._writer or writer, reason)
        await self._copy(self._resumed)
        return True

    # --- resume ---
    async def _fresh_view(self) -> PartitionView:
        return await self._rlmm.refresh(self.tip, asyncio.get_running_loop().time())

    async def _look(self, view: PartitionView) -> _Resumed:
        await self._remove_dangling(view)
        lineage: tuple[EpochStart, ...] = ()
        for segment in view.segments:
            lineage = extend_lineage(lineage, segment.segment_leader_epochs)
        return _Resumed(view.log_start_offset, view.log_end_offset, lineage)

    async def _remove_dangling(self, view: PartitionView) -> None:
        """Attempts that nobody can be working on any more.

        Another archiver may be alive (a hand-over), so only those older than twice the longest
        copy; until then they cost space but hide nothing, and resuming does not wait for them.
        """
        oldest_ms = self._wall_clock_ms() - 2 * self._config.copy_max_ms
        for metadata in view.unfinished:
            if metadata.event_timestamp_ms < oldest_ms:
                removed = await self._copier.remove(metadata)
                log.info(
                    "dangling_segment_removed" if removed else "dangling_segment_kept",
                    topic=self.tip.topic,
                    partition=self.tip.partition,
                    segment_id=str(metadata.segment_id.id),
                    base_offset=metadata.start_offset,
                )

    async def _begin(self, resumed: _Resumed) -> SegmentWriter:
        start = resumed.archive_end
        if start is None:
            start = self._log_start_offset = await self._source.log_start_offset(self.tip)
        self._writer = SegmentWriter(self.tip, start, self._spool)
        return self._writer

    # --- gather ---
    async def _gather(self, writer: SegmentWriter) -> CutReason | None:
        """Read until the segment is to be closed (the reason) or nothing more is there (None)."""
        while True:
            reason = self._cut_anyway(writer)
            if reason is not None:
                return reason
            room = max(self._config.segment_bytes_max - writer.size_bytes, 1)
            read = await self._source.read(
                self.tip, writer.position, min(room, self._config.fetch_bytes_max)
            )
            if isinstance(read, LogGap):
                if writer.size_bytes > 0:
                    return CutReason.GAP  # met again, and recorded, by the next segment
                writer = await self._skip_gap(writer, read)
                continue
            taken, full = await self._take(writer, read)
            if full:
                return CutReason.BYTES
            if not taken:
                return None

    def _cut_anyway(self, writer: SegmentWriter) -> CutReason | None:
        if writer.began_at is None:
            return None
        age_s = asyncio.get_running_loop().time() - writer.began_at
        return cut_reason(
            age_ms=1000 * age_s,
            spool_bytes=self._spool.size_bytes,
            segment_age_max_ms=self._config.segment_age_max_ms,
            spool_bytes_max=self._config.spool_bytes_max,
        )

    async def _take(self, writer: SegmentWriter, read: LogRead) -> tuple[bool, bool]:
        """(something was taken, the segment is full)."""
        self._log_start_offset = read.log_start_offset
        self._last_stable_offset = read.last_stable_offset
        take = plan_take(
            read.headers,
            position=writer.position,
            last_stable_offset=read.last_stable_offset,
            gathered_bytes=writer.size_bytes,
            segment_bytes_max=self._config.segment_bytes_max,
        )
        headers = read.headers[take.start : take.end]
        await writer.append(read.records, headers, read.aborted)
        return bool(headers), take.full

    async def _skip_gap(self, writer: SegmentWriter, gap: LogGap) -> SegmentWriter:
        """Go on at the broker's log start. It is a gap only if something was archived before it."""
        self._log_start_offset = gap.log_start_offset
        view = await self._fresh_view()
        deleted = gap.log_start_offset <= view.raised_log_start  # by DeleteRecords, on purpose
        if self._resumed is not None and self._resumed.archive_end is not None and not deleted:
            ARCHIVE_GAPS.labels(self.tip.topic, str(self.tip.partition)).inc()
            log.error(
                "archive_gap",
                topic=self.tip.topic,
                partition=self.tip.partition,
                first_lost_offset=writer.position,
                last_lost_offset=gap.log_start_offset - 1,
            )
        await writer.discard()
        self._writer = SegmentWriter(self.tip, gap.log_start_offset, self._spool)
        return self._writer

    # --- copy ---
    def _close(self, writer: SegmentWriter, reason: CutReason) -> None:
        self._closed = writer.close()
        log.debug(
            "segment_closed",
            topic=self.tip.topic,
            partition=self.tip.partition,
            base_offset=self._closed.start_offset,
            end_offset=self._closed.end_offset,
            size_bytes=self._closed.size_bytes,
            reason=reason.value,
        )

    async def _copy(self, resumed: _Resumed) -> None:
        """Copy the closed segment, if the archive still ends where it ended before it."""
        segment = self._closed
        assert segment is not None  # `_turn` has closed it
        view = await self._fresh_view()
        if view.log_end_offset != resumed.archive_end:
            # Another archiver, or a copy of ours whose last answer was lost.
            log.info(
                "archive_moved_on",
                topic=self.tip.topic,
                partition=self.tip.partition,
                expected_end=resumed.archive_end,
                archive_end=view.log_end_offset,
            )
            await self.release()
            return
        await self._remove_dangling(view)
        await segment.check_log()
        finished = await self._copier.copy(segment, resumed.lineage)
        if resumed.archive_start is None:
            resumed.archive_start = finished.start_offset
        resumed.archive_end = finished.end_offset + 1
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
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.discard()
