"""One step in each turn of the event loop while the tail is read; otherwise no reader waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from virtual_loop import VirtualTimeLoop, run_virtual

from fetchproxy.runtime.cooperative import LoopSteps

READERS = 5


def run_counted(main: Callable[[VirtualTimeLoop], Coroutine[None, None, None]]) -> None:
    async def whole() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        await main(loop)

    run_virtual(whole)


async def turns_of_readers(loop: VirtualTimeLoop, steps: LoopSteps, each: int) -> list[list[int]]:
    """For each reader, the turns of the loop in which it took its `each` steps."""
    turns_by_reader: list[list[int]] = [[] for _ in range(READERS)]

    async def read(number: int) -> None:
        await steps.begin()
        turns_by_reader[number].append(loop.turns)
        while len(turns_by_reader[number]) < each:
            await steps.go_on()
            turns_by_reader[number].append(loop.turns)

    async with asyncio.TaskGroup() as group:
        for number in range(READERS):
            group.create_task(read(number))
    return turns_by_reader


def test_one_step_a_turn_while_the_tail_is_read_and_everybody_in_turn() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        steps = LoopSteps()
        steps.tail_is_read(0.5)
        turns_by_reader = await turns_of_readers(loop, steps, 4)
        all_turns = sorted(turn for turns in turns_by_reader for turn in turns)
        assert len(set(all_turns)) == 4 * READERS
        # No turn is left out: the archive uses all the time that other work leaves.
        assert all_turns[-1] - all_turns[0] == 4 * READERS - 1
        firsts, seconds = (sorted(turns[number] for turns in turns_by_reader) for number in (0, 1))
        assert firsts[-1] < seconds[0]

    run_counted(main)


def test_nobody_waits_while_no_tail_is_read() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        steps = LoopSteps()
        turns_by_reader = await turns_of_readers(loop, steps, 2)
        assert len({turns[0] for turns in turns_by_reader}) == 1
        assert len({turns[1] for turns in turns_by_reader}) == 1
        assert all(
            turns[1] == turns[0] + 1 for turns in turns_by_reader
        )  # other work runs between the steps

    run_counted(main)


def test_the_tail_is_read_for_its_wait_and_a_second() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        for wait_s, until_s in ((0.5, 1.5), (1e6, 31.0)):
            steps = LoopSteps()
            steps.tail_is_read(wait_s)
            steps.tail_is_read(0.0)  # a second reader with a shorter wait
            await asyncio.sleep(until_s - 0.01)
            turns_by_reader = await turns_of_readers(loop, steps, 1)
            assert len({turns[0] for turns in turns_by_reader}) == READERS
            await asyncio.sleep(0.02)
            turns_by_reader = await turns_of_readers(loop, steps, 1)
            assert len({turns[0] for turns in turns_by_reader}) == 1

    run_counted(main)


def test_who_is_cancelled_gives_way() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        steps = LoopSteps()
        steps.tail_is_read(0.5)
        order: list[int] = []

        async def read(number: int) -> None:
            await steps.begin()
            order.append(number)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(number)) for number in range(READERS)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            tasks[3].cancel()
        assert order == [1, 2, 4]
        async with asyncio.timeout(1.0):  # the turn of a cancelled reader is free again
            await steps.begin()

    run_counted(main)
