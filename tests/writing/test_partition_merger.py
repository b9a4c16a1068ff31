"""Merging beside readers, retention, truncation and another merger; and crashes at any step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from labelled_store import COPY_STEPS, LabelledStore, labels
from merging_world import MergingWorld
from planted_archive import TP, batch, flip

from fetchproxy.model import RemoteLogSegmentState as State
from fetchproxy.model import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from fetchproxy.segments.object_keys import KAFKA_FILES, SegmentFile
from fetchproxy.writing.merging import MergedPartition
from fetchproxy.writing.spool import Spool

LAST_WORD = "before put metadata COPY_SEGMENT_FINISHED"


@pytest.fixture(params=["store", "topic"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> MergingWorld:
    """Seven segments of one batch each; up to three fit into one."""
    return MergingWorld(request.param, spool=tmp_path, bytes_max=3 * len(batch(0)) + 60)


async def test_readers_see_each_offset_once_before_and_after(world: MergingWorld) -> None:
    await world.plant_small(7)
    before = await world.read()
    outcome = await world.merge()
    assert (outcome.merged, outcome.replaced, outcome.refused) == (2, 6, [])
    assert await world.read() == before
    await world.tidy_until_settled()
    assert await world.ranges() == [(0, 29), (30, 59), (60, 69)]
    assert await world.read() == before
    report = await world.planted.verify()
    assert report.clean, report.faults
    again = await world.merge()
    assert again.merged == 0


async def test_replaced_segments_stay_for_those_who_read_them(world: MergingWorld) -> None:
    await world.plant_small(4)
    await world.merge()
    async with AsyncExitStack() as opened:
        expirer, _ = await world.start(opened)
        await expirer.delete_all_due(TP)  # nothing is old enough
    assert world.bases() == [0, 10, 20, 30]


async def test_a_crash_at_any_step_harms_nobody_and_the_next_run_ends_the_same(
    world: MergingWorld,
) -> None:
    await world.plant_small(7)
    before = await world.read()
    await world.merge()
    crashes = list(world.steps)
    absent = {f"put {file.value}" for file in (SegmentFile.TXN, *KAFKA_FILES)}
    expected = labels([step for step in COPY_STEPS if step not in absent])
    assert {step.label for step in crashes} == set(expected)
    await world.tidy_until_settled()
    clean = await world.finished()
    for step in crashes:
        after = world.as_it_was(step)
        assert await after.read() == before, step.label
        await after.merge()
        assert await after.read() == before, step.label
        await after.tidy_until_settled()
        assert await after.finished() == clean, step.label


async def _meanwhile(world: MergingWorld, act: Callable[[], Awaitable[None]]) -> None:
    """Run `act` while another merge uploads its first log; its result is in `world.done`."""
    reached, go_on = asyncio.Event(), asyncio.Event()

    class PausingStore(LabelledStore):
        async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
            if not reached.is_set():
                reached.set()
                await go_on.wait()
            await super().put_file(key, path, settled=settled)

    async with AsyncExitStack() as opened, asyncio.TaskGroup() as tasks:
        store = PausingStore(world.store, lambda _: None)
        _, rlmm = await world.start(opened, store)
        spool = await opened.enter_async_context(Spool(world.spool))
        merging = tasks.create_task(world.merger(store, rlmm, spool).merge(TP))
        await reached.wait()
        await act()
        go_on.set()
        world.done = await merging


def done_of(world: MergingWorld) -> MergedPartition:
    assert world.done is not None
    return world.done


async def test_two_merges_at_once(world: MergingWorld) -> None:
    await world.plant_small(7)
    before = await world.read()

    async def other() -> None:
        assert (await world.merge()).merged == 2

    await _meanwhile(world, other)
    assert (done_of(world).merged, done_of(world).overtaken) == (0, 2)
    assert await world.read() == before
    await world.tidy_until_settled()
    assert await world.ranges() == [(0, 29), (30, 59), (60, 69)]
    assert await world.read() == before


async def test_two_merges_that_both_come_to_count(world: MergingWorld) -> None:
    """Each made its last check before the other's final write."""
    await world.plant_small(7)
    before = await world.read()
    await world.merge()
    late = next(step for step in world.steps if step.label == LAST_WORD)
    other = world.as_it_was(late)
    await other.merge()
    # One archive with the writes of both.
    world.store._objects = {**other.store._objects, **world.store._objects}
    if world.manager == "topic":
        counts = [len(part) for part in late.then[1]]
        for number, start in enumerate(counts):
            world.log.logs[number] += other.log.logs[number][start:]
    assert await world.read() == before
    await world.tidy_until_settled()
    assert await world.ranges() == [(0, 29), (30, 59), (60, 69)]
    assert await world.read() == before


