"""A throttling store gets fewer requests, and no caller waits for ever."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from memory_object_store import MemoryObjectStore
from structlog.testing import capture_logs
from virtual_loop import run_virtual

from fetchproxy.errors import StorageThrottled
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.storage.store_health import (
    GROWTH_PER_S,
    OBJECT_FORGOTTEN_AFTER_S,
    PER_S_MIN,
    REFUSED_MIN,
    REFUSED_SHARE_MIN,
    RequestBudget,
    StoreOperation,
)
from fetchproxy.storage.watched_store import WatchedObjectStore


def test_no_limit_before_the_first_refusal() -> None:
    budget = RequestBudget()
    for _ in range(10_000):
        assert budget.wait_s(5.0) == 0.0
        budget.begins(5.0)
    assert budget.per_s(5.0) is None


def refuse(budget: RequestBudget, now: float, number: int = REFUSED_MIN) -> None:
    for _ in range(number):
        budget.refused(now, object())


def test_half_of_what_was_asked_then_slowly_more_then_no_limit() -> None:
    budget = RequestBudget()
    for number in range(400):
        budget.begins(10 + number / 200)
    refuse(budget, 12.0, 40)
    assert budget.per_s(12.0) == 100
    assert budget.per_s(13.0) == pytest.approx(110)
    budget.begins(12.0)
    assert budget.wait_s(12.0) == pytest.approx(0.01)
    assert budget.per_s(12.0 + OBJECT_FORGOTTEN_AFTER_S) is None
    assert budget.wait_s(12.0 + OBJECT_FORGOTTEN_AFTER_S) == 0.0


def test_requests_that_are_refused_together_halve_it_once() -> None:
    budget = RequestBudget()
    for _ in range(200):
        budget.begins(1.5)
    refuse(budget, 1.6, 90)
    assert budget.per_s(1.6) == 100
    refuse(budget, 2.7)  # this halves the present rate, not that before the burst
    assert budget.per_s(2.7) == pytest.approx(100 * GROWTH_PER_S**1.1 / 2)


def test_there_is_a_least() -> None:
    budget = RequestBudget()
    for number in range(100):
        refuse(budget, 2.0 * number)
    assert budget.per_s(198.0) == PER_S_MIN


@pytest.mark.parametrize("per_s", [1, 4, 20, 100, 3000])
def test_two_percent_of_refusals_are_no_limit(per_s: int) -> None:
    budget, random = RequestBudget(), Random(7)
    for number in range(600 * per_s if per_s < 1000 else 30 * per_s):
        now = number / per_s
        budget.begins(now)
        if random.random() < 0.02:
            budget.refused(now, object())
        assert budget.per_s(now) is None


def test_one_name_that_is_refused_again_and_again_is_no_limit() -> None:
    budget = RequestBudget()
    for number in range(100):
        budget.begins(number / 100)
        budget.refused(number / 100, "finished-offsets")
    assert budget.per_s(1.0) is None


def test_the_shares_border() -> None:
    for refused, limited in ((REFUSED_MIN - 1, False), (REFUSED_MIN, True)):
        budget = RequestBudget()
        for _ in range(round(REFUSED_MIN / REFUSED_SHARE_MIN)):
            budget.begins(1.0)
        refuse(budget, 1.0, refused)
        assert (budget.per_s(1.0) is not None) is limited


class BusyStore(MemoryObjectStore):
    """Serves `per_s` reads a second, with one second's worth saved up."""

    def __init__(self, per_s: int) -> None:
        super().__init__()
        self.per_s = self.requests_left = float(per_s)
        self.at = 0.0
        self.taken: list[float] = []
        self.refused: list[float] = []

    async def get(self, key: str, bytes_max: int = 1 << 30) -> bytes:
        now = asyncio.get_running_loop().time()
        self.requests_left = min(self.requests_left + (now - self.at) * self.per_s, self.per_s)
        self.at = now
        await asyncio.sleep(0.02)
        if self.requests_left < 1:
            self.refused.append(now)
            raise StorageThrottled("503 SlowDown")
        self.requests_left -= 1
        self.taken.append(now)
        return await super().get(key, bytes_max)


async def readers_of(store: BusyStore, *, watched: bool, seconds: float) -> None:
    """Run fifty readers that read all the time and wait a little after a refusal."""
    counting_store = WatchedObjectStore(store) if watched else store
    await store.put("k", b"x")

    async def read() -> None:
        while True:
            try:
                await counting_store.get("k")
            except StorageThrottled:
                await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as tasks:
        readers = [tasks.create_task(read()) for _ in range(50)]
        if isinstance(counting_store, WatchedObjectStore):
            readers.append(tasks.create_task(counting_store.health.run()))
        await asyncio.sleep(seconds)
        if isinstance(counting_store, WatchedObjectStore):
            (condition,) = counting_store.health.conditions(asyncio.get_running_loop().time())
            assert condition.kind == "store_throttles"
            assert condition.subject == "read"
        for reader in readers:
            reader.cancel()


def test_fewer_requests_are_refused_and_as_many_are_taken() -> None:
    alone, watched = BusyStore(200), BusyStore(200)
    run_virtual(lambda: readers_of(alone, watched=False, seconds=60))
    run_virtual(lambda: readers_of(watched, watched=True, seconds=60))
    assert len(alone.refused) > 10_000
    assert len(watched.refused) < len(alone.refused) / 20
    assert len(watched.taken) > 0.6 * len(alone.taken)


@pytest.mark.remedy("store_throttles")
def test_it_is_told_and_ends() -> None:
    async def main() -> None:
        store = BusyStore(150)
        watched = WatchedObjectStore(store)
        await store.put("k", b"x")
        clock = asyncio.get_running_loop().time
        results = await asyncio.gather(
            *(watched.get("k") for _ in range(200)), return_exceptions=True
        )
        assert set(results) == {b"x"}, "what was refused was sent again"
        assert store.refused
        watched.health.look(clock())
        labels = {"operation": "read"}
        limit = REGISTRY.get_sample_value("fetchproxy_store_requests_per_s_max", labels)
        assert limit is not None
        assert 100 <= limit < 120, "half of the requests, and some growth since then"
        await asyncio.sleep(0.5)  # room again
        begun = clock()
        await asyncio.gather(*(watched.get("k") for _ in range(50)))
        assert clock() - begun > 0.3
        await asyncio.sleep(OBJECT_FORGOTTEN_AFTER_S)
        with capture_logs() as logs:
            watched.health.look(clock())
        assert [entry["event"] for entry in logs] == ["store_throttles_no_more"]
        assert REGISTRY.get_sample_value("fetchproxy_store_requests_per_s_max", labels) == 0

    run_virtual(main)


def test_one_who_leaves_does_not_take_anybodys_turn() -> None:
    async def main() -> None:
        store = BusyStore(1000)
        watched = WatchedObjectStore(store)
        await store.put("k", b"x")
        refuse(watched.health[StoreOperation.READ]._budget, asyncio.get_running_loop().time())
        await watched.get("k")
        leaving = [asyncio.ensure_future(watched.get("k")) for _ in range(100)]
        await asyncio.sleep(0.1)
        for reader in leaving:
            reader.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        begun = asyncio.get_running_loop().time()
        await watched.get("k")
        assert asyncio.get_running_loop().time() - begun < 0.5

    run_virtual(main)
