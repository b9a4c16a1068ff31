"""One copy: its visible state while it runs, and its end when it must not count."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from archive_harness import Archive, open_archive, wall_clock_ms
from fetchproxy_protocol.record_batch import walk
from memory_object_store import MemoryObjectStore
from planted_archive import TP, batch

from fetchproxy.errors import CorruptSegment, FetchProxyError, StorageThrottled, StorageUnavailable
from fetchproxy.model import RemoteLogSegmentState
from fetchproxy.segments.contents import AccumulatedSegment, KafkaFiles, SegmentSummary
from fetchproxy.segments.object_keys import KAFKA_FILES, SegmentFile, parse_segment_key
from fetchproxy.storage.stores.retries import REQUEST_TRIES_MAX
from fetchproxy.writing import copier as copier_module
from fetchproxy.writing.copier import SegmentCopier

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class HeldStore(MemoryObjectStore):
    """Uploads of logs wait for `go_on`; a finish may be done although its response is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = asyncio.Event()
        self.go_on = asyncio.Event()
        self.loses_finishes = False
        self.finishes_refused = 0  # that many more are
        self.logs_put = 0

    async def put(self, key: str, content: bytes) -> None:
        if self.finishes_refused and FINISHED.name.encode() in content:
            self.finishes_refused -= 1
            raise StorageThrottled("put m: status 429 SlowDown")
        await super().put(key, content)
        if self.loses_finishes and FINISHED.name.encode() in content:
            raise StorageUnavailable("done, but the answer is lost")

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        self.waiting.set()
        await self.go_on.wait()
        self.logs_put += 1
        await super().put_file(key, path, settled=settled)

    async def files(self) -> set[SegmentFile]:
        keys = [parse_segment_key("", stored_object.key) async for stored_object in self.list("")]
        return {key.file for key in keys if key is not None}


def accumulated(path: Path) -> AccumulatedSegment:
    content = batch(0) + batch(10)
    path.write_bytes(content)
    summary = SegmentSummary(TP, 0)
    for header in walk(content):
        summary.add(content, header)
    summary.add_bytes(memoryview(content))
    return summary.close(path, settled=True)


def copier(archive: Archive, copy_max_ms: int = 60_000) -> SegmentCopier:
    return SegmentCopier(
        archive.storage.rsm,
        archive.rlmm,
        copy_max_ms=copy_max_ms,
        wall_clock_ms=wall_clock_ms,
        uuid_factory=uuid.uuid4,
    )


async def confirmed() -> None:
    pass


@pytest.fixture
async def store() -> HeldStore:
    return HeldStore()


@pytest.fixture
async def archive(store: HeldStore) -> AsyncIterator[Archive]:
    async with open_archive(store) as opened:
        yield opened


async def test_a_running_copy_is_seen(archive: Archive, store: HeldStore, tmp_path: Path) -> None:
    copying = copier(archive)
    segment = accumulated(tmp_path / "log")
    assert copying.running(TP) is None
    async with asyncio.TaskGroup() as tasks:
        copy = tasks.create_task(copying.copy(segment, (), confirmed))
        await store.waiting.wait()
        running_copy = copying.running(TP)
        assert running_copy is not None
        assert (running_copy.base_offset, running_copy.size_bytes) == (0, segment.size_bytes)
        assert running_copy.started_at <= asyncio.get_running_loop().time()
        store.go_on.set()
    assert copy.result().segment_id.id == running_copy.segment_id
    assert copy.result().state is FINISHED
    assert copying.running(TP) is None


