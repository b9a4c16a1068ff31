"""The metadata topic's events on disk, in one flat file a partition, so that a restart reads
little of the topic.

The file of one partition:

    <magic int16><topic-id uuid><partition int32><metadata-topic-offset int64><entries>

All numbers are big-endian; entries are those of `records`. `metadata-topic-offset` is the offset of
the metadata topic up to which the file had all events when it was rewritten.

Every write ends with a CacheFileCheckpointRecord: the offset up to which the file has all events
now, and the CRC-32C of all bytes of the file before that checksum. Bytes after the last valid
checkpoint do not count: a crash tore them before they were used, or the disk has lost something.
Then the file stays damaged until the events after that checkpoint were read from the topic again
and the file is replaced.
Events may be read twice; that does no harm (`catalogue`).

Blocking: call from threads, one at a time.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import IO, Self
from uuid import UUID

import structlog
from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.primitives import INT64, UINT32

from fetchproxy.errors import CorruptSegment, StorageUnavailable
from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.model import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
    is_topic_name,
)
from fetchproxy.runtime.folders import take_folder
from fetchproxy.segments.json_fields import NewerMetadataVersion
from fetchproxy.segments.object_keys import parse_uuid, uuid_text
from fetchproxy.segments.records import (
    MetadataEvent,
    RecordType,
    compact,
    encode_cache_entry,
    framed,
    record_head,
    walk_entries,
)
from fetchproxy.storage.stores.filesystem import sync, write_all

log = structlog.get_logger(__name__)

_MAGIC = 1  # files with 0 did not name the partition
TEMPORARY_SUFFIX = ".tmp"
HEADER = Struct(">h16siq")
_CHECKPOINT_DATA = INT64.size + UINT32.size
_CHECKPOINT_LEAD = framed(record_head(RecordType.CACHE_FILE_CHECKPOINT) + bytes(_CHECKPOINT_DATA))[
    :-_CHECKPOINT_DATA
]
_CHECKPOINT_BYTES = len(_CHECKPOINT_LEAD) + _CHECKPOINT_DATA

# A file is rewritten when its appended part exceeds this size and the size before.
APPENDED_BYTES_MIN = 16 * 1024
SUFFIX = ".remote-log-metadata"
COMMITTED = "committed-offsets"
_VERSION = "1"
_UUID_CHARS = 22
_PARTITION = re.compile(r"(0|[1-9][0-9]{0,9})-", re.ASCII)
FLUSH_PAUSE_S = 1.0  # after a crash the events since the last flush are read again


@dataclass(frozen=True, slots=True)
class CachedEntries:
    """A file's content, for `PartitionTable.load`: all of the partition's events below
    `metadata_topic_offset`. `damaged`: the events from there on must be read again.
    """

    entries: bytes
    metadata_topic_offset: int
    damaged: bool


class CacheFile:
    """The file of one partition. Open only during a call: there may be many thousands of files."""

    __slots__ = ("_checksum", "_compacted", "_salvaged", "_size", "_tp", "path")

    def __init__(self, path: Path, tp: TopicIdPartition) -> None:
        self.path = path
        self._tp = tp
        self._size: int | None = None  # of the valid part; None: not loaded
        self._checksum = 0  # of that part
        self._salvaged: bytes | None = None  # the valid entries of a damaged file
        self._compacted = 0  # bytes after the last rewrite

    def load(self) -> CachedEntries:
        """Changes no file. Raises OSError; NewerMetadataVersion if a newer fetchproxy wrote the
        file; CorruptSegment if the checksums hold but the file cannot be understood.
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
            log.warning(
                "metadata_cache_damaged",
                topic=self._tp.topic,
                partition=self._tp.partition,
                path=str(self.path),
                good_bytes=end,
                size_bytes=len(raw),
            )
        entries = self._understood(raw[:end]) if end else b""
        self._remember(raw[:end], len(entries), entries if damaged else None)
        return CachedEntries(entries, offset, damaged)

    def append(self, events: Sequence[MetadataEvent], metadata_topic_offset: int) -> None:
        """Append events that the table took: the file then has all below `metadata_topic_offset`.

        A damaged file is replaced. Raises OSError: then none of the events count, and the call may
        be repeated. Raises ValueError if the file was not loaded.
        """
        size, salvaged = self._loaded_size(), self._salvaged
        entries = b"".join([encode_cache_entry(event) for event in events])
        if size == 0 or salvaged is not None:
            entries = compact((salvaged or b"") + entries, self._tp, str(self.path))
            # A first file is made durable by `sync`, before anything relies on it.
            self._write_anew(entries, metadata_topic_offset, durable=salvaged is not None)
        else:
            checksum = crc32c(entries, self._checksum)
            checkpoint = _checkpoint(metadata_topic_offset, checksum)
            with self.path.open("r+b", buffering=0) as file:
                file.truncate(size)  # a failed append may have left bytes
                file.seek(size)
                write_all(file.fileno(), entries + checkpoint)
            self._size = size + len(entries) + len(checkpoint)
            self._checksum = crc32c(checkpoint, checksum)

    @property
    def wants_compaction(self) -> bool:
        """The appended part is larger than the part that was there after the last rewrite."""
        appended = self._loaded_size() - self._compacted
        return self._salvaged is None and appended > max(APPENDED_BYTES_MIN, self._compacted)

    def compact(self) -> None:
        """Rewrite the file with only the last state of each segment; a crash leaves old or new.

        Raises OSError; CorruptSegment if the disk has lost something: the file stays damaged.
        ValueError as `append`.
        """
        size = self._loaded_size()
        if size == 0 or self._salvaged is not None:
            return  # nothing to compact; `append` replaces a damaged file
        good = self.path.read_bytes()[:size]
        end, offset = _last_checkpoint(good)
        if end != size:
            raise CorruptSegment(f"{self.path}: {size} bytes were written, {end} are good")
        self._write_anew(self._understood(good), offset, durable=True)

    def sync(self) -> None:
        """Make the file and its name durable. Raises OSError."""
        for path in (self.path, self.path.parent, self.path.parent.parent):
            sync(path)

    def _loaded_size(self) -> int:
        if self._size is None:
            raise ValueError(f"{self.path}: to be loaded first")
        return self._size

    def _remember(self, good: bytes, entries_bytes: int, salvaged: bytes | None) -> None:
        self._size, self._checksum, self._salvaged = len(good), crc32c(good), salvaged
        self._compacted = HEADER.size + entries_bytes + _CHECKPOINT_BYTES if good else 0

    def _is_own(self, good: bytes) -> bool:
        """False: the file belongs to another partition, or has an older format."""
        magic, topic_id, partition, _ = HEADER.unpack_from(good)
        if magic > _MAGIC:
            raise NewerMetadataVersion(
                f"{self.path}: magic {magic}, known are those up to {_MAGIC}"
            )
        expected = _MAGIC, self._tp.topic_id.bytes, self._tp.partition
        return (magic, topic_id, partition) == expected

    def _understood(self, good: bytes) -> bytes:
        """The entries of a file whose checksum holds, compacted if events were appended."""
        entries = good[HEADER.size : -_CHECKPOINT_BYTES]
        # Each append ends with a checkpoint. Bytes that only look like one cost a little time.
        appended = _CHECKPOINT_LEAD in entries
        return compact(entries, self._tp, str(self.path)) if appended else entries

    def _write_anew(self, entries: bytes, metadata_topic_offset: int, *, durable: bool) -> None:
        header = HEADER.pack(
            _MAGIC, self._tp.topic_id.bytes, self._tp.partition, metadata_topic_offset
        )
        content = header + entries
        content += _checkpoint(metadata_topic_offset, crc32c(content))
        self.path.parent.mkdir(exist_ok=True)
        replace_file(self.path, content, durable=durable)
        self._remember(content, len(entries), None)


