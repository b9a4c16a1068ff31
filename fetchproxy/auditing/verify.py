"""Verification of an archive: every byte against its CRC, its index and its metadata."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fetchproxy.auditing.completeness import CompletenessCheck, finished, refreshed
from fetchproxy.auditing.reports import VerifyReport
from fetchproxy.auditing.segment_verifier import SegmentVerifier, check_unnamed_objects
from fetchproxy.errors import (
    CorruptSegment,
    ObjectNotFound,
    RemoteStorageError,
    StorageUnavailable,
)
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    FIRST_HISTORY,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.observability.health import Condition, Kind, Offsets, of_object
from fetchproxy.segments.check import first_newer
from fetchproxy.segments.description import decode_segment
from fetchproxy.segments.leader_epochs import epoch_at
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.overlaps import first_difference
from fetchproxy.segments.transaction_check import TxnCheck
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.stores.retries import each_object_alone
from fetchproxy.storage.watched_store import FAILING_IN_A_ROW_MAX

_Segments = list[RemoteLogSegmentMetadata]
VERIFY_CHUNK_BYTES = 4 * 1024 * 1024
_Progress = Callable[[int, int], None]


def by_history(rlmm: RemoteLogMetadataManager, tp: TopicIdPartition) -> list[_Segments]:
    """Finished segments by start offset: first the shown log, then each log put aside, and each
    other copy of a compacted log.
    """
    segments, view = rlmm.list_remote_log_segments(tp), rlmm.view(tp)
    history = FIRST_HISTORY if view is None else view.history
    borders = sorted({*history.earlier, history.after_epoch, history.kept_epoch})
    segments_by_history: dict[int, _Segments] = {}
    for segment in finished(segments):
        log = -1 if history.shows(segment) else bisect_left(borders, segment.last_epoch)
        if not history.is_of_copy(segment):
            log = len(borders) + 1 + (segment.segment_id.id.int >> 64)
        segments_by_history.setdefault(log, []).append(segment)
    return [segments_by_history[log] for log in sorted(segments_by_history)]


# Verification only reads, so it may run beside archivers and proxies. Segments that retention
# deletes during the run are not a fault.


async def verify_partition(
    storage: RemoteStorage,
    rlmm: StoreBackedRemoteLogMetadataManager,
    tp: TopicIdPartition,
    *,
    metadata_topic: RemoteLogMetadataManager | None = None,
    on_progress: _Progress = lambda done, total: None,
    chunk_bytes: int = VERIFY_CHUNK_BYTES,
) -> VerifyReport:
    """Check every finished segment in offset order, also against `metadata_topic`. What cannot be
    read is tried once more at the end, and is then named in the report.

    `on_progress(bytes_done, bytes_total)` counts log bytes. Memory: the metadata of all segments, a
    chunk, one segment's index and the largest batch (a batch with a corrupt size may take up to its
    segment's size). Raises RemoteStorageError.
    """
    check = _PartitionCheck(storage.rsm, storage.objects, rlmm, tp, on_progress, chunk_bytes)
    with each_object_alone():
        lost = await check.catalog()
        check.add_progress(0)
        completeness = CompletenessCheck(storage.objects, rlmm, tp, metadata_topic)
        complete = await completeness.check(lost)
        for segments in by_history(rlmm, tp):
            await check.verify_log(segments)
        check.check_outage()
        if check.report.unread or complete.unread:
            try:
                await check.verify_unread()
                complete = await completeness.check(lost)
            except RemoteStorageError as error:
                if not error.retriable:
                    raise
                # Now the store fails: what is known of the partition is still worth telling.
    check.report.add(complete)
    check.report.sort()
    return check.report


async def metadata_faults(
    storage: RemoteStorage, rlmm: StoreBackedRemoteLogMetadataManager, tp: TopicIdPartition
) -> VerifyReport:
    """Unreadable or lost metadata. Refreshes `rlmm`. Raises RemoteStorageError."""
    check = _PartitionCheck(storage.rsm, storage.objects, rlmm, tp)
    await check.catalog()
    check.report.sort()
    return check.report


@dataclass(slots=True)
class _PartitionCheck:
    rsm: RemoteStorageManager
    objects: ArchiveObjects
    rlmm: StoreBackedRemoteLogMetadataManager
    tp: TopicIdPartition
    on_progress: _Progress = lambda done, total: None
    chunk_bytes: int = VERIFY_CHUNK_BYTES
    bytes_total: int = 0
    report: VerifyReport = field(default_factory=lambda: VerifyReport(partitions=1))
    _checked: set[RemoteLogSegmentId] = field(default_factory=set)
    _unread_in_a_row: int = 0

    def add_progress(self, more_bytes: int) -> None:
        self.report.size_bytes += more_bytes
        self.on_progress(self.report.size_bytes, self.bytes_total)

    async def catalog(self) -> list[Offsets]:
        """Read the metadata. Returns the offsets of segments that lack only their metadata."""
        await refreshed(self.rlmm, self.tp)
        for problem in self.rlmm.problems(self.tp):
            (self.report.unread if problem.retriable else self.report.faults).append(problem)
        segments = self.rlmm.list_remote_log_segments(self.tp)
        finished_segments = finished(segments)
        faults, lost_segments = await check_unnamed_objects(
            self.rsm, self.objects, self.rlmm, self.tp, finished_segments
        )
        self.report.faults += faults
        self.bytes_total = sum(segment.segment_size_bytes for segment in finished_segments)
        self.report.segments_unfinished = len(segments) - len(finished_segments)
        return lost_segments

    async def verify_log(self, segments: _Segments) -> None:
        view = self.rlmm.view(self.tp)
        settled_below = 0 if view is None else view.history.kept_below
        # By the start offset of the chain's next segment. Copies of a log may overlap after two
        # archivers copied it at once, or after a merge.
        chains: dict[int, TxnCheck] = {}
        expected_offset: int | None = None
        before: RemoteLogSegmentMetadata | None = (
            None  # the segment that ends before `expected_offset`
        )
        unconfirmed: _Segments = []  # since the last segment with known `.epochs`
        # Metadata keys of segments with an end that is already reported as wrong.
        reported_keys: set[str | None] = set()
        for metadata in segments:
            start = metadata.start_offset
            # At the end of a log kept by `fetchproxy resolve`, another log begins. A batch may
            # reach over that offset, and the transactions of the two logs are separate.
            continues = start in chains and start != settled_below
            txns = chains.pop(start, None) if continues else None
            txns = txns or TxnCheck()
            chains = {offset: chain for offset, chain in chains.items() if offset >= start}
            chains[metadata.end_offset + 1] = txns
            segment = SegmentVerifier(self.rsm, metadata, txns, self.chunk_bytes, self.add_progress)
            if expected_offset is not None and before is not None and start < expected_offset:
                self.report.segments_overlapping += 1
                overlaps = overlap_faults(self.objects, before, metadata, settled_below)
                reported_keys.update(fault.object_key for fault in overlaps)
                self.report.faults += overlaps
            await segment.verify(continues=continues)
            await self._take(segment)
            if segment.lineage is not None:
                faults = lineage_faults(
                    self.objects, unconfirmed, metadata, segment.lineage, settled_below
                )
                self.report.faults += [
                    fault for fault in faults if fault.object_key not in reported_keys
                ]
                unconfirmed = []
            unconfirmed.append(metadata)
            if expected_offset is None or metadata.end_offset >= expected_offset:
                expected_offset, before = metadata.end_offset + 1, metadata

    async def _take(self, segment: SegmentVerifier, *, again: bool = False) -> None:
        """Add the segment's check to the report. `again`: it is the second one."""
        if (segment.faults or segment.unread) and await is_gone(self.objects, segment.metadata):
            self._checked.add(segment.metadata.segment_id)
            return
        self.report.unread += segment.unread
        if segment.unread and not again:
            self._unread_in_a_row += 1
            if self._unread_in_a_row >= FAILING_IN_A_ROW_MAX:
                self.check_outage()
            return
        self._unread_in_a_row = 0
        self._checked.add(segment.metadata.segment_id)
        self.report.segments += not segment.unread
        if self.rsm.encrypts and not segment.is_encrypted:
            key = self.rsm.object_key(segment.metadata, SegmentFile.LOG)
            self.report.not_encrypted.append(key)
        self.report.faults += segment.faults

    def check_outage(self) -> None:
        """Raises StorageUnavailable if the store gives out no segment any more."""
        count = self._unread_in_a_row
        if count >= FAILING_IN_A_ROW_MAX or (count > 1 and not self._checked):
            last = self.report.unread[-1]
            raise StorageUnavailable(
                f"{count} segments in a row could not be read: {last.where_and_what}"
            )

    async def verify_unread(self) -> None:
        """Check once more what could not be read, each segment by itself. Raises RemoteStorageError
        and leaves `report.unread` then.
        """
        await refreshed(self.rlmm, self.tp)
        before = self.report.unread
        self.report.unread = [
            problem for problem in self.rlmm.problems(self.tp) if problem.retriable
        ]
        try:
            for metadata in finished(self.rlmm.list_remote_log_segments(self.tp)):
                if metadata.segment_id not in self._checked:
                    segment = SegmentVerifier(
                        self.rsm, metadata, TxnCheck(), self.chunk_bytes, lambda read: None
                    )
                    await segment.verify(continues=False)
                    await self._take(segment, again=True)
        except RemoteStorageError:
            self.report.unread = before
            raise


