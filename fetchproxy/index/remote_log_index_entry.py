"""One entry of KIP-405's remoteLogIndex: its bytes, and the checks that it passes alone. Pure.

An entry, big-endian (the KIP's own fields; where the KIP is silent the choice is named):

    magic           int16   0
    length          int16   bytes of the whole entry, from `magic` to the end of `rdi`
    crc             int32   CRC-32C (as in record batches) of everything after this field
    firstOffset     int64   base offset of the entry's first batch
    lastOffset      int64   last offset of its last batch, inclusive
    firstTimestamp  int64   base timestamp of its first batch (ms)
    lastTimestamp   int64   *largest* timestamp of all its batches (ms)
    dataLength      int32   bytes of its batches
    rdiLength       int16
    rdi             utf-8   <key of the .log object, relative to the store's root>#<byte position>

`lastTimestamp` is the largest and not the last one, because producers may send timestamps out of
order, and a search by time must be able to pass over an entry without reading its data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.errors import CorruptSegment
from protocol.primitives import Buffer

MAGIC = 0
DATA_BYTES_MAX = 2**31 - 1  # dataLength is an int32
ENTRY_BYTES_MAX = 2**15 - 1  # length is an int16

HEAD = Struct(">hhI")
_BODY = Struct(">qqqqih")
FIXED_BYTES = HEAD.size + _BODY.size


@dataclass(frozen=True, slots=True)
class IndexSpan:
    """Consecutive batches: bytes `position` … `position + length - 1`; offsets both inclusive."""

    position: int
    length: int
    first_offset: int
    last_offset: int
    first_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def end(self) -> int:
        """The byte position after the span."""
        return self.position + self.length


@dataclass(frozen=True, slots=True)
class RemoteLogIndexEntry:
    """A sequence of records in the remote tier: the `.log` object, and where in it."""

    object_key: str
    span: IndexSpan
    size_bytes: int  # of the entry itself

    @property
    def rdi(self) -> str:
        """The remote data identifier, see `split_rdi`."""
        return f"{self.object_key}#{self.span.position}"


def encode_entry(object_key: str, span: IndexSpan) -> bytes:
    """Raises ValueError where a field does not fit, as with a key of more than 32 KB."""
    rdi = f"{object_key}#{span.position}".encode()
    if FIXED_BYTES + len(rdi) > ENTRY_BYTES_MAX or span.length > DATA_BYTES_MAX:
        raise ValueError(f"index entry of {object_key[:80]!r} at {span.position} is too large")
    body = (
        _BODY.pack(
            span.first_offset,
            span.last_offset,
            span.first_timestamp_ms,
            span.max_timestamp_ms,
            span.length,
            len(rdi),
        )
        + rdi
    )
    return HEAD.pack(MAGIC, HEAD.size + len(body), crc32c(body)) + body


def read_entry(raw: Buffer, at: int) -> RemoteLogIndexEntry:
    """The entry at byte `at`. Raises CorruptSegment, without the place: the caller knows it."""
    size_bytes = _checked_length(raw, at)
    first, last, first_ts, max_ts, length, rdi_length = _BODY.unpack_from(raw, at + HEAD.size)
    if FIXED_BYTES + rdi_length != size_bytes:
        raise CorruptSegment(f"rdiLength {rdi_length} does not fill the entry")
    key, position = split_rdi(bytes(raw[at + FIXED_BYTES : at + size_bytes]))
    span = IndexSpan(position, length, first, last, first_ts, max_ts)
    return RemoteLogIndexEntry(key, span, size_bytes)


def entry_positions(raw: Buffer) -> Iterator[int]:
    """The byte at which each entry begins, in a whole index that was checked before."""
    at = 0
    while at < len(raw):
        yield at
        at += HEAD.unpack_from(raw, at)[1]


def split_rdi(rdi: bytes) -> tuple[str, int]:
    """(key of the `.log` object in its ObjectStore, byte position of the data in it).

    The same for every backend: whatever its keys look like, they are `storage.keys`' keys.
    Raises CorruptSegment.
    """
    try:
        key, _, position = rdi.decode().rpartition("#")
    except UnicodeDecodeError:
        raise CorruptSegment("rdi is not UTF-8") from None
    if not (key and position.isascii() and position.isdigit() and len(position) < 19):
        raise CorruptSegment(f"rdi {rdi[:200]!r} is not <key>#<position>")
    return key, int(position)


def _checked_length(raw: Buffer, at: int) -> int:
    """Bytes of the entry at `at`, once magic, length and checksum are right."""
    left = len(raw) - at
    if at < 0 or left < FIXED_BYTES:
        raise CorruptSegment(f"{left} bytes are no entry")
    magic, length, crc = HEAD.unpack_from(raw, at)
    if magic != MAGIC:
        raise CorruptSegment(f"magic {magic}, not {MAGIC}")
    if length < FIXED_BYTES or length > left:
        raise CorruptSegment(f"length {length}, {left} bytes are left")
    found = crc32c(memoryview(raw)[at + HEAD.size : at + length])
    if found != crc:
        raise CorruptSegment(f"checksum {found:#010x}, stored {crc:#010x}")
    return int(length)
