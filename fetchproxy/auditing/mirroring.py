"""Copies one partition of an archive to another store unchanged, and checks each object.

The order of writes ensures that a reader of the copy never finds metadata of a missing object.
`moving` decides which of the two places is the archive.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from fetchproxy.auditing.completeness import CompletenessCheck, finished, refreshed
from fetchproxy.auditing.reports import unread
from fetchproxy.auditing.segment_verifier import SegmentVerifier
from fetchproxy.auditing.verify import is_gone, metadata_faults
from fetchproxy.config.schema import Config, MiB
from fetchproxy.errors import (
    CorruptSegment,
    DamagedObject,
    ObjectNotFound,
    ObjectNotReadable,
    RangeNotSatisfiable,
    RemoteStorageError,
)
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    FIRST_HISTORY,
    ByteRange,
    CompactedCopy,
    LogHistory,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.observability.health import Condition, Kind, of_object
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.segments.description import decode_segment, encode_log_history
from fetchproxy.segments.object_keys import (
    SegmentFile,
    is_key,
    is_partition_object_key,
    log_history_key,
    parse_segment_key,
    partition_folder,
)
from fetchproxy.segments.packing import decode_packing
from fetchproxy.segments.transaction_check import TxnCheck
from fetchproxy.storage.packed_logs import AtRest
from fetchproxy.storage.remote_storage import RemoteStorage, at_rest_of
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.storage.stores.object_store import (
    SMALL_OBJECT_BYTES_MAX,
    Content,
    ObjectStore,
    StoredObject,
)
from fetchproxy.storage.stores.registry import open_object_store
from fetchproxy.storage.stores.retries import each_object_alone
from fetchproxy.storage.watched_store import FAILING_IN_A_ROW_MAX
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.spool import Spool

# Size of a read, a write and a comparison.
MIRROR_RANGE_BYTES = 8 * MiB
# For each partition: one segment is uploaded while another is downloaded. Both are on the disk.
SEGMENTS_AT_ONCE = 2
# For each partition: segments whose small objects are compared at once; each reads up to 2 MiB.
COMPARED_AT_ONCE, COMPARED_BYTES = 8, MiB
# What an archive may replace after the copy: by `keys rewrap` the first, by repair the others.
REPLACEABLE = (SegmentFile.PACKING, SegmentFile.INDEX, SegmentFile.EPOCHS, SegmentFile.TXN)


@dataclass(eq=False, repr=False)
class MirrorSide:
    """The source or the target. `store`: its objects as stored. `at_rest` opens the ring again."""

    store: ObjectStore
    prefix: str
    storage: RemoteStorage
    rlmm: StoreBackedRemoteLogMetadataManager
    at_rest: Callable[[], AtRest]

    def __post_init__(self) -> None:
        storage = self.storage
        self.rsm, self.objects, self.packed = storage.rsm, storage.objects, storage.packed

    async def partition_objects(self, tp: TopicIdPartition) -> dict[str, StoredObject]:
        """The objects by their key below the prefix, which is the same in both stores."""
        return await self.objects_below(partition_folder(self.prefix, tp))

    async def objects_below(self, folder: str) -> dict[str, StoredObject]:
        """Without what somebody else has put there under a name that no archive has."""
        listed = self.store.list(folder)
        return {f.key[len(self.prefix) :]: f async for f in listed if is_key(f.key)}


@asynccontextmanager
async def open_side(url: str, config: Config, *, create: bool = False) -> AsyncIterator[MirrorSide]:
    """`config`: all settings except `store.url`. Raises ConfigError, RemoteStorageError."""
    store, prefix = open_object_store(url, config.store, create=create)
    at_rest = partial(at_rest_of, config.store)
    storage = RemoteStorage(store, prefix, must_exist=True, at_rest=at_rest())
    rlmm = StoreBackedRemoteLogMetadataManager(
        storage, config.metadata, read_max_ms=config.store.metadata_read_max_ms
    )
    async with storage, rlmm:
        yield MirrorSide(storage.store, prefix, storage, rlmm, at_rest)


@dataclass(frozen=True, slots=True)
class CopyCandidate:
    """A segment that may have to be copied. `objects`: the segment's objects by file. `known`: what
    the copy's metadata say of it; None: no reader of the copy sees it yet.
    """

    metadata: RemoteLogSegmentMetadata
    objects: Mapping[SegmentFile, StoredObject]
    known: RemoteLogSegmentMetadata | None

    @property
    def data(self) -> list[StoredObject]:
        """All objects except the metadata; the log last."""
        files = sorted(self.objects, key=lambda file: file is SegmentFile.LOG)
        return [self.objects[file] for file in files if file is not SegmentFile.METADATA]


@dataclass(slots=True)
class _Plan:
    """What a run has to copy, to compare and to delete. `to_compare`: segments of which the copy
    has all objects, but small ones may differ. `other_keys`, `extra`: keys below the prefix.
    """

    copies: list[CopyCandidate] = field(default_factory=list)
    to_compare: list[CopyCandidate] = field(default_factory=list)
    other_keys: list[str] = field(default_factory=list)  # of no segment; compared by content
    # Objects of the copy that the archive no longer has. For a segment, this run deletes only the
    # metadata; a later run deletes the other objects, which a reader may still be reading.
    extra: list[str] = field(default_factory=list)


def plan_mirror(
    segments: Sequence[RemoteLogSegmentMetadata],
    source_objects: Mapping[str, StoredObject],
    copied_segments: Sequence[RemoteLogSegmentMetadata],
    copied_objects: Mapping[str, StoredObject],
    *,
    compare: bool = False,
) -> _Plan:
    """The objects that the copy lacks. Pure. `segments`: the archive's finished segments.
    `copied_segments`: the copy's segments. A log never changes, so only its size is compared,
    unless `compare` is set.
    """
    plan = _Plan()
    at_source = by_segment(source_objects)
    have = {segment.segment_id: segment for segment in copied_segments}
    for metadata in segments:
        objects = at_source.get(metadata.segment_id, {})
        whole = all(
            (copied_object := copied_objects.get(relative_key)) is not None
            and (file in REPLACEABLE or copied_object.size_bytes == stored_object.size_bytes)
            for file, (relative_key, stored_object) in objects.items()
            if file is not SegmentFile.METADATA
        )
        files = {file: stored_object for file, (_, stored_object) in objects.items()}
        copy = CopyCandidate(metadata, files, have.get(metadata.segment_id))
        found_there = whole and copy.known is not None and not compare
        (plan.to_compare if found_there else plan.copies).append(copy)
    ids = {segment.segment_id for segment in segments}
    plan.other_keys = [
        relative_key
        for relative_key in source_objects
        if parse_segment_key("", relative_key) is None
    ]
    for segment_id, copy_files in by_segment(copied_objects).items():
        if segment_id not in ids:
            hidden = copy_files.get(SegmentFile.METADATA)
            plan.extra += [hidden[0]] if hidden else [key for key, _ in copy_files.values()]
    plan.extra += [
        key
        for key in copied_objects
        if key not in source_objects and is_partition_object_key("", key)
    ]
    return plan


def by_segment(
    objects: Mapping[str, StoredObject],
) -> dict[RemoteLogSegmentId, dict[SegmentFile, tuple[str, StoredObject]]]:
    files_by_segment: dict[RemoteLogSegmentId, dict[SegmentFile, tuple[str, StoredObject]]] = {}
    for relative_key, stored_object in objects.items():
        key = parse_segment_key("", relative_key)
        if key is not None:
            files_by_segment.setdefault(key.segment_id, {})[key.file] = (
                relative_key,
                stored_object,
            )
    return files_by_segment


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """`compare`: also compare existing copies byte by byte. `with_damaged`: copy damaged segments
    too, as they are. `bytes_per_s`: read limit of one process at the archive; 0: no limit.
    `opens_segments`: also open each segment of the copy, as its readers will.
    """

    compare: bool = False
    with_damaged: bool = False
    bytes_per_s: int = 0
    opens_segments: bool = False


@dataclass(slots=True)
class MirroredPartition:
    """`segments`: finished segments in the archive. `size_bytes`: their total size."""

    tp: TopicIdPartition
    segments: int = 0
    size_bytes: int = 0
    copied: int = 0  # segments of which at least one object was written
    bytes_copied: int = 0
    removed: int = 0
    overtaken: int = 0  # segments deleted during the copy
    source_lost: list[str] = field(
        default_factory=list
    )  # objects of the copy that the archive has lost
    faults: list[Condition] = field(default_factory=list)
    # What could not be copied now, though the rest could: a store failed for one object, twice.
    failed: list[Condition] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class PartitionMirror:
    """Copies one partition of an archive to another store; for a single run.
    `on_progress(done, all)`: log bytes.
    """

    source: MirrorSide
    target: MirrorSide
    tp: TopicIdPartition
    spool: Spool
    pace: CopyPace
    options: MirrorOptions
    on_progress: Callable[[int, int], None]

    def __post_init__(self) -> None:
        self._done_bytes = 0
        self._result = MirroredPartition(self.tp)
        self._faulty: set[RemoteLogSegmentId] = set()
        self._failed_in_a_row = 0
        self._history = FIRST_HISTORY  # of the source, as it was read with its segments
        self._again = False  # this is the second try

    async def run(self) -> MirroredPartition:
        """May be interrupted at any time and repeated. What could not be copied is tried once more
        at the end. Raises RemoteStorageError, OSError.
        """
        with each_object_alone():
            await self._copy_all(compare=self.options.compare)
            if before := self._result.failed:
                self._result.failed, self._again = [], True
                try:
                    await self._copy_all(compare=False)
                except RemoteStorageError as error:
                    if not error.retriable:
                        raise
                    self._result.failed = before  # the store fails now; all else is copied
            if self.options.opens_segments:
                await self._open_all()
        return self._result

    async def _copy_all(self, *, compare: bool) -> None:
        """Copies every object that the copy lacks, except segments that this run found damaged."""
        self._done_bytes, self._result.source_lost = 0, []
        copied_objects = await self.target.partition_objects(self.tp)
        plan = await self._make_plan(copied_objects, compare=compare)

        async def renew(to_copy: CopyCandidate) -> None:
            if to_copy.metadata.segment_id in self._faulty or await self._copy_replaced_files(
                to_copy
            ):
                self._advance(to_copy.metadata.segment_size_bytes)
            else:
                plan.copies.append(to_copy)

        # Readers see segments in the order of offsets: each waits until the one before has ended.
        last = asyncio.Event()
        last.set()

        async def copy(to_copy: CopyCandidate) -> None:
            nonlocal last
            before, last = last, asyncio.Event()
            previous_turn = last
            try:
                if to_copy.metadata.segment_id not in self._faulty:
                    await self._copy(to_copy, copied_objects, before)
                await before.wait()
            finally:
                previous_turn.set()
            self._advance(to_copy.metadata.segment_size_bytes)

        await self._copy_notes(plan.other_keys, copied_objects)
        await for_each(plan.to_compare, renew, COMPARED_AT_ONCE)
        plan.copies.sort(key=lambda copy: copy.metadata.start_offset)
        await for_each(plan.copies, copy, SEGMENTS_AT_ONCE)
        if self._history.compacted is not None and not self._faulty and not self._result.failed:
            await self._put_history(self._history)
        await self._remove(plan.extra)

    async def _make_plan(
        self, copied_objects: Mapping[str, StoredObject], *, compare: bool
    ) -> _Plan:
        tp, result = self.tp, self._result
        if copied_objects:
            await refreshed(self.target.rlmm, tp)
        faults = await metadata_faults(self.source.storage, self.source.rlmm, tp)
        self._add([*faults.faults, *faults.unread])
        view = self.source.rlmm.view(tp)
        self._history = FIRST_HISTORY if view is None else view.history
        # List the objects after reading the metadata: a finished segment then has all its objects.
        segments = finished(self.source.rlmm.list_remote_log_segments(tp))
        source_objects = await self.source.partition_objects(tp)
        copied_segments = self.target.rlmm.list_remote_log_segments(tp)
        result.segments = len(segments)
        result.size_bytes = sum(segment.segment_size_bytes for segment in segments)
        return plan_mirror(
            segments, source_objects, copied_segments, copied_objects, compare=compare
        )

    async def _copy_notes(
        self, relative_keys: Iterable[str], copied_objects: Mapping[str, StoredObject]
    ) -> None:
        """The notes go first. They tell a reader which records are lost and which not copied yet.
        Which copy of a compacted log counts is told last: until then the target has an older one.
        """
        history_key = log_history_key("", self.tp)
        compacted = self._history.compacted is not None
        for relative_key in relative_keys:
            if not (compacted and relative_key == history_key):
                await self._copy_other_object(relative_key)
        if compacted and history_key not in copied_objects:
            await self._put_history(replace(self._history, compacted=CompactedCopy()))

    async def _put_history(self, history: LogHistory) -> None:
        key = log_history_key("", self.tp)
        await self._put_if_other(key, encode_log_history(self.tp, history))

    async def _open_all(self) -> None:
        await refreshed(self.target.rlmm, self.tp)
        copied_segments = finished(self.target.rlmm.list_remote_log_segments(self.tp))

        async def check(metadata: RemoteLogSegmentMetadata) -> None:
            error = await opening_error(self.target, metadata)
            if error is None:
                return
            key = self.target.rsm.object_key(metadata, SegmentFile.LOG)
            message, first = f"it does not open at --to: {error}", metadata.start_offset
            # A segment that was copied although it is damaged is a fault of the archive.
            retriable = error.retriable or await opening_error(self.source, metadata) is None
            kind = Kind.SEGMENT_DAMAGED
            self._add([of_object(kind, self.tp, key, message, first, retriable=retriable)])

        await for_each(copied_segments, check, COMPARED_AT_ONCE)

    def _add(self, faults: Iterable[Condition]) -> None:
        for fault in faults:
            if fault.retriable:
                self._result.failed.append(fault)
            elif fault not in self._result.faults:
                self._result.faults.append(fault)

    def _advance(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self.on_progress(self._done_bytes, self._result.size_bytes)

    async def _copy_replaced_files(self, copy: CopyCandidate) -> bool:
        """Take over what the archive has replaced since the copy. False: the segment has to be read
        and checked as for a first copy.
        """
        is_done = True
        async with self._source_errors_noted(copy):
            files = await self._files_that_differ(copy)
            if files:
                is_done = files == [SegmentFile.PACKING] and await self._take_key(copy)
            if is_done and copy.known != copy.metadata and await self._is_sound(copy):
                await self._put_segment(copy, self._put_metadata(copy))
        return is_done

    async def _files_that_differ(self, copy: CopyCandidate) -> list[SegmentFile]:
        """The small objects that differ from those of the copy."""
        differ = []
        for file in REPLACEABLE:
            if (stored_object := copy.objects.get(file)) is None:
                continue
            source, target = self.source.store, self.target.store
            key = self.target.prefix + stored_object.key[len(self.source.prefix) :]
            if not await same_objects(source, stored_object.key, target, key, COMPARED_BYTES):
                differ.append(file)
            self.pace.spend(stored_object.size_bytes)
            await self.pace.turn(None)
        return differ

    async def _take_key(self, copy: CopyCandidate) -> bool:
        """True: the `.packing` differs by the wrapped key alone, which opens the copy's log, too.
        Then it is taken over without the log.
        """
        key = self.source.rsm.object_key(copy.metadata, SegmentFile.PACKING)
        content = await self.source.store.get(key, SMALL_OBJECT_BYTES_MAX)
        try:
            source_packing = decode_packing(content, key)
            target_packing = await self.target.packed.read_packing(copy.metadata)
        except CorruptSegment as error:
            if error.retriable:
                raise
            return False
        if replace(source_packing, key=target_packing.key) != target_packing:
            return False
        try:
            await self.target.packed.check_opens(copy.metadata, source_packing)
        except DamagedObject as error:
            if error.retriable:
                raise
            self._note_fault(copy, str(error), SegmentFile.PACKING)
            return True
        await self._put_segment(copy, self._put_if_other(key[len(self.source.prefix) :], content))
        return True

    async def _is_sound(self, copy: CopyCandidate) -> bool:
        """Whether the archive's small objects agree with its metadata, which are newer than the
        copy's.
        """
        verifier = SegmentVerifier(
            self.source.rsm, copy.metadata, TxnCheck(), MIRROR_RANGE_BYTES, lambda read: None
        )
        await verifier.verify_small()
        self._result.failed += verifier.unread
        self._note_faults(copy, verifier.faults)
        return not verifier.unread and not verifier.faults

    async def _copy(
        self, copy: CopyCandidate, copied_objects: Mapping[str, StoredObject], turn: asyncio.Event
    ) -> None:
        folder = self.spool.new_file()
        try:
            async with self._source_errors_noted(copy):
                await self._copy_whole(copy, folder, copied_objects, turn)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    async def _copy_whole(
        self,
        copy: CopyCandidate,
        folder: Path,
        copied_objects: Mapping[str, StoredObject],
        turn: asyncio.Event,
    ) -> None:
        """`turn`: when the segment may be shown to readers."""
        faults = await self._download_segment(copy, folder)
        if faults and await is_gone(self.source.objects, copy.metadata):
            self._result.overtaken += 1
            return
        self._note_faults(copy, faults)
        # What is damaged since it was copied never replaces the copy, which may be good.
        if faults and (copy.known is not None or not self.options.with_damaged):
            return

        async def put() -> bool:
            wrote = False
            for stored_object in copy.data:
                wrote |= await self._put_data(stored_object, folder, copied_objects)
            await turn.wait()
            return wrote | await self._put_metadata(copy)

        await self._put_segment(copy, put())

    @asynccontextmanager
    async def _source_errors_noted(self, copy: CopyCandidate) -> AsyncIterator[None]:
        """Errors of the segment's objects at the archive."""
        try:
            yield
        except ObjectNotFound as error:
            if await is_gone(self.source.objects, copy.metadata):
                self._result.overtaken += 1
                return
            self._note_fault(copy, f"an object is missing ({error})")
        except ObjectNotReadable as error:
            self._note_unreadable(error, copy)

    def _note_faults(self, copy: CopyCandidate, faults: Sequence[Condition]) -> None:
        if faults:
            self._faulty.add(copy.metadata.segment_id)
            self._add(faults)

    def _note_fault(
        self, copy: CopyCandidate, message: str, file: SegmentFile = SegmentFile.LOG
    ) -> None:
        key, first = self.source.rsm.object_key(copy.metadata, file), copy.metadata.start_offset
        self._note_faults(copy, [of_object(Kind.SEGMENT_DAMAGED, self.tp, key, message, first)])

    async def _put_segment(self, copy: CopyCandidate, puts: Awaitable[bool]) -> None:
        """Count the segment if `puts` wrote something. It is noted as failed if the target does not
        take one of its objects.
        """
        try:
            wrote = await puts
        except RemoteStorageError as error:
            if not error.retriable:
                raise
            self._note_failed_copy(copy, error)
            return
        self._failed_in_a_row = 0
        self._result.copied += wrote

    def _note_failed_copy(self, copy: CopyCandidate, error: RemoteStorageError) -> None:
        """Note the segment. Raises `error` if so many fail in a row that the store fails."""
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= FAILING_IN_A_ROW_MAX and not self._again:
            raise error
        key = self.source.rsm.object_key(copy.metadata, SegmentFile.LOG)
        self._result.failed.append(unread(copy.metadata, key, error))

    async def _download_segment(self, copy: CopyCandidate, folder: Path) -> list[Condition]:
        """Downloads the segment into `folder` and returns its faults. Retries once after faults."""
        faults: list[Condition] = []
        await asyncio.to_thread(folder.mkdir)
        for _ in range(2):
            for stored_object in copy.data:
                await self._download(stored_object, folder / stored_object.key)
            faults = await self._verify_downloaded(copy.metadata, folder)
            if not faults:
                break
        return faults

    async def _download(self, stored_object: StoredObject, path: Path) -> None:
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        file: IO[bytes] = await asyncio.to_thread(path.open, "wb")
        step, position = self.pace.step(MIRROR_RANGE_BYTES), 0
        try:
            while content := await _range(self.source.store, stored_object.key, position, step):
                await asyncio.to_thread(file.write, content)
                self.pace.spend(len(content))
                await self.pace.turn(None)
                position += len(content)
                if len(content) < step:
                    break
        finally:
            await asyncio.to_thread(file.close)

    async def _verify_downloaded(
        self, metadata: RemoteLogSegmentMetadata, folder: Path
    ) -> list[Condition]:
        """The faults of the downloaded segment, by the checks of `verify`."""
        async with RemoteStorage(
            FilesystemObjectStore(folder), self.source.prefix, at_rest=self.source.at_rest()
        ) as storage:
            check = SegmentVerifier(
                storage.rsm, metadata, TxnCheck(), MIRROR_RANGE_BYTES, lambda read: None
            )
            await check.verify(continues=False)
        return check.faults

    async def _put_data(
        self, stored_object: StoredObject, folder: Path, copied_objects: Mapping[str, StoredObject]
    ) -> bool:
        """True: the object was written. False: the target already has it, from an earlier run."""
        relative_key = stored_object.key[len(self.source.prefix) :]
        store, key, path = (
            self.target.store,
            self.target.prefix + relative_key,
            folder / stored_object.key,
        )
        size = (await asyncio.to_thread(path.stat)).st_size
        copied_object = copied_objects.get(relative_key)
        async with FilesystemObjectStore(folder) as local:
            is_there = copied_object is not None and copied_object.size_bytes == size
            if is_there and await same_objects(local, stored_object.key, store, key):
                return False
            await store.put_file(key, path, settled=True)
            if not await same_objects(local, stored_object.key, store, key):
                raise _differs_error(key)
        self._result.bytes_copied += size
        return True

    async def _put_metadata(self, copy: CopyCandidate) -> bool:
        """Writes the current metadata: an archiver may have changed them since they were listed."""
        key = self.source.rsm.object_key(copy.metadata, SegmentFile.METADATA)
        content = await self.source.store.get(key)
        now = decode_segment(content, key)
        if now.segment_id != copy.metadata.segment_id or not now.is_finished:
            raise ObjectNotFound(key)
        return await self._put_if_other(key[len(self.source.prefix) :], content)

    def _note_unreadable(self, error: ObjectNotReadable, copy: CopyCandidate) -> None:
        """The segment's other objects are left out too; the next run copies what is readable."""
        if error.retriable:
            self._note_failed_copy(copy, error)
            return
        self._note_fault(copy, str(error))

    async def _copy_other_object(self, relative_key: str) -> None:
        try:
            content = await self.source.store.get(self.source.prefix + relative_key)
        except ObjectNotFound:
            return  # deleted since it was listed
        except DamagedObject as error:  # not given out, or larger than any object of its kind
            key = self.source.prefix + relative_key
            kind, retriable = Kind.OBJECT_NOT_READABLE, error.retriable
            self._add([of_object(kind, self.tp, key, str(error), retriable=retriable)])
            return
        await self._put_if_other(relative_key, content)

    async def _put_if_other(self, relative_key: str, content: bytes) -> bool:
        wrote = await put_if_other(self.target, relative_key, content)
        self._result.bytes_copied += len(content) if wrote else 0
        return wrote

    async def _remove(self, extra: Iterable[str]) -> None:
        """Deletes `extra` from the copy, unless the archive has faults: it may be the last copy."""
        relative_keys = list(extra)
        if not relative_keys:
            return
        check = CompletenessCheck(self.source.objects, self.source.rlmm, self.tp)
        damaged_segments = await check.check()
        self._add(damaged_segments.faults)
        if self._result.faults or self._result.failed or damaged_segments.unread:
            self._result.source_lost = relative_keys
            return
        for relative_key in relative_keys:
            await self.target.store.delete(self.target.prefix + relative_key)
        self._result.removed += len(relative_keys)


