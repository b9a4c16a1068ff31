"""The files of the disk cache: one per chunk, written whole or not at all. Blocks for the disk.

A file's name says which chunk it is, its head says so again, and a CRC-32C covers head and bytes:
what a crash, a full disk or a flipped bit has made of a file is found when it is read. Nothing is
synced, since a cache may lose what it holds. Must only run on the disk cache's own threads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from uuid import UUID

from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.model import ByteRange

_HEAD = Struct(">8s16sqq")
_CRC = Struct(">I")
HEAD_BYTES = _HEAD.size + _CRC.size
_MAGIC = b"chunk\x00\x00\x01"
_NAME = re.compile(r"([0-9a-f]{32})-([0-9]{1,19})-([0-9]{1,19})\.chunk")
_TEMPORARY = ".writing"


@dataclass(frozen=True, slots=True)
class CachedChunk:
    """Which bytes of which segment's log; `segment` is the segment's UUID as an int."""

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
    """A file of the cache is not what was written."""


class NoRoom(Exception):
    """The file system would have less left than it must; `lacking_bytes` are to be freed first."""

    def __init__(self, lacking_bytes: int) -> None:
        super().__init__(f"{lacking_bytes} bytes are lacking")
        self.lacking_bytes = lacking_bytes


class DiskCacheFiles:
    def __init__(self, folder: Path, free_bytes_min: int) -> None:
        self._folder = folder
        self._free_bytes_min = free_bytes_min

    def scan(self) -> list[CachedChunk]:
        """What is there, the longest unused first; removes what was being written. OSError."""
        found: list[tuple[int, CachedChunk]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                chunk = parse_name(entry.name)
                if chunk is None:
                    if entry.name.endswith(_TEMPORARY):
                        os.unlink(entry.path)
                    continue
                status = entry.stat(follow_symlinks=False)
                if status.st_size == chunk.file_bytes:
                    found.append((status.st_mtime_ns, chunk))
                else:
                    os.unlink(entry.path)
        found.sort(key=lambda item: item[0])
        return [chunk for _, chunk in found]

    def read(self, chunk: CachedChunk) -> bytes:
        """The chunk's bytes, as they were written. Raises DamagedFile; OSError."""
        fd = os.open(self._folder / chunk.file_name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            head = os.pread(fd, HEAD_BYTES, 0)
            content = os.pread(fd, chunk.byte_range.length, HEAD_BYTES)
            expected = chunk.head()
            if head != expected + _CRC.pack(crc32c(content, crc32c(expected))):
                raise DamagedFile(f"{chunk.file_name}: it does not have its checksum")
            os.utime(fd)  # its age, for the next start
            return content
        finally:
            os.close(fd)

    def write(self, chunk: CachedChunk, content: memoryview, remove: Iterable[CachedChunk]) -> None:
        """Remove some files, then add one. Raises NoRoom; OSError."""
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
        """Raises OSError; what is not there is no error."""
        for chunk in chunks:
            (self._folder / chunk.file_name).unlink(missing_ok=True)


def parse_name(name: str) -> CachedChunk | None:
    """None: it is none of the cache's chunks."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[2]) >= int(match[3]):
        return None
    return CachedChunk(int(match[1], 16), ByteRange(int(match[2]), int(match[3])))
