"""Merged sources, second copies and hidden segments go only while their replacement is intact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from merging_world import MergingWorld
from planted_archive import TP, batch
from retention_world import State, World, turns, virtually

from fetchproxy.errors import ObjectNotReadable, StorageDenied
from fetchproxy.model import ByteRange, RemoteLogSegmentId, RemoteLogSegmentMetadata
from fetchproxy.segments.object_keys import SegmentFile

with_both = pytest.mark.parametrize("manager", ["store", "topic"])


@pytest.fixture(params=["store", "topic"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> MergingWorld:
    return MergingWorld(request.param, spool=tmp_path, bytes_max=30 * len(batch(0)))


async def merged_log(world: MergingWorld) -> str:
    before = {key for key in world.store.objects() if key.endswith(".log")}
    await world.merge()
    [key] = {key for key in world.store.objects() if key.endswith(".log")} - before
    return key


@pytest.mark.parametrize("how", ["log gone", "log cut", "index gone", "index cut"])
@pytest.mark.remedy("replaced_segment_kept")
async def test_sources_of_a_merge_stay_where_the_merged_one_is_damaged(
    world: MergingWorld, how: str
) -> None:
    await world.plant_small(20)
    sources = world.store.objects()
    key = await merged_log(world)
    if how.startswith("index"):
        key = key.removesuffix("log") + "index"
    content = await world.store.get(key)
    if how.endswith("gone"):
        await world.store.delete(key)
    else:
        await world.store.put(key, content[:-1])
    await world.tidy_until_settled()
    assert sources <= world.store.objects()
    [condition_text] = world.headlines()
    assert condition_text.startswith("replaced_segment_kept: orders-0: ")
    await world.store.put(key, content)
    await world.tidy_until_settled()
    assert not any(
        f"{base:020d}-" in object_key for base in (10, 190) for object_key in world.store.objects()
    )
    assert await world.ranges() == [(0, 199)]


async def test_sources_that_are_hidden_already_stay_too(world: MergingWorld) -> None:
    """The merged segment is lost in the grace, after the check."""
    await world.plant_small(20)
    before = await world.read()
    logs = {key for key in world.store.objects() if key.endswith(".log")}
    key = await merged_log(world)
    content = await world.store.get(key)
    world.skew_ms += 10 * 60_000
    async with AsyncExitStack() as opened:
        expirer, rlmm = await world.start(opened)
        await expirer.delete_all_due(TP)
        await expirer.delete_all_due(TP)
        hidden = [s for s in rlmm.list_remote_log_segments(TP) if s.start_offset]
        assert {s.state for s in hidden} == {State.DELETE_SEGMENT_STARTED}
    await world.store.delete(key)
    await world.tidy_until_settled()
    assert logs <= world.store.objects()
    await world.store.put(key, content)
    await world.tidy_until_settled()
    assert not logs & world.store.objects()
    assert await world.read() == before


async def lose_the_merged_segment(world: MergingWorld) -> set[str]:
    """All objects of the merged segment. Returns the logs of the segments that it replaced."""
    await world.plant_small(20)
    logs = {key for key in world.store.objects() if key.endswith(".log")}
    key = await merged_log(world)
    await world.add(200, timestamp=2_000)
    world.skew_ms += 10 * 60_000
    async with AsyncExitStack() as opened:
        expirer, _ = await world.start(opened)
        await expirer.delete_all_due(TP)
        await expirer.delete_all_due(TP)
    stem = key.removesuffix("log")
    for object_key in [
        object_key for object_key in world.store.objects() if object_key.startswith(stem)
    ]:
        await world.store.delete(object_key)
    return logs


async def test_not_even_where_nothing_is_left_of_the_merged_one(world: MergingWorld) -> None:
    """All of its objects are lost; with the store's own manager, this includes its metadata."""
    logs = await lose_the_merged_segment(world)
    await world.tidy_until_settled()
    assert logs <= world.store.objects()
    [condition_text] = world.headlines()
    assert condition_text.startswith("replaced_segment_kept: orders-0: ")


