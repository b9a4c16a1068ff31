"""Derives a segment from its batches: its cut, aborted transactions, metadata and indexes. Pure."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path

from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.primitives import Buffer
from fetchproxy_protocol.record_batch import CONTROL_ABORT, BatchHeader, control_type

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn, EpochStart, TopicIdPartition
from fetchproxy.segments.leader_epochs import NOT_COUNTED
from fetchproxy.segments.remote_log_index import RemoteLogIndex

_BLOCK_BYTES = 1024 * 1024


class AbortedTxnCollector:
    """Feed it in log order: first a fetch's aborted transactions, then its batches' markers.

    A read_committed fetch lists each aborted transaction that overlaps the fetched range as
    (producer id, first offset), whether or not its ABORT marker lies in the range. The list is
    complete for all offsets below the LSO, as an offset is below it only once its transaction is
    decided. A transaction's last offset is the producer's next ABORT marker after the first offset.

    Each segment lists *every* aborted transaction that overlaps it (see
    `fetchproxy.segments.side_files`), and its first fetch begins at its first offset, so a segment
    needs nothing from the segment before it. If the marker is not in the segment, the entry ends
    with the segment.
    """

    def __init__(self) -> None:
        self._marker_of: dict[tuple[int, int], int | None] = {}
        self._open: dict[int, list[int]] = {}  # producer id -> first offsets without a marker yet

    def report(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted`: (producer id, first offset) pairs. Known pairs change nothing."""
        for producer_id, first_offset in aborted:
            if (producer_id, first_offset) not in self._marker_of:
                self._marker_of[(producer_id, first_offset)] = None
                self._open.setdefault(producer_id, []).append(first_offset)

    def abort_marker(self, producer_id: int, offset: int) -> None:
        """An ABORT marker ends the producer's open transaction; without data there is none.

        A fetch may also have reported the producer's next aborted transaction, which stays open.
        """
        later: list[int] = []
        for first_offset in self._open.pop(producer_id, ()):
            if first_offset < offset:
                self._marker_of[(producer_id, first_offset)] = offset
            else:
                later.append(first_offset)
        if later:
            self._open[producer_id] = later

    @property
    def reported_count(self) -> int:
        return len(self._marker_of)

    def reported_since(self, count: int) -> list[tuple[int, int]]:
        """The pairs that became known after the first `count` of them."""
        return list(islice(self._marker_of, count, None))

    def without_marker(self) -> list[tuple[int, int]]:
        """The pairs whose ABORT marker has not come yet."""
        return [(producer, first) for producer, firsts in self._open.items() for first in firsts]

    def up_to(self, last: int) -> tuple[AbortedTxn, ...]:
        txns = (
            (last if marker is None else marker, first_offset, producer_id)
            for (producer_id, first_offset), marker in self._marker_of.items()
        )
        return listed_aborted(txns, last)


def listed_aborted(txns: Iterable[tuple[int, int, int]], last: int) -> tuple[AbortedTxn, ...]:
    """The entries of the segment that ends with offset `last` (inclusive), by last offset. `txns`:
    offset of the marker, first offset, producer id.

    `last_stable_offset` is as in Kafka's ProducerStateManager, counting only aborted transactions.
    A search in order of the markers may stop at an entry whose LSO it has reached.
    """
    entries: list[AbortedTxn] = []
    undecided = last + 1  # lowest first offset of the transactions that end later
    ordered = sorted((min(marker, last), first, producer) for marker, first, producer in txns)
    for last_offset, first_offset, producer_id in reversed(ordered):
        if first_offset <= last:
            stable = min(last_offset + 1, undecided)
            entries.append(AbortedTxn(first_offset, last_offset, producer_id, stable))
            undecided = min(undecided, first_offset)
    entries.reverse()
    return tuple(entries)


# A log may have holes: the log cleaner removes whole batches, and records from inside a batch,
# which keeps its last offset. They stay when the topic's `cleanup.policy` is `delete` again, and
# then they are final. They are archived as they are (docs/adr/0063).


# Only batches whose last offset is below the last stable offset are taken (read_committed). So all
# archived transactions are decided, and a reader needs no later transaction state.


