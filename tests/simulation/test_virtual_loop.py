from __future__ import annotations

import asyncio
import time
from random import Random

import pytest
from virtual_loop import START_S, Deadlock, run_virtual


def test_hours_pass_at_once_and_timers_fire_in_order() -> None:
    async def main() -> list[tuple[float, int]]:
        turns: list[tuple[float, int]] = []

        async def sleeper(number: int) -> None:
            rng = Random(number)
            for _ in range(3):
                await asyncio.sleep(rng.uniform(0, 3600))
                turns.append((asyncio.get_running_loop().time(), number))

        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(sleeper(number))
        return turns

    began = time.monotonic()
    turns = run_virtual(main)
    assert [when for when, _ in turns] == sorted(when for when, _ in turns)
    assert turns[-1][0] - START_S > 3600 > time.monotonic() - began
    assert run_virtual(main) == turns


def test_a_deadlock_raises() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_virtual(main)


def test_a_task_left_behind_is_named() -> None:
    async def main() -> None:
        main.stray = asyncio.create_task(asyncio.sleep(1), name="stray")  # type: ignore[attr-defined]

    with pytest.raises(AssertionError, match="stray"):
        run_virtual(main)


def test_a_timer_does_not_fire_before_its_time() -> None:
    """A caller that waits for the remainder gets there, however small the remainder is."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for left_s in (5e-10, 1e-12, 1.2345678901234, 0.1):
            due_at = loop.time() + left_s
            looks = 0
            while loop.time() < due_at:
                looks += 1
                assert looks < 5
                await asyncio.sleep(due_at - loop.time())

    run_virtual(main)
