"""One partition of an archive copied to another store as it is, each object checked on its way.

Decides what a copy lacks and in which order it gets that: a reader of the copy never finds metadata
of an object that is not there. Which of two places is the archive is decided in `moving`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO

from fetchproxy.auditing.completeness import CompletenessCheck, refreshed
from fetchproxy.auditing.faults import Fault
from fetchproxy.auditing.segment_verifier import SegmentVerifier
from fetchproxy.auditing.verify import finished, metadata_faults
from fetchproxy.config.schema import MetadataConfig, StoreConfig
from fetchproxy.errors import CorruptSegment, DamagedObject, ObjectNotFound, RangeNotSatisfiable
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    ByteRange,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.runtime.fairness import TokenBucket
from fetchproxy.segments.check import TxnCheck
from fetchproxy.segments.description import decode_segment
from fetchproxy.segments.object_keys import (
    SegmentFile,
    is_partition_object_key,
    parse_segment_key,
    partition_folder,
)
from fetchproxy.storage.packed_logs import AtRest
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager, at_rest_of
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.storage.stores.object_store import Content, MiB, ObjectStore, StoredObject
from fetchproxy.storage.stores.registry import open_object_store
from fetchproxy.writing.sources.segment_source import Spool

# Read, written and compared at a time.
RANGE_BYTES = 8 * MiB
# In work at once in one partition, each on the disk meanwhile: one is uploaded while the other is
# downloaded.
SEGMENTS_AT_ONCE = 2

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


# Both ends, as bytes and as an archive.


@dataclass(frozen=True, slots=True)
class Place:
    """`store`: the objects as they are stored. `rsm`, `rlmm`: what they say. `at_rest` opens the
    key ring once more, for a manager of its own."""

    store: ObjectStore
    prefix: str
    rsm: RemoteStorageManager
    rlmm: StoreBackedRemoteLogMetadataManager
    at_rest: Callable[[], AtRest]

    async def partition_objects(self, tip: TopicIdPartition) -> dict[str, StoredObject]:
        """By their place below the prefix, which is the same at both ends."""
        return await self.objects_below(partition_folder(self.prefix, tip))

    async def objects_below(self, folder: str) -> dict[str, StoredObject]:
        return {f.key[len(self.prefix) :]: f async for f in self.store.list(folder)}


@asynccontextmanager
async def open_place(
    url: str, store_config: StoreConfig, metadata: MetadataConfig, *, create: bool = False
) -> AsyncIterator[Place]:
    """Raises ConfigError, RemoteStorageError."""
    store, prefix = open_object_store(url, store_config, create=create)
    at_rest = partial(at_rest_of, store_config)
    rsm = RemoteStorageManager(store, prefix, must_exist=True, at_rest=at_rest())
    rlmm = StoreBackedRemoteLogMetadataManager(
        rsm, metadata, read_max_ms=store_config.metadata_read_max_ms
    )
    async with rsm, rlmm:
        yield Place(store, prefix, rsm, rlmm, at_rest)


# What a copy lacks. Pure.


@dataclass(frozen=True, slots=True)
class ToCopy:
    """`objects`: of the segment, by file; `metadata_only`: the others are there."""

    metadata: RemoteLogSegmentMetadata
    objects: Mapping[SegmentFile, StoredObject]
    metadata_only: bool

    @property
    def data(self) -> list[StoredObject]:
        """All but the metadata; the log last."""
        files = sorted(self.objects, key=lambda file: file is SegmentFile.LOG)
        return [self.objects[file] for file in files if file is not SegmentFile.METADATA]


@dataclass(slots=True)
class Plan:
    """Places below the prefix. `others`: of no segment; their content is compared.

    `extra`: objects of the copy that the archive has no more. Of a segment only its metadata go at
    first, the others in a later run: a reader may be at them.
    """

    copies: list[ToCopy] = field(default_factory=list)
    there: list[RemoteLogSegmentMetadata] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)


def plan_mirror(
    segments: Sequence[RemoteLogSegmentMetadata],
    here: Mapping[str, StoredObject],
    copied: Sequence[RemoteLogSegmentMetadata],
    there: Mapping[str, StoredObject],
    *,
    compare: bool = False,
) -> Plan:
    """`segments`: the archive's finished ones, `copied`: what the copy's metadata say.

    What belongs to a segment never changes once it is there, so its size is enough, unless
    `compare`.
    """
    plan = Plan()
    own = _by_segment(here)
    have = {segment.segment_id: segment for segment in copied}
    for metadata in segments:
        objects = own.get(metadata.segment_id, {})
        whole = all(
            (found := there.get(place)) is not None and found.size_bytes == stored.size_bytes
            for place, stored in objects.values()
            if not place.endswith(f".{SegmentFile.METADATA}")
        )
        known = have.get(metadata.segment_id)
        if whole and known == metadata and not compare:
            plan.there.append(metadata)
        else:
            files = {file: stored for file, (_, stored) in objects.items()}
            plan.copies.append(ToCopy(metadata, files, whole and known is not None and not compare))
    kept = {segment.segment_id for segment in segments}
    plan.others = [place for place in here if parse_segment_key("", place) is None]
    for segment_id, of_copy in _by_segment(there).items():
        if segment_id not in kept:
            hidden = of_copy.get(SegmentFile.METADATA)
            plan.extra += [hidden[0]] if hidden else [place for place, _ in of_copy.values()]
    plan.extra += [p for p in there if p not in here and is_partition_object_key("", p)]
    return plan


def _by_segment(
    objects: Mapping[str, StoredObject],
) -> dict[RemoteLogSegmentId, dict[SegmentFile, tuple[str, StoredObject]]]:
    found: dict[RemoteLogSegmentId, dict[SegmentFile, tuple[str, StoredObject]]] = {}
    for place, stored in objects.items():
        key = parse_segment_key("", place)
        if key is not None:
            found.setdefault(key.segment_id, {})[key.file] = (place, stored)
    return found


# The copy itself.


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """`compare`: also what is there already, byte by byte. `with_damaged`: copy damaged segments
    too, as they are. `bytes_per_s`: read from the archive by one process, 0: no limit."""

    compare: bool = False
    with_damaged: bool = False
    bytes_per_s: int = 0


@dataclass(slots=True)
class MirroredPartition:
    """`segments`: the archive's finished ones, all of `size_bytes`; `copied`: those of which
    something was written. `kept`: objects of the copy that the archive has lost. `overtaken`:
    segments that were deleted meanwhile."""

    tip: TopicIdPartition
    segments: int = 0
    size_bytes: int = 0
    copied: int = 0
    bytes_copied: int = 0
    removed: int = 0
    overtaken: int = 0
    kept: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


class Pace:
    """Of one process. 0: no limit."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._bucket: TokenBucket | None = None

    async def read(self, size_bytes: int) -> None:
        """So much has come; waits until more may."""
        if self._bytes_per_s:
            now = asyncio.get_running_loop().time()
            self._bucket = self._bucket or TokenBucket(self._bytes_per_s, now)
            await asyncio.sleep(self._bucket.spend(size_bytes, now))

    @property
    def range_bytes(self) -> int:
        return min(RANGE_BYTES, self._bytes_per_s) if self._bytes_per_s else RANGE_BYTES


