"""What listings of the store say: which partitions there are, and what each of them has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from uuid import UUID

from fetchproxy.model import RemoteLogSegmentId, TopicIdPartition
from fetchproxy.runtime.loop import for_each
from fetchproxy.segments import object_keys as keys
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.stores.object_store import ObjectStore, StoredObject

_METADATA_SUFFIX = f".{SegmentFile.METADATA.value}"
_OTHER_SUFFIXES = tuple(f".{file.value}" for file in SegmentFile)


@dataclass(frozen=True, slots=True)
class LogStartObject:
    """Everything below `offset` was deleted (DeleteRecords), of the history after that epoch."""

    offset: int
    after_epoch: int = -1


@dataclass(frozen=True, slots=True)
class SegmentMetadataObject:
    segment_id: RemoteLogSegmentId
    base_offset: int
    stored: StoredObject


@dataclass(frozen=True, slots=True)
class LogHistoryObject:
    """A person's word about a log that began again."""

    stored: StoredObject


Standing = SegmentMetadataObject | LogStartObject | LogHistoryObject


def standing(prefix: str, found: StoredObject) -> Standing | None:
    """What an object says of how its partition stands; None: nothing."""
    # Of four or more objects a segment one is of interest: the others are not parsed.
    if found.key.endswith(_METADATA_SUFFIX):
        parsed = keys.parse_segment_key(prefix, found.key)
        if parsed is not None:
            return SegmentMetadataObject(parsed.segment_id, parsed.base_offset, found)
    elif found.key.endswith(_OTHER_SUFFIXES):
        return None
    elif (log_start := keys.parse_log_start_key(prefix, found.key)) is not None:
        return LogStartObject(*log_start)
    elif keys.is_log_history_key(prefix, found.key):
        return LogHistoryObject(found)
    return None


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
        if (topic := keys.parse_topic_folder(name)) is not None and topic_id in (None, topic[1])
    ]
    found: list[TopicIdPartition] = []

    async def list_one(topic: tuple[str, UUID]) -> None:
        folder = keys.topic_folder(prefix, *topic)
        try:
            async for name in store.list_folders(folder):
                tip = keys.parse_partition_folder(prefix, f"{folder}{name}/")
                if tip is not None:
                    found.append(tip)
        finally:
            it_came()

    await for_each(topics, list_one, min(len(topics), LISTINGS_AT_ONCE))
    return sorted(found)


# Pages of one listing come one after the other: 40 trips for 10,000 partitions. But partitions'
# folders are numbers. Behind each page what is left is divided by the next digit, and each part is
# a listing of its own.

PAGES_AT_ONCE = 32
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
    folder, page, seen = keys.topic_folder(prefix, topic, topic_id), store.page_objects, False
    at_once = asyncio.Semaphore(PAGES_AT_ONCE)

    def take_found(found: StoredObject) -> None:
        said = standing(prefix, found)
        if said is not None:
            tip = keys.parse_partition_folder(prefix, found.key[: found.key.rindex("/") + 1])
            if tip is not None:
                take(tip, said)

    async def take_part(digits: str, after: str) -> None:
        """Of partitions whose numbers begin with `digits`: what is behind the key `after`."""
        nonlocal seen
        number, every = 0, store.list(folder + digits, after)
        async with at_once:
            async for found in every:
                seen = True
                take_found(found)
                number += 1
                if page is not None and not number % page:
                    reached, parts = divided(digits, found.key[len(folder) :])
                    if parts:
                        for part in parts:
                            listing.create_task(take_part(part, ""))
                        listing.create_task(take_part(reached, found.key))
                        break
                if not number % _TAKEN_AT_ONCE:
                    await asyncio.sleep(0)
            if isinstance(every, AsyncGenerator):
                await every.aclose()  # its next page is not asked for

    try:
        async with asyncio.TaskGroup() as listing:
            listing.create_task(take_part("", ""))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return seen


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
