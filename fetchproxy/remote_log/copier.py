"""Copies one gathered segment to the store, in two phases, and removes copies that failed.

COPY_SEGMENT_STARTED is recorded, then all objects are written, then COPY_SEGMENT_FINISHED: a reader
sees a segment whole or not at all. Every attempt has a new RemoteLogSegmentId, so nothing that an
earlier or a parallel attempt wrote is ever overwritten. It does not decide what is copied or when.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

import structlog

from fetchproxy.errors import RemoteStorageError, StorageUnavailable
from fetchproxy.index.leader_epochs import encode_epochs
from fetchproxy.index.transaction_index import encode_aborted
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.metadata.lineage import extend_lineage
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from fetchproxy.observability.metrics import (
    REMOTE_COPY_BYTES,
    REMOTE_COPY_ERRORS,
    REMOTE_COPY_REQUESTS,
)
from fetchproxy.remote_log.segment_writer import GatheredSegment
from fetchproxy.storage.layout import SegmentFile
from fetchproxy.storage.remote_storage_manager import LogSegmentData, RemoteStorageManager

log = structlog.get_logger(__name__)

State = RemoteLogSegmentState


class SegmentCopier:
    """`wall_clock_ms` stamps the metadata; `uuid_factory` makes segment ids."""

    def __init__(
        self,
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        *,
        copy_max_ms: int,
        wall_clock_ms: Callable[[], int],
        uuid_factory: Callable[[], UUID],
    ) -> None:
        self._rsm = rsm
        self._rlmm = rlmm
        self._copy_max_ms = copy_max_ms
        self._wall_clock_ms = wall_clock_ms
        self._uuid_factory = uuid_factory

    async def copy(
        self, segment: GatheredSegment, lineage: Sequence[EpochStart]
    ) -> RemoteLogSegmentMetadata:
        """The metadata of the finished copy. `lineage`: the archive's epochs before the segment.

        Raises RemoteStorageError, StorageUnavailable also after copy_max_ms. Then what was written
        has been removed, or is marked for removal or left as a dangling attempt; the archive must
        be looked at again before a next attempt, as a copy whose last answer was lost may count.
        """
        metadata = self._metadata(segment)
        REMOTE_COPY_REQUESTS.labels(segment.tip.topic).inc()
        try:
            finished = await self._copy_in_time(segment, metadata, lineage)
        except RemoteStorageError as error:
            REMOTE_COPY_ERRORS.labels(segment.tip.topic).inc()
            self._warn("segment_copy_failed", metadata, error)
            await self.remove(metadata)
            raise
        REMOTE_COPY_BYTES.labels(segment.tip.topic).inc(segment.size_bytes)
        return finished

    async def remove(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Best effort, logged: what is left is found as a dangling attempt later.

        Objects go only once DELETE_SEGMENT_STARTED is recorded, or a reader could find a segment
        finished whose objects are gone.
        """
        try:
            async with asyncio.timeout(self._copy_max_ms / 1000):
                await self._put(metadata, State.DELETE_SEGMENT_STARTED)
                await self._rsm.delete_log_segment_data(metadata)
                await self._put(metadata, State.DELETE_SEGMENT_FINISHED)
        except (RemoteStorageError, TimeoutError) as error:
            self._warn("segment_removal_failed", metadata, error)
            return False
        except ValueError as error:
            # Not known as begun: COPY_SEGMENT_STARTED itself did not get through, or another
            # archiver has removed it.
            self._warn("segment_removal_not_needed", metadata, error)
            return False
        return True

    async def _copy_in_time(
        self,
        segment: GatheredSegment,
        metadata: RemoteLogSegmentMetadata,
        lineage: Sequence[EpochStart],
    ) -> RemoteLogSegmentMetadata:
        try:
            async with asyncio.timeout(self._copy_max_ms / 1000):
                await self._rlmm.put(metadata)
                await self._rsm.copy_log_segment_data(
                    metadata, self._data(segment, metadata, lineage)
                )
                return await self._put(metadata, State.COPY_SEGMENT_FINISHED)
        except TimeoutError:
            raise StorageUnavailable(
                f"copy of {segment.tip} at {segment.start_offset} took over {self._copy_max_ms} ms"
            ) from None

    async def _put(
        self, metadata: RemoteLogSegmentMetadata, state: RemoteLogSegmentState
    ) -> RemoteLogSegmentMetadata:
        changed = metadata.with_state(state, self._wall_clock_ms())
        await self._rlmm.put(changed)
        return changed

    def _metadata(self, segment: GatheredSegment) -> RemoteLogSegmentMetadata:
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(segment.tip, self._uuid_factory()),
            start_offset=segment.start_offset,
            end_offset=segment.end_offset,
            max_timestamp_ms=segment.max_timestamp_ms,
            event_timestamp_ms=self._wall_clock_ms(),
            segment_leader_epochs=segment.leader_epochs,
            segment_size_bytes=segment.size_bytes,
            state=State.COPY_SEGMENT_STARTED,
            has_aborted_txns=bool(segment.aborted),
        )

    def _data(
        self,
        segment: GatheredSegment,
        metadata: RemoteLogSegmentMetadata,
        lineage: Sequence[EpochStart],
    ) -> LogSegmentData:
        return LogSegmentData(
            log=segment.log,
            index=segment.index(self._rsm.object_key(metadata, SegmentFile.LOG)),
            txn=encode_aborted(segment.aborted) if segment.aborted else None,
            epochs=encode_epochs(extend_lineage(lineage, segment.leader_epochs)),
        )

    @staticmethod
    def _warn(event: str, metadata: RemoteLogSegmentMetadata, error: Exception) -> None:
        log.warning(
            event,
            topic=metadata.topic_id_partition.topic,
            partition=metadata.topic_id_partition.partition,
            segment_id=str(metadata.segment_id.id),
            base_offset=metadata.start_offset,
            error=str(error) or type(error).__name__,
        )
