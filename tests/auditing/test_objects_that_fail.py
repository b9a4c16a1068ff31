"""The store fails for one object at every try, and works for the others: each job names it and goes
on. An outage of the store is told from that.
"""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from memory_object_store import MemoryObjectStore
from planted_archive import TP, PlantedArchive, batch
from virtual_loop import run_virtual

from fetchproxy.auditing.mirroring import (
    MirroredPartition,
    MirrorOptions,
    MirrorSide,
    PartitionMirror,
)
from fetchproxy.auditing.moving import DeletedPartition, delete_moved_partition
from fetchproxy.auditing.restore import restore_archive
from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import ObjectFailing, StorageDenied, StorageThrottled, StorageUnavailable
from fetchproxy.jobs.backfill_plan import BackfillInput, backfill_input
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import ByteRange, TopicIdPartition
from fetchproxy.remotelog import archive_reading
from fetchproxy.remotelog.options import SourceOptions, parse_options
from fetchproxy.remotelog.planning_processes import _read
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.packed_logs import NO_ENCRYPTION
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores import retries
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, Content
from fetchproxy.storage.stores.retries import REQUEST_TRIES_MAX, each_object_alone, tried_once
from fetchproxy.storage.watched_store import FAILING_IN_A_ROW_MAX
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.merging import PartitionMerger
from fetchproxy.writing.spool import Spool

T = TypeVar("T")
SEGMENTS = 12


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what works on files, in real time."""
    monkeypatch.setattr(retries, "PAUSES_S", (0.001, 0.001, 0.001))


class Failing(MemoryObjectStore):
    """Fails reads and writes of the keys that contain one of `failing`, so many times each."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: dict[str, float] = {}
        self.requests: Counter[str] = Counter()

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        self._check(key)
        return await super().get(key, bytes_max)

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        self._check(key)
        return await super().get_range(key, byte_range)

    async def put(self, key: str, content: bytes) -> None:
        self._check(key)
        await super().put(key, content)

    def _check(self, key: str) -> None:
        self.requests[key] += 1
        for part, times in self.failing.items():
            if part in key and times:
                self.failing[part] -= 1
                raise StorageUnavailable(f"{key}: status 503 from the test")


def run(main: Coroutine[Any, Any, T]) -> T:
    async def whole() -> T:
        return await main

    return run_virtual(whole)


async def planted(segments: int = SEGMENTS) -> tuple[Failing, PlantedArchive]:
    store = Failing()
    archive = PlantedArchive(store)
    for number in range(segments):
        await archive.add([batch(20 * number), batch(20 * number + 10)])
    return store, archive


FILES = (SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS, SegmentFile.METADATA)
FOR_GOOD = float("inf")


@pytest.mark.parametrize("file", FILES)
def test_verify_names_it_and_checks_the_others(file: SegmentFile) -> None:
    async def main() -> None:
        store, archive = await planted()
        damaged = archive.segments[7]
        await archive.change(damaged, SegmentFile.LOG, lambda log: log[:-1] + b"?")
        key = archive.key(archive.segments[3], file)
        store.failing = {key: FOR_GOOD}
        report = await archive.verify()
        (unread,) = report.unread
        assert (unread.object_key, unread.first_offset) == (key, 60)
        assert "status 503 from the test (tried 4 times)" in unread.what
        if file is not SegmentFile.METADATA:
            assert "offsets 60 to 79: " in unread.what
        assert report.segments == SEGMENTS - 1
        assert {fault.first_offset for fault in report.faults} == {150}

    run(main())


@pytest.mark.parametrize("file", FILES)
def test_verify_tries_it_again_at_the_end(file: SegmentFile) -> None:
    async def main() -> None:
        store, archive = await planted()
        store.failing = {archive.key(archive.segments[3], file): REQUEST_TRIES_MAX}
        report = await archive.verify()
        assert (report.unread, report.faults, report.segments) == ([], [], SEGMENTS)

    run(main())


def test_verify_of_a_segment_that_fails_tells_what_else_is_wrong_with_it() -> None:
    async def main() -> None:
        store, archive = await planted()
        bad = archive.segments[3]
        await archive.change(bad, SegmentFile.LOG, lambda log: log[:-1] + b"?")
        store.failing = {archive.key(bad, SegmentFile.EPOCHS): FOR_GOOD}
        report = await archive.verify()
        assert len(report.unread) == 1
        assert [fault.object_key for fault in report.faults] == [archive.key(bad, SegmentFile.LOG)]

    run(main())


def test_a_record_that_fails_is_named_and_no_loss_is_claimed() -> None:
    async def main() -> None:
        store, archive = await planted()
        store.failing = {"finished-offsets": FOR_GOOD}
        report = await archive.verify()
        assert [one.object_key.rpartition("/")[2] for one in report.unread] == ["finished-offsets"]
        assert report.faults == []
        store.failing = {"finished-offsets": REQUEST_TRIES_MAX}
        assert (await archive.verify()).unread == []

    run(main())


