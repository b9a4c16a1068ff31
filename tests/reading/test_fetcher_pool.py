from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest
from virtual_loop import run_virtual

from fetchproxy.config.schema import MiB, RemoteFetchConfig
from fetchproxy.errors import (
    CorruptSegment,
    KeyServiceUnavailable,
    ObjectNotFound,
    RangeNotSatisfiable,
    ReadCrashed,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
)
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Health, Kind
from fetchproxy.reading.fetcher_pool import FetcherPool, Load
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.runtime.retrying import RESTART_PAUSE_MAX_S
from fetchproxy.storage.store_health import OperationHealth, OperationStatus, StoreOperation
from lab.limited import section_and_limits

TP = TopicIdPartition(UUID(int=1), "t", 0)


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(slots=True)
class Work:
    """Attempts that fail as scripted, then succeed; `at`: their start times."""

    script: list[Exception | float] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    running: int = 0
    running_max: int = 0
    corrupt: list[CorruptSegment] = field(default_factory=list)

    async def attempt(self) -> None:
        self.at.append(now())
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            step = self.script.pop(0) if self.script else 0.0
            if isinstance(step, Exception):
                raise step
            await asyncio.sleep(step)
        finally:
            self.running -= 1

    def load(
        self, needed_until: float, key: str = "k", size_bytes: int = 1, ahead: bool = False
    ) -> Load:
        return Load(
            key, key, TP, size_bytes, self.attempt, self.corrupt.append, needed_until, ahead
        )


@asynccontextmanager
async def pool(**options: object) -> AsyncIterator[FetcherPool]:
    config, limits = section_and_limits(
        RemoteFetchConfig, ReadingLimits, backoff_jitter=0, **options
    )
    health = OperationHealth(StoreOperation.READ)
    async with asyncio.TaskGroup() as tasks:
        yield FetcherPool(config, tasks, Random(1), health, limits)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    run_virtual(main)


@pytest.mark.parametrize("error", [StorageUnavailable, StorageThrottled, StorageDenied])
def test_retries_with_growing_pauses(error: type[Exception]) -> None:
    async def test() -> None:
        work = Work([error("x") for _ in range(4)])
        async with pool(backoff_initial_ms=100, backoff_max_ms=300) as fetchers:
            load = fetchers.load(work.load(now() + 100))
            await load.done.wait()
        assert load.error is None
        pauses = [b - a for a, b in zip(work.at, work.at[1:], strict=False)]
        assert pauses == pytest.approx([0.1, 0.2, 0.3, 0.3])
        assert (load.failures, load.failing_since) == (0, None)

    run(test)


def test_gives_up_when_nobody_wants_it_any_more() -> None:
    async def test() -> None:
        work = Work([StorageUnavailable("x") for _ in range(1000)])
        async with pool(backoff_initial_ms=100, backoff_max_ms=100) as fetchers:
            load = fetchers.load(work.load(now() + 1.05))
            await asyncio.sleep(1)
            fetchers.touch(load, now() + 1.05)
            await load.done.wait()
        assert isinstance(load.error, StorageUnavailable)
        assert work.at[-1] - work.at[0] == pytest.approx(2.1)

    run(test)


def test_a_hanging_store_ends_each_attempt() -> None:
    async def test() -> None:
        work = Work([1e9, 1e9])
        async with pool(chunk_read_max_ms=3_000, backoff_initial_ms=100) as fetchers:
            load = fetchers.load(work.load(now() + 60))
            await load.done.wait()
        assert load.error is None
        assert [t - work.at[0] for t in work.at] == pytest.approx([0, 3.1, 6.3])

    run(test)


def test_an_attempt_under_way_is_not_given_up() -> None:
    async def test() -> None:
        async with pool() as fetchers:
            load = fetchers.load(Work([20.0]).load(now() + 1))
            await load.done.wait()
        assert load.error is None

    run(test)


def test_single_flight_by_key() -> None:
    async def test() -> None:
        work, other = Work([1.0]), Work([1.0])
        async with pool() as fetchers:
            loads = [fetchers.load(work.load(now() + 5)) for _ in range(5)]
            assert len(set(loads)) == 1
            assert fetchers.load(other.load(now() + 5, "other")) is not loads[0]
            await loads[0].done.wait()
            assert not fetchers.is_loading("k")
            await fetchers.load(work.load(now() + 5)).done.wait()
        assert (len(work.at), work.running_max, len(other.at)) == (2, 1, 1)

    run(test)


