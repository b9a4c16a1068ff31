"""Accumulates one segment's batches in a spool file. Uploads nothing and decides nothing about
them.

The file is open only during each write, because there may be more partitions than file handles.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from errno import EDQUOT, ENOSPC
from typing import NamedTuple

from fetchproxy_protocol.record_batch import BatchHeader

from fetchproxy.model import TopicIdPartition
from fetchproxy.segments.contents import AccumulatedSegment, SegmentSummary
from fetchproxy.storage.ciphers import stream_at
from fetchproxy.writing.spool import Spool


class SpoolFull(OSError):
    """The spool's disk has no room left."""


class Written(NamedTuple):
    """How far the writer has come: the next offset, the bytes of the file up to there, the leader
    epoch of the last batches, and what it knows of aborted transactions.
    """

    position: int
    size_bytes: int
    leader_epoch: int = -1
    aborted_count: int = 0
    aborted_open: tuple[tuple[int, int], ...] = ()


class SegmentWriter:
    """Writes one segment's batches to a spool file. `began_at` is the loop time (s) of the first
    append, None before it. `written`: as of the last append that has ended.
    """

    def __init__(self, tp: TopicIdPartition, start_offset: int, spool: Spool) -> None:
        self.summary = SegmentSummary(tp, start_offset)
        self.size_bytes = 0  # of the file; 0 after `discard`
        self.began_at: float | None = None
        self.written = Written(start_offset, 0)
        self._spool = spool
        self._path = spool.new_file()
        self._stream_key = spool.new_key()

    @property
    def position(self) -> int:
        return self.summary.position

    async def append(
        self,
        records: memoryview,
        headers: Sequence[BatchHeader],
        aborted: Iterable[tuple[int, int]],
        leader_epoch: int = -1,
    ) -> None:
        """`headers`: consecutive batches in `records`. `aborted`: the aborted transactions that
        their fetch reported. `leader_epoch`: the epoch of the leader that was fetched from; -1: not
        known.

        Raises SpoolFull if the disk has no room for them: the data before stay as they were. Raises
        CorruptSegment if they do not continue the log, OSError from the disk. After either of
        these, or a cancellation, the writer is unusable.
        """
        if not headers:
            return
        first, last = headers[0], headers[-1]
        chunk = records[first.position : last.end]
        self._spool.size_bytes += len(chunk)
        self.size_bytes += len(chunk)
        try:
            await asyncio.to_thread(self._append_file, chunk, self.size_bytes)
        except SpoolFull:
            self._spool.size_bytes -= len(chunk)
            self.size_bytes -= len(chunk)
            raise
        if self.began_at is None:
            self.began_at = asyncio.get_running_loop().time()
        self.summary.report(aborted)
        for header in headers:
            self.summary.add(records, header, leader_epoch)
        collected = self.summary.aborted
        self.written = Written(
            self.position,
            self.size_bytes,
            leader_epoch,
            collected.reported_count,
            tuple(collected.without_marker()),
        )

    def aborted_since(self, before: Written) -> tuple[tuple[int, int], ...]:
        """(producer id, first offset) of each aborted transaction that overlaps the batches after
        `before`, and perhaps of later ones.
        """
        return before.aborted_open + tuple(
            self.summary.aborted.reported_since(before.aborted_count)
        )

    def parts(self, start: int, end: int, bytes_max: int) -> Iterator[bytes]:
        """Bytes of the file, not encrypted, in parts. Blocks. Raises OSError: FileNotFoundError if
        the segment was copied or dropped before the first part.
        """
        with self._path.open("rb", buffering=0) as file:
            file.seek(start)
            stream = None if self._stream_key is None else stream_at(self._stream_key, start)
            while start < end:
                part = file.read(min(bytes_max, end - start))
                if not part:
                    raise OSError(f"spool file {self._path} ends before byte {end}")
                start += len(part)
                yield part if stream is None else stream.update(part)

    def close(self) -> AccumulatedSegment:
        """At least one batch must have been appended."""
        closed = self.summary.close(self._path, settled=True)
        return replace(closed, stream_key=self._stream_key)

    async def discard(self) -> None:
        """Free the disk space. Idempotent."""
        self._spool.size_bytes -= self.size_bytes
        self.size_bytes = 0
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    def _append_file(self, chunk: memoryview, size_after: int) -> None:
        size_before = size_after - len(chunk)
        if self._stream_key is not None:
            chunk = memoryview(stream_at(self._stream_key, size_before).update(chunk))
        try:
            with self._path.open("ab", buffering=0) as file:
                _write_all(file, chunk)
                if file.tell() != size_after:
                    raise OSError(
                        f"spool file {self._path} has {file.tell()} bytes; expected {size_after}"
                    )
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT):
                raise
            if self._path.exists():
                os.truncate(self._path, size_before)
            raise SpoolFull(error.errno, f"no room in the spool: {error}") from error
        self.summary.add_bytes(chunk)


def _write_all(file: io.FileIO, chunk: memoryview) -> None:
    """Write in a loop: a nearly full disk takes a part and fails at the next write."""
    while chunk:
        chunk = chunk[file.write(chunk) :]
