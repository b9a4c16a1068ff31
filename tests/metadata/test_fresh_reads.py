"""Cases outside the contract of the metadata managers: faults of the program itself."""

from __future__ import annotations

import asyncio

import pytest

from fetchproxy.errors import StorageUnavailable
from fetchproxy.runtime.fresh_reads import FreshReads


async def test_a_bug_in_the_read_is_raised_in_who_waits_and_harms_nobody_else() -> None:
    async def read(key: str, began_at: float) -> str:
        await asyncio.sleep(0)
        if key == "bad":
            raise KeyError("a bug")
        return key

    async with FreshReads(read) as reads:
        now = asyncio.get_running_loop().time()
        with pytest.raises(KeyError, match="a bug"):
            await reads.get("bad", now)
        assert await reads.get("good", now) == "good"
        assert reads.cached("bad") is None
        assert reads.cached("good") == "good"


async def test_without_its_owner_nothing_is_read() -> None:
    async def read(key: str, began_at: float) -> str:
        raise AssertionError("not reached")

    with pytest.raises(StorageUnavailable, match="closed"):
        await FreshReads(read).get("key", 0.0)


async def test_an_error_of_the_owner_passes_through_unwrapped() -> None:
    async def read(key: str, began_at: float) -> str:
        await asyncio.Event().wait()
        return key

    async def wait(reads: FreshReads[str, str]) -> None:
        with pytest.raises(StorageUnavailable, match="closed"):
            await reads.get("key", 0.0)

    async def owner_task(group: asyncio.TaskGroup) -> None:
        async with FreshReads(read) as reads:
            group.create_task(wait(reads))
            while "key" not in reads._running:  # noqa: ASYNC110 - one turn of the loop
                await asyncio.sleep(0)
            raise RuntimeError("the owner's own")

    async with asyncio.TaskGroup() as group:
        with pytest.raises(RuntimeError, match="the owner's own"):
            await owner_task(group)


async def test_keys_do_not_wait_for_each_other() -> None:
    door = asyncio.Event()

    async def read(key: str, began_at: float) -> str:
        if key == "slow":
            await door.wait()
        return key

    async with FreshReads(read) as reads, asyncio.TaskGroup() as group:
        slow = group.create_task(reads.get("slow", 0.0))
        assert await reads.get("quick", 0.0) == "quick"
        assert not slow.done()
        door.set()


async def test_anew_begins_after_the_call_whatever_the_clock_says() -> None:
    begun: list[int] = []
    door = asyncio.Event()

    async def read(key: str, began_at: float) -> int:
        begun.append(len(begun))
        number = begun[-1]
        await door.wait()
        return number

    async with FreshReads(read) as reads, asyncio.TaskGroup() as group:
        early = group.create_task(reads.get("key", 0.0))
        while not begun:  # noqa: ASYNC110 - one turn of the loop
            await asyncio.sleep(0)
        late = [group.create_task(reads.anew("key")) for _ in range(3)]
        await asyncio.sleep(0)
        assert begun == [0]  # never two at a time
        door.set()
        assert await early == 0
        assert [await task for task in late] == [1, 1, 1]  # one read for all earlier callers
        assert await reads.anew("key") == 2
