"""Where partitions would end in the archive if the journal were made into segments."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fetchproxy.errors import DamagedObject
from fetchproxy.metadata.journal_tables import read_table
from fetchproxy.metadata.lineage import last_epoch
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.segments.journal import JournalTable, by_partition, log_of
from fetchproxy.storage.archive_objects import ArchiveObjects


class JournalEnds(NamedTuple):
    """`ends`: those above their archived end. `faults`: what cannot be read. `objects`: how many
    the journal has that can be.
    """

    ends: Mapping[TopicIdPartition, int]
    faults: Sequence[str]
    objects: int


async def read_journal_ends(objects: ArchiveObjects, rlmm: RemoteLogMetadataManager) -> JournalEnds:
    """Changes nothing, and reads no records, so that a damaged one is not noticed. Raises
    RemoteStorageError.
    """
    tables: list[JournalTable] = []
    faults: list[str] = []
    async for journal, number, stored in objects.list_journals():
        try:
            table = await read_table(objects, journal, number, stored)
        except DamagedObject as error:
            faults.append(str(error))
        else:
            tables += [] if table is None else [table]
    ends: dict[TopicIdPartition, int] = {}
    now = asyncio.get_running_loop().time()
    for tp, entries in by_partition(tables).items():
        view = await rlmm.refresh(tp, now)
        end = view.log_end_offset
        chain = log_of(entries, end, last_epoch(view))
        if chain and chain[-1].entry.next_offset > (end or 0):
            ends[tp] = chain[-1].entry.next_offset
    return JournalEnds(ends, faults, len(tables))
