"""The second cache of checked chunks: files in a folder of this process, bounded by bytes."""

from __future__ import annotations

import asyncio
import os
import re
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC
from functools import partial
from pathlib import Path
from struct import Struct
from typing import IO, Self
from uuid import UUID

import structlog
from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.config.schema import RemoteFetchConfig
from fetchproxy.errors import ConfigError
from fetchproxy.model import ByteRange
from fetchproxy.observability.metrics import (
    DISK_CACHE_BYTES,
    DISK_CACHE_ERRORS,
    DISK_CACHE_EVICTIONS,
    DISK_CACHE_HITS,
    DISK_CACHE_MISSES,
    DISK_CACHE_NOT_WRITTEN,
)
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.runtime.folders import take_folder

# There is one file per chunk. The file's name and its head both identify the chunk. A CRC-32C
# covers head and bytes, so a read detects damage by a crash, a full disk or a flipped bit. Files
# are not synced, because a cache may lose its content.

_HEAD = Struct(">8s16sqq")
_CRC = Struct(">I")
HEAD_BYTES = _HEAD.size + _CRC.size
_MAGIC = b"chunk\x00\x00\x01"
_NAME = re.compile(r"([0-9a-f]{32})-([0-9]{1,19})-([0-9]{1,19})\.chunk")
_TEMPORARY = ".writing"
_BUSY = DISK_CACHE_NOT_WRITTEN.labels("busy")
_FULL = DISK_CACHE_NOT_WRITTEN.labels("full")
_FAILED = DISK_CACHE_NOT_WRITTEN.labels("failed")
# A chunk takes some milliseconds; a disk that needs longer is worse than the store.
_READ_MAX_S = 1.0
# After a disk has hung or failed, it is not used for this long.
AWAY_S = 10.0
_READ_THREADS = 2
_CHECK_DISK = "if it happens again, check the disk of remote_fetch.disk_cache_dir"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CachedChunk:
    """A range of bytes of one segment's log. `segment` is the segment's UUID as an int."""

    segment: int
    byte_range: ByteRange

    @property
    def file_name(self) -> str:
        return f"{self.segment:032x}-{self.byte_range.start}-{self.byte_range.end}.chunk"

    @property
    def file_bytes(self) -> int:
        return HEAD_BYTES + self.byte_range.length

    def head(self) -> bytes:
        segment = UUID(int=self.segment).bytes
        return _HEAD.pack(_MAGIC, segment, self.byte_range.start, self.byte_range.end)


class DamagedFile(Exception):
    """A file of the cache differs from the file that was written."""


class NoRoom(Exception):
    """The write would leave too little free space; `lacking_bytes` must be freed first."""

    def __init__(self, lacking_bytes: int) -> None:
        super().__init__(f"{lacking_bytes} bytes are lacking")
        self.lacking_bytes = lacking_bytes


