"""Reads what listings of partitions have found and nobody has read yet, many objects at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from fetchproxy.errors import DamagedObject, ObjectNotFound, RemoteStorageError
from fetchproxy.many_items import pieces
from fetchproxy.metadata.collected_metadata import NOTHING, Collected
from fetchproxy.metadata.stored_partition import PartitionRead, Readable
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

# Of a few segments each what was collected is decoded, some 20 µs a segment.
PARTITIONS_AT_ONCE = 50


async def get_listed(
    rsm: RemoteStorageManager,
    reads: Iterable[PartitionRead],
    at_once_max: int,
    got: Callable[[], None],
    collected: Collected = NOTHING,
) -> int:
    """Read what is new and was not collected; `got` is called for each object. How many they are.

    Raises RemoteStorageError.
    """
    waiting: list[tuple[PartitionRead, Readable]] = []
    for piece in pieces(reads, PARTITIONS_AT_ONCE):
        waiting += [(read, entry) for read in piece for entry in read.begin(collected)]
        await asyncio.sleep(0)
    number = len(waiting)
    waiting.reverse()  # taken from the end
    failures: list[RemoteStorageError] = []

    async def get_some() -> None:
        # The first failure ends the read; raised in here, the TaskGroup would wrap it.
        while waiting and not failures:
            read, entry = waiting.pop()
            try:
                read.read(entry, await _content(rsm, entry))
            except ObjectNotFound:
                read.read(entry, None)
            except RemoteStorageError as error:
                failures.append(error)
            got()

    async with asyncio.TaskGroup() as readers:
        for _ in range(min(number, at_once_max)):
            readers.create_task(get_some())
    if failures:
        raise failures[0]
    return number


async def _content(rsm: RemoteStorageManager, entry: Readable) -> bytes | DamagedObject:
    try:
        return await rsm.get_segment_metadata(entry.stored.key)
    except DamagedObject as damage:
        return damage
