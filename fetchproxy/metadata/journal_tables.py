"""Reads the tables of the journal objects in the store (`segments.journal`)."""

from __future__ import annotations

import asyncio
from uuid import UUID

from fetchproxy.errors import CorruptSegment, DamagedObject, ObjectNotFound
from fetchproxy.model import ByteRange
from fetchproxy.segments.journal import END_BYTES, JournalTable, decode_table, table_range
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.stores.object_store import StoredObject


async def read_table(
    objects: ArchiveObjects, journal: UUID, number: int, stored: StoredObject
) -> JournalTable | None:
    """The table of a listed object, in two reads. None: it was deleted since it was listed.

    Raises RemoteStorageError: DamagedObject if it is not what its name says.
    """
    try:
        table = await _table(objects, stored)
    except ObjectNotFound:
        return None
    if table.place != (journal, number):
        raise DamagedObject(f"{stored.key}: its table is of number {table.place.number}")
    return table


async def _table(objects: ArchiveObjects, stored: StoredObject) -> JournalTable:
    key, size = stored.key, stored.size_bytes
    if size <= END_BYTES:
        raise DamagedObject(f"{key}: it has {size} bytes")
    end = await objects.get_journal_bytes(key, ByteRange(size - END_BYTES, size))
    try:
        raw = await objects.get_journal_bytes(key, table_range(end, size, key))
        return await asyncio.to_thread(decode_table, raw, end, size, key)
    except CorruptSegment as error:
        raise DamagedObject(str(error)) from None