def test_a_store_that_gives_out_nothing_ends_the_partition_at_once() -> None:
    async def main() -> None:
        store, archive = await planted()

        def fail(done: int, total: int) -> None:
            store.requests.clear()
            store.failing = {"": FOR_GOOD}

        with pytest.raises(StorageUnavailable, match="tried 4 times"):
            await archive.verify(on_progress=fail)
        assert store.requests.total() <= REQUEST_TRIES_MAX + 1  # and the probe

    run(main())


def test_so_many_segments_in_a_row_that_the_store_fails() -> None:
    async def main() -> None:
        store, archive = await planted()
        keys = [archive.key(one, SegmentFile.LOG) for one in archive.segments]
        store.failing = dict.fromkeys(keys[2:], FOR_GOOD)
        store.requests.clear()
        message = f"{FAILING_IN_A_ROW_MAX} segments in a row could not be read.*status 503"
        with pytest.raises(StorageUnavailable, match=message):
            await archive.verify()
        assert not any(store.requests[key] for key in keys[2 + FAILING_IN_A_ROW_MAX :])
        # One that can be read between them, and each is an object's own state.
        store.failing = dict.fromkeys(keys[:4] + keys[5:9], FOR_GOOD)
        assert len((await archive.verify()).unread) == 8

    run(main())


def test_an_outage_at_the_end_leaves_the_report() -> None:
    async def main() -> None:
        store, archive = await planted()
        bad = archive.key(archive.segments[3], SegmentFile.LOG)
        store.failing = {bad: FOR_GOOD}
        check = store._check

        def fails_at_the_second_time(key: str) -> None:
            if key == bad and store.requests[bad] >= 2 * REQUEST_TRIES_MAX:
                store.failing = {"": FOR_GOOD}
            check(key)

        store._check = fails_at_the_second_time  # type: ignore[method-assign]
        report = await archive.verify()
        assert [one.object_key for one in report.unread] == [bad]
        assert report.segments == SEGMENTS - 1

    run(main())


def test_only_jobs_take_a_failing_object_for_its_own_state() -> None:
    async def main() -> None:
        store, archive = await planted(2)
        segment = archive.segments[0]
        store.failing = {archive.key(segment, SegmentFile.LOG): FOR_GOOD}
        span = ByteRange(0, 5)
        with pytest.raises(StorageUnavailable):
            await archive.storage.rsm.fetch_log_segment(segment, span)
        with each_object_alone():
            with pytest.raises(ObjectFailing):
                await archive.storage.rsm.fetch_log_segment(segment, span)
            with tried_once(), pytest.raises(StorageUnavailable):
                await archive.storage.rsm.fetch_log_segment(segment, span)

    run(main())


def place(of: MemoryObjectStore) -> MirrorSide:
    storage = RemoteStorage(of, "archive")
    rlmm = StoreBackedRemoteLogMetadataManager(storage, MetadataConfig())
    return MirrorSide(storage.store, "archive/", storage, rlmm, lambda: NO_ENCRYPTION)


async def mirrored(
    source: MemoryObjectStore, target: MemoryObjectStore, folder: Path
) -> MirroredPartition:
    here, there = place(source), place(target)
    async with here.rlmm, there.rlmm, Spool(folder) as spool:
        options, pace = MirrorOptions(), CopyPace(lambda: 0)
        copying = PartitionMirror(here, there, TP, spool, pace, options, lambda *_: None)
        return await copying.run()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("at_target", [False, True], ids=["source", "target"])
@pytest.mark.usefixtures("no_pauses")
async def test_mirror(file: SegmentFile, at_target: bool, tmp_path: Path) -> None:
    source, archive = await planted(5)
    target = Failing()
    await RemoteStorage(target, "archive").identity.check_to_put()
    first = archive.key(archive.segments[1], file)
    second = archive.key(archive.segments[3], file)
    at = target if at_target else source
    at.failing = {first: FOR_GOOD, second: 1 if at_target else REQUEST_TRIES_MAX}
    outcome = await mirrored(source, target, tmp_path)
    assert (outcome.copied, outcome.faults) == (4, [])
    (failed,) = outcome.failed
    assert failed.first_offset == 20
    assert f"{first}: status 503 from the test" in failed.what
    names = [stored_object.key async for stored_object in target.list("archive/")]
    assert archive.key(archive.segments[1], SegmentFile.METADATA) not in names
    at.failing = {}
    outcome = await mirrored(source, target, tmp_path)
    assert (outcome.copied, outcome.failed) == (1, [])


