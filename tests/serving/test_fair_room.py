"""Large work waits for memory: evenly by client, and what only waits itself ends for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from fetchproxy.runtime.fair_room import FairRoom, NoRoomInTime, PlaceInRoom

FOREVER_S = 3_600.0


class Watched:
    """A room of 100 bytes. `most`: the most bytes that were in use."""

    def __init__(self, idle_min_s: float = 0.0) -> None:
        self.room = FairRoom(0, 100, idle_min_s, self._change)
        self.in_use = self.most = 0

    def _change(self, by: int) -> None:
        self.in_use += by
        self.most = max(self.most, self.in_use)
        assert self.in_use >= 0

    def place(self, size: int, client: Hashable = "one", wait_s: float = FOREVER_S):  # type: ignore[no-untyped-def]
        return self.room.place(client, size, wait_s)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_does_not_fit_waits_and_all_get_their_turn() -> None:
    watched, done = Watched(), []

    async def work(name: int) -> None:
        async with watched.place(40):
            await turns()
            done.append(name)

    await asyncio.gather(*(work(name) for name in range(7)))
    assert done == list(range(7))
    assert watched.most == 80
    assert not watched.in_use
    assert not watched.room.waiting


async def test_one_alone_always_fits() -> None:
    watched = Watched()
    async with watched.place(1_000):
        assert watched.in_use == 100
    assert not watched.in_use


async def test_the_room_s_own_bytes_are_nobody_else_s() -> None:
    shared: list[int] = []
    room = FairRoom(50, 100, 0.0, shared.append)
    async with room.place("one", 40, FOREVER_S):
        assert not shared
        async with room.place("one", 30, FOREVER_S):
            assert shared == [20]
            assert room.bytes_in_use == 70
    assert shared == [20, -20]
    async with room.place("one", 1_000, FOREVER_S):
        assert room.bytes_in_use == 150


async def test_clients_take_turns() -> None:
    watched, done = Watched(), []

    async def work(client: str) -> None:
        async with watched.place(100, client):
            await turns()
            done.append(client)

    async with asyncio.TaskGroup() as tasks, watched.place(100, "first"):
        for client in ["many"] * 5 + ["one"]:
            tasks.create_task(work(client))
        await turns()
    assert done.index("one") <= 1


async def test_who_waits_too_long_is_refused_and_leaves_the_queue() -> None:
    watched = Watched()
    async with watched.place(100):
        with pytest.raises(NoRoomInTime):
            async with watched.place(10, wait_s=0.001):
                raise AssertionError
        assert not watched.room.waiting
        assert watched.in_use == 100
    assert not watched.in_use


async def test_who_is_cancelled_while_it_waits_leaves_the_queue() -> None:
    watched = Watched()

    async def work() -> None:
        async with watched.place(60):
            await asyncio.sleep(FOREVER_S)

    async with watched.place(60):
        waits = asyncio.create_task(work())
        await turns()
        assert watched.room.waiting == 1
        waits.cancel()
        await asyncio.wait([waits])
        assert not watched.room.waiting
    # Cancelled in the step in which it gets its memory.
    async with watched.place(60):
        waits = asyncio.create_task(work())
        await turns()
    waits.cancel()
    await asyncio.wait([waits])
    assert not watched.in_use


@asynccontextmanager
async def idle_places(watched: Watched, count: int) -> AsyncIterator[list[PlaceInRoom]]:
    """Each of 50 bytes; their work waits for ever."""
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        places: list[PlaceInRoom] = []

        async def wait() -> None:
            async with watched.place(50) as place:
                places.append(place)
                await place.idle(asyncio.Event().wait())  # type: ignore[arg-type]

        started = []
        for _ in range(count):
            started.append(tasks.create_task(wait()))
            await turns()
        stack.callback(lambda: [task.cancel() for task in started])
        yield places
        for task in started:
            task.cancel()


async def test_the_longest_wait_ends_for_what_needs_its_memory_and_no_other() -> None:
    watched = Watched()
    async with idle_places(watched, 2) as places:
        async with asyncio.timeout(20), watched.place(50):
            pass
        assert [place.pressed for place in places] == [True, False]
        async with asyncio.timeout(20), watched.place(100):
            pass
        assert [place.pressed for place in places] == [True, True]


async def test_a_wait_may_last_for_a_while_whoever_waits_for_its_memory() -> None:
    watched, loop = Watched(idle_min_s=0.05), asyncio.get_running_loop()
    async with idle_places(watched, 2):
        began_at = loop.time()
        async with asyncio.timeout(20), watched.place(100):
            assert loop.time() - began_at >= 0.04


async def test_work_that_is_pressed_does_not_wait_again() -> None:
    watched = Watched()
    async with watched.place(100) as place:
        asyncio.get_running_loop().call_soon(place.press)
        await place.idle(asyncio.sleep(FOREVER_S))
        await place.idle(asyncio.sleep(FOREVER_S))
        assert place.pressed
