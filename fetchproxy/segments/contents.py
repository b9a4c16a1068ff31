"""What a segment's batches make of it: where it is cut, its aborted transactions, its metadata
and its indexes. Pure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.primitives import Buffer
from fetchproxy_protocol.record_batch import CONTROL_ABORT, BatchHeader, control_type

from fetchproxy.errors import CompactedLog, CorruptSegment
from fetchproxy.model import AbortedTxn, EpochStart, TopicIdPartition
from fetchproxy.segments.remote_log_index import RemoteLogIndex

# A read_committed fetch lists each aborted transaction that overlaps the fetched range as
# (producer id, first offset), whether or not its ABORT marker lies in the range. The list is
# complete for all offsets below the LSO, as an offset is below it only once its transaction is
# decided. The last offset is that of the producer's next ABORT marker after the first offset.
#
# Each segment lists *every* aborted transaction that overlaps it (see
# `fetchproxy.segments.side_files`), and its first fetch begins at its first offset, so a
# segment needs nothing from the one before it. Where the marker is not in it, the entry ends with
# it.


class AbortedTxnCollector:
    """Feed it in log order: first what a fetch reports, then the markers of its batches."""

    def __init__(self) -> None:
        self._marker_of: dict[tuple[int, int], int | None] = {}
        self._open: dict[int, list[int]] = {}  # producer id -> first offsets without a marker yet

    def report(self, aborted: Iterable[tuple[int, int]]) -> None:
        """(producer id, first offset) pairs; those known already change nothing."""
        for producer_id, first_offset in aborted:
            if (producer_id, first_offset) not in self._marker_of:
                self._marker_of[(producer_id, first_offset)] = None
                self._open.setdefault(producer_id, []).append(first_offset)

    def abort_marker(self, producer_id: int, offset: int) -> None:
        """An ABORT marker ends the producer's open transaction; without data there is none.

        A fetch may also have reported the producer's next aborted transaction: that stays open.
        """
        later: list[int] = []
        for first_offset in self._open.pop(producer_id, ()):
            if first_offset < offset:
                self._marker_of[(producer_id, first_offset)] = offset
            else:
                later.append(first_offset)
        if later:
            self._open[producer_id] = later

    def up_to(self, last: int) -> tuple[AbortedTxn, ...]:
        txns = (
            (last if marker is None else marker, first_offset, producer_id)
            for (producer_id, first_offset), marker in self._marker_of.items()
        )
        return listed_aborted(txns, last)


def listed_aborted(txns: Iterable[tuple[int, int, int]], last: int) -> tuple[AbortedTxn, ...]:
    """The entries of the segment that ends with offset `last` (inclusive), by last offset. `txns`:
    offset of the marker, first offset, producer id.

    `last_stable_offset` as in Kafka's ProducerStateManager, counting aborted transactions only: a
    search in order of the markers may stop at an entry whose LSO it has reached.
    """
    entries: list[AbortedTxn] = []
    undecided = last + 1  # lowest first offset of the transactions that end later
    found = sorted((min(marker, last), first, producer) for marker, first, producer in txns)
    for last_offset, first_offset, producer_id in reversed(found):
        if first_offset <= last:
            stable = min(last_offset + 1, undecided)
            entries.append(AbortedTxn(first_offset, last_offset, producer_id, stable))
            undecided = min(undecided, first_offset)
    entries.reverse()
    return tuple(entries)


# Kafka numbers records without a hole, markers of transactions included, and a producer fills the
# offsets of its batch. Only the log cleaner takes records out: from inside a batch, which keeps
# its last offset, or whole batches. So what was compacted once shows for as long as it is in the
# log, also when the topic's cleanup.policy is `delete` again; a part that has lost nothing is
# like any other, and is archived as such.


def compaction_sign(header: BatchHeader, position: int) -> str | None:
    """What the next batch at `position` shows of compaction, in words; None: nothing.

    A batch may begin below `position` (DeleteRecords, or a resume in the middle), never above it.
    """
    if header.base_offset > position:
        return f"offsets {position} to {header.base_offset - 1} are missing"
    if header.records_count != header.last_offset_delta + 1:
        return (
            f"the batch at offset {header.base_offset} holds {header.records_count} records for "
            f"{header.last_offset_delta + 1} offsets"
        )
    return None


# Only batches whose last offset is below the last stable offset are taken (read_committed): what
# an archive holds was decided, and a reader of it needs no later transaction state.


class CutReason(StrEnum):
    BYTES = "bytes"  # the next batch would make it larger than segment_bytes_max
    AGE = "age"  # its first batch was read segment_age_max_ms ago
    SPOOL = "spool"  # all gathered ones together are above spool_bytes_max, or its disk is full
    GAP = "gap"  # the broker has deleted what comes next
    SHORT = "short"  # nothing more is there and nobody waits for more


@dataclass(frozen=True, slots=True)
class Take:
    """`headers[start:end]` join the segment; `full`: whatever follows belongs into the next one."""

    start: int
    end: int
    full: bool


def plan_take(
    headers: Sequence[BatchHeader],
    *,
    position: int,
    last_stable_offset: int,
    gathered_bytes: int,
    segment_bytes_max: int,
) -> Take:
    """`headers` follow each other; `position` is the first offset that is still wanted.

    A batch that is alone larger than `segment_bytes_max` makes a segment by itself. A broker may
    send batches that end below the position it was asked for; they are passed over.
    """
    start = 0
    while start < len(headers) and headers[start].last_offset < position:
        start += 1
    end, size = start, gathered_bytes
    for header in headers[start:]:
        if header.last_offset >= last_stable_offset:
            return Take(start, end, full=False)
        if size > 0 and size + header.size > segment_bytes_max:
            return Take(start, end, full=True)
        size += header.size
        end += 1
    return Take(start, end, full=size >= segment_bytes_max)


def cut_reason(
    *,
    age_ms: float,
    spool_bytes: int,
    segment_age_max_ms: int,
    spool_bytes_max: int,
) -> CutReason | None:
    """Whether a segment that is not full is closed anyway; ask only of one that holds a batch."""
    if age_ms >= segment_age_max_ms:
        return CutReason.AGE
    if spool_bytes >= spool_bytes_max:
        return CutReason.SPOOL
    return None


_BLOCK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class KafkaFiles:
    """A broker's own files of the segment, byte for byte; None: it had none that fits."""

    offset_index: bytes | None = None
    time_index: bytes | None = None
    producer_snapshot: bytes | None = None


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
    log_crc: int  # CRC-32C of all of `log`, as it lies there
    log_settled: bool  # nobody will write to `log` again; False: it is a broker's own file
    index: RemoteLogIndex  # without an object key, which each copy attempt has anew
    compressible: bool = False  # most of its bytes are in batches that are not compressed
    stream_key: bytes | None = field(default=None, repr=False)  # `log` is encrypted with it
    kafka_files: KafkaFiles = KafkaFiles()

    async def check_size(self) -> None:
        """As `check_log`, at no cost: is the file there, and as long as it was?"""
        size_bytes = (await asyncio.to_thread(self.log.stat)).st_size
        if size_bytes != self.size_bytes:
            raise CorruptSegment(f"{self.tip}: the spool file {self.log} has changed its size")

    async def check_log(self) -> None:
        """Is the file what was gathered? A disk, a cleaner of temporary folders or a broker that
        truncates its log may differ. Raises CorruptSegment, OSError.
        """
        crc, size_bytes = await asyncio.to_thread(file_crc, self.log)
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
        self._uncompressed_bytes = 0
        self.first_timestamp_ms: int | None = None
        self._max_timestamp_ms = -1
        self._epochs: list[EpochStart] = []
        self._aborted = AbortedTxnCollector()
        self._index = RemoteLogIndex()

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
        if not header.compression:
            self._uncompressed_bytes += header.size
        self.position = header.last_offset + 1

    def add_bytes(self, chunk: memoryview) -> None:
        """The bytes of batches that were added, all of them and in order, as the file has them."""
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
            index=self._index,
            compressible=2 * self._uncompressed_bytes > self.size_bytes,
        )


def file_crc(path: Path) -> tuple[int, int]:
    crc = size_bytes = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            crc = crc32c(block, crc)
            size_bytes += len(block)
    return crc, size_bytes
