"""Derives the content of a segment's other objects from its `.log` object.

The log is trusted if each batch passes its CRC and follows the batch before it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import BatchHeader, check_crc, control_type, walk

from fetchproxy.errors import CorruptSegment, RangeNotSatisfiable
from fetchproxy.model import AnySegment, ByteRange
from fetchproxy.segments.contents import AccumulatedSegment, SegmentSummary
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.transaction_check import TxnEvent
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.stores.object_store import Content


@dataclass(frozen=True, slots=True)
class DerivedSegment:
    """`segment.aborted` is empty: a transaction may end in a later segment (`check`)."""

    segment: AccumulatedSegment
    txn_events: tuple[TxnEvent, ...]
    newest: tuple[tuple[int, int], ...]  # (base offset, timestamp) of batches later than all before

    def max_timestamp_ms(self, end_offset: int) -> int:
        """Of the batches that begin at or before `end_offset`; -1 without any, or if all lie before
        the year 1970.
        """
        return max([-1, *(time for base, time in self.newest if base <= end_offset)])


async def derive_segment(
    rsm: RemoteStorageManager, segment: AnySegment, chunk_bytes: int
) -> DerivedSegment:
    """Read the whole `.log`. Of `segment`, only the id and start offset of its key are used.

    Memory: two chunks, or the largest batch. Raises CorruptSegment, ObjectNotFound,
    RemoteStorageError.
    """
    summary = SegmentSummary(segment.segment_id.topic_id_partition, segment.start_offset)
    events: list[TxnEvent] = []
    newest: list[tuple[int, int]] = []
    async for data, headers in checked_batches(rsm, segment, chunk_bytes):
        for header in headers:
            _check_follows(header, summary)
            summary.add(data, header)
            if not newest or header.max_timestamp > newest[-1][1]:
                newest.append((header.base_offset, header.max_timestamp))
            if header.is_transactional:
                # The summary has already refused an unreadable marker.
                control = control_type(data, header) if header.is_control else None
                events.append(TxnEvent(header.producer_id, header.base_offset, control))
        summary.add_bytes(memoryview(data)[: headers[-1].end])
    if summary.size_bytes == 0:
        raise CorruptSegment("the log is empty")
    key = rsm.object_key(segment, SegmentFile.LOG)
    return DerivedSegment(summary.close(Path(key), settled=True), tuple(events), tuple(newest))


def _check_follows(header: BatchHeader, summary: SegmentSummary) -> None:
    """The batch's CRC does not cover its base offset. The first batch may begin before the
    segment's start offset, as DeleteRecords can trim a log inside a batch.
    """
    base, expected = header.base_offset, summary.position
    is_first = summary.first_timestamp_ms is None
    if base < expected and not (is_first and header.last_offset >= expected):
        raise CorruptSegment(f"batch begins at offset {base}, expected {expected}")


async def checked_batches(
    rsm: RemoteStorageManager, segment: AnySegment, chunk_bytes: int
) -> AsyncIterator[tuple[bytes, list[BatchHeader]]]:
    """Read the log in order. Each item is bytes that start at a batch, and the headers of the whole
    batches in them. The next item repeats the bytes after those. Raises CorruptSegment.
    """
    data, position = b"", 0  # the unread bytes, and their position in the log
    while more := await _range(rsm, segment, position + len(data), max(chunk_bytes, len(data))):
        data += more
        try:
            headers = list(walk(data))
        except WireError as error:
            raise CorruptSegment(f"from byte {position} on: {error}") from None
        for header in headers:
            if not check_crc(data, header):
                raise CorruptSegment(
                    f"CRC-32C of the batch at byte {position + header.position} does not match"
                )
        if headers:
            yield data, headers
            position += headers[-1].end
            data = data[headers[-1].end :]
    if data:
        raise CorruptSegment(f"{len(data)} bytes at byte {position} are not a batch")


async def _range(
    rsm: RemoteStorageManager, segment: AnySegment, start: int, length: int
) -> Content:
    try:
        return await rsm.fetch_log_segment(segment, ByteRange(start, start + length))
    except RangeNotSatisfiable:
        return b""
