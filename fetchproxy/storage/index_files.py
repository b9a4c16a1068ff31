"""The local index files of all partitions: remoteLogIndex, remoteOffsetIndex, remoteTimeIndex.

One set of local index files: the remoteLogIndex entries of some segments, and tables into them.

    <20-digit base offset>.remoteLogIndex      the segments' `.index` objects, one after another
    <20-digit base offset>.remoteOffsetIndex   the position of each of its entries
    <20-digit base offset>.remoteTimeIndex     those of its entries that are later than all before

A set only grows. A segment that overlaps a segment of the set begins another set. A damaged set is
removed: everything in it can be fetched again.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import re
import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from itertools import takewhile
from operator import eq
from pathlib import Path
from struct import Struct
from typing import IO, ParamSpec, Self, TypeVar

import structlog

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.metrics import (
    LOCAL_INDEX_BYTES,
    LOCAL_INDEX_FILES,
    LOCAL_INDEX_READS,
    LOCAL_INDEX_REBUILDS,
)
from fetchproxy.runtime.folders import take_folder
from fetchproxy.segments.object_keys import partition_folder
from fetchproxy.segments.remote_log_index import (
    RemoteLogIndex,
    RemoteLogIndexEntry,
    entry_positions,
    read_entry,
)

LOG_INDEX = "remoteLogIndex"
OFFSET_INDEX = "remoteOffsetIndex"
TIME_INDEX = "remoteTimeIndex"
SUFFIXES = (LOG_INDEX, OFFSET_INDEX, TIME_INDEX)

# An entry of the remoteOffsetIndex, as in Kafka's `.index` (big-endian). But it points into the
# remoteLogIndex file beside it, and has one entry for each of that file's. Both rise strictly.
#
#     relativeOffset  int32   firstOffset of the entry, less the file's base offset
#     position        int32   byte at which the entry begins
OFFSET_ENTRY = Struct(">ii")
RELATIVE_OFFSET_MAX = 2**31 - 1
POSITION_MAX = 2**31 - 1

# An entry of the remoteTimeIndex, as in Kafka's `.timeindex`. Both fields rise strictly. The proxy
# never reads it to serve a fetch (ADR 0016); `fetchproxy index show` prints it.
#
#     timestamp       int64   lastTimestamp of a remoteLogIndex entry, later than in all before it
#     relativeOffset  int32   firstOffset of that entry, less the file's base offset
TIME_ENTRY = Struct(">qi")
_NAME = re.compile(rf"([0-9]{{20}})\.({'|'.join(SUFFIXES)})")
P = ParamSpec("P")
T = TypeVar("T")
LogKey = Callable[[RemoteLogSegmentMetadata], str]
# A look-up takes a few milliseconds.
_READ_MAX_S = 0.25
_THREADS = 2
_CHECK_DISK = "if it happens again, check the disk of archive.local_index_dir"

log = structlog.get_logger(__name__)


def segment_mark(object_key: str) -> int:
    """An 8-byte hash that identifies a segment by the key of its `.log` object."""
    return int.from_bytes(blake2b(object_key.encode(), digest_size=8).digest(), "big")


class LocalIndexFiles:
    """A new set is empty and has no files yet. A set with files must pass `check` before its use.

    All methods block, and only one thread at a time may use them. A set knows no other set and no
    metadata.
    """

    def __init__(self, folder: Path, base_offset: int) -> None:
        self.base_offset = base_offset
        self.begun_ms: int | None = None  # when the first segment was copied; None: not known
        self._paths = {suffix: folder / f"{base_offset:020d}.{suffix}" for suffix in SUFFIXES}
        self._sizes = dict.fromkeys(SUFFIXES, 0)
        self.segments = array("Q")  # marks, in the order of their entries
        self._ends = array("i")  # the byte in the remoteLogIndex at which each segment ends
        self.last_offset = base_offset - 1  # of the last entry
        self._latest_ms: int | None = None

    @property
    def log_bytes(self) -> int:
        return self._sizes[LOG_INDEX]

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    def has_room(self, index: RemoteLogIndex, size_bytes: int) -> bool:
        """Whether its offsets follow, and its positions and relative offsets fit an int32."""
        return (
            self.last_offset < index.first_offsets[0]
            and self.log_bytes + size_bytes <= POSITION_MAX
            and index.last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
        )

    def read(self, number: int) -> bytes:
        """The entries of `segments[number]`. Raises CorruptSegment, OSError."""
        path, end = self._paths[LOG_INDEX], self._ends[number]
        begin = self._ends[number - 1] if number else 0
        try:
            with path.open("rb") as file:
                file.seek(begin)
                raw = file.read(end - begin)
        except FileNotFoundError:
            raw = b""
        if len(raw) < end - begin:
            raise CorruptSegment(f"{path} is gone or shorter than {end} bytes")
        return raw

    def append(self, index: RemoteLogIndex, raw: bytes) -> None:
        """Append one more segment's entries: `raw`, parsed as `index`. Raises ValueError if they do
        not fit. After a CorruptSegment or OSError the set may be damaged.
        """
        if not self.has_room(index, len(raw)):
            first = index.first_offsets[0]
            raise ValueError(f"offsets {first} to {index.last_offset} after {self.base_offset}")
        relative_offsets = [offset - self.base_offset for offset in index.first_offsets]
        positions = (self.log_bytes + position for position in entry_positions(raw))
        offsets = b"".join(map(OFFSET_ENTRY.pack, relative_offsets, positions))
        times = bytearray()
        latest_ms = self._latest_ms
        for relative, timestamp_ms in zip(relative_offsets, index.max_timestamps, strict=True):
            if latest_ms is None or timestamp_ms > latest_ms:
                latest_ms = timestamp_ms
                times += TIME_ENTRY.pack(latest_ms, relative)
        # The tables go first, so that `check` sees if the process was killed before the log index.
        more = {TIME_INDEX: bytes(times), OFFSET_INDEX: offsets, LOG_INDEX: raw}
        try:
            for suffix, content in more.items():
                self._write_end(suffix, content)
        except OSError:
            # A full disk loses only this segment. If the truncation fails too, `check` sees it.
            for suffix, size in self._sizes.items():
                with suppress(OSError):
                    os.truncate(self._paths[suffix], size)
            raise
        for suffix, content in more.items():
            self._sizes[suffix] += len(content)
        self._latest_ms, self.last_offset = latest_ms, index.last_offset
        self.segments.append(segment_mark(index.object_key))
        self._ends.append(self.log_bytes)

    def _write_end(self, suffix: str, content: bytes) -> None:
        path, at = self._paths[suffix], self._sizes[suffix]
        with path.open("r+b" if at else "wb") as file:
            if file.seek(0, os.SEEK_END) != at:
                raise CorruptSegment(f"{path} does not have the {at} bytes that were written")
            file.write(content)

    def check(self) -> bool:
        """Load the set; False if it is damaged. This checks the sizes, the starts of segments and
        the end; a read checks the rest. Raises OSError.
        """
        try:
            offsets, times = (self._paths[s].read_bytes() for s in (OFFSET_INDEX, TIME_INDEX))
            if len(offsets) % OFFSET_ENTRY.size or len(times) % TIME_ENTRY.size or not times:
                return False
            with (
                self._paths[LOG_INDEX].open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as area,
                memoryview(area) as raw,
            ):
                sizes = (len(raw), len(offsets), len(times))
                self._sizes = dict(zip(SUFFIXES, sizes, strict=True))
                return self._take_over(raw, offsets, times)
        except (FileNotFoundError, CorruptSegment, ValueError):  # ValueError: an empty file
            return False

    def _take_over(self, raw: memoryview, offsets: bytes, times: bytes) -> bool:
        table = array("i", offsets)
        if sys.byteorder == "little":
            table.byteswap()
        relative, positions = table[::2], table[1::2]

        def entry(n: int) -> RemoteLogIndexEntry:
            index_entry = read_entry(raw, positions[n])
            if index_entry.span.first_offset - self.base_offset != relative[n]:
                raise CorruptSegment(f"remoteOffsetIndex entry {n} leads to another offset")
            return index_entry

        i = 0
        while i < len(positions):
            first = entry(i)
            if first.span.position:
                return False
            key = first.object_key
            later = range(i + 1, len(positions))
            i += 1 + bisect_left(later, True, key=lambda n: entry(n).object_key != key)
            self.segments.append(segment_mark(key))
            self._ends.append(positions[i] if i < len(positions) else len(raw))
        last = entry(len(positions) - 1)
        latest_ms, latest = TIME_ENTRY.unpack(times[-TIME_ENTRY.size :])
        index = bisect_left(relative, latest)
        if index == len(relative) or relative[index] != latest:
            return False
        self.last_offset, self._latest_ms = last.span.last_offset, latest_ms
        return entry(index).span.max_timestamp_ms == latest_ms and positions[
            -1
        ] + last.size_bytes == len(raw)

    def remove(self) -> None:
        """The remoteLogIndex goes first: without it the other files are unused. Raises OSError."""
        for path in self._paths.values():
            path.unlink(missing_ok=True)


class LocalRemoteLogIndex:
    """A partition's local index: consecutive sets of files, rolled like a log.

    Holds the `.index` objects of the partition's segments in order. It is a cache: a doubtful set
    is dropped as a whole and fetched again. The first segment makes the folder; dropping the last
    removes it. All methods block. Any thread may call them: a lock lets one run at a time.
    `log_key`: gives the key of a segment's `.log`.
    """

    def __init__(
        self, folder: Path, log_key: LogKey, *, file_bytes_max: int, file_age_max_ms: int
    ) -> None:
        self._folder = folder
        self._log_key = log_key
        self._file_bytes_max = file_bytes_max
        self._file_age_max_ms = file_age_max_ms
        self._lock = threading.Lock()
        self._opened = False
        self._closed = False
        self._files: list[LocalIndexFiles] = []
        self._published = (0, 0)
        self.losses = 0  # how often `drop_from` has dropped a damaged segment

    # --- for one writer at a time, which calls `keep` before `append` -----------------------------

    def keep(self, segments: Sequence[RemoteLogSegmentMetadata]) -> int:
        """Drop all that differs from the beginning of `segments`, and sets whose segments all
        precede it: the log start offset has passed them. Returns how many of `segments` are there.
        Raises OSError.
        """
        marks = [self._mark(segment) for segment in segments]
        with self._lock:
            self._open()
            on_disk = self._marks()
            passed = on_disk.index(marks[0]) if marks and marks[0] in on_disk else len(on_disk)
            same = takewhile(bool, map(eq, on_disk[passed:], marks))
            self._cut(passed + len(list(same)))
            kept_marks = max(len(self._marks()) - passed, 0)
            while self._files and len(self._files[0].segments) <= passed:
                passed -= len(self._files[0].segments)
                self._files.pop(0).remove()
            if self._files and self._files[-1].begun_ms is None:
                times = (segment.event_timestamp_ms for segment in segments)
                copied_at_ms = dict(zip(marks, times, strict=True))
                self._files[-1].begun_ms = copied_at_ms.get(self._files[-1].segments[0], 0)
            self._publish()
            return kept_marks

    def append(self, segment: RemoteLogSegmentMetadata, raw: bytes) -> None:
        """`segment`: the next one in the order of `keep`. `raw`: the content of its `.index`.

        Raises CorruptSegment, OSError; ValueError if its entries do not fit a set.
        """
        index = RemoteLogIndex.parse(raw)
        key, size_bytes = self._log_key(segment), segment.segment_size_bytes
        if (index.object_key, index.size_bytes) != (key, size_bytes):
            raise CorruptSegment(
                f"remoteLogIndex is that of {index.size_bytes} bytes of {index.object_key}, "
                f"not of {size_bytes} bytes of {key}"
            )
        with self._lock:
            self._open()
            try:
                self._append(segment, index, raw)
            except CorruptSegment as error:
                self._opened = False
                raise OSError(f"the local index {self._folder} is damaged: {error}") from error
            except OSError:
                self._opened = False  # the next call drops a half-written set
                raise
            self._publish()

    def _append(self, segment: RemoteLogSegmentMetadata, index: RemoteLogIndex, raw: bytes) -> None:
        last = self._files[-1] if self._files else None
        if last is not None and not self._is_full(last, segment, index, len(raw)):
            last.append(index, raw)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        files = LocalIndexFiles(self._folder, segment.start_offset)
        files.begun_ms = segment.event_timestamp_ms
        files.append(index, raw)
        self._files.append(files)

    def _is_full(
        self,
        files: LocalIndexFiles,
        segment: RemoteLogSegmentMetadata,
        index: RemoteLogIndex,
        more: int,
    ) -> bool:
        if segment.start_offset <= files.base_offset:
            return False  # a new set's name would not be higher
        copied_at_ms = segment.event_timestamp_ms
        begun_ms = copied_at_ms if files.begun_ms is None else files.begun_ms
        return (
            files.log_bytes + more > self._file_bytes_max
            or copied_at_ms - begun_ms > self._file_age_max_ms
            or not files.has_room(index, more)
        )

    # --- readers ----------------------------------------------------------------------------------

    def segment_index(self, segment: RemoteLogSegmentMetadata) -> RemoteLogIndex | None:
        """All entries of a segment; None if they are missing. Raises CorruptSegment, OSError."""
        key, size_bytes = self._log_key(segment), segment.segment_size_bytes
        mark = segment_mark(key)
        with self._lock:
            self._open()
            # The only set that can contain the offset.
            n = bisect_right(self._files, segment.start_offset, key=lambda files: files.base_offset)
            files = self._files[n - 1] if n else None
            if files is None or mark not in files.segments:
                return None
            raw = files.read(files.segments.index(mark))
        index, end, error = RemoteLogIndex.take(raw)
        if (index.object_key, index.size_bytes) != (key, size_bytes):
            reason = error or "it is missing"
            raise CorruptSegment(f"remoteLogIndex entry {len(index)} at byte {end}: {reason}")
        return index

    def drop_from(self, segment: RemoteLogSegmentMetadata) -> None:
        """Drop a damaged segment and all after it, so that they are fetched again."""
        mark = self._mark(segment)
        with self._lock:
            self._open()
            marks = self._marks()
            if mark in marks:
                self._cut(marks.index(mark))
                self.losses += 1
                LOCAL_INDEX_REBUILDS.inc()
            self._publish()

    def close(self) -> None:
        """Later calls raise OSError, because another process may then use the folder."""
        with self._lock:
            self._closed = True
            self._files = []
            self._publish()

    def _mark(self, segment: RemoteLogSegmentMetadata) -> int:
        return segment_mark(self._log_key(segment))

    # --- with the lock held -----------------------------------------------------------------------

    def _open(self) -> None:
        """Load the sets that a former process left, and remove the damaged ones."""
        if self._closed:
            raise OSError(f"the local index {self._folder} is closed")
        if self._opened:
            return
        self._files = []
        paths = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        names = [(path, match) for path in paths if (match := _NAME.fullmatch(path.name))]
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
        """Drop the newest whole sets until at most `segments` segments are left."""
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


def remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # it is missing or not empty
        folder.rmdir()


class LocalIndexes:
    """The local indexes of all partitions. `async with` locks the folder and unlocks it.

    The event loop never waits for a disk here. A read never waits for long: without a response the
    caller asks the store.
    """

    def __init__(
        self,
        folder: Path,
        log_key: LogKey,
        *,
        file_bytes_max: int,
        file_age_max_ms: int,
    ) -> None:
        self._folder = folder
        self._new = partial(
            LocalRemoteLogIndex,
            log_key=log_key,
            file_bytes_max=file_bytes_max,
            file_age_max_ms=file_age_max_ms,
        )
        self._partitions: dict[TopicIdPartition, LocalRemoteLogIndex] = {}
        self._lock: IO[bytes] | None = None
        self._failing = False  # whether the disk failed at the last read

    async def __aenter__(self) -> Self:
        """Raises ConfigError if the folder cannot be used."""
        self._lock = await asyncio.to_thread(take_folder, self._folder, "archive.local_index_dir")
        self._threads = ThreadPoolExecutor(_THREADS, "local-index")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wait for the current writes; nothing is written afterwards."""
        partitions, self._partitions = self._partitions, {}
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(list, map(LocalRemoteLogIndex.close, partitions.values()))
        if self._lock is not None:
            self._lock.close()

    def partition(self, tp: TopicIdPartition) -> LocalRemoteLogIndex:
        """Does no I/O. The result's methods block: call them by `in_thread`."""
        if tp not in self._partitions:
            self._partitions[tp] = self._new(self._folder / partition_folder("", tp))
        return self._partitions[tp]

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(call, *args, **kwargs))

    async def read(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogIndex | None:
        """The segment's index; None: the caller has to ask the store. A damaged index is dropped,
        and `LocalIndexRefresher` fetches it again. Raises nothing.
        """
        tp = metadata.topic_id_partition
        index = self.partition(tp)
        outcome, index_object = "failed", None
        try:
            async with asyncio.timeout(_READ_MAX_S):
                indexed = await self.in_thread(index.segment_index, metadata)
            if indexed is not None:
                indexed.check_covers(metadata.stored_end_offset, metadata.segment_size_bytes)
            outcome, index_object = "absent" if indexed is None else "hit", indexed
        except CorruptSegment as error:
            outcome = "damaged"
            log.warning("local_index_damaged", **metadata.logged, error=str(error))
            await self._drop(index, metadata)
        except (OSError, TimeoutError) as error:
            if not self._failing:  # once per outage
                log.warning(
                    "local_index_read_failed",
                    **metadata.logged,
                    error=repr(error),
                    hint=_CHECK_DISK,
                )
        self._failing = outcome == "failed"
        LOCAL_INDEX_READS.labels(outcome).inc()
        return index_object

    async def _drop(self, index: LocalRemoteLogIndex, metadata: RemoteLogSegmentMetadata) -> None:
        try:
            async with asyncio.timeout(_READ_MAX_S):
                await self.in_thread(index.drop_from, metadata)
        except (OSError, TimeoutError) as error:
            log.warning(
                "local_index_not_dropped", **metadata.logged, error=repr(error), hint=_CHECK_DISK
            )

    async def keep_only(self, tps: Iterable[TopicIdPartition]) -> None:
        """Remove the files of all other partitions. Raises OSError."""
        tps = set(tps)
        folders = {self._folder / partition_folder("", tp) for tp in tps}
        for tp in [tp for tp in self._partitions if tp not in tps]:
            await self.in_thread(self._partitions.pop(tp).keep, ())
        await self.in_thread(self._remove_others, folders)

    def _remove_others(self, folders: set[Path]) -> None:
        for folder in [path for path in self._folder.glob("*/*") if path.is_dir()]:
            if folder not in folders:
                index = self._new(folder)
                index.keep(())
                index.close()
        for folder in self._folder.iterdir():
            remove_if_empty(folder)
