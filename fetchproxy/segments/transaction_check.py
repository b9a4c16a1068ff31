"""Compares a log's transactions with the segments' transaction indexes. Pure.

The broker tells the archiver of aborted transactions (`aborted_txns`); this code is for callers
with only the log. It cannot know the end of a transaction whose marker is not in the archive, nor
the transactions that were open at the start of the known log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fetchproxy_protocol.record_batch import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    BatchHeader,
)

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn, EpochStart, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.health import Condition, Kind, Offsets, of_object
from fetchproxy.segments.contents import listed_aborted
from fetchproxy.segments.overlaps import first_difference
from fetchproxy.segments.side_files import ENTRY_BYTES


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
        self._note_aborted: list[_Txn] = []
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
            self._note_aborted.append(_Txn(event.offset, first_offset, event.producer_id))

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
        return listed_aborted({t for t in self._note_aborted if _overlaps(t, first, last)}, last)


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
        self, metadata: RemoteLogSegmentMetadata, lineage: tuple[EpochStart, ...] | None
    ) -> None:
        if metadata.end_offset >= self.lineage_end:
            self.lineage_end = metadata.end_offset
            self.lineage = lineage and tuple(
                e for e in lineage if e.start_offset <= metadata.end_offset
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
            self._note_aborted(header.producer_id, header.base_offset)
            self._ended[header.producer_id] = header.base_offset
        elif control == CONTROL_COMMIT:
            self._note_committed(header.producer_id, header.base_offset)
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

    def _note_aborted(self, producer_id: int, marker: int) -> None:
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
        message = f"the transaction of producer {producer_id}, aborted at {marker}, is not listed"
        if not self._explain(producer_id, txn, marker):
            self._fault(self._key, txn.first_offset, message)
        if txn.unlisted_in is not None:
            self._fault(txn.unlisted_in, txn.first_offset, message)

    def _note_committed(self, producer_id: int, marker: int) -> None:
        txn = self._open.pop(producer_id, None)
        if txn is None:
            return
        message = f"the transaction of producer {producer_id} is listed, but committed at {marker}"
        for i in self._of_producer.get(producer_id, ()):
            if self._entries[i].first_offset == txn.first_offset:
                self._explained.add(i)
                self._fault(self._key, txn.first_offset, message, i)
        if txn.listed_in is not None:
            self._fault(txn.listed_in, txn.first_offset, message)

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

    def _fault(self, key: str, offset: int, message: str, entry: int | None = None) -> None:
        position = None if entry is None else entry * ENTRY_BYTES
        assert self._tp is not None  # `begin` came first
        self._faults.append(
            of_object(Kind.SEGMENT_DAMAGED, self._tp, key, message, offset, position)
        )
