"""KIP-405's remoteLogIndex of one segment: which bytes of the `.log` object hold which offsets.

Made once by the copier, read by whoever serves or verifies the segment. Nothing here does I/O.

One entry, big-endian (the KIP's own fields; where the KIP is silent the choice is named):

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

`lastTimestamp` is the largest and not the last one, because producers may send timestamps out of
order, and a search by time must be able to pass over an entry without reading its data.
Entries follow each other in offsets and without a hole in bytes; the first is at byte 0.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

import crc32c

from fetchproxy.errors import CorruptSegment, OffsetNotArchived
from protocol.record_batch import BatchHeader

MAGIC = 0
INTERVAL_BYTES = 64 * 1024
DATA_BYTES_MAX = 2**31 - 1  # dataLength is an int32
ENTRY_BYTES_MAX = 2**15 - 1  # length is an int16

_HEAD = Struct(">hhI")
_BODY = Struct(">qqqqih")
_FIXED_BYTES = _HEAD.size + _BODY.size


@dataclass(frozen=True, slots=True)
class IndexSpan:
    """Consecutive batches: bytes `position` … `position + length - 1`; offsets both inclusive."""

    position: int
    length: int
    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def end(self) -> int:
        """The byte position after the span."""
        return self.position + self.length


def encode_entry(object_key: str, span: IndexSpan) -> bytes:
    """Raises ValueError where a field does not fit, as with a key of more than 32 KB."""
    rdi = f"{object_key}#{span.position}".encode()
    if _FIXED_BYTES + len(rdi) > ENTRY_BYTES_MAX or span.length > DATA_BYTES_MAX:
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
    return _HEAD.pack(MAGIC, _HEAD.size + len(body), crc32c.crc32c(body)) + body


class RemoteLogIndexBuilder:
    """Gathers consecutive batches into entries of at least `interval_bytes` (the last: less).

    A batch is never split, so an entry is longer than the interval by up to one batch.
    """

    def __init__(self, object_key: str, interval_bytes: int = INTERVAL_BYTES) -> None:
        if interval_bytes < 1:
            raise ValueError(f"interval_bytes is {interval_bytes}")
        encode_entry(object_key, IndexSpan(2**63 - 1, 1, 0, 0, 0, 0))  # a key that fits, for sure
        self._object_key = object_key
        self._interval_bytes = interval_bytes
        self._entries: list[bytes] = []
        self._position = 0  # of the next batch
        self._open: IndexSpan | None = None
        self._last_offset = -1

    def add(self, header: BatchHeader) -> None:
        """The next batch of the segment; only its size counts, not `header.position`.

        Raises ValueError where it does not follow the batch before it in offsets.
        """
        if header.base_offset <= self._last_offset or header.last_offset < header.base_offset:
            raise ValueError(
                f"batch {header.base_offset}-{header.last_offset} after {self._last_offset}"
            )
        if self._open is not None and self._open.length + header.size > DATA_BYTES_MAX:
            self._close()
        self._open = self._extended(header)
        self._position += header.size
        self._last_offset = header.last_offset
        if self._open.length >= self._interval_bytes:
            self._close()

    def finish(self) -> bytes:
        """The content of the `.index` object; empty where no batch was added."""
        self._close()
        return b"".join(self._entries)

    def _extended(self, header: BatchHeader) -> IndexSpan:
        span = self._open
        return IndexSpan(
            position=self._position if span is None else span.position,
            length=header.size + (0 if span is None else span.length),
            first_offset=header.base_offset if span is None else span.first_offset,
            last_offset=header.last_offset,
            first_timestamp_ms=(header.base_timestamp if span is None else span.first_timestamp_ms),
            max_timestamp_ms=(
                header.max_timestamp
                if span is None
                else max(header.max_timestamp, span.max_timestamp_ms)
            ),
        )

    def _close(self) -> None:
        if self._open is not None:
            self._entries.append(encode_entry(self._object_key, self._open))
            self._open = None


class RemoteLogIndex:
    """A parsed index, 44 bytes an entry; the object key is kept once, not per entry."""

    __slots__ = (
        "_first_offsets",
        "_first_timestamps",
        "_last_offsets",
        "_lengths",
        "_max_timestamps",
        "_positions",
        "object_key",
    )

    def __init__(self) -> None:
        self.object_key = ""
        self._positions = array("q")
        self._lengths = array("i")
        self._first_offsets = array("q")
        self._last_offsets = array("q")
        self._first_timestamps = array("q")
        self._max_timestamps = array("q")

    @classmethod
    def parse(cls, raw: bytes) -> RemoteLogIndex:
        """Raises CorruptSegment, naming the entry and its byte, for anything but a whole index.

        An index cut exactly between two entries is a whole one by itself: only the segment's
        metadata can tell, see `check_covers`.
        """
        index = cls()
        at = 0
        while at < len(raw):
            try:
                at = index._read_entry(raw, at)
            except CorruptSegment as error:
                raise CorruptSegment(
                    f"remoteLogIndex entry {len(index)} at byte {at}: {error}"
                ) from None
        if not len(index):
            raise CorruptSegment("remoteLogIndex has no entry")
        return index

    def _read_entry(self, raw: bytes, at: int) -> int:
        end = _check_entry(raw, at)
        first, last, first_ts, max_ts, length, rdi_length = _BODY.unpack_from(raw, at + _HEAD.size)
        if at + _FIXED_BYTES + rdi_length != end:
            raise CorruptSegment(f"rdiLength {rdi_length} does not fill the entry")
        key, position = _split_rdi(raw[at + _FIXED_BYTES : end])
        if not self._positions:
            self.object_key = key
        self._check_follows(key, position, length, first, last)
        self._positions.append(position)
        self._lengths.append(length)
        self._first_offsets.append(first)
        self._last_offsets.append(last)
        self._first_timestamps.append(first_ts)
        self._max_timestamps.append(max_ts)
        return end

    def _check_follows(self, key: str, position: int, length: int, first: int, last: int) -> None:
        if key != self.object_key:
            raise CorruptSegment(f"rdi names {key!r}, the first entry {self.object_key!r}")
        if position != self.size_bytes:
            raise CorruptSegment(f"position {position}, expected {self.size_bytes}")
        if length <= 0:
            raise CorruptSegment(f"dataLength {length}")
        if not 0 <= first <= last:
            raise CorruptSegment(f"offsets {first} to {last}")
        if self._last_offsets and first <= self._last_offsets[-1]:
            raise CorruptSegment(f"offset {first} after {self._last_offsets[-1]}")

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, i: int) -> IndexSpan:
        return IndexSpan(
            self._positions[i],
            self._lengths[i],
            self._first_offsets[i],
            self._last_offsets[i],
            self._first_timestamps[i],
            self._max_timestamps[i],
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
        """What this index weighs in a cache, about."""
        return 44 * len(self) + len(self.object_key) + 500

    def check_covers(self, end_offset: int, size_bytes: int) -> None:
        """Raises CorruptSegment where it does not end where the segment's metadata say it does."""
        if self.last_offset != end_offset or self.size_bytes != size_bytes:
            raise CorruptSegment(
                f"remoteLogIndex ends with offset {self.last_offset} at byte {self.size_bytes}, "
                f"the segment with offset {end_offset} at byte {size_bytes}"
            )

    def spans(self) -> Iterator[IndexSpan]:
        return (self[i] for i in range(len(self)))

    def position_for_offset(self, offset: int) -> IndexSpan:
        """The first span that ends at or above `offset`; where the log has a hole, it starts above.

        Raises OffsetNotArchived for an offset above the last one.
        """
        i = bisect_left(self._last_offsets, offset)
        if i == len(self):
            raise OffsetNotArchived(f"{self.object_key} ends at {self.last_offset}, not {offset}")
        return self[i]

    def first_span_with_timestamp(self, timestamp_ms: int) -> IndexSpan | None:
        """The first span that holds a record at or after `timestamp_ms`; None: there is none."""
        for i, latest in enumerate(self._max_timestamps):
            if latest >= timestamp_ms:
                return self[i]
        return None


def _check_entry(raw: bytes, at: int) -> int:
    """The end of the entry at `at`, once magic, length and checksum are right."""
    if len(raw) - at < _FIXED_BYTES:
        raise CorruptSegment(f"{len(raw) - at} bytes are no entry")
    magic, length, crc = _HEAD.unpack_from(raw, at)
    if magic != MAGIC:
        raise CorruptSegment(f"magic {magic}, not {MAGIC}")
    if length < _FIXED_BYTES or at + length > len(raw):
        raise CorruptSegment(f"length {length}, {len(raw) - at} bytes are left")
    found = crc32c.crc32c(memoryview(raw)[at + _HEAD.size : at + length])
    if found != crc:
        raise CorruptSegment(f"checksum {found:#010x}, stored {crc:#010x}")
    return at + int(length)


def _split_rdi(rdi: bytes) -> tuple[str, int]:
    try:
        key, _, position = rdi.decode().rpartition("#")
    except UnicodeDecodeError:
        raise CorruptSegment("rdi is not UTF-8") from None
    if not (key and position.isascii() and position.isdigit() and len(position) < 19):
        raise CorruptSegment(f"rdi {rdi[:200]!r} is not <key>#<position>")
    return key, int(position)
