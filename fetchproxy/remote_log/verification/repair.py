"""Mends what `verify` found, as far as it can be derived: index, transactions, epochs, metadata.

All of them say again what the log says, so a sound log is the source of each. No log object is
written and none deleted: what a log has lost stays a fault. Whoever repairs verifies again after
it, by the same checks; here is only what is derived from what, and when that is refused.

A partition with faults is read once more from its beginning, since how a transaction ended may be
said in a later segment, and a lineage begins in an earlier one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from fetchproxy.errors import CompactedLog, CorruptSegment, ObjectNotFound
from fetchproxy.index.leader_epochs import decode_epochs, encode_epochs
from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.index.transaction_index import encode_aborted
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.metadata.lineage import extend_lineage
from fetchproxy.metadata.segment_json import encode_segment
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.remote_log.verification.lost_metadata import metadata_of_lost
from fetchproxy.remote_log.verification.segment_check import clip_epochs
from fetchproxy.remote_log.verification.segment_derivation import DerivedSegment, derive_segment
from fetchproxy.remote_log.verification.txn_history import TxnHistory
from fetchproxy.remote_log.verification.verify import CHUNK_BYTES
from fetchproxy.remote_log.verification.verify_report import Fault, Repair, RepairReport
from fetchproxy.storage.layout import SegmentFile
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

OnRepair = Callable[[Repair], None]
FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
DERIVED = (SegmentFile.INDEX, SegmentFile.TXN, SegmentFile.EPOCHS)


async def repair_archive(
    rsm: RemoteStorageManager,
    rlmm: RemoteLogMetadataManager,
    faults: Collection[Fault],
    *,
    wall_clock_ms: Callable[[], int],
    dry_run: bool = False,
    on_repair: OnRepair = lambda repair: None,
    chunk_bytes: int = CHUNK_BYTES,
) -> RepairReport:
    """`faults` are those that `verify_archive` has just reported.

    `dry_run`: report what would be done. Raises RemoteStorageError: what was repaired until then
    is whole, and a next run goes on.
    """
    report = RepairReport()
    faulty: dict[TopicIdPartition, set[str]] = {}
    for fault in faults:
        parsed = rsm.parse_key(fault.object_key)
        if parsed is not None:
            tip = parsed.segment_id.topic_id_partition
            faulty.setdefault(tip, set()).add(fault.object_key)
    for tip in sorted(faulty):
        partition = _PartitionRepair(rsm, rlmm, tip, faulty[tip], wall_clock_ms, chunk_bytes)
        await partition.look()
        for repair in partition.plan(report.refusals):
            if not dry_run:
                await partition.apply(repair)
            report.repairs.append(repair)
            on_repair(repair)
    return report


@dataclass(slots=True)
class _Broken:
    """A segment with a fault; `known`: its metadata, None where they are lost or unreadable."""

    metadata: RemoteLogSegmentMetadata
    known: RemoteLogSegmentMetadata | None
    derived: DerivedSegment
    lineage_before: tuple[EpochStart, ...] | None  # None: there is no segment before it
    stored: dict[SegmentFile, bytes | None]  # the derived objects as they are; None: missing


@dataclass(slots=True)
class _PartitionRepair:
    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    tip: TopicIdPartition
    faulty: set[str]
    wall_clock_ms: Callable[[], int]
    chunk_bytes: int
    refusals: list[str] = field(default_factory=list)
    _history: TxnHistory = field(default_factory=TxnHistory)
    _broken: list[_Broken] = field(default_factory=list)
    _lineage_after: dict[int, tuple[EpochStart, ...]] = field(default_factory=dict)

    async def look(self) -> None:
        """Read every log of the partition, in order. Raises RemoteStorageError."""
        await self.rlmm.refresh(self.tip, asyncio.get_running_loop().time())
        known = [s for s in self.rlmm.list_remote_log_segments(self.tip) if s.state is FINISHED]
        every = [(s, s) for s in known] + [(s, None) for s in self._lost(known)]
        every.sort(key=lambda pair: (pair[0].start_offset, pair[1] is None))
        counted = list(known)
        end = -1
        lineage: tuple[EpochStart, ...] | None = None
        for stub, metadata in every:
            derived = await self._derive(stub)
            counts = metadata or self._found_again(stub, derived, counted)
            if counts is None:
                continue
            if metadata is None:
                counted.append(counts)
            if derived is None or counts.start_offset != end + 1:
                self._history.restart(end)
            end = counts.end_offset
            if derived is not None:
                for event in derived.txn_events:
                    if event.offset <= end:
                        self._history.add(event)
                if metadata is None or self._is_faulty(counts):
                    stored = {file: await self._stored(counts, file) for file in DERIVED}
                    self._broken.append(_Broken(counts, metadata, derived, lineage, stored))
            lineage = await self._lineage(counts, derived, lineage)
        self._history.restart(end)

    def plan(self, refusals: list[str]) -> list[Repair]:
        """What to write, the metadata of each segment last. `refusals` get why something is not."""
        refusals += self.refusals
        repairs: list[Repair] = []
        for broken in self._broken:
            try:
                repairs += self._plan(broken)
            except CorruptSegment as error:
                refusals.append(f"{self._name(broken.metadata)}: {error}")
        return repairs

    async def apply(self, repair: Repair) -> None:
        """Raises RemoteStorageError."""
        if repair.file is SegmentFile.METADATA and repair.content is not None:
            await self.rsm.put_segment_metadata(repair.metadata, repair.content)
        elif repair.content is None:
            await self.rsm.delete_txn_index(repair.metadata)
        else:
            await self.rsm.put_index(repair.metadata, repair.file, repair.content)

    # --- what is there ---
    def _lost(self, known: Sequence[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
        """Stand-ins for segments whose metadata are faulty and not known."""
        ids = {segment.segment_id for segment in known}
        lost: list[RemoteLogSegmentMetadata] = []
        for key in sorted(self.faulty):
            parsed = self.rsm.parse_key(key)
            if parsed and parsed.file is SegmentFile.METADATA and parsed.segment_id not in ids:
                lost.append(
                    RemoteLogSegmentMetadata(
                        segment_id=parsed.segment_id,
                        start_offset=parsed.base_offset,
                        end_offset=parsed.base_offset,
                        max_timestamp_ms=-1,
                        event_timestamp_ms=self.wall_clock_ms(),
                        segment_leader_epochs=(),
                        segment_size_bytes=0,
                        state=FINISHED,
                        has_aborted_txns=True,  # so that the index is looked at
                    )
                )
        return lost

    async def _derive(self, metadata: RemoteLogSegmentMetadata) -> DerivedSegment | None:
        try:
            return await derive_segment(self.rsm, metadata, self.chunk_bytes)
        except (CorruptSegment, CompactedLog) as error:
            reason = f"its log cannot be derived from: {error}"
        except ObjectNotFound:
            reason = "its log is missing"
        if self._is_faulty(metadata):
            self.refusals.append(f"{self._name(metadata)}: {reason}")
        return None

    def _found_again(
        self,
        stub: RemoteLogSegmentMetadata,
        derived: DerivedSegment | None,
        counted: Sequence[RemoteLogSegmentMetadata],
    ) -> RemoteLogSegmentMetadata | None:
        if derived is None:
            return None
        view = self.rlmm.view(self.tip)
        log_start = 0 if view is None else view.raised_log_start
        try:
            return metadata_of_lost(stub, derived, counted, log_start)
        except CorruptSegment as error:
            self.refusals.append(f"{self._name(stub)}: {error}")
            return None

    async def _lineage(
        self,
        metadata: RemoteLogSegmentMetadata,
        derived: DerivedSegment | None,
        before: tuple[EpochStart, ...] | None,
    ) -> tuple[EpochStart, ...] | None:
        """The log's epochs up to the segment's end: what it states, else what they must be."""
        found: tuple[EpochStart, ...] | None = None
        if self.rsm.object_key(metadata, SegmentFile.EPOCHS) not in self.faulty:
            try:
                found = decode_epochs(await self.rsm.fetch_index(metadata, SegmentFile.EPOCHS))
            except (CorruptSegment, ObjectNotFound):
                pass  # of lost metadata, which nobody has verified
            else:
                self._lineage_after[metadata.start_offset] = found
        if found is None and derived is not None:
            found = extend_lineage(before or (), derived.segment.leader_epochs)
        return tuple(e for e in found or () if e.start_offset <= metadata.end_offset)

    async def _stored(self, metadata: RemoteLogSegmentMetadata, file: SegmentFile) -> bytes | None:
        try:
            return await self.rsm.fetch_index(metadata, file)
        except ObjectNotFound:
            return None

    # --- what it should be ---
    def _plan(self, broken: _Broken) -> list[Repair]:
        """Raises CorruptSegment where something cannot be told."""
        metadata, segment = broken.metadata, broken.derived.segment
        keys = {file: self.rsm.object_key(metadata, file) for file in SegmentFile}
        if broken.known is not None:
            metadata = self._as_the_log_has_it(broken)
        wanted: dict[SegmentFile, bytes | None] = {
            SegmentFile.INDEX: segment.index(keys[SegmentFile.LOG]),
            SegmentFile.EPOCHS: encode_epochs(self._epochs(broken)),
        }
        if broken.known is None or self.faulty & {
            keys[SegmentFile.TXN],
            keys[SegmentFile.METADATA],
        }:
            aborted = self._history.aborted_in(metadata.start_offset, metadata.end_offset)
            wanted[SegmentFile.TXN] = encode_aborted(aborted) if aborted else None
            metadata = replace(metadata, has_aborted_txns=bool(aborted))
        repairs = [
            Repair(self.tip.topic, self.tip.partition, keys[file], metadata, file, content)
            for file, content in wanted.items()
            if (keys[file] in self.faulty or broken.known is None)
            and content != (broken.stored[file] or None)
        ]
        if metadata != broken.known:
            key, content = keys[SegmentFile.METADATA], encode_segment(metadata)
            repairs.append(
                Repair(
                    self.tip.topic, self.tip.partition, key, metadata, SegmentFile.METADATA, content
                )
            )
        return repairs

    def _as_the_log_has_it(self, broken: _Broken) -> RemoteLogSegmentMetadata:
        """Raises CorruptSegment where the log may have been cut: then it is the log that is wrong.

        Of log, index and metadata two must agree on how far the segment goes.
        """
        metadata, segment = broken.metadata, broken.derived.segment
        stated = (metadata.stored_end_offset, metadata.segment_size_bytes)
        if stated != (segment.end_offset, segment.size_bytes):
            try:
                index = RemoteLogIndex.parse(broken.stored[SegmentFile.INDEX] or b"")
                index.check_covers(segment.end_offset, segment.size_bytes)
            except CorruptSegment as error:
                raise CorruptSegment(f"log and metadata disagree on its end, and {error}") from None
        is_cut = metadata.copied_end_offset is not None and metadata.end_offset < segment.end_offset
        end = metadata.end_offset if is_cut else segment.end_offset
        return replace(
            metadata,
            end_offset=end,
            copied_end_offset=segment.end_offset if is_cut else None,
            max_timestamp_ms=broken.derived.max_timestamp_ms(end),
            segment_leader_epochs=clip_epochs(segment.leader_epochs, segment.start_offset, end),
            segment_size_bytes=segment.size_bytes,
        )

    def _epochs(self, broken: _Broken) -> tuple[EpochStart, ...]:
        own = broken.derived.segment.leader_epochs
        if broken.lineage_before is not None:
            return extend_lineage(broken.lineage_before, own)
        later = (
            lineage
            for start, lineage in sorted(self._lineage_after.items())
            if start > broken.metadata.start_offset
        )
        end = broken.derived.segment.end_offset
        first = next(later, ())
        return tuple(e for e in first if e.start_offset <= end) or own

    def _is_faulty(self, metadata: RemoteLogSegmentMetadata) -> bool:
        return any(self.rsm.object_key(metadata, file) in self.faulty for file in SegmentFile)

    @staticmethod
    def _name(metadata: RemoteLogSegmentMetadata) -> str:
        return f"{metadata.topic_id_partition}: segment at offset {metadata.start_offset}"
