"""The process's own index files: remoteLogIndex, remoteOffsetIndex and remoteTimeIndex of all
partitions.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import re
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import IO, ClassVar, NamedTuple, ParamSpec, Self, TypeVar

import structlog
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.metrics import (
    LOCAL_INDEX_BYTES,
    LOCAL_INDEX_FILES,
    LOCAL_INDEX_READS,
    LOCAL_INDEX_REBUILDS,
)
from fetchproxy.runtime.folders import LOCK as LOCK
from fetchproxy.runtime.folders import take_folder
from fetchproxy.segments.remote_log_index import (
    RemoteLogIndex,
    RemoteLogIndexEntry,
    entry_positions,
    read_entry,
)

# A remoteOffsetIndex says which entry of the remoteLogIndex file holds an offset. As Kafka's
# `.index`, big-endian, 8 bytes an entry, but pointing into the remoteLogIndex file beside it and
# with one entry for each of that file's:
#
#     relativeOffset  int32   firstOffset of the entry, less the file's base offset
#     position        int32   byte at which the entry begins
#
# Both rise strictly.

RELATIVE_OFFSET_MAX = 2**31 - 1
POSITION_MAX = 2**31 - 1

_OFFSET_ENTRY = Struct(">ii")
OFFSET_ENTRY_BYTES = _OFFSET_ENTRY.size


class _Entries:
    """Looks up in bytes that may be a mapped file; nothing is copied. A cut entry is ignored."""

    __slots__ = ("_base_offset", "_entries", "_raw")
    _entry: ClassVar[Struct]

    def __init__(self, raw: Buffer, base_offset: int) -> None:
        self._raw = raw
        self._base_offset = base_offset
        self._entries = range(len(raw) // self._entry.size)

    def __len__(self) -> int:
        return len(self._entries)

    def _fields(self, i: int) -> tuple[int, int]:
        first, second = self._entry.unpack_from(self._raw, i * self._entry.size)
        return first, second


class RemoteOffsetIndex(_Entries):
    __slots__ = ()
    _entry = _OFFSET_ENTRY

    def offset(self, i: int) -> int:
        return self._base_offset + self._fields(i)[0]

    def position(self, i: int) -> int:
        return self._fields(i)[1]

    def first_at_or_after(self, offset: int) -> int:
        """The number of the first entry whose firstOffset is at or above `offset`; or `len`."""
        return bisect_left(self._entries, offset, key=self.offset)


# A remoteTimeIndex says from which entry on a remoteLogIndex file is late enough. As Kafka's
# `.timeindex`, big-endian, 12 bytes an entry:
#
#     timestamp       int64   lastTimestamp of a remoteLogIndex entry, above that of all before it
#     relativeOffset  int32   firstOffset of that entry, less the file's base offset
#
# Both rise strictly. Entries whose data is no later than what came before have none. No read of the
# product needs it (ADR 0016); `fetchproxy index show` prints it.

_TIME_ENTRY = Struct(">qi")
TIME_ENTRY_BYTES = _TIME_ENTRY.size


class RemoteTimeIndex(_Entries):
    __slots__ = ()
    _entry = _TIME_ENTRY

    def timestamp_ms(self, i: int) -> int:
        return self._fields(i)[0]

    def offset(self, i: int) -> int:
        return self._base_offset + self._fields(i)[1]


# One set of local index files: the remoteLogIndex entries of some segments, and what finds them.
#
#     <20-digit base offset>.remoteLogIndex      the segments' `.index` objects, one behind another
#     <20-digit base offset>.remoteOffsetIndex   see above
#     <20-digit base offset>.remoteTimeIndex     see above
#
# A set only grows. A segment that overlaps one of the set begins another set. Everything can be
# fetched again, so a damaged set is removed, and nothing is mended.
#
# All of it blocks, and one thread at a time may use it. It knows no other set and no metadata.

LOG_INDEX = "remoteLogIndex"
OFFSET_INDEX = "remoteOffsetIndex"
TIME_INDEX = "remoteTimeIndex"
SUFFIXES = (LOG_INDEX, OFFSET_INDEX, TIME_INDEX)


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
        if i >= len(self.offsets):
            raise CorruptSegment(f"remoteOffsetIndex has {len(self.offsets)} entries, not {i + 1}")
        entry = read_entry(self.log, self.offsets.position(i))
        if entry.span.first_offset != self.offsets.offset(i):
            raise CorruptSegment(f"remoteOffsetIndex entry {i} says {self.offsets.offset(i)}")
        return entry

    def segment_end(self, i: int, object_key: str) -> int:
        """The number, in the offset index, of the first entry from `i` on of another segment."""
        behind = range(i, len(self.offsets))
        return i + bisect_left(behind, True, key=lambda n: self.entry(n).object_key != object_key)

    def timed_entry(self, i: int) -> RemoteLogIndexEntry:
        entry = self.entry(self.offsets.first_at_or_after(self.times.offset(i)))
        told = (entry.span.first_offset, entry.span.max_timestamp_ms)
        if told != (self.times.offset(i), self.times.timestamp_ms(i)):
            raise CorruptSegment(f"remoteTimeIndex entry {i} leads to {told}")
        return entry


class LocalIndexFiles:
    """A new set is empty and has no files yet; one that has some is to pass `check` first."""

    def __init__(self, folder: Path, base_offset: int) -> None:
        self.base_offset = base_offset
        self.begun_ms: int | None = None  # when the first segment was copied; None: not known
        self._paths = {suffix: folder / f"{base_offset:020d}.{suffix}" for suffix in SUFFIXES}
        self._sizes = dict.fromkeys(SUFFIXES, 0)
        self.segments = array("Q")  # marks, in the order of their entries
        self.last_offset = base_offset - 1  # that an entry has
        self._latest_ms: int | None = None

    @property
    def log_bytes(self) -> int:
        return self._sizes[LOG_INDEX]

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def has_room(self, index: RemoteLogIndex, size_bytes: int) -> bool:
        """Whether its offsets follow, and its positions and relative offsets fit their int32s."""
        return (
            self.last_offset < index.first_offsets[0]
            and self.log_bytes + size_bytes <= POSITION_MAX
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
        files are damaged, OSError: then the set may be broken.
        """
        if not self.has_room(index, len(raw)):
            first = index.first_offsets[0]
            raise ValueError(f"offsets {first} to {index.last_offset} after {self.base_offset}")
        relative_offsets = [offset - self.base_offset for offset in index.first_offsets]
        positions = (self.log_bytes + at for at in entry_positions(raw))
        times = bytearray()
        latest_ms = self._latest_ms
        for relative, timestamp_ms in zip(relative_offsets, index.max_timestamps, strict=True):
            if latest_ms is None or timestamp_ms > latest_ms:
                latest_ms = timestamp_ms
                times += _TIME_ENTRY.pack(latest_ms, relative)
        pairs = chain.from_iterable(zip(relative_offsets, positions, strict=True))
        offsets = Struct(f">{2 * len(relative_offsets)}i").pack(*pairs)
        before = dict(self._sizes)
        try:
            # The tables first, which lead to the other: `check` sees where a kill has come between.
            self._write_end(TIME_INDEX, times)
            self._write_end(OFFSET_INDEX, offsets)
            self._write_end(LOG_INDEX, raw)
        except OSError:
            # A full disk costs no more than this segment. Where that fails too, `check` will see
            # it.
            self._sizes = before
            for suffix, size in before.items():
                with suppress(OSError):
                    os.truncate(self._paths[suffix], size)
            raise
        self._latest_ms, self.last_offset = latest_ms, index.last_offset
        self.segments.append(segment_mark(index.object_key))

    def _write_end(self, suffix: str, content: bytes | bytearray) -> None:
        path, at = self._paths[suffix], self._sizes[suffix]
        with path.open("r+b" if at else "wb") as file:
            if file.seek(0, os.SEEK_END) != at:
                raise CorruptSegment(f"{path} does not have the {at} bytes that were written")
            file.write(content)
        self._sizes[suffix] = at + len(content)

    def check(self) -> bool:
        """Is it as it was left? Fast: sizes, where segments begin, and the end.

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
        self.last_offset = entry.span.last_offset
        latest = files.timed_entry(len(files.times) - 1)
        self._latest_ms = latest.span.max_timestamp_ms
        return files.offsets.position(last) + entry.size_bytes == self.log_bytes

    def remove(self) -> None:
        """The remoteLogIndex first: without it the others count for nothing. Raises OSError."""
        for path in self._paths.values():
            path.unlink(missing_ok=True)


@contextmanager
def _mapped(path: Path, size_bytes: int) -> Iterator[memoryview]:
    try:
        with path.open("rb") as file:
            area = mmap.mmap(file.fileno(), size_bytes or -1, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ValueError, OverflowError):
        raise CorruptSegment(f"{path} is gone or shorter than {size_bytes} bytes") from None
    with area, memoryview(area) as view:
        yield view


log = structlog.get_logger(__name__)

_NAME = re.compile(rf"([0-9]{{20}})\.({'|'.join(SUFFIXES)})")


class IndexedSegment(NamedTuple):
    """What of a segment's metadata the local index goes by."""

    object_key: str  # of its `.log`
    start_offset: int
    end_offset: int  # the last one that its objects hold, inclusive
    size_bytes: int  # of its `.log`
    copied_at_ms: int  # epoch


