"""The same work for many partitions, some of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from fetchproxy.errors import RemoteStorageError
from fetchproxy.model import TopicIdPartition


async def for_each(
    tips: Iterable[TopicIdPartition],
    work: Callable[[TopicIdPartition], Awaitable[None]],
    at_once: int,
) -> None:
    """Raises the first RemoteStorageError; no work is begun after it."""
    waiting = iter(tips)
    failures: list[RemoteStorageError] = []

    async def worker() -> None:
        for tip in waiting:
            try:
                await work(tip)
            except RemoteStorageError as error:  # raised below: here the TaskGroup would wrap it
                failures.append(error)
            if failures:
                return

    async with asyncio.TaskGroup() as workers:
        for _ in range(at_once):
            workers.create_task(worker())
    if failures:
        raise failures[0]
