"""Deletes what killed and stopped archivers left of their journals, once segments have it.

A running archiver cuts its own journal (`writing.journal`). Another one takes over the partitions
of one that is gone: it reads their records from the brokers again, so the old journal is needed
until these are copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from uuid import UUID

import structlog

from fetchproxy.errors import DamagedObject, RemoteStorageError
from fetchproxy.metadata.journal_tables import read_table
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.stores.object_store import StoredObject

log = structlog.get_logger(__name__)

_INTERVAL_S = 3600.0
# Records of a topic that was deleted are never in a segment. Those of a lost cluster wait for
# somebody to recover them.
_KEPT_MAX_MS = 30 * 24 * 3_600_000


@dataclass(eq=False, repr=False)
class OldJournals:
    """`archiver`: the id of this one, whose journal stays."""

    objects: ArchiveObjects
    rlmm: RemoteLogMetadataManager
    archiver: UUID
    _: KW_ONLY
    wall_clock_ms: Callable[[], int]
    interval_s: float = _INTERVAL_S

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await asyncio.sleep(self.interval_s)
            try:
                await self.delete_covered()
            except RemoteStorageError as error:
                log.warning(
                    "old_journals_not_deleted",
                    error=str(error),
                    hint="repair what the error names; these journals stay until then",
                )

    async def delete_covered(self) -> int:
        """Delete each object from the beginning of each journal, up to the first that is needed.
        Returns the number of deleted ones. Raises RemoteStorageError.
        """
        deleted, needed = 0, {self.archiver}
        async for journal, number, stored in self.objects.list_journals():
            if journal in needed:
                continue
            if await self._is_needed(journal, number, stored):
                needed.add(journal)
                continue
            await self.objects.delete_journal(journal, number)
            deleted += 1
        if deleted:
            log.info("old_journals_deleted", count=deleted)
        return deleted

    async def _is_needed(self, journal: UUID, number: int, stored: StoredObject) -> bool:
        try:
            table = await read_table(self.objects, journal, number, stored)
        except DamagedObject as error:
            log.warning(
                "old_journal_damaged",
                error=str(error),
                hint="delete the object when segments have its records; if the cluster is lost, "
                "they are lost too",
            )
            return True
        if table is None or self.wall_clock_ms() - table.read_at_ms > _KEPT_MAX_MS:
            return False
        oldest = asyncio.get_running_loop().time() - self.interval_s
        for entry in table.entries:
            end = (await self.rlmm.refresh(entry.tp, oldest)).log_end_offset
            if end is None or end < entry.next_offset:
                return True
        return False