class LocalRemoteLogIndex:
    """A partition's: sets of files, each behind the one before it, and rolled like a log.

    Holds the `.index` objects of the partition's segments in their order. It is a cache: whatever
    is doubtful is dropped, a whole set at a time, and fetched again. Whether an offset still counts
    is the metadata's matter. The folder is made with the first segment, and goes with the last.
    All methods block, may be called by any thread, and exclude each other.
    """

    def __init__(self, folder: Path, *, file_bytes_max: int, file_age_max_ms: int) -> None:
        self._folder = folder
        self._file_bytes_max = file_bytes_max
        self._file_age_max_ms = file_age_max_ms
        self._lock = threading.Lock()
        self._opened = False
        self._closed = False
        self._files: list[LocalIndexFiles] = []
        self._published = (0, 0)
        self.losses = 0  # rises whenever something was dropped that was not asked to be

    # --- the writer: one at a time, `keep` before `append` ----------------------------------------

    def keep(self, wanted: Sequence[IndexedSegment]) -> int:
        """Drop whatever is not the beginning of `wanted`; how many of them are there.

        Files that only hold segments before `wanted` go: the log start has passed them. Raises
        OSError.
        """
        marks = [segment_mark(segment.object_key) for segment in wanted]
        with self._lock:
            self._open()
            passed, kept = _beginning(self._marks(), marks)
            while len(self._marks()) > passed + kept:
                self._cut(passed + kept)
                passed, kept = _beginning(self._marks(), marks)
            while self._files and len(self._files[0].segments) <= passed:
                passed -= len(self._files[0].segments)
                self._files.pop(0).remove()
            if self._files and self._files[-1].begun_ms is None:
                copied_at_ms = dict(zip(marks, (s.copied_at_ms for s in wanted), strict=True))
                self._files[-1].begun_ms = copied_at_ms.get(self._files[-1].segments[0], 0)
            self._publish()
            return kept

    def append(self, segment: IndexedSegment, raw: bytes) -> None:
        """`raw`: the content of its `.index`. It must follow the last one in `keep`'s order.

        Raises CorruptSegment where it is not that, and ValueError where it cannot be indexed here;
        OSError. Nothing has changed then.
        """
        index = RemoteLogIndex.parse(raw)
        if (index.object_key, index.size_bytes) != (segment.object_key, segment.size_bytes):
            raise CorruptSegment(
                f"remoteLogIndex is that of {index.size_bytes} bytes of {index.object_key}, "
                f"not of {segment.size_bytes} bytes of {segment.object_key}"
            )
        with self._lock:
            self._open()
            try:
                self._append(segment, index, raw)
            except CorruptSegment as error:
                self._opened = False
                raise OSError(f"the local index {self._folder} is damaged: {error}") from error
            except OSError:
                self._opened = False  # a set that was written by half is dropped by the next call
                raise
            self._publish()

    def _append(self, segment: IndexedSegment, index: RemoteLogIndex, raw: bytes) -> None:
        last = self._files[-1] if self._files else None
        if last is not None and not self._is_full(last, segment, index, len(raw)):
            last.append(index, raw)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        files = LocalIndexFiles(self._folder, segment.start_offset)
        files.begun_ms = segment.copied_at_ms
        files.append(index, raw)
        self._files.append(files)

    def _is_full(
        self, files: LocalIndexFiles, segment: IndexedSegment, index: RemoteLogIndex, more: int
    ) -> bool:
        if segment.start_offset <= files.base_offset:
            return False  # there cannot be a second set of that name
        begun_ms = segment.copied_at_ms if files.begun_ms is None else files.begun_ms
        return (
            files.log_bytes + more > self._file_bytes_max
            or segment.copied_at_ms - begun_ms > self._file_age_max_ms
            or not files.has_room(index, more)
        )

    # --- readers ----------------------------------------------------------------------------------

    def segment_index(self, segment: IndexedSegment) -> RemoteLogIndex | None:
        """All entries of a segment, in the bytes of its `.index`; None: they are not here. Raises
        CorruptSegment where they are, but damaged; OSError.
        """
        mark = segment_mark(segment.object_key)
        with self._lock:
            self._open()
            # The set that the offset would be in, if it is in any.
            n = bisect_right(self._files, segment.start_offset, key=lambda files: files.base_offset)
            files = self._files[n - 1] if n else None
            if files is None or mark not in files.segments:
                return None
            with files.mapped() as mapped:
                i = mapped.offsets.first_at_or_after(segment.start_offset)
                if i > 0:
                    mapped.entry(i - 1)
                if i == len(mapped.offsets) or mapped.entry(i).object_key != segment.object_key:
                    raise CorruptSegment(f"no entry of {segment.object_key} is where it begins")
                j = mapped.offsets.first_at_or_after(segment.end_offset + 1)
                begin = mapped.offsets.position(i)
                end = mapped.offsets.position(j) if j < len(mapped.offsets) else files.log_bytes
                raw = bytes(mapped.log[begin:end])
        index, behind, error = RemoteLogIndex.take(raw)
        if index.size_bytes != segment.size_bytes:
            why = error or "it is missing"
            raise CorruptSegment(
                f"remoteLogIndex entry {len(index)} at byte {begin + behind}: {why}"
            )
        return index

    def drop_from(self, segment: IndexedSegment) -> None:
        """What is held of it is damaged: it and what follows it are to be fetched again."""
        mark = segment_mark(segment.object_key)
        with self._lock:
            self._open()
            marks = self._marks()
            if mark in marks:
                self._cut(marks.index(mark))
                self.losses += 1
                LOCAL_INDEX_REBUILDS.inc()
            self._publish()

    def close(self) -> None:
        """Later calls raise OSError: another process may have the folder by then."""
        with self._lock:
            self._closed = True
            self._files = []
            self._publish()

    # --- with the lock held -----------------------------------------------------------------------

    def _open(self) -> None:
        """What a former process left, but for sets that are not as they should be."""
        if self._closed:
            raise OSError(f"the local index {self._folder} is closed")
        if self._opened:
            return
        self._files = []
        found = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        names = [(path, match) for path in found if (match := _NAME.fullmatch(path.name))]
        bases = [int(match[1]) for path, match in names if path.suffix == f".{LOG_INDEX}"]
        for path, match in names:
            if int(match[1]) not in bases:
                path.unlink()
        for base in bases:
            files = LocalIndexFiles(self._folder, base)
            if files.check():
                self._files.append(files)
                continue
            log.info("local_index_dropped", path=str(self._folder), base_offset=base)
            LOCAL_INDEX_REBUILDS.inc()
            files.remove()
        self._opened = True
        self._publish()

    def _marks(self) -> list[int]:
        return [mark for files in self._files for mark in files.segments]

    def _cut(self, segments: int) -> None:
        """Keep whole sets, of so many segments at most; the newest go first."""
        while self._files and len(self._marks()) > segments:
            self._files.pop().remove()

    def _publish(self) -> None:
        if not self._files and not self._closed:
            remove_if_empty(self._folder)
            remove_if_empty(self._folder.parent)
        now = (sum(files.size_bytes for files in self._files), 3 * len(self._files))
        LOCAL_INDEX_BYTES.inc(now[0] - self._published[0])
        LOCAL_INDEX_FILES.inc(now[1] - self._published[1])
        self._published = now


