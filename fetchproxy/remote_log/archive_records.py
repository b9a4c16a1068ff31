"""Puts on record what a partition's archive has to hold, for `verify` to hold it against that.

One object says from where on and up to where all was finished; one more for each gap. A crash
between a copy and its record leaves a statement that says too little, never one that says too
much: a gap is on record before the segment behind it counts, an end only once it does.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from fetchproxy.errors import CorruptSegment, RemoteStorageError
from fetchproxy.metadata.finished_offsets_json import (
    NOT_STATED,
    FinishedOffsets,
    decode_finished_offsets,
    encode_archive_gap,
    encode_finished_offsets,
)
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.storage.partition_records import PartitionRecords
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)


class ArchiveRecords:
    """One partition's, of the archiver that copies it. Raises RemoteStorageError."""

    def __init__(self, rsm: RemoteStorageManager, tip: TopicIdPartition) -> None:
        self._records = rsm.records
        self._tip = tip
        self._stated: FinishedOffsets | None = None  # as last read or written
        self._log_start_offset = 0

    async def read(self) -> None:
        """Another archiver may have written since. One object is read."""
        try:
            self._stated = await read_finished_offsets(self._records, self._tip)
        except CorruptSegment as error:
            log.error(
                "finished_offsets_unreadable",
                topic=self._tip.topic,
                partition=self._tip.partition,
                error=str(error),
            )
            self._stated = None

    async def begin(self, view: PartitionView, start_offset: int) -> None:
        """Before the segment from `start_offset` on counts, behind all that `view` has."""
        end, stated = view.log_end_offset, self._stated
        self._log_start_offset = view.raised_log_start
        if stated is None:
            # What lies below was archived before there were records, or is nothing.
            stated = FinishedOffsets(self._tip, start_offset if end is None else end)
            await self._state(stated)
        gap = gap_before(start_offset, end, view.raised_log_start, stated)
        if gap is not None:
            content = encode_archive_gap(self._tip, *gap)
            await self._records.put_archive_gap(self._tip, *gap, content)

    async def finished(self, segment: RemoteLogSegmentMetadata) -> None:
        """It counts now. Where that cannot be stated, the next segment's end says it too."""
        if self._stated is None:
            return
        epochs = segment.segment_leader_epochs
        epoch = epochs[-1].epoch if epochs else -1
        stated = replace(
            self._stated,
            end_offset=segment.end_offset,
            leader_epoch=epoch,
            log_start_offset=max(self._log_start_offset, self._stated.log_start_offset),
        )
        try:
            await self._state(stated)
        except RemoteStorageError as error:
            log.warning(
                "finished_offsets_not_stated",
                topic=self._tip.topic,
                partition=self._tip.partition,
                end_offset=segment.end_offset,
                error=str(error),
            )

    async def withdraw_end(self) -> None:
        """Before segments are taken out of the archive at its end."""
        await self.read()
        if self._stated is not None and self._stated.end_offset != NOT_STATED:
            await self._state(replace(self._stated, end_offset=NOT_STATED))

    async def _state(self, stated: FinishedOffsets) -> None:
        content = encode_finished_offsets(stated)
        await self._records.put_finished_offsets(self._tip, content)
        self._stated = stated


async def read_finished_offsets(
    records: PartitionRecords, tip: TopicIdPartition
) -> FinishedOffsets | None:
    """None: nobody has stated any. Raises CorruptSegment, RemoteStorageError."""
    raw = await records.get_finished_offsets(tip)
    key = records.finished_offsets_key(tip)
    return None if raw is None else decode_finished_offsets(raw, key, tip)


def gap_before(
    start_offset: int, archive_end: int | None, log_start: int, stated: FinishedOffsets
) -> tuple[int, int] | None:
    """What was lost before it could be copied, both inclusive, below a new segment. Pure.

    `archive_end` is exclusive; below `log_start` all was deleted. What was finished once and is not
    in the archive any more is no such gap, but a loss that `verify` has to name.
    """
    first = max(archive_end or 0, log_start, stated.recorded_from, stated.end_offset + 1)
    return (first, start_offset - 1) if first < start_offset else None
