"""Which partitions an archive has: one listing of the top level, and one of each topic's folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

from fetchproxy.errors import RemoteStorageError
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.api import ObjectStore
from fetchproxy.storage.layout import parse_partition_folder, parse_topic_folder, topic_folder

# A store 40 ms away would take 400 s for ten thousand topics, one after the other.
LISTINGS_AT_ONCE = 16


async def listed_partitions(
    store: ObjectStore, prefix: str, topic_id: UUID | None, it_came: Callable[[], None]
) -> list[TopicIdPartition]:
    """Of all topics, or of one; sorted. `it_came` is called with each listing that has ended.

    Raises RemoteStorageError.
    """
    topics = [
        topic
        async for name in store.list_folders(prefix)
        if (topic := parse_topic_folder(name)) is not None and topic_id in (None, topic[1])
    ]
    found: list[TopicIdPartition] = []
    failures: list[RemoteStorageError] = []

    async def list_some() -> None:
        # The first failure ends it; raised in here, the TaskGroup would wrap it.
        while topics and not failures:
            folder = topic_folder(prefix, *topics.pop())
            try:
                async for name in store.list_folders(folder):
                    tip = parse_partition_folder(prefix, f"{folder}{name}/")
                    if tip is not None:
                        found.append(tip)
            except RemoteStorageError as error:
                failures.append(error)
            it_came()

    async with asyncio.TaskGroup() as listing:
        for _ in range(min(len(topics), LISTINGS_AT_ONCE)):
            listing.create_task(list_some())
    if failures:
        raise failures[0]
    return sorted(found)
