"""One set of local index files: the remoteLogIndex entries of some segments, and what finds them.

    <20-digit base offset>.remoteLogIndex      the segments' `.index` objects, one behind another
    <20-digit base offset>.remoteOffsetIndex   see `remote_offset_index`
    <20-digit base offset>.remoteTimeIndex     see `remote_time_index`

Where two segments share offsets, the later one counts: its first entry ends what the two tables say
of those before it, as a truncation does in Kafka. So the tables follow from the remoteLogIndex file
alone and can be made again from it; that file itself from the store.

All of it blocks, and one thread at a time may use it. It knows no other set and no metadata.
"""

from __future__ import annotations

import mmap
import os
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from fetchproxy.errors import CorruptSegment
from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.index.remote_log_index_entry import (
    RemoteLogIndexEntry,
    entry_positions,
    read_entry,
)
from fetchproxy.index.remote_offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from fetchproxy.index.remote_offset_index import (
    POSITION_MAX,
    RELATIVE_OFFSET_MAX,
    RemoteOffsetIndex,
    encode_offset_entries,
)
from fetchproxy.index.remote_time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from fetchproxy.index.remote_time_index import RemoteTimeIndex, encode_time_entry

LOG_INDEX = "remoteLogIndex"
OFFSET_INDEX = "remoteOffsetIndex"
TIME_INDEX = "remoteTimeIndex"
SUFFIXES = (LOG_INDEX, OFFSET_INDEX, TIME_INDEX)
NEW = "~"  # ends the name of a file that is still being written


def segment_mark(object_key: str) -> int:
    """Eight bytes that stand for a segment, by the key of its `.log` object."""
    return int.from_bytes(blake2b(object_key.encode(), digest_size=8).digest(), "big")


class Mapped(NamedTuple):
    """The three files in memory, for as long as a look-up takes.

    The tables have no checksums. So what they lead to is compared with them, on both sides of the
    place that a search ends at: every answer is right, or CorruptSegment is raised.
    """

    log: memoryview
    offsets: RemoteOffsetIndex
    times: RemoteTimeIndex

    def entry(self, i: int) -> RemoteLogIndexEntry:
        """Of the i-th entry of the offset index."""
        if i >= len(self.offsets):
            raise CorruptSegment(f"remoteOffsetIndex has {len(self.offsets)} entries, not {i + 1}")
        entry = read_entry(self.log, self.offsets.position(i))
        if entry.span.first_offset != self.offsets.offset(i):
            raise CorruptSegment(f"remoteOffsetIndex entry {i} says {self.offsets.offset(i)}")
        return entry

    def first_entry_from(self, offset: int) -> int | None:
        """The number, in the offset index, of the first entry that begins at or above `offset`."""
        i = self.offsets.first_at_or_after(offset)
        if i > 0:
            self.entry(i - 1)
        return i if i < len(self.offsets) else None

    def segment_end(self, i: int, object_key: str) -> int:
        """The number, in the offset index, of the first entry from `i` on of another segment."""
        behind = range(i, len(self.offsets))
        return i + bisect_left(behind, True, key=lambda n: self.entry(n).object_key != object_key)

    def entry_for_offset(self, offset: int) -> RemoteLogIndexEntry | None:
        """The first one that ends at or above `offset`."""
        above = self.offsets.first_at_or_after(offset + 1)
        for i in range(max(above - 1, 0), min(above + 1, len(self.offsets))):
            entry = self.entry(i)
            if entry.span.last_offset >= offset:
                return entry
        return None

    def entry_for_timestamp(self, timestamp_ms: int) -> RemoteLogIndexEntry | None:
        """The first one that holds a record at or after `timestamp_ms`."""
        i = self.times.first_at_or_after(timestamp_ms)
        if i > 0:
            self.timed_entry(i - 1)
        return self.timed_entry(i) if i < len(self.times) else None

    def timed_entry(self, i: int) -> RemoteLogIndexEntry:
        """Of the i-th entry of the time index."""
        entry = self.entry(self.offsets.first_at_or_after(self.times.offset(i)))
        told = (entry.span.first_offset, entry.span.max_timestamp_ms)
        if told != (self.times.offset(i), self.times.timestamp_ms(i)):
            raise CorruptSegment(f"remoteTimeIndex entry {i} leads to {told}")
        return entry


