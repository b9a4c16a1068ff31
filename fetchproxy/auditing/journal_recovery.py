"""Makes segments of what a lost archiver's journal has beyond the archive's end.

The archive then ends where the journal ended, for every reader, as if the archiver had copied its
last segments. Nothing of the brokers is needed. It may be repeated after a failure: what was copied
is in the archive by then. Objects of the journal are deleted only when segments have all their
records (docs/adr/0089).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import structlog
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import (
    CONTROL_ABORT,
    BatchHeader,
    check_crc,
    control_type,
    walk,
)

from fetchproxy.errors import (
    ArchiveMismatch,
    CopyOvertaken,
    CorruptSegment,
    DamagedObject,
    ObjectNotFound,
    SegmentLocked,
)
from fetchproxy.metadata.journal_tables import read_table
from fetchproxy.metadata.lineage import archived_lineage, extend_lineage, last_epoch
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.segments.contents import plan_take
from fetchproxy.segments.journal import (
    JournalEntry,
    JournalPlace,
    JournalTable,
    PlacedEntry,
    by_partition,
    log_of,
    opened_entry,
)
from fetchproxy.segments.packing import Cipher, WrappedKey
from fetchproxy.storage.archive_identity import OwnIdentity
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.ciphers import AesGcm
from fetchproxy.storage.key_rings import SETTING, journal_context
from fetchproxy.storage.packed_logs import AtRest
from fetchproxy.writing.completeness_records import CompletenessRecords
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.journal import OBJECT_GAIN_BYTES_MAX
from fetchproxy.writing.sources.segment_writer import SegmentWriter
from fetchproxy.writing.spool import Spool

log = structlog.get_logger(__name__)

_NO_END = -1


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """One partition. Ends are exclusive; None: nothing is archived. `unreachable`: the first and
    last offset of entries that do not continue the log, so they are not in the archive. `fault`:
    why an entry could not be read; the log ends before it.
    """

    tp: TopicIdPartition
    end_before: int | None
    end: int | None
    size_bytes: int
    unreachable: tuple[int, int] | None = None
    fault: str | None = None


@dataclass(eq=False, repr=False)
class JournalRecovery:
    """`copier`: makes the segments. Raises RemoteStorageError, CorruptSegment, OSError."""

    objects: ArchiveObjects
    identity: OwnIdentity
    at_rest: AtRest
    rlmm: RemoteLogMetadataManager
    copier: SegmentCopier
    spool: Spool
    _: KW_ONLY
    segment_bytes_max: int

    def __post_init__(self) -> None:
        self._ciphers: dict[WrappedKey, Cipher] = {}

    async def tables(self) -> tuple[list[JournalTable], list[str]]:
        """The table of every journal object, by archiver and number; and what is wrong with those
        that cannot be read, or that a cluster wrote which has lost the archive to another one.
        """
        tables_found: list[JournalTable] = []
        faults: list[str] = []
        owner = await self.identity.look()
        async for journal, number, stored in self.objects.list_journals():
            try:
                table = await read_table(self.objects, journal, number, stored)
            except DamagedObject as error:
                faults.append(str(error))
                continue
            if table is None:
                continue
            try:
                if owner is not None and owner.handed_over is not None:
                    owner.check_is_of_cluster(table.cluster_id or None)
            except ArchiveMismatch as error:  # its offsets may be those of other records by now
                faults.append(f"{self.objects.journal_key(journal, number)}: {error}")
            else:
                tables_found.append(table)
        return tables_found, faults

    async def recover(self, tables: Sequence[JournalTable]) -> list[RecoveredLog]:
        """Copy what continues the archive; then delete the objects that are not needed any more."""
        recovered: list[RecoveredLog] = []
        keys = {table.place: table.key for table in tables}
        for tp, entries in sorted(by_partition(tables).items()):
            view = await self.view(tp)
            chain = log_of(entries, view.log_end_offset, last_epoch(view))
            one = _OneLog(self, tp, view, keys)
            await one.copy(chain)
            recovered.append(one.result(entries))
        ends = {recovered_log.tp: recovered_log.end for recovered_log in recovered}
        for table in tables:
            if all(_is_archived(ends[e.tp], e.next_offset) for e in table.entries):
                await self.objects.delete_journal(*table.place)
        return recovered

    async def view(self, tp: TopicIdPartition) -> PartitionView:
        return await self.rlmm.refresh(tp, asyncio.get_running_loop().time())

    async def records(self, placed: PlacedEntry, key: WrappedKey | None) -> bytes:
        place, entry = placed.place, placed.entry
        name = self.objects.journal_key(*place)
        # A gain is at most one segment, and its last batch may be larger than there is room for.
        bytes_max = 2 * max(self.segment_bytes_max, OBJECT_GAIN_BYTES_MAX)
        if entry.stored.length > bytes_max:
            raise DamagedObject(
                f"{name}: the entry of {entry.tp} has {entry.stored.length} bytes, it can have "
                f"{bytes_max} at most"
            )
        raw = await self.objects.get_journal_bytes(name, entry.stored)
        cipher = await self._cipher(placed, key)
        try:
            return await asyncio.to_thread(opened_entry, place, entry, memoryview(raw), cipher)
        except CorruptSegment as error:
            raise DamagedObject(f"{name}: {entry.tp}: {error}") from None

    async def _cipher(self, placed: PlacedEntry, key: WrappedKey | None) -> Cipher | None:
        at_rest = self.at_rest
        name = self.objects.journal_key(*placed.place)
        if key is None:
            if at_rest.required:
                raise DamagedObject(f"{name}: it is not encrypted, but {SETTING} requires that")
            return None
        if key not in self._ciphers:
            if at_rest.keys is None:
                raise DamagedObject(f"{name}: it is encrypted, and {SETTING} is not set")
            data_key = await at_rest.keys.unwrap(key, journal_context(placed.place.journal))
            self._ciphers[key] = AesGcm(data_key)
        return self._ciphers[key]


@dataclass(eq=False, repr=False)
class _OneLog:
    """Makes the segments of one partition."""

    recovery: JournalRecovery
    tp: TopicIdPartition
    view: PartitionView
    keys: Mapping[JournalPlace, WrappedKey | None]

    def __post_init__(self) -> None:
        self._end = self.view.log_end_offset
        self._lineage = archived_lineage(self.view)
        self._completeness = CompletenessRecords(self.recovery.objects, self.tp)
        self._size_bytes = 0
        self._fault: str | None = None
        self._writer: SegmentWriter | None = None

    def result(self, entries: Sequence[PlacedEntry]) -> RecoveredLog:
        behind = [
            placed.entry
            for placed in entries
            if not _is_archived(self._end, placed.entry.next_offset)
        ]
        unreachable = None
        if behind:
            unreachable = (
                min(e.start_offset for e in behind),
                max(e.next_offset for e in behind) - 1,
            )
        before = self.view.log_end_offset
        return RecoveredLog(self.tp, before, self._end, self._size_bytes, unreachable, self._fault)

    async def copy(self, chain: Sequence[PlacedEntry]) -> None:
        if not chain:
            return
        await self._completeness.read()
        position = chain[0].entry.start_offset if self._end is None else self._end
        try:
            for placed in chain:
                records = await self._read(placed)
                if records is None:
                    break
                position = await self._add(placed, records, position)
            if self._writer is not None:
                await self._close(self._writer)
        finally:
            if self._writer is not None:
                await self._writer.discard()

    async def _read(self, placed: PlacedEntry) -> bytes | None:
        """The entry's batches. None: they cannot be read, which is noted."""
        try:
            records = await self.recovery.records(placed, self.keys[placed.place])
            name = self.recovery.objects.journal_key(*placed.place)
            await asyncio.to_thread(_check, name, placed.entry, records)
        except (DamagedObject, ObjectNotFound, SegmentLocked) as error:
            self._fault = str(error)
            return None
        return records

    async def _add(self, placed: PlacedEntry, records: bytes, position: int) -> int:
        """Append the batches from `position` on. Returns the position after them."""
        headers, skipped = await asyncio.to_thread(_from, records, position)
        aborted = [pair for pair in placed.entry.aborted if not _ended(pair, skipped)]
        while headers:
            writer = self._writer
            if writer is None:
                writer = SegmentWriter(self.tp, position, self.recovery.spool)
                self._writer = writer
            take = plan_take(
                headers,
                position=position,
                last_stable_offset=placed.entry.next_offset,
                accumulated_bytes=writer.size_bytes,
                segment_bytes_max=self.recovery.segment_bytes_max,
            )
            taken, headers = headers[take.start : take.end], headers[take.end :]
            await writer.append(memoryview(records), taken, aborted, placed.entry.leader_epoch)
            position = writer.position
            if take.full:
                await self._close(writer)
        return position

    async def _close(self, writer: SegmentWriter) -> None:
        self._writer = None
        segment = writer.close()
        try:
            finished = await self.recovery.copier.copy(
                segment, self._lineage, lambda: self._confirm(segment.start_offset)
            )
        finally:
            await writer.discard()
        await self._completeness.finished(finished)
        self._lineage = extend_lineage(self._lineage, segment.leader_epochs)
        self._end = finished.end_offset + 1
        self._size_bytes += finished.segment_size_bytes

    async def _confirm(self, start_offset: int) -> None:
        """An archiver that is still alive may have copied the same records meanwhile."""
        view = await self.recovery.view(self.tp)
        if view.log_end_offset != self._end:
            raise CopyOvertaken(f"{self.tp} is already archived up to {view.log_end_offset}")
        await self._completeness.begin(view, start_offset)


