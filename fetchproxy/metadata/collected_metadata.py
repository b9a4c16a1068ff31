"""What the `.metadata` objects of a topic say, repeated in one object: for readers that begin.

A process that has just started knows nothing of the archive: 2,000 partitions are 2,000 objects to
be read. So whoever had to read many of a topic leaves what all of them say in one object. It is a
copy, and never more: which segments there are, a listing says, and of those an entry counts only
for the very version of the object that it was taken from. Whatever is missing, damaged or of
another version is read from where it stands.

    magic      "collected metadata 1\\n"
    body       zlib, which has a checksum; of each object, behind one another:
      key      string (int16 length), of the `.metadata` object
      version  string (int16 length), as the store listed it
      length, type, version, data    as an entry of a cache file (`records`)

Written by `store_backed` where it serves or archives. Spark's planner reads it too; other programs
neither write nor trust it.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Mapping
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from fetchproxy.errors import CorruptSegment
from fetchproxy.many_items import pieces
from fetchproxy.metadata.records import decode_entry, encode_entry
from fetchproxy.model import RemoteLogSegmentMetadata
from fetchproxy.storage.object_sizes import OBJECT_BYTES_MAX
from fetchproxy.storage.partition_objects import SegmentMetadataObject
from protocol.errors import WireError
from protocol.primitives import decode_uvarint, encode_string

MAGIC = b"collected metadata 1\n"
# Those of the first partitions by name; of the rest each is read by itself. 100 bytes each.
COLLECTED_MAX = 200_000
# It is written anew when so many were read one by one, and so large a share of what there is.
READ_ALONE_MIN = 64
READ_ALONE_SHARE_MIN = 1 / 16
PUT_INTERVAL_S = 300.0
_LEVEL = 1
_STRING_SIZE = Struct(">H")
_DECODED_AT_ONCE = 500  # some 1 ms


class CollectedEntry(NamedTuple):
    version: str
    entry: bytes  # behind its length


Collected = Mapping[str, CollectedEntry]  # by key
NOTHING: Collected = {}
Read = tuple[str, str, RemoteLogSegmentMetadata]  # key, version, what it says


async def encode_collected(read: Iterable[Read]) -> bytes:
    parts: list[bytes] = []
    for piece in pieces(read):
        for key, version, metadata in piece:
            parts += (encode_string(key, False), encode_string(version, False))
            parts.append(encode_entry(metadata))
        await asyncio.sleep(0)
    return MAGIC + await asyncio.to_thread(zlib.compress, b"".join(parts), _LEVEL)


async def decode_collected(raw: bytes) -> dict[str, CollectedEntry]:
    """Raises CorruptSegment."""
    if not raw.startswith(MAGIC):
        raise CorruptSegment("the object has another format")
    body = await asyncio.to_thread(_unpacked, raw[len(MAGIC) :])
    found: dict[str, CollectedEntry] = {}
    at = 0
    while at < len(body):
        try:
            at = _decode_some(body, at, found)
        except (WireError, StructError, UnicodeDecodeError) as error:
            raise CorruptSegment(str(error)) from None
        await asyncio.sleep(0)
    if at > len(body):
        raise CorruptSegment("the last entry is cut")
    return found


def _decode_some(body: bytes, at: int, found: dict[str, CollectedEntry]) -> int:
    """Entries from byte `at` on, and the byte behind them: past the end where the last one is cut.
    Without a cursor, as that takes five times as long."""
    end = len(body)
    for _ in range(_DECODED_AT_ONCE):
        if at >= end:
            break
        (size,) = _STRING_SIZE.unpack_from(body, at)
        at += 2
        key = body[at : at + size].decode()
        at += size
        (size,) = _STRING_SIZE.unpack_from(body, at)
        at += 2
        version = body[at : at + size].decode()
        size, at = decode_uvarint(body, at + size)
        found[key] = CollectedEntry(version, body[at : at + size])
        at += size
    return at


def _unpacked(raw: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        body = unpacking.decompress(raw, OBJECT_BYTES_MAX)
    except zlib.error as error:
        raise CorruptSegment(str(error)) from None
    if not unpacking.eof or unpacking.unused_data:
        raise CorruptSegment("the object is cut, or larger than any that was written")
    return body


def collected_segment(
    collected: Collected, listed: SegmentMetadataObject
) -> RemoteLogSegmentMetadata | None:
    """What the listed object says, if that was collected from this version of it."""
    entry = collected.get(listed.stored.key)
    if entry is None or entry.version != listed.stored.version:
        return None
    try:
        event = decode_entry(entry.entry, listed.segment_id.topic_id_partition, listed.stored.key)
    except CorruptSegment:
        return None
    if not isinstance(event, RemoteLogSegmentMetadata):
        return None
    same = (event.segment_id, event.start_offset) == (listed.segment_id, listed.base_offset)
    return event if same else None
