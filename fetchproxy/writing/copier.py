"""Copies one gathered segment to the store, in two phases, and removes copies that failed.

COPY_SEGMENT_STARTED is recorded, then all objects are written, then COPY_SEGMENT_FINISHED: a reader
sees a segment whole or not at all. Every attempt has a new RemoteLogSegmentId, so nothing that
another attempt wrote is ever overwritten.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from uuid import UUID

import structlog

from fetchproxy.errors import (
    FetchProxyError,
    ObjectNotFound,
    RemoteStorageError,
    StorageUnavailable,
)
from fetchproxy.metadata.lineage import extend_lineage
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import (
    ByteRange,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.observability import metrics
from fetchproxy.segments.contents import GatheredSegment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.side_files import encode_aborted, encode_epochs
from fetchproxy.storage.packed_logs import LogSegmentData
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)

State = RemoteLogSegmentState


async def delete_segment(
    rsm: RemoteStorageManager,
    rlmm: RemoteLogMetadataManager,
    segment: RemoteLogSegmentMetadata,
    wall_clock_ms: Callable[[], int],
) -> None:
    """At once, whoever may be reading it. Raises RemoteStorageError, ValueError."""
    if segment.state is not State.DELETE_SEGMENT_STARTED:
        await rlmm.put(segment.with_state(State.DELETE_SEGMENT_STARTED, wall_clock_ms()))
    await rsm.delete_log_segment_data(segment)
    await rlmm.put(segment.with_state(State.DELETE_SEGMENT_FINISHED, wall_clock_ms()))


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """A copy that is under way. `started_at` is loop time (s); it is ended after copy_max_ms."""

    segment_id: UUID
    base_offset: int
    size_bytes: int
    started_at: float


@dataclass(eq=False, repr=False)
class SegmentCopier:
    """`wall_clock_ms` stamps the metadata; `uuid_factory` makes segment ids."""

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    _: KW_ONLY
    copy_max_ms: int
    wall_clock_ms: Callable[[], int]
    uuid_factory: Callable[[], UUID]

    def __post_init__(self) -> None:
        self._running: dict[TopicIdPartition, CopyProgress] = {}

    def running(self, tip: TopicIdPartition) -> CopyProgress | None:
        """The partition's copy that is under way. Never blocks."""
        return self._running.get(tip)

    async def copy(
        self,
        segment: GatheredSegment,
        lineage: Sequence[EpochStart],
        confirm: Callable[[], Awaitable[None]],
    ) -> RemoteLogSegmentMetadata:
        """The metadata of the finished copy. `lineage`: the archive's epochs before the segment.
        `confirm` has the last word before the copy counts: what it raises ends the copy.

        Raises RemoteStorageError, StorageUnavailable also after copy_max_ms; CorruptSegment or
        OSError where the segment's file has changed or cannot be read; as `confirm`. Then what was
        written has been removed, or is left as a dangling attempt. The archive must be looked at
        again before a next attempt: a copy whose last answer was lost may count. That one is never
        removed, as readers and other archivers may rely on it already.
        """
        await segment.check_size()  # a lost file must not look like a store that fails
        metadata = self._metadata(segment)
        metrics.REMOTE_COPY_REQUESTS.labels(segment.tip.topic).inc()
        now = asyncio.get_running_loop().time()
        self._running[segment.tip] = CopyProgress(
            metadata.segment_id.id, metadata.start_offset, segment.size_bytes, started_at=now
        )
        deadline = now + self.copy_max_ms / 1000
        try:
            async with self._in_time(segment, deadline):
                await self._upload(segment, metadata, lineage, confirm)
        except (FetchProxyError, OSError) as error:
            self._count_failure(metadata, error)
            await self.remove(metadata)
            raise
        else:
            return await self._finish(segment, metadata, deadline)
        finally:
            del self._running[segment.tip]

    async def remove(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Best effort: what is left is found as a dangling attempt later. Objects go only once
        DELETE_SEGMENT_STARTED is recorded, or a reader could find a finished segment without them.
        """
        try:
            async with asyncio.timeout(self.copy_max_ms / 1000):
                await delete_segment(self.rsm, self.rlmm, metadata, self.wall_clock_ms)
        except (RemoteStorageError, TimeoutError) as error:
            self._note("segment_removal_failed", metadata, error)
        except ValueError as error:
            # Not known as begun: COPY_SEGMENT_STARTED itself did not get through, or another
            # archiver has removed it.
            self._note("segment_removal_not_needed", metadata, error)

    async def _upload(
        self,
        segment: GatheredSegment,
        metadata: RemoteLogSegmentMetadata,
        lineage: Sequence[EpochStart],
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        await self._record(metadata)
        # The index of a segment of 1 GiB takes long enough to be felt on the loop.
        data = await asyncio.to_thread(self._data, segment, metadata, lineage)
        await self.rsm.copy_log_segment_data(metadata, data)
        # Now, as a file that is what it was before and after was so in between.
        await segment.check_log()
        await confirm()

    async def _finish(
        self, segment: GatheredSegment, metadata: RemoteLogSegmentMetadata, deadline: float
    ) -> RemoteLogSegmentMetadata:
        """From here on the copy may count, whatever is answered."""
        finished = metadata.with_state(State.COPY_SEGMENT_FINISHED, self.wall_clock_ms())
        try:
            async with self._in_time(segment, deadline):
                await self._record(finished)
        except FetchProxyError as error:
            self._count_failure(metadata, error)
            await self._has_taken_back(metadata)
            raise
        late = asyncio.get_running_loop().time() >= deadline
        if late and await self._has_taken_back(metadata):
            raise StorageUnavailable(f"copy of {segment.tip} was finished too late")
        metrics.REMOTE_COPY_BYTES.labels(segment.tip.topic).inc(segment.size_bytes)
        return finished

    async def _has_taken_back(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Said too late, it may name what another archiver took for a dangling attempt and deleted.
        Best effort: what stays is told by `verify`, and goes once others have its offsets.
        """
        try:
            async with asyncio.timeout(self.copy_max_ms / 1000):
                await self.rsm.fetch_log_segment(metadata, ByteRange(0, 1))
        except ObjectNotFound as error:
            self._note("segment_finished_too_late", metadata, error)
            with suppress(RemoteStorageError, TimeoutError):
                async with asyncio.timeout(self.copy_max_ms / 1000):
                    await self.rsm.delete_log_segment_data(metadata)
            return True
        except (RemoteStorageError, TimeoutError) as error:
            self._note("segment_not_looked_at", metadata, error)
        return False

    @asynccontextmanager
    async def _in_time(self, segment: GatheredSegment, deadline: float) -> AsyncIterator[None]:
        """Also for a process that was stopped meanwhile and has not heard of its timer yet."""
        late = StorageUnavailable(
            f"copy of {segment.tip} at {segment.start_offset} took over {self.copy_max_ms} ms"
        )
        if asyncio.get_running_loop().time() >= deadline:
            raise late
        try:
            async with asyncio.timeout_at(deadline):
                yield
        except TimeoutError:
            raise late from None

    def _count_failure(self, metadata: RemoteLogSegmentMetadata, error: Exception) -> None:
        metrics.REMOTE_COPY_ERRORS.labels(metadata.topic_id_partition.topic).inc()
        self._note("segment_copy_failed", metadata, error)

    async def _record(self, metadata: RemoteLogSegmentMetadata) -> None:
        """A copy that another archiver took for a dangling one and removed is one that failed."""
        try:
            await self.rlmm.put(metadata)
        except ValueError as error:
            raise StorageUnavailable(
                f"copy of {metadata.topic_id_partition} at {metadata.start_offset}: {error}"
            ) from error

    def _metadata(self, segment: GatheredSegment) -> RemoteLogSegmentMetadata:
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(segment.tip, self.uuid_factory()),
            start_offset=segment.start_offset,
            end_offset=segment.end_offset,
            max_timestamp_ms=segment.max_timestamp_ms,
            event_timestamp_ms=self.wall_clock_ms(),
            segment_leader_epochs=segment.leader_epochs,
            segment_size_bytes=segment.size_bytes,
            state=State.COPY_SEGMENT_STARTED,
            has_aborted_txns=bool(segment.aborted),
            packed=self.rsm.packed.packs(compressible=segment.compressible),
        )

    def _data(
        self,
        segment: GatheredSegment,
        metadata: RemoteLogSegmentMetadata,
        lineage: Sequence[EpochStart],
    ) -> LogSegmentData:
        return LogSegmentData(
            log=segment.log,
            index=segment.index.encoded(self.rsm.object_key(metadata, SegmentFile.LOG)),
            txn=encode_aborted(segment.aborted) if segment.aborted else None,
            epochs=encode_epochs(extend_lineage(lineage, segment.leader_epochs)),
            offset_index=segment.kafka_files.offset_index,
            time_index=segment.kafka_files.time_index,
            producer_snapshot=segment.kafka_files.producer_snapshot,
            log_settled=segment.log_settled,
            log_stream_key=segment.stream_key,
            log_compressible=segment.compressible,
        )

    @staticmethod
    def _note(event: str, metadata: RemoteLogSegmentMetadata, error: Exception) -> None:
        """For who looks closely: whoever asked for the copy hears of its error and says it."""
        log.debug(event, **metadata.logged, error=str(error) or type(error).__name__)
