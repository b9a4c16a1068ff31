"""The metadata topic's events of one partition in a flat file: a restart reads little again.

    <magic int16><topic-id uuid><partition int32><metadata-topic-offset int64><entries>

All numbers big-endian; entries are those of `records`. `metadata-topic-offset` is the offset of the
metadata topic up to which the file had all events when it was written anew.

Every write ends with a CacheFileCheckpointRecord: the offset up to which the file has all events
now, and the CRC-32C of all bytes of the file up to that checksum. What is behind the last one that
holds does not count. Mostly a crash tore it, and nobody had relied on it, as offsets are
committed only after the files are on the disk; but a disk may also lose what it had. So the file
stays as it is, and counts as damaged, until the events from the last good checkpoint on have been
read again and the file is replaced. One that names another partition has none that is good. Events
may be read twice; that does no harm (`segment_table`).

Blocking: for threads, and for one at a time. Knows no topic and no other file: `metadata_cache`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import structlog
from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.entry_runs import Single, compact, split_entries
from fetchproxy.metadata.json_fields import NewerMetadataVersion
from fetchproxy.metadata.records import (
    MetadataEvent,
    RecordType,
    encode_entry,
    framed,
    record_head,
)
from fetchproxy.model import TopicIdPartition
from protocol.primitives import INT64, UINT32

log = structlog.get_logger(__name__)

MAGIC = 1  # 0 did not name the partition
TEMPORARY_SUFFIX = ".tmp"
HEADER = Struct(">h16siq")
_CHECKPOINT_DATA = INT64.size + UINT32.size
_CHECKPOINT_LEAD = framed(record_head(RecordType.CACHE_FILE_CHECKPOINT) + bytes(_CHECKPOINT_DATA))[
    :-_CHECKPOINT_DATA
]
_CHECKPOINT_BYTES = len(_CHECKPOINT_LEAD) + _CHECKPOINT_DATA

# A file is written anew when what was appended is larger than this and than what was there before.
APPENDED_BYTES_MIN = 16 * 1024


@dataclass(frozen=True, slots=True)
class CachedEntries:
    """What a file holds: the last state of each segment, for `SegmentTable.load`.

    All of the partition's events below `metadata_topic_offset` are in it. `damaged`: something that
    was written is lost, so the events from there on have to be read again, if that is below the
    offset that is read next.
    """

    entries: bytes
    metadata_topic_offset: int
    damaged: bool


class CacheFile:
    """One partition's. Opened for each call only: there may be many thousands of them."""

    __slots__ = ("_appended", "_checksum", "_compacted", "_lost", "_size", "_tip", "path")

    def __init__(self, path: Path, tip: TopicIdPartition) -> None:
        self.path = path
        self._tip = tip
        self._size: int | None = None  # of what counts; None: not loaded
        self._checksum = 0  # of that
        self._lost: bytes | None = None  # of a damaged file, the entries that are left
        self._compacted = 0  # bytes when it was last written anew
        self._appended = 0  # bytes since then

    def load(self) -> CachedEntries:
        """What the file holds; where there is none, nothing, from offset 0 on. Changes no file.

        Raises OSError; NewerMetadataVersion where a newer fetchproxy has written it;
        CorruptSegment where its checksums hold and it still cannot be understood.
        """
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            self._remember(b"", 0, None)
            return CachedEntries(b"", 0, damaged=False)
        end, offset = _last_checkpoint(raw)
        if end and not self._is_own(raw):
            end = offset = 0
        damaged = end < len(raw) or not raw
        if damaged:
            self._report(end, len(raw))
        entries = self._understood(raw[:end]) if end else b""
        self._remember(raw[:end], len(entries), entries if damaged else None)
        return CachedEntries(entries, offset, damaged)

    def append(self, events: Sequence[MetadataEvent], metadata_topic_offset: int) -> None:
        """Add events that the table took; the file has then all below `metadata_topic_offset`.

        A damaged one is replaced. Raises OSError, as when the disk is full: nothing of it counts
        then, and it may be called again. Raises ValueError where the file was not loaded.
        """
        size = self._loaded_size()
        entries = b"".join([encode_entry(event) for event in events])
        if self._lost is not None:
            entries = compact(self._lost + entries, self._tip, str(self.path))
            self._write_anew(entries, metadata_topic_offset, durable=True)
        elif size == 0:
            entries = compact(entries, self._tip, str(self.path))
            self._write_anew(entries, metadata_topic_offset, durable=False)
        else:
            checksum = crc32c(entries, self._checksum)
            checkpoint = _checkpoint(metadata_topic_offset, checksum)
            with self.path.open("r+b", buffering=0) as file:
                file.truncate(size)  # an append that failed may have left something
                file.seek(size)
                write_all(file.fileno(), entries + checkpoint)
            self._size = size + len(entries) + len(checkpoint)
            self._checksum = crc32c(checkpoint, checksum)
            self._appended += len(entries) + len(checkpoint)

    @property
    def wants_compaction(self) -> bool:
        """More was appended than there was when it was written anew."""
        return self._lost is None and self._appended > max(APPENDED_BYTES_MIN, self._compacted)

    def compact(self) -> None:
        """Write it anew with the last state of each segment only; a crash leaves old or new.

        Raises OSError; CorruptSegment where the disk has lost something: the file stays damaged.
        ValueError as `append`.
        """
        size = self._loaded_size()
        if size == 0 or self._lost is not None:
            return  # nothing to compact; a damaged one is for `append` to replace
        good = self.path.read_bytes()[:size]
        end, offset = _last_checkpoint(good)
        if end != size:
            raise CorruptSegment(f"{self.path}: {size} bytes were written, {end} are good")
        self._write_anew(self._understood(good), offset, durable=True)

    def sync(self) -> None:
        """On the disk when this returns, also its name. Raises OSError."""
        for path in (self.path, self.path.parent, self.path.parent.parent):
            sync_path(path)

    def _loaded_size(self) -> int:
        if self._size is None:
            raise ValueError(f"{self.path}: to be loaded first")
        return self._size

    def _remember(self, good: bytes, entries_bytes: int, lost: bytes | None) -> None:
        self._size, self._checksum, self._lost = len(good), crc32c(good), lost
        self._compacted = HEADER.size + entries_bytes + _CHECKPOINT_BYTES if good else 0
        self._appended = len(good) - self._compacted

    def _is_own(self, good: bytes) -> bool:
        """False: somebody has put another partition's file here, or an older one."""
        magic, topic_id, partition, _ = HEADER.unpack_from(good)
        if magic > MAGIC:
            raise NewerMetadataVersion(f"{self.path}: magic {magic}, known are those up to {MAGIC}")
        return (magic, topic_id, partition) == (
            MAGIC,
            self._tip.topic_id.bytes,
            self._tip.partition,
        )

    def _understood(self, good: bytes) -> bytes:
        """The entries of a file whose checksum holds, compacted where something was appended."""
        entries = good[HEADER.size : -_CHECKPOINT_BYTES]
        # Each append ends with a checkpoint. What only looks like one costs a little time.
        appended = _CHECKPOINT_LEAD in entries
        return compact(entries, self._tip, str(self.path)) if appended else entries

    def _write_anew(self, entries: bytes, metadata_topic_offset: int, *, durable: bool) -> None:
        header = HEADER.pack(
            MAGIC, self._tip.topic_id.bytes, self._tip.partition, metadata_topic_offset
        )
        content = header + entries
        content += _checkpoint(metadata_topic_offset, crc32c(content))
        self.path.parent.mkdir(exist_ok=True)
        # One that replaces nothing is made durable by `sync`, before anybody relies on it.
        replace_file(self.path, content, durable=durable)
        self._remember(content, len(entries), None)

    def _report(self, end: int, size: int) -> None:
        log.warning(
            "metadata_cache_damaged",
            topic=self._tip.topic,
            partition=self._tip.partition,
            path=str(self.path),
            good_bytes=end,
            size_bytes=size,
        )


