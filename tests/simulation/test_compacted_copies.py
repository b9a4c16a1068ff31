"""Copies of a compacted log in virtual time: what readers see while the next one is made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from archiving_world import BATCH_BYTES, BATCH_OFFSETS, TOPIC, World, run_world, wall_clock_ms
from broker_log import SimulatedLog
from fetchproxy_protocol.record_batch import walk

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_reads import RemoteReads
from fetchproxy.model import ByteRange, CompactedCopy
from fetchproxy.observability.health import Kind

DAY_MS = 86_400_000
# Five batches in a segment; a copy may be made anew at once.
COMPACTED: dict[str, Any] = {
    "topics": "no topic",
    "compacted_topics": TOPIC,
    "segment_bytes_max": 1_024,
    "compacted_copy_interval_min_ms": 0,
}


async def view_of(world: World) -> PartitionView:
    return await world.rlmm.refresh(world.logs[0].tp, asyncio.get_running_loop().time())


async def shown_bases(world: World) -> list[int]:
    """The base offsets of the batches that readers get."""
    bases: list[int] = []
    for segment in (await view_of(world)).segments:
        whole = ByteRange(0, segment.segment_size_bytes)
        log = await world.storage.rsm.fetch_log_segment(segment, whole)
        bases += [header.base_offset for header in walk(bytes(log))]
    return bases


def written(log: SimulatedLog) -> list[int]:
    return [batch.base_offset for batch in log.batches[: log.written]]


async def until_shown(world: World, bases: Iterable[int]) -> list[list[int]]:
    """Returns what was shown until then, without repetitions."""
    expected, states = list(bases), [await shown_bases(world)]
    async with asyncio.timeout(3_600):  # of virtual time
        while states[-1] != expected:
            await asyncio.sleep(0.2)
            now = await shown_bases(world)
            states += [] if now == states[-1] else [now]
    return states


async def copy_of(world: World) -> CompactedCopy:
    copy = (await view_of(world)).history.compacted
    assert copy is not None
    return copy


def compacted_world(main: Callable[[World], Awaitable[None]], **more: Any) -> None:
    async def whole(world: World) -> None:
        world.cluster.topic_configs[TOPIC] = {"cleanup.policy": "compact"}
        await main(world)

    run_world(whole, **more)


def test_nothing_is_shown_before_the_first_copy_is_whole() -> None:
    async def main(world: World) -> None:
        world.write(0, 40)
        slow = {"copy_bytes_per_s_max": 4 * BATCH_BYTES}  # it takes 10 s
        async with world.archiving(**COMPACTED, **slow):
            assert await until_shown(world, written(world.logs[0])) == [[], written(world.logs[0])]
            copy = await copy_of(world)
            assert (copy.made_to, copy.shown_to) == (400, -1)
            assert 0 < copy.begun_at_ms < copy.caught_up_ms <= wall_clock_ms()
            segments = world.rlmm.list_remote_log_segments(world.logs[0].tp)
            assert all(copy.has(segment.segment_id) for segment in segments), "it was made once"

    compacted_world(main)


def test_a_copy_that_has_doubled_is_made_anew_and_replaces_the_other_at_once() -> None:
    async def main(world: World) -> None:
        log = world.logs[0]
        world.write(0, 20)
        async with world.archiving(**COMPACTED) as manager:
            await until_shown(world, written(log))
            first = await copy_of(world)
            log.compact({10 * n for n in range(2, 19)})
            assert (await shown_bases(world)) == [10 * n for n in range(20)], (
                "it waits until it grows"
            )
            before = list(range(0, 200, BATCH_OFFSETS))
            world.write(0, 20)
            grown = [*before, *range(200, 400, BATCH_OFFSETS)]
            for one in await until_shown(world, written(log)):
                # The old copy and what was added to it, or the new one.
                assert one == grown[: len(one)] or one == written(log)
            second = await copy_of(world)
            assert second.number > first.number
            assert second.made_to == 400
            tp = log.tp
            # The rest of the first copy is deleted after the readers' grace.
            async with asyncio.timeout(3_600):
                while any(not second.has(s.segment_id)  # noqa: ASYNC110
                          for s in world.rlmm.list_remote_log_segments(tp)):  # fmt: skip
                    await asyncio.sleep(5)
            assert list(manager.published_conditions.health.all(0.0)) == []
            assert await world.conditions_of(0) == []

    compacted_world(main)


def test_what_was_made_of_a_copy_before_a_kill_is_never_shown() -> None:
    async def main(world: World) -> None:
        log = world.logs[0]
        world.write(0, 20)
        async with world.archiving(**COMPACTED):
            await until_shown(world, written(log))
        first = await shown_bases(world)
        log.compact({10 * n for n in range(1, 10)})
        world.write(0, 20)
        slow = {"copy_bytes_per_s_max": 4 * BATCH_BYTES}
        for _ in range(3):
            async with world.archiving(**COMPACTED, **slow):
                await asyncio.sleep(7)
            now = await shown_bases(world)
            assert now == first or now[-1] == 390
        async with world.archiving(**COMPACTED):
            await until_shown(world, written(log))

    compacted_world(main)


def test_what_is_added_counts_when_it_has_all_of_the_log() -> None:
    """In between it may lack values of keys that were written again above it."""

    async def main(world: World) -> None:
        log = world.logs[0]
        world.write(0, 10)
        quick = {**COMPACTED, "compacted_copy_interval_min_ms": DAY_MS}
        async with world.archiving(**quick):
            first = (await until_shown(world, written(log)))[-1]
            number = (await copy_of(world)).number
        world.write(0, 26)
        slow = {"copy_bytes_per_s_max": 4 * BATCH_BYTES}
        async with world.archiving(**quick, **slow):
            await asyncio.sleep(4)
            assert await shown_bases(world) == first
            assert (await copy_of(world)).shown_to == 100, "some of it was added"
        async with world.archiving(**quick, **slow):
            states = await until_shown(world, written(log))
            assert states == [first, written(log)]
            assert await copy_of(world) == replace(
                await copy_of(world), number=number, made_to=100, shown_to=-1
            )
        assert await world.conditions_of(0) == []

    compacted_world(main)


def test_after_a_long_break_the_old_copy_stays_until_the_new_one_is_whole() -> None:
    """What was written meanwhile may lack deletions of keys that the old copy has."""

    async def main(world: World) -> None:
        log = world.logs[0]
        world.write(0, 20)
        async with world.archiving(**COMPACTED):
            before = await until_shown(world, written(log))
            first = await copy_of(world)
        world.write(0, 2)
        await asyncio.sleep(DAY_MS / 1000)
        async with world.archiving(**COMPACTED):
            assert await until_shown(world, written(log)) == [before[-1], written(log)]
            assert (await copy_of(world)).number > first.number

    compacted_world(main)


def test_a_break_in_which_nothing_was_written_is_no_reason_to_copy_anew() -> None:
    async def main(world: World) -> None:
        log = world.logs[0]
        world.write(0, 20)
        async with world.archiving(**COMPACTED):
            await until_shown(world, written(log))
            first = await copy_of(world)
        await asyncio.sleep(DAY_MS / 1000)
        async with world.archiving(**COMPACTED):
            await asyncio.sleep(10)
            world.write(0, 2)
            await until_shown(world, written(log))
            assert (await copy_of(world)).number == first.number

    compacted_world(main)


def test_what_the_brokers_deleted_is_gone_with_the_next_copy() -> None:
    async def main(world: World) -> None:
        log = world.logs[0]
        world.cluster.topic_configs[TOPIC]["cleanup.policy"] = "compact,delete"
        world.write(0, 20)
        async with world.archiving(**COMPACTED):
            await until_shown(world, written(log))
            world.trim(0, 100)
            world.write(0, 1)
            await until_shown(world, written(log)[10:])
            assert (await view_of(world)).log_start_offset == 100
            assert await world.conditions_of(0) == []

    compacted_world(main)


@pytest.mark.remedy("compacted_copy_late")
def test_a_copy_that_takes_too_long_does_not_count() -> None:
    async def main(world: World) -> None:
        log, settings = world.logs[0], world.cluster.topic_configs[TOPIC]
        settings["delete.retention.ms"] = "8000"
        world.write(0, 40)
        slow = {"copy_bytes_per_s_max": 4 * BATCH_BYTES, "compacted_copy_retry_ms": 5_000}
        async with world.archiving(**COMPACTED, **slow) as manager:
            health = manager.published_conditions.health
            while not (late := health.reported(Kind.COMPACTED_COPY_LATE, log.tp)):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
            assert "delete.retention.ms (8 s)" in late.what
            assert await shown_bases(world) == []
            settings["delete.retention.ms"] = "60000"
            await until_shown(world, written(log))
            assert health.reported(Kind.COMPACTED_COPY_LATE, log.tp) is None

    compacted_world(main)


def test_a_log_that_is_written_all_the_time_has_a_whole_copy_too() -> None:
    async def main(world: World) -> None:
        world.write(0, 20)
        async with world.archiving(**COMPACTED):
            async with asyncio.timeout(600):
                while not (await shown_bases(world)):
                    world.write(0, 1)
                    await asyncio.sleep(0.05)
            copy = await copy_of(world)
            assert copy.made_to <= world.logs[0].last_stable_offset
            await until_shown(world, written(world.logs[0]))

    compacted_world(main, batches=5_000)


def test_a_pass_makes_whole_copies() -> None:
    async def main(world: World) -> None:
        log = world.logs[0]
        world.write(0, 20)
        assert await world.once(**COMPACTED) == []
        assert await shown_bases(world) == written(log)
        world.write(0, 3)
        assert await world.once(**COMPACTED) == []
        assert await shown_bases(world) == written(log)

    compacted_world(main)


def test_an_empty_log_has_a_whole_copy() -> None:
    async def main(world: World) -> None:
        async with world.archiving(**COMPACTED):
            async with asyncio.timeout(60):
                while (  # noqa: ASYNC110
                    (copy := (await view_of(world)).history.compacted) is None or not copy.number
                ):
                    await asyncio.sleep(0.5)
            world.write(0, 3)
            await until_shown(world, written(world.logs[0]))

    compacted_world(main)


def test_records_from_before_the_compaction_are_not_replaced() -> None:
    async def main(world: World) -> None:
        world.write(0, 20)
        assert await world.once() == []
        world.cluster.topic_configs[TOPIC]["cleanup.policy"] = "compact"
        async with world.archiving(**COMPACTED) as manager:
            health = manager.published_conditions.health
            failing = Kind.PARTITION_FAILING
            while not (  # noqa: ASYNC110
                condition := health.reported(failing, world.logs[0].tp)
            ):
                await asyncio.sleep(0.5)
            assert "records from before that" in condition.what
            assert await shown_bases(world) == written(world.logs[0])

    run_world(main)


def test_a_topic_that_is_compacted_no_more_goes_on_behind_its_copy() -> None:
    async def main(world: World) -> None:
        log = world.logs[0]
        world.write(0, 20)
        both = {**COMPACTED, "topics": TOPIC}
        async with world.archiving(**both):
            await until_shown(world, written(log))
            world.cluster.topic_configs[TOPIC]["cleanup.policy"] = "delete"
            await asyncio.sleep(10)
            world.write(0, 20)
            await until_shown(world, written(log))

    compacted_world(main)


def test_the_proxys_readers_see_no_copy() -> None:
    async def main(world: World) -> None:
        world.write(0, 20)
        async with world.archiving(**COMPACTED):
            await until_shown(world, written(world.logs[0]))
        tp = world.logs[0].tp
        reads = RemoteReads(world.rlmm)
        view = reads.view(tp)
        assert view is not None
        assert not view.segments
        assert view.log_end_offset is None
        assert reads.view(tp) is view
        assert (await reads.refresh_topic(tp.topic_id, 0.0))[0].log_end_offset is None
        assert (await view_of(world)).log_end_offset == 200

    compacted_world(main)