def _last_checkpoint(raw: bytes) -> tuple[int, int]:
    """(end of the last valid checkpoint, its offset); 0 if there is none."""
    position = len(raw) - _CHECKPOINT_BYTES
    offset = (
        _has_checkpoint(raw, position, crc32c(memoryview(raw)[:position]))
        if position >= HEADER.size
        else None
    )
    if offset is not None:
        return len(raw), offset
    end = last_offset = checksum = checkpoints_seen = 0
    with suppress(CorruptSegment):  # after an error the next entry's start is unknown
        for begin, body, _, _ in walk_entries(raw[HEADER.size :], "a torn file"):
            if raw[HEADER.size + body] != RecordType.CACHE_FILE_CHECKPOINT:
                continue
            position = HEADER.size + begin
            checksum = crc32c(memoryview(raw)[checkpoints_seen:position], checksum)
            offset = _has_checkpoint(raw, position, checksum)
            if offset is None:
                break  # an earlier byte is wrong: no later checkpoint can be valid
            checkpoints_seen, end, last_offset = position, position + _CHECKPOINT_BYTES, offset
    return end, last_offset


def _checkpoint(metadata_topic_offset: int, checksum: int) -> bytes:
    content = _CHECKPOINT_LEAD + INT64.pack(metadata_topic_offset)
    return content + UINT32.pack(crc32c(content, checksum))


