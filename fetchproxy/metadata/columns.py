"""What is known of very many segments in little memory: packed rows, and where their entries
stand.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from struct import Struct
from typing import NamedTuple, overload
from uuid import UUID

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.model import RemotePartitionDeleteState as DeleteState
from fetchproxy.segments.records import (
    NEWEST_VERSION,
    SEGMENT_EPOCH,
    SEGMENT_HEAD,
    SEGMENT_TAIL,
    LogHistorySaid,
    LogStartOffset,
    RecordType,
    Restore,
    decode_entry,
)
from protocol.apis import WireError
from protocol.primitives import INT32, decode_uvarint

# The entries of a cache file as bytes: where they are, and which of them still count. Pure.
#
# A file of hundreds of segments is read as a few *runs*: entries of equal length, type, version
# and number of leader epochs, one behind the other, of which a field can be taken at one go
# (`struct` and slices with a step). Entry by entry the same costs ten times as much. Values of
# single entries are the matter of `records`.

_HEAD = SEGMENT_HEAD.size
_COUNT_AT = _HEAD - 4
_EPOCH = SEGMENT_EPOCH.size
_LOOK_AHEAD_MAX = 4096  # entries
_FINISHED = bytes([RemoteLogSegmentState.COPY_SEGMENT_FINISHED])
_GONE = bytes([RemoteLogSegmentState.DELETE_SEGMENT_FINISHED])


@dataclass(frozen=True, slots=True)
class Run:
    """`count` entries of a segment's metadata from `start` on, each of `stride` bytes.

    Of each entry the first `lead` bytes are length, type and version.
    """

    start: int
    stride: int
    count: int
    lead: int
    version: int
    epochs: int  # leader epochs of each entry

    @property
    def end(self) -> int:
        return self.start + self.stride * self.count

    def positions(self) -> range:
        return range(self.start, self.end, self.stride)

    @property
    def state_at(self) -> int:
        """Where in an entry its state is."""
        return self.lead + _HEAD + _EPOCH * self.epochs + (8 if self.version else 4)


@dataclass(frozen=True, slots=True)
class Single:
    """An entry of another type; its record is the bytes `body` to `end`."""

    kind: int
    start: int
    body: int
    end: int


def split_entries(entries: bytes, where: str) -> Iterator[Run | Single]:
    """Raises CorruptSegment, naming `where` and the byte, where an entry is not whole."""
    at, end = 0, len(entries)
    while at < end:
        try:
            length, body = decode_uvarint(entries, at)
            kind, after = decode_uvarint(entries, body)
        except WireError as error:
            raise CorruptSegment(f"{where}, entry at byte {at}: {error}") from None
        if body + length > end or after > body + length:
            raise CorruptSegment(f"{where}, entry at byte {at}: not whole")
        found: Run | Single
        if kind == RecordType.REMOTE_LOG_SEGMENT_METADATA:
            found = _run_at(entries, at, body, length) or Single(kind, at, body, body + length)
        else:
            found = Single(kind, at, body, body + length)
        yield found
        at = found.end


def _run_at(entries: bytes, at: int, body: int, length: int) -> Run | None:
    """None where it is not of a known shape; decoding the entry then says what is wrong."""
    version = entries[body + 1]
    if version > NEWEST_VERSION[RecordType.REMOTE_LOG_SEGMENT_METADATA] or length < _HEAD + 2:
        return None
    lead, stride = body + 2 - at, body + length - at
    counted = INT32.unpack_from(entries, at + lead + _COUNT_AT)[0]
    tail = SEGMENT_TAIL.size if version else 5
    if counted < 0 or length != 2 + _HEAD + _EPOCH * counted + tail:
        return None
    same = [*range(lead), *range(lead + _COUNT_AT, lead + _HEAD)]
    count = min((len(entries) - at) // stride, _LOOK_AHEAD_MAX)
    if entries[at : at + lead] != entries[at + stride : at + stride + lead]:
        count = 1
    for offset in same if count > 1 else ():
        column = entries[at + offset : at + stride * count : stride]
        count = len(column) - len(column.lstrip(column[:1]))
    return Run(at, stride, count, lead, version, counted)


@lru_cache(maxsize=256)
def run_fields(run_shape: tuple[int, int, int], template: str) -> Struct:
    """A struct over one entry; of `template`, `{lead}`, `{epochs}` are filled in with sizes.

    `run_shape` is (lead, epochs, stride); what is behind the template is skipped.
    """
    lead, epochs, stride = run_shape
    bare = ">" + template.format(lead=lead, epochs=_EPOCH * epochs)
    return Struct(f"{bare}{stride - Struct(bare).size}x")


def fields_of(run: Run, template: str) -> Struct:
    """For `Struct.iter_unpack` over the bytes of the run."""
    return run_fields((run.lead, run.epochs, run.stride), template)


def compact(entries: bytes, tip: TopicIdPartition, where: str) -> bytes:
    """The entries that still count: the last of each segment, by start offset, and the like.

    A deleted segment leaves nothing, a deleted partition nothing at all. Finished segments come
    last, and so lie in long runs. Raises CorruptSegment as `split_entries`, NewerMetadataVersion.
    """
    last: dict[bytes, tuple[bytes, bytes, int, int]] = {}
    log_starts: dict[int, tuple[int, bytes]] = {}
    history = deletion = restore = b""
    for part in split_entries(entries, where):
        if isinstance(part, Run):
            template = f"{{lead}}x16s8s32x{{epochs}}x{8 if part.version else 4}xc"
            rows = fields_of(part, template).iter_unpack(entries[part.start : part.end])
            for at, (segment_id, start, state) in zip(part.positions(), rows, strict=True):
                last[segment_id] = state, start, at, part.stride
        elif part.kind != RecordType.CACHE_FILE_CHECKPOINT:
            raw = entries[part.start : part.end]
            event = decode_entry(entries[part.body : part.end], tip, f"{where}, byte {part.start}")
            if isinstance(event, LogStartOffset):
                known = log_starts.get(event.after_epoch, (-1, b""))
                log_starts[event.after_epoch] = max(known, (event.offset, raw))
            elif isinstance(event, LogHistorySaid):
                history = raw
            elif isinstance(event, Restore):
                restore = raw if event.restoring else b""
            elif getattr(event, "state", None) is DeleteState.DELETE_PARTITION_FINISHED:
                last, log_starts, history, deletion, restore = {}, {}, b"", b"", b""
            else:
                deletion = raw
    kept = sorted(entry for entry in last.values() if entry[0] != _GONE)
    unfinished = [entries[at : at + size] for state, _, at, size in kept if state != _FINISHED]
    finished = [entries[at : at + size] for state, _, at, size in kept if state == _FINISHED]
    starts = [raw for _, raw in log_starts.values()]
    return b"".join([history, *starts, deletion, restore, *unfinished, *finished])


# Finished segments of one partition as packed rows: 66 bytes each, not a Python object. Pure.
#
# An immutable sequence by offset, made of blocks of up to 256 rows. A change makes a new sequence
# that shares all blocks but one, so a view may keep the old one, and a change costs about the
# same in a partition of ten segments as in one of a hundred thousand. Values of
# `RemoteLogSegmentMetadata` are made where somebody asks for one. States, and which copies are
# shown: `catalogue`.

# Id, start offset, max timestamp, event timestamp, size in bytes, whether there are aborted
# transactions. The fields lie as in a cache file's entry, so that rows can be cut out of entries.
ROW = Struct(">16sqqqqB")
_START = Struct(">16xq25x")
_ID_AND_START = Struct(">16sq")
BLOCK_ROWS_MAX = 256  # so that one byte says which leader epochs a row has

# A segment repeats the epoch that it begins in, with its own start offset. Written so instead, all
# segments of one leader have the same epochs, and a block keeps them once.
_OWN_START = -1
OWN_START = _OWN_START.to_bytes(8, "big", signed=True)
_NONE_CLIPPED: Mapping[bytes, int] = {}
_MADE_MAX = 16  # values kept: a reader asks for the same few over and over


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows before they are cut into blocks; all of one length, by offset."""

    rows: bytes  # ROW after ROW
    ends: array[int]
    max_timestamps: array[int]
    epochs: Sequence[bytes]  # SEGMENT_EPOCH after SEGMENT_EPOCH, see OWN_START
    clipped: Mapping[bytes, int]  # copied end offsets, by segment id