def _last_checkpoint(raw: bytes) -> tuple[int, int]:
    """(where the last one that holds ends, its offset); 0 where none does."""
    at = len(raw) - _CHECKPOINT_BYTES
    offset = _holds(raw, at, crc32c(memoryview(raw)[:at])) if at >= HEADER.size else None
    if offset is not None:
        return len(raw), offset
    end = last_offset = checksum = seen = 0
    for at in _checkpoints(raw):
        checksum = crc32c(memoryview(raw)[seen:at], checksum)
        offset = _holds(raw, at, checksum)
        if offset is None:
            break  # some byte before it is not what was written: no later one can hold either
        seen, end, last_offset = at, at + _CHECKPOINT_BYTES, offset
    return end, last_offset


def _checkpoint(metadata_topic_offset: int, checksum: int) -> bytes:
    """An entry behind bytes of that checksum."""
    said = _CHECKPOINT_LEAD + INT64.pack(metadata_topic_offset)
    return said + UINT32.pack(crc32c(said, checksum))


def _holds(raw: bytes, at: int, checksum: int) -> int | None:
    """The offset of the checkpoint at `at`, if there is one behind bytes of that checksum."""
    offset: int
    offset_at = at + len(_CHECKPOINT_LEAD)
    if at + _CHECKPOINT_BYTES > len(raw):
        return None
    (offset,) = INT64.unpack_from(raw, offset_at)
    whole = raw[at : at + _CHECKPOINT_BYTES] == _checkpoint(offset, checksum)
    return offset if whole else None


def _checkpoints(raw: bytes) -> list[int]:
    """Where there are some, up to where entries cannot be told from each other any more."""
    found = []
    try:
        for part in split_entries(raw[HEADER.size :], "a torn file"):
            if isinstance(part, Single) and part.kind == RecordType.CACHE_FILE_CHECKPOINT:
                found.append(HEADER.size + part.start)
    except CorruptSegment:
        pass  # that is the place
    return found


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Old or new content, whatever happens; on the disk when this returns if `durable`."""
    temporary = path.with_suffix(TEMPORARY_SUFFIX)
    with temporary.open("wb", buffering=0) as file:
        write_all(file.fileno(), content)
        if durable:
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_path(path.parent)


def sync_path(path: Path) -> None:
    """A file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
