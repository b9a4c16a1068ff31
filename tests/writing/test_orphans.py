"""Objects without metadata: when they are removed, and which objects are not orphans."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from uuid import UUID

import pytest
from planted_archive import TP, batch
from pydantic import ValidationError
from retention_world import QUICK, State, World, turns, virtually

from fetchproxy.config.schema import ArchiveConfig, MetadataConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentId
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.writing.deletion.expirer import Expirer
from fetchproxy.writing.limits import WritingLimits
from lab.limited import section_and_limits


async def orphan(world: World, number: int, *files: SegmentFile) -> set[str]:
    """Put objects of a segment without metadata; return their keys."""
    id_ = RemoteLogSegmentId(TP, UUID(int=number))
    metadata = replace(world.planted.segments[0], segment_id=id_)
    keys = {world.planted.storage.rsm.object_key(metadata, file) for file in files}
    for key in keys:
        await world.store.put(key, b"left")
    return keys


def test_orphans_go_when_they_were_seen_for_long_enough() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(2)
        sound = world.store.objects()
        objects_left = await orphan(world, 77, SegmentFile.LOG, SegmentFile.INDEX)
        settings = {"orphan_check_interval_ms": 500_000, "orphan_age_min_ms": 100_000}
        expirer, _ = await world.start(opened, **settings)
        await turns(expirer, 50)
        late = await orphan(world, 78, SegmentFile.LOG)
        await turns(expirer, 49)
        assert world.store.objects() == sound | objects_left | late
        await turns(expirer, 20)
        assert world.store.objects() == sound | late
        await turns(expirer, 200)
        assert world.store.objects() == sound

    virtually(life)


def test_an_attempt_that_metadata_name_is_no_orphan() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(1)
        now_ms = world.wall_clock_ms()
        await world.add(10, event_timestamp_ms=now_ms, state=State.COPY_SEGMENT_STARTED)
        settings = {"orphan_check_interval_ms": 1_000, "orphan_age_min_ms": 1_000}
        expirer, _ = await world.start(opened, **settings)
        await turns(expirer, 58)
        assert len(world.store.objects()) == 2 * 4 + 1

    virtually(life)


def test_what_is_still_being_written_is_no_orphan() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(1)
        settings = {"orphan_check_interval_ms": 5_000, "orphan_age_min_ms": 60_000}
        expirer, _ = await world.start(opened, **settings)
        for _ in range(20):
            objects_left = await orphan(world, 77, SegmentFile.LOG)  # its version changes
            await turns(expirer, 30)
            assert objects_left <= world.store.objects()
        await turns(expirer, 100)
        assert not objects_left & world.store.objects()

    virtually(life)


def test_a_finished_segment_is_never_an_orphan() -> None:
    """Even if the metadata manager, empty or another cluster's, does not name it."""

    class Forgetful(StoreBackedRemoteLogMetadataManager):
        def list_remote_log_segments(self, tp: object) -> tuple[()]:
            return ()

    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(3)
        begun = await world.planted.add([batch(30)])
        await world.planted.restate(replace(begun, state=State.COPY_SEGMENT_STARTED))
        damaged = await world.planted.add([batch(40)])
        await world.planted.change(damaged, SegmentFile.METADATA, lambda _: b"{")
        storage = world.planted.storage
        rlmm = await opened.enter_async_context(Forgetful(storage, MetadataConfig()))
        often = {**QUICK, "orphan_check_interval_ms": 1, "orphan_age_min_ms": 1}
        config, limits = section_and_limits(ArchiveConfig, WritingLimits, **often)
        expirer = Expirer(
            config,
            storage.rsm,
            storage.objects,
            rlmm,
            topic_config=lambda _: None,
            wall_clock_ms=world.wall_clock_ms,
            limits=limits,
        )
        await turns(expirer, 50)
        assert world.bases() == [0, 10, 20, 40]

    virtually(life)


def test_a_log_whose_metadata_were_lost_is_kept_until_its_offsets_are_archived_again() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(4)
        lost = [world.planted.segments[number] for number in (1, 3)]
        for metadata in lost:
            await world.store.delete(
                world.planted.storage.rsm.object_key(metadata, SegmentFile.METADATA)
            )
        settings = {"orphan_check_interval_ms": 1_000, "orphan_age_min_ms": 1_000}
        expirer, _ = await world.start(opened, **settings)
        await turns(expirer, 100)
        logs = [
            world.planted.storage.rsm.object_key(metadata, SegmentFile.LOG) for metadata in lost
        ]
        assert set(logs) <= world.store.objects()
        await world.add(30)
        await turns(expirer, 100)
        assert set(logs) & world.store.objects() == {logs[0]}

    virtually(life)


@pytest.mark.parametrize("alone", [True, False])
def test_the_word_of_a_copy_that_the_metadata_topic_has_deleted_is_an_orphan(alone: bool) -> None:
    """Its archiver was killed before the topic could refuse the copy; others have its offsets."""

    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(2)
        sound = world.store.objects()
        late = replace(world.planted.segments[0], segment_id=RemoteLogSegmentId(TP, UUID(int=77)))
        await world.planted.restate(late)
        objects_left = {world.planted.key(late, SegmentFile.METADATA)}
        if not alone:
            objects_left |= await orphan(world, 77, SegmentFile.INDEX)
        settings = {"orphan_check_interval_ms": 1_000, "orphan_age_min_ms": 10_000}
        expirer, _ = await world.start(opened, **settings)
        await turns(expirer, 9)
        assert world.store.objects() == sound | objects_left
        await turns(expirer, 30)
        assert world.store.objects() == (sound if alone else sound | objects_left)

    virtually(life, "topic")


def test_an_upload_is_not_taken_for_an_orphan_however_long_a_copy_may_take() -> None:
    longest_ms = WritingLimits().orphan_age_min_ms
    assert ArchiveConfig(copy_max_ms=longest_ms).copy_max_ms == longest_ms
    with pytest.raises(ValidationError):
        ArchiveConfig(copy_max_ms=longest_ms + 1)


@pytest.mark.parametrize(
    ("segments_per_hour", "longest_s", "found_s"),
    [(100_000, 1_000, 10), (36, 1_000, 100), (36, 50, 50)],
)
def test_a_long_partition_is_searched_less_often(
    segments_per_hour: int, longest_s: int, found_s: int
) -> None:
    """It has one segment: with 36 an hour, the next search is due in 100 s."""

    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(1)
        settings = {
            "orphan_check_interval_ms": 10_000,
            "orphan_age_min_ms": 1,
            "orphan_check_segments_per_hour": segments_per_hour,
            "orphan_check_interval_max_ms": 1000 * longest_s,
        }
        expirer, _ = await world.start(opened, **settings)
        await turns(expirer, 5)
        objects_left = await orphan(world, 77, SegmentFile.INDEX)
        await turns(expirer, found_s - 6)
        assert objects_left <= world.store.objects()
        await turns(expirer, 6)
        assert not objects_left & world.store.objects()

    virtually(life)
