"""Converts messages of the formats v0 and v1 (before Kafka 0.11) to batches of format v2. Pure.

Brokers keep a log in the format in which it was written, for ever, and consumers read all formats.
The archive has one: what Kafka's own conversion changes is changed here too, and nothing else.
Offset, key and value stay. v0 has no timestamp, so it is -1. The new batches are not compressed and
have no leader epoch and no producer.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.apis import MalformedMessage, WireError
from fetchproxy_protocol.primitives import Buffer
from fetchproxy_protocol.record_batch import (
    COMPRESSION_MASK,
    CRC_COVERS_FROM,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    TIMESTAMP_TYPE_MASK,
    CompressionType,
    TooLargeToUnpack,
    decompress,
    unpack_up_to,
)

from fetchproxy.errors import LogDamaged
from fetchproxy.model import TopicIdPartition

# offset, size, CRC-32, magic, attributes; v1 also has a timestamp
_MESSAGE = Struct(">qiIbb")
_LENGTH = Struct(">i")
_TIMESTAMP = Struct(">q")
# The magic, and all fields after the CRC.
_BATCH_START = Struct(">qiib")
_BATCH_REST = Struct(">hiqqqhii")
_NO_TIMESTAMP = -1
_NO_EPOCH = _NO_PRODUCER = -1
# Messages that were not compressed become batches of at most so many records and bytes.
_RECORDS_MAX = 1_000
_BYTES_MAX = 1024 * 1024
_DELTA_MAX = 2**63 - 1  # of two timestamps
# What a message may unpack to, and the bytes after which a conversion ends: the rest comes with the
# archiver's next fetch. A worker of an archiver counts as much for its reads and uploads.
OLD_FORMAT_UNPACKED_BYTES_MAX = 64 * 1024 * 1024
CONVERTED_BYTES_ENOUGH = 16 * 1024 * 1024
# Byte of the header checksum in an LZ4 frame without a content size, as Kafka wrote it.
_LZ4_CHECKSUM_AT = 6


class _Message(NamedTuple):
    offset: int
    timestamp_ms: int
    log_append_time: bool
    key: Buffer | None
    value: Buffer | None


@dataclass(slots=True)
class _Run:
    """The messages of the next batch. With LogAppendTime a batch has one timestamp."""

    messages: list[_Message] = field(default_factory=list)
    size_bytes: int = 0

    def takes(self, message: _Message) -> bool:
        if not self.messages:
            return True
        last = self.messages[-1]
        same_time = not last.log_append_time or last.timestamp_ms == message.timestamp_ms
        return (
            last.log_append_time is message.log_append_time
            and same_time
            and len(self.messages) < _RECORDS_MAX
            and self.size_bytes < _BYTES_MAX
            and last.offset < message.offset
            and message.timestamp_ms - self.messages[0].timestamp_ms <= _DELTA_MAX
        )

    def add(self, message: _Message) -> None:
        self.messages.append(message)
        self.size_bytes += len(message.key or b"") + len(message.value or b"")

    def batch(self) -> bytes:
        """The batch, or nothing; empties the run."""
        messages, self.messages, self.size_bytes = self.messages, [], 0
        return encode_batch(messages) if messages else b""


def has_old_format(records: Buffer, position: int) -> bool:
    """Whether a message of format v0 or v1 begins at `position`, not a batch."""
    head = bytes(records[position : position + MAGIC_POSITION + 1])
    # Without a size it is not a message, but zeros of a preallocated file.
    return len(head) > MAGIC_POSITION and 0 <= head[-1] < MAGIC and any(head[8:12])


class Conversion(NamedTuple):
    """`records` in format v2 are what the first `end` bytes hold. `fault`: why the message there
    cannot be read: `TooLargeToUnpack`, or it is damaged. None: it is not whole, or enough is
    converted.
    """

    records: bytes
    end: int
    fault: WireError | None


def converted(records: memoryview, position: int = 0) -> Conversion:
    """All whole messages and batches in format v2, up to CONVERTED_BYTES_ENOUGH or the first
    message that cannot be read. Batches of v2 stay as they are; their CRCs are not checked.
    Messages that end below offset `position` are passed over, whatever is in them.
    """
    out, run, pos = bytearray(), _Run(), 0
    try:
        while len(out) < CONVERTED_BYTES_ENOUGH and (size := _size_at(records, pos)) is not None:
            entry = records[pos : pos + size]
            if entry[MAGIC_POSITION] >= MAGIC:
                out += run.batch()
                out += entry
            elif int.from_bytes(entry[:8], "big", signed=True) >= position:
                own_batch = bool(entry[MAGIC_POSITION + 1] & COMPRESSION_MASK)
                if own_batch:
                    out += run.batch()
                for message in _messages(entry):
                    if not run.takes(message):
                        out += run.batch()
                    run.add(message)
                if own_batch:
                    out += run.batch()
            pos += size
    except (WireError, StructError) as error:
        fault = error if isinstance(error, WireError) else MalformedMessage(str(error))
        return Conversion(bytes(out + run.batch()), pos, fault)
    return Conversion(bytes(out + run.batch()), pos, None)


def log_damage(tp: TopicIdPartition, offset: int, fault: WireError) -> LogDamaged:
    """The error for a `Conversion.fault` at or after `offset` of the brokers' log."""
    message = f"the broker's log is damaged at or after offset {offset}: {fault}"
    if isinstance(fault, TooLargeToUnpack):
        message = f"the message at or after offset {offset} is too large to unpack here: {fault}"
    return LogDamaged(f"{tp}: {message}")


