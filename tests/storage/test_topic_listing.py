"""A topic's listing runs in several ways at once, and finds the same as one listing."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Any
from uuid import UUID

import pytest
from memory_object_store import MemoryObjectStore

from fetchproxy.errors import StorageUnavailable
from fetchproxy.model import TopicIdPartition
from fetchproxy.segments.object_keys import partition_folder, uuid_text
from fetchproxy.storage.listings import Standing, divided, standing, take_topic_objects
from fetchproxy.storage.stores.object_store import StoredObject

TOPIC, TOPIC_ID = "orders", UUID(int=5)
PAGE_OBJECTS = 20


class PagedStore(MemoryObjectStore):
    """Each page waits at a door, like a round trip; `trips`: how often the door was opened."""

    def __init__(self, page_objects: int = PAGE_OBJECTS) -> None:
        super().__init__()
        self._page_objects = page_objects
        self.pages: list[str] = []
        self.trips = 0
        self.failing: str | None = None
        self._door = asyncio.Event()

    @property
    def page_objects(self) -> int:
        return self._page_objects

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        number = 0
        async for stored_object in super().list(prefix, start_after):
            if not number % self._page_objects:
                await self._page(prefix)
            number += 1
            yield stored_object
        if not number:
            await self._page(prefix)

    async def _page(self, prefix: str) -> None:
        self.pages.append(prefix)
        await self._door.wait()
        if self.failing is not None and prefix.endswith(self.failing):
            raise StorageUnavailable("the store is away")

    async def while_it_lists(self, work: Coroutine[Any, Any, bool]) -> bool:
        task = asyncio.ensure_future(work)
        while not task.done():
            for _ in range(100):  # until the listing waits at the door
                await asyncio.sleep(0)
            self.trips += not task.done()
            self._door.set()
            self._door = asyncio.Event()
        return await task


async def filled(
    partitions: list[int], segments: int, page_objects: int = PAGE_OBJECTS
) -> PagedStore:
    store = PagedStore(page_objects)
    for partition in partitions:
        folder = partition_folder("a/", TopicIdPartition(TOPIC_ID, TOPIC, partition))
        for number in range(segments):
            name = f"{number * 10:020d}-{uuid_text(UUID(int=number))}"
            for suffix in ("log", "index", "epochs", "metadata"):
                await store.put(f"{folder}{name}.{suffix}", b"")
    await store.put(f"a/{TOPIC}-AAAAAAAAAAAAAAAAAAAABQ/cluster-id", b"")
    return store


@pytest.mark.parametrize(
    ("partitions", "segments"),
    [
        ([*range(2_000)], 1),
        ([*range(30)], 1),
        ([*range(11)], 9),
        ([0], 40),
        ([1], 40),
        ([7, 70, 700, 7_000, 70_000, 2**31 - 1], 6),
        (random.Random(7).sample(range(100_000), 700), 2),
    ],
)
async def test_each_object_is_found_once(partitions: list[int], segments: int) -> None:
    store = await filled(partitions, segments)
    standings_found: list[tuple[TopicIdPartition, Standing]] = []
    took_any = await store.while_it_lists(
        take_topic_objects(store, "a/", TOPIC, TOPIC_ID, lambda *one: standings_found.append(one))
    )
    assert took_any
    standings_listed = [standing("a/", one) async for one in MemoryObjectStore.list(store, "a/")]
    assert Counter(one for _, one in standings_found) == Counter(
        one for one in standings_listed if one is not None
    )
    for partition in partitions:
        own_offsets = [
            getattr(one, "base_offset", -1)
            for tp, one in standings_found
            if tp.partition == partition
        ]
        assert own_offsets == sorted(own_offsets)
        assert len(own_offsets) == segments


@pytest.mark.parametrize(("partitions", "trips", "pages"), [(2_000, 3, 17), (10_000, 9, 130)])
async def test_pages_of_thousands_of_partitions_are_a_few_trips(
    partitions: int, trips: int, pages: int
) -> None:
    """One listing takes 8 pages in a row for 2,000 partitions, and 40 for 10,000."""
    store = await filled([*range(partitions)], 1, page_objects=1_000)
    await store.while_it_lists(
        take_topic_objects(store, "a/", TOPIC, TOPIC_ID, lambda tp, one: None)
    )
    assert store.trips <= trips
    assert len(store.pages) <= pages


async def test_a_small_topic_is_one_page() -> None:
    store = await filled([*range(4)], 1)
    await store.while_it_lists(
        take_topic_objects(store, "a/", TOPIC, TOPIC_ID, lambda tp, one: None)
    )
    assert len(store.pages) == 1


async def test_nothing_there_is_told_from_something() -> None:
    store = await filled([], 0)
    other = take_topic_objects(store, "a/", TOPIC, UUID(int=6), lambda tp, one: None)
    assert not await store.while_it_lists(other)
    some = take_topic_objects(store, "a/", TOPIC, TOPIC_ID, lambda tp, one: None)
    assert await store.while_it_lists(some)


@pytest.mark.parametrize("failing", ["/", "/3", "/19"])
async def test_a_page_that_fails_is_the_failure_of_all(failing: str) -> None:
    store = await filled([*range(200)], 1)
    store.failing = failing
    with pytest.raises(StorageUnavailable):
        await store.while_it_lists(
            take_topic_objects(store, "a/", TOPIC, TOPIC_ID, lambda tp, one: None)
        )


def test_what_is_left_behind_a_page() -> None:
    assert divided("", "8/x") == ("8", ["9"])
    assert divided("", "87/x") == ("8", ["9"])
    assert divided("8", "87/x") == ("87", ["88", "89"])
    assert divided("", "9/x") == ("9", [])
    assert divided("1", "1/x") == ("1", [])
    assert divided("1", "18/x") == ("18", ["19"])
    assert divided("", "1288/x") == ("1", [*"23456789"])
    assert divided("", "cluster-id") == ("", [])
