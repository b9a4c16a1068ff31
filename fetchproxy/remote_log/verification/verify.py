"""Verification of a whole archive: every byte against its CRC, its index and its metadata.

Reads only, so it may run beside archivers and proxies: what retention deletes meanwhile is no
fault. What is true of one segment's bytes is decided in `segment_check`, of transactions in
`txn_check`; here is what is read, in which order, and what a store's answer means.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fetchproxy.errors import (
    CorruptSegment,
    ObjectNotFound,
    RangeNotSatisfiable,
    StorageUnavailable,
)
from fetchproxy.index.kafka_index_files import (
    offset_index_fault,
    snapshot_fault,
    time_index_fault,
)
from fetchproxy.index.leader_epochs import decode_epochs
from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.index.transaction_index import clip_aborted, decode_aborted
from fetchproxy.metadata.overlaps import first_difference
from fetchproxy.metadata.segment_json import decode_segment
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    AbortedTxn,
    ByteRange,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.remote_log.verification.partitions_at_once import for_each
from fetchproxy.remote_log.verification.segment_check import Next, SegmentCheck, clip_epochs
from fetchproxy.remote_log.verification.txn_check import TxnCheck
from fetchproxy.remote_log.verification.unnamed_objects import look_at_unnamed
from fetchproxy.remote_log.verification.verify_report import (
    Fault,
    Orphan,
    RecordedGap,
    VerifyReport,
)
from fetchproxy.storage.layout import KAFKA_FILES, SegmentFile
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

CHUNK_BYTES = 4 * 1024 * 1024
PARTITIONS_AT_ONCE = 4

Progress = Callable[[int, int], None]
OnFault = Callable[[Fault], None]


async def verify_archive(
    rsm: RemoteStorageManager,
    rlmm: StoreBackedRemoteLogMetadataManager,
    *,
    topics: re.Pattern[str] | None = None,
    partitions: Sequence[TopicIdPartition] | None = None,
    on_progress: Progress = lambda done, total: None,
    on_fault: OnFault = lambda fault: None,
    chunk_bytes: int = CHUNK_BYTES,
) -> VerifyReport:
    """Check every finished segment of `partitions`, or of topics whose whole name matches (all).

    `on_progress(bytes_done, bytes_total)` counts log bytes; `on_fault` is called as faults are
    found, the report has them sorted. A few partitions are read at once, each front to back.
    Memory: the metadata of all segments, and per partition read at once a chunk, one segment's
    index and the largest batch (a batch whose size is corrupt may claim up to its segment's size).
    Raises RemoteStorageError where the store does not answer: then nothing is known.
    """
    tips = await _partitions(rlmm, topics, partitions)
    run = _Run(rsm, rlmm, on_progress, on_fault, chunk_bytes)
    await for_each(tips, run.catalog, PARTITIONS_AT_ONCE)
    run.progress(0)
    await for_each(tips, run.verify_partition, PARTITIONS_AT_ONCE)
    return VerifyReport(
        partitions=len(tips),
        segments=run.segments,
        segments_unfinished=run.segments_unfinished,
        size_bytes=run.bytes_done,
        gaps=tuple(sorted(run.gaps)),
        faults=tuple(sorted(run.faults, key=_place)),
        orphans=tuple(sorted(run.orphans)),
        segments_overlapping=run.segments_overlapping,
    )


async def metadata_faults(
    rsm: RemoteStorageManager,
    rlmm: StoreBackedRemoteLogMetadataManager,
    topics: re.Pattern[str] | None = None,
    partitions: Sequence[TopicIdPartition] | None = None,
) -> tuple[Fault, ...]:
    """Metadata that are unreadable or lost, without reading any log; `rlmm` is up to date then.

    Raises RemoteStorageError.
    """
    run = _Run(rsm, rlmm, lambda done, total: None, lambda fault: None, CHUNK_BYTES)
    await for_each(await _partitions(rlmm, topics, partitions), run.catalog, PARTITIONS_AT_ONCE)
    return tuple(sorted(run.faults, key=_place))


async def _partitions(
    rlmm: StoreBackedRemoteLogMetadataManager,
    topics: re.Pattern[str] | None,
    partitions: Sequence[TopicIdPartition] | None,
) -> Sequence[TopicIdPartition]:
    every = await rlmm.list_partitions() if partitions is None else partitions
    return [tip for tip in every if topics is None or topics.fullmatch(tip.topic)]


def _place(fault: Fault) -> tuple[str, int, str, int, int]:
    position = -1 if fault.byte_position is None else fault.byte_position
    offset = -1 if fault.offset is None else fault.offset
    return fault.topic, fault.partition, fault.object_key, position, offset


@dataclass(slots=True)
class _Run:
    rsm: RemoteStorageManager
    rlmm: StoreBackedRemoteLogMetadataManager
    on_progress: Progress
    on_fault: OnFault
    chunk_bytes: int
    bytes_total: int = 0
    bytes_done: int = 0
    segments: int = 0
    segments_unfinished: int = 0
    segments_overlapping: int = 0
    gaps: list[RecordedGap] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    orphans: list[Orphan] = field(default_factory=list)

    def progress(self, more_bytes: int) -> None:
        self.bytes_done += more_bytes
        self.on_progress(self.bytes_done, self.bytes_total)

    async def catalog(self, tip: TopicIdPartition) -> None:
        """Read the partition's metadata, and the faults of these objects themselves."""
        await self._refresh(tip)
        for problem in self.rlmm.problems(tip):
            key, offset = problem.key, problem.base_offset
            self._report([Fault(tip.topic, tip.partition, key, None, offset, problem.what)])
        finished = self._finished(tip)
        faults, orphans = await look_at_unnamed(self.rsm, self.rlmm, tip, finished)
        self._report(faults)
        self.orphans += orphans
        self.bytes_total += sum(segment.segment_size_bytes for segment in finished)
        self.segments_unfinished += len(self.rlmm.list_remote_log_segments(tip)) - len(finished)

    async def _refresh(self, tip: TopicIdPartition) -> None:
        """A large partition may take several reads: one that ran out of time keeps what it got."""
        while True:
            known = self.rlmm.objects_known(tip)
            try:
                await self.rlmm.refresh(tip, asyncio.get_running_loop().time())
                return
            except StorageUnavailable:
                if self.rlmm.objects_known(tip) == known:
                    raise

    async def verify_partition(self, tip: TopicIdPartition) -> None:
        unreadable = [problem.base_offset for problem in self.rlmm.problems(tip)]
        view = self.rlmm.view(tip)
        deleted = 0 if view is None else view.raised_log_start
        txns = TxnCheck()
        expected: int | None = None
        before: RemoteLogSegmentMetadata | None = None  # the one that reaches up to `expected`
        for metadata in self._finished(tip):
            start = metadata.start_offset
            continues = start == expected
            if not continues:
                txns.restart()
            segment = _SegmentVerifier(self.rsm, metadata, txns, self.chunk_bytes, self.progress)
            if expected is not None and before is not None and start < expected:
                # Two leaders that met copy the same log; readers take each offset from one of them.
                self.segments_overlapping += 1
                parted = first_difference(before, metadata)
                if parted is not None:
                    what = f"overlaps the segment before it, of another lineage from {parted} on"
                    segment.metadata_fault(start, what)
            elif expected is not None and start > expected:
                gap = RecordedGap(tip.topic, tip.partition, max(expected, deleted), start - 1)
                if start > deleted and not any(
                    gap.first_offset <= base <= gap.last_offset for base in unreadable
                ):
                    self.gaps.append(gap)
            await segment.verify(continues=continues)
            self.segments += 1
            if segment.faults and await self._is_gone(metadata):
                self.segments -= 1
                segment.faults.clear()
            self._report(segment.faults)
            if expected is None or metadata.end_offset >= expected:
                expected, before = metadata.end_offset + 1, metadata

    def _finished(self, tip: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        return [
            segment
            for segment in self.rlmm.list_remote_log_segments(tip)
            if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
        ]

    async def _is_gone(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Was the segment deleted while it was read? Retention does that, and is no fault."""
        key = self.rsm.object_key(metadata, SegmentFile.METADATA)
        try:
            now = decode_segment(await self.rsm.get_segment_metadata(key), key)
        except ObjectNotFound:
            return True
        except CorruptSegment:
            return False
        return now.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED

    def _report(self, faults: list[Fault]) -> None:
        for fault in faults:
            self.faults.append(fault)
            self.on_fault(fault)


class _SegmentVerifier:
    """One segment; `faults` are complete after `verify`."""

    def __init__(
        self,
        rsm: RemoteStorageManager,
        metadata: RemoteLogSegmentMetadata,
        txns: TxnCheck,
        chunk_bytes: int,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._rsm = rsm
        self._metadata = metadata
        self._txns = txns
        self._chunk_bytes = chunk_bytes
        self._on_bytes = on_bytes
        self._reached = 0  # bytes of the log that count as done
        self.faults: list[Fault] = []

    async def verify(self, *, continues: bool) -> None:
        metadata = self._metadata
        index = await self._index()
        aborted = await self._aborted()
        await self._epochs()
        await self._kafka_files()
        txn_key = self._key(SegmentFile.TXN)
        self._txns.begin(aborted or (), txn_key, metadata.start_offset, metadata.end_offset)
        spans = list(index.spans()) if index is not None else []
        check = SegmentCheck(metadata, spans, self._txns, continues=continues)
        log_read = await self._read_log(check)
        self._advance(metadata.segment_size_bytes)
        for finding in check.findings:
            file = SegmentFile.METADATA if finding.in_metadata else SegmentFile.LOG
            file = SegmentFile.INDEX if finding.in_index else file
            self._fault(file, finding.byte_position, finding.offset, finding.what)
        if not (log_read and check.log_is_sound and aborted is not None):
            self._txns.restart()
            return
        tip = metadata.topic_id_partition
        self.faults.extend(
            Fault(tip.topic, tip.partition, f.object_key, f.byte_position, f.offset, f.what)
            for f in self._txns.end()
        )

    def metadata_fault(self, offset: int | None, what: str) -> None:
        self._fault(SegmentFile.METADATA, None, offset, what)

    async def _index(self) -> RemoteLogIndex | None:
        raw = await self._whole(SegmentFile.INDEX)
        if raw is None:
            return None
        try:
            index = RemoteLogIndex.parse(raw)
            index.check_covers(self._metadata.stored_end_offset, self._metadata.segment_size_bytes)
        except CorruptSegment as error:
            self._fault(SegmentFile.INDEX, None, None, str(error))
            return None
        # An archive may be copied below another prefix: what counts is the place within it.
        if _place_in_archive(index.object_key) != _place_in_archive(self._key(SegmentFile.LOG)):
            self._fault(SegmentFile.INDEX, None, None, f"rdi names {index.object_key!r}")
        return index

    async def _aborted(self) -> tuple[AbortedTxn, ...] | None:
        if not self._metadata.has_aborted_txns:
            return ()
        raw = await self._whole(SegmentFile.TXN)
        if raw is None:
            return None
        try:
            aborted = decode_aborted(raw)
        except CorruptSegment as error:
            self._fault(SegmentFile.TXN, None, None, str(error))
            return None
        if not aborted:
            self._fault(SegmentFile.TXN, None, None, "no entry, but has_aborted_txns is true")
        return clip_aborted(aborted, self._metadata.end_offset)

    async def _epochs(self) -> None:
        raw = await self._whole(SegmentFile.EPOCHS)
        if raw is None:
            return
        metadata = self._metadata
        try:
            lineage = decode_epochs(raw)
        except CorruptSegment as error:
            self._fault(SegmentFile.EPOCHS, None, None, str(error))
            return
        stated = metadata.segment_leader_epochs
        found = clip_epochs(lineage, metadata.start_offset, metadata.end_offset)
        # Batches without an epoch leave none in the metadata, but do not end the lineage.
        if found != stated and (stated or len(found) > 1):
            self._fault(SegmentFile.EPOCHS, None, None, f"has {found}, metadata have {stated}")

    async def _kafka_files(self) -> None:
        """A broker's own files; only segments from `log-dirs` have them, and not all of those."""
        metadata = self._metadata
        base, end = metadata.start_offset, metadata.stored_end_offset
        clipped = metadata.copied_end_offset is not None
        newest_ms = 2**63 - 1 if clipped else metadata.max_timestamp_ms
        for file in KAFKA_FILES:
            try:
                raw = await self._rsm.fetch_index(metadata, file)
            except ObjectNotFound:
                continue
            if file is SegmentFile.OFFSET_INDEX:
                fault = offset_index_fault(raw, base, end, metadata.segment_size_bytes)
            elif file is SegmentFile.TIME_INDEX:
                fault = time_index_fault(raw, base, end, newest_ms)
            else:
                fault = snapshot_fault(raw)
            if fault:
                self._fault(file, None, None, fault)

    async def _whole(self, file: SegmentFile) -> bytes | None:
        try:
            return await self._rsm.fetch_index(self._metadata, file)
        except ObjectNotFound:
            self._fault(file, None, None, "object is missing")
            return None

    async def _read_log(self, check: SegmentCheck) -> bool:
        """False: there is no log. Its size is checked by reading it to the end, and one byte on."""
        size = self._metadata.segment_size_bytes
        try:
            await self._walk_log(check, size)
            if await self._range(size, size + 1):
                what = f"object goes on, metadata say {size} bytes"
                self._fault(SegmentFile.LOG, size, None, what)
        except ObjectNotFound:
            self._fault(SegmentFile.LOG, None, None, "object is missing")
            return False
        return True

    async def _walk_log(self, check: SegmentCheck, size: int) -> None:
        data, start = b"", 0  # the bytes at hand, and where they begin
        step: Next | None = Next(0)
        while step is not None and step.position < size:
            rest = data[max(step.position - start, 0) :] if step.position >= start else b""
            end = min(step.position + max(step.bytes_min, self._chunk_bytes), size)
            read_from = step.position + len(rest)
            more = await self._range(read_from, end) if read_from < end else b""
            data, start = rest + more, step.position
            if start + len(data) < end:
                size = start + len(data)  # what is there is still checked
                check.short(size)
            self._advance(start + len(data))
            step = check.take(data, start)
        check.finish()

    async def _range(self, start: int, end: int) -> bytes | bytearray:
        try:
            return await self._rsm.fetch_log_segment(self._metadata, ByteRange(start, end))
        except RangeNotSatisfiable:
            return b""

    def _advance(self, position: int) -> None:
        position = min(position, self._metadata.segment_size_bytes)
        if position > self._reached:
            self._on_bytes(position - self._reached)
            self._reached = position

    def _key(self, file: SegmentFile) -> str:
        return self._rsm.object_key(self._metadata, file)

    def _fault(
        self, file: SegmentFile, position: int | None, offset: int | None, what: str
    ) -> None:
        tip = self._metadata.topic_id_partition
        self.faults.append(Fault(tip.topic, tip.partition, self._key(file), position, offset, what))


def _place_in_archive(key: str) -> list[str]:
    """Topic folder, partition and name."""
    return key.split("/")[-3:]
