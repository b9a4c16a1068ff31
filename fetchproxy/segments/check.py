"""Compares segments' bytes with their metadata and indexes, one segment after another. Pure.

Each fault is reported once, at its place, and its consequences are not. After a broken batch the
walk goes on after it if that makes sense, else at the next index entry. A span that holds a broken
batch is not compared with its index entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.primitives import Buffer
from fetchproxy_protocol.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    check_crc,
    control_type,
    walk,
)

from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata
from fetchproxy.observability.health import Condition, Kind, of_object
from fetchproxy.segments.leader_epochs import NOT_COUNTED, epoch_at
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import IndexSpan
from fetchproxy.segments.transaction_check import TxnCheck

_WHERE = re.compile(r" at byte [0-9]+")  # within the bytes at hand; a condition has the true place


@dataclass(frozen=True, slots=True)
class Next:
    """Give `take` the bytes from `position` on, at least `bytes_min` of them."""

    position: int
    bytes_min: int = HEADER_BYTES


@dataclass(slots=True)
class _SpanSum:
    """The fields of an index entry, from the batches of its span."""

    first_offset: int
    first_timestamp_ms: int
    last_offset: int = -1
    max_timestamp_ms: int = -(2**63)


class SegmentCheck:
    """Compares one segment's bytes with its metadata and its remoteLogIndex, batch by batch.

    Call `take` with the bytes that `Next` names until it returns None, then `finish`. `faults` is
    the result.

    `continues`: the segment before it ends at `start_offset - 1`. Otherwise the first batch may
    begin below `start_offset`, as DeleteRecords can trim a log inside a batch.

    Batches above a clipped segment's end must be whole, as they are read with the rest, but say
    nothing of the log.
    """

    def __init__(
        self,
        metadata: RemoteLogSegmentMetadata,
        key_of: Callable[[SegmentFile], str],
        spans: Sequence[IndexSpan],
        txns: TxnCheck,
        *,
        continues: bool,
    ) -> None:
        self._metadata = metadata
        self._key_of = key_of
        self._size = metadata.segment_size_bytes
        self._spans = spans
        self._txns = txns
        self._follows_previous_segment = continues
        self.faults: list[Condition] = []
        self.log_is_sound = True
        # Offsets at which the next batch may begin. Two after a base offset that does not fit, as
        # either it or the one before it is wrong. None after unreadable bytes.
        self._expected: tuple[int, ...] = (metadata.start_offset,)
        self._first = True
        self._suspect: int | None = None  # byte of a batch with a bad CRC: its size may be wrong
        self._cut = False
        # (byte, base offset, expected offset) of the last batch, if it begins behind a hole.
        self._hole: tuple[int, int, int] | None = None
        self._max_timestamp_ms = -1
        self._span = 0  # the first span that does not end at or before the position
        self._sum: _SpanSum | None = None  # of that span; None: not comparable

    def take(self, data: Buffer, position: int) -> Next | None:
        """`data` begins with the byte at `position`; None: there is no more to read."""
        batch_start = position
        try:
            for header in walk(data, 0, min(len(data), self._size - position)):
                batch_start = position + header.position
                if not self._batch(data, header, batch_start):
                    return self._broken(batch_start, "")
                batch_start += header.size
        except WireError as error:
            return self._broken(batch_start, _WHERE.sub("", str(error)))
        if batch_start >= self._size:
            return None
        return self._partial(data, batch_start - position, batch_start)

    def short(self, position: int) -> None:
        """The object ends at `position`, before the segment does. Checks the bytes before it."""
        self._log_fault(position, None, f"object ends here, metadata say {self._size} bytes")
        self._size = position
        self._cut = True

    def finish(self) -> None:
        end_offset = self._metadata.stored_end_offset
        trusted = not self._cut and self._suspect is None
        if self._hole is not None and self._expected[:1] != (end_offset + 1,):
            self._refuse_hole()
        elif trusted and self._expected and end_offset + 1 not in self._expected:
            self._log_fault(
                self._size,
                end_offset,
                f"last batch ends at offset {self._expected[0] - 1}, metadata say {end_offset}",
            )
        recorded_ms = self._metadata.max_timestamp_ms
        if self.log_is_sound and recorded_ms != self._max_timestamp_ms:
            message = (
                f"max_timestamp_ms is {recorded_ms}, in the log it is {self._max_timestamp_ms}"
            )
            self._fault(SegmentFile.METADATA, message)

    def _partial(self, data: Buffer, start: int, position: int) -> Next | None:
        """Asks for the rest of a batch that is not whole, unless the segment cannot hold it."""
        bytes_left = self._size - position
        if bytes_left < HEADER_BYTES:
            return (
                None if self._cut else self._broken(position, f"{bytes_left} bytes are not a batch")
            )
        if len(data) - start < HEADER_BYTES:
            return Next(position)
        length = int.from_bytes(data[start + 8 : start + LOG_OVERHEAD_BYTES], "big", signed=True)
        size = length + LOG_OVERHEAD_BYTES
        if size > bytes_left and self._cut:
            return None
        if size > bytes_left:
            return self._broken(position, f"batch claims {size} bytes, {bytes_left} are left")
        return Next(position, size)

    def _broken(self, position: int, message: str) -> Next | None:
        """Goes on at the next index entry, the only other place where a batch surely begins."""
        if self._suspect is None:
            offset = self._expected[0] if self._expected else None
            self._log_fault(position, offset, message)
        else:
            position = self._suspect  # its size led here; it is already reported
        self._expected = ()
        self._suspect = None
        self._sum = None
        for span in self._spans:
            if span.position > position:
                return Next(span.position)
        return None

    def _batch(self, data: Buffer, header: BatchHeader, position: int) -> bool:
        """False: the header cannot be trusted, not even its size."""
        sound = check_crc(data, header)
        faults_before = len(self.faults)
        suspected = self._suspect is not None
        follows = self._follows(header)
        self._judge_hole(header)
        if not sound and suspected and not follows:
            return False
        self._suspect = None if sound else position
        control: int | None = None
        if not sound:
            self._log_fault(position, header.base_offset, "CRC-32C of the batch does not match")
        elif not (follows or suspected) and header.base_offset > max(self._expected):
            self._hole = position, header.base_offset, self._expected[0]
            control = self._control(data, header, position)
        elif not (follows or suspected):
            base, expected = header.base_offset, self._expected[0]
            message = f"overlap: batch begins at offset {base}, expected {expected}"
            self._log_fault(position, base, message)
        elif self._counts(header, position):
            self._check_epoch(header, position)
            control = self._control(data, header, position)
        after = header.last_offset + 1
        if follows or suspected:
            self._expected = (after,)
        else:
            self._expected = (after, self._expected[0] + header.last_offset_delta + 1)
        self._first = False
        if header.base_offset <= self._metadata.end_offset:
            self._max_timestamp_ms = max(self._max_timestamp_ms, header.max_timestamp)
            if self.log_is_sound:
                self._txns.batch(header, control)
        self._add_to_span(header, position, clean=len(self.faults) == faults_before)
        return True

    def _judge_hole(self, header: BatchHeader) -> None:
        """Compaction leaves holes, and the CRC does not cover the base offset. So a batch behind a
        hole is believed unless the next batch, the index or the segment's end contradicts it.
        """
        if self._hole is not None and self._expected and header.base_offset < self._expected[0]:
            self._refuse_hole()
        self._hole = None

    def _refuse_hole(self) -> None:
        if self._hole is not None:
            position, base, expected = self._hole
            message = f"hole: batch begins at offset {base}, expected {expected}"
            self._log_fault(position, base, message)
            self._hole = None

    def _counts(self, header: BatchHeader, position: int) -> bool:
        """False: the batch lies above the clipped segment's end, which is between batches.

        (If the segment was not clipped, `finish` reports a wrong end, once.)
        """
        clipped_at = self._metadata.end_offset
        if self._metadata.copied_end_offset is None or header.last_offset <= clipped_at:
            return True
        if header.base_offset <= clipped_at:
            message = f"clipped at offset {clipped_at}, inside a batch to {header.last_offset}"
            self._log_fault(position, header.base_offset, message)
        return False

    def _follows(self, header: BatchHeader) -> bool:
        """True: the batch begins at an expected offset, or no offset is expected."""
        if not self._expected or header.base_offset in self._expected:
            return True
        may_be_trimmed = self._first and not self._follows_previous_segment
        return may_be_trimmed and header.base_offset < self._expected[0] <= header.last_offset

    def _check_epoch(self, header: BatchHeader, position: int) -> None:
        epochs = self._metadata.segment_leader_epochs
        recorded_epoch = epoch_at(epochs, header.base_offset)
        epoch = header.partition_leader_epoch
        if epoch == -1 or (epochs and recorded_epoch == NOT_COUNTED):
            return  # -1: written without epochs, so metadata have none
        if epoch != recorded_epoch:
            message = f"leader epoch {epoch}, metadata say {recorded_epoch}"
            self._log_fault(position, header.base_offset, message)
            return
        # A batch that begins below the segment counts from the segment's start on.
        first = epochs[0].start_offset
        if max(header.base_offset, self._metadata.start_offset) < first:
            message = f"leader epoch {epoch}, metadata say from {first} on"
            self._log_fault(position, header.base_offset, message)

    def _control(self, data: Buffer, header: BatchHeader, position: int) -> int | None:
        if not header.is_control:
            return None
        try:
            return control_type(data, header)
        except WireError as error:
            self._log_fault(position, header.base_offset, f"control batch: {error}")
            return None

    def _add_to_span(self, header: BatchHeader, position: int, *, clean: bool) -> None:
        while self._span < len(self._spans) and self._spans[self._span].end <= position:
            self._span += 1
            self._sum = None
        if self._span == len(self._spans):
            return
        span = self._spans[self._span]
        if position == span.position:
            self._sum = _SpanSum(header.base_offset, header.base_timestamp)
        end = position + header.size
        if end > span.end:
            if clean:
                self._index_fault(span, f"ends at byte {span.end}, inside the batch at {position}")
            self._sum = None
        if not clean:
            self._sum = None
        total = self._sum
        if total is None:
            return
        total.last_offset = header.last_offset
        total.max_timestamp_ms = max(total.max_timestamp_ms, header.max_timestamp)
        if end == span.end:
            self._compare(span, total)

    def _compare(self, span: IndexSpan, total: _SpanSum) -> None:
        pairs = (
            ("firstOffset", span.first_offset, total.first_offset),
            ("lastOffset", span.last_offset, total.last_offset),
            ("firstTimestamp", span.first_timestamp_ms, total.first_timestamp_ms),
            ("lastTimestamp", span.max_timestamp_ms, total.max_timestamp_ms),
        )
        wrong = [f"{name} is {a}, in the log {b}" for name, a, b in pairs if a != b]
        if wrong and self._hole is not None:
            self._refuse_hole()
        elif wrong:
            self._index_fault(span, "; ".join(wrong))

    def _index_fault(self, span: IndexSpan, message: str) -> None:
        text = f"entry for byte {span.position} of the log: {message}"
        self._fault(SegmentFile.INDEX, text, span.first_offset)

    def _log_fault(self, position: int, offset: int | None, message: str) -> None:
        self.log_is_sound = False
        self._fault(SegmentFile.LOG, message, offset, position)

    def _fault(
        self,
        file: SegmentFile,
        message: str,
        offset: int | None = None,
        position: int | None = None,
    ) -> None:
        tp, key = self._metadata.topic_id_partition, self._key_of(file)
        self.faults.append(of_object(Kind.SEGMENT_DAMAGED, tp, key, message, offset, position))


def first_newer(
    segment: RemoteLogSegmentMetadata, lineage: Sequence[EpochStart], from_offset: int
) -> int | None:
    """The segment's first offset from `from_offset` on with a newer epoch in `lineage`.

    None: there is none. The lineage says nothing below its first entry, and nothing against a
    segment without epochs.
    """
    if not lineage or not segment.segment_leader_epochs:
        return None
    first = max(segment.start_offset, lineage[0].start_offset, from_offset)
    for offset in sorted({first, *(entry.start_offset for entry in lineage)}):
        recorded_epoch = epoch_at(segment.segment_leader_epochs, offset)
        is_inside = first <= offset <= segment.end_offset
        if is_inside and epoch_at(lineage, offset) > recorded_epoch != NOT_COUNTED:
            return offset
    return None


def clip_epochs(
    lineage: Sequence[EpochStart], start_offset: int, end_offset: int
) -> tuple[EpochStart, ...]:
    """The lineage as in the metadata of the segment `start_offset` … `end_offset`."""
    clipped: list[EpochStart] = []
    for entry in lineage:
        if entry.start_offset <= start_offset:
            clipped = [EpochStart(entry.epoch, start_offset)]
        elif entry.start_offset <= end_offset:
            clipped.append(entry)
    return tuple(clipped)
