"""Retention that would hide much at once, or by a wrong clock: announced, delayed, reversible."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_archive import TP, batch
from retention_segments import archives, segment
from retention_world import HOUR_MS, World, turns, virtually

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.writing.deletion.expirer import (
    STEP_SHARE_MAX,
    Announcement,
    Expirer,
    hidden_share,
    plan_step,
)
from fetchproxy.writing.deletion.retention import ClockWitness

DAY_MS = 24 * HOUR_MS
GRACE_S = 1_000
STEPS: dict[str, Any] = {
    "retention_step_grace_ms": 1_000 * GRACE_S,
    "retention_check_interval_ms": 10_000,
}
with_both = pytest.mark.parametrize("manager", ["store", "topic"])


def steps(world: World) -> list[str]:
    return [key for key in world.store.objects() if key.endswith("/retention-step")]


async def hides_after_its_grace(world: World, expirer: Expirer, offset: int) -> None:
    """The step below `offset` is announced, and happens after the grace."""
    await turns(expirer, GRACE_S - 50, step_s=10)
    assert world.log_starts() == []
    assert len(world.headlines()) == 1
    await turns(expirer, 100, step_s=10)
    assert world.log_starts() == [offset]
    assert world.headlines() == []


async def planted(world: World, opened: AsyncExitStack, **settings: Any) -> Expirer:
    """Ten segments, an hour apart, and an expirer that announces steps."""
    await world.plant(10)
    return await started(world, opened, **settings)


async def started(world: World, opened: AsyncExitStack, **settings: Any) -> Expirer:
    expirer, _ = await world.start(opened, **settings, **STEPS)
    return expirer


@with_both
def test_an_old_archive_gets_a_retention(manager: str) -> None:
    """Retention applies by itself after the grace; restarts do not restart the grace."""

    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(10)
        for _ in range(9):
            expirer = await started(world, opened, remote_log_retention_ms=3 * HOUR_MS)
            await turns(expirer, 100, step_s=10)
            assert world.log_starts() == []
            assert "below offset 70" in world.headlines()[0]
            assert "70 %" in world.headlines()[0]
            assert world.headlines()[0].startswith("retention_step_announced: orders-0: ")
        assert (await world.planted.verify()).clean
        await turns(expirer, 110, step_s=10)
        assert world.log_starts() == [70]
        assert world.headlines() == []
        assert steps(world) == []
        await turns(expirer, 100)
        assert world.bases() == [70, 80, 90]
        expirer.forget(TP)

    virtually(life, manager)


@with_both
def test_a_mistyped_retention_is_taken_back(manager: str) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(10)
        before = world.store.objects()
        wrong = await started(world, opened, remote_log_retention_ms=HOUR_MS)
        await turns(wrong, 900, step_s=10)
        assert len(steps(world)) == 1
        right = await started(world, opened, remote_log_retention_ms=DAY_MS)
        await turns(right, 20)
        assert world.store.objects() == before
        # Mistyped again much later: the old announcement does not count.
        wrong = await started(world, opened, remote_log_retention_bytes=1)
        await turns(wrong, GRACE_S - 100, step_s=10)
        assert world.log_starts() == []
        assert len(world.headlines()) == 1
        wrong.forget(TP)
        assert world.headlines() == []

    virtually(life, manager)


def test_retention_as_usual_waits_for_nothing() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        expirer = await planted(world, opened, remote_log_retention_ms=5 * HOUR_MS)
        await expirer.expire(TP)
        assert world.log_starts() == [50]
        assert steps(world) == []

    virtually(life)


def test_what_a_person_deletes_waits_for_nothing() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(10)
        expirer, rlmm = await world.start(opened, **STEPS)
        await rlmm.raise_log_start_offset(TP, 100)
        await turns(expirer, 100)
        assert world.bases() == []

    virtually(life)


def test_more_than_was_announced_waits_anew() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(20)
        some = await started(world, opened, remote_log_retention_ms=8 * HOUR_MS)
        await turns(some, GRACE_S - 50, step_s=10)
        all_ = await started(world, opened, remote_log_retention_ms=1)
        await turns(all_, 200, step_s=10)
        assert world.log_starts() == [120]  # the announced offset
        await turns(all_, GRACE_S - 200, step_s=10)
        assert world.log_starts() == [120]
        await turns(all_, 200, step_s=10)
        assert world.log_starts() == [190]

    virtually(life)


def test_what_was_announced_long_ago_is_announced_anew() -> None:
    """No process has looked since, so nobody could take it back."""

    async def life(world: World, opened: AsyncExitStack) -> None:
        expirer = await planted(world, opened, remote_log_retention_ms=HOUR_MS)
        await expirer.expire(TP)
        world.skew_ms = 31_000 * GRACE_S
        expirer = await started(world, opened, remote_log_retention_ms=HOUR_MS)
        await hides_after_its_grace(world, expirer, 90)

    virtually(life)


def test_an_announcement_that_cannot_be_read_is_made_again() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        expirer = await planted(world, opened, remote_log_retention_ms=HOUR_MS)
        await expirer.expire(TP)
        [key] = steps(world)
        await world.store.put(key, b"{")
        expirer = await started(world, opened, remote_log_retention_ms=HOUR_MS)
        await hides_after_its_grace(world, expirer, 90)

    virtually(life)


@pytest.mark.remedy("retention_clock_doubted")
def test_a_clock_forty_days_ahead_hides_nothing_while_records_are_written() -> None:
    """The clock runs evenly, so only the records' own timestamps contradict it."""

    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(10)
        now_ms = world.wall_clock_ms()
        world.skew_ms = 40 * DAY_MS
        expirer = await started(world, opened, remote_log_retention_ms=30 * DAY_MS)
        await turns(expirer, 100, step_s=10)
        await world.add(100, timestamp=now_ms)
        await turns(expirer, 10 * GRACE_S, step_s=10)
        assert world.log_starts() == []
        assert steps(world) == []
        [headline] = world.headlines()
        assert "clock is 9" in headline  # hours: 40 days plus the test's time
        world.skew_ms = 0
        await turns(expirer, 100, step_s=10)
        assert world.headlines() == []
        assert world.log_starts() == []

    virtually(life)


