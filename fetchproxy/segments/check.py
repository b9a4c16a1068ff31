"""Compares segments' bytes with their metadata and indexes, one segment after another. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.primitives import Buffer
from fetchproxy_protocol.record_batch import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchHeader,
    check_crc,
    control_type,
    walk,
)

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn, EpochStart, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.health import Condition, Kind, Offsets, of_object
from fetchproxy.segments.contents import AccumulatedSegment, listed_aborted
from fetchproxy.segments.leader_epochs import NOT_COUNTED, are_those_of, epoch_at, rising
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.overlaps import first_difference
from fetchproxy.segments.remote_log_index import IndexSpan, RemoteLogIndex
from fetchproxy.segments.side_files import ENTRY_BYTES, decode_epochs

_WHERE = re.compile(r" at byte [0-9]+")  # within the bytes at hand; a condition has the true place


# The broker tells the archiver of aborted transactions (`aborted_txns`); this code is for callers
# with only the log. It cannot know the end of a transaction whose marker is not in the archive,
# nor the transactions that were open at the start of the known log.


@dataclass(frozen=True, slots=True)
class TxnEvent:
    """A batch of a transaction: data, or a marker of type `control`."""

    producer_id: int
    offset: int
    control: int | None


class _Txn(NamedTuple):
    last_offset: int  # the marker; if none was seen, the end of the seen log
    first_offset: int  # the first seen data
    producer_id: int


class TxnHistory:
    """Call `add` in the order of the log, and `restart` at each break in it. Then ask.

    It begins with a log's very first offset. Memory: one entry per aborted transaction, and one
    per producer.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # producer id -> first offset
        self._aborted: list[_Txn] = []
        self._undecided: list[_Txn] = []  # their end was not seen
        self._dark: list[tuple[int, int]] = []  # offsets at which others may have been open
        self._run_start = 0
        self.is_dark = False  # the transactions open at `_run_start` are not known

    def add(self, event: TxnEvent) -> None:
        if event.control is None:
            self._open.setdefault(event.producer_id, event.offset)
            return
        if event.control not in (CONTROL_ABORT, CONTROL_COMMIT):
            return
        first_offset = self._open.pop(event.producer_id, None)
        if first_offset is not None and event.control == CONTROL_ABORT:
            self._aborted.append(_Txn(event.offset, first_offset, event.producer_id))

    def restart(
        self, log_end_offset: int, goes_on_at: int, aborted_open: Mapping[int, int] | None
    ) -> None:
        """The known log ends at `log_end_offset` (inclusive) and goes on at `goes_on_at`.

        `aborted_open`: the first offset, by producer id, of each transaction that was open there
        and was aborted later; None: not known.
        """
        self._undecided += [
            _Txn(log_end_offset, first_offset, producer_id)
            for producer_id, first_offset in self._open.items()
        ]
        if self.is_dark:
            self._dark.append((self._run_start, log_end_offset))
        self._open = dict(aborted_open or {})
        self.is_dark = aborted_open is None and goes_on_at != 0
        self._run_start = goes_on_at

    def end(self, log_end_offset: int) -> None:
        self.restart(log_end_offset, log_end_offset + 1, None)

    def aborted_in(self, first: int, last: int) -> tuple[AbortedTxn, ...]:
        """The transaction index entries of the segment `first` … `last`.

        Raises CorruptSegment if the archive does not show all of these transactions, or not the end
        of one.
        """
        for start, end in self._dark:
            if start <= last and end >= first:
                raise CorruptSegment(
                    f"nothing says which transactions were open at offset {start}, where the log "
                    "that is known goes on"
                )
        for txn in self._undecided:
            if _overlaps(txn, first, last):
                raise CorruptSegment(
                    f"the archive does not show how the transaction of producer {txn.producer_id} "
                    f"from offset {txn.first_offset} ended"
                )
        return listed_aborted({t for t in self._aborted if _overlaps(t, first, last)}, last)


def _overlaps(txn: _Txn, first: int, last: int) -> bool:
    return txn.first_offset <= last and txn.last_offset >= first