class CutReason(StrEnum):
    BYTES = "bytes"  # the next batch would make it larger than segment_bytes_max
    AGE = "age"  # its first batch was read segment_age_max_ms ago
    SPOOL = "spool"  # all accumulated segments exceed spool_bytes_max, or the disk is full
    GAP = "gap"  # the broker has deleted the next offsets
    LAST_COPY = "last copy"  # the broker has deleted some of its records
    FAULT = "fault"  # the next batch in the broker's log is damaged
    SHORT = "short"  # there are no more batches, and the caller waits for none


@dataclass(frozen=True, slots=True)
class Take:
    """`headers[start:end]` join the segment. `full`: later batches belong to the next segment."""

    start: int
    end: int
    full: bool


def plan_take(
    headers: Sequence[BatchHeader],
    *,
    position: int,
    last_stable_offset: int,
    accumulated_bytes: int,
    segment_bytes_max: int,
) -> Take:
    """`headers` follow each other; `position` is the first offset that is still wanted.

    A batch larger than `segment_bytes_max` makes a segment by itself. A broker may send batches
    that end below the requested position; they are skipped.
    """
    start = 0
    while start < len(headers) and headers[start].last_offset < position:
        start += 1
    end, size = start, accumulated_bytes
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
    last_copy_age_min_ms: int,
    is_last_copy: bool,
) -> CutReason | None:
    """The reason to close a segment that is not full but holds a batch. None: there is none.

    `is_last_copy`: the broker has deleted some of its records, so they are in the spool alone. The
    spool is lost with the process, and readers of these records wait for the copy.
    """
    if age_ms >= segment_age_max_ms:
        return CutReason.AGE
    if is_last_copy and age_ms >= last_copy_age_min_ms:
        return CutReason.LAST_COPY
    if spool_bytes >= spool_bytes_max:
        return CutReason.SPOOL
    return None


@dataclass(frozen=True, slots=True)
class KafkaFiles:
    """A broker's own files of the segment, byte for byte. None: it had no file that fits."""

    offset_index: bytes | None = None
    time_index: bytes | None = None
    producer_snapshot: bytes | None = None


@dataclass(frozen=True, slots=True)
class AccumulatedSegment:
    """A closed segment, ready to be copied any number of times."""

    tp: TopicIdPartition
    start_offset: int  # the position that reading began at, see RemoteLogSegmentMetadata
    end_offset: int  # inclusive
    max_timestamp_ms: int
    size_bytes: int
    leader_epochs: tuple[EpochStart, ...]
    aborted: tuple[AbortedTxn, ...]
    log: Path
    log_crc: int  # CRC-32C of all of `log`, as it lies there
    log_settled: bool  # True: nobody writes to `log` again. False: it is a broker's own file
    index: RemoteLogIndex  # without an object key: each copy attempt has a new one
    compressible: bool = False  # most of its bytes are in batches that are not compressed
    leader_epoch: int = -1  # of the first leader that it was read from; -1: not known
    stream_key: bytes | None = field(default=None, repr=False)  # `log` is encrypted with it
    kafka_files: KafkaFiles = KafkaFiles()
    # For each of `leader_epochs`, the offset after its last batch: where compaction has removed the
    # next ones, this is below the next entry's start. (): each ends where the next one starts.
    epoch_ends: tuple[int, ...] = ()

    async def check_size(self) -> None:
        """Like `check_log`, at no cost: checks only that the file exists and its size is right."""
        size_bytes = (await asyncio.to_thread(self.log.stat)).st_size
        if size_bytes != self.size_bytes:
            raise CorruptSegment(f"{self.tp}: the spool file {self.log} has changed its size")

    async def check_log(self) -> None:
        """Checks that the file has the accumulated bytes. Raises CorruptSegment, OSError.

        A disk, a cleaner of temporary folders or a broker that truncates its log may change it.
        """
        crc, size_bytes = await asyncio.to_thread(file_crc, self.log)
        if (crc, size_bytes) != (self.log_crc, self.size_bytes):
            raise CorruptSegment(f"{self.tp}: the spool file {self.log} has changed")


