"""KIP-405's remoteLogIndex of one segment: it maps offsets to bytes of the `.log` object. Pure.

An entry, big-endian. The fields are the KIP's; if the KIP is silent, the choice is named:

    magic           int16   0
    length          int16   bytes of the whole entry, from `magic` to the end of `rdi`
    crc             int32   CRC-32C (as in record batches) of everything after this field
    firstOffset     int64   base offset of the entry's first batch
    lastOffset      int64   last offset of its last batch, inclusive
    firstTimestamp  int64   base timestamp of its first batch (ms)
    lastTimestamp   int64   *largest* timestamp of all its batches (ms)
    dataLength      int32   bytes of its batches
    rdiLength       int16
    rdi             utf-8   <key of the .log object, relative to the store's root>#<byte position>

`lastTimestamp` is the largest timestamp and not the last one: producers may send timestamps out of
order, and a search by time must be able to skip an entry without reading its data.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import le, lt
from struct import Struct
from typing import Any

from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.primitives import Buffer
from fetchproxy_protocol.record_batch import BatchHeader

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import ByteRange, RemoteLogSegmentMetadata

_MAGIC = 0
DATA_BYTES_MAX = 2**31 - 1  # dataLength is an int32
ENTRY_BYTES_MAX = 2**15 - 1  # length is an int16

HEAD = Struct(">hhI")
_BODY = Struct(">qqqqih")
FIXED_BYTES = HEAD.size + _BODY.size
INTERVAL_BYTES = 64 * 1024
# Entries that are read at once. As rows they take ten times the memory that they have in the end.
_RUN_ENTRIES_MAX = 10_000


@dataclass(frozen=True, slots=True)
class IndexSpan:
    """Consecutive batches: bytes `position` … `position + length - 1`. Offsets are inclusive."""

    position: int
    length: int
    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def end(self) -> int:
        return self.position + self.length


@dataclass(frozen=True, slots=True)
class RemoteLogIndexEntry:
    """A sequence of records in the remote tier: the `.log` object, and the place in it."""

    object_key: str
    span: IndexSpan
    size_bytes: int  # of the entry itself

    @property
    def rdi(self) -> str:
        """The remote data identifier, see `split_rdi`."""
        return f"{self.object_key}#{self.span.position}"


def encode_index_entry(object_key: str, span: IndexSpan) -> bytes:
    """Raises ValueError if a field does not fit, as with a key of more than 32 KB."""
    rdi = f"{object_key}#{span.position}".encode()
    if FIXED_BYTES + len(rdi) > ENTRY_BYTES_MAX or span.length > DATA_BYTES_MAX:
        raise ValueError(f"index entry of {object_key[:80]!r} at {span.position} is too large")
    body = (
        _BODY.pack(
            span.first_offset,
            span.last_offset,
            span.first_timestamp_ms,
            span.max_timestamp_ms,
            span.length,
            len(rdi),
        )
        + rdi
    )
    return HEAD.pack(_MAGIC, HEAD.size + len(body), crc32c(body)) + body


def read_entry(raw: Buffer, at: int) -> RemoteLogIndexEntry:
    """The entry at byte `at`. Raises CorruptSegment, without the place: the caller knows it."""
    size_bytes = _checked_length(raw, at)
    first, last, first_ts, max_ts, length, rdi_length = _BODY.unpack_from(raw, at + HEAD.size)
    if FIXED_BYTES + rdi_length != size_bytes:
        raise CorruptSegment(f"rdiLength {rdi_length} does not fill the entry")
    key, position = split_rdi(bytes(raw[at + FIXED_BYTES : at + size_bytes]))
    span = IndexSpan(position, length, first, last, first_ts, max_ts)
    return RemoteLogIndexEntry(key, span, size_bytes)


def entry_positions(raw: Buffer) -> Iterator[int]:
    """The byte at which each entry begins, in a whole index that was checked before."""
    position = 0
    while position < len(raw):
        yield position
        position += HEAD.unpack_from(raw, position)[1]


def split_rdi(rdi: bytes) -> tuple[str, int]:
    """(key of the `.log` object in its ObjectStore, byte position of the data in it).

    All backends have the keys of `object_keys`. Raises CorruptSegment.
    """
    try:
        key, _, position = rdi.decode().rpartition("#")
    except UnicodeDecodeError:
        raise CorruptSegment("rdi is not UTF-8") from None
    if not (key and position.isascii() and position.isdigit() and len(position) < 19):
        raise CorruptSegment(f"rdi {rdi[:200]!r} is not <key>#<position>")
    return key, int(position)


def _checked_length(raw: Buffer, position: int) -> int:
    """Bytes of the entry at `position`, after a check of magic, length and checksum."""
    bytes_left = len(raw) - position
    if position < 0 or bytes_left < FIXED_BYTES:
        raise CorruptSegment(f"{bytes_left} bytes are not an entry")
    magic, length, crc = HEAD.unpack_from(raw, position)
    if magic != _MAGIC:
        raise CorruptSegment(f"magic {magic}, not {_MAGIC}")
    if length < FIXED_BYTES or length > bytes_left:
        raise CorruptSegment(f"length {length}, {bytes_left} bytes are left")
    computed_crc = crc32c(memoryview(raw)[position + HEAD.size : position + length])
    if computed_crc != crc:
        raise CorruptSegment(f"checksum {computed_crc:#010x}, stored {crc:#010x}")
    return int(length)


# Entries follow each other in offsets and without a hole in bytes, and the first is at byte 0.


class RemoteLogIndex:
    """An index, parsed or being built. It takes 44 bytes an entry, and one object key for all."""

    __slots__ = (
        "_first_timestamps",
        "_last_offsets",
        "_lengths",
        "_positions",
        "first_offsets",
        "max_timestamps",
        "object_key",
    )

    def __init__(self) -> None:
        self.object_key = ""
        self._positions = array("q")
        self._lengths = array("i")
        self.first_offsets = array("q")
        self._last_offsets = array("q")
        self._first_timestamps = array("q")
        self.max_timestamps = array("q")

    @classmethod
    def parse(cls, raw: bytes) -> RemoteLogIndex:
        """Raises CorruptSegment, naming the entry and its byte, if the index is not whole.

        An index that was cut exactly between two entries looks whole. Only the segment's metadata
        show the cut, see `check_covers`.
        """
        index, end, error = cls.take(raw)
        if error is not None:
            raise CorruptSegment(f"remoteLogIndex entry {len(index)} at byte {end}: {error}")
        if not len(index):
            raise CorruptSegment("remoteLogIndex has no entry")
        return index

    @classmethod
    def take(
        cls, raw: bytes, position: int = 0
    ) -> tuple[RemoteLogIndex, int, CorruptSegment | None]:
        """(the sound entries from byte `position` on, the byte after them, the error there).

        The error is None if the entries reach the end of `raw`. Another segment's entry is an
        error too; the next `take`, from there on, shows if it is sound.
        """
        index = cls()
        view = memoryview(raw)
        plain = True
        while position < len(raw):
            try:
                position = index._read_entry(raw, position)
            except CorruptSegment as error:
                return index, position, error
            if plain:
                position, plain = index._take_run(view, position)
        return index, position, None

    def _read_entry(self, raw: bytes, at: int) -> int:
        entry = read_entry(raw, at)
        if not self._positions:
            self.object_key = entry.object_key
        self._check_follows(entry.object_key, entry.span)
        self._append(entry.span)
        return at + entry.size_bytes

    def _append(self, span: IndexSpan) -> None:
        self._positions.append(span.position)
        self._lengths.append(span.length)
        self.first_offsets.append(span.first_offset)
        self._last_offsets.append(span.last_offset)
        self._first_timestamps.append(span.first_timestamp_ms)
        self.max_timestamps.append(span.max_timestamp_ms)

    def _take_run(self, raw: memoryview, position: int) -> tuple[int, bool]:
        """Takes the entries from `position` on that are as long as the first: (byte after them,
        sound).

        It makes the checks of `_read_entry` on whole columns, several times as fast. `sound`
        False: an entry is faulty, or only written in another way. `_read_entry` then finds the
        entry and its fault.
        """
        key = f"{self.object_key}#".encode()
        size = HEAD.unpack_from(raw, position)[1] if len(raw) - position >= FIXED_BYTES else 0
        digits = size - FIXED_BYTES - len(key)
        if digits <= 0:
            return position, True
        entries = Struct(f">hhIqqqqih{len(key)}s{digits}s")
        rows: list[tuple[Any, ...]] = []  # Any: what Struct unpacks
        whole = min((len(raw) - position) // size, _RUN_ENTRIES_MAX)
        for row in entries.iter_unpack(raw[position : position + whole * size]):
            if row[1] != size or row[9] != key:
                break  # a longer entry, or another segment's: the rows after it are out of place
            rows.append(row)
        if not rows:
            return position, True
        magics, _, crcs, firsts, lasts, first_stamps, max_stamps, lengths, rdi_sizes, _, texts = (
            zip(*rows, strict=True)
        )
        positions = list(accumulate(lengths, initial=self.size_bytes))[:-1]
        ends = range(position + size, position + (len(rows) + 1) * size, size)
        sound = (
            magics.count(_MAGIC) == rdi_sizes.count(size - FIXED_BYTES) == len(rows)
            and b"".join(texts) == "".join(map(str, positions)).encode()  # all equally wide
            and crcs == tuple(crc32c(raw[end - size + HEAD.size : end]) for end in ends)
            and min(lengths) > 0
            and all(map(le, firsts, lasts))
            and all(map(lt, chain((self.last_offset,), lasts), firsts))
        )
        if not sound:
            return position, False
        self._positions.extend(positions)
        self._lengths.extend(lengths)
        self.first_offsets.extend(firsts)
        self._last_offsets.extend(lasts)
        self._first_timestamps.extend(first_stamps)
        self.max_timestamps.extend(max_stamps)
        return ends[-1], True

    def _check_follows(self, key: str, span: IndexSpan) -> None:
        if key != self.object_key:
            raise CorruptSegment(f"rdi names {key!r}, the first entry {self.object_key!r}")
        if span.position != self.size_bytes:
            raise CorruptSegment(f"position {span.position}, expected {self.size_bytes}")
        if span.length <= 0:
            raise CorruptSegment(f"dataLength {span.length}")
        first, last = span.first_offset, span.last_offset
        if not 0 <= first <= last:
            raise CorruptSegment(f"offsets {first} to {last}")
        if self._last_offsets and first <= self._last_offsets[-1]:
            raise CorruptSegment(f"offset {first} after {self._last_offsets[-1]}")

    def add(self, header: BatchHeader, interval_bytes: int = INTERVAL_BYTES) -> None:
        """Adds the next batch of the segment; only its size counts, not `header.position`.

        It joins the last span while that has less than `interval_bytes`. A span may be longer by up
        to one batch, as no batch is split. Raises ValueError if the batch's offsets do not follow
        the batch before it.
        """
        before = self._last_offsets[-1] if self._last_offsets else -1
        if header.base_offset <= before or header.last_offset < header.base_offset:
            raise ValueError(f"batch {header.base_offset}-{header.last_offset} after {before}")
        if header.size > DATA_BYTES_MAX:
            raise ValueError(f"batch {header.base_offset} of {header.size} bytes is too large")
        length = self._lengths[-1] if self._lengths else interval_bytes
        if length >= interval_bytes or length + header.size > DATA_BYTES_MAX:
            span = IndexSpan(
                self.size_bytes,
                header.size,
                header.base_offset,
                header.last_offset,
                header.base_timestamp,
                header.max_timestamp,
            )
            self._append(span)
            return
        self._lengths[-1] = length + header.size
        self._last_offsets[-1] = header.last_offset
        self.max_timestamps[-1] = max(header.max_timestamp, self.max_timestamps[-1])

    def encoded(self, object_key: str) -> bytes:
        """The content of the `.index` object; empty if no batch was added. Raises ValueError."""
        return b"".join(encode_index_entry(object_key, span) for span in self.spans())

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, i: int) -> IndexSpan:
        return IndexSpan(
            self._positions[i],
            self._lengths[i],
            self.first_offsets[i],
            self._last_offsets[i],
            self._first_timestamps[i],
            self.max_timestamps[i],
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of the `.log` object that the entries cover, from byte 0 on."""
        return self._positions[-1] + self._lengths[-1] if self._positions else 0

    @property
    def last_offset(self) -> int:
        return self._last_offsets[-1]

    @property
    def memory_bytes(self) -> int:
        return 44 * len(self) + len(self.object_key) + 500

    def check_covers(self, end_offset: int, size_bytes: int) -> None:
        """Raises CorruptSegment if its end differs from the end in the segment's metadata."""
        if self.last_offset != end_offset or self.size_bytes != size_bytes:
            raise CorruptSegment(
                f"remoteLogIndex ends with offset {self.last_offset} at byte {self.size_bytes}, "
                f"the segment with offset {end_offset} at byte {size_bytes}"
            )

    def spans_up_to(self, i: int, size_bytes: int) -> int:
        """The number of the first span after `i` that ends more than `size_bytes` after `i` begins.

        It is `len(self)` if there is no such span.
        """
        limit = self._positions[i] + size_bytes
        if self.size_bytes <= limit:
            return len(self)
        # Each span begins at the end of the span before it.
        return max(bisect_right(self._positions, limit, i + 1) - 1, i + 1)

    def merged(self, i: int, j: int) -> IndexSpan:
        """Spans `i` … `j - 1` as one."""
        position = self._positions[i]
        return IndexSpan(
            position,
            self._positions[j - 1] + self._lengths[j - 1] - position,
            self.first_offsets[i],
            self._last_offsets[j - 1],
            self._first_timestamps[i],
            max(self.max_timestamps[i:j]),
        )

    def spans(self) -> Iterator[IndexSpan]:
        return (self[i] for i in range(len(self)))


