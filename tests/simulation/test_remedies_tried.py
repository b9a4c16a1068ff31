"""Conditions of an archive whose remedies need no real part: caused, and ended as they say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from unittest.mock import patch

import pytest
from archiving_world import TOPIC, World, run_world, wall_clock_ms
from whole_archive import verify_archive

from fetchproxy.auditing.repair import repair_archive
from fetchproxy.observability.health import Kind
from fetchproxy.writing.remote_log_manager import RemoteLogManager


async def kinds(world: World) -> list[str]:
    """What every process finds in the archive itself, without the gaps on record."""
    return [one.kind for one in await world.conditions_of(0)]


async def middle_segment(world: World) -> list[str]:
    """The keys of the objects of the second of three segments."""
    for _ in range(3):
        world.write(0, 2)
        assert await world.once() == []
    listed = [stored.key async for stored in world.store.list("")]
    return [key for key in listed if "/00000000000000000020-" in key]


@pytest.mark.remedy("archived_offsets_missing")
def test_objects_that_come_back_end_it() -> None:
    async def main(world: World) -> None:
        keys = await middle_segment(world)
        lost = {key: await world.store.get(key) for key in keys}
        assert len(lost) >= 4
        for key in lost:
            await world.store.delete(key)
        [condition] = await world.conditions_of(0)
        assert (condition.kind, condition.first_offset) == (Kind.ARCHIVED_OFFSETS_MISSING, 20)
        for key, content in lost.items():
            await world.store.put(key, content)
        assert await kinds(world) == []

    run_world(main)


@pytest.mark.remedy("segment_metadata_unreadable")
def test_verify_makes_unreadable_metadata_again() -> None:
    async def main(world: World) -> None:
        [key] = [key for key in await middle_segment(world) if key.endswith(".metadata")]
        await world.store.put(key, b"no metadata")
        assert await kinds(world) == [Kind.SEGMENT_METADATA_UNREADABLE]
        report = await verify_archive(world.storage, world.rlmm)
        outcome = await repair_archive(
            world.storage, world.rlmm, report.faults, wall_clock_ms=wall_clock_ms, dry_run=False
        )
        assert (len(outcome.repairs), outcome.refusals) == (1, [])
        assert await kinds(world) == []

    run_world(main)


@pytest.mark.remedy("log_damaged")
def test_behind_the_deleted_batch_the_archiver_goes_on() -> None:
    async def main(world: World) -> None:
        log = world.logs[0]
        damaged = bytearray(log.batches[2].content)
        damaged[-1] ^= 1
        batches = list(log.batches)
        batches[2] = replace(batches[2], content=bytes(damaged))
        log.batches = batches
        world.write(0, 5)
        async with world.archiving() as manager:
            health = manager.published_conditions.health
            while not (condition := health.reported(Kind.LOG_DAMAGED, log.tp)):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            assert "the batch of offsets 20 to 29 fails its CRC" in condition.what
            assert await world.archive_end(0) == 20
            world.trim(0, 30)  # kafka-delete-records.sh up to the batch's last offset
            while await world.archive_end(0) != 50:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            while list(health.all(0.0)):  # noqa: ASYNC110
                await asyncio.sleep(0.5)

    run_world(main)


@pytest.mark.remedy("topic_refused")
def test_a_topic_that_is_changed_as_the_reason_says_is_archived() -> None:
    async def main(world: World) -> None:
        world.cluster.topic_configs[TOPIC] = {"cleanup.policy": "compact"}
        world.write(0, 4)
        async with world.archiving() as manager:
            health = manager.published_conditions.health
            while not (refused := health.reported(Kind.TOPIC_REFUSED, TOPIC)):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            assert "cleanup.policy contains compact" in refused.what
            world.cluster.topic_configs[TOPIC] = {"cleanup.policy": "delete"}
            while await world.archive_end(0) != 40:  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            assert health.reported(Kind.TOPIC_REFUSED, TOPIC) is None

    run_world(main)


@pytest.mark.remedy("topic_left_out")
def test_a_pattern_that_matches_an_archived_topic_no_more_is_said_and_mended() -> None:
    async def main(world: World) -> None:
        soon = {"topic_deletion_check_interval_ms": 5_000}
        world.write(0, 4)
        assert await world.once() == []

        async def left_out(manager: RemoteLogManager) -> list[str]:
            await asyncio.sleep(20)
            health = manager.published_conditions.health
            return [one.what for one in health.all(0.0) if one.kind == Kind.TOPIC_LEFT_OUT]

        async with world.archiving(topics="order", **soon) as mistyped:
            assert await left_out(mistyped) == []  # nothing is lost yet
            with patch.object(mistyped.rlmm, "refresh", wraps=mistyped.rlmm.refresh) as refreshes:
                assert await left_out(mistyped) == []
            assert refreshes.call_count == 0  # what does not grow costs the store nothing
            world.write(0, 2)
            [what] = await left_out(mistyped)
            assert "archive.topics = 'order' does not match it" in what
            async with world.archiving(**soon) as other:
                assert await left_out(mistyped) == await left_out(other) == []
                assert await world.archive_end(0) == 60

    run_world(main)
