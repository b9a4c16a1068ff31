"""The folder of cache files, and how far the metadata topic has been read into them.

    <folder>/<topic>/<partition>-<topicId>.remote-log-metadata     see `cache_file`
    <folder>/committed-offsets                                      text, see below
    <folder>/lock                                                   held by the process that has it

`committed-offsets` is, as Kafka's own checkpoint files are, lines of text:

    1                     version; 0 had files that do not name their partition
    <metadata topic id>   a re-created topic has other offsets
    <number of files>     so that a lost cache file is noticed
    <metadata partition> <offset>      for each: the next one to read
    <crc32c of all before, 8 hex digits>

Any doubt about it throws the cache away, and all is read again from the topic. Blocking.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

import structlog
from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.errors import ConfigError
from fetchproxy.folder_lock import make_own_folder
from fetchproxy.metadata.cache_file import CacheFile, replace_file, sync_path
from fetchproxy.model import TopicIdPartition, is_topic_name
from fetchproxy.storage.layout import parse_uuid, uuid_text

log = structlog.get_logger(__name__)

SUFFIX = ".remote-log-metadata"
COMMITTED = "committed-offsets"
_VERSION = "1"
_UUID_CHARS = 22
_PARTITION = re.compile(r"(0|[1-9][0-9]{0,9})-", re.ASCII)


class MetadataCache:
    """A context manager: the folder is this process's as long as it is open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: int | None = None

    def __enter__(self) -> Self:
        """Raises ConfigError where another process or user has the folder, OSError."""
        make_own_folder(self._directory, "metadata.cache_dir")
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ConfigError(
                f"{self._directory}: another fetchproxy has its metadata cache here"
            ) from None
        self._lock = lock
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def partitions(self) -> list[TopicIdPartition]:
        """Those that have a file, sorted; no file is read. Raises OSError."""
        return sorted(tip for tip, _ in self._files())

    def file(self, tip: TopicIdPartition) -> CacheFile:
        """Its file, whether or not it is there; does nothing with it."""
        return CacheFile(self._path(tip), tip)

    def load_committed(self, metadata_topic_id: UUID) -> dict[int, int]:
        """By metadata partition, the next offset to read.

        Empty, and no cache file is left, where that is not known for sure. Raises OSError.
        """
        try:
            text = (self._directory / COMMITTED).read_bytes()
            topic_id, files, offsets = _parse(text)
            if topic_id != metadata_topic_id:
                raise ValueError(f"it is of metadata topic {uuid_text(topic_id)}")
            found = sum(1 for _ in self._files())
            if found < files:
                raise ValueError(f"of {files} cache files {found} are left")
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
        deleted: Iterable[TopicIdPartition] = (),
    ) -> None:
        """The files have all events below `offsets`, and have been synced; it is durable then.

        The files of `deleted` partitions are removed afterwards. Raises OSError.
        """
        gone = {self._path(tip) for tip in deleted}
        files = sum(1 for _, path in self._files() if path not in gone)
        content = _text(metadata_topic_id, files, offsets)
        replace_file(self._directory / COMMITTED, content)
        for path in gone:
            path.unlink(missing_ok=True)

    def _path(self, tip: TopicIdPartition) -> Path:
        name = f"{tip.partition}-{uuid_text(tip.topic_id)}{SUFFIX}"
        return self._directory / tip.topic / name

    def _files(self) -> Iterable[tuple[TopicIdPartition, Path]]:
        for folder in self._directory.iterdir():
            if is_topic_name(folder.name) and folder.is_dir():
                for path in folder.iterdir():
                    tip = _parse_name(folder.name, path.name)
                    if tip is not None:
                        yield tip, path

    def _clear(self) -> None:
        # First what says that the files are worth something.
        (self._directory / COMMITTED).unlink(missing_ok=True)
        sync_path(self._directory)
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
    parsed = parse_uuid(topic_id)
    if version != _VERSION or parsed is None:
        raise ValueError(f"{COMMITTED} is of version {version}, this fetchproxy reads {_VERSION}")
    pairs = [row.split() for row in rows]
    return parsed, int(files), {int(partition): int(offset) for partition, offset in pairs}
