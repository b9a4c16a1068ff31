"""A rolled segment file of a broker, read once from end to end, checked, and held for a copy.

The broker may delete, rename or truncate its files at any time: everything is read through one open
file, and what is copied later is a hard link to that file (or, where none can be made or only a
part is wanted, a copy of it). It writes nothing into the broker's directories. All functions block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO

import structlog

from fetchproxy.errors import CorruptSegment, LogDirUnusable
from fetchproxy.index.kafka_index_files import offset_index_fault, snapshot_fault, time_index_fault
from fetchproxy.index.transaction_index import ENTRY_BYTES, decode_aborted
from fetchproxy.model import AbortedTxn, TopicIdPartition
from fetchproxy.remote_log.sources.gathered_segment import (
    GatheredSegment,
    KafkaFiles,
    SegmentSummary,
)
from fetchproxy.remote_log.sources.kafka_log_dir import (
    LOG,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    PartitionListing,
    file_of,
    read_epochs,
    read_file,
)
from fetchproxy.remote_log.verification.segment_check import clip_epochs
from fetchproxy.remote_log.verification.txn_check import TxnCheck
from protocol.errors import WireError
from protocol.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    check_crc,
    control_type,
    walk,
)

log = structlog.get_logger(__name__)

_BLOCK_BYTES = 4 * 1024 * 1024


class Stopped(Exception):
    """`go_on` said no."""


class SegmentGone(Exception):
    """The broker has deleted files of it since they were listed: list them again."""


@dataclass(frozen=True, slots=True)
class RolledSegment:
    """Offsets `base_offset` up to but not including `next_base_offset`, all of them decided.

    `position` is the first one that is wanted; `listing` was made after the LSO was asked for.
    """

    tip: TopicIdPartition
    folder: Path
    listing: PartitionListing
    base_offset: int
    next_base_offset: int
    position: int

    @property
    def file(self) -> Path:
        return file_of(self.folder, self.base_offset, LOG)


@dataclass(frozen=True, slots=True)
class Taken:
    """`copied_bytes`: what the segment's file takes on the disk beside the broker's own."""

    segment: GatheredSegment
    first_timestamp_ms: int | None
    copied_bytes: int


def rolled_at(segments: Sequence[int], position: int) -> tuple[int, int] | None:
    """(base offset, the next segment's) of the inactive segment that holds `position`. Pure.

    `segments` are base offsets, rising; the last one is active. None: none of the inactive does.
    """
    for base_offset, next_base_offset in pairwise(segments):
        if base_offset <= position < next_base_offset:
            return base_offset, next_base_offset
    return None


def take_segment(rolled: RolledSegment, path: Path, go_on: Callable[[], bool]) -> Taken:
    """Check the segment's file and put it, from the batch that holds the position on, at `path`.

    Raises SegmentGone, CorruptSegment, CompactedLog, LogDirUnusable for what this program does not
    archive or another look may find otherwise, OSError, and Stopped as soon as `go_on` answers
    False. Then nothing is left at `path`.
    """
    with _open(rolled.file) as file:
        reading = _Reading(rolled, file, _aborted_txns(rolled))
        while reading.step():
            if not go_on():
                raise Stopped
        reading.finish()
        try:
            copied_bytes = _place(file, rolled.file, reading.skipped_bytes, path)
            segment = reading.summary.close(path, settled=copied_bytes > 0)
            files = _kafka_files(rolled, segment, whole=reading.skipped_bytes == 0)
            segment = replace(segment, kafka_files=files)
            return Taken(segment, reading.summary.first_timestamp_ms, copied_bytes)
        except BaseException:
            path.unlink(missing_ok=True)
            raise


class _Reading:
    """The file from its first byte to its last, block by block."""

    def __init__(
        self, rolled: RolledSegment, file: IO[bytes], aborted: Sequence[AbortedTxn]
    ) -> None:
        self._rolled = rolled
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._at = 0
        self._block_bytes = _BLOCK_BYTES
        self._next_offset = rolled.base_offset
        self.skipped_bytes = 0  # of batches that end below the wanted position
        self.summary = SegmentSummary(rolled.tip, rolled.position)
        self.summary.report((entry.producer_id, entry.first_offset) for entry in aborted)
        end_offset = rolled.next_base_offset - 1
        self._txns = TxnCheck()
        self._txns.begin(_clipped(aborted, end_offset), "", rolled.position, end_offset)

    def step(self) -> bool:
        """The next block; False: the file has been read."""
        if self._at == self._size:
            return False
        wanted_bytes = min(self._block_bytes, self._size - self._at)
        self._file.seek(self._at)
        data = self._file.read(wanted_bytes)
        if len(data) < wanted_bytes:
            raise self._unusable(f"ends at byte {self._at + len(data)} now, it had {self._size}")
        end, taken_from = 0, None
        try:
            for header in walk(data):
                self._check(data, header)
                end = header.end
                if header.last_offset < self._rolled.position:
                    self.skipped_bytes += header.size
                    continue
                if taken_from is None:
                    taken_from = header.position
                self._take(data, header)
        except WireError as error:
            raise self._refused(data, end, error) from None
        if taken_from is not None:
            self.summary.add_bytes(memoryview(data)[taken_from:end])
        self._at += end
        self._block_bytes = _BLOCK_BYTES if end else self._batch_bytes(data)
        return True

    def finish(self) -> None:
        rolled = self._rolled
        if self._next_offset != rolled.next_base_offset:
            raise self._unusable(
                f"ends before offset {self._next_offset}, the next segment begins at "
                f"{rolled.next_base_offset}"
            )
        for fault in self._txns.end():
            raise CorruptSegment(f"{rolled.file}: its transaction index does not fit: {fault.what}")
        known = read_epochs(rolled.folder)
        found = self.summary.leader_epochs
        if known is not None and found:
            stated = clip_epochs(known, rolled.position, self.summary.position - 1)
            if found != stated:
                raise self._unusable(f"has {found}, its leader-epoch-checkpoint {stated}")

    def _check(self, data: bytes, header: BatchHeader) -> None:
        if not check_crc(data, header):
            raise CorruptSegment(
                f"{self._rolled.file}: batch at offset {header.base_offset}, byte "
                f"{self._at + header.position}, fails its CRC"
            )
        if header.base_offset < self._next_offset:
            raise CorruptSegment(
                f"{self._rolled.file}: batch at byte {self._at + header.position} begins at offset "
                f"{header.base_offset}, expected {self._next_offset}"
            )
        self._next_offset = header.last_offset + 1

    def _take(self, data: bytes, header: BatchHeader) -> None:
        self.summary.add(data, header)
        self._txns.batch(header, control_type(data, header) if header.is_control else None)

    def _batch_bytes(self, data: bytes) -> int:
        """The size of the batch that does not fit into `data`."""
        left = self._size - self._at
        if left < HEADER_BYTES:
            raise self._unusable(f"ends with {left} bytes that are no batch")
        length = int.from_bytes(data[8:LOG_OVERHEAD_BYTES], "big", signed=True)
        if length + LOG_OVERHEAD_BYTES > left:
            raise self._unusable(f"ends inside the batch at byte {self._at}")
        return length + LOG_OVERHEAD_BYTES

    def _refused(self, data: bytes, position: int, error: WireError) -> Exception:
        head = data[position : position + MAGIC_POSITION + 1]
        # Without a length it is no message at all, but zeros of a preallocated file.
        if len(head) > MAGIC_POSITION and head[MAGIC_POSITION] < MAGIC and any(head[8:12]):
            return self._unusable(
                f"holds the old message format (magic {head[MAGIC_POSITION]}) at byte "
                f"{self._at + position}, which is not archived"
            )
        return CorruptSegment(f"{self._rolled.file}: from byte {self._at}: {error}")

    def _unusable(self, what: str) -> LogDirUnusable:
        return LogDirUnusable(f"{self._rolled.file} {what}")


def _open(path: Path) -> IO[bytes]:
    try:
        return path.open("rb", buffering=0)
    except FileNotFoundError:
        raise SegmentGone from None


def _aborted_txns(rolled: RolledSegment) -> list[AbortedTxn]:
    """The aborted transactions that overlap the wanted offsets.

    An entry stands in the index of the segment that holds its marker, so later segments are looked
    through, until an entry says that everything up to here was decided by then. The marker of
    whatever is below the LSO has been written. A broker deletes segments from the first one on and
    begins with their logs: as long as this one's could be opened after the listing, no later index
    was missing from it. Source: Kafka's collectAbortedTransactions.
    """
    end_offset = rolled.next_base_offset - 1
    found: list[AbortedTxn] = []
    for base_offset in rolled.listing.txn_indexes:
        if base_offset < rolled.base_offset:
            continue
        raw = read_file(rolled.folder, base_offset, TXN_INDEX)
        if raw is None:  # without it aborted records would pass for committed ones
            raise SegmentGone
        # The active segment's may be caught while an entry is being appended.
        for entry in decode_aborted(raw[: len(raw) - len(raw) % ENTRY_BYTES]):
            if entry.first_offset <= end_offset and entry.last_offset >= rolled.position:
                found.append(entry)
            if entry.last_stable_offset > end_offset:
                return found
    return found


def _clipped(aborted: Sequence[AbortedTxn], end_offset: int) -> tuple[AbortedTxn, ...]:
    """As the segment's own index will list them, see `index.transaction_index`."""
    return tuple(
        AbortedTxn(e.first_offset, min(e.last_offset, end_offset), e.producer_id, -1)
        for e in aborted
    )


def _kafka_files(rolled: RolledSegment, segment: GatheredSegment, *, whole: bool) -> KafkaFiles:
    """Those that the broker still has. Positions count from the file's first byte, so a part of
    the file has no indexes; the snapshot is that of its end."""
    base, end = rolled.base_offset, segment.end_offset
    offsets = read_file(rolled.folder, base, OFFSET_INDEX) if whole else None
    times = read_file(rolled.folder, base, TIME_INDEX) if whole else None
    snapshot = read_file(rolled.folder, rolled.next_base_offset, SNAPSHOT)
    faults = (
        "" if offsets is None else offset_index_fault(offsets, base, end, segment.size_bytes),
        "" if times is None else time_index_fault(times, base, end, segment.max_timestamp_ms),
        "" if snapshot is None else snapshot_fault(snapshot),
    )
    for fault in filter(None, faults):
        log.warning(
            "kafka_file_left_out",
            topic=rolled.tip.topic,
            partition=rolled.tip.partition,
            base_offset=base,
            error=fault,
        )
    return KafkaFiles(
        offset_index=None if faults[0] else offsets,
        time_index=None if faults[1] else times,
        producer_snapshot=None if faults[2] else snapshot,
    )


def _place(file: IO[bytes], name: Path, skipped_bytes: int, path: Path) -> int:
    """The open `file` without its first bytes, at `path`; the number of bytes that were copied."""
    if skipped_bytes == 0 and _link(file, name, path):
        return 0
    copied_bytes = 0
    file.seek(skipped_bytes)
    with path.open("wb") as copy:
        while block := file.read(_BLOCK_BYTES):
            copied_bytes += copy.write(block)
    return copied_bytes


def _link(file: IO[bytes], name: Path, path: Path) -> bool:
    """Not across file systems, nor for a user who may only read (fs.protected_hardlinks)."""
    try:
        os.link(name, path)
    except OSError:
        return False
    if os.path.samestat(os.fstat(file.fileno()), path.stat()):
        return True
    path.unlink()  # the broker has put another file there meanwhile
    return False