async def opening_error(
    side: MirrorSide, metadata: RemoteLogSegmentMetadata
) -> RemoteStorageError | None:
    """Read the segment's first byte: an encrypted one has to be opened with its key for that. None:
    it was read. Raises RemoteStorageError if the store or the key service fails.
    """
    try:
        await side.rsm.fetch_log_segment(metadata, ByteRange(0, 1))
    except (ObjectNotFound, RangeNotSatisfiable, DamagedObject) as error:
        return error
    return None


async def put_if_other(target: MirrorSide, relative_key: str, content: bytes) -> bool:
    """True: `content` was written. False: it was there already. Raises RemoteStorageError."""
    key = target.prefix + relative_key
    with suppress(ObjectNotFound, DamagedObject):
        if await target.store.get(key) == content:
            return False
    await target.store.put(key, content)
    if await target.store.get(key) != content:
        raise _differs_error(key)
    return True


async def same_objects(
    one: ObjectStore,
    key: str,
    other: ObjectStore,
    other_key: str,
    range_bytes: int = MIRROR_RANGE_BYTES,
) -> bool:
    """True: both objects exist and have the same bytes. Raises RemoteStorageError."""
    position = 0
    try:
        while True:
            part = await _range(one, key, position, range_bytes)
            if part != await _range(other, other_key, position, range_bytes):
                return False
            if len(part) < range_bytes:
                return True
            position += len(part)
    except ObjectNotFound:
        return False


async def _range(
    store: ObjectStore, key: str, position: int, size_bytes: int = MIRROR_RANGE_BYTES
) -> Content:
    try:
        return await store.get_range(key, ByteRange(position, position + size_bytes))
    except RangeNotSatisfiable:
        return b""


def _differs_error(key: str) -> DamagedObject:
    return DamagedObject(f"{key}: the bytes read back differ from the bytes written")
