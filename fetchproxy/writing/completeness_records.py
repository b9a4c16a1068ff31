"""Records in the store what a partition's archive has to hold, for `verify`.

One object states from where on and up to where all was finished; one more states each gap. After a
crash the records state too little, never too much: a gap is recorded before the next segment
counts, an end only once it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import structlog

from fetchproxy.errors import CorruptSegment, ObjectNotReadable, RemoteStorageError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.health import Offsets
from fetchproxy.segments.description import (
    NOT_STATED,
    FinishedOffsets,
    decode_finished_offsets,
    encode_archive_gap,
    encode_finished_offsets,
)
from fetchproxy.storage.archive_objects import ArchiveObjects

log = structlog.get_logger(__name__)


class CompletenessRecords:
    """One partition's records, for the archiver that copies it. Raises RemoteStorageError."""

    def __init__(self, objects: ArchiveObjects, tp: TopicIdPartition) -> None:
        self._records = objects
        self._tp = tp
        self._finished_offsets: FinishedOffsets | None = None  # as last read or written
        self._log_start_offset = 0

    async def read(self) -> None:
        """Read the record again, one object: another archiver may have changed it."""
        try:
            self._finished_offsets = await read_finished_offsets(self._records, self._tp)
        except ObjectNotReadable:
            raise  # it is whole: a new one would state less
        except CorruptSegment as error:
            log.error("finished_offsets_unreadable", **self._tp.logged, error=str(error))
            self._finished_offsets = None

    async def begin(self, view: PartitionView, start_offset: int) -> None:
        """Call it before the segment at `start_offset` counts; it follows all that `view` has."""
        end, finished_offsets = view.log_end_offset, self._finished_offsets
        self._log_start_offset = view.raised_log_start
        if finished_offsets is None:
            # Offsets below were archived before there were records, or never existed.
            finished_offsets = FinishedOffsets(self._tp, start_offset if end is None else end)
            await self._record_state(finished_offsets)
        await self._record_gap(
            gap_before(start_offset, end, view.raised_log_start, finished_offsets)
        )

    async def lost(self, view: PartitionView, log_start_offset: int) -> list[Offsets]:
        """Record that the offsets from the archive's end up to `log_start_offset` were lost.
        Returns those that were not on record.
        """
        end = view.log_end_offset
        if end is None:
            return []  # the archive begins at the log start
        finished_offsets = self._finished_offsets or FinishedOffsets(self._tp, end)
        if self._finished_offsets is None:
            await self._record_state(finished_offsets)
        return await self._record_gap(
            gap_before(log_start_offset, end, view.raised_log_start, finished_offsets)
        )

    async def _record_gap(self, gap: Offsets | None) -> list[Offsets]:
        """Returns the parts that were not on record."""
        if gap is None:
            return []
        recorded = sorted([one async for one in self._records.list_archive_gaps(self._tp)])
        new = list(uncovered(*gap, recorded))
        for first, last in new:
            content = encode_archive_gap(self._tp, first, last)
            await self._records.put_archive_gap(self._tp, first, last, content)
        return new

    async def finished(self, segment: RemoteLogSegmentMetadata) -> None:
        """Record that `segment` counts. If that fails, the record of the next segment covers it."""
        if self._finished_offsets is None:
            return
        finished_offsets = replace(
            self._finished_offsets,
            end_offset=segment.end_offset,
            leader_epoch=segment.last_epoch,
            log_start_offset=max(self._log_start_offset, self._finished_offsets.log_start_offset),
        )
        try:
            await self._record_state(finished_offsets)
        except RemoteStorageError as error:
            log.warning(
                "finished_offsets_not_written",
                **self._tp.logged,
                end_offset=segment.end_offset,
                error=str(error),
            )

    async def withdraw_end(self) -> None:
        """Call it before segments are removed at the end of the archive."""
        await self.read()
        if self._finished_offsets is not None and self._finished_offsets.end_offset != NOT_STATED:
            await self._record_state(replace(self._finished_offsets, end_offset=NOT_STATED))

    async def _record_state(self, finished_offsets: FinishedOffsets) -> None:
        content = encode_finished_offsets(finished_offsets)
        await self._records.put_finished_offsets(self._tp, content)
        self._finished_offsets = finished_offsets


class NothingStated(CompletenessRecords):
    """Of a copy of a log that does not count yet: nothing is stated about it."""

    async def read(self) -> None:
        pass

    async def begin(self, view: PartitionView, start_offset: int) -> None:
        pass

    async def lost(self, view: PartitionView, log_start_offset: int) -> list[Offsets]:
        return []

    async def finished(self, segment: RemoteLogSegmentMetadata) -> None:
        pass

    async def withdraw_end(self) -> None:
        pass


async def read_finished_offsets(
    records: ArchiveObjects, tp: TopicIdPartition
) -> FinishedOffsets | None:
    """None: there is no record. Raises CorruptSegment, RemoteStorageError."""
    raw = await records.get_finished_offsets(tp)
    key = records.finished_offsets_key(tp)
    return None if raw is None else decode_finished_offsets(raw, key, tp)


def gap_before(
    start_offset: int, archive_end: int | None, log_start: int, finished_offsets: FinishedOffsets
) -> tuple[int, int] | None:
    """The offsets below a new segment that were lost before they could be copied, both inclusive.
    Pure.

    `archive_end` is exclusive; all below `log_start` was deleted. Offsets that were finished once
    and are not in the archive any more are not a gap, but a loss for `verify` to report.
    """
    first = max(
        archive_end or 0, log_start, finished_offsets.recorded_from, finished_offsets.end_offset + 1
    )
    return (first, start_offset - 1) if first < start_offset else None


def uncovered(first: int, last: int, rising: Iterable[Offsets]) -> Iterator[Offsets]:
    """The parts of `first` … `last` that are in none of `rising`, which may overlap."""
    for start, end in rising:
        if start > last:
            break
        if start > first:
            yield first, start - 1
        first = max(first, end + 1)
    if first <= last:
        yield first, last
