"""Work on as many items as a client names begins, ends and is cancelled in steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from fetchproxy.runtime.batcher import Batcher, OnResult
from fetchproxy.runtime.cooperative import ITEMS_AT_ONCE, cooperative, for_each, side_by_side

ITEMS = 20 * ITEMS_AT_ONCE
BEGUN_AT_ONCE = 20


class Turns:
    """Counts turns of the loop, and what happens in each."""

    def __init__(self) -> None:
        self.number = 0
        self.events: Counter[int] = Counter()

    def note(self) -> None:
        self.events[self.number] += 1

    @property
    def most(self) -> int:
        return max(self.events.values())


@asynccontextmanager
async def counted_turns() -> AsyncIterator[Turns]:
    turns, loop = Turns(), asyncio.get_running_loop()

    def turn() -> None:
        turns.number += 1
        nonlocal handle
        handle = loop.call_soon(turn)

    handle = loop.call_soon(turn)
    yield turns
    handle.cancel()


async def until_cancelled(turns: Turns) -> None:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        turns.note()
        raise


async def test_items_worked_on_side_by_side_begin_in_steps() -> None:
    async with counted_turns() as turns:

        async def work(item: int) -> None:
            turns.note()

        await side_by_side(range(ITEMS), work, BEGUN_AT_ONCE)
    assert sum(turns.events.values()) == ITEMS
    assert turns.most == BEGUN_AT_ONCE


@pytest.mark.parametrize("cancelled", [1, 2])
async def test_their_caller_is_cancelled_and_they_end(cancelled: int) -> None:
    """The second cancellation is impatient: all that are left end at once."""
    async with counted_turns() as turns:
        all_wait = asyncio.Event()

        async def work(item: int) -> None:
            if item == ITEMS - 1:
                all_wait.set()
            await until_cancelled(turns)

        async with asyncio.TaskGroup() as group:
            caller = group.create_task(side_by_side(range(ITEMS), work, BEGUN_AT_ONCE))
            await all_wait.wait()
            for _ in range(cancelled):
                caller.cancel()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        assert caller.cancelled()
    assert sum(turns.events.values()) == ITEMS
    assert (turns.most <= ITEMS_AT_ONCE) == (cancelled == 1)


async def test_an_error_of_one_ends_all() -> None:
    async def work(item: int) -> None:
        if item == BEGUN_AT_ONCE:
            raise ValueError(item)
        await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as raised:
        await side_by_side(range(ITEMS), work, BEGUN_AT_ONCE)
    assert [type(error) for error in raised.value.exceptions] == [ValueError]


async def test_work_that_never_waits_gives_others_their_turn() -> None:
    async with counted_turns() as turns:

        async def work(item: int) -> None:
            turns.note()

        await for_each(range(ITEMS), work, 3)
    assert sum(turns.events.values()) == ITEMS
    assert turns.most <= 3 * ITEMS_AT_ONCE


async def test_callers_whose_common_call_ends_begin_anew_in_steps() -> None:
    called = asyncio.Event()

    class Key(int):
        """A caller that begins anew looks its key up."""

        def __hash__(self) -> int:
            turns.note()
            return int(self)

    async def work(keys: Collection[Key], tell: OnResult[Key, int]) -> None:
        if not called.is_set():
            called.set()
            await asyncio.Event().wait()
        async for key in cooperative(keys):
            tell(key, key)

    batcher = Batcher[Key, int](work)
    async with counted_turns() as turns, asyncio.TaskGroup() as group:
        first = group.create_task(batcher.ask(Key(ITEMS)))
        others = [group.create_task(batcher.ask(Key(number))) for number in range(ITEMS)]
        await called.wait()
        turns.events.clear()
        first.cancel()
    assert [other.result() for other in others] == list(range(ITEMS))
    # Each looks for a common call, and joins it.
    assert turns.most <= 3 * ITEMS_AT_ONCE