class SegmentSummary:
    """Collects the data of metadata and indexes from batches in the order of the log. Pure.

    `add` raises CorruptSegment if a batch does not continue the log; then the summary is useless.
    `first_timestamp_ms`: the timestamp of the first record; None: there is no record yet.
    """

    def __init__(self, tp: TopicIdPartition, start_offset: int) -> None:
        self._tp = tp
        self.start_offset = start_offset
        self.position = start_offset  # the next offset that is wanted
        self.size_bytes = 0
        self._crc = 0
        self._uncompressed_bytes = 0
        self.first_timestamp_ms: int | None = None
        self._max_timestamp_ms = -1
        self._epochs: list[EpochStart] = []
        self._epoch_ends: list[int] = []
        self._epoch: int | None = None  # of the last entry
        self._highest_epoch = NOT_COUNTED
        self._leaders: set[int] = set()
        self.aborted = AbortedTxnCollector()
        self._index = RemoteLogIndex()

    @property
    def leader_epochs(self) -> tuple[EpochStart, ...]:
        return tuple(self._epochs)

    def report(self, aborted: Iterable[tuple[int, int]]) -> None:
        """`aborted`: (producer id, first offset) of transactions. Call it before their batches."""
        self.aborted.report(aborted)

    def add(self, records: Buffer, header: BatchHeader, leader_epoch: int = -1) -> None:
        """Adds the next batch, which lies in `records`. `add_bytes` counts its bytes.

        `leader_epoch`: the epoch of the leader that it was read from; -1: not known.
        """
        try:
            self._index.add(header)
            is_abort = header.is_control and control_type(records, header) == CONTROL_ABORT
        except (ValueError, WireError) as error:
            raise CorruptSegment(f"{self._tp}: {error}") from None
        self._leaders.add(leader_epoch)
        # -1: its writer knew no epoch. Such a batch belongs to the epoch before it, as in Kafka.
        if header.partition_leader_epoch not in (self._epoch, -1):
            self._note_epoch(header, leader_epoch)
        if is_abort:
            self.aborted.abort_marker(header.producer_id, header.base_offset)
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = header.base_timestamp
        self._max_timestamp_ms = max(self._max_timestamp_ms, header.max_timestamp)
        if not header.compression:
            self._uncompressed_bytes += header.size
        self.position = header.last_offset + 1
        if self._epochs:
            self._epoch_ends[-1] = self.position

    def _note_epoch(self, header: BatchHeader, leader_epoch: int) -> None:
        epoch = header.partition_leader_epoch
        counts = epoch >= self._highest_epoch and not 0 <= leader_epoch < epoch
        self._highest_epoch = max(self._highest_epoch, epoch)
        epoch_in_metadata = epoch if counts else NOT_COUNTED
        if epoch_in_metadata != self._epoch:
            # A segment may begin inside a batch (DeleteRecords), or with a hole before its first
            # batch, and repeats the epoch that it begins in.
            is_first = self.first_timestamp_ms is None
            start = self.start_offset if is_first else header.base_offset
            self._epochs.append(EpochStart(epoch_in_metadata, start))
            self._epoch_ends.append(start)
            self._epoch = epoch_in_metadata

    def add_bytes(self, chunk: memoryview) -> None:
        """Takes all bytes of the added batches, in order, as in the file."""
        self.size_bytes += len(chunk)
        self._crc = crc32c(chunk, self._crc)

    def close(self, log: Path, *, settled: bool) -> AccumulatedSegment:
        """`log` holds the added batches, of which there has to be at least one."""
        return AccumulatedSegment(
            tp=self._tp,
            start_offset=self.start_offset,
            end_offset=self.position - 1,
            max_timestamp_ms=self._max_timestamp_ms,
            size_bytes=self.size_bytes,
            leader_epochs=self.leader_epochs,
            aborted=self.aborted.up_to(self.position - 1),
            log=log,
            log_crc=self._crc,
            log_settled=settled,
            index=self._index,
            compressible=2 * self._uncompressed_bytes > self.size_bytes,
            leader_epoch=min(self._leaders, default=-1),
            epoch_ends=tuple(self._epoch_ends),
        )


def file_crc(path: Path) -> tuple[int, int]:
    crc = size_bytes = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            crc = crc32c(block, crc)
            size_bytes += len(block)
    return crc, size_bytes