async def test_long_uploads_have_places(
    archive: Archive, store: HeldStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = accumulated(tmp_path / "log")
    copying = replace(copier(archive), long_uploads=asyncio.Semaphore(0))
    store.go_on.set()
    await copying.copy(segment, (), confirmed)  # a short one takes none
    monkeypatch.setattr(copier_module, "PART_BYTES", segment.size_bytes - 1)
    longer = replace(segment, start_offset=20, end_offset=39)
    async with asyncio.TaskGroup() as tasks:
        copy = tasks.create_task(copying.copy(longer, (), confirmed))
        await asyncio.sleep(0)
        assert copying.running(TP) is None, "its time has not begun"
        assert copying.long_uploads is not None
        copying.long_uploads.release()
    assert copy.result().start_offset == 20
    assert copying.long_uploads.locked() is False, "the place is free again"


async def test_a_stalled_copy_is_ended_and_removed(
    archive: Archive, store: HeldStore, tmp_path: Path
) -> None:
    copying = copier(archive, copy_max_ms=5_000)
    with pytest.raises(StorageUnavailable, match="took over 5000 ms"):
        await copying.copy(accumulated(tmp_path / "log"), (), confirmed)
    assert store.waiting.is_set()
    assert copying.running(TP) is None
    assert await store.files() == set()
    view = await archive.view(TP)
    assert (view.segments, view.unfinished) == ((), ())


async def test_a_copy_that_may_count_is_never_removed(
    archive: Archive, store: HeldStore, tmp_path: Path
) -> None:
    """Another archiver may have continued after it, and the broker may have been trimmed."""
    store.loses_finishes = True
    store.go_on.set()
    with pytest.raises(StorageUnavailable, match="the answer is lost"):
        await copier(archive, copy_max_ms=10_000).copy(accumulated(tmp_path / "log"), (), confirmed)
    (segment,) = (await archive.view(TP)).segments
    assert segment.state is FINISHED
    assert SegmentFile.LOG in await store.files()


async def test_an_uploaded_log_is_not_thrown_away_for_a_refused_small_write(
    archive: Archive, store: HeldStore, tmp_path: Path
) -> None:
    """The store refuses the last write for longer than one write is tried."""
    store.finishes_refused = REQUEST_TRIES_MAX + 1
    store.go_on.set()
    finished = await copier(archive).copy(accumulated(tmp_path / "log"), (), confirmed)
    assert store.finishes_refused == 0
    (segment,) = (await archive.view(TP)).segments
    assert segment == finished
    assert store.logs_put == 1


async def test_when_the_time_is_over_the_stores_refusal_is_what_people_read(
    archive: Archive, store: HeldStore, tmp_path: Path
) -> None:
    """The time ends while the write is tried again, perhaps in the middle of a request."""
    finishes = 0

    async def put(key: str, content: bytes) -> None:
        nonlocal finishes
        finishes += FINISHED.name.encode() in content
        if finishes > REQUEST_TRIES_MAX:
            await asyncio.sleep(3_600)
        await HeldStore.put(store, key, content)

    store.put = put  # type: ignore[method-assign]
    store.finishes_refused = REQUEST_TRIES_MAX
    store.go_on.set()
    with pytest.raises(StorageThrottled, match="429 SlowDown"):
        await copier(archive, copy_max_ms=10_000).copy(accumulated(tmp_path / "log"), (), confirmed)
    assert finishes > REQUEST_TRIES_MAX


async def test_a_copy_that_was_deleted_before_it_was_finished_is_taken_back(
    archive: Archive, store: HeldStore, tmp_path: Path
) -> None:
    """Another archiver deletes it between its last check and the write of its metadata."""

    async def late(key: str, content: bytes) -> None:
        if FINISHED.name.encode() in content:
            for object_key in list(store._objects):
                await store.delete(object_key)
        await MemoryObjectStore.put(store, key, content)
        if FINISHED.name.encode() in content:
            await asyncio.sleep(3_600)

    store.put = late  # type: ignore[method-assign]
    store.go_on.set()
    with pytest.raises(StorageUnavailable, match="took over 500 ms"):
        await copier(archive, copy_max_ms=500).copy(accumulated(tmp_path / "log"), (), confirmed)
    assert await store.files() == set()


def rewrite(path: Path) -> None:
    path.write_bytes(batch(0))


@pytest.mark.parametrize("change", [rewrite, Path.unlink])
async def test_a_file_that_changes_under_its_copy_does_not_count(
    archive: Archive, store: HeldStore, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "log"
    segment = accumulated(path)

    async def change_it() -> None:
        await store.waiting.wait()
        change(path)
        store.go_on.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(change_it())
        with pytest.raises(FetchProxyError):
            await copier(archive).copy(segment, (), confirmed)
    assert await store.files() == set()
    assert (await archive.view(TP)).segments == ()


@pytest.mark.parametrize(
    ("change", "error"), [(rewrite, CorruptSegment), (Path.unlink, FileNotFoundError)]
)
async def test_a_file_that_is_lost_is_no_failure_of_the_store(
    archive: Archive,
    store: HeldStore,
    tmp_path: Path,
    change: Callable[[Path], None],
    error: type[Exception],
) -> None:
    """Else it would be copied again and again instead of being accumulated anew."""
    segment = accumulated(tmp_path / "log")
    change(tmp_path / "log")
    with pytest.raises(error):
        await copier(archive).copy(segment, (), confirmed)
    assert await store.files() == set()
    assert not store.waiting.is_set()


async def test_a_brokers_own_files_go_with_the_segment(
    archive: Archive, store: HeldStore, tmp_path: Path
) -> None:
    store.go_on.set()
    files = KafkaFiles(offset_index=b"offsets", time_index=b"", producer_snapshot=b"state")
    copying = copier(archive)
    segment = replace(accumulated(tmp_path / "log"), kafka_files=files)
    metadata = await copying.copy(segment, (), confirmed)
    objects = [await archive.object(metadata, file) for file in KAFKA_FILES]
    assert objects == [b"offsets", b"", b"state"]
    await copying.remove(metadata)
    assert await store.files() == set()


async def test_a_copy_that_another_archiver_removes_meanwhile_is_one_that_failed(
    archive: Archive, store: HeldStore, tmp_path: Path
) -> None:
    store.go_on.set()
    copying = copier(archive)

    async def removed() -> None:
        (attempt,) = (await archive.view(TP)).unfinished
        await copier(archive).remove(attempt)

    with pytest.raises(StorageUnavailable, match="a new segment to COPY_SEGMENT_FINISHED"):
        await copying.copy(accumulated(tmp_path / "log"), (), removed)
    assert await store.files() == set()
    view = await archive.view(TP)
    assert (view.segments, view.unfinished) == ((), ())