class PartitionMirror:
    """One run over one partition. `tell(done, all)`: bytes of logs."""

    def __init__(
        self,
        source: Place,
        target: Place,
        tip: TopicIdPartition,
        spool: Spool,
        pace: Pace,
        options: MirrorOptions,
        tell: Callable[[int, int], None],
    ) -> None:
        self._source = source
        self._target = target
        self._tip = tip
        self._spool = spool
        self._pace = pace
        self._options = options
        self._tell = tell
        self._done_bytes = 0
        self._result = MirroredPartition(tip)

    async def run(self) -> MirroredPartition:
        """May be repeated and ended at any time. Raises RemoteStorageError, OSError."""
        tip, result = self._tip, self._result
        there = await self._target.partition_objects(tip)
        if there:
            await refreshed(self._target.rlmm, tip)
        result.faults += await metadata_faults(self._source.rsm, self._source.rlmm, [tip])
        # The objects after the metadata: a finished segment has all of them.
        segments = finished(self._source.rlmm.list_remote_log_segments(tip))
        here = await self._source.partition_objects(tip)
        copied = self._target.rlmm.list_remote_log_segments(tip)
        plan = plan_mirror(segments, here, copied, there, compare=self._options.compare)
        result.segments = len(segments)
        result.size_bytes = sum(segment.segment_size_bytes for segment in segments)
        self._advance(sum(segment.segment_size_bytes for segment in plan.there))
        waiting = iter(plan.copies)

        async def worker() -> None:
            for copy in waiting:
                await self._copy(copy, there)
                self._advance(copy.metadata.segment_size_bytes)

        async with asyncio.TaskGroup() as workers:
            for _ in range(SEGMENTS_AT_ONCE):
                workers.create_task(worker())
        for place in plan.others:
            await self._copy_other(place)
        await self._remove(plan.extra)
        return result

    def _advance(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        self._tell(self._done_bytes, self._result.size_bytes)

    async def _copy(self, copy: ToCopy, there: Mapping[str, StoredObject]) -> None:
        folder = self._spool.new_file()
        try:
            faults = [] if copy.metadata_only else await self._fetched(copy, folder)
            if faults and await self._is_gone(copy.metadata):
                self._result.overtaken += 1
                return
            self._result.faults += faults
            if faults and not self._options.with_damaged:
                return
            wrote = False
            for stored in [] if copy.metadata_only else copy.data:
                wrote |= await self._put_data(stored, folder, there)
            wrote |= await self._put_metadata(copy)
            self._result.copied += wrote
        except ObjectNotFound as error:
            if await self._is_gone(copy.metadata):
                self._result.overtaken += 1
            else:
                self._result.faults.append(self._missing(copy.metadata, error))
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, True)

    def _missing(self, metadata: RemoteLogSegmentMetadata, error: ObjectNotFound) -> Fault:
        key = self._source.rsm.object_key(metadata, SegmentFile.LOG)
        what = f"an object is missing ({error})"
        return Fault(self._tip.topic, self._tip.partition, key, None, metadata.start_offset, what)

    async def _fetched(self, copy: ToCopy, folder: Path) -> list[Fault]:
        """The segment's objects in the folder, and what is wrong with them. What looks damaged is
        read once more."""
        faults: list[Fault] = []
        await asyncio.to_thread(folder.mkdir)
        for _ in range(2):
            for stored in copy.data:
                await self._download(stored, folder / stored.key)
            faults = await self._verified(copy.metadata, folder)
            if not faults:
                break
        return faults

    async def _download(self, stored: StoredObject, path: Path) -> None:
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
        file: IO[bytes] = await asyncio.to_thread(path.open, "wb")
        try:
            async for content in _ranges(self._source.store, stored.key, self._pace.range_bytes):
                await asyncio.to_thread(file.write, content)
                await self._pace.read(len(content))
        finally:
            await asyncio.to_thread(file.close)

    async def _verified(self, metadata: RemoteLogSegmentMetadata, folder: Path) -> list[Fault]:
        """As `verify` does with the objects where they are."""
        async with RemoteStorageManager(
            FilesystemObjectStore(folder), self._source.prefix, at_rest=self._source.at_rest()
        ) as downloaded:
            check = SegmentVerifier(
                downloaded, metadata, TxnCheck(), RANGE_BYTES, lambda read: None
            )
            await check.verify(continues=False)
        return check.faults

    async def _put_data(
        self, stored: StoredObject, folder: Path, there: Mapping[str, StoredObject]
    ) -> bool:
        """Whether it had to be written: not what an earlier run has left whole."""
        place = stored.key[len(self._source.prefix) :]
        key, path = self._target.prefix + place, folder / stored.key
        size = (await asyncio.to_thread(path.stat)).st_size
        found = there.get(place)
        if found is not None and found.size_bytes == size and await self._is_at_target(key, path):
            return False
        await self._target.store.put_file(key, path, settled=True)
        if not await self._is_at_target(key, path):
            raise _not_what_was_put(key)
        self._result.bytes_copied += size
        return True

    async def _is_at_target(self, key: str, path: Path) -> bool:
        return await same_as_file(self._target.store, key, path)

    async def _put_metadata(self, copy: ToCopy) -> bool:
        """They may have changed since they were listed: an archiver goes on meanwhile."""
        key = self._source.rsm.object_key(copy.metadata, SegmentFile.METADATA)
        content = await self._source.store.get(key)
        now = decode_segment(content, key)
        if now.segment_id != copy.metadata.segment_id or now.state is not _FINISHED:
            raise ObjectNotFound(key)
        return await self._put_if_other(key[len(self._source.prefix) :], content)

    async def _copy_other(self, place: str) -> None:
        with suppress(ObjectNotFound):  # deleted meanwhile
            content = await self._source.store.get(self._source.prefix + place)
            await self._put_if_other(place, content)

    async def _put_if_other(self, place: str, content: bytes) -> bool:
        wrote = await put_if_other(self._target, place, content)
        self._result.bytes_copied += len(content) if wrote else 0
        return wrote

    async def _is_gone(self, metadata: RemoteLogSegmentMetadata) -> bool:
        """Deleted, or about to be: no fault."""
        key = self._source.rsm.object_key(metadata, SegmentFile.METADATA)
        try:
            now = decode_segment(await self._source.rsm.get_segment_metadata(key), key)
        except ObjectNotFound:
            return True
        except CorruptSegment:
            return False
        return now.state is not _FINISHED

    async def _remove(self, extra: Iterable[str]) -> None:
        """What the archive has lost the copy may be the last to have: then it stays."""
        places = list(extra)
        if not places:
            return
        check = CompletenessCheck(self._source.rsm, self._source.rlmm, None)
        lost = (await check.check(self._tip, ())).faults
        self._result.faults += [fault for fault in lost if fault not in self._result.faults]
        if self._result.faults:
            self._result.kept += places
            return
        for place in places:
            await self._target.store.delete(self._target.prefix + place)
        self._result.removed += len(places)