class SegmentExtent(NamedTuple):
    """What a planner asks of a segment; offsets inclusive."""

    segment_id: bytes
    start_offset: int
    end_offset: int
    stored_end_offset: int
    size_bytes: int
    has_aborted_txns: bool


def columns_of(segments: Sequence[RemoteLogSegmentMetadata]) -> Columns:
    return Columns(
        rows=b"".join([_pack(segment) for segment in segments]),
        ends=array("q", [segment.end_offset for segment in segments]),
        max_timestamps=array("q", [segment.max_timestamp_ms for segment in segments]),
        epochs=[_pack_epochs(segment) for segment in segments],
        clipped={
            segment.segment_id.id.bytes: segment.copied_end_offset
            for segment in segments
            if segment.copied_end_offset is not None
        },
    )


def _pack(segment: RemoteLogSegmentMetadata) -> bytes:
    return ROW.pack(
        segment.segment_id.id.bytes,
        segment.start_offset,
        segment.max_timestamp_ms,
        segment.event_timestamp_ms,
        segment.segment_size_bytes,
        segment.has_aborted_txns,
    )


def _pack_epochs(segment: RemoteLogSegmentMetadata) -> bytes:
    packed = b"".join(
        [SEGMENT_EPOCH.pack(e.epoch, e.start_offset) for e in segment.segment_leader_epochs]
    )
    return relative_epochs(packed, segment.start_offset.to_bytes(8, "big"))


