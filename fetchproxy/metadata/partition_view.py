"""An immutable picture of one partition's archive, and the questions a read asks of it. Pure.

The segments are rows (`columns`), of which values are made where somebody asks for one.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise

from fetchproxy.metadata.columns import SegmentRows
from fetchproxy.model import (
    FIRST_HISTORY,
    LogHistory,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """`segments` are finished ones, by offset; `read_at` is loop time (s).

    A segment's value is made anew each time: two are the same segment if their ids are.
    Their starts and ends both rise, but that one which reaches over `history.kept_below` may start
    below those before it, as it counts from there on. Two neighbours may overlap (`overlaps`):
    whoever goes on from one to the next looks up the *offset* after the first, never the next
    one's first byte.
    """

    tip: TopicIdPartition
    segments: SegmentRows
    # Some copy is under way, or there without being readable: what is not here yet may come.
    copies_started: bool
    read_at: float
    # Base offsets, rising, of segments whose metadata cannot be read: what they hold is unknown.
    unreadable: tuple[int, ...] = ()
    # Copies that were begun and deletions that were not ended: under way, or left by a crash.
    unfinished: tuple[RemoteLogSegmentMetadata, ...] = ()
    # Below this, DeleteRecords has deleted everything; it may lie inside the first segment.
    raised_log_start: int = 0
    history: LogHistory = FIRST_HISTORY

    @property
    def log_start_offset(self) -> int | None:
        """The first archived offset, readable or not: below it there is nothing to wait for."""
        if not self.segments:
            return None
        first = min([self.segments.start_offset(0), *self.unreadable[:1]])
        return max(first, self.raised_log_start)

    @property
    def log_end_offset(self) -> int | None:
        """One past the last archived offset."""
        return self.segments.end_offset(len(self.segments) - 1) + 1 if self.segments else None

    def segment_at_or_after(self, offset: int) -> RemoteLogSegmentMetadata | None:
        """The first segment whose end is at or above `offset`; it may start above it.

        None too where the offset was deleted, though the first segment may still hold it.
        """
        i = self._index_at_or_after(offset)
        return None if i is None else self.segments[i]

    def _index_at_or_after(self, offset: int) -> int | None:
        if offset < self.raised_log_start:
            return None
        i = self.segments.index_at_or_after(offset)
        return i if i < len(self.segments) else None

    def index_at_or_after_timestamp(self, timestamp_ms: int, index: int = 0) -> int | None:
        """The first segment, from that at `index` on, whose largest timestamp is as late.

        Timestamps need not rise from segment to segment, so later ones may hold it as well.
        """
        i = self.segments.index_at_or_after_timestamp(timestamp_ms, index)
        return i if i < len(self.segments) else None

    def covers(self, offset: int) -> bool:
        i = self._index_at_or_after(offset)
        return i is not None and self.segments.start_offset(i) <= offset

    def gap_at(self, offset: int) -> bool:
        """`offset` lies between two archived segments and is in neither."""
        return self.gap_around(offset) is not None

    def gap_around(self, offset: int) -> tuple[int, int] | None:
        """The gap with `offset`, recorded or not, as (first, last) lost offsets, both inclusive."""
        i = self._index_at_or_after(offset)
        if not i or offset >= self.segments.start_offset(i) or self.uncertain_at(offset):
            return None
        first = max(self.segments.end_offset(i - 1) + 1, self.raised_log_start)
        return first, self.segments.start_offset(i) - 1

    def answers_for(self, offset: int) -> bool:
        """A read of `offset` is the archive's to answer, and no broker's.

        With records: of the offset, or behind the gap that it lies in. Or with an error:
        the metadata of the segment that may have it cannot be read.
        """
        return self.covers(offset) or self.gap_at(offset) or self.uncertain_at(offset)

    def uncertain_at(self, offset: int) -> bool:
        """`offset` may be in a segment whose metadata cannot be read.

        Then nobody may be told that it is out of range: the data is likely to be there.
        """
        i = bisect_right(self.unreadable, offset)
        if i == 0 or offset < self.raised_log_start or self.covers(offset):
            return False
        # A readable segment that starts between the two ends where the unreadable one may reach.
        j = self.segments.index_at_or_after(offset)
        return j == 0 or self.segments.start_offset(j - 1) < self.unreadable[i - 1]

    def up_to(self, offset: int) -> PartitionView:
        """The same without all that lies at or above `offset`."""
        end = self.log_end_offset
        if end is None or end <= offset:
            return self
        rows = self.segments
        i = rows.index_at_or_after(offset)
        covered_to = rows.end_offset(i - 1) if i else -1
        straddles = rows.start_offset(i) < offset and covered_to < offset - 1
        clipped = [rows[i].clipped(offset - 1)] if straddles else []
        return replace(
            self,
            segments=rows.replaced(i, len(rows), clipped),
            unreadable=tuple(base for base in self.unreadable if base < offset),
        )

    def gaps(self) -> list[tuple[int, int]]:
        """Gaps between segments as (first, last) lost offsets, both inclusive."""
        return [
            (end + 1, start - 1)
            for (_, end), (start, _) in pairwise(self.segments.bounds())
            if start > end + 1 and not self.uncertain_at(start - 1)
        ]
