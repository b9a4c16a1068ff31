"""Finished segments of one partition in columns: some 80 bytes each, no Python object. Pure.

A sequence is immutable and in the order of offsets. It consists of columns that only grow, and the
range of rows that belong to it. So a view does not change when segments are appended. Any other
change copies the columns, which takes a millisecond for each 100,000 rows. A value of
`RemoteLogSegmentMetadata` is made when a caller asks for it. `catalogue` handles states and decides
which copies are shown.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from operator import attrgetter, ge, gt
from struct import Struct
from typing import Any, overload
from uuid import UUID

from fetchproxy.model import (
    OFFSET_MAX,
    SEGMENT_BYTES_MAX,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    SegmentRef,
    TopicIdPartition,
)
from fetchproxy.segments.description import FIELDS, FieldKind
from fetchproxy.segments.records import (
    EPOCHS_AT,
    HEAD_FIELDS,
    NO_OFFSET,
    SEGMENT_EPOCH,
    SEGMENT_HEAD,
    SEGMENT_TAILS,
    START_AT,
    TAIL_FIELDS,
    Entry,
    MetadataEvent,
    decode_entry,
    walk_entries,
)

# Each numeric or boolean field has its own column.
_TYPECODES = {FieldKind.INT64: "q", FieldKind.SIZE: "q", FieldKind.BOOLEAN: "B"}
_COLUMNS = {f.attribute: _TYPECODES[f.kind] for f in FIELDS if f.kind in _TYPECODES}
_FLAGS = tuple(name for name, typecode in _COLUMNS.items() if typecode == "B")
_values_of = attrgetter(*_COLUMNS)
_ID = Struct("16s")
_FINISHED = int(RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
_STATE = TAIL_FIELDS.index("state")
# A segment repeats the epoch that it begins in, with its own start offset. This marker replaces
# that offset, so all segments of one leader have equal epochs, which are kept once.
_SEGMENT_START = -1
SEGMENT_START = _SEGMENT_START.to_bytes(8, "big", signed=True)
_CACHED_VALUES_MAX = 16  # values kept, because a reader asks for the same few again and again


class EpochPool:
    """Leader epochs of segments, packed as in a record, each kept once (OWN_START). Only grows."""

    __slots__ = ("_numbers", "packed")

    def __init__(self) -> None:
        self.packed: list[bytes] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, packed: bytes, start: bytes) -> int:
        """The index of `packed` in the pool. `start`: the segment's start offset, an int64."""
        if packed[4:12] == start:
            packed = packed[:4] + SEGMENT_START + packed[12:]
        number = self._numbers.get(packed)
        if number is None:
            number = self._numbers[packed] = len(self.packed)
            self.packed.append(packed)
        return number

    def number_of(self, segment: RemoteLogSegmentMetadata) -> int:
        entries = [
            SEGMENT_EPOCH.pack(e.epoch, e.start_offset) for e in segment.segment_leader_epochs
        ]
        return self.number(b"".join(entries), segment.start_offset.to_bytes(8, "big"))


class Columns:
    """Columns of equal length; only `append` changes them."""

    __slots__ = ("copied", "epochs", "ids", "peaks", "pool", "values")

    def __init__(
        self,
        ids: bytearray,
        values: dict[str, array[int]],
        epochs: array[int],
        pool: EpochPool,
        copied: dict[bytes, int],
    ) -> None:
        self.ids = ids  # 16 bytes each
        self.values = values
        # The largest timestamp up to each row. These never fall, so bisection works.
        self.peaks = array("q", accumulate(values["max_timestamp_ms"], max))
        self.epochs = epochs  # for each row, an index into `pool`
        self.pool = pool
        self.copied = copied  # copied end offsets of clipped segments, by id

    def __len__(self) -> int:
        return len(self.peaks)

    @classmethod
    def of(cls, segments: Iterable[RemoteLogSegmentMetadata], pool: EpochPool) -> Columns:
        empty = {name: array(typecode) for name, typecode in _COLUMNS.items()}
        columns = cls(bytearray(), empty, array("I"), pool, {})
        for segment in segments:
            columns.append(segment)
        return columns

    def append(self, segment: RemoteLogSegmentMetadata) -> None:
        peak = segment.max_timestamp_ms
        self.ids += segment.segment_id.id.bytes
        for column, value in zip(self.values.values(), _values_of(segment), strict=True):
            column.append(value)
        self.epochs.append(self.pool.number_of(segment))
        self.peaks.append(max(self.peaks[-1], peak) if self.peaks else peak)
        if segment.copied_end_offset is not None:
            self.copied[segment.segment_id.id.bytes] = segment.copied_end_offset

    def part(self, first: int, last: int) -> Columns:
        """A copy of the rows `first` up to but not including `last`."""
        ids = self.ids[16 * first : 16 * last]
        values = {name: column[first:last] for name, column in self.values.items()}
        copied = self.copied
        if copied:
            part_ids = {raw for (raw,) in _ID.iter_unpack(ids)}
            copied = {raw: end for raw, end in copied.items() if raw in part_ids}
        return Columns(ids, values, self.epochs[first:last], self.pool, dict(copied))

    def __add__(self, other: Columns) -> Columns:
        """`other` must have the same pool."""
        return Columns(
            self.ids + other.ids,
            {name: column + other.values[name] for name, column in self.values.items()},
            self.epochs + other.epochs,
            self.pool,
            self.copied | other.copied,
        )