def relative_epochs(packed: bytes, start: bytes) -> bytes:
    return packed[:4] + OWN_START + packed[12:] if packed[4:12] == start else packed


class _Block:
    """Up to BLOCK_ROWS_MAX rows; never empty, never changed."""

    __slots__ = ("clipped", "ends", "epochs", "peaks", "pool", "rows")

    def __init__(
        self,
        rows: bytes,
        ends: array[int],
        peaks: array[int],
        epochs: bytes,
        pool: tuple[bytes, ...],
        clipped: Mapping[bytes, int],
    ) -> None:
        self.rows = rows
        self.ends = ends
        self.peaks = peaks  # the largest timestamp up to each row: they rise, for bisection
        self.epochs = epochs  # of each row, an index into `pool`
        self.pool = pool
        self.clipped = clipped

    @classmethod
    def of(cls, columns: Columns, first: int, last: int) -> _Block:
        """Of the rows `first` up to but not including `last`."""
        rows = columns.rows[first * ROW.size : last * ROW.size]
        # Lists in between: an array that grows keeps room for more.
        peaks = array("q", list(accumulate(columns.max_timestamps[first:last], max)))
        pool: dict[bytes, int] = {}
        epochs = bytes([pool.setdefault(e, len(pool)) for e in columns.epochs[first:last]])
        clipped = _NONE_CLIPPED
        if columns.clipped:
            ids = (rows[at : at + 16] for at in range(0, len(rows), ROW.size))
            clipped = {i: columns.clipped[i] for i in ids if i in columns.clipped}
        return cls(rows, columns.ends[first:last], peaks, epochs, tuple(pool), clipped)

    def columns(self) -> Columns:
        epochs = [self.pool[number] for number in self.epochs]
        times = array("q", [row[2] for row in ROW.iter_unpack(self.rows)])
        return Columns(self.rows, self.ends, times, epochs, self.clipped)

    def appended(self, segment: RemoteLogSegmentMetadata) -> _Block:
        epochs = _pack_epochs(segment)
        pool = self.pool if epochs in self.pool else (*self.pool, epochs)
        clipped = self.clipped
        if segment.copied_end_offset is not None:
            clipped = {**clipped, segment.segment_id.id.bytes: segment.copied_end_offset}
        return _Block(
            self.rows + _pack(segment),
            self.ends + array("q", [segment.end_offset]),
            self.peaks + array("q", [max(self.peaks[-1], segment.max_timestamp_ms)]),
            self.epochs + bytes([pool.index(epochs)]),
            pool,
            clipped,
        )


