"""Gathers a segment from batches that a `LogSource` reads: the `broker` source's own segments.

The archiver decides where they end (`segment_cut`), as a broker does not tell where its own do.
"""

from __future__ import annotations

import asyncio

import structlog

from fetchproxy.config.sections import ArchiveConfig
from fetchproxy.model import TopicIdPartition
from fetchproxy.remote_log.sources.api import (
    LogGap,
    LogRead,
    LogSource,
    SegmentGatherer,
    SegmentSource,
)
from fetchproxy.remote_log.sources.copy_pace import CopyPace, gather_until
from fetchproxy.remote_log.sources.gathered_segment import GatheredSegment
from fetchproxy.remote_log.sources.segment_cut import CutReason, cut_reason, plan_take
from fetchproxy.remote_log.sources.segment_writer import SegmentWriter, SpoolFull
from fetchproxy.remote_log.sources.spool import Spool

log = structlog.get_logger(__name__)


class BatchSegments(SegmentSource):
    def __init__(self, source: LogSource, config: ArchiveConfig) -> None:
        self._source = source
        self._config = config
        self._pace = CopyPace(config.copy_bytes_per_s_max)

    def gatherer(self, tip: TopicIdPartition, spool: Spool) -> SegmentGatherer:
        return BatchGatherer(tip, self._config, self._source, spool, self._pace)


class BatchGatherer(SegmentGatherer):
    def __init__(
        self,
        tip: TopicIdPartition,
        config: ArchiveConfig,
        source: LogSource,
        spool: Spool,
        pace: CopyPace,
    ) -> None:
        self._tip = tip
        self._config = config
        self._source = source
        self._spool = spool
        self._pace = pace
        self._writer: SegmentWriter | None = None
        self._was_cut_short = False  # for want of room on the spool's disk

    @property
    def gathered_bytes(self) -> int:
        return self._writer.size_bytes if self._writer else 0

    @property
    def gathered_end(self) -> int | None:
        return self._writer.position if self._writer and self._writer.size_bytes else None

    @property
    def first_timestamp_ms(self) -> int | None:
        return self._writer.first_timestamp_ms if self._writer else None

    async def find_log_start(self) -> int:
        self.log_start_offset = await self._source.log_start_offset(self._tip)
        return self.log_start_offset

    async def gather(self, position: int, *, close_short: bool) -> GatheredSegment | LogGap | None:
        writer = self._writer
        if writer is None or writer.start_offset != position:
            await self.discard()
            writer = self._writer = SegmentWriter(self._tip, position, self._spool)
        # Who closes what is there, however short, waits for as long as the rate demands.
        reason = await self._read_on(writer, None if close_short else gather_until())
        if isinstance(reason, LogGap):
            return reason
        if reason is None and close_short and writer.size_bytes > 0:
            reason = CutReason.SHORT
        return None if reason is None else self._close(writer, reason)

    async def discard(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.discard()

    async def _read_on(
        self, writer: SegmentWriter, until: float | None
    ) -> CutReason | LogGap | None:
        """Read until the segment is to be closed (the reason) or nothing more is there (None).

        None also where the rate allows nothing more before `until` (loop time).
        """
        while True:
            reason = self._cut_anyway(writer)
            if reason is not None:
                return reason
            room = max(self._config.segment_bytes_max - writer.size_bytes, 1)
            if not await self._pace.turn(until):
                return None
            read = await self._source.read(
                self._tip,
                writer.position,
                self._pace.step(min(room, self._config.fetch_bytes_max)),
            )
            if isinstance(read, LogGap):
                self.log_start_offset = read.log_start_offset
                if writer.size_bytes > 0:
                    return CutReason.GAP  # met again, and recorded, by the next segment
                return read
            self._pace.spend(len(read.records))
            try:
                taken, full = await self._take(writer, read)
            except SpoolFull as error:
                if writer.size_bytes == 0:
                    raise
                self._note_cut_short(writer, error)
                return CutReason.SPOOL
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
        """(something was taken, the segment is full). Raises SpoolFull: there is no room for more,
        in an empty segment not for one batch."""
        self.log_start_offset = read.log_start_offset
        self.last_stable_offset = read.last_stable_offset
        take = plan_take(
            read.headers,
            position=writer.position,
            last_stable_offset=read.last_stable_offset,
            gathered_bytes=writer.size_bytes,
            segment_bytes_max=self._config.segment_bytes_max,
        )
        headers = read.headers[take.start : take.end]
        while True:
            try:
                await writer.append(read.records, headers, read.aborted)
            except SpoolFull:
                if writer.size_bytes > 0 or len(headers) <= 1:
                    raise
                headers = headers[: len(headers) // 2]  # the disk has less room than one answer
            else:
                return bool(headers), take.full

    def _note_cut_short(self, writer: SegmentWriter, error: SpoolFull) -> None:
        if self._was_cut_short:
            return  # it was said
        self._was_cut_short = True
        log.warning(
            "segment_cut_short",
            topic=self._tip.topic,
            partition=self._tip.partition,
            base_offset=writer.start_offset,
            size_bytes=writer.size_bytes,
            error=str(error),
        )

    def _close(self, writer: SegmentWriter, reason: CutReason) -> GatheredSegment:
        segment = writer.close()
        log.debug(
            "segment_closed",
            topic=self._tip.topic,
            partition=self._tip.partition,
            base_offset=segment.start_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            reason=reason.value,
        )
        return segment
