"""Holds a partition's transaction indexes against the markers in its log, segment by segment. Pure.

What must be true (`fetchproxy.index.transaction_index`): a segment lists an aborted transaction if
and only if the transaction overlaps it. Whether one was aborted is known at its marker, perhaps
segments later, so open transactions are carried over; nothing else is. Data below the first checked
offset is not seen, and entries that begin there are believed where the log does not contradict.
"""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.index.transaction_index import ENTRY_BYTES
from fetchproxy.model import AbortedTxn
from protocol.record_batch import CONTROL_ABORT, CONTROL_COMMIT, BatchHeader


@dataclass(frozen=True, slots=True)
class TxnFault:
    """`object_key` is that of the transaction index which is wrong."""

    object_key: str
    byte_position: int | None
    offset: int
    what: str


@dataclass(slots=True)
class _Open:
    """A transaction without its marker yet; the first segments that list and do not list it."""

    first_offset: int
    listed_in: str | None = None
    unlisted_in: str | None = None


class TxnCheck:
    """`begin`, each batch in order, `end`; per segment. `restart` where the log is not continuous.

    Memory: one entry per producer with an open transaction, and the segment's own index.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}
        self._run_start: int | None = None
        self._ended: set[int] = set()  # producers of which a marker was seen since then
        self._key = ""
        self._end_offset = -1
        self._entries: tuple[AbortedTxn, ...] = ()
        self._of_producer: dict[int, list[int]] = {}
        self._explained: set[int] = set()
        self._faults: list[TxnFault] = []

    def restart(self) -> None:
        self._open.clear()
        self._ended.clear()
        self._run_start = None

    def begin(
        self, entries: tuple[AbortedTxn, ...], key: str, start_offset: int, end_offset: int
    ) -> None:
        if self._run_start is None:
            self._run_start = start_offset
        self._key = key
        self._end_offset = end_offset
        self._entries = entries
        self._of_producer = {}
        for i, entry in enumerate(entries):
            self._of_producer.setdefault(entry.producer_id, []).append(i)
        self._explained = set()
        self._faults = []

    def batch(self, header: BatchHeader, control: int | None) -> None:
        """`control` is the type of a control batch."""
        if not header.is_transactional:
            return
        if control is None:
            self._open.setdefault(header.producer_id, _Open(header.base_offset))
        elif control == CONTROL_ABORT:
            self._aborted(header.producer_id, header.base_offset)
            self._ended.add(header.producer_id)
        elif control == CONTROL_COMMIT:
            self._committed(header.producer_id, header.base_offset)
            self._ended.add(header.producer_id)

    def end(self) -> list[TxnFault]:
        """The faults of this segment's index, and of earlier ones that this segment proves."""
        for producer_id, txn in self._open.items():
            if self._explain(producer_id, txn, self._end_offset):
                txn.listed_in = txn.listed_in or self._key
            else:
                txn.unlisted_in = txn.unlisted_in or self._key
        for i, entry in enumerate(self._entries):
            if i not in self._explained and not self._begins_unseen(entry, self._end_offset):
                self._fault(
                    i,
                    entry.first_offset,
                    f"producer {entry.producer_id} has no ABORT marker at {entry.last_offset} "
                    f"that ends a transaction from {entry.first_offset}",
                )
        return self._faults

    def _aborted(self, producer_id: int, marker: int) -> None:
        txn = self._open.pop(producer_id, None)
        if txn is None:
            # No data was seen: none was written (no entry), or it lies below the checked offsets.
            self._explained.update(
                i
                for i in self._of_producer.get(producer_id, ())
                if self._begins_unseen(self._entries[i], marker)
            )
            return
        what = f"the transaction of producer {producer_id}, aborted at {marker}, is not listed"
        if not self._explain(producer_id, txn, marker):
            self._fault(None, txn.first_offset, what)
        if txn.unlisted_in is not None:
            self._faults.append(TxnFault(txn.unlisted_in, None, txn.first_offset, what))

    def _committed(self, producer_id: int, marker: int) -> None:
        txn = self._open.pop(producer_id, None)
        if txn is None:
            return
        what = f"the transaction of producer {producer_id} is listed, but committed at {marker}"
        for i in self._of_producer.get(producer_id, ()):
            if self._entries[i].first_offset == txn.first_offset:
                self._explained.add(i)
                self._fault(i, txn.first_offset, what)
        if txn.listed_in is not None:
            self._faults.append(TxnFault(txn.listed_in, None, txn.first_offset, what))

    def _explain(self, producer_id: int, txn: _Open, last_offset: int) -> bool:
        """Find the entry of `txn`, which must end at `last_offset`."""
        for i in self._of_producer.get(producer_id, ()):
            entry = self._entries[i]
            if entry.last_offset == last_offset and (
                entry.first_offset == txn.first_offset
                or (entry.first_offset < txn.first_offset and self._begins_below(entry))
            ):
                self._explained.add(i)
                return True
        return False

    def _begins_below(self, entry: AbortedTxn) -> bool:
        """It may be right. A marker that was seen has ended what the producer had begun below."""
        if self._run_start is None or entry.producer_id in self._ended:
            return False
        return entry.first_offset < self._run_start

    def _begins_unseen(self, entry: AbortedTxn, last_offset: int) -> bool:
        return entry.last_offset == last_offset and self._begins_below(entry)

    def _fault(self, entry: int | None, offset: int, what: str) -> None:
        position = None if entry is None else entry * ENTRY_BYTES
        self._faults.append(TxnFault(self._key, position, offset, what))
