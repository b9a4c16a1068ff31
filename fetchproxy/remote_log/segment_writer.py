"""Gathers one segment in a spool file, and all that its metadata and indexes need. Uploads nothing.

It takes batches as they are, in order, and never looks into records but for a marker's type. The
file is opened for each write only, as there may be more partitions than file handles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import crc32c

from fetchproxy.errors import CorruptSegment
from fetchproxy.index.remote_log_index import RemoteLogIndex, RemoteLogIndexBuilder, encode_entry
from fetchproxy.model import AbortedTxn, EpochStart, TopicIdPartition
from fetchproxy.remote_log.aborted_txns import AbortedTxnCollector
from fetchproxy.remote_log.spool import Spool
from protocol.errors import WireError
from protocol.record_batch import CONTROL_ABORT, BatchHeader, control_type

_BLOCK_BYTES = 1024 * 1024
_UNNAMED = "-"  # stands for the object key, which each copy attempt has anew


@dataclass(frozen=True, slots=True)
class GatheredSegment:
    """A closed segment, ready to be copied any number of times."""

    tip: TopicIdPartition
    start_offset: int  # the position that was read from, see RemoteLogSegmentMetadata
    end_offset: int  # inclusive
    max_timestamp_ms: int
    size_bytes: int
    leader_epochs: tuple[EpochStart, ...]
    aborted: tuple[AbortedTxn, ...]
    log: Path
    log_crc: int  # CRC-32C of all of `log`
    unnamed_index: bytes

    def index(self, object_key: str) -> bytes:
        """The content of the `.index` object whose log lies under `object_key`."""
        spans = RemoteLogIndex.parse(self.unnamed_index).spans()
        return b"".join(encode_entry(object_key, span) for span in spans)

    async def check_log(self) -> None:
        """Is the file what was written? A disk or a cleaner of temporary folders may differ.

        Raises CorruptSegment, OSError.
        """
        crc, size_bytes = await asyncio.to_thread(_file_crc, self.log)
        if (crc, size_bytes) != (self.log_crc, self.size_bytes):
            raise CorruptSegment(f"{self.tip}: the spool file {self.log} has changed")


class SegmentWriter:
    """`began_at` is the loop time (s) of the first append, None before it."""

    def __init__(self, tip: TopicIdPartition, start_offset: int, spool: Spool) -> None:
        self._tip = tip
        self.start_offset = start_offset
        self.position = start_offset  # the next offset that is wanted
        self.size_bytes = 0
        self.began_at: float | None = None
        self._spool = spool
        self._path = spool.new_file()
        self._crc = 0
        self._max_timestamp_ms = -1
        self._epochs: list[EpochStart] = []
        self._aborted = AbortedTxnCollector()
        self._index = RemoteLogIndexBuilder(_UNNAMED)

    async def append(
        self,
        records: memoryview,
        headers: Sequence[BatchHeader],
        aborted: Iterable[tuple[int, int]],
    ) -> None:
        """`headers` are consecutive batches in `records`; `aborted` what their fetch reported.

        Raises CorruptSegment where they do not continue the log, OSError from the disk; after
        either, or a cancellation, the writer is of no use any more.
        """
        if not headers:
            return
        first, last = headers[0], headers[-1]
        if self.began_at is None:
            self.began_at = asyncio.get_running_loop().time()
        self._aborted.report(aborted)
        for header in headers:
            self._note(records, header)
        chunk = records[first.position : last.end]
        self._spool.size_bytes += len(chunk)
        self.size_bytes += len(chunk)
        self._crc = await asyncio.to_thread(
            _append_file, self._path, chunk, self.size_bytes, self._crc
        )

    def close(self) -> GatheredSegment:
        """At least one batch must have been appended."""
        return GatheredSegment(
            tip=self._tip,
            start_offset=self.start_offset,
            end_offset=self.position - 1,
            max_timestamp_ms=self._max_timestamp_ms,
            size_bytes=self.size_bytes,
            leader_epochs=tuple(self._epochs),
            aborted=self._aborted.up_to(self.position - 1),
            log=self._path,
            log_crc=self._crc,
            unnamed_index=self._index.finish(),
        )

    async def discard(self) -> None:
        """Give the disk space back. Idempotent."""
        self._spool.size_bytes -= self.size_bytes
        self.size_bytes = 0
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    def _note(self, records: memoryview, header: BatchHeader) -> None:
        epoch = header.partition_leader_epoch
        if self._epochs and epoch < self._epochs[-1].epoch:
            raise CorruptSegment(
                f"{self._tip}: leader epoch {epoch} at offset {header.base_offset} "
                f"after epoch {self._epochs[-1].epoch}"
            )
        try:
            self._index.add(header)
            is_abort = header.is_control and control_type(records, header) == CONTROL_ABORT
        except (ValueError, WireError) as error:
            raise CorruptSegment(f"{self._tip}: {error}") from None
        if epoch >= 0 and (not self._epochs or epoch > self._epochs[-1].epoch):
            # A segment may begin inside a batch (DeleteRecords) or above a hole in the log.
            start = header.base_offset if self._epochs else self.start_offset
            self._epochs.append(EpochStart(epoch, start))
        if is_abort:
            self._aborted.abort_marker(header.producer_id, header.base_offset)
        self._max_timestamp_ms = max(self._max_timestamp_ms, header.max_timestamp)
        self.position = header.last_offset + 1


def _append_file(path: Path, chunk: memoryview, size_after: int, crc: int) -> int:
    """The CRC-32C of the file with `chunk`, from the one without it."""
    with path.open("ab") as file:
        file.write(chunk)
        file.flush()
        if file.tell() != size_after:
            raise OSError(f"spool file {path} has {file.tell()} bytes, expected {size_after}")
    extended: int = crc32c.crc32c(chunk, crc)
    return extended


def _file_crc(path: Path) -> tuple[int, int]:
    """(CRC-32C, size in bytes) of the file."""
    crc = size_bytes = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            crc = crc32c.crc32c(block, crc)
            size_bytes += len(block)
    return crc, size_bytes