# Of all partitions without a segment, which are most of an archive's where topics are many: columns
# take more than a kilobyte before they have a row. Nothing is ever appended to these.
_NO_ROWS = Columns.of((), EpochPool())


class SegmentRows(Sequence[RemoteLogSegmentMetadata]):
    """Starts and ends both rise, ends strictly. Equal to any sequence of the same segments."""

    __slots__ = (
        "_columns",
        "_decoded",
        "_end",
        "_ends",
        "_epoch",
        "_first",
        "_size",
        "_starts",
        "_tp",
    )

    def __init__(
        self,
        tp: TopicIdPartition,
        columns: Columns | None = None,
        first: int = 0,
        end: int | None = None,
    ) -> None:
        """Rows `first` up to but not including `end` of the columns."""
        self._tp = tp
        self._columns = _NO_ROWS if columns is None else columns
        self._first = first
        self._end = len(self._columns) if end is None else end
        self._starts = self._columns.values["start_offset"]
        self._ends = self._columns.values["end_offset"]
        self._decoded: dict[int, RemoteLogSegmentMetadata] = {}
        self._size: int | None = None
        self._epoch = (-1, -1)  # the last argument and result of `epoch_at`

    @classmethod
    def of(cls, tp: TopicIdPartition, segments: Iterable[RemoteLogSegmentMetadata]) -> SegmentRows:
        return cls(tp, Columns.of(segments, EpochPool()))

    def __len__(self) -> int:
        return self._end - self._first

    @overload
    def __getitem__(self, index: int) -> RemoteLogSegmentMetadata: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RemoteLogSegmentMetadata, ...]: ...
    def __getitem__(
        self, index: int | slice
    ) -> RemoteLogSegmentMetadata | tuple[RemoteLogSegmentMetadata, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        segment = self._decoded.get(index)
        if segment is None:
            if len(self._decoded) >= _CACHED_VALUES_MAX:
                self._decoded.clear()
            segment = self._decoded[index] = self._make(self._row(index))
        return segment

    def _row(self, index: int) -> int:
        row = index + (self._end if index < 0 else self._first)
        if not self._first <= row < self._end:
            raise IndexError(f"segment {index} of {len(self)}")
        return row

    def __iter__(self) -> Iterator[RemoteLogSegmentMetadata]:
        return map(self._make, range(self._first, self._end))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            column == other_column for column, other_column in zip(self, other, strict=True)
        )

    def __hash__(self) -> int:
        return hash((self._tp, self._ends[self._first : self._end].tobytes()))

    def __repr__(self) -> str:
        return f"SegmentRows({list(self)!r})"

    def _make(self, row: int) -> RemoteLogSegmentMetadata:
        columns = self._columns
        values: dict[str, Any] = {name: column[row] for name, column in columns.values.items()}
        for name in _FLAGS:
            values[name] = values[name] != 0
        raw_id = bytes(columns.ids[16 * row : 16 * row + 16])
        epochs = columns.pool.packed[columns.epochs[row]]
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(self._tp, _uuid(raw_id)),
            segment_leader_epochs=_unpack_epochs(epochs, values["start_offset"]),
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            copied_end_offset=columns.copied.get(raw_id),
            **values,
        )

    def at_or_after(self, offset: int) -> RemoteLogSegmentMetadata | None:
        """The first segment whose end is at or above `offset`."""
        row = bisect_left(self._ends, offset, self._first, self._end)
        return self[row - self._first] if row < self._end else None

    # --- questions that make no segment values ---
    def index_at_or_after(self, offset: int) -> int:
        """The index of the first segment whose end is at or above `offset`, else `len(self)`."""
        return bisect_left(self._ends, offset, self._first, self._end) - self._first

    def covers(self, offset: int) -> bool:
        """`offset` is between the start and the end of a segment."""
        row = bisect_left(self._ends, offset, self._first, self._end)
        return row < self._end and self._starts[row] <= offset

    def index_at_or_after_timestamp(self, timestamp_ms: int, index: int = 0) -> int:
        """The index of the first segment from `index` on whose largest timestamp is at or above
        `timestamp_ms`, else `len(self)`.
        """
        times = self._columns.values["max_timestamp_ms"]
        row = bisect_left(self._columns.peaks, timestamp_ms, self._first + index, self._end)
        while row < self._end and times[row] < timestamp_ms:
            row += 1  # an earlier segment has the peak
        return row - self._first

    def start_offset(self, index: int) -> int:
        return self._starts[self._row(index)]

    def end_offset(self, index: int) -> int:
        return self._ends[self._row(index)]

    def _column(self, name: str, index: int = 0) -> array[int]:
        return self._columns.values[name][self._first + index : self._end]

    def refs(self, index: int = 0) -> Iterator[tuple[SegmentRef, int]]:
        """Each segment from `index` on and its last valid offset, at a tenth of the cost of its
        value.
        """
        raw = self._columns.ids[16 * (self._first + index) : 16 * self._end]
        ids = [segment_id for (segment_id,) in _ID.iter_unpack(raw)]
        ends = stored_ends = self._column("end_offset", index)
        if copied := self._columns.copied:
            stored_ends = array("q", map(copied.get, ids, ends))
        sizes = self._column("segment_size_bytes", index)
        aborted = map(bool, self._column("has_aborted_txns", index))
        packed = map(bool, self._column("packed", index))
        starts = self._column("start_offset", index)
        refs = map(SegmentRef, repeat(self._tp), ids, starts, stored_ends, sizes, aborted, packed)
        return zip(refs, ends, strict=True)

    def bounds(self) -> Iterator[tuple[int, int]]:
        """(start offset, end offset) of each segment, both inclusive."""
        return zip(self._column("start_offset"), self._column("end_offset"), strict=True)

    def leader_epochs(self) -> Iterator[EpochStart]:
        """The leader epochs of all segments, in the order of the log, without repeated entries."""
        numbers = self._columns.epochs[self._first : self._end]
        # Backwards, so that the first row with each number stays.
        rows = dict(zip(reversed(numbers), range(self._end - 1, self._first - 1, -1), strict=True))
        for number, row in sorted(rows.items(), key=lambda item: item[1]):
            yield from _unpack_epochs(self._columns.pool.packed[number], self._starts[row])

    def epoch_at(self, offset: int) -> int:
        """The last leader epoch that began at or below `offset`. -1: none did."""
        if offset != self._epoch[0]:  # callers ask for the log start again and again
            epochs = [e.epoch for e in self.leader_epochs() if e.start_offset <= offset]
            self._epoch = offset, max(epochs, default=-1)
        return self._epoch[1]

    def archived_at_ms(self) -> int:
        """When a segment last changed its state; 0: there is none."""
        return max(self._column("event_timestamp_ms"), default=0)

    def max_timestamp_ms(self, below: int | None = None) -> int | None:
        """The largest of the segments' maximum timestamps that is less than `below`."""
        times = self._column("max_timestamp_ms")
        return max(times if below is None else (t for t in times if t < below), default=None)

    @property
    def size_bytes(self) -> int:
        if self._size is None:
            self._size = sum(self._column("segment_size_bytes"))
        return self._size

    def find(self, segment_id: UUID, start_offset: int) -> int | None:
        raw_id = segment_id.bytes
        row = bisect_left(self._starts, start_offset, self._first, self._end)
        while row < self._end and self._starts[row] == start_offset:
            if self._columns.ids[16 * row : 16 * row + 16] == raw_id:
                return row - self._first
            row += 1
        return None

    # --- changes: a new sequence ---
    def appended(self, segment: RemoteLogSegmentMetadata) -> SegmentRows:
        if self._columns is _NO_ROWS:
            return SegmentRows.of(self._tp, [segment])
        if self._end < len(self._columns):  # another sequence has appended to these columns
            return self.replaced(len(self), len(self), [segment])
        self._columns.append(segment)
        return SegmentRows(self._tp, self._columns, self._first)

    def replaced(
        self, first: int, last: int, by: Sequence[RemoteLogSegmentMetadata] = ()
    ) -> SegmentRows:
        """A sequence with `by` in place of segments `first` up to but not including `last`."""
        columns, at, end = self._columns, self._first + first, self._first + last
        if columns is _NO_ROWS:
            return SegmentRows.of(self._tp, by) if by else self
        if not by and last == len(self):
            return SegmentRows(self._tp, columns, self._first, at)
        if not by and first == 0 and 2 * end < len(columns):  # else removed rows would keep memory
            return SegmentRows(self._tp, columns, end, self._end)
        changed = columns.part(self._first, at)
        if by:
            changed += Columns.of(by, columns.pool)
        return SegmentRows(self._tp, changed + columns.part(end, self._end))


