"""Listings of the store: the partitions, and the objects that describe each of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from uuid import UUID

from fetchproxy.errors import RemoteStorageError
from fetchproxy.model import RemoteLogSegmentId, TopicIdPartition
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.segments import object_keys as keys
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.stores.object_store import ObjectStore, StoredObject

_METADATA_SUFFIX = f".{SegmentFile.METADATA.value}"
_OTHER_SUFFIXES = tuple(f".{file.value}" for file in SegmentFile)
# Ten thousand topics, listed one after the other from a store 40 ms away, would take 400 s.
_LISTINGS_AT_ONCE = 16
# By name: why the topic's partitions are not known.
Unlisted = dict[str, RemoteStorageError]
PAGES_AT_ONCE = 32
# Objects between two pauses for the event loop; parsing so many takes less than 1 ms.
_TAKEN_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class LogStartObject:
    """DeleteRecords has deleted the records before `offset`. The log history is the one that begins
    after `after_epoch`.
    """

    offset: int
    after_epoch: int = -1


@dataclass(frozen=True, slots=True)
class SegmentMetadataObject:
    segment_id: RemoteLogSegmentId
    base_offset: int
    stored: StoredObject


@dataclass(frozen=True, slots=True)
class LogHistoryObject:
    """An operator's decision about a log that began again."""

    stored: StoredObject


@dataclass(frozen=True, slots=True)
class ArchiveGapObject:
    """Offsets, both inclusive, that were lost before they could be copied."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class FinishedOffsetsObject:
    """The archivers' record of the offsets that the partition has to hold."""

    stored: StoredObject


@dataclass(frozen=True, slots=True)
class PastChangedObject:
    """Its version changes after each change of the partition's past (`metadata.partition_ends`)."""

    stored: StoredObject


Standing = (
    SegmentMetadataObject
    | LogStartObject
    | LogHistoryObject
    | ArchiveGapObject
    | FinishedOffsetsObject
    | PastChangedObject
)


def standing(prefix: str, stored: StoredObject) -> Standing | None:
    """The object as a part of its partition's state; None: it says nothing about that."""
    # A segment has four or more objects; only its metadata is needed, so no other key is parsed.
    if stored.key.endswith(_METADATA_SUFFIX):
        segment_key = keys.parse_segment_key(prefix, stored.key)
        if segment_key is not None:
            return SegmentMetadataObject(segment_key.segment_id, segment_key.base_offset, stored)
    elif stored.key.endswith(_OTHER_SUFFIXES):
        return None
    elif (log_start := keys.parse_log_start_key(prefix, stored.key)) is not None:
        return LogStartObject(*log_start)
    elif keys.is_log_history_key(prefix, stored.key):
        return LogHistoryObject(stored)
    elif (gap := keys.parse_archive_gap_key(prefix, stored.key)) is not None:
        return ArchiveGapObject(*gap)
    elif keys.is_finished_offsets_key(prefix, stored.key):
        return FinishedOffsetsObject(stored)
    elif keys.is_past_changed_key(prefix, stored.key):
        return PastChangedObject(stored)
    return None


async def listed_partitions(
    store: ObjectStore,
    prefix: str,
    topic_id: UUID | None,
    on_progress: Callable[[], None],
    unlisted: Unlisted | None = None,
) -> list[TopicIdPartition]:
    """Sorted partitions of one topic, or of all (None). Calls `on_progress` after each topic's
    listing. Raises RemoteStorageError. `unlisted`: for topics whose folder alone cannot be listed.
    """
    topics = [
        topic
        async for name in store.list_folders(prefix)
        if (topic := keys.parse_topic_folder(name)) is not None and topic_id in (None, topic[1])
    ]
    tps: list[TopicIdPartition] = []

    async def list_one(topic: tuple[str, UUID]) -> None:
        folder = keys.topic_folder(prefix, *topic)
        try:
            async for name in store.list_folders(folder):
                tp = keys.parse_partition_folder(prefix, f"{folder}{name}/")
                if tp is not None:
                    tps.append(tp)
        except RemoteStorageError as error:
            if unlisted is None or not error.may_be_of_object:
                raise
            unlisted[topic[0]] = error
        finally:
            on_progress()

    await for_each(topics, list_one, min(len(topics), _LISTINGS_AT_ONCE))
    return sorted(tps)


# Pages of one listing come one after the other: 40 trips for 10,000 partitions. But partitions'
# folders are numbers. After each page, the rest is divided by the next digit, and each part is
# listed separately.


async def take_topic_objects(
    store: ObjectStore,
    prefix: str,
    topic: str,
    topic_id: UUID,
    take: Callable[[TopicIdPartition, Standing], None],
) -> bool:
    """Call `take` with each object that describes the state of a partition of the topic.

    Objects of a partition come in key order, partitions in any order. False: the topic has no
    object at all. Raises RemoteStorageError.
    """
    folder, page, any_seen = keys.topic_folder(prefix, topic, topic_id), store.page_objects, False
    at_once = asyncio.Semaphore(PAGES_AT_ONCE)

    def take_found(stored: StoredObject) -> None:
        objects = standing(prefix, stored)
        if objects is not None:
            tp = keys.parse_partition_folder(prefix, stored.key[: stored.key.rindex("/") + 1])
            if tp is not None:
                take(tp, objects)

    async def take_part(digits: str, after: str) -> None:
        """List the objects after key `after` of partitions whose numbers begin with `digits`."""
        nonlocal any_seen
        number, objects = 0, store.list(folder + digits, after)
        async with at_once:
            async for stored in objects:
                any_seen = True
                take_found(stored)
                number += 1
                if page is not None and not number % page:
                    this_part, later_parts = divided(digits, stored.key[len(folder) :])
                    if later_parts:
                        for part in later_parts:
                            listing.create_task(take_part(part, ""))
                        listing.create_task(take_part(this_part, stored.key))
                        break
                if not number % _TAKEN_AT_ONCE:
                    await asyncio.sleep(0)
            if isinstance(objects, AsyncGenerator):
                await objects.aclose()  # so it does not request its next page

    try:
        async with asyncio.TaskGroup() as listing:
            listing.create_task(take_part("", ""))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return any_seen


def divided(digits: str, key: str) -> tuple[str, list[str]]:
    """Divide the partitions that begin with `digits`, from `key` on. Pure.

    Returns the first digits of the part that contains `key`, and those of all later parts. There
    are none if `key` lies in the partition `digits` itself, in the last part, or in a folder that
    is not a number. Such folders belong to no part.
    """
    first_folder = key.partition("/")[0]
    if not first_folder.isdecimal():
        return digits, []
    if len(first_folder) == len(digits):
        return digits, []
    digit_count = len(digits)
    next_digit = int(first_folder[digit_count]) + 1
    return first_folder[: digit_count + 1], [digits + str(digit) for digit in range(next_digit, 10)]
