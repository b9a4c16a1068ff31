"""Step 3 of a partition's turn: keeps the local index in step with the archive.

It fetches and appends the `.index` object of each new segment, deletes files below the log start,
and cuts the local index where a segment is gone, then goes on from there. A clipped segment keeps
its entries: the metadata decide whether an offset counts. If a local index is behind or missing, a
reader needs one request to the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from uuid import UUID

import structlog

from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.errors import CorruptSegment, DamagedObject
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.index_files import LocalIndexes, LocalRemoteLogIndex
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.writing.limits import WritingLimits

log = structlog.get_logger(__name__)

# Indexes fetched at once, and per turn: enough to hide the store's latency, and so few that a new
# partition does not delay the others' copies.
FETCHES_MAX = 8


def open_local_indexes(
    config: ArchiveConfig,
    rsm: RemoteStorageManager,
    limits: WritingLimits = WritingLimits(),  # noqa: B008 - frozen
) -> AbstractAsyncContextManager[LocalIndexes | None]:
    """None if `archive.local_index_dir` is not set."""
    if config.local_index_dir is None:
        return nullcontext()
    return LocalIndexes(
        config.local_index_dir,
        lambda metadata: rsm.object_key(metadata, SegmentFile.LOG),
        file_bytes_max=limits.local_index_file_bytes_max,
        file_age_max_ms=limits.local_index_file_age_max_ms,
    )


class LocalIndexRefresher:
    """Keeps the local index files in step with the archive. One for all partitions. Each partition
    is refreshed by one task at a time.
    """

    def __init__(self, local_indexes: LocalIndexes, rsm: RemoteStorageManager) -> None:
        self._local = local_indexes
        self._rsm = rsm
        self._done: dict[TopicIdPartition, tuple[object, ...]] = {}
        # Segments without a usable index: they are left out, and readers ask the store.
        self._left_out: dict[TopicIdPartition, set[UUID]] = {}

    async def refresh(self, tp: TopicIdPartition, view: PartitionView) -> bool:
        """True: not all is fetched. Raises RemoteStorageError, OSError; the next turn goes on."""
        index = self._local.partition(tp)
        last = view.segments[-1].segment_id if view.segments else None
        # Enough to notice a change of the archive without a look at every segment.
        ends = view.log_start_offset, view.log_end_offset
        state = (len(view.segments), ends, last, index.losses)
        if self._done.get(tp) == state:
            return False
        missing = await self._local.in_thread(self._missing, index, view)
        fetched = missing[:FETCHES_MAX]
        contents = await self._fetch(fetched)
        for metadata in fetched:
            raw = contents[metadata.segment_id.id]
            try:
                if isinstance(raw, DamagedObject):
                    raise raw
                await self._local.in_thread(index.append, metadata, raw)
            except (CorruptSegment, ValueError) as error:
                self._left_out.setdefault(tp, set()).add(metadata.segment_id.id)
                log.error(
                    "segment_not_indexed",
                    **metadata.logged,
                    error=str(error),
                    hint="run fetchproxy verify --repair",
                )
                return True  # the next turn leaves it out and appends the rest
        if len(fetched) < len(missing):
            return True
        self._done[tp] = state
        return False

    def _missing(
        self, index: LocalRemoteLogIndex, view: PartitionView
    ) -> list[RemoteLogSegmentMetadata]:
        """Drop entries that are not of the archive; return the segments to append. Blocks."""
        left_out = self._left_out.get(view.tp, set())
        segments = [s for s in view.segments if s.segment_id.id not in left_out]
        kept_count = index.keep(segments)
        return segments[kept_count:]

    async def keep_only(self, tps: Iterable[TopicIdPartition]) -> None:
        """Remove the local indexes of all other partitions; a failure is logged."""
        tps = set(tps)
        for tp in (self._done.keys() | self._left_out.keys()) - tps:
            self._done.pop(tp, None)
            self._left_out.pop(tp, None)
        try:
            await self._local.keep_only(tps)
        except OSError as error:
            log.warning(
                "local_index_leftovers_not_deleted",
                error=str(error),
                hint="if it happens again, check the disk of archive.local_index_dir",
            )

    async def _fetch(
        self, segments: list[RemoteLogSegmentMetadata]
    ) -> dict[UUID, bytes | DamagedObject]:
        fetched: dict[UUID, bytes | DamagedObject] = {}

        async def fetch(metadata: RemoteLogSegmentMetadata) -> None:
            try:
                raw = await self._rsm.fetch_index(metadata, SegmentFile.INDEX)
                fetched[metadata.segment_id.id] = raw
            except DamagedObject as damage:
                fetched[metadata.segment_id.id] = damage

        await for_each(segments, fetch, FETCHES_MAX)
        return fetched