def _beginning(held: Sequence[int], wanted: Sequence[int]) -> tuple[int, int]:
    """(how many of `held` come before the first of `wanted`, how many are equal from there on)."""
    if not wanted or wanted[0] not in held:
        return (len(held), 0) if not wanted else (0, 0)
    passed = held.index(wanted[0])
    kept = 0
    while kept < min(len(held) - passed, len(wanted)) and held[passed + kept] == wanted[kept]:
        kept += 1
    return passed, kept


def remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # it is not there, or something is in it
        folder.rmdir()


P = ParamSpec("P")
T = TypeVar("T")

# A look-up takes some milliseconds.
READ_MAX_S = 0.25
_THREADS = 2


class LocalIndexes:
    """Of all partitions. `async with`: locks the folder and gives it back.

    The event loop never waits for a disk here, and a read never waits for long: who does not get an
    answer asks the store.
    `partition_folder`: a partition's folder in it; `log_key`: the key of a segment's `.log`.
    """

    def __init__(
        self,
        folder: Path,
        partition_folder: Callable[[TopicIdPartition], str],
        log_key: Callable[[RemoteLogSegmentMetadata], str],
        *,
        file_bytes_max: int,
        file_age_max_ms: int,
    ) -> None:
        self._folder = folder
        self._partition_folder = partition_folder
        self._log_key = log_key
        self._new = partial(
            LocalRemoteLogIndex, file_bytes_max=file_bytes_max, file_age_max_ms=file_age_max_ms
        )
        self._partitions: dict[TopicIdPartition, LocalRemoteLogIndex] = {}
        self._lock: IO[bytes] | None = None
        self._failing = False  # the disk, at the last read

    async def __aenter__(self) -> Self:
        """Raises ConfigError where the folder cannot be had."""
        self._lock = await asyncio.to_thread(take_folder, self._folder, "archive.local_index_dir")
        self._threads = ThreadPoolExecutor(_THREADS, "local-index")
        return self

    async def __aexit__(self, *_: object) -> None:
        """What is still being written ends first; nothing is written afterwards."""
        partitions, self._partitions = self._partitions, {}
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(list, map(LocalRemoteLogIndex.close, partitions.values()))
        if self._lock is not None:
            self._lock.close()

    def partition(self, tip: TopicIdPartition) -> LocalRemoteLogIndex:
        """No I/O; its methods block, see `in_thread`."""
        if tip not in self._partitions:
            self._partitions[tip] = self._new(self._folder / self._partition_folder(tip))
        return self._partitions[tip]

    def describe(self, metadata: RemoteLogSegmentMetadata) -> IndexedSegment:
        return IndexedSegment(
            object_key=self._log_key(metadata),
            start_offset=metadata.start_offset,
            end_offset=metadata.stored_end_offset,
            size_bytes=metadata.segment_size_bytes,
            copied_at_ms=metadata.event_timestamp_ms,
        )

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(call, *args, **kwargs))

    async def read(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogIndex | None:
        """A segment's index as its `.index` object has it; None: ask the store.

        What is damaged is dropped, for `LocalIndexRefresher` to fetch again. Raises nothing.
        """
        tip = metadata.topic_id_partition
        index = self.partition(tip)
        outcome, found = "failed", None
        try:
            async with asyncio.timeout(READ_MAX_S):
                found = await self.in_thread(self._read, index, metadata)
                outcome = "absent" if found is None else "hit"
        except CorruptSegment as error:
            outcome = "damaged"
            log.warning("local_index_damaged", **metadata.logged, error=str(error))
            await self._drop(index, metadata)
        except (OSError, TimeoutError) as error:
            if not self._failing:  # once per outage
                log.warning("local_index_read_failed", **metadata.logged, error=repr(error))
        self._failing = outcome == "failed"
        LOCAL_INDEX_READS.labels(outcome).inc()
        return found

    def _read(
        self, index: LocalRemoteLogIndex, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogIndex | None:
        found = index.segment_index(self.describe(metadata))
        if found is not None:
            found.check_covers(metadata.stored_end_offset, metadata.segment_size_bytes)
        return found

    async def _drop(self, index: LocalRemoteLogIndex, metadata: RemoteLogSegmentMetadata) -> None:
        try:
            async with asyncio.timeout(READ_MAX_S):
                await self.in_thread(index.drop_from, self.describe(metadata))
        except (OSError, TimeoutError) as error:
            log.warning("local_index_not_dropped", **metadata.logged, error=repr(error))

    async def keep_only(self, tips: Iterable[TopicIdPartition]) -> None:
        """Remove what is there of any other partition. Raises OSError."""
        tips = set(tips)
        kept = {self._folder / self._partition_folder(tip) for tip in tips}
        for tip in [tip for tip in self._partitions if tip not in tips]:
            await self.in_thread(self._partitions.pop(tip).keep, ())
        await self.in_thread(self._remove_others, kept)

    def _remove_others(self, kept: set[Path]) -> None:
        for folder in [path for path in self._folder.glob("*/*") if path.is_dir()]:
            if folder not in kept:
                index = self._new(folder)
                index.keep(())
                index.close()
        for folder in self._folder.iterdir():
            remove_if_empty(folder)
