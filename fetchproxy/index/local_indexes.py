"""The local indexes of all partitions: one folder, one process, and threads for the disk.

The folder is locked as Kafka locks its log.dirs: two processes that wrote the same files would undo
each other's. The event loop never waits for a disk here, and a read never waits for long: who does
not get an answer asks the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, ParamSpec, Self, TypeVar

import structlog

from fetchproxy.errors import CorruptSegment
from fetchproxy.folder_lock import LOCK as LOCK
from fetchproxy.folder_lock import take_folder
from fetchproxy.index.local_remote_log_index import (
    IndexedSegment,
    LocalRemoteLogIndex,
    remove_if_empty,
)
from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.metrics import LOCAL_INDEX_READS

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# A look-up takes well below a millisecond, mending a set of files some 30.
READ_MAX_S = 0.25
_THREADS = 2


class LocalIndexes:
    """`async with`: locks the folder and gives it back.

    `partition_folder`: a partition's folder in it; `log_key`: the key of a segment's `.log`.
    """

    def __init__(
        self,
        folder: Path,
        partition_folder: Callable[[TopicIdPartition], str],
        log_key: Callable[[RemoteLogSegmentMetadata], str],
        *,
        file_bytes_max: int,
        file_age_max_ms: int,
    ) -> None:
        self._folder = folder
        self._partition_folder = partition_folder
        self._log_key = log_key
        self._new = partial(
            LocalRemoteLogIndex, file_bytes_max=file_bytes_max, file_age_max_ms=file_age_max_ms
        )
        self._partitions: dict[TopicIdPartition, LocalRemoteLogIndex] = {}
        self._lock: IO[bytes] | None = None
        self._failing = False  # the disk, at the last read

    async def __aenter__(self) -> Self:
        """Raises ConfigError where the folder cannot be had."""
        self._lock = await asyncio.to_thread(take_folder, self._folder, "archive.local_index_dir")
        self._threads = ThreadPoolExecutor(_THREADS, "local-index")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """What is still being written ends first; nothing is written afterwards."""
        partitions, self._partitions = self._partitions, {}
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(_close_all, partitions.values())
        if self._lock is not None:
            self._lock.close()

    def partition(self, tip: TopicIdPartition) -> LocalRemoteLogIndex:
        """No I/O; its methods block, see `in_thread`."""
        if tip not in self._partitions:
            self._partitions[tip] = self._new(self._folder / self._partition_folder(tip))
        return self._partitions[tip]

    def describe(self, metadata: RemoteLogSegmentMetadata) -> IndexedSegment:
        return IndexedSegment(
            object_key=self._log_key(metadata),
            start_offset=metadata.start_offset,
            end_offset=metadata.stored_end_offset,
            size_bytes=metadata.segment_size_bytes,
            copied_at_ms=metadata.event_timestamp_ms,
        )

    async def in_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, partial(call, *args, **kwargs))

    async def read(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogIndex | None:
        """A segment's index as its `.index` object has it; None: ask the store.

        What is damaged is dropped, for `LocalIndexRefresher` to fetch again. Raises nothing.
        """
        tip = metadata.topic_id_partition
        index = self.partition(tip)
        outcome, found = "failed", None
        try:
            async with asyncio.timeout(READ_MAX_S):
                found = await self.in_thread(self._read, index, metadata)
                outcome = "absent" if found is None else "hit"
        except CorruptSegment as error:
            outcome = "damaged"
            log.warning("local_index_damaged", **_named(metadata), error=str(error))
            await self._drop(index, metadata)
        except (OSError, TimeoutError) as error:
            if not self._failing:  # once per outage
                log.warning("local_index_read_failed", **_named(metadata), error=repr(error))
        self._failing = outcome == "failed"
        LOCAL_INDEX_READS.labels(outcome).inc()
        return found

    def _read(
        self, index: LocalRemoteLogIndex, metadata: RemoteLogSegmentMetadata
    ) -> RemoteLogIndex | None:
        found = index.segment_index(self.describe(metadata))
        if found is not None:
            found.check_covers(metadata.stored_end_offset, metadata.segment_size_bytes)
        return found

    async def _drop(self, index: LocalRemoteLogIndex, metadata: RemoteLogSegmentMetadata) -> None:
        try:
            async with asyncio.timeout(READ_MAX_S):
                await self.in_thread(index.drop_from, self.describe(metadata))
        except (OSError, TimeoutError) as error:
            log.warning("local_index_not_dropped", **_named(metadata), error=repr(error))

    async def keep_only(self, tips: Iterable[TopicIdPartition]) -> None:
        """Remove what is there of any other partition. Raises OSError."""
        tips = set(tips)
        kept = {self._folder / self._partition_folder(tip) for tip in tips}
        for tip in [tip for tip in self._partitions if tip not in tips]:
            await self.in_thread(self._partitions.pop(tip).keep, ())
        await self.in_thread(self._remove_others, kept)

    def _remove_others(self, kept: set[Path]) -> None:
        for folder in [path for path in self._folder.glob("*/*") if path.is_dir()]:
            if folder not in kept:
                index = self._new(folder)
                index.keep(())
                index.close()
        for folder in self._folder.iterdir():
            remove_if_empty(folder)


def _close_all(indexes: Iterable[LocalRemoteLogIndex]) -> None:
    for index in indexes:
        index.close()


def _named(metadata: RemoteLogSegmentMetadata) -> dict[str, str | int]:
    return {
        "topic": metadata.topic_id_partition.topic,
        "partition": metadata.topic_id_partition.partition,
        "segment_id": str(metadata.segment_id.id),
        "base_offset": metadata.start_offset,
    }