def _cut(columns: Columns) -> list[_Block]:
    """Into as few blocks as can be, of about equal size."""
    count = len(columns.ends)
    blocks = -(-count // BLOCK_ROWS_MAX)
    borders = [count * number // blocks for number in range(blocks + 1)] if blocks else []
    return [_Block.of(columns, first, last) for first, last in pairwise(borders)]


class SegmentRows(Sequence[RemoteLogSegmentMetadata]):
    """Starts and ends both rise, ends strictly. Equal to any sequence of the same segments."""

    __slots__ = ("_blocks", "_epoch", "_firsts", "_lasts", "_made", "_peaks", "_size", "_tip")

    def __init__(self, tip: TopicIdPartition, blocks: Sequence[_Block] = ()) -> None:
        self._tip = tip
        self._blocks = tuple(blocks)
        # Of each block: its first row's index (and the number of all rows), its last end offset,
        # and the largest timestamp up to its end.
        self._firsts = array("q", accumulate([0, *[len(block.ends) for block in blocks]]))
        self._lasts = array("q", [block.ends[-1] for block in blocks])
        self._peaks = array("q", accumulate([block.peaks[-1] for block in blocks], max))
        self._made: dict[int, RemoteLogSegmentMetadata] = {}
        self._size: int | None = None
        self._epoch = (-1, -1)  # an offset and its epoch, as last asked for

    @classmethod
    def of(cls, tip: TopicIdPartition, segments: Iterable[RemoteLogSegmentMetadata]) -> SegmentRows:
        return cls(tip, _cut(columns_of(list(segments))))

    @classmethod
    def of_columns(cls, tip: TopicIdPartition, columns: Columns) -> SegmentRows:
        return cls(tip, _cut(columns))

    def __len__(self) -> int:
        return self._firsts[-1]

    @overload
    def __getitem__(self, index: int) -> RemoteLogSegmentMetadata: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RemoteLogSegmentMetadata, ...]: ...
    def __getitem__(
        self, index: int | slice
    ) -> RemoteLogSegmentMetadata | tuple[RemoteLogSegmentMetadata, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        made = self._made.get(index)
        if made is None:
            at = index + len(self) if index < 0 else index
            if not 0 <= at < len(self):
                raise IndexError(f"segment {index} of {len(self)}")
            made = self._keep(index, self._make(*self._place(at)))
        return made

    def _keep(self, index: int, made: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        if len(self._made) >= _MADE_MAX:
            self._made.clear()
        self._made[index] = made
        return made

    def __iter__(self) -> Iterator[RemoteLogSegmentMetadata]:
        for block in self._blocks:
            for row in range(len(block.ends)):
                yield self._make(block, row)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    def __hash__(self) -> int:
        return hash((self._tip, self._lasts.tobytes()))

    def __repr__(self) -> str:
        return f"SegmentRows({list(self)!r})"

    def at_or_after(self, offset: int) -> RemoteLogSegmentMetadata | None:
        """The first segment whose end is at or above `offset`."""
        index = self.index_at_or_after(offset)
        return None if index == self._firsts[-1] else self[index]

    # --- questions that need no value ---
    def index_at_or_after(self, offset: int) -> int:
        """Of the first segment whose end is at or above `offset`; the length: there is none."""
        number = bisect_left(self._lasts, offset)
        if number == len(self._blocks):
            return self._firsts[-1]
        return self._firsts[number] + bisect_left(self._blocks[number].ends, offset)

    def index_at_or_after_timestamp(self, timestamp_ms: int, index: int = 0) -> int:
        """Of the first segment from `index` on with so large a maximum; the length: none."""
        number = bisect_left(self._peaks, timestamp_ms)
        if number == len(self._blocks):
            return self._firsts[-1]
        found = self._firsts[number] + bisect_left(self._blocks[number].peaks, timestamp_ms)
        # The peaks say it of the very first one only.
        return found if found >= index else self._scan_timestamps(timestamp_ms, index)

    def _scan_timestamps(self, timestamp_ms: int, index: int) -> int:
        while index < len(self):
            block, row = self._place(index)
            for values in ROW.iter_unpack(memoryview(block.rows)[row * ROW.size :]):
                if values[2] >= timestamp_ms:
                    return index
                index += 1
        return index

    def start_offset(self, index: int) -> int:
        block, row = self._place(index)
        return int(_START.unpack_from(block.rows, row * ROW.size)[0])

    def end_offset(self, index: int) -> int:
        block, row = self._place(index)
        return block.ends[row]

    def extents(self, index: int = 0) -> Iterator[SegmentExtent]:
        """Of each segment from `index` on, at a tenth of what a segment's value costs."""
        number = bisect_right(self._firsts, index) - 1
        for block in self._blocks[number:]:
            skipped = max(0, index - self._firsts[number])
            rows = ROW.iter_unpack(memoryview(block.rows)[skipped * ROW.size :])
            number += 1
            for row, end in zip(rows, block.ends[skipped:], strict=True):
                i, start, _, _, size, aborted = row
                yield SegmentExtent(i, start, end, block.clipped.get(i, end), size, aborted != 0)

    def bounds(self) -> Iterator[tuple[int, int]]:
        """(start offset, end offset) of each, both inclusive."""
        for block in self._blocks:
            starts = _START.iter_unpack(block.rows)
            yield from ((start, end) for (start,), end in zip(starts, block.ends, strict=True))

    def leader_epochs(self) -> Iterator[EpochStart]:
        """Of all segments, in the order of the log; what is only repeated is left out."""
        for block in self._blocks:
            for number, packed in enumerate(block.pool):
                row = block.epochs.index(number)  # the first that has them
                yield from _unpack_epochs(packed, _START.unpack_from(block.rows, row * ROW.size)[0])

    def epoch_at(self, offset: int) -> int:
        """The last leader epoch that began at or below `offset`; -1: none did."""
        if offset != self._epoch[0]:  # the log start is asked for over and over
            epochs = [e.epoch for e in self.leader_epochs() if e.start_offset <= offset]
            self._epoch = offset, max(epochs, default=-1)
        return self._epoch[1]

    def max_timestamp_ms(self, below: int | None = None) -> int | None:
        """The largest of all segments that is less than `below`."""
        if below is None:
            return self._peaks[-1] if self._peaks else None
        rows = (row for block in self._blocks for row in ROW.iter_unpack(block.rows))
        return max((row[2] for row in rows if row[2] < below), default=None)

    @property
    def size_bytes(self) -> int:
        """Of all segments' logs."""
        if self._size is None:
            self._size = sum(r[4] for block in self._blocks for r in ROW.iter_unpack(block.rows))
        return self._size

    def find(self, segment_id: UUID, start_offset: int) -> int | None:
        """The segment's index."""
        wanted = segment_id.bytes
        index = bisect_left(range(len(self)), start_offset, key=self.start_offset)
        while index < len(self):
            block, row = self._place(index)
            found, start = _ID_AND_START.unpack_from(block.rows, row * ROW.size)
            if start != start_offset:
                return None
            if found == wanted:
                return index
            index += 1
        return None

    # --- changes: a new sequence ---
    def appended(self, segment: RemoteLogSegmentMetadata) -> SegmentRows:
        """With one more behind the last."""
        if not self._blocks or len(self._blocks[-1].ends) == BLOCK_ROWS_MAX:
            return self.replaced(len(self), len(self), [segment])
        return SegmentRows(self._tip, (*self._blocks[:-1], self._blocks[-1].appended(segment)))

    def replaced(
        self, first: int, last: int, by: Sequence[RemoteLogSegmentMetadata] = ()
    ) -> SegmentRows:
        """Without the segments `first` up to but not including `last`, with `by` in their place."""
        left = bisect_right(self._firsts, first) - 1
        right = max(left, bisect_left(self._firsts, last))
        if by and left == right < len(self._blocks):
            right += 1  # into the block behind a border, rather than into one of their own
        touched = [block.columns() for block in self._blocks[left:right]]
        before, after = first - self._firsts[left], last - self._firsts[left]
        rows = b"".join([part.rows for part in touched])
        ends = [end for part in touched for end in part.ends]
        times = [time for part in touched for time in part.max_timestamps]
        epochs = [packed for part in touched for packed in part.epochs]
        new = columns_of(by)
        kept = {i: offset for part in touched for i, offset in part.clipped.items()}
        merged = Columns(
            rows[: before * ROW.size] + new.rows + rows[after * ROW.size :],
            array("q", [*ends[:before], *new.ends, *ends[after:]]),
            array("q", [*times[:before], *new.max_timestamps, *times[after:]]),
            [*epochs[:before], *new.epochs, *epochs[after:]],
            {**kept, **new.clipped},
        )
        blocks = (*self._blocks[:left], *_cut(merged), *self._blocks[right:])
        return SegmentRows(self._tip, blocks)

    def _place(self, index: int) -> tuple[_Block, int]:
        number = bisect_right(self._firsts, index) - 1
        return self._blocks[number], index - self._firsts[number]

    def _make(self, block: _Block, row: int) -> RemoteLogSegmentMetadata:
        raw_id, start, max_timestamp, event_timestamp, size, aborted = ROW.unpack_from(
            block.rows, row * ROW.size
        )
        return RemoteLogSegmentMetadata(
            RemoteLogSegmentId(self._tip, _uuid(raw_id)),
            start,
            block.ends[row],
            max_timestamp,
            event_timestamp,
            _unpack_epochs(block.pool[block.epochs[row]], start),
            size,
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            aborted != 0,
            block.clipped.get(raw_id) if block.clipped else None,
        )


def _unpack_epochs(packed: bytes, start: int) -> tuple[EpochStart, ...]:
    if len(packed) == SEGMENT_EPOCH.size:  # nearly always
        epoch, offset = SEGMENT_EPOCH.unpack(packed)
        return (EpochStart(epoch, start if offset == _OWN_START else offset),)
    found = SEGMENT_EPOCH.iter_unpack(packed)
    return tuple([EpochStart(e, start if at == _OWN_START else at) for e, at in found])


def _uuid(raw: bytes) -> UUID:
    """As unpickling makes one, without the checks of its constructor: half the time."""
    value = UUID.__new__(UUID)
    value.__setstate__({"int": int.from_bytes(raw, "big")})  # type: ignore[attr-defined]
    return value
