"""An immutable picture of one partition's archive, and the questions a read asks of it. Pure.

The segments are rows (`columns`). A segment's value is made when a caller asks for it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
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
    """`segments`: finished segments, by offset. `read_at`: loop time (s).

    A segment's value is made anew each time: two values are the same segment if their ids are
    equal. Starts and ends of segments both rise. Exception: a segment across `history.kept_below`
    counts only from there on, so it may start lower than the segments before it. Two neighbours may
    overlap (`overlaps`). So a reader that goes on to the next looks up the *offset* after the first
    segment, and never begins at the first byte of the next one.
    """

    tp: TopicIdPartition
    segments: SegmentRows
    # A copy is in progress, or exists with unreadable metadata: missing offsets may still come.
    copies_started: bool
    read_at: float
    # Base offsets, rising, of segments whose metadata cannot be read: their content is unknown.
    # Also of what a mirror does not have yet (`not_copied`).
    unreadable: tuple[int, ...] = ()
    # Copies and deletions that have begun and not ended: in progress, or left by a crash.
    unfinished: tuple[RemoteLogSegmentMetadata, ...] = ()
    # DeleteRecords has deleted all offsets below this one; it may lie inside the first segment.
    raised_log_start: int = 0
    history: LogHistory = FIRST_HISTORY
    # The first archived offset, readable or not: the archive has nothing below it. And one past the
    # last archived offset. None: there is no segment. Values, because every read asks for them.
    log_start_offset: int | None = field(init=False, repr=False, compare=False, default=None)
    log_end_offset: int | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if self.segments:
            first = min([self.segments.start_offset(0), *self.unreadable[:1]])
            object.__setattr__(self, "log_start_offset", max(first, self.raised_log_start))
            object.__setattr__(self, "log_end_offset", self.segments.end_offset(-1) + 1)

    def segment_at_or_after(self, offset: int) -> RemoteLogSegmentMetadata | None:
        """The first segment whose end is at or above `offset`; it may start above it.

        Also None if the offset was deleted, although the first segment may still hold it.
        """
        return None if offset < self.raised_log_start else self.segments.at_or_after(offset)

    def copies_of(self, offset: int) -> Iterator[RemoteLogSegmentMetadata]:
        """`segment_at_or_after(offset)`, and then further copies of the same offset."""
        if offset < self.raised_log_start:
            return
        rows = self.segments
        first = index = rows.index_at_or_after(offset)
        while index < len(rows) and (index == first or rows.start_offset(index) <= offset):
            if index == first or self.history.counts_from(rows[index]) <= offset:
                yield rows[index]
            index += 1

    def index_at_or_after_timestamp(self, timestamp_ms: int, index: int = 0) -> int | None:
        """The first segment from `index` on whose largest timestamp is at or above `timestamp_ms`.

        Timestamps need not rise from segment to segment, so later segments may also match.
        """
        i = self.segments.index_at_or_after_timestamp(timestamp_ms, index)
        return i if i < len(self.segments) else None

    def covers(self, offset: int) -> bool:
        return offset >= self.raised_log_start and self.segments.covers(offset)

    def gap_at(self, offset: int) -> bool:
        """`offset` lies between two archived segments and is in neither."""
        return self.gap_around(offset) is not None

    def gap_around(self, offset: int) -> tuple[int, int] | None:
        """The gap around `offset`, recorded or not, as (first, last) lost offsets, inclusive."""
        i = self.segments.index_at_or_after(offset)
        if offset < self.raised_log_start or not 0 < i < len(self.segments):
            return None
        if offset >= self.segments.start_offset(i) or self.uncertain_at(offset):
            return None
        first = max(self.segments.end_offset(i - 1) + 1, self.raised_log_start)
        j = bisect_right(self.unreadable, offset)
        last = min([self.segments.start_offset(i), *self.unreadable[j : j + 1]]) - 1
        return first, last

    def covers_offset(self, offset: int) -> bool:
        """Whether the archive, and not a broker, answers a read of `offset`.

        It answers with the records at the offset or after the gap around it. If the metadata of the
        segment that may hold the offset cannot be read, it answers with an error.
        """
        return self.covers(offset) or self.gap_at(offset) or self.uncertain_at(offset)

    def uncertain_at(self, offset: int) -> bool:
        """`offset` may be in a segment whose metadata cannot be read.

        Then no client may get "out of range" for it, because the data probably exists.
        """
        i = bisect_right(self.unreadable, offset)
        if i == 0 or offset < self.raised_log_start or self.covers(offset):
            return False
        # An unreadable segment reaches at most to the next readable segment's start. So `offset` is
        # certain if a readable segment starts between the unreadable one and `offset`.
        j = self.segments.index_at_or_after(offset)
        return j == 0 or self.segments.start_offset(j - 1) < self.unreadable[i - 1]

    def up_to(self, offset: int) -> PartitionView:
        """The same view without all offsets at or above `offset`."""
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

    def not_copied(self, first: int, gaps: Iterable[tuple[int, int]]) -> list[int]:
        """The first offset of each part that is in no segment and in none of `gaps`, both offsets
        inclusive, from `first` up to the last segment.
        """
        missing, offset, end = [], max(first, self.raised_log_start), self.log_end_offset or 0
        for start, last in sorted([*self.segments.bounds(), *gaps]):
            if offset < start < end:
                missing.append(offset)
            offset = max(offset, last + 1)
        return missing

    def gaps(self) -> list[tuple[int, int]]:
        """Gaps between segments as (first, last) lost offsets, both inclusive."""
        return [
            (end + 1, start - 1)
            for (_, end), (start, _) in pairwise(self.segments.bounds())
            if start > end + 1 and not self.uncertain_at(start - 1)
        ]
