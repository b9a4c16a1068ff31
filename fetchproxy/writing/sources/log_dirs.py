"""The `log-dirs` source: each rolled segment file of a broker on this host is one segment.

The layout of a broker's log directory. These functions read names and small files, and write
nothing there.

    <log dir>/meta.properties                        cluster.id, node.id
    <log dir>/<topic>-<partition>/partition.metadata      topic id
                                  leader-epoch-checkpoint
                                  <20-digit base offset>.log .index .timeindex .txnindex .snapshot

The number of a snapshot is the offset at which it was taken; the number of the other files is the
first offset of their segment. Folders and files that the broker is about to remove, or still fills,
have other names (`-delete`, `-stray`, `-future`; `.deleted`, `.cleaned`, `.swap`). All functions
block. Source: Kafka's UnifiedLog, LogFileUtils, PartitionMetadataFile, MetaProperties.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO
from uuid import UUID

import structlog
from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.primitives import Buffer
from fetchproxy_protocol.record_batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    BatchHeader,
    check_crc,
    control_type,
    walk,
)

from fetchproxy.errors import (
    ClusterError,
    ConfigError,
    CorruptSegment,
    LogDamaged,
    LogDirUnusable,
)
from fetchproxy.model import AbortedTxn, EpochStart, IsolationLevel, LogOffsets, TopicIdPartition
from fetchproxy.segments import side_files
from fetchproxy.segments.check import clip_epochs
from fetchproxy.segments.contents import AccumulatedSegment, KafkaFiles, SegmentSummary
from fetchproxy.segments.leader_epochs import uncounted
from fetchproxy.segments.log_end_check import agrees
from fetchproxy.segments.object_keys import parse_uuid
from fetchproxy.segments.old_formats import converted, has_old_format, log_damage
from fetchproxy.segments.transaction_check import TxnCheck
from fetchproxy.storage.ciphers import stream_at
from fetchproxy.writing.copy_pace import accumulate_until
from fetchproxy.writing.sources.segment_accumulator import LogGap, SegmentAccumulator

LOG = "log"
_OFFSET_INDEX = "index"
_TIME_INDEX = "timeindex"
TXN_INDEX = "txnindex"
SNAPSHOT = "snapshot"

_NUMBERED = re.compile(r"([0-9]{20})\.(log|txnindex)", re.ASCII)
_BLOCK_BYTES = 4 * 1024 * 1024

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LogDir:
    path: Path
    cluster_id: str
    node_id: int


def open_log_dir(path: Path) -> LogDir:
    """Raises ConfigError if `path` is no broker's log directory or cannot be read."""
    file = path / "meta.properties"
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        os.scandir(path).close()
    except OSError as error:
        raise ConfigError(
            f"archive.log_dirs: {path} is not a readable log directory of a broker: "
            f"{error.strerror}: {error.filename}"
        ) from error
    folders = dict(
        (name.strip(), value.strip())
        for name, _, value in (line.partition("=") for line in lines if not line.startswith("#"))
    )
    node_id = folders.get("node.id", folders.get("broker.id", ""))  # `broker.id` before KRaft
    if "cluster.id" not in folders or not re.fullmatch(r"[0-9]{1,10}", node_id, re.ASCII):
        raise ConfigError(f"archive.log_dirs: {file} does not have cluster.id and node.id")
    # Java escapes = and : when it writes properties.
    return LogDir(path, folders["cluster.id"].replace("\\", ""), int(node_id))


