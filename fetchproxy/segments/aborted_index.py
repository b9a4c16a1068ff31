"""The aborted transactions of a segment, for many looks at a few of its offsets. Pure.

A `.txn` object may come from anybody who can write to the store. So a look costs by the number of
transactions that it returns, however many there are and whatever their offsets.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import merge

from fetchproxy.segments.side_files import aborted_entries, check_open

# (first offset, producer id) of a transaction. A broker's response has these two alone.
TxnStart = tuple[int, int]
# Between two notes of the open transactions there are at least so many begins and ends.
_NOTE_EVENTS_MIN = 64
# Sorted at once: as objects, the entries of a long list would take five times the memory.
_SORTED_AT_ONCE = 10_000


class AbortedIndex:
    """The entries of a `.txn` object in memory, in the order of their first offsets.

    Which transactions were open at an offset is noted at some offsets. There are so few notes that
    all of them together have at most six numbers for an entry, and so many that between two of
    them no more than half of the noted transactions begin or end.
    """

    __slots__ = ("_ends", "_firsts", "_lasts", "_note_ends", "_noted", "_notes_at", "_producers")

    def __init__(self, raw: bytes) -> None:
        """Raises CorruptSegment."""
        self._firsts, self._producers, self._lasts = (array("q") for _ in range(3))
        self._ends = array("q")  # last offsets, sorted
        for first, producer, last in _by_first_offset(raw, self._ends):
            self._firsts.append(first)
            self._producers.append(producer)
            self._lasts.append(last)
        check_open(self._firsts, self._ends)
        self._note()

    def _note(self) -> None:
        """A note has the entries before `_notes_at` that end at or above its own first offset."""
        self._noted, self._notes_at, self._note_ends = array("i"), array("i"), array("i")
        firsts, lasts, ends = self._firsts, self._lasts, self._ends
        open_now: list[int] = []
        noted_at = noted_ended = 0
        for number, first in enumerate(firsts):
            ended = bisect_left(ends, first, noted_ended)
            events = number - noted_at + ended - noted_ended
            if events < _NOTE_EVENTS_MIN or 2 * events < len(open_now):
                continue
            open_now += range(noted_at, number)
            open_now = [i for i in open_now if lasts[i] >= first]
            noted_at, noted_ended = number, ended
            self._noted.extend(open_now)
            self._notes_at.append(number)
            self._note_ends.append(len(self._noted))

    @property
    def memory_bytes(self) -> int:
        return 800 + 32 * len(self._firsts) + 4 * len(self._noted) + 8 * len(self._notes_at)

    def count(self, first: int, last: int) -> int:
        """How many have an offset in `first` … `last` (inclusive)."""
        return bisect_right(self._firsts, last) - bisect_left(self._ends, first)

    def up_to(self, first: int, count_max: int) -> int | None:
        """The largest `last` for which `count(first, last)` is at most `count_max`; below `first`
        if there is none. None: it is so for each.
        """
        number = bisect_left(self._ends, first) + count_max
        return self._firsts[number] - 1 if number < len(self._firsts) else None

    def starts(self, first: int, last: int) -> list[TxnStart]:
        """Those with an offset in `first` … `last`, sorted."""
        firsts, producers, lasts = self._firsts, self._producers, self._lasts
        begun = bisect_left(firsts, first)
        note = bisect_left(self._notes_at, begun) - 1  # it has all that end at or above `first`
        candidates: list[int] = []
        noted_at = 0
        if note >= 0:
            noted_at = self._notes_at[note]
            candidates.extend(
                self._noted[self._note_ends[note - 1] if note else 0 : self._note_ends[note]]
            )
        candidates.extend(range(noted_at, begun))
        still_open = [(firsts[i], producers[i]) for i in candidates if lasts[i] >= first]
        end = bisect_right(firsts, last, begun)
        return [*still_open, *zip(firsts[begun:end], producers[begun:end], strict=True)]


def _by_first_offset(raw: bytes, ends: array[int]) -> Iterator[tuple[int, int, int]]:
    """First offset, producer id and last offset of all entries, sorted. Adds the last offsets to
    `ends` in their order in `raw`, which is sorted, before it returns anything.
    """
    runs: list[tuple[array[int], array[int], array[int]]] = []
    run: list[tuple[int, int, int]] = []
    for producer, first, last, _ in aborted_entries(raw):
        ends.append(last)
        run.append((first, producer, last))
        if len(run) == _SORTED_AT_ONCE:
            runs.append(_columns(run))
            run = []
    if not runs:
        return iter(sorted(run))
    runs.append(_columns(run))
    return merge(*(zip(*columns, strict=True) for columns in runs))


def _columns(run: list[tuple[int, int, int]]) -> tuple[array[int], array[int], array[int]]:
    run.sort()
    firsts, producers, lasts = (array("q", (row[i] for row in run)) for i in range(3))
    return firsts, producers, lasts


@dataclass(frozen=True, slots=True)
class AbortedSpan:
    """The aborted transactions of some offsets, which one segment lists; both inclusive."""

    index: AbortedIndex
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.index.count(self.first, self.last)


def cut_spans(spans: Iterable[AbortedSpan], last: int) -> tuple[AbortedSpan, ...]:
    """Without the offsets above `last`."""
    return tuple(replace(span, last=min(span.last, last)) for span in spans if span.first <= last)


def txn_starts(spans: Iterable[AbortedSpan]) -> Generator[None, None, list[TxnStart]]:
    """The transactions of all spans, each once, sorted. The caller may pause at each yield.

    Each segment lists all transactions that overlap it. So two segments may list the same one.
    """
    every: list[TxnStart] = []
    several = False
    for span in spans:
        several |= bool(every)
        every += span.index.starts(span.first, span.last)
        yield
    return sorted(set(every)) if several else every
