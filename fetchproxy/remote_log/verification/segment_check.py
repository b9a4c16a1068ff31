"""One segment's bytes held against its metadata and its remoteLogIndex, batch by batch. Pure.

Every fault is reported once, where it is, and not again as its own consequences: after a broken
batch the walk goes on behind it where that makes sense, else at the next index entry, and a span
that holds a broken batch is not compared with its index entry.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fetchproxy.index.remote_log_index import IndexSpan
from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata
from fetchproxy.remote_log.verification.txn_check import TxnCheck
from protocol.errors import WireError
from protocol.primitives import Buffer
from protocol.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    check_crc,
    control_type,
    walk,
)

_WHERE = re.compile(r" at byte [0-9]+")  # counted from the bytes at hand: a Finding says it better


@dataclass(frozen=True, slots=True)
class Finding:
    """In the log, at `byte_position`, unless it is `in_index` or `in_metadata`."""

    byte_position: int | None
    offset: int | None
    what: str
    in_index: bool = False
    in_metadata: bool = False


@dataclass(frozen=True, slots=True)
class Next:
    """Give `take` the bytes from `position` on, at least `bytes_min` of them."""

    position: int
    bytes_min: int = HEADER_BYTES


@dataclass(slots=True)
class _SpanSum:
    """What the batches of one span say."""

    first_offset: int
    first_timestamp_ms: int
    last_offset: int = -1
    max_timestamp_ms: int = -(2**63)


class SegmentCheck:
    """`take` bytes as `Next` asks until it answers None, then `finish`; `findings` are the result.

    `continues`: the segment before it ends at `start_offset - 1`. Otherwise the first batch may
    begin below `start_offset`, as DeleteRecords can trim a log inside a batch.

    Of a segment that was clipped, what lies above its end must be whole, as it is read with the
    rest, but says nothing of the log.
    """

    def __init__(
        self,
        metadata: RemoteLogSegmentMetadata,
        spans: Sequence[IndexSpan],
        txns: TxnCheck,
        *,
        continues: bool,
    ) -> None:
        self._metadata = metadata
        self._size = metadata.segment_size_bytes
        self._spans = spans
        self._txns = txns
        self._continues = continues
        self.findings: list[Finding] = []
        self.log_is_sound = True
        # Where the next batch may begin; two places after a base offset that does not fit, as
        # either it or what came before it is wrong; none after bytes that could not be read.
        self._expected: tuple[int, ...] = (metadata.start_offset,)
        self._first = True
        self._suspect: int | None = None  # where a batch failed its CRC: its size may be wrong
        self._cut = False
        self._max_timestamp_ms = -1
        self._span = 0  # the first span that does not end at or before the position
        self._sum: _SpanSum | None = None  # of that span; None: not comparable

    def take(self, data: Buffer, position: int) -> Next | None:
        """`data` begins with the byte at `position`; None: there is no more to read."""
        at = position
        try:
            for header in walk(data, 0, min(len(data), self._size - position)):
                at = position + header.position
                if not self._batch(data, header, at):
                    return self._broken(at, "")
                at += header.size
        except WireError as error:
            return self._broken(at, _WHERE.sub("", str(error)))
        if at >= self._size:
            return None
        return self._partial(data, at - position, at)

    def short(self, position: int) -> None:
        """The object ends at `position`, before the segment does. What is there is checked."""
        self._log_fault(position, None, f"object ends here, metadata say {self._size} bytes")
        self._size = position
        self._cut = True

    def finish(self) -> None:
        end_offset = self._metadata.stored_end_offset
        trusted = not self._cut and self._suspect is None
        if trusted and self._expected and end_offset + 1 not in self._expected:
            self._log_fault(
                self._size,
                end_offset,
                f"last batch ends at offset {self._expected[0] - 1}, metadata say {end_offset}",
            )
        stated = self._metadata.max_timestamp_ms
        if self.log_is_sound and stated != self._max_timestamp_ms:
            what = f"max_timestamp_ms is {stated}, in the log it is {self._max_timestamp_ms}"
            self.findings.append(Finding(None, None, what, in_metadata=True))

    def _partial(self, data: Buffer, start: int, position: int) -> Next | None:
        """What is left holds no whole batch: ask for it, unless it cannot be in the segment."""
        left = self._size - position
        if left < HEADER_BYTES:
            return None if self._cut else self._broken(position, f"{left} bytes are no batch")
        if len(data) - start < HEADER_BYTES:
            return Next(position)
        length = int.from_bytes(data[start + 8 : start + LOG_OVERHEAD_BYTES], "big", signed=True)
        size = length + LOG_OVERHEAD_BYTES
        if size > left and self._cut:
            return None
        if size > left:
            return self._broken(position, f"batch claims {size} bytes, {left} are left")
        return Next(position, size)

    def _broken(self, position: int, what: str) -> Next | None:
        """Go on at the next index entry: the only other place where a batch is known to begin."""
        if self._suspect is None:
            offset = self._expected[0] if self._expected else None
            self._log_fault(position, offset, what)
        else:
            position = self._suspect  # its size led here, and has been reported there
        self._expected = ()
        self._suspect = None
        self._sum = None
        for span in self._spans:
            if span.position > position:
                return Next(span.position)
        return None

    def _batch(self, data: Buffer, header: BatchHeader, position: int) -> bool:
        """False: what `header` says cannot be trusted, not even its size."""
        sound = check_crc(data, header)
        known = len(self.findings)
        suspected = self._suspect is not None
        follows = self._follows(header)
        if not sound and suspected and not follows:
            return False
        self._suspect = None if sound else position
        control: int | None = None
        if not sound:
            self._log_fault(position, header.base_offset, "CRC-32C of the batch does not match")
        elif not (follows or suspected):
            self._log_fault(position, header.base_offset, self._misplaced(header))
        elif self._counts(header, position):
            self._check_epoch(header, position)
            control = self._control(data, header, position)
        self._expected = self._next_offsets(header, follows or suspected)
        self._first = False
        if header.base_offset <= self._metadata.end_offset:
            self._max_timestamp_ms = max(self._max_timestamp_ms, header.max_timestamp)
            if self.log_is_sound:
                self._txns.batch(header, control)
        self._add_to_span(header, position, clean=len(self.findings) == known)
        return True

    def _counts(self, header: BatchHeader, position: int) -> bool:
        """False: it lies above the place where the segment was clipped, which is between batches.

        (Where it was not clipped, what is wrong with its end is said once, by `finish`.)
        """
        clipped_at = self._metadata.end_offset
        if self._metadata.copied_end_offset is None or header.last_offset <= clipped_at:
            return True
        if header.base_offset <= clipped_at:
            what = f"clipped at offset {clipped_at}, inside a batch to {header.last_offset}"
            self._log_fault(position, header.base_offset, what)
        return False

    def _follows(self, header: BatchHeader) -> bool:
        """Does it begin where it may? Also true where nothing is expected."""
        if not self._expected or header.base_offset in self._expected:
            return True
        may_be_trimmed = self._first and not self._continues
        return may_be_trimmed and header.base_offset < self._expected[0] <= header.last_offset

    def _misplaced(self, header: BatchHeader) -> str:
        base, expected = header.base_offset, self._expected[0]
        kind = "hole" if base > expected else "overlap"
        return f"{kind}: batch begins at offset {base}, expected {expected}"

    def _next_offsets(self, header: BatchHeader, follows: bool) -> tuple[int, ...]:
        after = header.last_offset + 1
        if follows:
            return (after,)
        return (after, self._expected[0] + header.last_offset_delta + 1)

    def _check_epoch(self, header: BatchHeader, position: int) -> None:
        stated = epoch_at(self._metadata.segment_leader_epochs, header.base_offset)
        epoch = header.partition_leader_epoch
        if epoch not in (-1, stated):  # -1: written without epochs, so metadata have none
            self._log_fault(
                position, header.base_offset, f"leader epoch {epoch}, metadata say {stated}"
            )

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
        if wrong:
            self._index_fault(span, "; ".join(wrong))

    def _index_fault(self, span: IndexSpan, what: str) -> None:
        text = f"entry for byte {span.position} of the log: {what}"
        self.findings.append(Finding(None, span.first_offset, text, in_index=True))

    def _log_fault(self, position: int, offset: int | None, what: str) -> None:
        self.log_is_sound = False
        self.findings.append(Finding(position, offset, what))


def epoch_at(epochs: Sequence[EpochStart], offset: int) -> int:
    """The epoch of a batch that begins at `offset`; the first one also below its start; -1: none.

    The first entry starts with the segment, whose first batch may begin below that.
    """
    found = epochs[0].epoch if epochs else -1
    for entry in epochs:
        if entry.start_offset <= offset:
            found = entry.epoch
    return found


def first_newer(
    segment: RemoteLogSegmentMetadata, lineage: Sequence[EpochStart], from_offset: int
) -> int | None:
    """The first of its offsets, from that one on, that `lineage` has of a newer epoch; None: none.

    Below its first entry the lineage says nothing, and a segment without epochs is believed.
    """
    if not lineage or not segment.segment_leader_epochs:
        return None
    first = max(segment.start_offset, lineage[0].start_offset, from_offset)
    for offset in sorted({first, *(entry.start_offset for entry in lineage)}):
        if first <= offset <= segment.end_offset and epoch_at(lineage, offset) > epoch_at(
            segment.segment_leader_epochs, offset
        ):
            return offset
    return None


def clip_epochs(
    lineage: Sequence[EpochStart], start_offset: int, end_offset: int
) -> tuple[EpochStart, ...]:
    """A lineage as the metadata of the segment `start_offset` … `end_offset` state it."""
    clipped: list[EpochStart] = []
    for entry in lineage:
        if entry.start_offset <= start_offset:
            clipped = [EpochStart(entry.epoch, start_offset)]
        elif entry.start_offset <= end_offset:
            clipped.append(entry)
    return tuple(clipped)