def _has_checkpoint(raw: bytes, at: int, checksum: int) -> int | None:
    """The offset of the checkpoint at `at`, if it is valid for a file with that checksum."""
    offset: int
    offset_at = at + len(_CHECKPOINT_LEAD)
    if at + _CHECKPOINT_BYTES > len(raw):
        return None
    (offset,) = INT64.unpack_from(raw, offset_at)
    is_whole = raw[at : at + _CHECKPOINT_BYTES] == _checkpoint(offset, checksum)
    return offset if is_whole else None


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Leaves the old or the new content, never a mix; if `durable`, on the disk on return."""
    temporary = path.with_suffix(TEMPORARY_SUFFIX)
    with temporary.open("wb", buffering=0) as file:
        write_all(file.fileno(), content)
        if durable:
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync(path.parent)


class SegmentMetadataCache:
    """A context manager: only this process uses the folder while it is open.

    The folder of cache files, and how far the metadata topic was read into them.

        <folder>/<topic>/<partition>-<topicId>.remote-log-metadata     see above
        <folder>/committed-offsets                                      text, see below
        <folder>/.lock                                                 held by the process using it

    `committed-offsets` is lines of text, like Kafka's own checkpoint files:

        1                     version; with 0, files did not name their partition
        <metadata topic id>   a re-created topic has other offsets
        <number of files>     so that a lost cache file is noticed
        <metadata partition> <offset>      for each: the next one to read
        <crc32c of all before, 8 hex digits>

    On any doubt the cache is discarded, and everything is read again from the topic. Blocking.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Self:
        """Raises ConfigError if the folder cannot be used, as when another process has it."""
        self._lock = take_folder(self._directory, "metadata.cache_dir")
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def partitions(self) -> list[TopicIdPartition]:
        """The partitions that have a file, sorted; reads no file. Raises OSError."""
        return sorted(tp for tp, _ in self._files())

    def file(self, tp: TopicIdPartition) -> CacheFile:
        return CacheFile(self._path(tp), tp)

    def load_committed(self, metadata_topic_id: UUID) -> dict[int, int]:
        """The next offset to read, by metadata partition.

        If that is not known for sure, the result is empty and all cache files are deleted. Raises
        OSError.
        """
        try:
            text = (self._directory / COMMITTED).read_bytes()
            topic_id, files, offsets = _parse(text)
            if topic_id != metadata_topic_id:
                raise ValueError(f"it is of metadata topic {uuid_text(topic_id)}")
            file_count = sum(1 for _ in self._files())
            if file_count < files:
                raise ValueError(f"of {files} cache files {file_count} are left")
        except FileNotFoundError:
            self._clear()
            return {}
        except ValueError as error:
            log.warning("metadata_cache_discarded", path=str(self._directory), error=str(error))
            self._clear()
            return {}
        return offsets

    def commit(
        self,
        metadata_topic_id: UUID,
        offsets: Mapping[int, int],
        deleted_tps: Iterable[TopicIdPartition] = (),
    ) -> None:
        """Record durably that the files, already synced, have all events below `offsets`.

        Removes the files of `deleted_tps` afterwards. Raises OSError.
        """
        gone_paths = {self._path(tp) for tp in deleted_tps}
        files = sum(1 for _, path in self._files() if path not in gone_paths)
        content = _text(metadata_topic_id, files, offsets)
        replace_file(self._directory / COMMITTED, content)
        for path in gone_paths:
            path.unlink(missing_ok=True)

    def _path(self, tp: TopicIdPartition) -> Path:
        name = f"{tp.partition}-{uuid_text(tp.topic_id)}{SUFFIX}"
        return self._directory / tp.topic / name

    def _files(self) -> Iterable[tuple[TopicIdPartition, Path]]:
        for folder in self._directory.iterdir():
            if is_topic_name(folder.name) and folder.is_dir():
                for path in folder.iterdir():
                    tp = _parse_name(folder.name, path.name)
                    if tp is not None:
                        yield tp, path

    def _clear(self) -> None:
        # First the file that makes the others count.
        (self._directory / COMMITTED).unlink(missing_ok=True)
        sync(self._directory)
        for _, path in list(self._files()):
            path.unlink()


