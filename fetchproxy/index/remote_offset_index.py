"""The bytes of a remoteOffsetIndex: which entry of the remoteLogIndex file holds an offset. Pure.

As Kafka's `.index`, big-endian, 8 bytes an entry, but pointing into the remoteLogIndex file beside
it and with one entry for each of that file's:

    relativeOffset  int32   firstOffset of the entry, less the file's base offset
    position        int32   byte at which the entry begins

Both rise strictly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain
from struct import Struct

from protocol.primitives import Buffer

RELATIVE_OFFSET_MAX = 2**31 - 1
POSITION_MAX = 2**31 - 1

_ENTRY = Struct(">ii")
ENTRY_BYTES = _ENTRY.size


def encode_offset_entries(relative_offsets: Sequence[int], positions: Iterable[int]) -> bytes:
    pairs = zip(relative_offsets, positions, strict=True)
    return Struct(f">{2 * len(relative_offsets)}i").pack(*chain.from_iterable(pairs))


class RemoteOffsetIndex:
    """Looks up in bytes that may be a mapped file; nothing is copied. A cut entry is ignored."""

    __slots__ = ("_base_offset", "_entries", "_raw")

    def __init__(self, raw: Buffer, base_offset: int) -> None:
        self._raw = raw
        self._base_offset = base_offset
        self._entries = range(len(raw) // ENTRY_BYTES)

    def __len__(self) -> int:
        return len(self._entries)

    def offset(self, i: int) -> int:
        return self._base_offset + int(_ENTRY.unpack_from(self._raw, i * ENTRY_BYTES)[0])

    def position(self, i: int) -> int:
        return int(_ENTRY.unpack_from(self._raw, i * ENTRY_BYTES)[1])

    def first_at_or_after(self, offset: int) -> int:
        """The number of the first entry whose firstOffset is at or above `offset`; or `len`."""
        return bisect_left(self._entries, offset, key=self.offset)