@pytest.mark.usefixtures("no_pauses")
async def test_a_mirror_keeps_what_the_archive_may_still_have(tmp_path: Path) -> None:
    source, archive = await planted(3)
    target = MemoryObjectStore()
    assert (await mirrored(source, target, tmp_path)).copied == 3
    metadata = archive.key(archive.segments[1], SegmentFile.METADATA)
    source.failing = {metadata: FOR_GOOD}
    outcome = await mirrored(source, target, tmp_path)
    assert (len(outcome.failed), outcome.removed, len(outcome.source_lost)) == (1, 0, 1)
    assert await target.get(metadata)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("file", [SegmentFile.METADATA, SegmentFile.LOG])
async def test_the_old_place_keeps_what_the_new_one_may_not_have(
    file: SegmentFile, tmp_path: Path
) -> None:
    source, archive = await planted(3)
    target = Failing()
    await RemoteStorage(target, "archive").identity.check_to_put()
    assert (await mirrored(source, target, tmp_path)).copied == 3
    bad = archive.key(archive.segments[1], file)

    async def deleted() -> DeletedPartition:
        here, there = place(source), place(target)
        async with here.rlmm, there.rlmm:
            return await delete_moved_partition((here, there), TP, lambda *_: None)

    target.failing = {bad: FOR_GOOD}
    outcome = await deleted()
    assert len(outcome.unread) == 1
    assert bad in outcome.unread[0].what
    assert bad in [stored_object.key async for stored_object in source.list("archive/")]
    target.failing = {}
    outcome = await deleted()
    assert (outcome.remaining, outcome.unread) == ([], [])
    assert bad not in [stored_object.key async for stored_object in source.list("archive/")]


@pytest.mark.usefixtures("no_pauses")
async def test_a_target_that_takes_nothing_ends_the_partition(tmp_path: Path) -> None:
    source, _ = await planted()
    target = Failing()
    target.failing = {".log": FOR_GOOD}
    with pytest.raises(StorageUnavailable, match="status 503"):
        await mirrored(source, target, tmp_path)
    tried = {key for key in target.requests if key.endswith(".log")}
    assert FAILING_IN_A_ROW_MAX <= len(tried) <= FAILING_IN_A_ROW_MAX + 1  # two at once


@pytest.mark.usefixtures("no_pauses")
async def test_merge(tmp_path: Path) -> None:
    store, archive = await planted(6)
    big = await archive.add([batch(120 + 10 * number) for number in range(40)])
    assert big.start_offset == 120
    for number in range(6):
        await archive.add([batch(520 + 20 * number), batch(530 + 20 * number)])
    bad = archive.key(archive.segments[2], SegmentFile.LOG)
    async with (
        StoreBackedRemoteLogMetadataManager(archive.storage, MetadataConfig()) as rlmm,
        Spool(tmp_path) as spool,
    ):
        copier = SegmentCopier(
            archive.storage.rsm,
            rlmm,
            copy_max_ms=60_000,
            wall_clock_ms=lambda: 1_000_000,
            uuid_factory=uuid4,
        )
        merger = PartitionMerger(archive.storage.rsm, rlmm, copier, spool, bytes_max=5_000)
        store.failing = {bad: FOR_GOOD}
        outcome = await merger.merge(TP)
        assert (outcome.merged, outcome.replaced, outcome.refused) == (1, 6, [])
        (why,) = outcome.unread
        assert "offsets 0 to 119" in why
        assert bad in why
        store.failing = {bad: REQUEST_TRIES_MAX}
        outcome = await merger.merge(TP)
        assert (outcome.merged, outcome.replaced, outcome.unread) == (1, 6, [])


def test_restore_counts_it_apart_from_damage() -> None:
    async def main() -> None:
        store, archive = await planted(3)
        bad = archive.key(archive.segments[1], SegmentFile.METADATA)
        store.failing = {bad: FOR_GOOD}
        async with StoreBackedRemoteLogMetadataManager(archive.storage, MetadataConfig()) as rlmm:
            with each_object_alone():
                (outcome,) = await restore_archive(
                    rlmm, None, wall_clock_ms=lambda: 0, partitions=[TP], dry_run=True
                )
        assert (outcome.segments, outcome.restored, outcome.unreadable) == (2, 2, 0)
        assert [one.object_key for one in outcome.unread] == [bad]

    run(main())


def test_a_throttled_object_too() -> None:
    async def main() -> None:
        store, archive = await planted(3)
        bad = archive.key(archive.segments[1], SegmentFile.LOG)

        def throttled(key: str) -> None:
            if key == bad:
                raise StorageThrottled("429")

        store._check = throttled  # type: ignore[method-assign]
        assert [one.object_key for one in (await archive.verify()).unread] == [bad]

    run(main())


OTHER = TopicIdPartition(TP.topic_id, TP.topic, 1)


