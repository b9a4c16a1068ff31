"""Records of the year 2100 neither spoil the guard of the clock nor stop retention in silence."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from uuid import UUID

import pytest
from planted_archive import TP, batch
from retention_segments import segment
from retention_world import HOUR_MS, World, turns, virtually
from test_local_trimming import TP as TRIMMED
from test_local_trimming import trimming

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from fetchproxy.writing.deletion.retention import (
    FUTURE_MIN_MS,
    RECORDS_AHEAD_MAX_MS,
    ClockWitness,
    stopped_by,
)

DAY_MS = 24 * HOUR_MS
YEAR_2100_MS = 4_102_444_800_000
NOW_MS = 1_700_000_000_000
INT64_MAX = 2**63 - 1


def view(partition: int, *newest_ms: int) -> PartitionView:
    tp = TopicIdPartition(UUID(int=1), "orders", partition)
    made = [segment(i + 1, 10 * i, 10 * i + 9, newest_ms=at) for i, at in enumerate(newest_ms)]
    return replace(build_view(TP, made, 0.0), tp=tp)


@pytest.mark.parametrize("future_ms", [YEAR_2100_MS, INT64_MAX])
def test_one_record_does_not_disarm_the_guard(future_ms: int) -> None:
    ahead_ms = NOW_MS + 30 * DAY_MS  # the wrong clock
    witness = ClockWitness()
    witness.note(view(0, NOW_MS), ahead_ms)
    witness.note(view(1, NOW_MS, future_ms), ahead_ms)
    unsure = witness.doubt(ahead_ms, None)
    assert unsure is not None
    assert not unsure.sure
    witness.note(view(0, NOW_MS, NOW_MS + HOUR_MS), ahead_ms)  # it is written meanwhile
    witness.note(view(1, NOW_MS, future_ms, future_ms), ahead_ms)
    sure = witness.doubt(ahead_ms, None)
    assert sure is not None
    assert sure.sure


def test_a_partition_of_future_records_alone_lets_nothing_pass_unannounced() -> None:
    witness = ClockWitness()
    witness.note(view(0, YEAR_2100_MS, YEAR_2100_MS), NOW_MS)
    doubt = witness.doubt(NOW_MS, None)
    assert doubt is not None
    assert not doubt.sure
    witness.note(view(1, NOW_MS), NOW_MS)
    assert witness.doubt(NOW_MS, None) is None


def test_the_hour_is_the_limit() -> None:
    for late_ms, counts in ((0, True), (1, False)):
        witness = ClockWitness()
        now_ms = NOW_MS + RECORDS_AHEAD_MAX_MS + HOUR_MS
        witness.note(view(0, NOW_MS), now_ms)
        witness.note(view(1, now_ms + FUTURE_MIN_MS + late_ms), now_ms)
        assert (witness.doubt(now_ms, None) is None) is counts


def test_only_a_record_that_holds_others_up_is_named() -> None:
    def held_up_offset(*newest_ms: int, age_max_ms: int = DAY_MS) -> int | None:
        stopped = stopped_by(view(0, *newest_ms).segments, age_max_ms, NOW_MS)
        return None if stopped is None else stopped.start_offset

    old = NOW_MS - 2 * DAY_MS
    assert held_up_offset(YEAR_2100_MS, old) == 0
    assert held_up_offset(INT64_MAX, NOW_MS, old) == 0
    assert held_up_offset(YEAR_2100_MS, NOW_MS) is None  # nothing behind it would go
    assert held_up_offset(NOW_MS, YEAR_2100_MS, old) is None  # another one stays before it
    assert held_up_offset(NOW_MS + FUTURE_MIN_MS, old) is None
    assert held_up_offset(NOW_MS + FUTURE_MIN_MS + 1, old) == 0
    assert held_up_offset(YEAR_2100_MS, old, age_max_ms=-1) is None
    assert held_up_offset() is None


@pytest.mark.remedy("retention_held_up")
def test_it_is_said_what_stops_retention_and_the_remedy_works() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(10, age_ms=30 * DAY_MS)
        expirer, rlmm = await world.start(opened, remote_log_retention_ms=40 * DAY_MS)
        await world.add(100, timestamp=YEAR_2100_MS - 9)
        for number in range(11, 15):
            await world.add(10 * number, timestamp=world.wall_clock_ms() - 30 * DAY_MS)
        await turns(expirer, 20)
        assert world.headlines() == []  # nothing is due yet
        world.skew_ms = 20 * DAY_MS
        await turns(expirer, 20)
        assert world.log_starts() == [100]
        assert world.headlines() == [
            "retention_held_up: orders-0: time-based retention has stopped at offsets 100 to 109: "
            "a record there has the timestamp 2100-01-01 00:00 UTC, and nothing after it is "
            "deleted by time before 2100-02-10 00:00 UTC; DeleteRecords below offset 110 through "
            "the proxy deletes it, and archive.remote_log_retention_bytes passes it over"
        ]
        await rlmm.raise_log_start_offset(TP, 110)  # as DeleteRecords through the proxy does
        await turns(expirer, 20)
        assert world.headlines() == []
        assert world.log_starts()[-1] == 140  # the newest segment stays

    virtually(life)


@pytest.mark.remedy("retention_held_up")
def test_retention_by_bytes_passes_it_over() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.add(0, timestamp=YEAR_2100_MS)
        await world.plant_after(1, 9)
        expirer, _ = await world.start(
            opened, remote_log_retention_ms=DAY_MS, remote_log_retention_bytes=5 * len(batch(0))
        )
        await turns(expirer, 20)
        assert world.log_starts()[-1] == 90
        assert world.headlines() == []

    virtually(life)


@pytest.mark.remedy("local_retention_held_up")
async def test_the_brokers_tier_says_it_too() -> None:
    async with trimming(local_retention_ms=1_000) as world:  # the clock stands at 1,000,000 ms
        await world.planted.add([batch(30, timestamp=YEAR_2100_MS)], tp=TRIMMED)
        await world.planted.add([batch(40, timestamp=1_000)], tp=TRIMMED)
        await world.local.trim(TRIMMED)
        assert world.broker.deletions == 1  # up to the record
        [condition] = world.published_conditions.health.conditions(0.0)
        assert condition.kind == "local_retention_held_up"
        assert (condition.first_offset, condition.last_offset) == (30, 39)
        assert "DeleteRecords below offset 40, sent to a broker" in condition.what
        world.broker.start = 40  # it was sent
        await asyncio.sleep(0.01)
        await world.local.trim(TRIMMED)
        assert world.published_conditions.health.conditions(0.0) == ()
        assert world.broker.deletions == 2
