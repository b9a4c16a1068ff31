"""Gathers one segment's batches in a spool file. Uploads nothing and decides nothing about them.

The file is opened for each write only, as there may be more partitions than file handles.
"""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterable, Sequence
from errno import EDQUOT, ENOSPC

from fetchproxy.model import TopicIdPartition
from fetchproxy.remote_log.sources.gathered_segment import GatheredSegment, SegmentSummary
from fetchproxy.remote_log.sources.spool import Spool
from protocol.record_batch import BatchHeader


class SpoolFull(OSError):
    """The spool's disk has no room left."""


class SegmentWriter:
    """`began_at` is the loop time (s) of the first append, None before it."""

    def __init__(self, tip: TopicIdPartition, start_offset: int, spool: Spool) -> None:
        self._summary = SegmentSummary(tip, start_offset)
        self.start_offset = start_offset
        self.size_bytes = 0  # of the file; 0 once it is discarded
        self.began_at: float | None = None
        self._spool = spool
        self._path = spool.new_file()

    @property
    def position(self) -> int:
        """The next offset that is wanted."""
        return self._summary.position

    @property
    def first_timestamp_ms(self) -> int | None:
        """Of the first record; None: there is none yet."""
        return self._summary.first_timestamp_ms

    async def append(
        self,
        records: memoryview,
        headers: Sequence[BatchHeader],
        aborted: Iterable[tuple[int, int]],
    ) -> None:
        """`headers` are consecutive batches in `records`; `aborted` what their fetch reported.

        Raises SpoolFull where the disk has no room for them: what was appended before is as it was.
        Raises CorruptSegment where they do not continue the log, OSError from the disk; after
        either, or a cancellation, the writer is of no use any more.
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
        self._summary.report(aborted)
        for header in headers:
            self._summary.add(records, header)

    def close(self) -> GatheredSegment:
        """At least one batch must have been appended."""
        return self._summary.close(self._path, settled=True)

    async def discard(self) -> None:
        """Give the disk space back. Idempotent."""
        self._spool.size_bytes -= self.size_bytes
        self.size_bytes = 0
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    def _append_file(self, chunk: memoryview, size_after: int) -> None:
        size_before = size_after - len(chunk)
        try:
            with self._path.open("ab", buffering=0) as file:
                _write_all(file, chunk)
                if file.tell() != size_after:
                    raise OSError(
                        f"spool file {self._path} has {file.tell()} bytes, expected {size_after}"
                    )
        except OSError as error:
            if error.errno not in (ENOSPC, EDQUOT):
                raise
            if self._path.exists():
                os.truncate(self._path, size_before)
            raise SpoolFull(error.errno, f"no room in the spool: {error}") from error
        self._summary.add_bytes(chunk)


def _write_all(file: io.FileIO, chunk: memoryview) -> None:
    """A full disk takes a part, and says that it is full at the next attempt."""
    while chunk:
        chunk = chunk[file.write(chunk) :]