class _Tables:
    """Offset and time index of a set while it is made, or made longer."""

    def __init__(self, base_offset: int, offsets: bytes = b"", times: bytes = b"") -> None:
        self._base_offset = base_offset
        self.offsets = bytearray(offsets)
        self.times = bytearray(times)
        self.kept = [len(offsets), len(times)]  # bytes in front that are as they were

    def add(self, index: RemoteLogIndex, positions: Iterable[int]) -> None:
        """Raises ValueError where an entry is too far from the base offset for the tables."""
        offsets = RemoteOffsetIndex(self.offsets, self._base_offset)
        times = RemoteTimeIndex(self.times, self._base_offset)
        first = index.first_offsets[0]
        if first < self._base_offset or index.last_offset - self._base_offset > RELATIVE_OFFSET_MAX:
            raise ValueError(f"offsets {first} to {index.last_offset} after {self._base_offset}")
        kept = [
            offsets.first_at_or_after(first) * OFFSET_ENTRY_BYTES,
            times.first_with_offset(first) * TIME_ENTRY_BYTES,
        ]
        self.kept = [min(pair) for pair in zip(self.kept, kept, strict=True)]
        del self.offsets[kept[0] :], self.times[kept[1] :]
        relative_offsets = [offset - self._base_offset for offset in index.first_offsets]
        self.offsets += encode_offset_entries(relative_offsets, positions)
        latest = self.largest_timestamp_ms
        for relative, timestamp_ms in zip(relative_offsets, index.max_timestamps, strict=True):
            if latest is None or timestamp_ms > latest:
                latest = timestamp_ms
                self.times += encode_time_entry(latest, relative)

    @property
    def largest_timestamp_ms(self) -> int | None:
        times = RemoteTimeIndex(self.times, self._base_offset)
        return times.timestamp_ms(len(times) - 1) if len(times) else None