def test_where_nobody_writes_it_is_announced_however_little_it_is() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(10, age_ms=20 * DAY_MS, step_ms=DAY_MS)
        expirer = await started(world, opened, remote_log_retention_ms=27 * DAY_MS)
        await hides_after_its_grace(world, expirer, 30)

    virtually(life)


def test_bytes_do_not_ask_what_time_it_is() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(10)
        world.skew_ms = 400 * DAY_MS
        expirer = await started(world, opened, remote_log_retention_bytes=7 * len(batch(0)))
        await turns(expirer, 20)
        assert world.log_starts() == [30]
        assert world.headlines() == []

    virtually(life)


def test_a_store_that_tells_the_time_is_believed() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        class TellingStore(type(world.store)):  # type: ignore[misc]
            async def clock_ms(self, prefix: str) -> int:
                return world.wall_clock_ms() - world.skew_ms

        world.store.__class__ = TellingStore
        await world.plant(10, age_ms=20 * DAY_MS, step_ms=DAY_MS)
        world.skew_ms = 2 * HOUR_MS
        expirer = await started(world, opened, remote_log_retention_ms=27 * DAY_MS)
        await turns(expirer, 2 * GRACE_S, step_s=10)
        assert world.log_starts() == []
        assert "2 hours ahead of the store's clock" in world.headlines()[0]
        world.skew_ms = 0
        await turns(expirer, 20)
        assert world.log_starts() == [30]  # at once: nothing is in doubt
        assert world.headlines() == []

    virtually(life)


@given(
    archives(),
    st.none() | st.integers(1, 60),
    st.none() | st.builds(Announcement, st.integers(0, 60), st.integers(0, 200)),
    st.integers(0, 200),
    st.booleans(),
)
def test_much_goes_only_after_its_grace(
    archive: Any, start: int | None, before: Announcement | None, now_ms: int, doubtful: bool
) -> None:
    _, view = archive
    step = plan_step(view, start, before, now_ms, 50, doubtful=doubtful)
    if start is None:
        assert step is None
        return
    assert step is not None
    if isinstance(step, Announcement):
        assert step.offset <= start
        return
    assert step <= start
    if doubtful or hidden_share(view, step) > STEP_SHARE_MAX:
        assert before is not None
        assert step <= before.offset
        assert now_ms - before.at_ms >= 50


def test_half_of_a_partition_is_a_step_as_usual_and_a_byte_more_is_announced() -> None:
    halves = build_view(TP, [segment(1, 0, 9), segment(2, 10, 19)], 0.0)
    assert hidden_share(halves, 10) == STEP_SHARE_MAX
    assert plan_step(halves, 10, None, 0, 1) == 10
    more = [segment(1, 0, 9, size=101), segment(2, 10, 19, size=100)]
    assert plan_step(build_view(TP, more, 0.0), 10, None, 0, 1) == Announcement(10, 0)


def test_records_without_timestamps_are_no_witnesses() -> None:
    witness = ClockWitness()
    witness.note(build_view(TP, [segment(1, 0, 9, newest_ms=-1)], 0.0), 10**15)
    assert witness.doubt(10**15, None) is None
    assert witness.doubt(10**15, 10**15 - DAY_MS) is not None