async def test_what_retention_deletes_meanwhile_is_not_brought_back(world: MergingWorld) -> None:
    await world.plant_small(4)

    async def retention() -> None:
        async with AsyncExitStack() as opened:
            _, rlmm = await world.start(opened)
            await rlmm.raise_log_start_offset(TP, 20)

    await _meanwhile(world, retention)
    assert done_of(world).merged == 0
    assert done_of(world).overtaken == 1
    await world.tidy_until_settled()
    assert await world.ranges() == [(20, 29), (30, 39)]


async def test_what_an_election_cuts_meanwhile_is_not_brought_back(world: MergingWorld) -> None:
    await world.plant_small(4)

    async def truncation() -> None:
        async with AsyncExitStack() as opened:
            _, rlmm = await world.start(opened)
            await rlmm.refresh(TP, asyncio.get_running_loop().time())
            for s in rlmm.list_remote_log_segments(TP):
                if s.start_offset >= 20:
                    gone = s.with_state(State.DELETE_SEGMENT_STARTED, world.wall_clock_ms())
                    await rlmm.put(gone)

    await _meanwhile(world, truncation)
    assert done_of(world).overtaken == 1
    await world.tidy_until_settled()
    assert await world.ranges() == [(0, 9), (10, 19)]


async def test_nothing_is_merged_in_a_topic_that_is_being_deleted(world: MergingWorld) -> None:
    await world.plant_small(4)

    async def deletion() -> None:
        async with AsyncExitStack() as opened:
            _, rlmm = await world.start(opened)
            marked = RemotePartitionDeleteState.DELETE_PARTITION_MARKED
            await rlmm.put_partition_deletion(
                RemotePartitionDeleteMetadata(TP, marked, world.wall_clock_ms())
            )

    await _meanwhile(world, deletion)
    assert done_of(world).overtaken == 1
    assert (await world.merge()).merged == 0


async def test_a_corrupt_segment_is_named_and_the_others_are_merged(world: MergingWorld) -> None:
    await world.plant_small(7)
    broken = world.planted.segments[4]
    await world.planted.change(broken, SegmentFile.LOG, flip(100))
    outcome = await world.merge()
    assert outcome.merged == 1
    (refused,) = outcome.refused
    assert refused.startswith("orders-0, offsets 30 to 59: ")
    assert world.planted.key(broken, SegmentFile.LOG) in refused
    assert "CRC-32C" in refused
    await world.tidy_until_settled()
    assert await world.ranges() == [(0, 29), *((b, b + 9) for b in range(30, 70, 10))]


async def test_a_missing_object_is_named(world: MergingWorld) -> None:
    await world.plant_small(3)
    await world.planted.store.delete(world.planted.key(world.planted.segments[1], SegmentFile.LOG))
    outcome = await world.merge()
    assert outcome.merged == 0
    assert world.planted.key(world.planted.segments[1], SegmentFile.LOG) in outcome.refused[0]


async def test_newer_records_keep_a_merged_segment(world: MergingWorld) -> None:
    """Retention looks at its newest record, as in any segment."""
    await world.plant_small(3)
    await world.merge()
    await world.tidy_until_settled()
    ((_, _, newest, *_),) = await world.finished()
    assert newest == max(s.max_timestamp_ms for s in world.planted.segments)