def log_dir_of(log_dirs: Iterable[LogDir], tp: TopicIdPartition) -> Path:
    """Raises LogDirUnusable if no directory holds a partition of this topic id."""
    wrong = None
    for log_dir in log_dirs:
        folder = log_dir.path / f"{tp.topic}-{tp.partition}"
        try:
            topic_id = _topic_id((folder / "partition.metadata").read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except UnicodeDecodeError:
            topic_id = None
        if topic_id == tp.topic_id:
            return folder
        wrong = f"{folder} belongs to another topic of this name"
    raise LogDirUnusable(
        wrong or f"no folder {tp} in archive.log_dirs; does it name all of the broker's log.dirs?"
    )


def list_partition(folder: Path) -> tuple[list[int], list[int]]:
    """(base offsets of all segments, of which the last is active; of transaction indexes), rising.
    Files that appear or disappear during the listing may be missing.
    """
    offsets_by_suffix: dict[str, list[int]] = {LOG: [], TXN_INDEX: []}
    for name in os.listdir(folder):
        match = _NUMBERED.fullmatch(name)
        if match is not None:
            offsets_by_suffix[match.group(2)].append(int(match.group(1)))
    return sorted(offsets_by_suffix[LOG]), sorted(offsets_by_suffix[TXN_INDEX])


def file_of(folder: Path, offset: int, suffix: str) -> Path:
    return folder / f"{offset:020d}.{suffix}"


def read_file(folder: Path, offset: int, suffix: str) -> bytes | None:
    """None: there is no such file."""
    try:
        return file_of(folder, offset, suffix).read_bytes()
    except FileNotFoundError:
        return None


def read_epochs(folder: Path) -> tuple[EpochStart, ...] | None:
    """The broker's leader epochs. None: no checkpoint. Raises LogDirUnusable if it is broken."""
    path = folder / "leader-epoch-checkpoint"
    try:
        return side_files.decode_epochs(path.read_bytes())
    except FileNotFoundError:
        return None
    except CorruptSegment as error:
        raise LogDirUnusable(f"{path}: {error}") from error


def _topic_id(content: str) -> UUID | None:
    for line in content.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "topic_id":
            return parse_uuid(value.strip())
    return None


# What follows reads a broker's rolled segment file once from end to end, checks it, and keeps it
# for a copy. The broker may delete, rename or truncate its files at any time, so everything is read
# through one open file. The later copy uses a hard link to that file, or a copy of it if no link
# can be made or only a part is wanted. All functions block.


class Stopped(Exception):
    """`go_on` returned False."""


class EndsEarly(LogDirUnusable):
    """The file has no batch from `offset` up to the next segment: compaction may have taken them,
    or the file was cut. `is_empty`: nor one from the position on.
    """

    def __init__(self, message: str, offset: int, *, is_empty: bool) -> None:
        super().__init__(message)
        self.offset = offset
        self.is_empty = is_empty


class SegmentGone(Exception):
    """The broker has deleted files of the segment since the listing: list them again."""


@dataclass(frozen=True, slots=True)
class RolledSegment:
    """Offsets `base_offset` up to but not including `next_base_offset`, all below the LSO.

    `position`: the first wanted offset.
    `txn_indexes`: the partition's, by base offset, listed after the LSO was asked for.
    `leader_epoch`: the epoch in which the files' broker leads. -1: not known.
    `hole_from`: the leader has no record from here up to the next segment. None: not known.
    """

    tp: TopicIdPartition
    folder: Path
    txn_indexes: Sequence[int]
    base_offset: int
    next_base_offset: int
    position: int
    leader_epoch: int = -1
    hole_from: int | None = None

    @property
    def file(self) -> Path:
        return file_of(self.folder, self.base_offset, LOG)


def rolled_at(segments: Sequence[int], position: int) -> tuple[int, int] | None:
    """(base offset, the next segment's) of the inactive segment that holds `position`. None: there
    is none. `segments`: base offsets, rising; the last one is active. Pure.
    """
    for base_offset, next_base_offset in pairwise(segments):
        if base_offset <= position < next_base_offset:
            return base_offset, next_base_offset
    return None


def take_segment(
    rolled: RolledSegment, path: Path, go_on: Callable[[], bool], stream_key: bytes | None = None
) -> tuple[AccumulatedSegment, SegmentSummary]:
    """Check the segment's file and store it at `path`, from the batch with the position on. A copy
    there is encrypted with `stream_key` and settled; a link is the broker's own file.

    Raises SegmentGone, CorruptSegment, LogDamaged if the first wanted message of an old format
    cannot be read; LogDirUnusable for data that are not archived
    or that a later look may find in order; OSError; Stopped as soon as `go_on` returns False. After
    an error nothing is left at `path`.
    """
    try:
        log_file = rolled.file.open("rb", buffering=0)
    except FileNotFoundError:
        raise SegmentGone from None
    with log_file as file:
        reading = _Reading(rolled, file, _aborted_txns(rolled))
        while reading.step():
            if not go_on():
                raise Stopped
        reading.finish()
        try:
            linked = reading.is_whole and _link(file, rolled.file, path)
            segment = reading.summary.close(path, settled=not linked)
            if not linked:
                segment = _copy_blocks(reading.blocks(), rolled.file, segment, stream_key)
            files = KafkaFiles()
            if not reading.epochs_count:
                segment = replace(segment, leader_epochs=uncounted(segment.start_offset))
            if reading.damage is None:
                files = _kafka_files(rolled, segment, is_whole=reading.is_whole)
            return replace(segment, kafka_files=files), reading.summary
        except BaseException:
            path.unlink(missing_ok=True)
            raise


class _Reading:
    """Reads the file from its first byte to its last, block by block. Messages of the formats v0
    and v1 become batches (`old_formats`). `damage`: such a message cannot be read, so the segment
    ends before it. `epochs_count`: False if the epochs of its batches are not in the broker's
    checkpoint.
    """

    def __init__(
        self, rolled: RolledSegment, file: IO[bytes], aborted: Sequence[AbortedTxn]
    ) -> None:
        self._rolled = rolled
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._at = 0
        self._block_bytes = _BLOCK_BYTES
        self._next_offset = rolled.base_offset
        self._converts = False  # from the first message of an old format on
        self._pieces: list[tuple[int, int, bool]] = []  # (byte, bytes, converted) of each step
        self._skipped_bytes = 0  # of batches that end below the wanted position
        self.damage: LogDamaged | None = None
        self.epochs_count = True
        self.summary = SegmentSummary(rolled.tp, rolled.position)
        self.summary.report((entry.producer_id, entry.first_offset) for entry in aborted)
        end_offset = rolled.next_base_offset - 1
        self._txns = TxnCheck()
        listed = side_files.clip_aborted(aborted, end_offset)
        self._txns.begin(rolled.tp, listed, "", (rolled.position, end_offset))

    @property
    def is_whole(self) -> bool:
        """Whether the segment is the file as it is."""
        return self._skipped_bytes == 0 and not self._converts

    def step(self) -> bool:
        """Read the next block. False: the file has been read, as far as it can be."""
        if self._at == self._size or self.damage is not None:
            return False
        block_bytes = min(self._block_bytes, self._size - self._at)
        data = self._read(self._at, block_bytes)
        if len(data) < block_bytes:
            raise self._unusable(f"has {self._at + len(data)} bytes now; it had {self._size}")
        converts = self._converts
        if converts:
            records, end, fault = converted(memoryview(data), self._rolled.position)
            self._add(records)
            if fault is not None:
                self.damage = log_damage(self._rolled.tp, self.summary.position, fault)
        else:
            end = self._add(data)
            self._converts = has_old_format(data, end)
        self._pieces.append((self._at, end, converts))
        self._at += end
        self._block_bytes = _BLOCK_BYTES if end else self._batch_bytes(data)
        return True

    def blocks(self) -> Iterator[Buffer]:
        """The bytes of the segment, read once more."""
        skip_bytes = self._skipped_bytes
        for position, size_bytes, converts in self._pieces:
            block = memoryview(self._read(position, size_bytes))
            if converts:
                block = memoryview(converted(block, self._rolled.position).records)
            yield block[skip_bytes:]
            skip_bytes = max(0, skip_bytes - len(block))

    def _read(self, position: int, size_bytes: int) -> bytes:
        self._file.seek(position)
        return self._file.read(size_bytes)

    def _add(self, records: bytes) -> int:
        """Take the wanted batches of `records`; return where the last whole one ends."""
        end, taken_from = 0, None
        try:
            for header in walk(records):
                self._check(records, header)
                end = header.end
                if header.last_offset < self._rolled.position:
                    self._skipped_bytes += header.size
                    continue
                if taken_from is None:
                    taken_from = header.position
                self.summary.add(records, header, self._rolled.leader_epoch)
                kind = control_type(records, header) if header.is_control else None
                self._txns.batch(header, kind)
        except WireError as error:
            # Before its magic nobody knows what it is.
            magic_known = len(records) - end > MAGIC_POSITION
            if self._converts or (magic_known and not has_old_format(records, end)):
                raise CorruptSegment(
                    f"{self._rolled.file}: from byte {self._at}: {error}"
                ) from None
        if taken_from is not None:
            self.summary.add_bytes(memoryview(records)[taken_from:end])
        return end

    def finish(self) -> None:
        rolled = self._rolled
        if self._converts:
            log.info("old_message_format_converted", **rolled.tp.logged, offset=rolled.position)
        if self.damage is not None:  # it begins the next segment, if nothing mends it
            if self.summary.size_bytes == 0:
                raise self.damage
            return
        if self._next_offset not in (rolled.next_base_offset, rolled.hole_from):
            message = (
                f"{rolled.file} ends before offset {self._next_offset}, the next segment begins at "
                f"{rolled.next_base_offset}"
            )
            raise EndsEarly(message, self._next_offset, is_empty=self.summary.size_bytes == 0)
        for fault in self._txns.end():
            raise CorruptSegment(f"{rolled.file}: its transaction index does not fit: {fault.what}")
        epochs_file = read_epochs(rolled.folder)
        leader_epochs = self.summary.leader_epochs
        if epochs_file is not None and leader_epochs:
            expected_epochs = clip_epochs(epochs_file, rolled.position, self.summary.position - 1)
            if not agrees(expected_epochs, leader_epochs):
                log.info(
                    "leader_epochs_left_out",
                    **rolled.tp.logged,
                    file=str(rolled.file),
                    leader_epochs=str(leader_epochs),
                    checkpoint=str(expected_epochs),
                )
                self.epochs_count = False

    def _check(self, data: bytes, header: BatchHeader) -> None:
        position = self._at + (0 if self._converts else header.position)
        if not check_crc(data, header):
            raise CorruptSegment(
                f"{self._rolled.file}: batch at offset {header.base_offset}, byte {position}, "
                "fails its CRC"
            )
        if header.base_offset < self._next_offset:
            raise CorruptSegment(
                f"{self._rolled.file}: batch at byte {position} begins at offset "
                f"{header.base_offset}, expected {self._next_offset}"
            )
        self._next_offset = header.last_offset + 1

    def _batch_bytes(self, data: bytes) -> int:
        """The size of the batch that does not fit into `data`."""
        bytes_left = self._size - self._at
        if bytes_left < (MAGIC_POSITION + 1 if self._converts else HEADER_BYTES):
            raise self._unusable(f"ends with {bytes_left} bytes that are not a batch")
        length = int.from_bytes(data[8:LOG_OVERHEAD_BYTES], "big", signed=True)
        if length + LOG_OVERHEAD_BYTES > bytes_left:
            raise self._unusable(f"ends inside the batch at byte {self._at}")
        return max(length + LOG_OVERHEAD_BYTES, MAGIC_POSITION + 1)

    def _unusable(self, message: str) -> LogDirUnusable:
        return LogDirUnusable(f"{self._rolled.file} {message}")


def _aborted_txns(rolled: RolledSegment) -> list[AbortedTxn]:
    """The aborted transactions that overlap the wanted offsets (Kafka's
    collectAbortedTransactions).

    An entry is in the index of the segment that holds the transaction's marker, so this also reads
    later indexes. It stops at an entry by which all transactions up to this segment's end were
    decided. A broker deletes its oldest segments first, and of each the log first. This segment's
    log could be opened after the listing, so the listing has every later index.
    """
    end_offset = rolled.next_base_offset - 1
    aborted_txns: list[AbortedTxn] = []
    for base_offset in rolled.txn_indexes:
        if base_offset < rolled.base_offset:
            continue
        raw = read_file(rolled.folder, base_offset, TXN_INDEX)
        if raw is None:  # otherwise aborted records would pass for committed ones
            raise SegmentGone
        # The broker may be appending an entry to the active segment's index.
        for entry in side_files.decode_aborted(raw[: len(raw) - len(raw) % side_files.ENTRY_BYTES]):
            if entry.first_offset <= end_offset and entry.last_offset >= rolled.position:
                aborted_txns.append(entry)
            if entry.last_stable_offset > end_offset:
                return aborted_txns
    return aborted_txns


def _kafka_files(
    rolled: RolledSegment, segment: AccumulatedSegment, *, is_whole: bool
) -> KafkaFiles:
    """The broker's files that still exist. Positions count from the file's first byte and offsets
    from its base offset, so a part of the file gets no indexes, nor does a segment that begins
    inside the first batch. The snapshot is from the segment's end.
    """
    base, end = rolled.base_offset, segment.end_offset
    size_bytes, newest_ms = segment.size_bytes, segment.max_timestamp_ms

    def sound_file(offset: int, suffix: str, fault_of: Callable[[bytes], str]) -> bytes | None:
        raw = read_file(rolled.folder, offset, suffix)
        if raw is None or not (fault := fault_of(raw)):
            return raw
        log.warning("kafka_file_left_out", **rolled.tp.logged, base_offset=base, error=fault)
        return None

    snapshot = sound_file(rolled.next_base_offset, SNAPSHOT, side_files.snapshot_fault)
    if not is_whole or segment.start_offset != base:
        return KafkaFiles(producer_snapshot=snapshot)
    offset_fault, time_fault = side_files.offset_index_fault, side_files.time_index_fault
    offsets = sound_file(base, _OFFSET_INDEX, lambda raw: offset_fault(raw, base, end, size_bytes))
    times = sound_file(base, _TIME_INDEX, lambda raw: time_fault(raw, base, end, newest_ms))
    return KafkaFiles(offsets, times, snapshot)


def _copy_blocks(
    blocks: Iterable[Buffer], source: Path, segment: AccumulatedSegment, stream_key: bytes | None
) -> AccumulatedSegment:
    """Copy the `blocks` of the file `source` to `segment.log`."""
    stream = None if stream_key is None else stream_at(stream_key, 0)
    crc = copied_crc = 0
    with segment.log.open("wb") as copy:
        for block in blocks:
            crc = crc32c(block, crc)
            packed_block = block if stream is None else stream.update(block)
            copied_crc = crc32c(packed_block, copied_crc)
            copy.write(packed_block)
    if crc != segment.log_crc:
        raise CorruptSegment(f"{segment.tp}: {source} has changed while it was copied")
    return replace(segment, log_crc=copied_crc, stream_key=stream_key)


def _link(file: IO[bytes], name: Path, path: Path) -> bool:
    """False across file systems, or for a user with read access only (fs.protected_hardlinks)."""
    try:
        os.link(name, path)
    except OSError:
        return False
    if os.path.samestat(os.fstat(file.fileno()), path.stat()):
        return True
    path.unlink()  # the broker has replaced the file meanwhile
    return False


# A sidecar beside each broker copies the partitions that this broker leads. It asks the leader for
# the log start and the LSO, and never guesses them from files. Kafka decides where a segment ends:
# `archive.segment_bytes_max` and `segment_age_max_ms` do not count.


@dataclass(eq=False, repr=False, kw_only=True)
class LogDirsAccumulator(SegmentAccumulator):
    """Takes each segment from a rolled segment file of a broker on this host. `log_dirs`: of one or
    several brokers of the cluster.
    """

    log_dirs: Sequence[LogDir]

    async def accumulate(
        self, position: int, *, close_short: bool
    ) -> AccumulatedSegment | LogGap | None:
        """None also if another host's broker leads the partition."""
        await self.discard()
        # Wait before asking the leader, so that its response is fresh when the segment is taken.
        if not await self.pace.turn(None if close_short else accumulate_until()):
            return None
        log_offsets = await self._log_offsets()
        gap = self._gap(position, log_offsets)
        if gap is not None:
            return gap
        # The request for the log offsets has found the current leader.
        log_dirs, leader_epoch = await self._leader_log_dirs()
        if not log_dirs:
            return None
        offset = position
        while rolled := await asyncio.to_thread(self._find_rolled, log_dirs, offset, log_offsets):
            rolled = replace(rolled, position=position, leader_epoch=leader_epoch)
            try:
                await self._take(rolled)
                break
            except EndsEarly as error:
                await self._check_hole(rolled, error)
                if not error.is_empty:
                    await self._take(replace(rolled, hole_from=error.offset))
                    break
                offset = rolled.next_base_offset
        return self.closed

    async def _check_hole(self, rolled: RolledSegment, error: EndsEarly) -> None:
        """The leader knows whether the missing records were compacted away. Raises `error` if it
        has them, or does not say.
        """
        offset = max(error.offset, rolled.position)
        try:
            fetched = await self.cluster.fetch(
                self.tp,
                offset,
                bytes_max=1,  # the first batch comes whole
                wait_max_ms=0,
                isolation=IsolationLevel.READ_UNCOMMITTED,
            )
            following = next(walk(fetched.records), None)
        except WireError:
            raise error from None
        except ClusterError as refusal:
            message = f"{error}; the leader, asked for what lies between: {refusal}"
            raise LogDirUnusable(message) from refusal
        if following is None or following.base_offset < rolled.next_base_offset:
            raise error

    async def discard(self) -> None:
        segment, self.closed, self.accumulated = self.closed, None, None
        if segment is not None:
            self.spool.size_bytes -= _copied_bytes(segment)
            await asyncio.to_thread(segment.log.unlink, missing_ok=True)

    async def _leader_log_dirs(self) -> tuple[list[LogDir], int]:
        """The log directories of the partition's leader, none if it is on another host; its epoch.
        Raises ConfigError if a directory belongs to another cluster, ClusterError.
        """
        cluster_id = await self.cluster.cluster_id()
        for log_dir in self.log_dirs:
            if log_dir.cluster_id != cluster_id:
                raise ConfigError(
                    f"archive.log_dirs: {log_dir.path} belongs to cluster {log_dir.cluster_id}, "
                    f"the brokers are of cluster {cluster_id}"
                )
        topic = await self.cluster.topic_by_id(self.tp.topic_id)
        leader, leader_epoch = topic.leaders.get(self.tp.partition, (-1, -1))
        return [one for one in self.log_dirs if one.node_id == leader], leader_epoch

    def _find_rolled(
        self, log_dirs: Sequence[LogDir], position: int, log_offsets: LogOffsets
    ) -> RolledSegment | None:
        """The inactive segment that holds `position`, if it can be copied already."""
        topic = self.cluster.cached_topic_by_id(self.tp.topic_id)
        id_there = self.tp.topic_id if topic is None else topic.id_at_brokers
        folder = log_dir_of(log_dirs, self.tp._replace(topic_id=id_there))
        segments, txn_indexes = list_partition(folder)
        if segments and position < segments[0]:
            message = f"{folder} begins at {segments[0]}, above {position}"
            raise LogDirUnusable(
                f"{message}: what is below is in the broker's own tier, or was deleted just now; "
                "run an archiver without archive.log_dirs once"
            )
        rolled = rolled_at(segments, position)
        if rolled is None or rolled[1] > log_offsets.last_stable_offset:
            return None
        return RolledSegment(self.tp, folder, txn_indexes, *rolled, position)

    async def _take(self, rolled: RolledSegment) -> None:
        """Takes nothing if the broker has just deleted it: the next look finds a new log start."""
        stop = threading.Event()
        path = self.spool.new_file()
        try:
            segment, summary = await asyncio.to_thread(
                take_segment, rolled, path, lambda: not stop.is_set(), self.spool.new_key()
            )
        except SegmentGone:
            return
        finally:
            stop.set()  # a cancelled wait does not end the thread
        self.closed, self.accumulated = segment, summary
        self.spool.size_bytes += _copied_bytes(segment)
        self.pace.spend(segment.size_bytes)
        log.debug(
            "segment_taken",
            **self.tp.logged,
            base_offset=segment.start_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            copied_bytes=_copied_bytes(segment),
        )


def _copied_bytes(segment: AccumulatedSegment) -> int:
    """Bytes that its file takes on the disk in addition to the broker's own."""
    return segment.size_bytes if segment.log_settled else 0
