"""All objects of a topic's partitions, where a listing comes in pages: several side by side.

A page says where the next one begins, so that pages of one listing come one after the other: 40
trips for 10,000 partitions. But partitions' folders are numbers. Behind each page what is left is
divided by the next digit, and each part is a listing of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from uuid import UUID

from fetchproxy.errors import RemoteStorageError
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.api import ObjectStore, StoredObject
from fetchproxy.storage.layout import parse_partition_folder, topic_folder
from fetchproxy.storage.partition_objects import Standing, standing

LISTINGS_AT_ONCE = 32
# Objects between two breaths of the event loop: each is taken apart, below 1 ms for all.
_TAKEN_AT_ONCE = 100


async def take_topic_objects(
    store: ObjectStore,
    prefix: str,
    topic: str,
    topic_id: UUID,
    take: Callable[[TopicIdPartition, Standing], None],
) -> bool:
    """`take` is called with each object that says how a partition of the topic stands.

    Those of one partition come in their order, partitions in any. False: the topic has no object
    at all. Raises RemoteStorageError.
    """
    seen = False

    def take_found(found: StoredObject) -> None:
        nonlocal seen
        seen = True
        said = standing(prefix, found)
        if said is not None:
            tip = parse_partition_folder(prefix, found.key[: found.key.rindex("/") + 1])
            if tip is not None:
                take(tip, said)

    await _Listing(store, topic_folder(prefix, topic, topic_id), take_found).run()
    return seen


class _Listing:
    def __init__(
        self, store: ObjectStore, folder: str, take: Callable[[StoredObject], None]
    ) -> None:
        self._store = store
        self._folder = folder
        self._take = take
        self._failures: list[RemoteStorageError] = []
        self._at_once = asyncio.Semaphore(LISTINGS_AT_ONCE)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as listing:
            self._begin(listing, "", "")
        if self._failures:
            raise self._failures[0]

    def _begin(self, listing: asyncio.TaskGroup, digits: str, after: str) -> None:
        listing.create_task(self._list(listing, digits, after), name=f"list {digits}")

    async def _list(self, listing: asyncio.TaskGroup, digits: str, after: str) -> None:
        """Partitions whose numbers begin with `digits`, behind the key `after`."""
        async with self._at_once:
            # The first failure ends it; raised in here, the TaskGroup would wrap it.
            if self._failures:
                return
            try:
                await self._take_or_divide(listing, digits, after)
            except RemoteStorageError as error:
                self._failures.append(error)

    async def _take_or_divide(self, listing: asyncio.TaskGroup, digits: str, after: str) -> None:
        page, number = self._store.page_objects, 0
        every = self._store.list(self._folder + digits, after)
        async for found in every:
            self._take(found)
            number += 1
            if page is not None and not number % page:
                reached, parts = divided(digits, found.key[len(self._folder) :])
                if parts:
                    for part in parts:
                        self._begin(listing, part, "")
                    self._begin(listing, reached, found.key)
                    break
            if not number % _TAKEN_AT_ONCE:
                await asyncio.sleep(0)
        if isinstance(every, AsyncGenerator):
            await every.aclose()  # its next page is not asked for


def divided(digits: str, key: str) -> tuple[str, list[str]]:
    """What is left behind `key` of the partitions that begin with `digits`. Pure.

    The rest of those that begin as `key` does, and the beginnings of all others; none of these:
    `key` lies in the partition `digits` itself. What is no number is left out.
    """
    reached = key.partition("/")[0]
    if not reached.isdecimal():
        return digits, []
    if len(reached) == len(digits):
        return digits, []
    at = len(digits)
    return reached[: at + 1], [digits + str(digit) for digit in range(int(reached[at]) + 1, 10)]
