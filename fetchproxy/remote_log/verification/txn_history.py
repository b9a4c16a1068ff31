"""Which transactions of a partition were aborted, from its log alone. Pure.

The archiver is told by the broker (`aborted_txns`); this is for whoever has only the log. What it
cannot know is how a transaction ended whose marker the archive does not hold, nor which ones were
open where the log that is known begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn
from fetchproxy.remote_log.sources.aborted_txns import AbortedTxnCollector
from protocol.record_batch import CONTROL_ABORT, CONTROL_COMMIT


@dataclass(frozen=True, slots=True)
class TxnEvent:
    """A batch of a transaction: data, or (`control`, its type) a marker."""

    producer_id: int
    offset: int
    control: int | None


@dataclass(frozen=True, slots=True)
class _Txn:
    producer_id: int
    first_offset: int  # of the data that was seen
    last_offset: int  # its marker; where none was seen: how far the log was


class TxnHistory:
    """`add` in the order of the log; `restart` where it is not continuous. Then ask.

    It begins with a log's very first offset. Memory: one entry per aborted transaction, and one
    per producer.
    """

    def __init__(self) -> None:
        self._open: dict[int, int] = {}  # producer id -> first offset
        self._aborted: list[_Txn] = []
        self._undecided: list[_Txn] = []  # the end of these was not seen
        self._dark: list[tuple[int, int]] = []  # offsets at which others may have been open
        self._run_start = 0
        self._open_is_known = True

    @property
    def is_dark(self) -> bool:
        """What was open where the log went on is not known."""
        return not self._open_is_known

    def add(self, event: TxnEvent) -> None:
        if event.control is None:
            self._open.setdefault(event.producer_id, event.offset)
            return
        if event.control not in (CONTROL_ABORT, CONTROL_COMMIT):
            return
        first_offset = self._open.pop(event.producer_id, None)
        if first_offset is not None and event.control == CONTROL_ABORT:
            self._aborted.append(_Txn(event.producer_id, first_offset, event.offset))

    def restart(
        self, log_end_offset: int, goes_on_at: int, aborted_open: Mapping[int, int] | None
    ) -> None:
        """The log known so far ends at the one (inclusive), and goes on at the other.

        `aborted_open`: the first offset, by producer id, of each transaction that was open there
        and was aborted later; None: not known.
        """
        self._undecided += [_Txn(*txn, log_end_offset) for txn in self._open.items()]
        if self.is_dark:
            self._dark.append((self._run_start, log_end_offset))
        self._open = dict(aborted_open or {})
        self._open_is_known = aborted_open is not None or goes_on_at == 0
        self._run_start = goes_on_at

    def end(self, log_end_offset: int) -> None:
        """Nothing more is added."""
        self.restart(log_end_offset, log_end_offset + 1, None)

    def aborted_in(self, first: int, last: int) -> tuple[AbortedTxn, ...]:
        """The entries of the segment `first` … `last`, as its transaction index has them.

        Raises CorruptSegment where the archive does not show all of them, or how one ended.
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
        found = [txn for txn in self._aborted if _overlaps(txn, first, last)]
        collector = AbortedTxnCollector()
        collector.report((txn.producer_id, txn.first_offset) for txn in found)
        for txn in sorted(found, key=lambda txn: txn.last_offset):
            if txn.last_offset <= last:
                collector.abort_marker(txn.producer_id, txn.last_offset)
        return collector.up_to(last)


def _overlaps(txn: _Txn, first: int, last: int) -> bool:
    return txn.first_offset <= last and txn.last_offset >= first
