"""All known segments of one partition, kept up to date event by event. Pure.

Finished segments without overlaps are rows (`columns`), about 75 bytes each with their overhead.
The few others are objects: copies and deletions under way, and finished segments that overlap,
from two archivers that met. `overlaps` decides which of those are shown, again after each change,
so that a hidden segment shows again when the segment that hid it goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from uuid import UUID

from fetchproxy.metadata.columns import SegmentRows, load_rows
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    FIRST_HISTORY,
    LogHistory,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.segments.overlaps import add_in_order
from fetchproxy.segments.records import LogHistoryRecord, LogStartOffset, MetadataEvent, Restore
from fetchproxy.segments.states import check_deletion, check_update

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_EMPTIED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED


class PartitionTable:
    """The segments of one partition. Not thread-safe."""

    __slots__ = (
        "_overlapping",
        "_raised",
        "_rows",
        "_rows_of_view",
        "_unfinished",
        "changes",
        "deletion",
        "history",
        "restoring",
        "tp",
    )

    def __init__(self, tp: TopicIdPartition) -> None:
        self.tp = tp
        self.changes = 0  # how many events were taken
        self._forget()

    def _forget(self) -> None:
        self._rows = SegmentRows(self.tp)
        self._overlapping: dict[UUID, RemoteLogSegmentMetadata] = {}
        self._unfinished: dict[UUID, RemoteLogSegmentMetadata] = {}
        self._rows_of_view: SegmentRows | None = None  # the rows of the views; None: to be computed
        self._raised: dict[int, int] = {}  # log starts by their history
        self.history = FIRST_HISTORY
        self.deletion: RemotePartitionDeleteMetadata | None = None
        self.restoring = False  # a restore has begun and not ended: the table is incomplete

    @classmethod
    def load(cls, tp: TopicIdPartition, entries: bytes) -> PartitionTable:
        """From the entries of a flat file that still count (`compact`). Raises CorruptSegment,
        naming entry and field; NewerMetadataVersion.
        """
        table = cls(tp)
        table._rows, others = load_rows(tp, entries, f"cached metadata of {tp}")
        table._take_many(others)
        return table

    def replace(self, segments: Iterable[RemoteLogSegmentMetadata], history: LogHistory) -> None:
        """Take the segments of a listing, unchecked. Raised log starts stay: they never fall."""
        raised = self._raised
        self._forget()
        self._raised, self.history = raised, history
        self._take_many(segments)

    def adopt(self, other: PartitionTable) -> None:
        """As `replace`, with the segments and the history of `other`, which nobody else uses."""
        raised = self._raised
        self._forget()
        self._rows, self._overlapping = other._rows, other._overlapping
        self._unfinished = other._unfinished
        self._raised, self.history = raised, other.history

    def apply(self, event: MetadataEvent) -> bool:
        """Take an event of the metadata topic; taking it twice does no harm.

        False: the event is not a legal next step and is left out. It may have been read again, or
        its writer was overtaken. DELETE_PARTITION_FINISHED deletes everything.
        """
        try:
            self.check(event)
        except ValueError:
            return False
        self.take(event)
        return True

    def check(self, event: MetadataEvent) -> None:
        """Raises ValueError if the event is not a legal next step (`description`)."""
        if isinstance(event, RemotePartitionDeleteMetadata):
            check_deletion(None if self.deletion is None else self.deletion.state, event.state)
        elif isinstance(event, RemoteLogSegmentMetadata):
            check_update(self.known(event), event)

    @property
    def is_empty(self) -> bool:
        has_no_history = not self._raised and self.history == FIRST_HISTORY
        return (
            not self.has_segments
            and self.deletion is None
            and has_no_history
            and not self.restoring
        )

    @property
    def has_segments(self) -> bool:
        return bool(self._rows or self._overlapping or self._unfinished)

    @property
    def segment_count(self) -> int:
        return len(self._rows) + len(self._overlapping) + len(self._unfinished)

    def count_below(self, offset: int) -> int:
        """How many segments begin below `offset`; of finished ones without overlaps, end there."""
        others = (*self._overlapping.values(), *self._unfinished.values())
        below = sum(segment.start_offset < offset for segment in others)
        return self._rows.index_at_or_after(offset) + below

    @property
    def raised_log_start(self) -> int:
        return self.raised(self.history.after_epoch)

    def raised(self, after_epoch: int) -> int:
        """The log start of the history after that epoch; 0: never raised."""
        return self._raised.get(after_epoch, 0)

    def known(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        """The last state of the segment with the same id and start offset."""
        segment_id = metadata.segment_id.id
        other = self._unfinished.get(segment_id) or self._overlapping.get(segment_id)
        if other is not None:
            return other
        index = self._rows.find(segment_id, metadata.start_offset)
        return None if index is None else self._rows[index]

    def segments(self) -> Iterator[RemoteLogSegmentMetadata]:
        """Every segment, by start offset and id; also unfinished or below the log start."""
        others = (*self._overlapping.values(), *self._unfinished.values())
        every: Iterable[RemoteLogSegmentMetadata] = chain(self._rows, others)
        return iter(sorted(every, key=lambda s: (s.start_offset, s.segment_id.id)))

    def view(self, read_at: float, unreadable: Iterable[int] = ()) -> PartitionView:
        """Later events do not change the view. See `PartitionView` for the arguments."""
        if self._rows_of_view is None:
            self._rows_of_view = self._visible_segments()
        unknown = tuple(sorted(unreadable))
        copying = any(segment.state is _STARTED for segment in self._unfinished.values())
        return PartitionView(
            tp=self.tp,
            segments=self._rows_of_view,
            copies_started=copying or bool(unknown),
            read_at=read_at,
            unreadable=unknown,
            unfinished=tuple(self._unfinished.values()),
            raised_log_start=self.raised_log_start,
            history=self.history,
        )

    def _visible_segments(self) -> SegmentRows:
        """The finished segments of the history, by offset, without those below the log start.

        Overlaps come from two archivers that met in a hand-over: both copied the same log, so
        either copy may be served. Of equal ranges the one that was finished first stays. A segment
        that adds no offset to those before it is left out. A segment that goes on further stays, or
        the rest would look like a gap. See `overlaps` for copies of different logs.
        """
        below = self._rows.index_at_or_after(self.raised_log_start)
        rows = self._rows.replaced(0, below) if below else self._rows
        if self.history != FIRST_HISTORY:
            rows = SegmentRows.of(self.tp, filter(self.history.shows, rows))
        segments_left: list[RemoteLogSegmentMetadata] = []
        counts_from = self.history.counts_from
        for segment in sorted(
            self._overlapping.values(), key=lambda s: (counts_from(s), *_order(s)[1:])
        ):
            if segment.end_offset >= self.raised_log_start and self.history.shows(segment):
                add_in_order(segments_left, segment, self.history.kept_below)
        # Overlapping segments lie together between rows: each such group is inserted at once.
        indexes = [rows.index_at_or_after(segment.start_offset) for segment in segments_left]
        for index, group in groupby(reversed(range(len(segments_left))), key=indexes.__getitem__):
            rows = rows.replaced(index, index, [segments_left[i] for i in reversed(list(group))])
        return rows

    # --- changes ---
    def take(self, event: MetadataEvent) -> None:
        """Apply the event without a check."""
        self.changes += 1
        if isinstance(event, LogStartOffset):
            raised_before = self._raised.get(event.after_epoch, 0)
            if event.offset > raised_before:
                self._raised[event.after_epoch] = event.offset
                self._rows_of_view = None
        elif isinstance(event, LogHistoryRecord):
            self.history = event.history
            self._rows_of_view = None
        elif isinstance(event, Restore):
            self.restoring = event.restoring
        elif isinstance(event, RemotePartitionDeleteMetadata):
            self.deletion = event
            if event.state is _EMPTIED:
                self._forget()
        else:
            self._rows_of_view = None
            self._remove(event)
            if event.state is _FINISHED:
                self._insert(event)
            elif event.state is not _GONE:
                self._unfinished[event.segment_id.id] = event

    def _take_many(self, events: Iterable[MetadataEvent]) -> None:
        """As `take` for each event; each segment comes once."""
        finished_segments: list[RemoteLogSegmentMetadata] = []
        for event in events:
            if isinstance(event, RemoteLogSegmentMetadata) and event.state is _FINISHED:
                finished_segments.append(event)
            else:
                self.take(event)
        self._insert_many(finished_segments)

    def _insert(self, segment: RemoteLogSegmentMetadata) -> None:
        rows = self._rows
        first = last = rows.index_at_or_after(segment.start_offset)
        while last < len(rows) and rows.start_offset(last) <= segment.end_offset:
            last += 1
        if first == last and not any(_overlap(segment, o) for o in self._overlapping.values()):
            at_end = first == len(rows)  # nearly always
            self._rows = (
                rows.appended(segment) if at_end else rows.replaced(first, first, [segment])
            )
            return
        self._overlapping[segment.segment_id.id] = segment
        self._overlapping.update((other.segment_id.id, other) for other in rows[first:last])
        self._rows = rows.replaced(first, last)

    def _insert_many(self, segments: list[RemoteLogSegmentMetadata]) -> None:
        """As `_insert` for each; many segments go into an empty table at once."""
        if self._rows:
            for segment in segments:
                self._insert(segment)
            return
        groups: list[list[RemoteLogSegmentMetadata]] = []  # each group overlaps, or is one segment
        end_offset = -1
        for segment in sorted(segments, key=_order):
            if segment.start_offset > end_offset:
                groups.append([])
            groups[-1].append(segment)
            end_offset = max(end_offset, segment.end_offset)
        self._rows = SegmentRows.of(self.tp, (group[0] for group in groups if len(group) == 1))
        overlapping = chain.from_iterable(group for group in groups if len(group) > 1)
        self._overlapping = {segment.segment_id.id: segment for segment in overlapping}

    def _remove(self, segment: RemoteLogSegmentMetadata) -> None:
        """Remove the segment's last state. Segments that no longer overlap others become rows."""
        segment_id = segment.segment_id.id
        if self._unfinished.pop(segment_id, None) is not None:
            return
        overlaps_gone = self._overlapping.pop(segment_id, None)
        if overlaps_gone is None:
            index = self._rows.find(segment_id, segment.start_offset)
            if index is not None:
                self._rows = self._rows.replaced(index, index + 1)
            return
        neighbours = [
            other for other in self._overlapping.values() if _overlap(overlaps_gone, other)
        ]
        for neighbour in neighbours:
            del self._overlapping[neighbour.segment_id.id]
        for neighbour in neighbours:
            self._insert(neighbour)


def build_view(
    tp: TopicIdPartition,
    segments: Iterable[RemoteLogSegmentMetadata],
    read_at: float,
    unreadable: Iterable[int] = (),
    raised_log_start: int = 0,
    history: LogHistory = FIRST_HISTORY,
) -> PartitionView:
    table = PartitionTable(tp)
    table.replace(segments, history)
    table.take(LogStartOffset(tp, raised_log_start, 0, history.after_epoch))
    return table.view(read_at, unreadable)


def _overlap(one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
    return one.start_offset <= other.end_offset and other.start_offset <= one.end_offset


def _order(segment: RemoteLogSegmentMetadata) -> tuple[int, int, bytes]:
    return segment.start_offset, segment.event_timestamp_ms, segment.segment_id.id.bytes
