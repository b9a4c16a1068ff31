from __future__ import annotations

import asyncio
from random import Random

import pytest
from virtual_loop import run_virtual

from fetchproxy.reading.read_budget import SMALL_READ_BYTES_MAX, ReadBudget, Slot

LARGE = SMALL_READ_BYTES_MAX + 1


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def granted(*slots: Slot) -> list[bool]:
    return [slot.is_in_use for slot in slots]


def test_tasks_and_bytes_are_limited_and_the_queue_is_fair() -> None:
    async def main() -> None:
        budget = ReadBudget(tasks_max=2, bytes_max=100)
        async with asyncio.TaskGroup() as group:
            slots = [Slot(size, is_read_ahead=False) for size in (60, 50, 30, 40)]
            for slot in slots:
                group.create_task(budget.acquire(slot))
            await turns()
            # 30 would fit, but 50 asked before it.
            assert granted(*slots) == [True, False, False, False]
            assert (budget.tasks_taken, budget.bytes_taken, budget.waiting) == (1, 60, 3)
            budget.release(slots[0])
            assert granted(*slots) == [True, True, True, False]
            budget.release(slots[1])
            assert granted(*slots)[3]
            for slot in slots[2:]:
                budget.release(slot)
        assert (budget.tasks_taken, budget.bytes_taken, budget.waiting) == (0, 0, 0)

    run_virtual(main)


@pytest.mark.parametrize("size", [100, 101])
def test_a_read_above_the_budget_goes_alone(size: int) -> None:
    async def main() -> None:
        budget = ReadBudget(tasks_max=9, bytes_max=100)
        async with asyncio.TaskGroup() as group:
            small, large, after = Slot(1, False), Slot(size, False), Slot(1, False)
            for slot in (small, large, after):
                group.create_task(budget.acquire(slot))
            await turns()
            assert granted(small, large, after) == [True, False, False]
            budget.release(small)
            assert granted(large, after) == [True, False]
            budget.release(large)
            budget.release(after)

    run_virtual(main)


def test_reads_ahead_come_last_and_take_half_of_the_places() -> None:
    async def main() -> None:
        budget = ReadBudget(tasks_max=4, bytes_max=1000)
        async with asyncio.TaskGroup() as group:
            ahead = [Slot(1, is_read_ahead=True) for _ in range(4)]
            for slot in ahead:
                group.create_task(budget.acquire(slot))
            await turns()
            assert granted(*ahead) == [True, True, False, False]
            waiting_slots = [Slot(1, is_read_ahead=False) for _ in range(3)]
            for slot in waiting_slots:
                group.create_task(budget.acquire(slot))
            await turns()
            assert granted(*waiting_slots) == [True, True, False]
            # A fetch now waits for the last read ahead, which then queues behind the third.
            budget.promote(ahead[3])
            budget.release(waiting_slots[0])
            assert granted(waiting_slots[2], ahead[3], ahead[2]) == [True, False, False]
            budget.release(waiting_slots[1])
            assert granted(ahead[3], ahead[2]) == [True, False]
            # A promoted read that is already running gives its read-ahead place back.
            budget.promote(ahead[0])
            budget.release(waiting_slots[2])
            assert granted(ahead[2]) == [True]
            for slot in ahead:
                budget.release(slot)
        assert (budget.tasks_taken, budget.bytes_taken, budget.waiting) == (0, 0, 0)

    run_virtual(main)


@pytest.mark.parametrize("seed", range(20))
def test_cancelled_at_any_moment_nothing_is_lost(seed: int) -> None:
    async def main() -> None:
        rng = Random(seed)
        budget = ReadBudget(tasks_max=3, bytes_max=50)

        async def reader() -> None:
            slot = Slot(rng.randint(1, 60), is_read_ahead=rng.random() < 0.5)
            await budget.acquire(slot)
            try:
                await asyncio.sleep(rng.choice([0, 0, 1]))
                if rng.random() < 0.3:
                    budget.promote(slot)
                assert budget.tasks_taken <= 3
                assert budget.bytes_taken <= 50 or budget.tasks_taken == 1
            finally:
                budget.release(slot)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(reader()) for _ in range(60)]
            for task in rng.sample(tasks, 40):
                await asyncio.sleep(rng.choice([0, 0, 0, 0.1]))
                task.cancel()
                if rng.random() < 0.5:
                    rng.choice(tasks).cancel()
        assert (budget.tasks_taken, budget.bytes_taken, budget.waiting) == (0, 0, 0)

    run_virtual(main)


def test_small_reads_take_a_part_of_a_place() -> None:
    async def main() -> None:
        budget = ReadBudget(tasks_max=3, bytes_max=9 * LARGE, small_tasks_max=7)
        async with asyncio.TaskGroup() as group:
            small = [Slot(SMALL_READ_BYTES_MAX, is_read_ahead=False) for _ in range(8)]
            large = [Slot(LARGE, is_read_ahead=False) for _ in range(3)]
            for slot in (*small, *large):
                group.create_task(budget.acquire(slot))
            await turns()
            assert granted(*small) == 7 * [True] + [False]
            budget.release(small[0])
            assert granted(*small, *large) == 8 * [True] + 3 * [False]
            # 7 reads take 21 of 21 parts, and a large one takes 7.
            for slot in small[1:3]:
                budget.release(slot)
            assert granted(*large) == 3 * [False], "it keeps its turn until there is room"
            budget.release(small[3])
            assert granted(*large) == [True, False, False]
            for slot in small[4:]:
                budget.release(slot)
            assert granted(*large) == 3 * [True]
            for slot in large:
                budget.release(slot)
        assert (budget.tasks_taken, budget.bytes_taken, budget.waiting) == (0, 0, 0)

    run_virtual(main)


def test_small_reads_ahead_take_half_of_the_places_too() -> None:
    async def main() -> None:
        budget = ReadBudget(tasks_max=4, bytes_max=9 * LARGE, small_tasks_max=16)
        async with asyncio.TaskGroup() as group:
            ahead = [Slot(1, is_read_ahead=True) for _ in range(9)]
            for slot in ahead:
                group.create_task(budget.acquire(slot))
            await turns()
            assert granted(*ahead) == 8 * [True] + [False]
            budget.promote(ahead[0])
            assert granted(ahead[8]) == [True]
            for slot in ahead:
                budget.release(slot)
        assert (budget.tasks_taken, budget.bytes_taken, budget.waiting) == (0, 0, 0)

    run_virtual(main)
