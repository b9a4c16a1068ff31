"""An object too large for its kind is refused by its size, as damage and not as an outage."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest
from fetchproxy_protocol.record_batch import BatchHeader
from whole_archive import verify_archive

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import CorruptSegment, DamagedObject, RemoteStorageError
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    OFFSET_MAX,
    SEGMENT_BYTES_MAX,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.reading.segment_loads import TXN_BYTES_MAX
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import INTERVAL_BYTES, RemoteLogIndex
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.storage.stores.object_store import (
    OBJECT_BYTES_MAX,
    SMALL_OBJECT_BYTES_MAX,
    MiB,
    segment_file_bytes_max,
)

TP = TopicIdPartition(UUID(int=1), "orders", 0)
SPARSE_BYTES = 4 * 1024**4  # of a file without any block on disk


def segment(number: int, start: int, size_bytes: int = 64 * MiB) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(TP, UUID(int=number)),
        start_offset=start,
        end_offset=start + 9,
        max_timestamp_ms=0,
        event_timestamp_ms=0,
        segment_leader_epochs=(EpochStart(0, start),),
        segment_size_bytes=size_bytes,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        has_aborted_txns=True,
    )


@pytest.mark.parametrize("log_mib", [1, 64, 1024])
def test_the_longest_index_that_is_written_has_room(log_mib: int) -> None:
    """Entries of exactly 64 KiB, under a long key, at the highest offsets."""
    stem, entries = "p/" + "x" * 600, log_mib * 16
    built = RemoteLogIndex()
    first = OFFSET_MAX - entries
    one = BatchHeader(0, INTERVAL_BYTES, first, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    for number in range(entries):
        built.add(one._replace(base_offset=first + number))
    index = built.encoded(f"{stem}.log")
    key = f"{stem}.index"
    assert len(index) <= segment_file_bytes_max(SegmentFile.INDEX, key, log_mib * MiB)
    assert len(index) > entries * len(key)


def test_limits_follow_from_the_log_up_to_the_largest() -> None:
    key = "archive/orders-AAAAAAAAAAAAAAAAAAAAAQ/0/00000000000000000000-x.index"
    of_64_mib = segment_file_bytes_max(SegmentFile.INDEX, key, 64 * MiB)
    assert of_64_mib < 9 * MiB
    for file in set(SegmentFile) - {SegmentFile.LOG}:
        largest = segment_file_bytes_max(file, key, SEGMENT_BYTES_MAX)
        assert largest == segment_file_bytes_max(file, key, 2**62)
        assert largest >= segment_file_bytes_max(file, key, 0) > 0


async def test_a_reader_takes_no_more_than_it_has_memory_for(tmp_path: Path) -> None:
    """Whatever size of the log the metadata claims."""
    largest = segment(1, 0, SEGMENT_BYTES_MAX)
    async with RemoteStorage(FilesystemObjectStore(tmp_path, create=True)) as storage:
        key = storage.rsm.object_key(largest, SegmentFile.TXN)
        (tmp_path / key).parent.mkdir(parents=True)
        (tmp_path / key).touch()
        os.truncate(tmp_path / key, TXN_BYTES_MAX + 1)
        with pytest.raises(DamagedObject, match=SegmentFile.TXN.value):
            await storage.rsm.fetch_index(largest, SegmentFile.TXN, TXN_BYTES_MAX)


def blow_up(root: Path, key: str) -> None:
    os.truncate(root / key, SPARSE_BYTES)


async def planted(root: Path) -> None:
    """Two segments; except one metadata object, all their small objects are sparse 4 TiB files."""
    async with RemoteStorage(FilesystemObjectStore(root, create=True)) as storage:
        for metadata in (segment(1, 0), segment(2, 10)):
            await storage.objects.put_segment_metadata(metadata, encode_segment(metadata))
            for file in set(SegmentFile) - {SegmentFile.METADATA, SegmentFile.LOG}:
                await storage.store.put(storage.rsm.object_key(metadata, file), b"x")
                blow_up(root, storage.rsm.object_key(metadata, file))
        blow_up(root, storage.rsm.object_key(segment(2, 10), SegmentFile.METADATA))


async def test_nothing_is_read_whole_that_is_too_large(tmp_path: Path) -> None:
    await planted(tmp_path)
    async with RemoteStorage(FilesystemObjectStore(tmp_path)) as storage:
        for file in set(SegmentFile) - {SegmentFile.METADATA, SegmentFile.LOG}:
            with pytest.raises(DamagedObject) as error:
                await storage.rsm.fetch_index(segment(1, 0), file)
            assert isinstance(error.value, CorruptSegment)
            assert not error.value.retriable
            key = storage.rsm.object_key(segment(1, 0), file)
            assert str(error.value).startswith(f"{key} has {SPARSE_BYTES} bytes, it can have ")
        with pytest.raises(DamagedObject, match=f"can have {SMALL_OBJECT_BYTES_MAX} at most"):
            await storage.objects.get_segment_metadata(
                storage.rsm.object_key(segment(2, 10), SegmentFile.METADATA)
            )


async def test_one_metadata_object_does_not_hide_the_others(tmp_path: Path) -> None:
    await planted(tmp_path)
    async with (
        RemoteStorage(FilesystemObjectStore(tmp_path)) as storage,
        StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
    ):
        view = await rlmm.refresh(TP, float("-inf"))
        assert tuple(view.segments) == (segment(1, 0),)
        assert view.uncertain_at(10)
        (problem,) = rlmm.problems(TP)
        assert f"has {SPARSE_BYTES} bytes" in problem.what


async def test_verify_reports_each_and_ends(tmp_path: Path) -> None:
    await planted(tmp_path)
    async with (
        RemoteStorage(FilesystemObjectStore(tmp_path)) as storage,
        StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
    ):
        report = await verify_archive(storage, rlmm, chunk_bytes=1_000)
    object_keys = {
        fault.object_key for fault in report.faults if f"{SPARSE_BYTES} bytes" in fault.what
    }
    suffixes = {key.rpartition(".")[2] for key in object_keys}
    assert suffixes == set(SegmentFile) - {SegmentFile.LOG, SegmentFile.PACKING}


async def test_a_history_that_cannot_be_read_stops_the_partition(tmp_path: Path) -> None:
    await planted(tmp_path)
    async with (
        RemoteStorage(FilesystemObjectStore(tmp_path)) as storage,
        StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
    ):
        await storage.objects.put_partition_note(TP, b"{}")
        blow_up(tmp_path, f"orders-{'A' * 21}Q/0/log-history")
        with pytest.raises(RemoteStorageError, match=f"log-history has {SPARSE_BYTES} bytes"):
            await rlmm.refresh(TP, float("-inf"))


async def test_an_object_as_large_as_it_may_be_is_read(tmp_path: Path) -> None:
    async with FilesystemObjectStore(tmp_path, create=True) as store:
        await store.put("k", bytes(OBJECT_BYTES_MAX))
        assert len(await store.get("k")) == OBJECT_BYTES_MAX
        await store.put("k", bytes(OBJECT_BYTES_MAX + 1))
        with pytest.raises(DamagedObject):
            await store.get("k")