def _parse_name(topic: str, name: str) -> TopicIdPartition | None:
    stem = name.removesuffix(SUFFIX)
    # Ids may contain a dash: the partition ends where an id of that length must begin.
    partition, topic_id = stem[:-_UUID_CHARS], parse_uuid(stem[-_UUID_CHARS:])
    if stem == name or topic_id is None or not _PARTITION.fullmatch(partition):
        return None
    return TopicIdPartition(topic_id, topic, int(partition[:-1]))


def _text(topic_id: UUID, files: int, offsets: Mapping[int, int]) -> bytes:
    lines = [_VERSION, uuid_text(topic_id), str(files)]
    lines += [f"{partition} {offset}" for partition, offset in sorted(offsets.items())]
    body = "".join(f"{line}\n" for line in lines).encode()
    return body + b"%08x\n" % crc32c(body)


def _parse(text: bytes) -> tuple[UUID, int, dict[int, int]]:
    """(metadata topic id, number of cache files, offsets). Raises ValueError."""
    body, seal = text[:-9], text[-9:]
    if seal != b"%08x\n" % crc32c(body):
        raise ValueError(f"{COMMITTED} is damaged")
    version, topic_id, files, *rows = body.decode().splitlines()
    topic_uuid = parse_uuid(topic_id)
    if version != _VERSION or topic_uuid is None:
        raise ValueError(f"{COMMITTED} is of version {version}, this fetchproxy reads {_VERSION}")
    pairs = [row.split() for row in rows]
    return topic_uuid, int(files), {int(partition): int(offset) for partition, offset in pairs}


# One thread at a time, never the loop's. Losing all of it costs only time, so a failing disk is
# reported once and no longer written to.


@dataclass(slots=True)
class _Pending:
    """Events of one partition that are not on disk yet."""

    events: list[MetadataEvent] = field(default_factory=list)
    next_offset: int = 0

    @property
    def ends_deleted(self) -> bool:
        last = self.events[-1] if self.events else None
        return (
            isinstance(last, RemotePartitionDeleteMetadata)
            and last.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
        )


