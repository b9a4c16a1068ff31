"""Reads one segment's objects and compares them with each other and with its metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from fetchproxy.auditing.completeness import in_offsets
from fetchproxy.auditing.reports import unread
from fetchproxy.errors import (
    CorruptSegment,
    DamagedObject,
    MetadataChanged,
    ObjectNotFound,
    RangeNotSatisfiable,
)
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import (
    AbortedTxn,
    ByteRange,
    EpochStart,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.observability.health import Condition, Kind, of_object
from fetchproxy.segments import side_files
from fetchproxy.segments.check import Next, SegmentCheck, clip_epochs
from fetchproxy.segments.log_end_check import agrees
from fetchproxy.segments.object_keys import KAFKA_FILES, SegmentFile
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.segments.transaction_check import TxnCheck
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.writing.deletion.orphans import Objects, find_orphans

# Objects that no metadata name. A crash between two steps, or an upload whose response was lost,
# leaves unneeded objects. A whole segment without metadata is a loss if no other segment has its
# offsets and they were not deleted.

T = TypeVar("T")

_ALL_BUT_METADATA = {SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS}


async def check_unnamed_objects(
    rsm: RemoteStorageManager,
    archive: ArchiveObjects,
    rlmm: RemoteLogMetadataManager,
    tp: TopicIdPartition,
    finished_segments: Iterable[RemoteLogSegmentMetadata],
) -> tuple[list[Condition], list[tuple[int, int]]]:
    """The faults, each with the key of the missing metadata object, and the offsets of these
    segments. Archivers delete other unnamed objects once they are old. Raises RemoteStorageError.
    """
    faults: list[Condition] = []
    offsets: list[tuple[int, int]] = []
    in_segments = [(segment.start_offset, segment.end_offset) for segment in finished_segments]
    for objects in (await find_orphans(archive, rlmm, tp)).values():
        view = rlmm.view(tp)
        lost = await _lost_segment(rsm, objects)
        is_deleted = lost is not None and view is not None and lost[1] < view.raised_log_start
        if lost is not None and not is_deleted and not in_offsets(*lost, in_segments):
            stem = objects[SegmentFile.LOG].key.removesuffix(SegmentFile.LOG)
            key = f"{stem}{SegmentFile.METADATA}"
            message = f"object is missing; the log beside it has offsets {lost[0]} to {lost[1]}"
            faults.append(of_object(Kind.SEGMENT_METADATA_UNREADABLE, tp, key, message, lost[0]))
            offsets.append(lost)
    return faults, offsets


async def _lost_segment(rsm: RemoteStorageManager, objects: Objects) -> tuple[int, int] | None:
    """First and last offset of a segment that lacks only its metadata. None: no such segment."""
    if not objects.keys() >= _ALL_BUT_METADATA:
        return None
    try:
        raw, log_bytes = await rsm.get_listed_index(objects)
        index = RemoteLogIndex.parse(raw)
    except (CorruptSegment, ObjectNotFound):
        return None
    segment_key = rsm.parse_key(objects[SegmentFile.LOG].key)
    if segment_key is None or index.size_bytes != log_bytes:
        return None
    return segment_key.base_offset, index.last_offset


@dataclass(eq=False, repr=False)
class SegmentVerifier:
    """The check of one segment. `faults` and `unread` (objects that cannot be read now) are
    complete after `verify`.
    """

    rsm: RemoteStorageManager
    metadata: RemoteLogSegmentMetadata
    txns: TxnCheck
    chunk_bytes: int
    on_bytes: Callable[[int], None]

    def __post_init__(self) -> None:
        self._reached = 0  # log bytes reported as done
        self.faults: list[Condition] = []
        self.unread: list[Condition] = []
        # The log's leader epochs up to the segment's end, from its `.epochs`. None: not known.
        self.lineage: tuple[EpochStart, ...] | None = None
        self.is_encrypted = True  # also if not known

    async def verify(self, *, continues: bool) -> None:
        metadata = self.metadata
        if not await self._metadata_are_its_own():
            self._advance(metadata.segment_size_bytes)
            self.txns.restart()
            return
        if metadata.packed and await self._decode_or_note_fault(SegmentFile.PACKING, bytes) is None:
            # Nothing else of the segment can be read, and no other object is at fault.
            self._advance(metadata.segment_size_bytes)
            self.txns.restart()
            return
        index, aborted = await self._small_files()
        txn_key = self._key(SegmentFile.TXN)
        offsets = metadata.start_offset, metadata.end_offset
        self.txns.begin(metadata.topic_id_partition, aborted or (), txn_key, offsets)
        spans = list(index.spans()) if index is not None else []
        check = SegmentCheck(metadata, self._key, spans, self.txns, continues=continues)
        log_read = await self._read_log(check)
        self._advance(metadata.segment_size_bytes)
        self.faults += check.faults
        if not (log_read and check.log_is_sound and aborted is not None):
            self.txns.restart()
        else:
            self.faults += self.txns.end()

    async def verify_small(self) -> None:
        """Everything except the log, and what only the log shows."""
        if await self._metadata_are_its_own():
            await self._small_files()

    async def _small_files(self) -> tuple[RemoteLogIndex | None, tuple[AbortedTxn, ...] | None]:
        index, aborted = await self._index(), await self._check_txn_index()
        await self._epochs()
        await self._kafka_files()
        return index, aborted

    async def _metadata_are_its_own(self) -> bool:
        """False: the metadata were changed, so other objects cannot be compared with them."""
        try:
            self.is_encrypted = await self.rsm.check_metadata(self.metadata)
        except MetadataChanged as error:
            self._fault(SegmentFile.METADATA, str(error))
            return False
        except (ObjectNotFound, DamagedObject):
            return True  # each unreadable object becomes a fault of its own
        return True

    async def _index(self) -> RemoteLogIndex | None:
        def parsed(raw: bytes) -> RemoteLogIndex:
            index = RemoteLogIndex.parse(raw)
            index.check_covers(self.metadata.stored_end_offset, self.metadata.segment_size_bytes)
            return index

        index = await self._decode_or_note_fault(SegmentFile.INDEX, parsed)
        if index is None:
            return None
        # An archive may be copied below another prefix, so only the key within it is compared.
        if _place_in_archive(index.object_key) != _place_in_archive(self._key(SegmentFile.LOG)):
            self._fault(SegmentFile.INDEX, f"rdi names {index.object_key!r}")
        return index

    async def _check_txn_index(self) -> tuple[AbortedTxn, ...] | None:
        if not self.metadata.has_aborted_txns:
            return ()
        aborted = await self._decode_or_note_fault(SegmentFile.TXN, side_files.decode_aborted)
        if aborted is None:
            return None
        if not aborted and self.metadata.copied_end_offset is None:
            self._fault(SegmentFile.TXN, "no entry, but has_aborted_txns is true")
        end_offset = self.metadata.stored_end_offset
        for number, entry in enumerate(aborted):
            if entry.first_offset > end_offset:
                message = f"lists a transaction from {entry.first_offset}, above the segment's end"
                position = number * side_files.ENTRY_BYTES
                self._fault(SegmentFile.TXN, message, position, entry.first_offset)
        return side_files.clip_aborted(aborted, self.metadata.end_offset)

    async def _epochs(self) -> None:
        lineage = await self._decode_or_note_fault(SegmentFile.EPOCHS, side_files.decode_epochs)
        if lineage is None:
            return
        metadata = self.metadata
        recorded_epochs = metadata.segment_leader_epochs
        if recorded_epochs and recorded_epochs[-1].start_offset > metadata.end_offset:
            end = metadata.end_offset
            self._fault(
                SegmentFile.METADATA, f"{recorded_epochs[-1]} begins above its end offset {end}"
            )
        clipped_epochs = clip_epochs(lineage, metadata.start_offset, metadata.end_offset)
        if not agrees(clipped_epochs, recorded_epochs):
            self._fault(
                SegmentFile.EPOCHS, f"has {clipped_epochs}, metadata have {recorded_epochs}"
            )
        else:
            self.lineage = lineage

    async def _kafka_files(self) -> None:
        """Checks a broker's own files. Only some segments from `log-dirs` have them."""
        metadata = self.metadata
        base, end = metadata.start_offset, metadata.stored_end_offset
        is_clipped = metadata.copied_end_offset is not None
        newest_ms = 2**63 - 1 if is_clipped else metadata.max_timestamp_ms
        for file in KAFKA_FILES:
            try:
                raw = await self.rsm.fetch_index(metadata, file)
            except ObjectNotFound:
                continue
            except DamagedObject as error:
                self._note_damage(file, error)
                continue
            if file is SegmentFile.OFFSET_INDEX:
                fault = side_files.offset_index_fault(raw, base, end, metadata.segment_size_bytes)
            elif file is SegmentFile.TIME_INDEX:
                fault = side_files.time_index_fault(raw, base, end, newest_ms)
            else:
                fault = side_files.snapshot_fault(raw)
            if fault:
                self._fault(file, fault)

    async def _decode_or_note_fault(
        self, file: SegmentFile, decode: Callable[[bytes], T]
    ) -> T | None:
        """None: the object is missing or damaged, and a fault is added."""
        try:
            return decode(await self.rsm.fetch_index(self.metadata, file))
        except ObjectNotFound:
            self._fault(file, "object is missing")
        except CorruptSegment as error:
            self._note_damage(file, error)
        return None

    async def _read_log(self, check: SegmentCheck) -> bool:
        """False: the log is missing or a packed block is damaged.

        Reading up to one byte past the end checks the size.
        """
        size = self.metadata.segment_size_bytes
        try:
            await self._walk_log(check, size)
            if await self._range(size, size + 1):
                self._fault(
                    SegmentFile.LOG, f"object is longer than the {size} bytes of its metadata", size
                )
        except ObjectNotFound:
            self._fault(SegmentFile.LOG, "object is missing")
            return False
        except DamagedObject as error:  # a block of a packed log is damaged
            self._note_damage(SegmentFile.LOG, error)
            return False
        return True

    async def _walk_log(self, check: SegmentCheck, size: int) -> None:
        data, start = b"", 0  # the bytes in memory and their position in the log
        step: Next | None = Next(0)
        while step is not None and step.position < size:
            remaining = data[max(step.position - start, 0) :] if step.position >= start else b""
            end = min(step.position + max(step.bytes_min, self.chunk_bytes), size)
            read_from = step.position + len(remaining)
            more = await self._range(read_from, end) if read_from < end else b""
            data, start = remaining + more, step.position
            if start + len(data) < end:
                size = start + len(data)  # the existing bytes are still checked
                check.short(size)
            self._advance(start + len(data))
            step = check.take(data, start)
        check.finish()

    async def _range(self, start: int, end: int) -> bytes | bytearray:
        try:
            return await self.rsm.fetch_log_segment(self.metadata, ByteRange(start, end))
        except RangeNotSatisfiable:
            return b""

    def _advance(self, position: int) -> None:
        position = min(position, self.metadata.segment_size_bytes)
        if position > self._reached:
            self.on_bytes(position - self._reached)
            self._reached = position

    def _key(self, file: SegmentFile) -> str:
        return self.rsm.object_key(self.metadata, file)

    def _note_damage(self, file: SegmentFile, error: CorruptSegment) -> None:
        if error.retriable:
            self.unread.append(unread(self.metadata, self._key(file), error))
        else:
            self._fault(file, str(error))

    def _fault(
        self,
        file: SegmentFile,
        message: str,
        position: int | None = None,
        offset: int | None = None,
    ) -> None:
        tp, key = self.metadata.topic_id_partition, self._key(file)
        self.faults.append(of_object(Kind.SEGMENT_DAMAGED, tp, key, message, offset, position))


def _place_in_archive(key: str) -> list[str]:
    """Topic folder, partition and name."""
    return key.split("/")[-3:]
