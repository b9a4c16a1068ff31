"""Each job names the object that the store does not give out, and goes on with the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_object_store import MemoryObjectStore
from planted_archive import TP, PlantedArchive, batch

from fetchproxy.auditing.mirroring import MirrorOptions, MirrorSide, PartitionMirror
from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import ObjectNotReadable, StorageDenied
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import ByteRange
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.packed_logs import NO_ENCRYPTION
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, Content
from fetchproxy.writing.completeness_records import CompletenessRecords
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.deletion.orphans import log_offsets_of
from fetchproxy.writing.spool import Spool


class Guarded(MemoryObjectStore):
    """Denies one object."""

    denied = ""

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        self._check(key)
        return await super().get(key, bytes_max)

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        self._check(key)
        return await super().get_range(key, byte_range)

    def _check(self, key: str) -> None:
        if key == self.denied:
            raise StorageDenied(f"get {key}: status 400 KMS.DisabledException")


async def planted() -> tuple[Guarded, PlantedArchive]:
    store = Guarded()
    archive = PlantedArchive(store)
    for number in range(3):
        await archive.add([batch(20 * number), batch(20 * number + 10)])
    return store, archive


FILES = (SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS, SegmentFile.METADATA)


@pytest.mark.parametrize("file", FILES)
async def test_verify(file: SegmentFile) -> None:
    store, archive = await planted()
    store.denied = archive.key(archive.segments[1], file)
    report = await archive.verify()
    named = [fault for fault in report.faults if fault.object_key == store.denied]
    assert named, report.faults
    assert "KMS.DisabledException" in named[0].what
    assert report.segments == (2 if file is SegmentFile.METADATA else 3)


@pytest.mark.parametrize("file", FILES[:3])
async def test_mirror(file: SegmentFile, tmp_path: Path) -> None:
    store, archive = await planted()
    store.denied = archive.key(archive.segments[1], file)
    target = MemoryObjectStore()

    def place(of: MemoryObjectStore) -> MirrorSide:
        storage = RemoteStorage(of, "archive")
        rlmm = StoreBackedRemoteLogMetadataManager(storage, MetadataConfig())
        return MirrorSide(storage.store, "archive/", storage, rlmm, lambda: NO_ENCRYPTION)

    here, there = place(store), place(target)
    async with here.rlmm, there.rlmm, Spool(tmp_path) as spool:

        async def run() -> tuple[int, list[str]]:
            options, pace = MirrorOptions(), CopyPace(lambda: 0)
            mirror = PartitionMirror(here, there, TP, spool, pace, options, lambda *_: None)
            outcome = await mirror.run()
            return outcome.copied, [fault.what for fault in outcome.faults]

        copied, faults = await run()
        assert copied == 2
        assert len(faults) == 1
        assert "KMS.DisabledException" in faults[0]
        store.denied = ""
        assert await run() == (1, [])


async def test_a_log_whose_offsets_cannot_be_read_now_is_not_taken_for_one_without() -> None:
    store, archive = await planted()
    segment = archive.segments[1]
    objects = {
        key.file: stored_object
        async for key, stored_object in archive.storage.objects.list_segment_objects(TP)
        if key.segment_id == segment.segment_id
    }
    assert await log_offsets_of(archive.storage.rsm, objects) == (20, 39)
    store.denied = archive.key(segment, SegmentFile.INDEX)
    with pytest.raises(ObjectNotReadable):
        await log_offsets_of(archive.storage.rsm, objects)


async def test_a_record_that_cannot_be_read_now_is_not_replaced_by_one_that_states_less() -> None:
    store, archive = await planted()
    (store.denied,) = [f.key async for f in store.list("") if f.key.endswith("finished-offsets")]
    with pytest.raises(ObjectNotReadable):
        await CompletenessRecords(archive.storage.objects, TP).read()
