"""Merges one partition's small segments, safely beside archivers, readers and other mergers.

The merged segment is copied by the archiver's own copier: a new segment id, STARTED, its objects,
FINISHED. Until that last word nothing has changed for anybody; with it, readers see the merged
segment above the first one that it replaces, and each offset once. Those replaced stay what they
are until the rule for spare copies takes them (`merge_plan`), with the grace of every deletion. So
a merger that is killed at any step leaves an attempt that is removed as any other, or is done.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from fetchproxy.errors import CompactedLog, CopyOvertaken, CorruptSegment, ObjectNotFound
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.remote_log.copier import SegmentCopier
from fetchproxy.remote_log.merging.merge_plan import Segments, plan_merges, still_stand
from fetchproxy.remote_log.merging.merged_log import merged_log
from fetchproxy.remote_log.sources.segment_writer import SegmentWriter
from fetchproxy.remote_log.sources.spool import Spool
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)

CHUNK_BYTES = 4 * 1024 * 1024
MERGED_BYTES_MAX = 1024 * 1024 * 1024  # Kafka's own default of a segment (log.segment.bytes)


@dataclass(frozen=True, slots=True)
class MergedPartition:
    """`replaced` segments became `merged` ones of `size_bytes` in all.

    `overtaken`: merges given up because somebody has changed what they were of; `refused`: what
    could not be merged, and why. With a dry run: what would be done.
    """

    tip: TopicIdPartition
    merged: int = 0
    replaced: int = 0
    size_bytes: int = 0
    overtaken: int = 0
    refused: tuple[str, ...] = ()


class PartitionMerger:
    """One for any number of partitions, one at a time each."""

    def __init__(
        self,
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        copier: SegmentCopier,
        spool: Spool,
        *,
        bytes_max: int = MERGED_BYTES_MAX,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._rsm = rsm
        self._rlmm = rlmm
        self._copier = copier
        self._spool = spool
        self._bytes_max = bytes_max
        self._chunk_bytes = chunk_bytes

    async def plan(self, tip: TopicIdPartition) -> list[Segments]:
        """None of a partition that is being deleted. Raises RemoteStorageError."""
        now = asyncio.get_running_loop().time()
        if await self._rlmm.partition_deletion(tip, now) is not None:
            return []
        view = await self._rlmm.refresh(tip, now)
        segments = self._rlmm.list_remote_log_segments(tip)
        return plan_merges(segments, view, bytes_max=self._bytes_max)

    async def merge(self, tip: TopicIdPartition) -> MergedPartition:
        """All that the plan has now. Raises RemoteStorageError, OSError of the spool's disk.

        What was merged until then counts; a next run goes on from there.
        """
        merged = replaced = size_bytes = overtaken = 0
        refused: list[str] = []
        for sources in await self.plan(tip):
            try:
                finished = await self._merge(sources)
            except CopyOvertaken as error:
                overtaken += 1
                self._note("merge_overtaken", sources, error)
                continue
            except (CorruptSegment, CompactedLog, ObjectNotFound) as error:
                if await self._stand(sources):
                    offsets = f"{sources[0].start_offset} to {sources[-1].end_offset}"
                    refused.append(f"{tip}, offsets {offsets}: {error}")
                    self._note("merge_refused", sources, error)
                else:
                    overtaken += 1  # deleted while it was read
                continue
            merged += 1
            replaced += len(sources)
            size_bytes += finished.segment_size_bytes
        return MergedPartition(tip, merged, replaced, size_bytes, overtaken, tuple(refused))

    async def _merge(self, sources: Segments) -> RemoteLogSegmentMetadata:
        tip = sources[0].topic_id_partition
        writer = SegmentWriter(tip, sources[0].start_offset, self._spool)
        try:
            whole = await merged_log(self._rsm, sources, writer, self._chunk_bytes)
            finished = await self._copier.copy(
                whole.segment, whole.lineage, lambda: self._confirm(sources)
            )
        finally:
            await writer.discard()
        log.info(
            "segments_merged",
            topic=tip.topic,
            partition=tip.partition,
            segment_id=str(finished.segment_id.id),
            base_offset=finished.start_offset,
            end_offset=finished.end_offset,
            size_bytes=finished.segment_size_bytes,
            segments=len(sources),
        )
        return finished

    async def _confirm(self, sources: Segments) -> None:
        """The last word before the merged segment counts: see `SegmentCopier.copy`."""
        if not await self._stand(sources):
            raise CopyOvertaken(
                f"{sources[0].topic_id_partition}: the segments from offset "
                f"{sources[0].start_offset} to {sources[-1].end_offset} have changed meanwhile"
            )

    async def _stand(self, sources: Segments) -> bool:
        tip = sources[0].topic_id_partition
        now = asyncio.get_running_loop().time()
        if await self._rlmm.partition_deletion(tip, now) is not None:
            return False
        view = await self._rlmm.refresh(tip, now)
        return still_stand(sources, self._rlmm.list_remote_log_segments(tip), view)

    @staticmethod
    def _note(event: str, sources: Segments, error: Exception) -> None:
        tip = sources[0].topic_id_partition
        log.warning(
            event,
            topic=tip.topic,
            partition=tip.partition,
            base_offset=sources[0].start_offset,
            end_offset=sources[-1].end_offset,
            error=str(error),
        )
