"""Tells other processes, through the store, from which offset on this archiver is gathering.

`metadata.archiver_positions` says what is written, and who reads it. A store that does not take it
harms no archiving: readers then wait a little longer, or are told of a loss a little later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

import structlog

from fetchproxy.errors import RemoteStorageError
from fetchproxy.many_items import pieces
from fetchproxy.metadata.archiver_positions import (
    BEAT_INTERVAL_S,
    SILENT_MAX_S,
    ForPeople,
    Positions,
    encode_positions,
)
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.api import StoredObject
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

log = structlog.get_logger(__name__)

# So long a store may take to answer. After an outage a request that hangs must be over before
# readers miss this archiver.
_WRITE_MAX_S = 4.0
# A change is written no sooner than this after the last one: 10,000 partitions are 150 KB.
_CHANGE_INTERVAL_S = 1.0
# What a killed archiver left is removed by those that run; long after readers ignore it.
_ABANDONED_AFTER_S = 20 * SILENT_MAX_S
_REMOVAL_INTERVAL_S = 60.0
# An archiver that ends takes back what it said, if the store answers by then.
_WITHDRAW_MAX_S = 2.0


class PublishedPositions:
    """One per archiver. `tips` are its partitions; `gathered_from` as in ArchiverPositions.

    `for_people`: what it says of itself, given the topics that it gathers.
    """

    def __init__(
        self,
        rsm: RemoteStorageManager,
        instance: UUID,
        tips: Callable[[], Iterable[TopicIdPartition]],
        gathered_from: Callable[[TopicIdPartition], int | None],
        for_people: Callable[[Collection[UUID]], ForPeople] = lambda topics: ForPeople(),
    ) -> None:
        self._rsm = rsm
        self._instance = instance
        self.key = rsm.archivers.key(instance)  # of what it says
        self._tips = tips
        self._gathered_from = gathered_from
        self._for_people = for_people
        self._beat = 0
        self._failing = False
        self._others: dict[str, tuple[str, float]] = {}  # key: version, since when (loop s)

    async def run(self) -> None:
        """For ever."""
        clock = asyncio.get_running_loop().time
        told: tuple[Positions, ForPeople] | None = None
        told_at = looked_at = float("-inf")
        try:
            while True:
                current = await self._current()
                due = current != told or clock() - told_at >= BEAT_INTERVAL_S
                if due and await self._tell(*current):
                    told, told_at = current, clock()
                if clock() - looked_at >= _REMOVAL_INTERVAL_S:
                    looked_at = clock()
                    await self._remove_abandoned()
                await asyncio.sleep(_CHANGE_INTERVAL_S)
        finally:
            await self._withdraw()

    async def _current(self) -> tuple[Positions, ForPeople]:
        found: dict[tuple[UUID, int], int] = {}
        for piece in pieces(list(self._tips())):
            for tip in piece:
                at = self._gathered_from(tip)
                if at is not None:
                    found[tip.topic_id, tip.partition] = at
            await asyncio.sleep(0)
        return found, self._for_people({topic_id for topic_id, _ in found})

    async def _tell(self, positions: Positions, for_people: ForPeople) -> bool:
        self._beat += 1
        try:
            async with asyncio.timeout(_WRITE_MAX_S):
                content = await encode_positions(positions, self._beat, for_people)
                await self._rsm.archivers.put_archiver_positions(self._instance, content)
        except (RemoteStorageError, TimeoutError) as error:
            if not self._failing:  # once per outage
                log.warning("archiver_positions_not_told", error=str(error) or "time-out")
            self._failing = True
            return False
        self._failing = False
        return True

    async def _remove_abandoned(self) -> None:
        """Of archivers that were killed; harmless, and nobody else would ever remove it."""
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(_WRITE_MAX_S):
                listed = [stored async for stored in self._rsm.archivers.list()]
                for stored in self._abandoned(listed, now):
                    await self._rsm.archivers.delete_archiver_positions(stored.key)
        except (RemoteStorageError, TimeoutError) as error:
            log.info("abandoned_positions_kept", error=str(error) or "time-out")

    def _abandoned(self, listed: list[StoredObject], now: float) -> list[StoredObject]:
        seen: dict[str, tuple[str, float]] = {}
        for stored in listed:
            version, since = self._others.get(stored.key, ("", now))
            seen[stored.key] = (stored.version, since if version == stored.version else now)
        self._others = seen
        return [
            stored
            for stored in listed
            if stored.key != self.key and now - seen[stored.key][1] >= _ABANDONED_AFTER_S
        ]

    async def _withdraw(self) -> None:
        try:
            async with asyncio.timeout(_WITHDRAW_MAX_S):
                await self._rsm.archivers.delete_archiver_positions(self.key)
        except (RemoteStorageError, TimeoutError) as error:
            log.info("archiver_positions_kept", error=str(error) or "time-out")
