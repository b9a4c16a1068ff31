"""One piece of work per key, whoever of its callers leaves."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from weakref import WeakSet

import pytest

from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.runtime.batcher import Batcher
from fetchproxy.runtime.fresh_reads import FreshReads
from fetchproxy.runtime.single_flight import SingleFlight
from fetchproxy.runtime.waits import first_success


class Work:
    def __init__(self) -> None:
        self.begun = 0
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> int:
        self.begun += 1
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return self.begun


async def test_callers_share_one_value() -> None:
    single_flights, work = SingleFlight[int](), Work()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(single_flights.run("k", work)) for _ in range(5)]
        other = group.create_task(single_flights.run("other", work))
        await asyncio.sleep(0)
        work.go.set()
    assert [task.result() for task in tasks] == [2] * 5
    assert other.result() == 2
    assert work.begun == 2
    assert await single_flights.run("k", work) == 3  # nothing is kept


async def test_callers_share_one_error() -> None:
    single_flights, work = SingleFlight[int](), Work()
    work.error = ValueError("no")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wanting(single_flights, work)) for _ in range(3)]
        await asyncio.sleep(0)
        work.go.set()
    assert [task.result() for task in tasks] == ["no"] * 3
    assert work.begun == 1


Wait = Callable[[], Awaitable[object]]


@asynccontextmanager
async def single_flight() -> AsyncIterator[Wait]:
    async def work() -> int:
        await asyncio.sleep(0.01)
        raise ClusterUnavailable("no")

    yield partial(SingleFlight[int]().run, "k", work)


@asynccontextmanager
async def fresh_reads() -> AsyncIterator[Wait]:
    async with failing_reads() as reads:
        yield partial(reads.get, "k", float("-inf"))


@asynccontextmanager
async def reads_anew() -> AsyncIterator[Wait]:
    async with failing_reads() as reads:
        yield partial(reads.anew, "k")


def failing_reads() -> FreshReads[str, int]:
    async def read(key: str, began_at: float) -> int:
        await asyncio.sleep(0.01)
        raise ClusterUnavailable("no")

    return FreshReads(read)


@asynccontextmanager
async def accumulating() -> AsyncIterator[Wait]:
    async def work(keys: Collection[str], tell: Callable[[str, ClusterError], None]) -> None:
        await asyncio.sleep(0.01)
        for key in keys:
            tell(key, ClusterUnavailable("no"))

    yield partial(Batcher[str, int](work).ask, "k")


@pytest.mark.parametrize("shared", [single_flight, fresh_reads, reads_anew, accumulating])
async def test_who_waited_for_a_failure_is_freed_without_a_collection_of_garbage(
    shared: Callable[[], AbstractAsyncContextManager[Wait]],
) -> None:
    class TrackedObject:
        """What a waiting caller knows."""

    alive: WeakSet[TrackedObject] = WeakSet()

    async def caller(wait: Wait) -> None:
        kept_object = TrackedObject()
        alive.add(kept_object)
        with contextlib.suppress(ClusterError):
            await wait()

    gc.disable()
    try:
        async with shared() as wait, asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(caller(wait))
        assert not alive
    finally:
        gc.enable()


async def wanting(single_flights: SingleFlight[int], work: Work) -> str:
    with pytest.raises(ValueError, match="no") as raised:
        await single_flights.run("k", work)
    return str(raised.value)


async def test_a_cancelled_leader_hands_over() -> None:
    single_flights, work = SingleFlight[int](), Work()
    async with asyncio.TaskGroup() as group:
        leader = group.create_task(single_flights.run("k", work))
        await asyncio.sleep(0)
        others = [group.create_task(single_flights.run("k", work)) for _ in range(3)]
        await asyncio.sleep(0)
        leader.cancel()
        for _ in range(10):  # turns of the loop: the leader goes, one takes over, two join it
            await asyncio.sleep(0)
        work.go.set()
    assert [task.result() for task in others] == [2] * 3
    assert work.begun == 2


async def test_a_cancelled_waiter_leaves_the_others_alone() -> None:
    single_flights, work = SingleFlight[int](), Work()
    async with asyncio.TaskGroup() as group:
        leader = group.create_task(single_flights.run("k", work))
        await asyncio.sleep(0)
        waiter = group.create_task(single_flights.run("k", work))
        stays = group.create_task(single_flights.run("k", work))
        await asyncio.sleep(0)
        waiter.cancel()
        await asyncio.sleep(0)
        work.go.set()
    assert waiter.cancelled()
    assert leader.result() == stays.result() == 1


async def test_the_next_try_begins_when_one_fails_or_takes_long() -> None:
    begun: list[str] = []

    async def hang() -> str:
        begun.append("hang")
        await asyncio.Event().wait()
        return ""

    async def fail() -> str:
        begun.append("fail")
        raise OSError("refused")

    async def response() -> str:
        begun.append("answer")
        return "here"

    assert await first_success([response, hang], 60.0, OSError) == "here"
    assert await first_success([fail, hang, response], 0.01, OSError) == "here"
    assert begun == ["answer", "fail", "hang", "answer"]


async def test_the_last_failure_is_raised_and_another_error_at_once() -> None:
    async def fail(error: Exception) -> str:
        raise error

    tries = [partial(fail, OSError(str(number))) for number in range(3)]
    with pytest.raises(OSError, match="2"):
        await first_success(tries, 60.0, OSError)
    with pytest.raises(KeyError):
        await first_success([tries[0], partial(fail, KeyError("bug")), tries[1]], 60.0, OSError)