async def planned(store: Failing, monkeypatch: pytest.MonkeyPatch, **more: str) -> BackfillInput:
    def opened(_: SourceOptions) -> RemoteStorage:
        return RemoteStorage(store, "archive")

    monkeypatch.setattr(archive_reading, "opened_store", opened)
    options = {"store": "file:///of/the/test", "topics": TP.topic, **more}
    return await backfill_input(parse_options(options))


@pytest.mark.parametrize("lenient", ["true", "false"])
def test_a_backfill_leaves_out_its_partition_alone(
    monkeypatch: pytest.MonkeyPatch, lenient: str
) -> None:
    """Its plan waited ten minutes for the object, and then ended."""

    async def main() -> None:
        store, archive = await planted(3)
        await archive.add([batch(0), batch(10)], tp=OTHER)
        key = archive.key(archive.segments[0], SegmentFile.METADATA)
        store.failing = {key: FOR_GOOD}
        store.requests.clear()
        begun_at = asyncio.get_running_loop().time()
        views, (failure,) = await planned(store, monkeypatch, failOnDataLoss=lenient)
        assert [view.tp for view, _ in views] == [OTHER]
        assert (failure.name, failure.retriable) == (str(TP), True)
        assert f"{key}: status 503 from the test (tried 4 times)" in failure.error
        assert store.requests[key] == 2 * REQUEST_TRIES_MAX
        assert asyncio.get_running_loop().time() < begun_at + 60

    run(main())


def test_a_backfill_says_why_an_object_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Denying(Failing):
        def _check(self, key: str) -> None:
            if self.failing.get(key):
                raise StorageDenied(f"{key}: status 403 from the test")

    async def main() -> None:
        store = Denying()
        archive = PlantedArchive(store)
        await archive.storage.identity.check_to_put()
        for tp in (TP, OTHER):
            await archive.add([batch(0), batch(10)], tp=tp)
        store.failing = {archive.key(archive.segments[0], SegmentFile.METADATA): FOR_GOOD}
        views, (failure,) = await planned(store, monkeypatch)
        assert [view.tp for view, _ in views] == [OTHER]
        assert "the metadata of the segment at offset 0 cannot be read (" in failure.error
        assert "status 403 from the test" in failure.error
        assert "give access to this object or its key" in failure.error

    run(main())


def test_a_backfill_plan_tries_it_again_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store, archive = await planted(3)
        store.failing = {archive.key(archive.segments[0], SegmentFile.METADATA): REQUEST_TRIES_MAX}
        views, failures = await planned(store, monkeypatch)
        assert ([view.tp for view, _ in views], failures) == ([TP], ())

    run(main())


def test_a_backfill_by_time_names_an_index_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store, archive = await planted(2)
        key = archive.key(archive.segments[0], SegmentFile.INDEX)
        store.failing = {key: FOR_GOOD}
        begun_at = asyncio.get_running_loop().time()
        views, (failure,) = await planned(store, monkeypatch, startingTimestamp="5")
        assert views == []
        assert (failure.name, f"{key}: status 503" in failure.error) == (str(TP), True)
        assert asyncio.get_running_loop().time() < begun_at + 60

    run(main())


def test_a_backfill_does_not_take_a_failing_record_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The record that would tell of lost offsets."""

    async def main() -> None:
        store, archive = await planted(2)
        await archive.add([batch(0), batch(10)], tp=OTHER)
        store.failing = {f"{TP.partition}/finished-offsets": FOR_GOOD}
        views, (failure,) = await planned(store, monkeypatch)
        assert [view.tp for view, _ in views] == [OTHER]
        assert (failure.name, "finished-offsets: status 503" in failure.error) == (str(TP), True)

    run(main())


def test_a_backfill_waits_for_a_store_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        store, _ = await planted(2)
        store.failing = {".metadata": 3 * REQUEST_TRIES_MAX}
        begun_at = asyncio.get_running_loop().time()
        views, failures = await planned(store, monkeypatch)
        assert ([view.tp for view, _ in views], failures) == ([TP], ())
        assert asyncio.get_running_loop().time() > begun_at + 1

    run(main())


def test_another_process_that_plans_says_which_object_fails() -> None:
    async def main() -> None:
        store, archive = await planted(2)
        await archive.add([batch(0)], tp=OTHER)
        store.failing = {archive.key(archive.segments[0], SegmentFile.METADATA): FOR_GOOD}
        with each_object_alone():
            async with StoreBackedRemoteLogMetadataManager(
                archive.storage, MetadataConfig()
            ) as rlmm:
                results = pickle.loads(pickle.dumps(await _read(rlmm, [TP, OTHER], 600)))
        assert [type(results[tp]) for tp in (TP, OTHER)] == [ObjectFailing, PartitionView]

    run(main())