async def test_nor_where_the_store_does_not_give_them_out_now(
    world: MergingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are whole, as far as is known, and nothing else has their offsets."""
    logs = await lose_the_merged_segment(world)

    async def denied(key: str, byte_range: ByteRange) -> bytes:
        raise StorageDenied(f"get {key}: KMS.DisabledException")

    monkeypatch.setattr(world.store, "get_range", denied)
    for _ in range(4):
        with suppress(ObjectNotReadable):
            await world.tidy_until_settled()
    assert logs <= world.store.objects()


@with_both
def test_a_second_copy_stays_where_the_first_is_damaged(manager: str) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(2)
        first = world.planted.segments[0]
        await world.add(0, event_timestamp_ms=world.wall_clock_ms())
        key = world.planted.key(first, SegmentFile.LOG)
        content = await world.store.get(key)
        await world.store.delete(key)
        expirer, _ = await world.start(opened)
        before = world.store.objects()
        await turns(expirer, 400)
        assert world.store.objects() == before
        [headline] = world.headlines()
        assert f"{key} is missing" in headline
        await world.store.put(key, content)
        await turns(expirer, 200)
        assert world.headlines() == []
        assert len(world.store.objects()) == len(before) + 1 - 4
        expirer.forget(TP)

    virtually(life, manager)


@with_both
@pytest.mark.parametrize("file_left", [None, SegmentFile.INDEX, SegmentFile.EPOCHS])
def test_of_what_is_a_word_alone_the_whole_one_takes_the_place(
    manager: str, file_left: SegmentFile | None
) -> None:
    """Its metadata says "finished", but it was deleted. With an object left, a person decides."""

    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(2)
        first = world.planted.segments[0]
        copy = await world.add(0, event_timestamp_ms=world.wall_clock_ms())
        for file in (SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS):
            if file is not file_left:
                await world.store.delete(world.planted.key(first, file))
        expirer, rlmm = await world.start(opened)
        await turns(expirer, 400)
        view = rlmm.view(TP)
        assert view is not None
        gone = file_left is None
        assert view.segments[0].segment_id == (copy if gone else first).segment_id
        key = world.planted.key(first, SegmentFile.METADATA)
        assert (key in world.store.objects()) != gone
        assert world.planted.key(copy, SegmentFile.LOG) in world.store.objects()
        assert len(world.headlines()) == (not gone)
        expirer.forget(TP)

    virtually(life, manager)


def test_a_word_alone_stays_where_others_have_not_all_of_it() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        long = await world.planted.add([batch(0), batch(10)])
        await world.add(0, event_timestamp_ms=world.wall_clock_ms())
        for file in (SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS):
            await world.store.delete(world.planted.key(long, file))
        expirer, _ = await world.start(opened)
        await turns(expirer, 400)
        assert world.planted.key(long, SegmentFile.METADATA) in world.store.objects()
        [headline] = world.headlines()
        assert "is missing" in headline
        expirer.forget(TP)

    virtually(life)


@with_both
@pytest.mark.parametrize("begun", [True, False])
def test_an_attempt_stays_while_it_is_the_last_that_is_whole(manager: str, begun: bool) -> None:
    """It stays if it is the only whole copy, and goes if its log was lost."""

    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(1)
        await world.add(20)
        state = State.COPY_SEGMENT_STARTED
        attempt = await world.add(10, event_timestamp_ms=world.wall_clock_ms(), state=state)
        key = world.planted.key(attempt, SegmentFile.LOG)
        if not begun:
            await world.store.delete(key)
        expirer, _ = await world.start(opened)
        await turns(expirer, 400)
        assert (key in world.store.objects()) == begun
        assert len(world.headlines()) == begun

    virtually(life, manager)


def of_no_metadata(metadata: RemoteLogSegmentMetadata, number: int) -> RemoteLogSegmentMetadata:
    return replace(metadata, segment_id=RemoteLogSegmentId(TP, UUID(int=number)))


@pytest.mark.parametrize("damage", [None, lambda log: log[:-1]], ids=["missing", "cut"])
def test_a_log_without_metadata_stays_where_the_other_one_is_damaged(
    damage: Callable[[bytes], bytes] | None,
) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(3)
        named = world.planted.segments[1]
        orphan = of_no_metadata(named, 77)
        keys_left = set()
        for file in (SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS):
            keys_left.add(world.planted.key(orphan, file))
            content = await world.store.get(world.planted.key(named, file))
            await world.store.put(world.planted.key(orphan, file), content)
        key = world.planted.key(named, SegmentFile.LOG)
        before = await world.store.get(key)
        if damage is None:
            await world.store.delete(key)
        else:
            await world.planted.change(named, SegmentFile.LOG, damage)
        settings = {"orphan_check_interval_ms": 1_000, "orphan_age_min_ms": 1_000}
        expirer, _ = await world.start(opened, **settings)
        await turns(expirer, 200)
        assert keys_left <= world.store.objects()
        assert key in world.headlines()[0]
        await world.store.put(key, before)
        await turns(expirer, 200)
        assert not keys_left & world.store.objects()
        assert world.headlines() == []

    virtually(life)


def test_a_log_without_metadata_stays_where_another_has_only_its_beginning() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(1)
        long = await world.planted.add([batch(0), batch(10), batch(20)])
        await world.store.delete(world.planted.key(long, SegmentFile.METADATA))
        settings = {"orphan_check_interval_ms": 1_000, "orphan_age_min_ms": 1_000}
        expirer, _ = await world.start(opened, **settings)
        await turns(expirer, 200)
        assert world.planted.key(long, SegmentFile.LOG) in world.store.objects()
        for base in (10, 20):
            await world.add(base)
        await turns(expirer, 200)
        assert world.planted.key(long, SegmentFile.LOG) not in world.store.objects()

    virtually(life)


def test_it_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(2)
        await world.add(0, event_timestamp_ms=world.wall_clock_ms())
        await world.store.delete(world.planted.key(world.planted.segments[0], SegmentFile.LOG))
        expirer, _ = await world.start(opened)
        await turns(expirer, 300)
        await asyncio.sleep(0)

    virtually(life)
    assert capsys.readouterr().out.count("replaced_segment_kept") == 1
