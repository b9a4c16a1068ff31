"""A failed request is sent again, as often and as late as named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count, pairwise
from random import Random
from typing import TypeVar

import pytest
from memory_object_store import MemoryObjectStore
from virtual_loop import run_virtual

from fetchproxy.errors import (
    ObjectNotFound,
    RemoteStorageError,
    StorageDenied,
    StorageThrottled,
    StorageUnavailable,
    StoreMissing,
)
from fetchproxy.model import ByteRange
from fetchproxy.storage.store_health import REPORTED_AFTER_S, StoreOperation
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, Content, responded
from fetchproxy.storage.stores.retries import (
    PAUSES_S,
    REQUEST_TRIES_MAX,
    RETRY_AFTER_MAX_S,
    THROTTLED_PAUSE_S,
    TRIES_BEGIN_WITHIN_S,
    pause_s,
    retried,
    tried_once,
)
from fetchproxy.storage.watched_store import NAME_WRITTEN_EACH_S, WatchedObjectStore

T = TypeVar("T")


def responses(*errors: RemoteStorageError) -> tuple[Callable[[], Awaitable[int]], list[float]]:
    """A call that raises these errors, then succeeds, and the loop times of its calls."""
    errors_left, times = list(errors), []

    async def call() -> int:
        times.append(asyncio.get_running_loop().time())
        if errors_left:
            raise errors_left.pop(0)
        return len(times)

    return call, times


def test_passing_errors_are_tried_again_with_growing_pauses() -> None:
    async def main() -> None:
        call, times = responses(*(StorageUnavailable("500") for _ in range(REQUEST_TRIES_MAX - 1)))
        assert await retried("k", call) == REQUEST_TRIES_MAX
        pauses = [b - a for a, b in pairwise(times)]
        for pause, nominal in zip(pauses, PAUSES_S, strict=True):
            assert 0.5 * nominal <= pause <= 1.5 * nominal

    run_virtual(main)


def test_the_tries_are_used_up() -> None:
    async def main() -> None:
        call, times = responses(
            *(StorageUnavailable("status 500 x") for _ in range(REQUEST_TRIES_MAX))
        )
        with pytest.raises(StorageUnavailable, match=r"^status 500 x \(tried 4 times\)$"):
            await retried("k", call)
        assert len(times) == REQUEST_TRIES_MAX

    run_virtual(main)


@pytest.mark.parametrize(
    "error", [StorageDenied("403"), ObjectNotFound("404"), StoreMissing("no such folder")]
)
def test_lasting_errors_are_not_tried_again(error: RemoteStorageError) -> None:
    async def main() -> None:
        call, times = responses(error)
        with pytest.raises(type(error)):
            await retried("k", call)
        assert len(times) == 1

    run_virtual(main)


def test_a_caller_with_a_back_off_of_its_own_gets_one_try_also_in_its_tasks() -> None:
    async def main() -> None:
        call, times = responses(StorageUnavailable("500"))
        with tried_once():
            task = asyncio.ensure_future(retried("k", call))
            with pytest.raises(StorageUnavailable):
                await task
        assert len(times) == 1
        assert await retried("k", call) == 2

    run_virtual(main)


def test_a_request_that_hangs_until_its_time_out_is_sent_twice() -> None:
    async def main() -> None:
        tries = 0

        async def hang() -> None:
            nonlocal tries
            tries += 1
            await asyncio.sleep(TRIES_BEGIN_WITHIN_S + 1)
            raise StorageUnavailable("time-out")

        with pytest.raises(StorageUnavailable):
            await retried("k", hang)
        assert tries == 2

    run_virtual(main)


def test_pauses_of_a_store_that_throttles() -> None:
    throttled = StorageThrottled("503")
    assert pause_s(1, throttled, "k") < 2 * PAUSES_S[0]
    assert THROTTLED_PAUSE_S <= pause_s(2, throttled, "k") <= 2 * THROTTLED_PAUSE_S
    assert len({pause_s(2, throttled, f"k{number}") for number in range(100)}) > 90


@pytest.mark.parametrize(("asked_s", "tries"), [(RETRY_AFTER_MAX_S, 2), (RETRY_AFTER_MAX_S + 1, 1)])
def test_retry_after(asked_s: float, tries: int) -> None:
    async def main() -> None:
        error = StorageThrottled("503")
        error.retry_after_s = asked_s
        call, times = responses(error)
        try:
            await retried("k", call)
        except StorageThrottled:
            assert tries == 1
        assert len(times) == tries
        assert tries == 1 or times[1] - times[0] == asked_s

    run_virtual(main)


ERRORS: tuple[Callable[[], RemoteStorageError], ...] = (
    lambda: StorageThrottled("status 503 SlowDown"),
    lambda: responded("put k", 429, "", "status 429"),
    lambda: StorageUnavailable("status 500 InternalError"),
    lambda: StorageUnavailable("connection reset"),
)


class Faulty(MemoryObjectStore):
    """A share of the requests fails, half of these after they took effect."""

    def __init__(self, share: float, seed: int = 1) -> None:
        super().__init__()
        self.random, self.share, self.requests, self.faults = Random(seed), share, 0, 0

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(0.01)
        self.requests += 1
        if self.random.random() >= self.share:
            return await call()
        self.faults += 1
        if self.random.random() < 0.5:
            await call()
        raise self.random.choice(ERRORS)()

    async def put(self, key: str, content: bytes) -> None:
        await self._call(lambda: super(Faulty, self).put(key, content))

    async def put_new(self, key: str, content: bytes) -> bool:
        return await self._call(lambda: super(Faulty, self).put_new(key, content))

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        return await self._call(lambda: super(Faulty, self).get(key, bytes_max))

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        return await self._call(lambda: super(Faulty, self).get_range(key, byte_range))

    async def delete(self, key: str) -> None:
        await self._call(lambda: super(Faulty, self).delete(key))


async def work(store: WatchedObjectStore, numbers: range) -> None:
    for number in numbers:
        key, content = f"k/{number}", b"%d" % number
        assert await store.put_new(key, content)
        assert await store.get(key) == content
        await store.put(f"{key}.note", content * 2)
        assert await store.get_range(f"{key}.note", ByteRange(0, 1)) == content[:1]
        await store.delete(key)


def test_two_percent_of_errors_cost_little_and_are_no_condition() -> None:
    """At most 10 % more requests and 20 % more time, and each response is the right one."""

    async def run(share: float) -> tuple[int, float]:
        clock = asyncio.get_running_loop().time
        faulty = Faulty(share)
        store = WatchedObjectStore(faulty)
        begun_at = clock()
        for number in range(100):
            await work(store, range(5 * number, 5 * number + 5))
            store.health.look(clock())
            assert not list(store.health.conditions(clock()))
        assert (faulty.faults > 30) is (share > 0)
        assert store.health[StoreOperation.WRITE].status(clock()).up
        return faulty.requests, clock() - begun_at

    requests, seconds = run_virtual(lambda: run(0.0))
    more_requests, more_seconds = run_virtual(lambda: run(0.02))
    assert more_requests <= 1.1 * requests
    assert more_seconds <= 1.2 * seconds


class OneWriteASecond(MemoryObjectStore):
    """As Cloud Storage: a name is written once in a second."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[str, float] = {}
        self.refused = 0

    async def put(self, key: str, content: bytes) -> None:
        now = asyncio.get_running_loop().time()
        if now - self.at.get(key, float("-inf")) < 1:
            self.refused += 1
            raise responded(f"put {key}", 429, "SlowDown", "status 429 SlowDown")
        self.at[key] = now
        await super().put(key, content)


