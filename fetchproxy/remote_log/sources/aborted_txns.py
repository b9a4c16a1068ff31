"""The aborted transactions of one segment, from what the broker says and from the markers. Pure.

A read_committed fetch lists each aborted transaction that overlaps the fetched range as
(producer id, first offset), whether or not its ABORT marker lies in the range. The list is complete
for all offsets below the LSO, as an offset is below it only once its transaction is decided. The
last offset is that of the producer's next ABORT marker after the first offset.

Each segment lists *every* aborted transaction that overlaps it (see
`fetchproxy.index.transaction_index`), and its first fetch begins at its first offset, so a segment
needs nothing from the one before it. Where the marker is not in it, the entry ends with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from fetchproxy.model import AbortedTxn


class AbortedTxnCollector:
    """Feed it in log order: first what a fetch reports, then the markers of its batches."""

    def __init__(self) -> None:
        self._marker_of: dict[tuple[int, int], int | None] = {}
        self._open: dict[int, list[int]] = {}  # producer id -> first offsets without a marker yet

    def report(self, aborted: Iterable[tuple[int, int]]) -> None:
        """(producer id, first offset) pairs; those known already change nothing."""
        for producer_id, first_offset in aborted:
            if (producer_id, first_offset) not in self._marker_of:
                self._marker_of[(producer_id, first_offset)] = None
                self._open.setdefault(producer_id, []).append(first_offset)

    def abort_marker(self, producer_id: int, offset: int) -> None:
        """An ABORT marker ends the producer's open transaction; without data there is none.

        A fetch may also have reported the producer's next aborted transaction: that stays open.
        """
        later: list[int] = []
        for first_offset in self._open.pop(producer_id, ()):
            if first_offset < offset:
                self._marker_of[(producer_id, first_offset)] = offset
            else:
                later.append(first_offset)
        if later:
            self._open[producer_id] = later

    def up_to(self, last: int) -> tuple[AbortedTxn, ...]:
        """The entries of the segment that ends with offset `last` (inclusive), by last offset.

        `last_stable_offset` as in Kafka's ProducerStateManager, counting aborted transactions only:
        a search in order of the markers may stop at an entry whose LSO it has reached.
        """
        found = sorted(
            (last if marker is None else marker, first_offset, producer_id)
            for (producer_id, first_offset), marker in self._marker_of.items()
            if first_offset <= last
        )
        entries: list[AbortedTxn] = []
        undecided = last + 1  # lowest first offset of the transactions that end later
        for last_offset, first_offset, producer_id in reversed(found):
            stable = min(last_offset + 1, undecided)
            entries.append(AbortedTxn(first_offset, last_offset, producer_id, stable))
            undecided = min(undecided, first_offset)
        entries.reverse()
        return tuple(entries)