def _size_at(records: memoryview, pos: int) -> int | None:
    """The size of the message or batch there; None: it is not whole."""
    if len(records) - pos <= MAGIC_POSITION:
        return None
    size = LOG_OVERHEAD_BYTES + _LENGTH.unpack_from(records, pos + 8)[0]
    if size <= MAGIC_POSITION:
        raise MalformedMessage(f"message at byte {pos} has {size} bytes")
    return size if size <= len(records) - pos else None


def _messages(entry: memoryview) -> Iterator[_Message]:
    """The message, or those inside it. Checks the CRC of the outer one, as a broker does."""
    offset, _, crc, magic, attributes = _MESSAGE.unpack_from(entry)
    if crc != zlib.crc32(entry[MAGIC_POSITION:]):
        raise MalformedMessage(f"the message at offset {offset} fails its CRC")
    codec = attributes & COMPRESSION_MASK
    outer = _message(entry)
    if not codec:
        yield outer
        return
    inner = memoryview(_unpacked(codec, magic, outer.value or b""))
    last = None
    for last in _inner(inner, offset):  # noqa: B007 - if one is damaged, none is converted
        pass
    # Offsets inside a v1 message are relative, the last one to the outer message's offset.
    base = offset - last.offset if last is not None and magic > 0 else 0
    for message in _inner(inner, offset):
        if outer.log_append_time:
            message = message._replace(timestamp_ms=outer.timestamp_ms, log_append_time=True)
        yield message._replace(offset=base + message.offset)


def _inner(inner: memoryview, offset: int) -> Iterator[_Message]:
    pos = 0
    while pos < len(inner):
        size = _size_at(inner, pos)
        if size is None:
            raise MalformedMessage(f"the message at offset {offset} ends inside another")
        yield _message(inner[pos : pos + size])
        pos += size


def _message(entry: memoryview) -> _Message:
    offset, _, _, magic, attributes = _MESSAGE.unpack_from(entry)
    pos, timestamp = _MESSAGE.size, _NO_TIMESTAMP
    if magic > 0:
        (timestamp,) = _TIMESTAMP.unpack_from(entry, pos)
        pos += _TIMESTAMP.size
    key, pos = _bytes_at(entry, pos)
    value, _ = _bytes_at(entry, pos)
    log_append_time = magic > 0 and bool(attributes & TIMESTAMP_TYPE_MASK)
    return _Message(offset, timestamp, log_append_time, key, value)


def _bytes_at(entry: memoryview, pos: int) -> tuple[memoryview | None, int]:
    (length,) = _LENGTH.unpack_from(entry, pos)
    pos += _LENGTH.size
    if length < 0:
        return None, pos
    if pos + length > len(entry):
        raise MalformedMessage(f"a field at byte {pos} of a message claims {length} bytes")
    return entry[pos : pos + length], pos + length


def _unpacked(codec: int, magic: int, data: Buffer) -> Buffer:
    if codec != CompressionType.LZ4 or magic > 0:
        return decompress(codec, data, OLD_FORMAT_UNPACKED_BYTES_MAX)
    # Kafka computed the frame's header checksum wrongly in v0 (KAFKA-3160), and we have no xxHash:
    # only one of 256 values is right.
    frame = bytearray(data)
    if len(frame) <= _LZ4_CHECKSUM_AT:
        raise MalformedMessage("compressed records: not an LZ4 frame")
    for checksum in range(256):
        frame[_LZ4_CHECKSUM_AT] = checksum
        try:
            unpack_up_to(codec, frame, 0)
        except MalformedMessage:
            continue
        return decompress(codec, frame, OLD_FORMAT_UNPACKED_BYTES_MAX)
    raise MalformedMessage("compressed records: not an LZ4 frame")


def encode_batch(messages: list[_Message]) -> bytes:
    """A batch of format v2. `messages`: at least one, offsets rising."""
    first, last = messages[0], messages[-1]
    records = bytearray()
    for message in messages:
        record = bytearray(1)  # attributes
        _put_varint(record, message.timestamp_ms - first.timestamp_ms)
        _put_varint(record, message.offset - first.offset)
        for part in (message.key, message.value):
            _put_varint(record, -1 if part is None else len(part))
            record += part or b""
        _put_varint(record, 0)  # headers
        _put_varint(records, len(record))
        records += record
    attributes = TIMESTAMP_TYPE_MASK if first.log_append_time else 0
    latest_ms = max(message.timestamp_ms for message in messages)
    batch_fields = _BATCH_REST.pack(
        attributes,
        last.offset - first.offset,
        first.timestamp_ms,
        latest_ms,
        _NO_PRODUCER,
        _NO_EPOCH,
        -1,  # no sequence
        len(messages),
    )
    size = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(records)
    start = _BATCH_START.pack(first.offset, size, _NO_EPOCH, MAGIC)
    crc = crc32c(batch_fields + records).to_bytes(CRC_COVERS_FROM - len(start), "big")
    return b"".join((start, crc, batch_fields, records))


def _put_varint(out: bytearray, value: int) -> None:
    """Kafka's zig-zag varint and varlong."""
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