async def put_if_other(target: Place, place: str, content: bytes) -> bool:
    """Whether it had to be written. Raises RemoteStorageError."""
    key = target.prefix + place
    with suppress(ObjectNotFound, DamagedObject):
        if await target.store.get(key) == content:
            return False
    await target.store.put(key, content)
    if await target.store.get(key) != content:
        raise _not_what_was_put(key)
    return True


async def same_as_file(store: ObjectStore, key: str, path: Path) -> bool:
    """Whether the object has the file's bytes and no more. Raises RemoteStorageError."""
    file: IO[bytes] = await asyncio.to_thread(path.open, "rb")
    try:
        async for content in _ranges(store, key, RANGE_BYTES):
            if await asyncio.to_thread(file.read, len(content)) != content:
                return False
        return not await asyncio.to_thread(file.read, 1)
    except ObjectNotFound:
        return False
    finally:
        await asyncio.to_thread(file.close)


async def same_objects(one: ObjectStore, key: str, other: ObjectStore, other_key: str) -> bool:
    """Whether both are there, with the same bytes. Raises RemoteStorageError."""
    position = 0
    try:
        while True:
            ours = await _range(one, key, position)
            if ours != await _range(other, other_key, position):
                return False
            if len(ours) < RANGE_BYTES:
                return True
            position += len(ours)
    except ObjectNotFound:
        return False


async def _ranges(store: ObjectStore, key: str, range_bytes: int) -> AsyncIterator[Content]:
    position = 0
    while content := await _range(store, key, position, range_bytes):
        yield content
        position += len(content)
        if len(content) < range_bytes:
            return


async def _range(
    store: ObjectStore, key: str, position: int, size_bytes: int = RANGE_BYTES
) -> Content:
    try:
        return await store.get_range(key, ByteRange(position, position + size_bytes))
    except RangeNotSatisfiable:
        return b""


def _not_what_was_put(key: str) -> DamagedObject:
    return DamagedObject(f"{key}: what was read back from there is not what was put")
