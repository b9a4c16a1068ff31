"""Kafka's own index files as bytes: are they whole, and do they fit their segment? Pure.

Offset index: 8-byte entries (int32 offset - base offset, int32 position of the batch in the log).
Time index: 12-byte entries (int64 timestamp in ms, int32 offset - base offset). Producer snapshot:
int16 version, CRC-32C of what follows it, entries. All big-endian. Source: Kafka's OffsetIndex,
TimeIndex, ProducerStateManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from fastcrc.crc32 import iscsi as crc32c

_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_SNAPSHOT_HEAD = Struct(">hI")


def offset_index_fault(raw: bytes, base_offset: int, end_offset: int, size_bytes: int) -> str:
    """What is wrong with the offset index of the segment's `size_bytes`; empty: nothing."""
    if len(raw) % _OFFSET_ENTRY.size:
        return f"offset index of {len(raw)} bytes ends inside an entry"
    before = (-1, -1)
    for entry in _OFFSET_ENTRY.iter_unpack(raw):
        if not (entry[0] > before[0] and entry[1] > before[1]):
            return f"offset index entry {entry} after {before}"
        before = entry
    if before[0] > end_offset - base_offset or before[1] >= size_bytes:
        return f"offset index ends with {before}, above the segment's end"
    return ""


def time_index_fault(raw: bytes, base_offset: int, end_offset: int, max_timestamp_ms: int) -> str:
    """As `offset_index_fault`."""
    if len(raw) % _TIME_ENTRY.size:
        return f"time index of {len(raw)} bytes ends inside an entry"
    before = (-(2**63), -1)
    for entry in _TIME_ENTRY.iter_unpack(raw):
        if not (entry[0] > before[0] and entry[1] >= before[1]):
            return f"time index entry {entry} after {before}"
        before = entry
    if before[1] > end_offset - base_offset or before[0] > max_timestamp_ms:
        return f"time index ends with {before}, above the segment's end"
    return ""


def joined_offset_index(parts: Iterable[tuple[bytes, int, int]]) -> bytes:
    """Of adjacent segments one: (index, offsets before it, bytes of log before it) of each."""
    return b"".join(
        _OFFSET_ENTRY.pack(offsets_before + offset, bytes_before + position)
        for raw, offsets_before, bytes_before in parts
        for offset, position in _OFFSET_ENTRY.iter_unpack(raw)
    )


def joined_time_index(parts: Iterable[tuple[bytes, int]]) -> bytes:
    """As `joined_offset_index`, without bytes: of entries only those whose timestamps still rise,

    as Kafka's TimeIndex takes one up only if it is larger than the last.
    """
    joined: list[bytes] = []
    latest_ms = -(2**63)
    for raw, offsets_before in parts:
        for timestamp_ms, offset in _TIME_ENTRY.iter_unpack(raw):
            if timestamp_ms > latest_ms:
                latest_ms = timestamp_ms
                joined.append(_TIME_ENTRY.pack(timestamp_ms, offsets_before + offset))
    return b"".join(joined)


def snapshot_fault(raw: bytes) -> str:
    """As `offset_index_fault`."""
    if len(raw) < _SNAPSHOT_HEAD.size:
        return f"producer snapshot of {len(raw)} bytes has no head"
    _, stated = _SNAPSHOT_HEAD.unpack_from(raw)
    found = crc32c(raw[_SNAPSHOT_HEAD.size :])
    if found != stated:
        return f"producer snapshot has checksum {found:#010x}, states {stated:#010x}"
    return ""