class CachedEvents:
    """Keeps the metadata topic's events in flat files. `async with` owns the writing. `directory`
    None: keeps no events, no method does anything.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._cache: SegmentMetadataCache | None = None
        self._files: dict[TopicIdPartition, CacheFile] = {}
        self._disk = asyncio.Lock()
        self._log_id = UUID(int=0)
        self._pending: dict[TopicIdPartition, _Pending] = {}
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._has_pending = asyncio.Event()
        self._failed = False
        self._tasks: asyncio.TaskGroup | None = None
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._directory is not None:
            self._tasks = await asyncio.TaskGroup().__aenter__()
            self._writer = self._tasks.create_task(self._run(), name="metadata cache")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tasks is None or self._writer is None:
            return
        async with self._disk:  # wait for a flush to end: its events would be lost
            self._writer.cancel()
        # Not the body's error: the group would wrap it.
        await self._tasks.__aexit__(None, None, None)
        await self._flush()
        if self._cache is not None:
            self._cache.__exit__(None, None, None)
            self._cache = None

    async def open(self, log_id: UUID) -> tuple[dict[int, int], list[TopicIdPartition]]:
        """The offset to read on from by partition of the log, and the partitions that have a file.

        Raises StorageUnavailable if the folder cannot be used, ConfigError if another process uses
        it.
        """
        self._log_id = log_id
        if self._directory is None:
            return {}, []
        try:
            async with self._disk:
                positions, tps = await asyncio.to_thread(self._open, self._directory, log_id)
        except OSError as error:
            raise StorageUnavailable(f"metadata.cache_dir: {error}") from error
        self._positions, self._committed = dict(positions), positions
        return positions, tps

    async def load(self, tp: TopicIdPartition) -> tuple[PartitionTable, CachedEntries]:
        """The content of the partition's file. Raises StorageUnavailable if it cannot be read."""
        try:
            async with self._disk:
                return await asyncio.to_thread(self._load, tp)
        except (OSError, CorruptSegment) as error:
            raise StorageUnavailable(f"metadata cache of {tp}: {error}") from error

    def note(self, tp: TopicIdPartition, events: Sequence[MetadataEvent], next_offset: int) -> None:
        """Note events that the partition's table took: all of its events below `next_offset`."""
        if self._cache is not None and not self._failed:
            pending = self._pending.setdefault(tp, _Pending())
            pending.events.extend(events)
            pending.next_offset = next_offset

    def note_position(self, log_partition: int, position: int) -> None:
        if self._cache is not None and self._positions.get(log_partition) != position:
            self._positions[log_partition] = position
            self._has_pending.set()

    async def _run(self) -> None:
        """For ever: flush a little after new events have come."""
        while True:
            await self._has_pending.wait()
            await asyncio.sleep(FLUSH_PAUSE_S)
            await self._flush()

    async def _flush(self) -> None:
        """Write the events durably to disk, with the positions that they reach."""
        if self._cache is None or self._failed:
            return
        async with self._disk:
            # Taken together: later events belong to the next flush.
            self._has_pending.clear()
            pending, self._pending = self._pending, {}
            positions = dict(self._positions)
            if not pending and positions == self._committed:
                return
            try:
                await asyncio.to_thread(self._write, self._cache, pending, positions)
            except OSError as error:
                self._failed = True
                log.error(
                    "metadata_cache_failed",
                    path=str(self._directory),
                    error=str(error),
                    hint="check the disk of metadata.cache_dir, then restart",
                )
            else:
                self._committed = positions

    # --- in a thread ---
    def _open(self, directory: Path, log_id: UUID) -> tuple[dict[int, int], list[TopicIdPartition]]:
        if self._cache is None:
            self._cache = SegmentMetadataCache(directory).__enter__()
        return self._cache.load_committed(log_id), self._cache.partitions()

    def _load(self, tp: TopicIdPartition) -> tuple[PartitionTable, CachedEntries]:
        assert self._cache is not None  # files exist only then
        file = self._files.setdefault(tp, self._cache.file(tp))
        cached = file.load()
        return PartitionTable.load(tp, cached.entries), cached

    def _write(
        self,
        cache: SegmentMetadataCache,
        pending: dict[TopicIdPartition, _Pending],
        positions: dict[int, int],
    ) -> None:
        files = [self._append(tp, pending_entries) for tp, pending_entries in pending.items()]
        for file in files:
            file.sync()
        deleted_tps = [
            tp for tp, pending_entries in pending.items() if pending_entries.ends_deleted
        ]
        cache.commit(self._log_id, positions, deleted_tps)
        for tp in deleted_tps:
            del self._files[tp]
        for file in files:
            if file.wants_compaction:
                try:
                    file.compact()
                except CorruptSegment as error:  # the next start reads its events again
                    log.error("metadata_cache_file_damaged", path=str(file.path), error=str(error))

    def _append(self, tp: TopicIdPartition, pending_entries: _Pending) -> CacheFile:
        if tp not in self._files:
            self._load(tp)  # a new partition: there was no file to read
        self._files[tp].append(pending_entries.events, pending_entries.next_offset)
        return self._files[tp]
