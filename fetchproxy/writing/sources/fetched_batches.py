"""The `broker` source: accumulates segments from batches that it reads with Fetch requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import BatchHeader, check_crc, walk

from fetchproxy.brokers.cluster import FetchedPartition
from fetchproxy.config.memory_plan import FETCH_BYTES_MAX
from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.errors import ClusterUnavailable, LogDamaged
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.segments.contents import AccumulatedSegment, CutReason, cut_reason, plan_take
from fetchproxy.segments.old_formats import converted, has_old_format, log_damage
from fetchproxy.writing.copy_pace import accumulate_until
from fetchproxy.writing.limits import LAST_COPY_AGE_MIN_MS
from fetchproxy.writing.sources.segment_accumulator import LogGap, SegmentAccumulator
from fetchproxy.writing.sources.segment_writer import SegmentWriter, SpoolFull

log = structlog.get_logger(__name__)

# Some 100 batches at most, checked in 0.3 ms; a thread takes 0.1 ms to begin and to end. Most
# partitions of a large cluster have a few new records, or none.
CHECKED_INLINE_BYTES_MAX = 8 * 1024
# Kafka's default of `remote.fetch.max.wait.ms`.
_TIERED_WAIT_MS = 500
_Checked = tuple[FetchedPartition, list[BatchHeader], LogDamaged | None]


@dataclass(eq=False, repr=False, kw_only=True)
class BatchAccumulator(SegmentAccumulator):
    """Reads the log with Fetch requests, read_committed, so that the responses list aborted
    transactions.

    It works with any broker. Messages of the formats v0 and v1 become batches (`old_formats`):
    these alone are not stored byte for byte. It checks each batch's CRC-32C, because the archive
    has to return the batch years later. A thread checks more than a few, because the tail's relay
    shares the loop. The archiver decides where segments end (`contents`), because a broker does not
    tell where its own segments end.
    """

    config: ArchiveConfig
    fetch_bytes_max: int = FETCH_BYTES_MAX
    last_copy_age_min_ms: int = LAST_COPY_AGE_MIN_MS

    def __post_init__(self) -> None:
        self._writer: SegmentWriter | None = None
        self._was_cut_short = False  # because the spool's disk was full
        self._converts = False

    @property
    def writer(self) -> SegmentWriter | None:
        return self._writer

    async def accumulate(
        self, position: int, *, close_short: bool
    ) -> AccumulatedSegment | LogGap | None:
        writer = self._writer
        if writer is None or writer.summary.start_offset != position:
            await self.discard()
            writer = self._writer = SegmentWriter(self.tp, position, self.spool)
            self.accumulated = writer.summary
        # With `close_short` the read waits for as long as the rate demands.
        reason = await self._read_on(writer, None if close_short else accumulate_until())
        if isinstance(reason, LogGap):
            return reason
        if reason is None and close_short and writer.size_bytes > 0:
            reason = CutReason.SHORT
        return None if reason is None else self._close(writer, reason)

    async def discard(self) -> None:
        writer, self._writer = self._writer, None
        self.accumulated = self.closed = None
        if writer is not None:
            await writer.discard()

    async def _read_on(
        self, writer: SegmentWriter, until: float | None
    ) -> CutReason | LogGap | None:
        """Read until the segment can be closed; return the reason. None: the log has no more
        records, or the rate allows none before `until`.
        """
        while True:
            reason = self._cut_anyway(writer)
            if reason is not None:
                return reason
            room = max(self.config.segment_bytes_max - writer.size_bytes, 1)
            if not await self.pace.turn(until):
                return None
            bytes_max = self.pace.step(min(room, self.fetch_bytes_max // self.share))
            try:
                read = await self.read(writer.position, bytes_max)
            except LogDamaged:
                if writer.size_bytes == 0:
                    raise
                return CutReason.FAULT
            if isinstance(read, LogGap):
                # The next segment meets the gap again and records it.
                return CutReason.GAP if writer.size_bytes > 0 else read
            fetched, headers = read
            self.pace.spend(len(fetched.records))
            try:
                taken_batches, full = await self._take(writer, fetched, headers)
            except SpoolFull as error:
                if writer.size_bytes == 0:
                    raise
                if not self._was_cut_short:  # logged once
                    self._was_cut_short = True
                    log.warning(
                        "segment_cut_short",
                        **self.tp.logged,
                        base_offset=writer.summary.start_offset,
                        size_bytes=writer.size_bytes,
                        error=str(error),
                        hint="give the spool's disk more room",
                    )
                return CutReason.SPOOL
            if full:
                return CutReason.BYTES
            # A single pass ends at the last stable offset of its last read. A running archiver
            # reads until nothing more comes.
            has_all = until is None and writer.position >= fetched.last_stable_offset
            if not taken_batches or has_all:
                return None

    async def read(
        self, position: int, bytes_max: int
    ) -> tuple[FetchedPartition, Sequence[BatchHeader]] | LogGap:
        """Whole batches below the last stable offset: at least one if there is one, more while they
        fit into `bytes_max` bytes.

        Raises LogTruncated if the log ends below `position`, LogDamaged if the first batch is
        malformed or fails its CRC-32C, ClusterError.
        """
        begun_at = asyncio.get_running_loop().time()
        fetched = await self.cluster.fetch(
            self.tp,
            position,
            bytes_max=bytes_max,
            # The broker answers at once, unless it has to read the records from its own tier.
            wait_max_ms=_TIERED_WAIT_MS if position < (self.last_stable_offset or 0) else 0,
            isolation=IsolationLevel.READ_COMMITTED,
        )
        if fetched.error_code == 0:
            result = None
            if len(fetched.records) <= CHECKED_INLINE_BYTES_MAX:
                result = _check_new_batches(self.tp, position, fetched)
            if result is None:
                result = await asyncio.to_thread(_check_batches, self.tp, position, fetched)
            checked, headers, fault = result
            if checked is not fetched and not self._converts:
                self._converts = True  # logged once
                log.info("old_message_format_converted", **self.tp.logged, offset=position)
            if fault is not None and not any(h.last_offset >= position for h in headers):
                raise fault
            self.read_at = begun_at
            return checked, headers
        # The error does not say if the offset is below or above the log: ask for the current ends.
        gap = self._gap(position, await self._log_offsets())
        if gap is not None:
            return gap
        # The offset is in range again: a new leader, or a log that has just grown.
        raise ClusterUnavailable(
            f"{self.tp}: offset {position} was out of range, and is now in range"
        )

    def _cut_anyway(self, writer: SegmentWriter) -> CutReason | None:
        if writer.began_at is None:
            return None
        age_s = asyncio.get_running_loop().time() - writer.began_at
        return cut_reason(
            age_ms=1000 * age_s,
            spool_bytes=self.spool.size_bytes,
            segment_age_max_ms=self.config.segment_age_max_ms,
            spool_bytes_max=self.config.spool_bytes_max,
            last_copy_age_min_ms=self.last_copy_age_min_ms,
            is_last_copy=writer.summary.start_offset < (self.log_start_offset or 0),
        )

    async def _take(
        self, writer: SegmentWriter, fetched: FetchedPartition, headers: Sequence[BatchHeader]
    ) -> tuple[bool, bool]:
        """(batches were taken, the segment is full). Raises SpoolFull if no more fits on the disk;
        for an empty segment, if not even one batch fits.
        """
        self.log_start_offset = fetched.log_start_offset
        self.last_stable_offset = fetched.last_stable_offset
        take = plan_take(
            headers,
            position=writer.position,
            last_stable_offset=fetched.last_stable_offset,
            accumulated_bytes=writer.size_bytes,
            segment_bytes_max=self.config.segment_bytes_max,
        )
        headers = headers[take.start : take.end]
        while True:
            try:
                records = memoryview(fetched.records)
                await writer.append(records, headers, fetched.aborted, fetched.leader_epoch)
            except SpoolFull:
                if writer.size_bytes > 0 or len(headers) <= 1:
                    raise
                headers = headers[
                    : len(headers) // 2
                ]  # one response is larger than the disk's room
            else:
                return bool(headers), take.full

    def _close(self, writer: SegmentWriter, reason: CutReason) -> AccumulatedSegment:
        self.closed = segment = writer.close()
        log.debug(
            "segment_closed",
            **self.tp.logged,
            base_offset=segment.start_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            reason=reason.value,
        )
        return segment


def _check_batches(tp: TopicIdPartition, position: int, fetched: FetchedPartition) -> _Checked:
    """The batches up to the first damaged one, and what is wrong with that one. `records` has
    other bytes only if the log has messages of the formats v0 or v1.
    """
    result = _check_new_batches(tp, position, fetched)
    return _convert_batches(tp, position, fetched) if result is None else result


def _check_new_batches(
    tp: TopicIdPartition, position: int, fetched: FetchedPartition
) -> _Checked | None:
    """As `_check_batches`. None: the log has messages of the formats v0 or v1, which may unpack to
    many times their size.
    """
    records = memoryview(fetched.records)
    headers: list[BatchHeader] = []
    try:
        for header in walk(records):
            if header.last_offset >= fetched.last_stable_offset:
                break
            if not check_crc(records, header):
                offsets = f"{header.base_offset} to {header.last_offset}"
                message = (
                    f"the broker's log is damaged: the batch of offsets {offsets} fails its CRC"
                )
                return fetched, headers, LogDamaged(f"{tp}: {message}")
            headers.append(header)
    except WireError as error:
        if has_old_format(records, headers[-1].end if headers else 0):
            return None
        offset = headers[-1].last_offset + 1 if headers else position
        message = f"the broker's log is damaged: the batch at or after offset {offset}: {error}"
        return fetched, headers, LogDamaged(f"{tp}: {message}")
    return fetched, headers, None


def _convert_batches(tp: TopicIdPartition, position: int, fetched: FetchedPartition) -> _Checked:
    records, _, error = converted(memoryview(fetched.records))
    fetched, headers, fault = _check_batches(tp, position, replace(fetched, records=records))
    if error is not None and fault is None:
        offset = headers[-1].last_offset + 1 if headers else position
        fault = log_damage(tp, offset, error)
    return fetched, headers, fault
