"""Repairs faults that `verify` found, by deriving index, transactions, epochs and metadata."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fetchproxy.auditing.reports import RepairReport
from fetchproxy.auditing.verify import VERIFY_CHUNK_BYTES
from fetchproxy.errors import CorruptSegment, DamagedObject, ObjectNotFound
from fetchproxy.metadata.lineage import extend_lineage
from fetchproxy.metadata.partition_ends import may_be_missed
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.observability.health import Condition
from fetchproxy.segments.check import clip_epochs
from fetchproxy.segments.description import FinishedOffsets, encode_segment
from fetchproxy.segments.leader_epochs import NOT_COUNTED, epoch_at
from fetchproxy.segments.log_end_check import Witnesses, agrees, check_whole, epochs_that_agree
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.side_files import decode_aborted, encode_aborted, encode_epochs
from fetchproxy.segments.transaction_check import SeenLog, TxnHistory
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.packed_logs import PackedLogs
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.stored_segments import DerivedSegment, derive_segment
from fetchproxy.writing.completeness_records import read_finished_offsets

# The derived objects of a segment as stored. None: missing.
Stored = dict[SegmentFile, bytes | None]
DERIVED = (SegmentFile.INDEX, SegmentFile.TXN, SegmentFile.EPOCHS)


@dataclass(slots=True)
class PartitionContext:
    """The known facts about the partition, apart from the segment whose metadata are lost."""

    counted: list[RemoteLogSegmentMetadata]  # finished segments
    lineages: list[tuple[EpochStart, ...]]  # of `counted`, each from the log's beginning
    log_start_offset: int
    recorded_leader_epoch: int  # of the last recorded segment; -1: none
    unknown: list[int] = field(default_factory=list)  # start offsets of segments that stay lost


def metadata_of_lost(
    stub: RemoteLogSegmentMetadata, derived: DerivedSegment, partition: PartitionContext
) -> RemoteLogSegmentMetadata:
    """Derives a segment's metadata from its log if the `.metadata` object is lost or unreadable.
    Pure.

    `stub` has id and start offset. If a segment of a newer leader epoch begins inside it, the log
    was cut there, so the segment is cut there too. Raises CorruptSegment if the segment must not
    count.

    A log without metadata may be an abandoned copy, a half-deleted segment, or a log that was cut
    because a new leader's log differed. So it counts again only if no other segment has its
    offsets, the offsets were not deleted, and no newer log replaced them.
    """
    segment = derived.segment
    start, end = segment.start_offset, segment.end_offset
    if end < partition.log_start_offset:
        raise CorruptSegment(f"offsets {start} to {end} were deleted")
    metadata = replace(
        stub,
        end_offset=end,
        max_timestamp_ms=segment.max_timestamp_ms,
        segment_leader_epochs=segment.leader_epochs,
        segment_size_bytes=segment.size_bytes,
    )
    overlapping = [o for o in partition.counted if o.start_offset <= end and o.end_offset >= start]
    if overlapping:
        first = min(overlapping, key=lambda other: other.start_offset)
        if first.start_offset <= start or not _begins_newer_lineage(first, segment.leader_epochs):
            raise CorruptSegment(
                f"offsets {start} to {end} are in another segment, from {first.start_offset}"
            )
        cut_offset = first.start_offset - 1
        clipped_metadata = metadata.clipped(cut_offset)
        metadata = replace(clipped_metadata, max_timestamp_ms=derived.max_timestamp_ms(cut_offset))
    _check_place(metadata, partition, is_cut=bool(overlapping))
    return metadata


def _check_place(
    metadata: RemoteLogSegmentMetadata, partition: PartitionContext, *, is_cut: bool
) -> None:
    """Raises CorruptSegment if a newer leader's log may have replaced a part of the segment."""
    start, end = metadata.start_offset, metadata.end_offset
    epochs = metadata.segment_leader_epochs
    if any(start < base <= end for base in partition.unknown):
        raise CorruptSegment("an unknown segment begins within its offsets")
    if any(_is_newer(lineage, epochs, start, end) for lineage in partition.lineages):
        raise CorruptSegment("a newer leader's log has replaced some of its offsets")
    below = [counted for counted in partition.counted if counted.start_offset <= start]
    if epochs and any(counted.last_epoch > epochs[0].epoch >= 0 for counted in below):
        raise CorruptSegment("a newer leader's log is below it")
    newest = max(
        partition.recorded_leader_epoch, *(counted.last_epoch for counted in partition.counted), -1
    )
    is_followed = any(counted.start_offset == end + 1 for counted in partition.counted)
    if not (is_cut or is_followed) and epoch_at(epochs, end) < newest:
        raise CorruptSegment("a newer leader's log may have replaced some of its offsets")


