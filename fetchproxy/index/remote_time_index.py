"""The bytes of a remoteTimeIndex: from which entry on a remoteLogIndex file is late enough. Pure.

As Kafka's `.timeindex`, big-endian, 12 bytes an entry:

    timestamp       int64   lastTimestamp of a remoteLogIndex entry, above that of all before it
    relativeOffset  int32   firstOffset of that entry, less the file's base offset

Both rise strictly, so the first with a timestamp at or above T names the first remoteLogIndex entry
that holds a record at or after T. Entries whose data is no later than what came before have none.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct

from protocol.primitives import Buffer

_ENTRY = Struct(">qi")
ENTRY_BYTES = _ENTRY.size


def encode_time_entry(timestamp_ms: int, relative_offset: int) -> bytes:
    return _ENTRY.pack(timestamp_ms, relative_offset)


class RemoteTimeIndex:
    """Looks up in bytes that may be a mapped file; nothing is copied. A cut entry is ignored."""

    __slots__ = ("_base_offset", "_entries", "_raw")

    def __init__(self, raw: Buffer, base_offset: int) -> None:
        self._raw = raw
        self._base_offset = base_offset
        self._entries = range(len(raw) // ENTRY_BYTES)

    def __len__(self) -> int:
        return len(self._entries)

    def timestamp_ms(self, i: int) -> int:
        return int(_ENTRY.unpack_from(self._raw, i * ENTRY_BYTES)[0])

    def offset(self, i: int) -> int:
        return self._base_offset + int(_ENTRY.unpack_from(self._raw, i * ENTRY_BYTES)[1])

    def first_at_or_after(self, timestamp_ms: int) -> int:
        """The number of the first entry with at least that timestamp; or `len`."""
        return bisect_left(self._entries, timestamp_ms, key=self.timestamp_ms)

    def first_with_offset(self, offset: int) -> int:
        """The number of the first entry whose offset is at or above `offset`; or `len`."""
        return bisect_left(self._entries, offset, key=self.offset)
