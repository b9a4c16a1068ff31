"""All that is known of one partition's segments, kept up to date event by event. Pure.

Finished segments that share no offset with others are rows (`columns`), about 75 bytes each
with all that is around them. The few others are values: copies and deletions under way, and
finished segments that overlap, of two archivers that met. Which of those are shown is decided by
`overlaps`, anew after each change, so that one comes back into view when what hid it goes.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby
from operator import ge, gt
from uuid import UUID

from fetchproxy.metadata.columns import (
    Columns,
    Run,
    SegmentRows,
    Single,
    compact,
    fields_of,
    relative_epochs,
    split_entries,
)
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    FIRST_HISTORY,
    OFFSET_MAX,
    SEGMENT_BYTES_MAX,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.segments.description import check_deletion, check_update
from fetchproxy.segments.overlaps import add_in_order
from fetchproxy.segments.records import (
    LogHistorySaid,
    LogStartOffset,
    MetadataEvent,
    Restore,
    decode_entry,
)

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_EMPTIED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
_NO_OFFSET = b"\xff" * 8


class SegmentTable:
    """One partition's. Not for several threads at once."""

    __slots__ = (
        "_overlapping",
        "_raised",
        "_rows",
        "_shown",
        "_unfinished",
        "deletion",
        "history",
        "restoring",
        "tip",
    )

    def __init__(self, tip: TopicIdPartition) -> None:
        self.tip = tip
        self._forget()

    def _forget(self) -> None:
        self._rows = SegmentRows(self.tip)
        self._overlapping: dict[UUID, RemoteLogSegmentMetadata] = {}
        self._unfinished: dict[UUID, RemoteLogSegmentMetadata] = {}
        self._shown: SegmentRows | None = None  # what a view has; None: to be worked out
        self._raised: dict[int, int] = {}  # log starts, by the history that they are of
        self.history = FIRST_HISTORY
        self.deletion: RemotePartitionDeleteMetadata | None = None
        self.restoring = False  # a restore has begun and not ended: this is not all of it

    @classmethod
    def load(cls, tip: TopicIdPartition, entries: bytes) -> SegmentTable:
        """Of the entries of a cache file; of each segment the last one counts.

        Raises CorruptSegment, naming entry and field; NewerMetadataVersion.
        """
        where = f"cached metadata of {tip}"
        table = cls._read(tip, entries, where) or cls._read(
            tip, compact(entries, tip, where), where
        )
        assert table is not None, "compacted entries have each segment once"
        return table

    @classmethod
    def _read(cls, tip: TopicIdPartition, entries: bytes, where: str) -> SegmentTable | None:
        """None where the order of entries counts, as there are several of one segment."""

        def decoded(places: Iterable[tuple[int, int]]) -> list[MetadataEvent]:
            return [decode_entry(entries[a:b], tip, f"{where}, byte {a}") for a, b in places]

        table = cls(tip)
        runs: list[Run] = []
        others: list[MetadataEvent] = []
        for part in split_entries(entries, where):
            rest, run = _parted(entries, part)
            others += decoded(rest)
            if run is not None:
                runs.append(run)
        columns = _columns(entries, runs)
        if columns is None:
            others += decoded(chain.from_iterable(map(_bodies, runs)))
        else:
            table._rows = SegmentRows.of_columns(tip, columns)
        return table if table._take_once(others) else None

    def _take_once(self, events: Iterable[MetadataEvent]) -> bool:
        """False, and this is of no use, where one of them takes something back."""
        finished: list[RemoteLogSegmentMetadata] = []
        ids: set[UUID] = set()
        for event in events:
            if isinstance(event, RemoteLogSegmentMetadata):
                segment_id = event.segment_id.id
                if event.state is _GONE or segment_id in ids or self.known(event) is not None:
                    return False
                ids.add(segment_id)
                if event.state is _FINISHED:
                    finished.append(event)
                    continue
            elif getattr(event, "state", None) is _EMPTIED:
                return False
            self._take(event)
        self._insert_many(finished)
        return True

    def apply(self, event: MetadataEvent) -> bool:
        """Take over an event of the metadata topic; twice does no harm.

        False: it may not follow what is known (`description`), as an event that is read again or of
        somebody who has been overtaken, and is left out. DELETE_PARTITION_FINISHED takes everything
        with it.
        """
        if isinstance(event, LogStartOffset | LogHistorySaid):
            self._take(event)
            return True
        if isinstance(event, Restore):
            self.restoring = event.restoring
            return True
        try:
            if isinstance(event, RemotePartitionDeleteMetadata):
                check_deletion(None if self.deletion is None else self.deletion.state, event.state)
            else:
                check_update(self.known(event), event)
        except ValueError:
            return False
        self._take(event)
        return True

    @property
    def is_empty(self) -> bool:
        """Nothing is known of the partition."""
        anything = self._rows or self._overlapping or self._unfinished or self.deletion
        settled = not self._raised and self.history == FIRST_HISTORY
        return not anything and settled and not self.restoring

    @property
    def raised_log_start(self) -> int:
        return self._raised.get(self.history.after_epoch, 0)

    def known(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        """The last state of the segment that has the same id and start offset."""
        segment_id = metadata.segment_id.id
        other = self._unfinished.get(segment_id) or self._overlapping.get(segment_id)
        if other is not None:
            return other
        index = self._rows.find(segment_id, metadata.start_offset)
        return None if index is None else self._rows[index]

    def segments(self) -> Iterator[RemoteLogSegmentMetadata]:
        """Every one, by start offset and id; also unfinished ones and below the log start."""
        others = (*self._overlapping.values(), *self._unfinished.values())
        every: Iterable[RemoteLogSegmentMetadata] = chain(self._rows, others)
        return iter(sorted(every, key=lambda s: (s.start_offset, s.segment_id.id)))

    def view(self, read_at: float, unreadable: Iterable[int] = ()) -> PartitionView:
        """Later events do not show in it. See `PartitionView` for the arguments."""
        if self._shown is None:
            self._shown = self._work_out()
        unknown = tuple(sorted(unreadable))
        copying = any(segment.state is _STARTED for segment in self._unfinished.values())
        return PartitionView(
            tip=self.tip,
            segments=self._shown,
            copies_started=copying or bool(unknown),
            read_at=read_at,
            unreadable=unknown,
            unfinished=tuple(self._unfinished.values()),
            raised_log_start=self.raised_log_start,
            history=self.history,
        )

    def _work_out(self) -> SegmentRows:
        """As `build_view` does; where nothing overlaps, the rows themselves are what is shown."""
        below = self._rows.index_at_or_after(self.raised_log_start)
        rows = self._rows.replaced(0, below) if below else self._rows
        if self.history != FIRST_HISTORY:
            rows = SegmentRows.of(self.tip, filter(self.history.shows, rows))
        kept: list[RemoteLogSegmentMetadata] = []
        for segment in sorted(self._overlapping.values(), key=self._shown_order):
            if segment.end_offset >= self.raised_log_start and self.history.shows(segment):
                add_in_order(kept, segment, self.history.kept_below)
        # Those that overlap lie together, between rows: each such group is put in at one go.
        at = [rows.index_at_or_after(segment.start_offset) for segment in kept]
        for index, group in groupby(reversed(range(len(kept))), key=at.__getitem__):
            rows = rows.replaced(index, index, [kept[i] for i in reversed(list(group))])
        return rows

    def _shown_order(self, segment: RemoteLogSegmentMetadata) -> tuple[int, int, bytes]:
        return self.history.counts_from(segment), *_order(segment)[1:]

    # --- changes ---
    def _take(self, event: MetadataEvent) -> None:
        if isinstance(event, LogStartOffset):
            known = self._raised.get(event.after_epoch, 0)
            if event.offset > known:
                self._raised[event.after_epoch] = event.offset
                self._shown = None
        elif isinstance(event, LogHistorySaid):
            self.history = event.history
            self._shown = None
        elif isinstance(event, Restore):
            self.restoring = event.restoring
        elif isinstance(event, RemotePartitionDeleteMetadata):
            self.deletion = event
            if event.state is _EMPTIED:
                self._forget()
        else:
            self._shown = None
            self._remove(event)
            if event.state is _FINISHED:
                self._insert(event)
            elif event.state is not _GONE:
                self._unfinished[event.segment_id.id] = event

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
        """As `_insert` of each does; of many into an empty table at one go."""
        if self._rows:
            for segment in segments:
                self._insert(segment)
            return
        groups: list[list[RemoteLogSegmentMetadata]] = []  # of those that overlap, or of one
        reached = -1
        for segment in sorted(segments, key=_order):
            if segment.start_offset > reached:
                groups.append([])
            groups[-1].append(segment)
            reached = max(reached, segment.end_offset)
        self._rows = SegmentRows.of(self.tip, (group[0] for group in groups if len(group) == 1))
        overlapping = chain.from_iterable(group for group in groups if len(group) > 1)
        self._overlapping = {segment.segment_id.id: segment for segment in overlapping}

    def _remove(self, segment: RemoteLogSegmentMetadata) -> None:
        """Its last state. What overlapped nothing else becomes a row."""
        segment_id = segment.segment_id.id
        if self._unfinished.pop(segment_id, None) is not None:
            return
        gone = self._overlapping.pop(segment_id, None)
        if gone is None:
            at = self._rows.find(segment_id, segment.start_offset)
            if at is not None:
                self._rows = self._rows.replaced(at, at + 1)
            return
        neighbours = [other for other in self._overlapping.values() if _overlap(gone, other)]
        for other in neighbours:
            del self._overlapping[other.segment_id.id]
        for other in neighbours:
            self._insert(other)


def _overlap(one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata) -> bool:
    return one.start_offset <= other.end_offset and other.start_offset <= one.end_offset


def _order(segment: RemoteLogSegmentMetadata) -> tuple[int, int, bytes]:
    return segment.start_offset, segment.event_timestamp_ms, segment.segment_id.id.bytes


def _parted(entries: bytes, part: Run | Single) -> tuple[Iterable[tuple[int, int]], Run | None]:
    """Records to be read one by one, and the finished segments of a run, which come last in it."""
    if isinstance(part, Single):
        return [(part.body, part.end)], None
    states = entries[part.start + part.state_at : part.end : part.stride]
    unfinished = states.find(_FINISHED)
    if part.version != 1 or unfinished < 0 or states.count(_FINISHED) < part.count - unfinished:
        return _bodies(part), None
    if unfinished == 0:
        return [], part
    start = part.start + unfinished * part.stride
    run = replace(part, start=start, count=part.count - unfinished)
    return _bodies(replace(part, count=unfinished)), run


def _bodies(run: Run) -> Iterable[tuple[int, int]]:
    """Where its entries' records are, behind their lengths."""
    return ((at + run.lead - 2, at + run.stride) for at in run.positions())


def _columns(entries: bytes, runs: list[Run]) -> Columns | None:
    """Finished segments of version 1; None where they are not all apart and in order.

    Fields are taken as they lie, many at one go: a cold start spends its time here.
    """
    # Segment id, start offset, end offset, both timestamps, epochs, size, aborted, copied end.
    template = "{lead}x16s8sq4x16s4x{epochs}s8sxc8s"
    fields: list[tuple[bytes, bytes, int, bytes, bytes, bytes, bytes, bytes]] = []
    for run in runs:
        fields += fields_of(run, template).iter_unpack(memoryview(entries)[run.start : run.end])
    if not fields:
        return Columns(b"", array("q"), array("q"), [], {})
    ids, raw_starts, ends, times, epochs, sizes, aborted, copied = zip(*fields, strict=True)
    starts = _int64s(raw_starts)
    if starts[0] < 0 or not all(map(ge, ends, starts)) or not all(map(gt, starts[1:], ends)):
        return None
    known_sizes = _int64s(sizes)
    if ends[-1] > OFFSET_MAX or min(known_sizes) < 0 or max(known_sizes) > SEGMENT_BYTES_MAX:
        return None  # decoding them one by one then says what is wrong
    clipped = {}
    if copied.count(_NO_OFFSET) < len(copied):
        pairs = zip(ids, copied, strict=True)
        clipped = {i: int.from_bytes(end, "big") for i, end in pairs if end != _NO_OFFSET}
        if max(clipped.values()) > OFFSET_MAX:
            return None
    return Columns(
        rows=b"".join(
            chain.from_iterable(zip(ids, raw_starts, times, sizes, aborted, strict=True))
        ),
        ends=array("q", ends),
        max_timestamps=_int64s(times)[::2],
        epochs=list(map(relative_epochs, epochs, raw_starts)),
        clipped=clipped,
    )


def _int64s(fields: Iterable[bytes]) -> array[int]:
    """Big-endian ones."""
    found = array("q", b"".join(fields))
    if sys.byteorder == "little":
        found.byteswap()
    return found