async def is_gone(objects: ArchiveObjects, metadata: RemoteLogSegmentMetadata) -> bool:
    """True: retention has deleted the segment or is about to, which is not a fault."""
    key = objects.segment_metadata_key(metadata)
    try:
        now = decode_segment(await objects.get_segment_metadata(key), key)
    except ObjectNotFound:
        return True
    except CorruptSegment:
        return False
    return not now.is_finished


def lineage_faults(
    objects: ArchiveObjects,
    before: _Segments,
    metadata: RemoteLogSegmentMetadata,
    lineage: Sequence[EpochStart],
    settled_below: int,
) -> list[Condition]:
    """Faults of segments in `before` with records that a newer leader replaced, by `lineage`. These
    segments should end earlier. Below offset `settled_below`, an operator has decided which log
    counts.
    """
    faults = []
    for older in before:
        parting_offset = first_newer(older, lineage, settled_below)
        if parting_offset is not None:
            message = (
                f"its leader epoch from {parting_offset} on is older than in the leader epochs of "
                f"the segment from {metadata.start_offset}"
            )
            faults.append(_ends_too_late(objects, older, message, parting_offset))
    return faults


def overlap_faults(
    objects: ArchiveObjects,
    before: RemoteLogSegmentMetadata,
    metadata: RemoteLogSegmentMetadata,
    settled_below: int,
) -> list[Condition]:
    """Overlapping segments should be copies of the same log. At the offset where their lineages
    part, the older segment should end. Below `settled_below`, an operator has decided which log
    counts.
    """
    parting_offset = first_difference(before, metadata, settled_below)
    if parting_offset is None:
        return []
    older, newer = before, metadata
    if epoch_at(before.segment_leader_epochs, parting_offset) > epoch_at(
        metadata.segment_leader_epochs, parting_offset
    ):
        older, newer = metadata, before
    message = (
        f"overlaps the segment from {newer.start_offset}, whose leader epoch is newer "
        f"from {parting_offset} on"
    )
    return [_ends_too_late(objects, older, message, parting_offset)]


def _ends_too_late(
    objects: ArchiveObjects, segment: RemoteLogSegmentMetadata, message: str, parting_offset: int
) -> Condition:
    key = objects.segment_metadata_key(segment)
    return of_object(Kind.SEGMENT_DAMAGED, segment.topic_id_partition, key, message, parting_offset)