def _is_newer(
    lineage: Sequence[EpochStart], epochs: Sequence[EpochStart], start: int, end: int
) -> bool:
    return any(
        start < entry.start_offset <= end and entry.epoch > epoch_at(epochs, entry.start_offset)
        for entry in lineage
    )


def _begins_newer_lineage(other: RemoteLogSegmentMetadata, epochs: Sequence[EpochStart]) -> bool:
    newer = other.segment_leader_epochs
    return bool(newer) and newer[0].epoch > epoch_at(epochs, other.start_offset)


async def repair_archive(
    storage: RemoteStorage,
    rlmm: RemoteLogMetadataManager,
    faults: Collection[Condition],
    *,
    wall_clock_ms: Callable[[], int],
    dry_run: bool = False,
    chunk_bytes: int = VERIFY_CHUNK_BYTES,
) -> RepairReport:
    """Repairs what `verify` has just reported as `faults`. `dry_run`: only reports the repairs.
    Raises RemoteStorageError; repairs made before it are complete, and the next run does the rest.

    Each repair is derived from a sound log. Log objects are neither written nor deleted: records
    lost from a log stay a fault. The caller verifies again after a repair. A partition with faults
    is read again from its beginning, as a later segment may say how a transaction ended, and a
    lineage begins in an earlier segment.
    """
    report, rsm = RepairReport(), storage.rsm
    parts = rsm, storage.objects, storage.packed
    faulty: dict[TopicIdPartition, set[str]] = {}
    for fault in faults:
        key = fault.object_key or ""
        segment_key = rsm.parse_key(key)
        if segment_key is not None:
            faulty.setdefault(segment_key.segment_id.topic_id_partition, set()).add(key)
    for tp in sorted(faulty):
        partition = _PartitionRepair(
            *parts, rlmm, tp, faulty[tp], wall_clock_ms, chunk_bytes, report.refusals
        )
        await partition.examine()
        for repair in partition.plan():
            if not dry_run:
                await partition.apply(repair)
            how = (
                "derived from the log" if repair.content is not None else "removed, as the log says"
            )
            key = rsm.object_key(repair.metadata, repair.file)
            report.repairs.append(f"{tp}: {key}: {how}")
    return report


@dataclass(frozen=True, slots=True)
class _Repair:
    """The content that an object must have, by the log. `content` None: it must not exist."""

    metadata: RemoteLogSegmentMetadata
    file: SegmentFile
    content: bytes | None


@dataclass(slots=True)
class _FaultySegment:
    """A segment with a fault. `known`: its metadata; None: lost or unreadable. `has_txn`: it was
    encrypted with a transaction index, so it must have one.
    """

    metadata: RemoteLogSegmentMetadata
    known: RemoteLogSegmentMetadata | None
    derived: DerivedSegment
    lineage_before: tuple[EpochStart, ...] | None  # before the segment; None: not known
    stored: Stored
    has_txn: bool