@dataclass(slots=True)
class SeenLog:
    """The part of the partition's log that was read, front to back."""

    end: int = -1  # every event from the history's start up to here was seen
    last: RemoteLogSegmentMetadata | None = None
    lineage: tuple[EpochStart, ...] | None = None  # up to `lineage_end`; None: not known
    lineage_end: int = -1  # of the last segment with a noted lineage; -1: there was none

    def goes_on_with(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """True: the segment continues this log, or it is another copy of the last one."""
        if metadata.start_offset > self.end + 1:
            return False
        return self.last is None or first_difference(self.last, metadata) is None

    def lineage_before(self, metadata: RemoteLogSegmentMetadata) -> tuple[EpochStart, ...] | None:
        """The lineage below the segment's start. None: it is missing or not known."""
        if self.lineage is None or metadata.start_offset > self.lineage_end + 1:
            return None
        return tuple(e for e in self.lineage if e.start_offset < metadata.start_offset)

    def note_lineage(
        self, metadata: RemoteLogSegmentMetadata, found: tuple[EpochStart, ...] | None
    ) -> None:
        if metadata.end_offset >= self.lineage_end:
            self.lineage_end = metadata.end_offset
            self.lineage = found and tuple(
                e for e in found if e.start_offset <= metadata.end_offset
            )


@dataclass(slots=True)
class _Open:
    """A transaction without a marker yet, and the first segments that list it and omit it."""

    first_offset: int
    listed_in: str | None = None
    unlisted_in: str | None = None


class TxnCheck:
    """Compares a partition's transaction indexes with the markers in its log, by segments.

    For each segment call `begin`, `batch` in order, `end`. Call `restart` at a break in the log.

    Memory: one entry per producer with an open transaction, and the segment's own index.

    The rule (`fetchproxy.segments.side_files`): a segment lists an aborted transaction if and only
    if the transaction overlaps it. Only the marker shows an abort, perhaps segments later, so the
    check carries over open transactions, and nothing else. It does not see data below the first
    checked offset. It believes entries that begin there unless the log contradicts them.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._run_start: int | None = None
        self._next_offset: int | None = None
        self._has_holes = False  # compaction has removed records since then
        self._ended: dict[int, int] = {}  # producer -> its last marker seen since then
        self._tp: TopicIdPartition | None = None
        self._key = ""
        self._end_offset = -1
        self._entries: tuple[AbortedTxn, ...] = ()
        self._of_producer: dict[int, list[int]] = {}
        self._explained: set[int] = set()
        self._faults: list[Condition] = []

    def restart(self) -> None:
        self._open.clear()
        self._ended.clear()
        self._run_start = self._next_offset = None
        self._has_holes = False

    def begin(
        self, tp: TopicIdPartition, entries: tuple[AbortedTxn, ...], key: str, offsets: Offsets
    ) -> None:
        if self._run_start is None:
            self._run_start = offsets[0]
        self._tp, self._key, self._end_offset = tp, key, offsets[1]
        self._entries = entries
        self._of_producer = {}
        for i, entry in enumerate(entries):
            self._of_producer.setdefault(entry.producer_id, []).append(i)
        self._explained = set()
        self._faults = []

    def batch(self, header: BatchHeader, control: int | None) -> None:
        self._note_holes(header)
        if not header.is_transactional:
            return
        if control is None:
            self._open.setdefault(header.producer_id, _Open(header.base_offset))
        elif control == CONTROL_ABORT:
            self._aborted(header.producer_id, header.base_offset)
            self._ended[header.producer_id] = header.base_offset
        elif control == CONTROL_COMMIT:
            self._committed(header.producer_id, header.base_offset)
            self._ended[header.producer_id] = header.base_offset

    def _note_holes(self, header: BatchHeader) -> None:
        expected, self._next_offset = self._next_offset, header.last_offset + 1
        missing = expected is not None and header.base_offset > expected
        if missing or header.records_count != header.last_offset_delta + 1:
            self._has_holes = True

    def end(self) -> list[Condition]:
        """The faults of this segment's index, and of earlier ones that this segment proves."""
        for producer_id, txn in self._open.items():
            if self._explain(producer_id, txn, self._end_offset):
                txn.listed_in = txn.listed_in or self._key
            else:
                txn.unlisted_in = txn.unlisted_in or self._key
        for i, entry in enumerate(self._entries):
            if i not in self._explained and not self._may_begin_unseen(entry, self._end_offset):
                self._fault(
                    self._key,
                    entry.first_offset,
                    f"producer {entry.producer_id} has no ABORT marker at {entry.last_offset} "
                    f"that ends a transaction from {entry.first_offset}",
                    i,
                )
        return self._faults

    def _aborted(self, producer_id: int, marker: int) -> None:
        txn = self._open.pop(producer_id, None)
        if txn is None:
            # No data was seen: none was written (no entry), it lies below the checked offsets, or
            # compaction has removed it.
            self._explained.update(
                i
                for i in self._of_producer.get(producer_id, ())
                if self._may_begin_unseen(self._entries[i], marker)
            )
            return
        what = f"the transaction of producer {producer_id}, aborted at {marker}, is not listed"
        if not self._explain(producer_id, txn, marker):
            self._fault(self._key, txn.first_offset, what)
        if txn.unlisted_in is not None:
            self._fault(txn.unlisted_in, txn.first_offset, what)

    def _committed(self, producer_id: int, marker: int) -> None:
        txn = self._open.pop(producer_id, None)
        if txn is None:
            return
        what = f"the transaction of producer {producer_id} is listed, but committed at {marker}"
        for i in self._of_producer.get(producer_id, ()):
            if self._entries[i].first_offset == txn.first_offset:
                self._explained.add(i)
                self._fault(self._key, txn.first_offset, what, i)
        if txn.listed_in is not None:
            self._fault(txn.listed_in, txn.first_offset, what)

    def _explain(self, producer_id: int, txn: _Open, last_offset: int) -> bool:
        for i in self._of_producer.get(producer_id, ()):
            entry = self._entries[i]
            if entry.last_offset == last_offset and (
                entry.first_offset == txn.first_offset
                or (entry.first_offset < txn.first_offset and self._begins_after_marker(entry))
            ):
                self._explained.add(i)
                return True
        return False

    def _begins_after_marker(self, entry: AbortedTxn) -> bool:
        """True: the entry may be right: its first records lie below the checked offsets, or
        compaction has removed them. A seen marker ends what its producer began before.
        """
        if self._run_start is None or entry.first_offset <= self._ended.get(entry.producer_id, -1):
            return False
        return self._has_holes or entry.first_offset < self._run_start

    def _may_begin_unseen(self, entry: AbortedTxn, last_offset: int) -> bool:
        return entry.last_offset == last_offset and self._begins_after_marker(entry)

    def _fault(self, key: str, offset: int, what: str, entry: int | None = None) -> None:
        position = None if entry is None else entry * ENTRY_BYTES
        assert self._tp is not None  # `begin` came first
        self._faults.append(of_object(Kind.SEGMENT_DAMAGED, self._tp, key, what, offset, position))


# Each fault is reported once, at its place, and its consequences are not. After a broken batch the
# walk goes on after it if that makes sense, else at the next index entry. A span that holds a
# broken batch is not compared with its index entry.


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
        stated = self._metadata.max_timestamp_ms
        if self.log_is_sound and stated != self._max_timestamp_ms:
            what = f"max_timestamp_ms is {stated}, in the log it is {self._max_timestamp_ms}"
            self._fault(SegmentFile.METADATA, what)

    def _partial(self, data: Buffer, start: int, position: int) -> Next | None:
        """Asks for the rest of a batch that is not whole, unless the segment cannot hold it."""
        left = self._size - position
        if left < HEADER_BYTES:
            return None if self._cut else self._broken(position, f"{left} bytes are not a batch")
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
        """Goes on at the next index entry, the only other place where a batch surely begins."""
        if self._suspect is None:
            offset = self._expected[0] if self._expected else None
            self._log_fault(position, offset, what)
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
        known = len(self.faults)
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
            what = f"overlap: batch begins at offset {base}, expected {expected}"
            self._log_fault(position, base, what)
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
        self._add_to_span(header, position, clean=len(self.faults) == known)
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
            what = f"hole: batch begins at offset {base}, expected {expected}"
            self._log_fault(position, base, what)
            self._hole = None

    def _counts(self, header: BatchHeader, position: int) -> bool:
        """False: the batch lies above the clipped segment's end, which is between batches.

        (If the segment was not clipped, `finish` reports a wrong end, once.)
        """
        clipped_at = self._metadata.end_offset
        if self._metadata.copied_end_offset is None or header.last_offset <= clipped_at:
            return True
        if header.base_offset <= clipped_at:
            what = f"clipped at offset {clipped_at}, inside a batch to {header.last_offset}"
            self._log_fault(position, header.base_offset, what)
        return False

    def _follows(self, header: BatchHeader) -> bool:
        """True: the batch begins at an expected offset, or no offset is expected."""
        if not self._expected or header.base_offset in self._expected:
            return True
        may_be_trimmed = self._first and not self._follows_previous_segment
        return may_be_trimmed and header.base_offset < self._expected[0] <= header.last_offset

    def _check_epoch(self, header: BatchHeader, position: int) -> None:
        epochs = self._metadata.segment_leader_epochs
        stated = epoch_at(epochs, header.base_offset)
        epoch = header.partition_leader_epoch
        if epoch == -1 or (epochs and stated == NOT_COUNTED):
            return  # -1: written without epochs, so metadata have none
        if epoch != stated:
            what = f"leader epoch {epoch}, metadata say {stated}"
            self._log_fault(position, header.base_offset, what)
            return
        # A batch that begins below the segment counts from the segment's start on.
        first = epochs[0].start_offset
        if max(header.base_offset, self._metadata.start_offset) < first:
            what = f"leader epoch {epoch}, metadata say from {first} on"
            self._log_fault(position, header.base_offset, what)

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

    def _index_fault(self, span: IndexSpan, what: str) -> None:
        text = f"entry for byte {span.position} of the log: {what}"
        self._fault(SegmentFile.INDEX, text, span.first_offset)

    def _log_fault(self, position: int, offset: int | None, what: str) -> None:
        self.log_is_sound = False
        self._fault(SegmentFile.LOG, what, offset, position)

    def _fault(
        self, file: SegmentFile, what: str, offset: int | None = None, position: int | None = None
    ) -> None:
        tp, key = self._metadata.topic_id_partition, self._key_of(file)
        self.faults.append(of_object(Kind.SEGMENT_DAMAGED, tp, key, what, offset, position))


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
        stated = epoch_at(segment.segment_leader_epochs, offset)
        is_inside = first <= offset <= segment.end_offset
        if is_inside and epoch_at(lineage, offset) > stated != NOT_COUNTED:
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


@dataclass(frozen=True, slots=True)
class Witnesses:
    """The witnesses of the end of a segment's log, besides the log.

    `known`: its metadata; None: they are lost. `index`, `epochs`: the bytes of these objects; None:
    they are missing. `starts`: the start offsets of the partition's other segments.
    `finished_to`: the last offset known to have been archived. `stated_end`: the last offset on
    record. None: there are no records.

    Only a whole log may be used to derive anything. If a log was cut between two batches, each
    remaining batch still passes its CRC. So a second witness has to confirm the log's end: the
    segment's metadata, else its index or the start of the next segment, or both. The CRC does not
    cover a batch's leader epoch either, so the epoch needs a second witness, too.
    """

    known: RemoteLogSegmentMetadata | None
    index: bytes | None
    epochs: bytes | None
    starts: Collection[int]
    finished_to: int | None
    stated_end: int | None


def check_whole(log: AccumulatedSegment, witnesses: Witnesses) -> None:
    """Raises CorruptSegment unless a witness confirms that `log` is the segment's whole log."""
    known = witnesses.known
    if known is None:
        _check_first_batch(log)
        _check_lost(log, witnesses)
    elif (known.stored_end_offset, known.segment_size_bytes) != (log.end_offset, log.size_bytes):
        _check_first_batch(log)
        try:
            _parsed(witnesses.index).check_covers(log.end_offset, log.size_bytes)
        except CorruptSegment as error:
            raise CorruptSegment(f"log and metadata disagree on its end, and {error}") from None
        if known.stored_end_offset != log.end_offset and not _ends_there(log, witnesses):
            raise CorruptSegment("log and metadata disagree on its end, and nothing begins there")
    _check_epochs(log, witnesses)


def _check_first_batch(log: AccumulatedSegment) -> None:
    """A hole before the first batch is legal, and it is also what a later segment's log shows if it
    lies under this segment's name. So only metadata that agree with the log confirm such a hole.
    """
    first = log.index[0].first_offset
    if first > log.start_offset:
        raise CorruptSegment(
            f"its log begins at offset {first}, and no metadata confirm that the offsets from "
            f"{log.start_offset} on are a hole"
        )


def _check_lost(log: AccumulatedSegment, witnesses: Witnesses) -> None:
    if witnesses.finished_to is not None and log.start_offset > witnesses.finished_to:
        raise CorruptSegment("its metadata are lost, and nothing says that it was finished")
    try:
        _parsed(witnesses.index).check_covers(log.end_offset, log.size_bytes)
    except CorruptSegment as error:
        if not _ends_there(log, witnesses):
            raise CorruptSegment(f"nothing confirms where its log ends, and {error}") from None


def _ends_there(log: AccumulatedSegment, witnesses: Witnesses) -> bool:
    """True: another segment begins right after the log, or the archive was finished to its end."""
    return log.end_offset + 1 in witnesses.starts or log.end_offset == witnesses.stated_end


def _check_epochs(log: AccumulatedSegment, witnesses: Witnesses) -> None:
    known = witnesses.known
    end = log.end_offset if known is None else min(known.end_offset, log.end_offset)
    of_log = clip_epochs(log.leader_epochs, log.start_offset, end)
    if known is not None and are_those_of(of_log, known.segment_leader_epochs):
        return
    beside = epochs_beside(witnesses.epochs, log.start_offset, end)
    if beside is None:
        if known is None:
            return  # no witness contradicts it
    elif beside == of_log or (known is None and agrees(beside, of_log)):
        return
    raise CorruptSegment(f"the log has {of_log}, and what else says its leader epochs does not")


def epochs_beside(
    raw: bytes | None, start_offset: int, end_offset: int
) -> tuple[EpochStart, ...] | None:
    """The segment's epochs in its `.epochs`. None: it is missing or unreadable."""
    if raw is None:
        return None
    try:
        return clip_epochs(decode_epochs(raw), start_offset, end_offset)
    except CorruptSegment:
        return None


def epochs_that_agree(
    metadata: RemoteLogSegmentMetadata, raw: bytes | None
) -> tuple[EpochStart, ...] | None:
    """The lineage in `raw`. None: it does not agree with the segment's metadata."""
    beside = epochs_beside(raw, metadata.start_offset, metadata.end_offset)
    if raw is None or beside is None or not agrees(beside, metadata.segment_leader_epochs):
        return None
    return decode_epochs(raw)


def agrees(beside: Sequence[EpochStart], epochs: Sequence[EpochStart]) -> bool:
    """Batches without an epoch add none to a segment, but do not end the lineage before it: what
    such batches begin a segment with is in `beside` alone, as the first epoch or its start.
    """
    lineage, stated = tuple(beside), rising(epochs)
    if stated in (lineage, lineage[1:]):
        return True
    if not lineage or not stated or lineage[1:] != stated[1:]:
        return False
    return lineage[0].epoch == stated[0].epoch and lineage[0].start_offset < stated[0].start_offset


def _parsed(index: bytes | None) -> RemoteLogIndex:
    if index is None:
        raise CorruptSegment("its index is missing")
    return RemoteLogIndex.parse(index)
