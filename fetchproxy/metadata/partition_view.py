"""An immutable picture of one partition's archive, and the questions a read asks of it. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from fetchproxy.model import RemoteLogSegmentMetadata, RemoteLogSegmentState, TopicIdPartition

_UNFINISHED = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.DELETE_SEGMENT_STARTED,
)


@dataclass(frozen=True, slots=True)
class PartitionView:
    """`segments` are finished ones, by offset; `read_at` is loop time (s).

    Their starts and ends both rise. Two neighbours may overlap (see `build_view`): whoever goes on
    from one to the next looks up the *offset* after the first, never the next one's first byte.
    """

    tip: TopicIdPartition
    segments: tuple[RemoteLogSegmentMetadata, ...]
    end_offsets: tuple[int, ...]  # of `segments`, for bisection
    # Some copy is under way, or there without being readable: what is not here yet may come.
    copies_started: bool
    read_at: float
    # Base offsets, rising, of segments whose metadata cannot be read: what they hold is unknown.
    unreadable: tuple[int, ...] = ()
    # Copies that were begun and deletions that were not ended: under way, or left by a crash.
    unfinished: tuple[RemoteLogSegmentMetadata, ...] = ()
    # Below this, DeleteRecords has deleted everything; it may lie inside the first segment.
    raised_log_start: int = 0

    @property
    def log_start_offset(self) -> int | None:
        """The first archived offset, readable or not: below it there is nothing to wait for."""
        if not self.segments:
            return None
        first = min([self.segments[0].start_offset, *self.unreadable[:1]])
        return max(first, self.raised_log_start)

    @property
    def log_end_offset(self) -> int | None:
        """One past the last archived offset."""
        return self.end_offsets[-1] + 1 if self.segments else None

    def segment_at_or_after(self, offset: int) -> RemoteLogSegmentMetadata | None:
        """The first segment whose end is at or above `offset`; it may start above it.

        None too where the offset was deleted, though the first segment may still hold it.
        """
        if offset < self.raised_log_start:
            return None
        i = bisect_left(self.end_offsets, offset)
        return self.segments[i] if i < len(self.segments) else None

    def covers(self, offset: int) -> bool:
        segment = self.segment_at_or_after(offset)
        return segment is not None and segment.start_offset <= offset

    def gap_at(self, offset: int) -> bool:
        """`offset` lies in a recorded gap between two archived segments."""
        segment = self.segment_at_or_after(offset)
        return (
            segment is not None
            and segment is not self.segments[0]
            and offset < segment.start_offset
            and not self.uncertain_at(offset)
        )

    def uncertain_at(self, offset: int) -> bool:
        """`offset` may be in a segment whose metadata cannot be read.

        Then nobody may be told that it is out of range: the data is likely to be there.
        """
        i = bisect_right(self.unreadable, offset)
        if i == 0 or offset < self.raised_log_start or self.covers(offset):
            return False
        # A readable segment that starts between the two ends where the unreadable one may reach.
        j = bisect_left(self.end_offsets, offset)
        return j == 0 or self.segments[j - 1].start_offset < self.unreadable[i - 1]

    def gaps(self) -> list[tuple[int, int]]:
        """Recorded gaps as (first, last) lost offsets, both inclusive."""
        return [
            (a.end_offset + 1, b.start_offset - 1)
            for a, b in zip(self.segments, self.segments[1:], strict=False)
            if b.start_offset > a.end_offset + 1 and not self.uncertain_at(b.start_offset - 1)
        ]


def build_view(
    tip: TopicIdPartition,
    segments: Iterable[RemoteLogSegmentMetadata],
    read_at: float,
    unreadable: Iterable[int] = (),
    raised_log_start: int = 0,
) -> PartitionView:
    """Order the finished segments; one that adds no offset to those before it is left out.

    So is one that lies below `raised_log_start` as a whole.

    Overlaps come from two archivers that met in a hand-over: both copied the same log, so either
    copy may be served. Of equal ranges the one that was finished first stays. A segment that
    overlaps the one before it and goes on further must stay, or the rest would look like a gap.
    """
    every = list(segments)
    finished = [
        s
        for s in every
        if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        and s.end_offset >= raised_log_start
    ]
    finished.sort(key=lambda s: (s.start_offset, s.event_timestamp_ms, s.segment_id.id))
    kept: list[RemoteLogSegmentMetadata] = []
    for segment in finished:
        if not kept or segment.end_offset > kept[-1].end_offset:
            kept.append(segment)
    hidden = tuple(sorted(unreadable))
    copying = any(s.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED for s in every)
    return PartitionView(
        tip=tip,
        segments=tuple(kept),
        end_offsets=tuple(s.end_offset for s in kept),
        copies_started=copying or bool(hidden),
        read_at=read_at,
        unreadable=hidden,
        unfinished=tuple(s for s in every if s.state in _UNFINISHED),
        raised_log_start=raised_log_start,
    )