def load_rows(
    tp: TopicIdPartition, entries: bytes, where: str
) -> tuple[SegmentRows, list[MetadataEvent]]:
    """The finished segments of a flat file, and its other events.

    If the segments overlap or are not in order, they are returned among the other events. Raises
    CorruptSegment, naming entry and field; NewerMetadataVersion.
    """
    entries_taken: list[Entry] = []
    others: list[Entry] = []
    heads: list[tuple[Any, ...]] = []
    tails: list[tuple[Any, ...]] = []
    for entry in walk_entries(entries, where):
        _, body, end, epochs = entry
        if epochs >= 0:
            packed, absent = SEGMENT_TAILS[entries[body + 1]]
            tail = packed.unpack_from(entries, end - packed.size) + absent
            if tail[_STATE] == _FINISHED:
                entries_taken.append(entry)
                heads.append(SEGMENT_HEAD.unpack_from(entries, body + 2))
                tails.append(tail)
                continue
        others.append(entry)
    columns = _columns(entries, entries_taken, heads, tails) if entries_taken else None
    if columns is None:
        others += entries_taken
    return SegmentRows(tp, columns), [
        decode_entry(entries[body:end], tp, f"{where}, byte {body}") for _, body, end, _ in others
    ]


def _columns(
    entries: bytes,
    entries_taken: list[Entry],
    heads: list[tuple[Any, ...]],
    tails: list[tuple[Any, ...]],
) -> Columns | None:
    """None: the segments overlap or are not in order, or a value is impossible. Then the caller
    decodes them one by one, which reports the error.
    """
    by_field = dict(zip(HEAD_FIELDS, zip(*heads, strict=True), strict=True))
    by_field |= zip(TAIL_FIELDS, zip(*tails, strict=True), strict=True)
    starts, ends, copied = (
        by_field["start_offset"],
        by_field["end_offset"],
        by_field["copied_end_offset"],
    )
    if starts[0] < 0 or not all(map(ge, ends, starts)) or not all(map(gt, starts[1:], ends)):
        return None
    sizes = by_field["segment_size_bytes"]
    highest, size_max = max(ends[-1], *copied), max(sizes)
    if highest > OFFSET_MAX or min(sizes) < 0 or size_max > SEGMENT_BYTES_MAX:
        return None
    ids = by_field["segment_id"]
    clipped = {}
    if copied.count(NO_OFFSET) < len(copied):
        clipped = {i: end for i, end in zip(ids, copied, strict=True) if end != NO_OFFSET}
        if any(NO_OFFSET != stored < end for stored, end in zip(copied, ends, strict=True)):
            return None
    values = {name: array(typecode, by_field[name]) for name, typecode in _COLUMNS.items()}
    pool, start_at, size = EpochPool(), 2 + START_AT, SEGMENT_EPOCH.size
    epochs = [
        pool.number(
            entries[body + EPOCHS_AT : body + EPOCHS_AT + size * count],
            entries[body + start_at : body + start_at + 8],
        )
        for _, body, _, count in entries_taken
    ]
    return Columns(bytearray(b"".join(ids)), values, array("I", epochs), pool, clipped)


def _unpack_epochs(packed: bytes, start: int) -> tuple[EpochStart, ...]:
    if len(packed) == SEGMENT_EPOCH.size:  # one epoch, as nearly always
        epoch, offset = SEGMENT_EPOCH.unpack(packed)
        return (EpochStart(epoch, start if offset == _SEGMENT_START else offset),)
    unpacked = SEGMENT_EPOCH.iter_unpack(packed)
    return tuple([EpochStart(e, start if at == _SEGMENT_START else at) for e, at in unpacked])


def _uuid(raw: bytes) -> UUID:
    """Made as unpickling does, without the constructor's checks, in half the time."""
    value = UUID.__new__(UUID)
    value.__setstate__({"int": int.from_bytes(raw, "big")})  # type: ignore[attr-defined]
    return value
