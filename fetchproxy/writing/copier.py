"""Copies one accumulated segment to the store, in two phases, and removes copies that failed.

The order is COPY_SEGMENT_STARTED, all objects, COPY_SEGMENT_FINISHED: a reader sees a segment whole
or not at all. Every attempt has a new RemoteLogSegmentId, so none overwrites objects of another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from itertools import count
from uuid import UUID

import structlog

from fetchproxy.config.memory_plan import PART_BYTES
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
    CompactedCopy,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.observability import metrics
from fetchproxy.observability.ages import LAST_SUCCESSES, Activity
from fetchproxy.observability.tracing import span
from fetchproxy.runtime.retrying import Backoff
from fetchproxy.segments.contents import AccumulatedSegment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.side_files import encode_aborted, encode_epochs
from fetchproxy.storage.packed_logs import LogSegmentData
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.writing.deletion.segment_deletion import SegmentDeletion

log = structlog.get_logger(__name__)

_State = RemoteLogSegmentState

# Entries of an index that are encoded on the event loop, some 5 µs each.
ENCODED_AT_ONCE = 100
# The store has used up its tries by then (`stores.retries`). Within copy_max_ms.
FINISH_BACKOFF = Backoff(initial_ms=1_000, max_ms=30_000, jitter=0.2)


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """A copy in progress. `started_at` is loop time (s); the copy ends within copy_max_ms."""

    segment_id: UUID
    base_offset: int
    size_bytes: int
    started_at: float


@dataclass(eq=False, repr=False)
class SegmentCopier:
    """Copies segments to the store in two phases. `wall_clock_ms` stamps the metadata;
    `uuid_factory` makes segment ids. `compacted`: the copy of a compacted log that the segments
    belong to; None: the one that the archive shows, if there is any.
    """

    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    _: KW_ONLY
    copy_max_ms: int
    wall_clock_ms: Callable[[], int]
    uuid_factory: Callable[[], UUID]
    compacted: CompactedCopy | None = None
    # Places of uploads of more than a part, which take several parts' memory each.
    long_uploads: asyncio.Semaphore | None = None

    def __post_init__(self) -> None:
        self._deletion = SegmentDeletion(self.rsm, self.rlmm, self.wall_clock_ms)
        self._running: dict[TopicIdPartition, CopyProgress] = {}

    def running(self, tp: TopicIdPartition) -> CopyProgress | None:
        """The partition's copy in progress, if any. Never blocks."""
        return self._running.get(tp)

    async def copy(
        self,
        segment: AccumulatedSegment,
        lineage: Sequence[EpochStart],
        confirm: Callable[[], Awaitable[None]],
    ) -> RemoteLogSegmentMetadata:
        """Copy the segment; return the finished metadata. `lineage`: the archive's epochs before
        the segment. `confirm`: the last check before the copy counts; its error ends the copy.

        Raises RemoteStorageError; StorageUnavailable also after copy_max_ms; CorruptSegment or
        OSError if the segment's file has changed or is unreadable; errors of `confirm`. Then the
        objects are removed, or stay as a dangling attempt. Look at the archive again before the
        next attempt: a copy whose last response was lost may count. It is never removed, as readers
        and archivers may rely on it already.
        """
        if self.long_uploads is not None and segment.size_bytes > PART_BYTES:
            async with self.long_uploads:
                return await self._copy_in_time(segment, lineage, confirm)
        return await self._copy_in_time(segment, lineage, confirm)

    async def _copy_in_time(
        self,
        segment: AccumulatedSegment,
        lineage: Sequence[EpochStart],
        confirm: Callable[[], Awaitable[None]],
    ) -> RemoteLogSegmentMetadata:
        await segment.check_size()  # a lost file must not look like a store error
        metadata = self._metadata(segment)
        metrics.REMOTE_COPY_REQUESTS.labels(segment.tp.topic).inc()
        now = asyncio.get_running_loop().time()
        self._running[segment.tp] = CopyProgress(
            metadata.segment_id.id, metadata.start_offset, segment.size_bytes, started_at=now
        )
        deadline = now + self.copy_max_ms / 1000
        topic, partition = segment.tp.topic, segment.tp.partition
        try:
            with span("copy segment", topic=topic, partition=partition):
                return await self._copy(segment, metadata, lineage, confirm, deadline)
        finally:
            del self._running[segment.tp]

    async def _copy(
        self,
        segment: AccumulatedSegment,
        metadata: RemoteLogSegmentMetadata,
        lineage: Sequence[EpochStart],
        confirm: Callable[[], Awaitable[None]],
        deadline: float,
    ) -> RemoteLogSegmentMetadata:
        try:
            async with self._in_time(segment, deadline):
                await self._upload(segment, metadata, lineage, confirm)
        except (FetchProxyError, OSError) as error:
            self._count_failure(metadata, error)
            await self.remove(metadata)
            raise
        return await self._finish(segment, metadata, deadline)

    async def remove(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Remove a failed copy. Best effort: the rest is found later as a dangling attempt. Objects
        go only after DELETE_SEGMENT_STARTED is recorded, so no reader finds a finished segment
        without them.
        """
        try:
            async with asyncio.timeout(self.copy_max_ms / 1000):
                await self._deletion.delete(metadata)
        except (RemoteStorageError, TimeoutError) as error:
            self._note("segment_removal_failed", metadata, error)
        except ValueError as error:
            # COPY_SEGMENT_STARTED was not recorded, or another archiver has removed the copy.
            self._note("segment_removal_not_needed", metadata, error)

    async def _upload(
        self,
        segment: AccumulatedSegment,
        metadata: RemoteLogSegmentMetadata,
        lineage: Sequence[EpochStart],
        confirm: Callable[[], Awaitable[None]],
    ) -> None:
        await self._record(metadata)
        # Encoding the index of a 1 GiB segment would hold the loop for a noticeable time.
        data = (
            self._data(segment, metadata, lineage)
            if len(segment.index) <= ENCODED_AT_ONCE
            else await asyncio.to_thread(self._data, segment, metadata, lineage)
        )
        await self.rsm.copy_log_segment_data(metadata, data)
        # A file that is the same before and after the upload did not change in between.
        await segment.check_log()
        await confirm()

    async def _finish(
        self, segment: AccumulatedSegment, metadata: RemoteLogSegmentMetadata, deadline: float
    ) -> RemoteLogSegmentMetadata:
        """Record the copy as finished. From here on it may count, even if recording fails."""
        finished = metadata.with_state(_State.COPY_SEGMENT_FINISHED, self.wall_clock_ms())
        try:
            async with self._in_time(segment, deadline) as refusals:
                await self._record_with_retries(finished, deadline, refusals)
        except FetchProxyError as error:
            self._count_failure(metadata, error)
            await self._delete_if_superseded(metadata)
            raise
        late = asyncio.get_running_loop().time() >= deadline
        if late and await self._delete_if_superseded(metadata):
            raise StorageUnavailable(f"copy of {segment.tp} was finished too late")
        metrics.REMOTE_COPY_BYTES.labels(segment.tp.topic).inc(segment.size_bytes)
        LAST_SUCCESSES.note(Activity.COPY, asyncio.get_running_loop().time())
        return finished

    async def _record_with_retries(
        self, finished: RemoteLogSegmentMetadata, deadline: float, refusals: list[Exception]
    ) -> None:
        """As `_record`, again and again while the store refuses this small write: the whole log is
        uploaded already. `refusals`: gets the store's errors.
        """
        clock = asyncio.get_running_loop().time
        for failures in count(1):
            try:
                await self.rlmm.put(finished)
                LAST_SUCCESSES.note(Activity.METADATA_WRITE, clock())
                return None
            except ValueError as error:
                if failures > 1 and self._is_recorded(finished):
                    return None  # by an earlier write, whose response was lost
                raise _copy_refused_error(finished, error) from error
            except RemoteStorageError as error:
                refusals.append(error)
                jitter = finished.segment_id.id.int % 1024 / 1024
                pause_s = FINISH_BACKOFF.pause_ms(failures, jitter) / 1000
                if not error.retriable or clock() + pause_s >= deadline:
                    raise
                self._note("segment_finish_delayed", finished, error)
            await asyncio.sleep(pause_s)

    def _is_recorded(self, finished: RemoteLogSegmentMetadata) -> bool:
        recorded = self.rlmm.list_remote_log_segments(finished.topic_id_partition)
        return any(one.segment_id == finished.segment_id and one.is_finished for one in recorded)

    async def _delete_if_superseded(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Whether another archiver took the unfinished copy for a dangling attempt and deleted it;
        then delete the rest. Best effort: `verify` reports what stays; it goes once others have its
        offsets.
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
    async def _in_time(
        self, segment: AccumulatedSegment, deadline: float
    ) -> AsyncIterator[list[Exception]]:
        """Limit the block to `deadline`, also if a suspended process misses its timer. Raises the
        last error that the block has put into the list, if it is over.
        """
        refusals: list[Exception] = []
        late = StorageUnavailable(
            f"copy of {segment.tp} at {segment.start_offset} took over {self.copy_max_ms} ms"
        )
        if asyncio.get_running_loop().time() >= deadline:
            raise late
        try:
            async with asyncio.timeout_at(deadline):
                yield refusals
        except TimeoutError:
            raise (refusals[-1] if refusals else late) from None

    def _count_failure(self, metadata: RemoteLogSegmentMetadata, error: Exception) -> None:
        metrics.REMOTE_COPY_ERRORS.labels(metadata.topic_id_partition.topic).inc()
        self._note("segment_copy_failed", metadata, error)

    async def _record(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Record `metadata`. The copy fails if another archiver removed it as a dangling one."""
        try:
            await self.rlmm.put(metadata)
        except ValueError as error:
            raise _copy_refused_error(metadata, error) from error
        LAST_SUCCESSES.note(Activity.METADATA_WRITE, asyncio.get_running_loop().time())

    def _new_id(self, tp: TopicIdPartition) -> UUID:
        view, new_id = self.rlmm.view(tp), self.uuid_factory()
        copy = self.compacted or (None if view is None else view.history.compacted)
        return new_id if copy is None else copy.segment_id(new_id)

    def _metadata(self, segment: AccumulatedSegment) -> RemoteLogSegmentMetadata:
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(segment.tp, self._new_id(segment.tp)),
            start_offset=segment.start_offset,
            end_offset=segment.end_offset,
            max_timestamp_ms=segment.max_timestamp_ms,
            event_timestamp_ms=self.wall_clock_ms(),
            segment_leader_epochs=segment.leader_epochs,
            segment_size_bytes=segment.size_bytes,
            state=_State.COPY_SEGMENT_STARTED,
            has_aborted_txns=bool(segment.aborted),
            packed=self.rsm.packs(compressible=segment.compressible),
        )

    def _data(
        self,
        segment: AccumulatedSegment,
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
        """At debug level only: the caller of `copy` gets the error and logs it."""
        log.debug(event, **metadata.logged, error=str(error) or type(error).__name__)


def _copy_refused_error(
    metadata: RemoteLogSegmentMetadata, error: ValueError
) -> StorageUnavailable:
    return StorageUnavailable(
        f"copy of {metadata.topic_id_partition} at {metadata.start_offset}: {error}"
    )
