"""A log start raised by DeleteRecords: durable, never lower, seen by every manager."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_object_store import MemoryObjectStore
from metadata_contract import TP, copied, now, segment
from scripted_store import ScriptedStore

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentState
from fetchproxy.segments.object_keys import partition_folder
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.storage.stores.object_store import ObjectStore

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
FOLDER = partition_folder("archive/", TP)


@pytest.fixture(params=["memory", "filesystem"])
async def store(request: pytest.FixtureRequest, tmp_path: Path):
    inner: ObjectStore = MemoryObjectStore()
    if request.param == "filesystem":
        inner = FilesystemObjectStore(tmp_path, create=True)
    async with ScriptedStore(inner) as scripted:
        yield scripted


def manager(store: ScriptedStore, **config: int) -> StoreBackedRemoteLogMetadataManager:
    storage = RemoteStorage(store, "archive")
    return StoreBackedRemoteLogMetadataManager(storage, MetadataConfig(**config))


async def log_start_objects(store: ScriptedStore) -> list[str]:
    keys = [stored_object.key async for stored_object in store.inner.list(FOLDER)]
    return [key.removeprefix(FOLDER) for key in keys if key.endswith(".log-start-offset")]


async def test_every_other_manager_sees_it(store: ScriptedStore) -> None:
    async with manager(store) as first_manager, manager(store) as other:
        first = await copied(first_manager, segment(1, 0, 9))
        second = await copied(first_manager, segment(2, 10, 19))
        assert (await other.refresh(TP, now())).segments == (first, second)
        view = await first_manager.raise_log_start_offset(TP, 13)
        assert view == first_manager.view(TP)
        later = await other.refresh(TP, now())
        for view_read in (view, later):
            assert view_read.segments == (second,)
            assert view_read.log_start_offset == 13
            assert not view_read.covers(12)
            assert view_read.covers(13)
            assert view_read.segment_at_or_after(9) is None
        stored = await store.inner.get(f"{FOLDER}{13:020d}.log-start-offset")
        assert json.loads(stored)["log_start_offset"] == 13
        assert first_manager.list_remote_log_segments(TP) == (first, second)


async def test_two_managers_never_lower_each_others(store: ScriptedStore) -> None:
    async with (
        manager(store) as one_manager,
        manager(store) as other_manager,
        manager(store) as reader,
    ):
        await copied(one_manager, segment(1, 0, 99))
        await other_manager.refresh(TP, now())
        await other_manager.raise_log_start_offset(TP, 60)
        # `mine` has not seen the other one and writes its own lower one.
        view = await one_manager.raise_log_start_offset(TP, 30)
        assert view.log_start_offset == 30
        assert (await reader.refresh(TP, now())).log_start_offset == 60
        assert (await one_manager.refresh(TP, now())).log_start_offset == 60
        assert (await one_manager.raise_log_start_offset(TP, 40)).log_start_offset == 60
        await one_manager.raise_log_start_offset(TP, 70)
        assert await log_start_objects(store) == [f"{70:020d}.log-start-offset"]


async def test_what_is_no_higher_is_not_written(store: ScriptedStore) -> None:
    async with manager(store) as one_manager:
        await copied(one_manager, segment(1, 0, 99))
        await one_manager.raise_log_start_offset(TP, 50)
        writes = store.count("put", FOLDER)
        assert (await one_manager.raise_log_start_offset(TP, 50)).log_start_offset == 50
        assert store.count("put", FOLDER) == writes


async def test_a_store_that_fails_is_said_and_a_retry_does_it(store: ScriptedStore) -> None:
    async with manager(store) as one_manager, manager(store) as reader:
        await copied(one_manager, segment(1, 0, 99))
        store.error = StorageUnavailable("away")
        with pytest.raises(StorageUnavailable):
            await one_manager.raise_log_start_offset(TP, 50)
        view = one_manager.view(TP)
        assert view is not None
        assert view.log_start_offset == 0
        store.error = None
        await one_manager.raise_log_start_offset(TP, 50)
        assert (await reader.refresh(TP, now())).log_start_offset == 50


async def test_it_comes_before_any_segment(store: ScriptedStore) -> None:
    async with manager(store) as one_manager, manager(store) as reader:
        assert (await one_manager.raise_log_start_offset(TP, 5)).log_start_offset is None
        await copied(one_manager, segment(1, 0, 9))
        view = await reader.refresh(TP, now())
        assert (view.log_start_offset, view.covers(4)) == (5, False)


async def test_a_view_in_use_is_not_older_than_its_age_allows(store: ScriptedStore) -> None:
    async with manager(store) as one_manager, manager(store, view_age_max_ms=20) as reader:
        await copied(one_manager, segment(1, 0, 99))
        await reader.refresh(TP, now())
        await one_manager.raise_log_start_offset(TP, 50)
        async with asyncio.timeout(20):
            while True:
                view = reader.view(TP)
                assert view is not None
                if view.log_start_offset == 50:
                    break
                await asyncio.sleep(0.005)


async def test_a_store_that_is_away_is_not_asked_by_every_reader(store: ScriptedStore) -> None:
    async with manager(store) as one_manager:
        await copied(one_manager, segment(1, 0, 99))
    async with manager(store, view_age_max_ms=60_000) as reader:
        await reader.refresh(TP, now())
        before = store.count("list", FOLDER)
        store.error = StorageUnavailable("away")
        for _ in range(50):
            assert reader.view(TP) is not None
            await asyncio.sleep(0)
        assert store.count("list", FOLDER) == before  # the view is young enough
    async with manager(store, view_age_max_ms=2_000) as reader:
        store.error = None
        await reader.refresh(TP, now())
        store.error = StorageUnavailable("away")
        before = store.count("list", FOLDER)
        reads = reader._views
        async with asyncio.timeout(20):
            while store.count("list", FOLDER) == before or TP in reads._running:
                reads.renew(TP, now() + 1, pause_s=60)  # as if the view were too old
                await asyncio.sleep(0)
        for _ in range(50):
            reads.renew(TP, now() + 1, pause_s=60)
            assert TP not in reads._running
            await asyncio.sleep(0)
        assert store.count("list", FOLDER) == before + 1


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=6),
    st.integers(0, 60),
    st.integers(0, 70),
)
def test_a_view_never_gives_what_was_deleted(
    ranges: list[tuple[int, int]], raised: int, offset: int
) -> None:
    every = [segment(n, start, start + size, FINISHED) for n, (start, size) in enumerate(ranges)]
    whole = build_view(TP, every, 0.0)
    view = build_view(TP, every, 0.0, (), raised)
    assert view.covers(offset) == (offset >= raised and whole.covers(offset))
    offsets_left = [o for o in range(raised, 60) if whole.covers(o)]
    assert view.log_start_offset == (
        max(raised, view.segments[0].start_offset) if offsets_left else None
    )
    if offsets_left:
        assert view.log_start_offset == offsets_left[0]
        assert view.log_end_offset == whole.log_end_offset
    if offset < raised:
        assert view.segment_at_or_after(offset) is None
        assert not view.gap_at(offset)
        assert not view.uncertain_at(offset)
