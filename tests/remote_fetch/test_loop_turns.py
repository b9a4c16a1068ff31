"""Steps of archived work, and what comes between them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from fetchproxy.remote_fetch.loop_turns import LoopTurns


async def test_who_is_alone_does_not_wait() -> None:
    turns = LoopTurns()
    for _ in range(3):
        waiting = asyncio.ensure_future(turns.next())
        await asyncio.sleep(0)
        assert waiting.done()
        await asyncio.sleep(0)


async def test_between_two_steps_the_loop_does_what_else_is_ready() -> None:
    turns, steps, seen = LoopTurns(), [], []
    clients, each = 16, 5

    async def replay(number: int) -> None:
        for _ in range(each):
            await turns.next()
            steps.append(number)

    async with asyncio.TaskGroup() as tasks:
        replaying = [tasks.create_task(replay(number)) for number in range(clients)]
        while not all(task.done() for task in replaying):
            seen.append(len(steps))
            await asyncio.sleep(0)
    assert len(steps) == clients * each
    grown = [after - before for before, after in pairwise(seen)]
    assert max(grown) == 1
    # In turn: the one that found nobody has one step more than the others, at most.
    for at in range(len(steps)):
        counts = [steps[:at].count(number) for number in range(clients)]
        assert max(counts) - min(counts) <= 2


async def test_one_that_gives_up_keeps_nobody_waiting() -> None:
    turns, done = LoopTurns(), []

    async def step(number: int) -> None:
        await turns.next()
        done.append(number)

    async with asyncio.TaskGroup() as tasks:
        made = [tasks.create_task(step(number)) for number in range(6)]
        await asyncio.sleep(0)
        made[1].cancel()  # waits
        await asyncio.sleep(0)
        made[2].cancel()  # has its turn, and has not run since
    assert done == [0, 3, 4, 5]