class DiskCacheFiles:
    """Only the disk cache's own threads may call this."""

    def __init__(self, folder: Path, free_bytes_min: int) -> None:
        self._folder = folder
        self._free_bytes_min = free_bytes_min

    def scan(self) -> list[CachedChunk]:
        """The chunks there, the longest unused first. Removes unfinished files. Raises OSError."""
        chunks: list[tuple[int, CachedChunk]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                chunk = parse_name(entry.name)
                if chunk is None:
                    if entry.name.endswith(_TEMPORARY):
                        os.unlink(entry.path)
                    continue
                status = entry.stat(follow_symlinks=False)
                if status.st_size == chunk.file_bytes:
                    chunks.append((status.st_mtime_ns, chunk))
                else:
                    os.unlink(entry.path)
        chunks.sort(key=lambda item: item[0])
        return [chunk for _, chunk in chunks]

    def read(self, chunk: CachedChunk) -> bytes:
        """The chunk's bytes, as they were written. Raises DamagedFile, OSError."""
        fd = os.open(self._folder / chunk.file_name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = os.pread(fd, HEAD_BYTES, 0)
            content = os.pread(fd, chunk.byte_range.length, HEAD_BYTES)
            expected = chunk.head()
            if head != expected + _CRC.pack(crc32c(content, crc32c(expected))):
                raise DamagedFile(f"{chunk.file_name}: it does not have its checksum")
            os.utime(fd)  # the next start sorts the files by this time
            return content
        finally:
            os.close(fd)

    def write(self, chunk: CachedChunk, content: memoryview, remove: Iterable[CachedChunk]) -> None:
        """Remove the files of `remove`, then add one. Raises NoRoom, OSError."""
        self.remove(remove)
        free = os.statvfs(self._folder)
        lacking = self._free_bytes_min + chunk.file_bytes - free.f_bavail * free.f_frsize
        if lacking > 0:
            raise NoRoom(lacking)
        head = chunk.head()
        crc = crc32c(content, crc32c(head))
        path = self._folder / chunk.file_name
        temporary = path.with_suffix(_TEMPORARY)
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as to:
                to.write(head + _CRC.pack(crc))
                to.write(content)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def remove(self, chunks: Iterable[CachedChunk]) -> None:
        """Raises OSError. A missing file is not an error."""
        for chunk in chunks:
            (self._folder / chunk.file_name).unlink(missing_ok=True)


def parse_name(name: str) -> CachedChunk | None:
    """None: the name is not that of a cached chunk."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[2]) >= int(match[3]):
        return None
    return CachedChunk(int(match[1], 16), ByteRange(int(match[2]), int(match[3])))


# The cache never holds up a reader: a reader does not wait for a write, waits for a read only
# briefly, and treats a damaged file as absent. Memory: at most `disk_cache_writes_max` chunks that
# wait to be written.


class DiskCache:
    """`async with` locks the folder, lists its chunks, and unlocks the folder at the end."""

    def __init__(
        self,
        config: RemoteFetchConfig,
        limits: ReadingLimits = ReadingLimits(),  # noqa: B008 - frozen
    ) -> None:
        """Requires that `disk_cache_dir` is set."""
        assert config.disk_cache_dir is not None
        self._folder = config.disk_cache_dir
        self._bytes_max = config.disk_cache_bytes_max
        self._writes_max = limits.disk_cache_writes_max
        self._disk = DiskCacheFiles(self._folder, limits.disk_cache_free_bytes_min)
        self._files: OrderedDict[CachedChunk, None] = OrderedDict()  # the longest unused first
        self._writing: dict[CachedChunk, asyncio.Future[None]] = {}
        self._bytes = 0  # of `_files` and `_writing` together
        self._away_until = float("-inf")
        self._lock: IO[bytes] | None = None
        self._closed = True

    async def __aenter__(self) -> Self:
        """Raises ConfigError if the folder cannot be used."""
        key = "remote_fetch.disk_cache_dir"
        self._lock = await asyncio.to_thread(take_folder, self._folder, key)
        try:
            chunks = await asyncio.to_thread(self._disk.scan)
        except OSError as error:
            self._lock.close()
            raise ConfigError(f"{key} = {self._folder}: {error.strerror}") from error
        self._readers = ThreadPoolExecutor(_READ_THREADS, "disk-cache-read")
        self._writer = ThreadPoolExecutor(1, "disk-cache-write")
        self._closed = False
        self._files = OrderedDict.fromkeys(chunks)
        self._take(sum(chunk.file_bytes for chunk in chunks))
        self._remove(self._make_room(0))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Does not wait for the disk. Writes that have not begun are dropped."""
        self._closed = True
        for writing in list(self._writing.values()):
            writing.cancel()
        for threads in (self._readers, self._writer):
            threads.shutdown(wait=False, cancel_futures=True)
        if self._lock is not None:
            self._lock.close()

    async def read(self, chunk: CachedChunk) -> bytes | None:
        """The bytes that were offered. None: the caller has to ask the store. Never raises."""
        loop = asyncio.get_running_loop()
        if self._closed or chunk not in self._files or loop.time() < self._away_until:
            DISK_CACHE_MISSES.inc()
            return None
        self._files.move_to_end(chunk)
        try:
            async with asyncio.timeout(_READ_MAX_S):
                content = await loop.run_in_executor(self._readers, self._disk.read, chunk)
        except (DamagedFile, FileNotFoundError) as error:
            DISK_CACHE_ERRORS.labels("damaged").inc()
            log.warning(
                "disk_cache_file_damaged", file=chunk.file_name, error=str(error), hint=_CHECK_DISK
            )
            self.drop(chunk)
        except OSError as error:  # a TimeoutError is one
            DISK_CACHE_ERRORS.labels("failed").inc()
            self._away_until = loop.time() + AWAY_S
            log.warning(
                "disk_cache_read_failed", file=chunk.file_name, error=repr(error), hint=_CHECK_DISK
            )
        else:
            DISK_CACHE_HITS.inc()
            return content
        DISK_CACHE_MISSES.inc()
        return None

    def offer(self, chunk: CachedChunk, content: memoryview) -> None:
        """Queue the chunk for writing, unless the disk is behind. Never waits."""
        if self._closed or chunk in self._files or chunk in self._writing:
            return
        loop = asyncio.get_running_loop()
        if chunk.file_bytes > self._bytes_max:
            _FULL.inc()
            return
        if len(self._writing) >= self._writes_max or loop.time() < self._away_until:
            _BUSY.inc()
            return
        remove = self._make_room(chunk.file_bytes)
        self._take(chunk.file_bytes)
        write = partial(self._disk.write, chunk, content, remove)
        self._writing[chunk] = loop.run_in_executor(self._writer, write)
        self._writing[chunk].add_done_callback(partial(self._note_written, chunk))

    def drop(self, chunk: CachedChunk) -> None:
        """Remove a chunk whose bytes are wrong."""
        if chunk in self._files:
            del self._files[chunk]
            self._take(-chunk.file_bytes)
            self._remove([chunk])

    def _note_written(self, chunk: CachedChunk, writing: asyncio.Future[None]) -> None:
        del self._writing[chunk]
        if writing.cancelled():
            return
        error = writing.exception()
        if error is None:
            self._files[chunk] = None
            return
        self._take(-chunk.file_bytes)
        if isinstance(error, OSError) and error.errno in (ENOSPC, EDQUOT):
            error = NoRoom(2 * chunk.file_bytes)
        if isinstance(error, NoRoom):
            _FULL.inc()
            self._remove(self._make_room(self._bytes_max - self._bytes + error.lacking_bytes))
            return
        _FAILED.inc()
        self._away_until = asyncio.get_running_loop().time() + AWAY_S
        log.warning(
            "disk_cache_write_failed", file=chunk.file_name, error=repr(error), hint=_CHECK_DISK
        )

    def _make_room(self, size_bytes: int) -> list[CachedChunk]:
        """Forget the longest unused chunks until `size_bytes` fit. The caller deletes the files."""
        removed_chunks: list[CachedChunk] = []
        while self._files and self._bytes + size_bytes > self._bytes_max:
            chunk, _ = self._files.popitem(last=False)
            self._take(-chunk.file_bytes)
            DISK_CACHE_EVICTIONS.inc()
            removed_chunks.append(chunk)
        return removed_chunks

    def _remove(self, chunks: Iterable[CachedChunk]) -> None:
        chunks = list(chunks)
        if chunks and not self._closed:
            removing = asyncio.get_running_loop().run_in_executor(
                self._writer, self._disk.remove, chunks
            )
            removing.add_done_callback(_note_removed)

    def _take(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        DISK_CACHE_BYTES.set(self._bytes)


def _note_removed(removing: asyncio.Future[None]) -> None:
    error = None if removing.cancelled() else removing.exception()
    if error is not None:
        DISK_CACHE_ERRORS.labels("failed").inc()
        log.warning("disk_cache_remove_failed", error=repr(error), hint=_CHECK_DISK)