class LocalIndexFiles:
    """A new set is empty and has no files yet; of one that has, call `check` or `mend` first."""

    def __init__(self, folder: Path, base_offset: int) -> None:
        self.base_offset = base_offset
        self.begun_ms: int | None = None  # when the first segment was copied; None: not known
        self._paths = {suffix: folder / f"{base_offset:020d}.{suffix}" for suffix in SUFFIXES}
        self._forget()

    def _forget(self) -> None:
        self._sizes = dict.fromkeys(SUFFIXES, 0)
        self.segments = array("Q")  # marks, in the order of their entries
        self.last_segment_bytes = 0  # of the last one's `.log`, as far as entries cover it
        self.largest_timestamp_ms: int | None = None

    @property
    def log_bytes(self) -> int:
        """Of the remoteLogIndex file."""
        return self._sizes[LOG_INDEX]

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def has_room(self, index: RemoteLogIndex, size_bytes: int) -> bool:
        """Whether positions and relative offsets of that index fit their int32s."""
        return (
            self.log_bytes + size_bytes <= POSITION_MAX
            and index.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
        )

    @contextmanager
    def mapped(self) -> Iterator[Mapped]:
        """Raises CorruptSegment where a file is gone or too short, OSError."""
        with (
            _mapped(self._paths[LOG_INDEX], self._sizes[LOG_INDEX]) as log,
            _mapped(self._paths[OFFSET_INDEX], self._sizes[OFFSET_INDEX]) as offsets,
            _mapped(self._paths[TIME_INDEX], self._sizes[TIME_INDEX]) as times,
        ):
            base = self.base_offset
            yield Mapped(log, RemoteOffsetIndex(offsets, base), RemoteTimeIndex(times, base))

    def append(self, index: RemoteLogIndex, raw: bytes) -> None:
        """The entries of one more segment: `raw`, and the same parsed.

        Raises ValueError where they do not fit: then nothing was written. CorruptSegment where the
        files are damaged, OSError: then `mend` has to come next.
        """
        old = [self._read(suffix) for suffix in (OFFSET_INDEX, TIME_INDEX)]
        tables = _Tables(self.base_offset, *old)
        tables.add(index, (self.log_bytes + at for at in entry_positions(raw)))
        at, (offsets_kept, times_kept) = self.log_bytes, tables.kept
        _write_end(self._paths[LOG_INDEX], at, raw)
        _write_end(self._paths[OFFSET_INDEX], offsets_kept, tables.offsets[offsets_kept:])
        _write_end(self._paths[TIME_INDEX], times_kept, tables.times[times_kept:])
        self._adopt(at + len(raw), tables)
        self.segments.append(segment_mark(index.object_key))
        self.last_segment_bytes = index.size_bytes

    def check(self) -> bool:
        """Is a set that was closed in order as it was left? Fast: sizes, and where segments begin.

        The rest is checked when it is used. Raises OSError.
        """
        try:
            self._sizes = {suffix: path.stat().st_size for suffix, path in self._paths.items()}
            if self._sizes[OFFSET_INDEX] % OFFSET_ENTRY_BYTES:
                return False
            if self._sizes[TIME_INDEX] % TIME_ENTRY_BYTES:
                return False
            with self.mapped() as files:
                return self._check_mapped(files)
        except (FileNotFoundError, CorruptSegment):
            return False

    def _check_mapped(self, files: Mapped) -> bool:
        segments = array("Q")
        i = 0
        while i < len(files.offsets):
            entry = files.entry(i)
            if entry.span.position:
                return False
            segments.append(segment_mark(entry.object_key))
            i = files.segment_end(i, entry.object_key)
        last = len(files.offsets) - 1
        entry = files.entry(last)
        self.segments = segments
        self.last_segment_bytes = entry.span.end
        latest = files.timed_entry(len(files.times) - 1)
        self.largest_timestamp_ms = latest.span.max_timestamp_ms
        return files.offsets.position(last) + entry.size_bytes == self.log_bytes

    def mend(self, segments_max: int | None = None) -> bool:
        """Read all of it; keep what is sound, up to the first damage and `segments_max`.

        The tables are made again where they differ. Without a sound entry the files are removed.
        True: something was not as it should be. Raises OSError.
        """
        path = self._paths[LOG_INDEX]
        raw = path.read_bytes() if path.exists() else b""
        self.segments = array("Q")
        tables = _Tables(self.base_offset)
        end = 0
        while end < len(raw) and len(self.segments) != segments_max:
            index, behind, _ = RemoteLogIndex.take(raw, end)
            try:
                tables.add(index, (end + at for at in entry_positions(raw[end:behind])))
            except (ValueError, IndexError):  # too far away, or no entry
                break
            self.segments.append(segment_mark(index.object_key))
            self.last_segment_bytes = index.size_bytes
            end = behind
        if not end:
            self.remove()
            return True
        if end < len(raw):
            os.truncate(path, end)
        mended = [
            _replace(self._paths[OFFSET_INDEX], tables.offsets),
            _replace(self._paths[TIME_INDEX], tables.times),
        ]
        self._adopt(end, tables)
        return end < len(raw) or any(mended)

    def seal(self) -> None:
        """Everything to the disk: a set behind which another one follows is not read whole again.

        Raises OSError.
        """
        for path in [*self._paths.values(), self._paths[LOG_INDEX].parent]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self) -> None:
        """The remoteLogIndex first: without it the others count for nothing. Raises OSError."""
        for path in self._paths.values():
            path.unlink(missing_ok=True)
        self._forget()

    def _adopt(self, log_bytes: int, tables: _Tables) -> None:
        sizes = (log_bytes, len(tables.offsets), len(tables.times))
        self._sizes = dict(zip(SUFFIXES, sizes, strict=True))
        self.largest_timestamp_ms = tables.largest_timestamp_ms

    def _read(self, suffix: str) -> bytes:
        size = self._sizes[suffix]
        if not size:
            return b""
        with _mapped(self._paths[suffix], size) as content:
            return bytes(content)


@contextmanager
def _mapped(path: Path, size_bytes: int) -> Iterator[memoryview]:
    try:
        with path.open("rb") as file:
            area = mmap.mmap(file.fileno(), size_bytes or -1, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ValueError, OverflowError):
        raise CorruptSegment(f"{path} is gone or shorter than {size_bytes} bytes") from None
    with area, memoryview(area) as view:
        yield view


def _write_end(path: Path, at: int, content: bytes | bytearray) -> None:
    """`content` from byte `at` on, whatever a failed attempt has left there."""
    with path.open("r+b" if at else "wb") as file:
        if file.seek(0, os.SEEK_END) < at:
            raise CorruptSegment(f"{path} is shorter than {at} bytes")
        file.truncate(at)
        file.seek(at)
        file.write(content)


def _replace(path: Path, content: bytes | bytearray) -> bool:
    """Unless it is the file's content already."""
    if path.exists() and path.read_bytes() == content:
        return False
    new = path.with_name(path.name + NEW)
    new.write_bytes(content)
    new.replace(path)
    return True