@dataclass(slots=True)
class _PartitionRepair:
    rsm: RemoteStorageManager
    objects: ArchiveObjects
    packed: PackedLogs
    rlmm: RemoteLogMetadataManager
    tp: TopicIdPartition
    faulty: set[str]
    wall_clock_ms: Callable[[], int]
    chunk_bytes: int
    refusals: list[str]  # receives the reasons for faults that are not repaired
    _finished_offsets: FinishedOffsets | None = None
    _history: TxnHistory = field(default_factory=TxnHistory)
    _broken: list[_FaultySegment] = field(default_factory=list)
    _lineage_after: dict[int, tuple[EpochStart, ...]] = field(default_factory=dict)

    async def examine(self) -> None:
        """Read every log of the partition, in order. Raises RemoteStorageError."""
        await self.rlmm.refresh(self.tp, asyncio.get_running_loop().time())
        try:
            self._finished_offsets = await read_finished_offsets(self.objects, self.tp)
        except CorruptSegment as error:
            self.refusals.append(str(error))
        segments = [s for s in self.rlmm.list_remote_log_segments(self.tp) if s.is_finished]
        segments_as_copied = [await self._as_copied(s) for s in segments]
        every = [
            *zip(segments_as_copied, segments, strict=True),
            *((s, None) for s in await self._lost_segments(segments_as_copied)),
        ]
        every.sort(key=lambda pair: (pair[0].start_offset, pair[1] is None))
        found_again = await self._derive_lost_metadata(
            [s for s, known_as in every if not known_as], segments_as_copied
        )
        log_seen = SeenLog()
        for stub, metadata in every:
            stored_files = {file: await self._read_stored(stub, file) for file in DERIVED}
            if metadata is not None:
                starts = {other.start_offset for other, _ in every if other is not stub}
                counts, derived = stub, await self._derive(stub, stub, starts, segments_as_copied)
            elif stub in found_again:
                counts, derived = found_again[stub]
            else:
                continue
            before = log_seen.lineage_before(counts)
            if derived is not None:
                is_trusted = metadata is not None and not self._is_faulty(counts)
                open_transactions = _aborted_open_at(counts, stored_files) if is_trusted else None
                self._add_events(log_seen, counts, derived, open_transactions)
                if metadata is None or self._is_faulty(counts):
                    unsaid = replace(counts, has_aborted_txns=False)
                    has_txn = (await self._as_copied(unsaid)).has_aborted_txns
                    faulty_segment = _FaultySegment(
                        counts, metadata, derived, before, stored_files, has_txn
                    )
                    self._broken.append(faulty_segment)
            self._note_lineage(log_seen, counts, stored_files, derived, before)
        self._history.end(log_seen.end)

    def _add_events(
        self,
        log_seen: SeenLog,
        metadata: RemoteLogSegmentMetadata,
        derived: DerivedSegment,
        open_transactions: Mapping[int, int] | None,
    ) -> None:
        """Copies of a log may overlap: each offset's events come from the first segment with it."""
        is_behind = metadata.start_offset > log_seen.end
        if not log_seen.goes_on_with(metadata) or (
            self._history.is_dark and open_transactions is not None and is_behind
        ):
            self._history.restart(log_seen.end, metadata.start_offset, open_transactions)
            log_seen.end = metadata.start_offset - 1
        for event in derived.txn_events:
            if log_seen.end < event.offset <= metadata.end_offset:
                self._history.add(event)
        if metadata.end_offset > log_seen.end:
            log_seen.end, log_seen.last = metadata.end_offset, metadata

    def plan(self) -> list[_Repair]:
        """The repairs to make, for each segment the metadata last."""
        repairs: list[_Repair] = []
        for faulty_segment in self._broken:
            try:
                repairs += self._plan(faulty_segment)
            except CorruptSegment as error:
                self.refusals.append(f"{self._segment_name(faulty_segment.metadata)}: {error}")
        return repairs

    async def apply(self, repair: _Repair) -> None:
        """Raises RemoteStorageError."""
        if repair.file is SegmentFile.METADATA and repair.content is not None:
            await self.objects.put_segment_metadata(repair.metadata, repair.content)
            view = self.rlmm.view(self.tp)
            if may_be_missed(len(self.faulty) + (0 if view is None else len(view.segments))):
                await self.objects.put_past_changed(self.tp)
        elif repair.content is None:
            await self.rsm.delete_txn_index(repair.metadata)
        else:
            listed = repair.metadata.ref.as_listed()
            await self.rsm.put_index(listed, repair.file, repair.content)

    # --- what the store has ---
    async def _lost_segments(
        self, recorded: Sequence[RemoteLogSegmentMetadata]
    ) -> list[RemoteLogSegmentMetadata]:
        """Stubs for segments whose metadata are faulty and not known."""
        ids = {segment.segment_id for segment in recorded}
        lost_segments: list[RemoteLogSegmentMetadata] = []
        for key in sorted(self.faulty):
            segment_key = self.rsm.parse_key(key)
            if (
                segment_key
                and segment_key.file is SegmentFile.METADATA
                and segment_key.segment_id not in ids
            ):
                stub = RemoteLogSegmentMetadata(
                    segment_id=segment_key.segment_id,
                    start_offset=segment_key.base_offset,
                    end_offset=segment_key.base_offset,
                    max_timestamp_ms=-1,
                    event_timestamp_ms=self.wall_clock_ms(),
                    segment_leader_epochs=(),
                    segment_size_bytes=0,
                    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                    has_aborted_txns=True,  # so the transaction index is read
                )
                lost_segments.append(replace(stub, packed=await self.packed.is_packed(stub)))
        return lost_segments

    async def _derive(
        self,
        metadata: RemoteLogSegmentMetadata,
        recorded: RemoteLogSegmentMetadata | None,
        starts: Collection[int],
        finished: Sequence[RemoteLogSegmentMetadata],
    ) -> DerivedSegment | None:
        """None: the log is missing, not sound, or not known to be whole."""
        stated_end = None if self._finished_offsets is None else self._finished_offsets.end_offset
        ends = [s.end_offset for s in finished]
        witnesses = Witnesses(
            recorded,
            await self._read_stored(metadata, SegmentFile.INDEX),
            await self._read_stored(metadata, SegmentFile.EPOCHS),
            starts,
            finished_to=None if stated_end is None else max([stated_end, *ends]),
            stated_end=stated_end,
        )
        try:
            listed = metadata.ref.as_listed()
            derived = await derive_segment(self.rsm, listed, self.chunk_bytes)
            check_whole(derived.segment, witnesses)
        except CorruptSegment as error:
            reason = f"nothing can be derived from its log: {error}"
        except ObjectNotFound:
            reason = "its log is missing"
            if metadata.packed and not await self.packed.is_packed(metadata):
                reason = "its .packing is missing, and without that its log cannot be read"
        else:
            return derived
        if self._is_faulty(metadata):
            self.refusals.append(f"{self._segment_name(metadata)}: {reason}")
        return None

    async def _derive_lost_metadata(
        self,
        lost_segments: Sequence[RemoteLogSegmentMetadata],
        recorded: Sequence[RemoteLogSegmentMetadata],
    ) -> dict[RemoteLogSegmentMetadata, tuple[RemoteLogSegmentMetadata, DerivedSegment]]:
        """New metadata for lost segments, last first: a segment cuts another that it begins in."""
        if not lost_segments:
            return {}
        view = self.rlmm.view(self.tp)
        partition = PartitionContext(
            counted=list(recorded),
            lineages=[e for s in recorded if (e := await self._lineage_of(s)) is not None],
            log_start_offset=0 if view is None else view.raised_log_start,
            recorded_leader_epoch=-1
            if self._finished_offsets is None
            else self._finished_offsets.leader_epoch,
        )
        derived_by_stub = {}
        for stub in reversed(lost_segments):
            starts = {s.start_offset for s in (*recorded, *lost_segments) if s is not stub}
            derived = await self._derive(stub, None, starts, recorded)
            try:
                if derived is None:
                    raise CorruptSegment("nothing is known of it")
                counts = metadata_of_lost(stub, derived, partition)
            except CorruptSegment as error:
                partition.unknown.append(stub.start_offset)
                if derived is not None:
                    self.refusals.append(f"{self._segment_name(stub)}: {error}")
                continue
            partition.counted.append(counts)
            if (lineage := await self._lineage_of(counts)) is not None:
                partition.lineages.append(lineage)
            derived_by_stub[stub] = counts, derived
        return derived_by_stub

    async def _lineage_of(
        self, metadata: RemoteLogSegmentMetadata
    ) -> tuple[EpochStart, ...] | None:
        return epochs_that_agree(metadata, await self._read_stored(metadata, SegmentFile.EPOCHS))

    def _note_lineage(
        self,
        log_seen: SeenLog,
        metadata: RemoteLogSegmentMetadata,
        stored_files: Stored,
        derived: DerivedSegment | None,
        before: tuple[EpochStart, ...] | None,
    ) -> None:
        """Notes the log's epochs up to the segment's end: as stored, otherwise as derived."""
        agreed_epochs = epochs_that_agree(metadata, stored_files[SegmentFile.EPOCHS])
        if agreed_epochs is not None:
            self._lineage_after[metadata.start_offset] = agreed_epochs
        elif derived is not None and (before is not None or log_seen.lineage_end < 0):
            agreed_epochs = extend_lineage(before or (), derived.segment.leader_epochs)
        log_seen.note_lineage(metadata, agreed_epochs)

    async def _as_copied(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        try:
            return await self.packed.as_copied(metadata)
        except (ObjectNotFound, DamagedObject):
            return metadata

    async def _read_stored(
        self, metadata: RemoteLogSegmentMetadata, file: SegmentFile
    ) -> bytes | None:
        try:
            return await self.rsm.fetch_index(metadata.ref.as_listed(), file)
        except (ObjectNotFound, DamagedObject):
            return None

    # --- what the store should have ---
    def _plan(self, faulty_segment: _FaultySegment) -> list[_Repair]:
        metadata, segment = faulty_segment.metadata, faulty_segment.derived.segment
        keys = {file: self.rsm.object_key(metadata, file) for file in SegmentFile}
        if faulty_segment.known is not None:
            metadata = _with_derived_values(metadata, faulty_segment.derived)
        contents: dict[SegmentFile, bytes | None] = {
            SegmentFile.INDEX: segment.index.encoded(keys[SegmentFile.LOG])
        }
        for file, derive_content in (
            (SegmentFile.EPOCHS, self._epochs),
            (SegmentFile.TXN, self._aborted_entries),
        ):
            if keys[file] in self.faulty or faulty_segment.known is None:
                try:
                    contents[file] = derive_content(faulty_segment, metadata)
                except CorruptSegment as error:
                    self.refusals.append(f"{self._segment_name(faulty_segment.metadata)}: {error}")
        if SegmentFile.TXN in contents:
            metadata = replace(metadata, has_aborted_txns=contents[SegmentFile.TXN] is not None)
        elif faulty_segment.known is None:
            return []  # the metadata must state whether the segment has aborted transactions
        repairs = [
            _Repair(metadata, file, content)
            for file, content in contents.items()
            if (keys[file] in self.faulty or faulty_segment.known is None)
            and content != (faulty_segment.stored[file] or None)
        ]
        if metadata != faulty_segment.known:
            repairs.append(_Repair(metadata, SegmentFile.METADATA, encode_segment(metadata)))
        return repairs

    def _aborted_entries(
        self, faulty_segment: _FaultySegment, metadata: RemoteLogSegmentMetadata
    ) -> bytes | None:
        """Raises CorruptSegment."""
        aborted_txns = self._history.aborted_in(metadata.start_offset, metadata.end_offset)
        return encode_aborted(aborted_txns) if aborted_txns or faulty_segment.has_txn else None

    def _epochs(self, faulty_segment: _FaultySegment, metadata: RemoteLogSegmentMetadata) -> bytes:
        """The stored epochs if they agree with the log, else derived. Raises CorruptSegment."""
        stored = faulty_segment.stored[SegmentFile.EPOCHS]
        if stored is not None and epochs_that_agree(metadata, stored) is not None:
            return stored
        log_epochs = faulty_segment.derived.segment.leader_epochs
        if faulty_segment.lineage_before is not None:
            return encode_epochs(extend_lineage(faulty_segment.lineage_before, log_epochs))
        end = faulty_segment.derived.segment.end_offset
        for start, lineage in sorted(self._lineage_after.items()):
            if start > metadata.start_offset:
                stored_epochs = tuple(e for e in lineage if e.start_offset <= end)
                if agrees(clip_epochs(stored_epochs, metadata.start_offset, end), log_epochs):
                    return encode_epochs(stored_epochs)
        # As far as is known, no offset below this one was ever archived.
        first_offset = 0 if self._finished_offsets is None else self._finished_offsets.recorded_from
        if metadata.start_offset > first_offset:
            raise CorruptSegment("it is not known which leader epochs the log had before it")
        return encode_epochs(log_epochs)

    def _is_faulty(self, metadata: RemoteLogSegmentMetadata) -> bool:
        return any(self.rsm.object_key(metadata, file) in self.faulty for file in SegmentFile)

    @staticmethod
    def _segment_name(metadata: RemoteLogSegmentMetadata) -> str:
        return f"{metadata.topic_id_partition}: segment at offset {metadata.start_offset}"


def _aborted_open_at(
    metadata: RemoteLogSegmentMetadata, stored_files: Stored
) -> dict[int, int] | None:
    """By producer, first offsets of aborted transactions that began below a sound segment. None:
    not known.
    """
    try:
        entries = decode_aborted(stored_files[SegmentFile.TXN] or b"")
    except CorruptSegment:
        return None
    return {
        e.producer_id: e.first_offset for e in entries if e.first_offset < metadata.start_offset
    }


def _with_derived_values(
    metadata: RemoteLogSegmentMetadata, derived: DerivedSegment
) -> RemoteLogSegmentMetadata:
    segment = derived.segment
    is_cut = metadata.copied_end_offset is not None and metadata.end_offset < segment.end_offset
    end = metadata.end_offset if is_cut else segment.end_offset
    epochs = metadata.segment_leader_epochs
    if not any(entry.epoch == NOT_COUNTED for entry in epochs):
        epochs = clip_epochs(segment.leader_epochs, segment.start_offset, end)
    return replace(
        metadata,
        end_offset=end,
        copied_end_offset=segment.end_offset if is_cut else None,
        max_timestamp_ms=derived.max_timestamp_ms(end),
        segment_leader_epochs=epochs,
        segment_size_bytes=segment.size_bytes,
    )