def test_places_are_bounded_and_not_held_during_pauses() -> None:
    async def test() -> None:
        works = [Work([StorageUnavailable("x"), 1.0]) for _ in range(6)]
        async with pool(fetcher_tasks_max=2, backoff_initial_ms=1_000) as fetchers:
            for n, work in enumerate(works):
                fetchers.load(work.load(now() + 60, str(n)))
            most = 0
            while fetchers._loads:
                most = max(most, sum(work.running for work in works))
                assert fetchers.budget.tasks_taken <= 2
                await asyncio.sleep(0.1)
        assert most == 2
        # All six failed before the first pause was over.
        assert max(work.at[0] for work in works) < min(work.at[1] for work in works)
        assert (fetchers.budget.tasks_taken, fetchers.budget.bytes_taken) == (0, 0)

    run(test)


def test_bytes_are_reserved_before_reading() -> None:
    async def test() -> None:
        works = [Work([1.0]) for _ in range(5)]
        async with pool(inflight_bytes_max=MiB) as fetchers:
            for n, work in enumerate(works):
                fetchers.load(work.load(now() + 60, str(n), 400 * 1024))
            while fetchers._loads:
                assert sum(work.running for work in works) <= 2
                await asyncio.sleep(0.1)

    run(test)


@pytest.mark.parametrize("error", [CorruptSegment, RangeNotSatisfiable])
def test_corrupt_bytes_are_read_once_more(error: type[Exception]) -> None:
    async def test() -> None:
        damaged_on_the_way = Work([error("x")])
        damaged = Work([error("x"), error("x"), error("x")])
        async with pool() as fetchers:
            first = fetchers.load(damaged_on_the_way.load(now() + 60, "a"))
            second = fetchers.load(damaged.load(now() + 60, "b"))
            await first.done.wait()
            await second.done.wait()
        assert (first.error, len(damaged_on_the_way.at)) == (None, 2)
        assert damaged_on_the_way.corrupt == []
        assert len(damaged.at) == 2
        assert isinstance(second.error, CorruptSegment)
        assert damaged.corrupt == [second.error]

    run(test)


def test_an_absent_object_is_settled() -> None:
    async def test() -> None:
        work = Work([ObjectNotFound("x")])
        async with pool() as fetchers:
            load = fetchers.load(work.load(now() + 60))
            await load.done.wait()
        assert isinstance(load.error, ObjectNotFound)
        assert len(work.at) == 1

    run(test)


def test_a_bug_in_one_read_is_logged_retried_and_harms_no_other() -> None:
    async def test() -> None:
        work, other = Work([ZeroDivisionError("bug")]), Work()
        async with pool() as fetchers:
            load = fetchers.load(work.load(now() + 60, "a"))
            await fetchers.load(other.load(now() + 60, "b")).done.wait()
            await load.done.wait()
        assert load.error is None
        assert len(work.at) == 2

    run(test)


def test_a_bug_is_a_part_that_fails_and_no_outage_of_the_store() -> None:
    async def test() -> None:
        health = Health()
        store = OperationHealth(StoreOperation.READ, health)
        work = Work([ZeroDivisionError("bug")] * 1_000)
        async with asyncio.TaskGroup() as tasks:
            fetchers = FetcherPool(RemoteFetchConfig(), tasks, Random(1), store)
            load = fetchers.load(work.load(now() + 60))
            await load.done.wait()
        assert isinstance(load.error, ReadCrashed)
        (condition,) = health.conditions(now())
        assert condition.kind is Kind.PART_FAILED
        assert "ZeroDivisionError('bug')" in condition.what
        assert store.status(now()) == OperationStatus(None, 0.0, None)
        await asyncio.sleep(RESTART_PAUSE_MAX_S)
        assert not health.conditions(now())

    run(test)


def test_reading_ahead_becomes_asked_for_and_is_counted_until_then() -> None:
    async def test() -> None:
        works = [Work([1.0]) for _ in range(3)]
        async with pool(fetcher_tasks_max=2) as fetchers:
            loads = [
                fetchers.load(work.load(now() + 60, str(n), 10, ahead=True))
                for n, work in enumerate(works)
            ]
            assert fetchers.ahead_bytes == 30
            await asyncio.sleep(0.1)
            assert [work.running for work in works] == [1, 0, 0]
            assert fetchers.load(works[2].load(now() + 60, "2", 10)) is loads[2]
            assert fetchers.ahead_bytes == 20
            assert fetchers.is_ahead("1")
            assert not fetchers.is_ahead("2")
            await asyncio.sleep(0.1)
            assert [work.running for work in works] == [1, 0, 1]
        assert fetchers.ahead_bytes == 0

    run(test)