def _check(name: str, entry: JournalEntry, records: bytes) -> None:
    """Raises DamagedObject if `records` are not the entry's batches."""
    end = entry.start_offset
    try:
        for header in walk(records):
            if not check_crc(records, header):
                raise DamagedObject(f"{name}: the batch at {header.base_offset} fails its CRC")
            if header.is_control:
                control_type(records, header)
            end = header.last_offset + 1
    except WireError as error:
        raise DamagedObject(f"{name}: the batch after {end - 1}: {error}") from None
    if end != entry.next_offset:
        raise DamagedObject(f"{name}: {entry.tp} ends at {end}, not at its next_offset")


def _from(records: bytes, position: int) -> tuple[list[BatchHeader], dict[int, int]]:
    """The batches that end at or after `position`; and, of those before it, the offset of each
    producer's last ABORT marker.
    """
    headers: list[BatchHeader] = []
    skipped: dict[int, int] = {}
    for header in walk(records):
        if header.last_offset >= position:
            headers.append(header)
        elif header.is_control and control_type(records, header) == CONTROL_ABORT:
            skipped[header.producer_id] = header.base_offset
    return headers, skipped


def _ended(pair: tuple[int, int], skipped: dict[int, int]) -> bool:
    """Whether the transaction has its marker in a batch that is left out. Its records are, too."""
    producer_id, first_offset = pair
    return first_offset < skipped.get(producer_id, _NO_END)


def _is_archived(end: int | None, next_offset: int) -> bool:
    return end is not None and end >= next_offset
