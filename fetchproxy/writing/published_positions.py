"""Publishes in the store from which offset on this archiver accumulates each partition.

`metadata.archiver_positions` reads it. If the store does not take it, archiving goes on: readers
wait a little longer, or hear of a loss a little later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

import structlog

from fetchproxy.errors import RemoteStorageError
from fetchproxy.metadata.archiver_positions import (
    HEARTBEAT_INTERVAL_S,
    SILENT_MAX_S,
    OperatorNotes,
    Positions,
    RecoveryPoint,
    encode_positions,
)
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.cooperative import pieces
from fetchproxy.storage.archive_objects import ArchiveObjects

log = structlog.get_logger(__name__)

# Time limit (s) of a write. After an outage a hanging request must end before readers miss this
# archiver.
_WRITE_MAX_S = 4.0
# Least time between two writes of changes: 10,000 partitions are 150 KB.
_CHANGE_INTERVAL_S = 1.0
# Running archivers remove the object of a killed one long after readers ignore it.
_ABANDONED_AFTER_S = 20 * SILENT_MAX_S
_REMOVAL_INTERVAL_S = 60.0
# An archiver that ends deletes its object, if the store answers within this time.
_WITHDRAW_MAX_S = 2.0


@dataclass(eq=False, repr=False)
class PublishedPositions:
    """Publishes from which offset on this archiver accumulates each partition. One per archiver.
    `tps` are its partitions; `archiver_position` as in ArchiverPositions. `operator_notes`: texts
    about this archiver, given the topics that it accumulates. `recovery_point`: written with each
    heartbeat; None without a journal.
    """

    objects: ArchiveObjects
    instance: UUID
    tps: Callable[[], Iterable[TopicIdPartition]]
    archiver_position: Callable[[TopicIdPartition], int | None]
    operator_notes: Callable[[Collection[UUID]], OperatorNotes] = lambda topics: OperatorNotes()
    recovery_point: Callable[[], RecoveryPoint | None] = lambda: None

    def __post_init__(self) -> None:
        self.key = self.objects.archiver_positions_key(self.instance)
        self._beat = 0
        self._failing = False
        self._versions: dict[str, tuple[str, float]] = {}  # key: version, since when (loop s)

    async def run(self) -> None:
        """Runs until it is cancelled."""
        clock = asyncio.get_running_loop().time
        last: tuple[Positions, OperatorNotes] | None = None
        published_at = noted_at = float("-inf")
        try:
            while True:
                current = await self._current()
                due = current != last or clock() - published_at >= HEARTBEAT_INTERVAL_S
                if due and await self._tell(*current):
                    last, published_at = current, clock()
                if clock() - noted_at >= _REMOVAL_INTERVAL_S:
                    noted_at = clock()
                    await self._remove_abandoned()
                await asyncio.sleep(_CHANGE_INTERVAL_S)
        finally:
            try:
                async with asyncio.timeout(_WITHDRAW_MAX_S):
                    await self.objects.delete_archiver_positions(self.key)
            except (RemoteStorageError, TimeoutError) as error:
                log.info("archiver_positions_not_deleted", error=str(error) or "time-out")

    async def _current(self) -> tuple[Positions, OperatorNotes]:
        positions: dict[tuple[UUID, int], int] = {}
        for piece in pieces(list(self.tps())):
            for tp in piece:
                position = self.archiver_position(tp)
                if position is not None:
                    positions[tp.topic_id, tp.partition] = position
            await asyncio.sleep(0)
        return positions, self.operator_notes({topic_id for topic_id, _ in positions})

    async def _tell(self, positions: Positions, operator_notes: OperatorNotes) -> bool:
        self._beat += 1
        try:
            async with asyncio.timeout(_WRITE_MAX_S):
                content = await encode_positions(
                    positions, self._beat, operator_notes, self.recovery_point()
                )
                await self.objects.put_archiver_positions(self.instance, content)
        except (RemoteStorageError, TimeoutError) as error:
            if not self._failing:  # once per outage
                log.warning("archiver_positions_not_written", error=str(error) or "time-out")
            self._failing = True
            return False
        self._failing = False
        return True

    async def _remove_abandoned(self) -> None:
        """Remove objects of killed archivers. They are harmless, but nothing else removes them."""
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(_WRITE_MAX_S):
                seen_by_key: dict[str, tuple[str, float]] = {}
                async for stored in self.objects.list_archiver_positions():
                    version, since = self._versions.get(stored.key, ("", now))
                    seen_by_key[stored.key] = (
                        stored.version,
                        since if version == stored.version else now,
                    )
                self._versions = seen_by_key
                for key, (_, since) in seen_by_key.items():
                    if key != self.key and now - since >= _ABANDONED_AFTER_S:
                        await self.objects.delete_archiver_positions(key)
        except (RemoteStorageError, TimeoutError) as error:
            log.info("abandoned_positions_not_deleted", error=str(error) or "time-out")
