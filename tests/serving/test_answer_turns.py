from __future__ import annotations

import asyncio
from random import Random

import pytest
from virtual_loop import run_virtual

from fetchproxy.reading.read_budget import COST_BYTES_MIN
from fetchproxy.serving.admission import ResponseTurns

TURN_MAX_S = 0.5
FOREVER = 1e9
MiB = 1 << 20


def test_so_many_at_once_and_then_the_one_that_was_given_least() -> None:
    async def main() -> None:
        turns = ResponseTurns(2, TURN_MAX_S)
        order: list[int] = []

        async def replay(number: int, size_mib: int) -> None:
            for _ in range(6):
                await turns.take(number, size_mib * MiB, FOREVER)
                order.append(number)
                assert len(turns._turn_begun_at) <= 2
                await asyncio.sleep(0.1)
                turns.give_back(number)

        async with asyncio.TaskGroup() as group:
            for number in range(5):
                # The last one asks for three times as much, so it gets a third of the turns.
                group.create_task(replay(number, 3 if number == 4 else 1))
        assert all(order[:15].count(number) in (3, 4) for number in range(4))
        assert order[:15].count(4) in (1, 2)
        assert (len(turns._turn_begun_at), len(turns._queue)) == (0, 0)

    run_virtual(main)


def test_who_asks_for_next_to_nothing_has_no_more_turns_for_it() -> None:
    """The first batch comes whole whatever size was asked for; a hostile client asks for -1."""

    async def main() -> None:
        turns = ResponseTurns(1, TURN_MAX_S)
        order: list[int] = []

        async def replay(number: int, size_bytes: int) -> None:
            turn = object()
            for _ in range(6):
                await turns.take(turn, size_bytes, FOREVER)
                order.append(number)
                await asyncio.sleep(0.1)
                turns.give_back(turn)

        async with asyncio.TaskGroup() as group:
            for number, size_bytes in enumerate((-MiB, 1, COST_BYTES_MIN)):
                group.create_task(replay(number, size_bytes))
        assert all(order[:9].count(number) == 3 for number in range(3)), order

    run_virtual(main)


def test_a_slow_answer_keeps_nobody_waiting_for_longer_than_a_turn() -> None:
    async def main() -> None:
        turns = ResponseTurns(1, TURN_MAX_S)
        slow, other = "slow", "other"
        loop = asyncio.get_running_loop()
        began = loop.time()
        await turns.take(slow, 1, FOREVER)
        await turns.take(other, 1, FOREVER)
        assert loop.time() - began == pytest.approx(TURN_MAX_S)
        turns.give_back(slow)  # it no longer has a turn
        assert len(turns._turn_begun_at) == 1
        turns.give_back(other)
        assert len(turns._turn_begun_at) == 0

    run_virtual(main)


def test_at_its_deadline_a_fetch_goes_on_without_a_turn() -> None:
    async def main() -> None:
        turns = ResponseTurns(1, TURN_MAX_S)
        first, late, never = "first", "late", "never"
        loop = asyncio.get_running_loop()
        began = loop.time()
        await turns.take(first, 1, FOREVER)
        await turns.take(never, 1, began)
        assert loop.time() == began
        await turns.take(late, 1, began + 0.2)
        assert loop.time() - began == pytest.approx(0.2)
        assert (len(turns._turn_begun_at), len(turns._queue)) == (1, 0)
        for turn in (never, late, first):
            turns.give_back(turn)
        assert len(turns._turn_begun_at) == 0

    run_virtual(main)


@pytest.mark.parametrize("seed", range(20))
def test_cancelled_at_any_moment_no_turn_is_lost(seed: int) -> None:
    async def main() -> None:
        rng = Random(seed)
        turns = ResponseTurns(3, TURN_MAX_S)
        loop = asyncio.get_running_loop()

        async def session() -> None:
            turn = object()
            for _ in range(rng.randint(1, 4)):
                try:
                    await turns.take(turn, rng.randint(0, 9), loop.time() + rng.choice([0, 0.2, 5]))
                    assert len(turns._turn_begun_at) <= 3
                    await asyncio.sleep(rng.choice([0, 0.1, 1]))
                    if rng.random() < 0.3:
                        turns.give_back(turn)
                        await asyncio.sleep(0.1)
                finally:
                    turns.give_back(turn)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(session()) for _ in range(60)]
            for task in rng.sample(tasks, 40):
                await asyncio.sleep(rng.choice([0, 0, 0, 0.1]))
                task.cancel()
        assert (len(turns._turn_begun_at), len(turns._queue)) == (0, 0)

    run_virtual(main)
