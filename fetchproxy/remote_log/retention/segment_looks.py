"""Whether segments are in the store as their metadata say, before anything goes that they replace.

Metadata say what was copied, not what is there: a lifecycle rule, a person or a mistyped prefix
takes objects away behind them. So the objects are asked for themselves; a listing may be old. Two
small reads a segment, and its records are not read: that is `verify`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from uuid import UUID

from fetchproxy.errors import CorruptSegment, ObjectNotFound, RangeNotSatisfiable
from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.model import ByteRange, RemoteLogSegmentMetadata
from fetchproxy.storage.layout import SegmentFile
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

# Twenty replaced segments ask for the one that replaces them once, not twenty times. It is below
# `retention_grace_ms`, so what was looked at before they were hidden is looked at again before they
# go.
LOOK_LASTS_S = 60.0
_REMEMBERED_MAX = 10_000
# The index of a segment of 64 MiB; that of a larger one takes long enough to be felt on the loop.
_PARSED_INLINE_BYTES_MAX = 128 * 1024


class SegmentLooks:
    """One for whoever deletes."""

    def __init__(self, rsm: RemoteStorageManager) -> None:
        self._rsm = rsm
        self._sound_at: dict[UUID, float] = {}  # loop time

    async def damage(self, segments: Iterable[RemoteLogSegmentMetadata]) -> str | None:
        """What is wrong with the first that is not whole, in words; None: all are there.

        Raises RemoteStorageError: nobody knows.
        """
        for segment in segments:
            now = asyncio.get_running_loop().time()
            seen_at = self._sound_at.get(segment.segment_id.id)
            if seen_at is not None and now - seen_at < LOOK_LASTS_S:
                continue
            found = await self._damage(segment)
            if found is not None:
                self._sound_at.pop(segment.segment_id.id, None)
                return found
            if len(self._sound_at) >= _REMEMBERED_MAX:
                self._sound_at.clear()
            self._sound_at[segment.segment_id.id] = now
        return None

    async def only_metadata_left(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Nothing of it is in the store but that it was finished: it was deleted, and whoever made
        it said so later, from a pause or by a request that was long on its way.

        Raises RemoteStorageError: nobody knows.
        """
        try:
            await self._rsm.fetch_log_segment(segment, ByteRange(0, 1))
        except ObjectNotFound:
            pass
        except RangeNotSatisfiable:
            return False
        else:
            return False
        for file in (SegmentFile.INDEX, SegmentFile.EPOCHS):
            try:
                await self._rsm.fetch_index(segment, file)
            except ObjectNotFound:
                continue
            except CorruptSegment:
                return False
            return False
        return True

    async def _damage(self, segment: RemoteLogSegmentMetadata) -> str | None:
        file = SegmentFile.LOG
        try:
            if wrong := await self._wrong_size(segment):
                return f"{self._rsm.object_key(segment, file)} {wrong}"
            file = SegmentFile.INDEX
            raw = await self._rsm.fetch_index(segment, file)
            if len(raw) <= _PARSED_INLINE_BYTES_MAX:
                index = RemoteLogIndex.parse(raw)
            else:
                index = await asyncio.to_thread(RemoteLogIndex.parse, raw)
            index.check_covers(segment.stored_end_offset, segment.segment_size_bytes)
            file = SegmentFile.TXN
            await self._rsm.fetch_index(segment, file)
        except ObjectNotFound:
            return f"{self._rsm.object_key(segment, file)} is missing"
        except CorruptSegment as error:
            return f"{self._rsm.object_key(segment, file)}: {error}"
        return None

    async def _wrong_size(self, segment: RemoteLogSegmentMetadata) -> str | None:
        """The last byte and the one behind it are asked for: it has the one and not the other."""
        size = segment.segment_size_bytes
        try:
            tail = await self._rsm.fetch_log_segment(segment, ByteRange(max(size - 1, 0), size + 1))
        except RangeNotSatisfiable:
            return f"is shorter than the {size} bytes of its metadata"
        return None if len(tail) == 1 else f"is longer than the {size} bytes of its metadata"
