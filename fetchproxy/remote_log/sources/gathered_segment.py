"""A segment that is ready to be copied, and how its metadata and indexes come from its batches.

The one way from batches to a copy, whatever source they come from. It uploads nothing, and never
looks into records but for a marker's type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.errors import CompactedLog, CorruptSegment
from fetchproxy.index.remote_log_index import RemoteLogIndex, RemoteLogIndexBuilder, encode_entry
from fetchproxy.model import AbortedTxn, EpochStart, TopicIdPartition
from fetchproxy.remote_log.sources.aborted_txns import AbortedTxnCollector
from fetchproxy.remote_log.sources.compaction import compaction_sign
from protocol.errors import WireError
from protocol.primitives import Buffer
from protocol.record_batch import CONTROL_ABORT, BatchHeader, control_type

_BLOCK_BYTES = 1024 * 1024
_UNNAMED = "-"  # stands for the object key, which each copy attempt has anew


@dataclass(frozen=True, slots=True)
class KafkaFiles:
    """A broker's own files of the segment, byte for byte; None: it had none that fits."""

    offset_index: bytes | None = None
    time_index: bytes | None = None
    producer_snapshot: bytes | None = None


NO_KAFKA_FILES = KafkaFiles()


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
    log_settled: bool  # nobody will write to `log` again; False: it is a broker's own file
    unnamed_index: bytes
    kafka_files: KafkaFiles = NO_KAFKA_FILES

    def index(self, object_key: str) -> bytes:
        """The content of the `.index` object whose log lies under `object_key`."""
        spans = RemoteLogIndex.parse(self.unnamed_index).spans()
        return b"".join(encode_entry(object_key, span) for span in spans)

    async def check_size(self) -> None:
        """As `check_log`, at no cost: is the file there, and as long as it was?"""
        size_bytes = (await asyncio.to_thread(self.log.stat)).st_size
        if size_bytes != self.size_bytes:
            raise CorruptSegment(f"{self.tip}: the spool file {self.log} has changed its size")

    async def check_log(self) -> None:
        """Is the file what was gathered? A disk, a cleaner of temporary folders or a broker that
        truncates its log may differ.

        Raises CorruptSegment, OSError.
        """
        crc, size_bytes = await asyncio.to_thread(_file_crc, self.log)
        if (crc, size_bytes) != (self.log_crc, self.size_bytes):
            raise CorruptSegment(f"{self.tip}: the spool file {self.log} has changed")


class SegmentSummary:
    """What metadata and indexes need, from batches in the order of the log. Pure.

    `add` raises CorruptSegment where a batch does not continue the log, CompactedLog where it shows
    that records were taken out; then it is of no use any more. `first_timestamp_ms`: of the first
    record, None before it.
    """

    def __init__(self, tip: TopicIdPartition, start_offset: int) -> None:
        self._tip = tip
        self.start_offset = start_offset
        self.position = start_offset  # the next offset that is wanted
        self.size_bytes = 0
        self._crc = 0
        self.first_timestamp_ms: int | None = None
        self._max_timestamp_ms = -1
        self._epochs: list[EpochStart] = []
        self._aborted = AbortedTxnCollector()
        self._index = RemoteLogIndexBuilder(_UNNAMED)

    @property
    def leader_epochs(self) -> tuple[EpochStart, ...]:
        return tuple(self._epochs)

    def report(self, aborted: Iterable[tuple[int, int]]) -> None:
        """(producer id, first offset) of aborted transactions, before the batches they are in."""
        self._aborted.report(aborted)

    def add(self, records: Buffer, header: BatchHeader) -> None:
        """The next batch, which lies in `records`. Its bytes are counted by `add_bytes`."""
        sign = compaction_sign(header, self.position)
        if sign is not None:
            raise CompactedLog(
                f"{self._tip}: the log was compacted ({sign}); such a log is not archived"
            )
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
            # A segment may begin inside a batch (DeleteRecords).
            start = header.base_offset if self._epochs else self.start_offset
            self._epochs.append(EpochStart(epoch, start))
        if is_abort:
            self._aborted.abort_marker(header.producer_id, header.base_offset)
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = header.base_timestamp
        self._max_timestamp_ms = max(self._max_timestamp_ms, header.max_timestamp)
        self.position = header.last_offset + 1

    def add_bytes(self, chunk: memoryview) -> None:
        """The bytes of batches that were added, all of them and in order."""
        self.size_bytes += len(chunk)
        self._crc = crc32c(chunk, self._crc)

    def close(self, log: Path, *, settled: bool) -> GatheredSegment:
        """`log` holds what was added; at least one batch must have been."""
        return GatheredSegment(
            tip=self._tip,
            start_offset=self.start_offset,
            end_offset=self.position - 1,
            max_timestamp_ms=self._max_timestamp_ms,
            size_bytes=self.size_bytes,
            leader_epochs=self.leader_epochs,
            aborted=self._aborted.up_to(self.position - 1),
            log=log,
            log_crc=self._crc,
            log_settled=settled,
            unnamed_index=self._index.finish(),
        )


def _file_crc(path: Path) -> tuple[int, int]:
    """(CRC-32C, size in bytes) of the file."""
    crc = size_bytes = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            crc = crc32c(block, crc)
            size_bytes += len(block)
    return crc, size_bytes
