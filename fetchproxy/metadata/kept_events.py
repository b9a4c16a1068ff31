"""What was read of the metadata topic, on disk where a folder is configured: so a start reads only
what is new, and a partition only once somebody asks for it.

A thin shell over `cache_file`: one thread at a time, and never the loop's. Losing all of it costs
time, nothing else, so a disk that fails is reported once and written no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

import structlog

from fetchproxy.errors import CorruptSegment, StorageUnavailable
from fetchproxy.metadata.cache_file import CachedEntries, CacheFile
from fetchproxy.metadata.metadata_cache import MetadataCache
from fetchproxy.metadata.records import MetadataEvent
from fetchproxy.metadata.segment_table import SegmentTable
from fetchproxy.model import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)

log = structlog.get_logger(__name__)

FLUSH_PAUSE_S = 1.0  # what a crash between two costs is read again


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


class KeptEvents:
    """`async with` owns the writing. `directory` None: nothing is kept, no method does anything."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._cache: MetadataCache | None = None
        self._files: dict[TopicIdPartition, CacheFile] = {}
        self._disk = asyncio.Lock()
        self._log_id = UUID(int=0)
        self._pending: dict[TopicIdPartition, _Pending] = {}
        self._positions: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._news = asyncio.Event()
        self._failed = False
        self._tasks: asyncio.TaskGroup | None = None
        self._writer: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if self._directory is not None:
            self._tasks = await asyncio.TaskGroup().__aenter__()
            self._writer = self._tasks.create_task(self._run(), name="metadata cache")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._tasks is None or self._writer is None:
            return
        async with self._disk:  # not in the middle of a flush: what it has taken would be lost
            self._writer.cancel()
        # Not the error of the body: the group would wrap it.
        await self._tasks.__aexit__(None, None, None)
        await self._flush()
        if self._cache is not None:
            self._cache.__exit__(None, None, None)
            self._cache = None

    async def open(self, log_id: UUID) -> tuple[dict[int, int], list[TopicIdPartition]]:
        """Where to read on in which partition of the log, and the partitions that have a file.

        Raises StorageUnavailable where the folder cannot be used, ConfigError where another process
        uses it.
        """
        self._log_id = log_id
        if self._directory is None:
            return {}, []
        try:
            async with self._disk:
                found = await asyncio.to_thread(self._open, self._directory, log_id)
        except OSError as error:
            raise StorageUnavailable(f"metadata.cache_dir: {error}") from error
        self._positions, tips = dict(found[0]), found[1]
        self._committed = dict(self._positions)
        return found[0], tips

    async def load(self, tip: TopicIdPartition) -> tuple[SegmentTable, CachedEntries]:
        """What the partition's file holds. Raises StorageUnavailable where it cannot be read."""
        try:
            async with self._disk:
                return await asyncio.to_thread(self._load, tip)
        except (OSError, CorruptSegment) as error:
            raise StorageUnavailable(f"metadata cache of {tip}: {error}") from error

    def note(
        self, tip: TopicIdPartition, events: Sequence[MetadataEvent], next_offset: int
    ) -> None:
        """Events that the partition's table took: all that it has up to `next_offset`."""
        if self._cache is not None and not self._failed:
            pending = self._pending.setdefault(tip, _Pending())
            pending.events.extend(events)
            pending.next_offset = next_offset

    def passed(self, log_partition: int, position: int) -> None:
        """Everything before `position` was noted."""
        if self._cache is not None and self._positions.get(log_partition) != position:
            self._positions[log_partition] = position
            self._news.set()

    async def _run(self) -> None:
        """For ever: flush a little after there is something new."""
        while True:
            await self._news.wait()
            await asyncio.sleep(FLUSH_PAUSE_S)
            await self._flush()

    async def _flush(self) -> None:
        """To disk, durably, with the positions up to which that is."""
        if self._cache is None or self._failed:
            return
        async with self._disk:
            # Taken together: what comes from here on belongs to the next flush.
            self._news.clear()
            pending, self._pending = self._pending, {}
            positions = dict(self._positions)
            if not pending and positions == self._committed:
                return
            try:
                await asyncio.to_thread(self._write, self._cache, pending, positions)
            except OSError as error:
                self._failed = True
                log.error("metadata_cache_failed", path=str(self._directory), error=str(error))
            else:
                self._committed = positions

    # --- in a thread ---
    def _open(self, directory: Path, log_id: UUID) -> tuple[dict[int, int], list[TopicIdPartition]]:
        if self._cache is None:
            self._cache = MetadataCache(directory).__enter__()
        return self._cache.load_committed(log_id), self._cache.partitions()

    def _load(self, tip: TopicIdPartition) -> tuple[SegmentTable, CachedEntries]:
        assert self._cache is not None  # only then are there files
        file = self._files.setdefault(tip, self._cache.file(tip))
        cached = file.load()
        return SegmentTable.load(tip, cached.entries), cached

    def _write(
        self,
        cache: MetadataCache,
        pending: dict[TopicIdPartition, _Pending],
        positions: dict[int, int],
    ) -> None:
        files = [self._append(tip, taken) for tip, taken in pending.items()]
        for file in files:
            file.sync()
        deleted = [tip for tip, taken in pending.items() if taken.ends_deleted]
        cache.commit(self._log_id, positions, deleted)
        for tip in deleted:
            del self._files[tip]
        for file in files:
            if file.wants_compaction:
                self._compact(file)

    def _append(self, tip: TopicIdPartition, taken: _Pending) -> CacheFile:
        if tip not in self._files:
            self._load(tip)  # a new one: there was no file to read
        self._files[tip].append(taken.events, taken.next_offset)
        return self._files[tip]

    def _compact(self, file: CacheFile) -> None:
        try:
            file.compact()
        except CorruptSegment as error:  # the next start reads its events again
            log.error("metadata_cache_file_damaged", path=str(file.path), error=str(error))