class SegmentLayout:
    """The division of a segment into chunks of about `chunk_bytes` each, on index-span borders.

    A chunk is always whole batches, so it can be checked by itself and cut without its neighbours.
    Chunks are numbered from 0. The fields are arrays, because layouts are long-lived and many.

    `is_presumed`: made without the index. The log may begin at another offset than it says.
    """

    __slots__ = ("ends", "first_offsets", "is_presumed", "last_offsets", "max_timestamps_ms")

    def __init__(self, index: RemoteLogIndex, chunk_bytes: int) -> None:
        """A chunk is closed before the span that would make it larger than `chunk_bytes`.

        A single span above that size (a huge batch) is a chunk by itself.
        """
        self.ends = array("q")  # byte position after each chunk
        self.first_offsets = array("q")
        self.last_offsets = array("q")
        self.max_timestamps_ms = array("q")
        self.is_presumed = False
        i = 0
        while i < len(index):
            j = index.spans_up_to(i, chunk_bytes)
            chunk = index.merged(i, j)
            self.ends.append(chunk.end)
            self.first_offsets.append(chunk.first_offset)
            self.last_offsets.append(chunk.last_offset)
            self.max_timestamps_ms.append(chunk.max_timestamp_ms)
            i = j

    @classmethod
    def presumed(cls, metadata: RemoteLogSegmentMetadata) -> SegmentLayout:
        """The layout of a segment of one chunk, by its metadata alone (docs/adr/0095).

        The index has nothing else about such a segment, unless the log has a hole where the
        segment begins, or the segment begins inside a batch.
        """
        layout = cls.__new__(cls)  # a look-up makes thousands
        layout.ends = array("q", (metadata.segment_size_bytes,))
        layout.first_offsets = array("q", (metadata.start_offset,))
        layout.last_offsets = array("q", (metadata.stored_end_offset,))
        layout.max_timestamps_ms = array("q", (metadata.max_timestamp_ms,))
        layout.is_presumed = True
        return layout

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def memory_bytes(self) -> int:
        return 32 * len(self) + 500

    def chunk_at_or_after(self, offset: int) -> int:
        """The first chunk that ends at or above `offset`; `len(self)` if none does."""
        return bisect_left(self.last_offsets, offset)

    def byte_range(self, number: int) -> ByteRange:
        return ByteRange(self.ends[number - 1] if number else 0, self.ends[number])

    def first_chunk_with_timestamp(self, timestamp_ms: int, from_number: int = 0) -> int | None:
        """The first chunk, from `from_number` on, with a record at or after `timestamp_ms`."""
        times = self.max_timestamps_ms
        return next((n for n in range(from_number, len(self)) if times[n] >= timestamp_ms), None)