@pytest.mark.parametrize("turns", range(8))
def test_cancelled_at_any_turn_it_gives_everything_back(turns: int) -> None:
    async def test() -> None:
        async with pool(fetcher_tasks_max=1) as fetchers:
            works = [Work([StorageUnavailable("x"), 1.0]) for _ in range(3)]
            loads = [
                fetchers.load(work.load(now() + 60, str(n), 5, ahead=n > 0))
                for n, work in enumerate(works)
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            fetchers.cancel_all()
        for load in loads:
            assert load.done.is_set()
            assert isinstance(load.error, StorageUnavailable)
        assert not fetchers._loads
        assert fetchers.ahead_bytes == 0
        budget = fetchers.budget
        assert (budget.tasks_taken, budget.bytes_taken, budget.waiting) == (0, 0, 0)

    run(test)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_load_ends_with_the_last_that_waits_for_it(ahead: bool) -> None:
    async def test() -> None:
        async with pool() as fetchers:
            work = Work([1e9])
            load = fetchers.load(work.load(now() + 60, size_bytes=5, ahead=ahead))
            assert fetchers.load(work.load(now() + 60)) is load
            waiting = [asyncio.create_task(fetchers.wait(load)) for _ in range(2)]
            await asyncio.sleep(1)
            waiting[0].cancel()
            await asyncio.sleep(1)
            assert (work.running, load.done.is_set()) == (1, False)
            waiting[1].cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            again = Work([1.0])
            load = fetchers.load(again.load(now() + 60))
            await fetchers.wait(load)
            assert (load.error, len(again.at), work.running) == (None, 1, 0)
        budget = fetchers.budget
        assert (budget.tasks_taken, budget.bytes_taken, fetchers.ahead_bytes) == (0, 0, 0)

    run(test)


@pytest.mark.parametrize("turns", range(8))
def test_who_waits_is_cancelled_at_any_turn(turns: int) -> None:
    async def test() -> None:
        async with pool(fetcher_tasks_max=1) as fetchers:
            fetchers.load(Work([1.0]).load(now() + 60, "other"))
            load = fetchers.load(Work([StorageUnavailable("x"), 1.0]).load(now() + 60))
            waiting = asyncio.create_task(fetchers.wait(load))
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.sleep(0.5)
            # A task that has not begun to wait leaves the load as it is.
            assert fetchers.is_loading("k") == (not turns)
            assert fetchers.is_loading("other")
        assert fetchers.budget.bytes_taken == 0

    run(test)


class Hanging:
    """A segment whose key nobody gives."""

    is_described = is_open = False

    def __init__(self) -> None:
        self.joined: list[Hashable] = []

    async def describe(self) -> None:
        self.is_described = True

    async def unlock(self, client: Hashable) -> None:
        await asyncio.sleep(7)
        raise KeyServiceUnavailable("it does not answer")

    def join(self, client: Hashable) -> None:
        self.joined.append(client)


class Waiting(Hanging):
    async def unlock(self, client: Hashable) -> None:
        await asyncio.Event().wait()


def test_a_long_wait_for_a_key_is_no_failure_of_the_store() -> None:
    async def test() -> None:
        async with pool(chunk_read_max_ms=1_000) as fetchers:
            load = Work().load(now() + 30, "locked")
            load.opening = opening = Waiting()
            fetchers.load(load)
            await asyncio.sleep(5)
            assert load.failures > 1
            assert fetchers._health.failing_since is None
            fetchers.touch(load, now() + 30, client="another")
            assert opening.joined == ["another"]
            fetchers.cancel_all()

    run(test)


def test_a_key_service_that_hangs_holds_no_place_and_is_no_outage_of_the_store() -> None:
    async def test() -> None:
        async with pool(fetcher_tasks_max=2, chunk_read_max_ms=10_000) as fetchers:
            locked = [Work().load(now() + 30, f"locked {number}") for number in range(10)]
            for load in locked:
                load.opening = Hanging()
                fetchers.load(load)
            await asyncio.sleep(1)
            plain = Work([0.5])
            began_at = now()
            await fetchers.load(plain.load(now() + 30, "plain")).done.wait()
            assert now() - began_at == pytest.approx(0.5)
            await asyncio.sleep(20)
            assert fetchers._health.failing_since is None
            fetchers.cancel_all()

    run(test)
