"""A partition's local index: sets of files, each behind the one before it, and rolled like a log.

Holds the `.index` objects of the partition's segments in their order, so that an offset or a time
leads to an entry, and a segment to all of its entries, without a request to the store. It is a
cache: everything in it can be fetched again, and whatever is doubtful is dropped. It says where the
bytes of an offset are; whether the offset still counts is the metadata's matter.

All methods block, may be called by any thread, and exclude each other.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import structlog

from fetchproxy.errors import CorruptSegment
from fetchproxy.index.local_index_files import LOG_INDEX, SUFFIXES, LocalIndexFiles, segment_mark
from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.index.remote_log_index_entry import RemoteLogIndexEntry
from fetchproxy.observability.metrics import (
    LOCAL_INDEX_BYTES,
    LOCAL_INDEX_FILES,
    LOCAL_INDEX_REBUILDS,
)

log = structlog.get_logger(__name__)

_NAME = re.compile(rf"([0-9]{{20}})\.({'|'.join(SUFFIXES)})~?")


class IndexedSegment(NamedTuple):
    """What of a segment's metadata the local index goes by."""

    object_key: str  # of its `.log`
    start_offset: int
    end_offset: int  # the last one that its objects hold, inclusive
    size_bytes: int  # of its `.log`
    copied_at_ms: int  # epoch


class LocalRemoteLogIndex:
    """The folder is made with the first segment, and goes with the last."""

    def __init__(self, folder: Path, *, file_bytes_max: int, file_age_max_ms: int) -> None:
        self._folder = folder
        self._file_bytes_max = file_bytes_max
        self._file_age_max_ms = file_age_max_ms
        self._lock = threading.Lock()
        self._opened = False
        self._closed = False
        self._files: list[LocalIndexFiles] = []
        self._end_known = False  # that the last segment is whole
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
            while True:
                held = self._marks()
                passed, kept = _beginning(held, marks)
                if not self._end_known and kept and passed + kept == len(held):
                    whole = self._files[-1].last_segment_bytes == wanted[kept - 1].size_bytes
                    kept -= not whole
                self._end_known = True
                if passed + kept == len(held):
                    break
                self._cut(passed + kept)
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
                self._opened = False  # whatever was written by half is mended by the next call
                raise
            self._publish()

    def _append(self, segment: IndexedSegment, index: RemoteLogIndex, raw: bytes) -> None:
        last = self._files[-1] if self._files else None
        if last is not None and not self._is_full(last, segment, index, len(raw)):
            last.append(index, raw)
            return
        if last is not None:
            last.seal()
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
        """All entries of a segment, in the bytes of its `.index`; None: they are not here.

        Raises CorruptSegment where they are, but damaged; OSError.
        """
        mark = segment_mark(segment.object_key)
        with self._lock:
            self._open()
            files = self._files_at(segment.start_offset)
            if files is None or mark not in files.segments:
                return None
            with files.mapped() as mapped:
                i = mapped.first_entry_from(segment.start_offset)
                if i is None or mapped.entry(i).object_key != segment.object_key:
                    return None  # a later segment has its offsets
                j = mapped.offsets.first_at_or_after(segment.end_offset + 1)
                begin = mapped.offsets.position(i)
                end = mapped.offsets.position(j) if j < len(mapped.offsets) else files.log_bytes
                raw = bytes(mapped.log[begin:end])
        # Entries of later segments that begin before this one ends may follow in `raw`.
        index, behind, error = RemoteLogIndex.take(raw)
        if index.size_bytes != segment.size_bytes:
            why = error or "it is missing"
            raise CorruptSegment(
                f"remoteLogIndex entry {len(index)} at byte {begin + behind}: {why}"
            )
        return index

    def entry_for_offset(self, offset: int) -> RemoteLogIndexEntry | None:
        """The first entry that ends at or above `offset`; None: there is none.

        Raises CorruptSegment, OSError.
        """
        with self._lock:
            self._open()
            first = self._files_at(offset)
            begin = self._files.index(first) if first is not None else 0
            for files in self._files[begin : begin + 2]:
                with files.mapped() as mapped:
                    entry = mapped.entry_for_offset(offset)
                if entry is not None:
                    return entry
        return None

    def entry_for_timestamp(self, timestamp_ms: int) -> RemoteLogIndexEntry | None:
        """The first entry that holds a record at or after `timestamp_ms`; None: there is none.

        Raises CorruptSegment, OSError.
        """
        with self._lock:
            self._open()
            for files in self._files:
                if files.largest_timestamp_ms is None or files.largest_timestamp_ms < timestamp_ms:
                    continue
                with files.mapped() as mapped:
                    return mapped.entry_for_timestamp(timestamp_ms)
        return None

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
        """Read what a former process left; only the last set can be in the middle of something."""
        if self._closed:
            raise OSError(f"the local index {self._folder} is closed")
        if self._opened:
            return
        self._files, self._end_known = [], False
        found = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        names = [(path, match) for path in found if (match := _NAME.fullmatch(path.name))]
        bases = [int(match[1]) for path, match in names if path.suffix == f".{LOG_INDEX}"]
        for path, match in names:
            if int(match[1]) not in bases or path.name.endswith("~"):
                path.unlink()
        for base in bases:
            files = LocalIndexFiles(self._folder, base)
            if (base == bases[-1] or not files.check()) and files.mend():
                log.info("local_index_mended", path=str(self._folder), base_offset=base)
                LOCAL_INDEX_REBUILDS.inc()
            if files.log_bytes:
                self._files.append(files)
        self._opened = True
        self._publish()

    def _marks(self) -> list[int]:
        return [mark for files in self._files for mark in files.segments]

    def _files_at(self, offset: int) -> LocalIndexFiles | None:
        """The set that an offset would be in, if it is in any."""
        i = bisect_right(self._files, offset, key=lambda files: files.base_offset)
        return self._files[i - 1] if i else None

    def _cut(self, segments: int) -> None:
        """Keep so many segments. The newest files go first, so that a crash leaves no hole."""
        held = len(self._marks())
        while self._files and held - len(self._files[-1].segments) >= segments:
            held -= len(self._files[-1].segments)
            self._files.pop().remove()
        if held > segments:
            last = self._files[-1]
            last.mend(len(last.segments) - (held - segments))

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