def test_a_limit_of_each_name_slows_only_that_name() -> None:
    async def main() -> None:
        clock = asyncio.get_running_loop().time
        store = OneWriteASecond()
        watched = WatchedObjectStore(store)

        async def segment(number: int) -> None:
            for state in (b"STARTED", b"FINISHED", b"DELETED"):
                await watched.put(f"{number}.metadata", state)
                await asyncio.sleep(0.1)
            assert await watched.get(f"{number}.metadata") == b"DELETED"

        begun_at = clock()
        async with asyncio.TaskGroup() as tasks:
            for number in range(100):
                tasks.create_task(segment(number))
        assert clock() - begun_at < 2 * NAME_WRITTEN_EACH_S + 0.5
        assert store.refused == 200  # one for each further write
        watched.health.look(clock())
        assert not list(watched.health.conditions(clock()))

    run_virtual(main)


def test_a_real_outage_is_found_as_fast() -> None:
    class Away(MemoryObjectStore):
        async def put(self, key: str, content: bytes) -> None:
            raise StorageUnavailable("connection refused")

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        store = WatchedObjectStore(Away())
        begun_at = clock()
        with pytest.raises(StorageUnavailable):
            await store.put("k", b"x")
        assert clock() - begun_at < 1.5 * sum(PAUSES_S) + 0.1
        assert store.health[StoreOperation.WRITE].status(clock()).up is False
        await asyncio.sleep(REPORTED_AFTER_S)
        store.health.look(clock())
        (condition,) = store.health.conditions(clock())
        assert condition.kind == "store_failing"

    run_virtual(main)


def test_anothers_object_is_anothers_also_after_a_failed_try() -> None:
    class Lost(MemoryObjectStore):
        """The first response is lost."""

        numbers = count()

        async def put_new(self, key: str, content: bytes) -> bool:
            made = await super().put_new(key, content)
            if next(self.numbers) == 0:
                raise StorageUnavailable("connection reset")
            return made

    async def main() -> None:
        watched_store = WatchedObjectStore(Lost())
        assert await watched_store.put_new("own", b"mine")
        Lost.numbers = count()
        inner = Lost()
        await inner.put("k", b"theirs")
        assert not await WatchedObjectStore(inner).put_new("k", b"mine")

    run_virtual(main)
