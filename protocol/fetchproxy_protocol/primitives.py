"""Kafka's primitive types: a bounds-checked `Cursor` to read, plain functions to write.

Sources: Kafka protocol guide, KIP-482 (compact and tagged forms). `flexible` selects the compact
form (uvarint of length + 1, 0 is null) instead of the classic form (int16/int32 lengths, -1 is
null). A read past the end raises `Truncated`, other malformed bytes raise `MalformedMessage`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from fetchproxy_protocol.apis import MalformedMessage, Truncated

Buffer = bytes | bytearray | memoryview

INT16 = Struct(">h")
INT32 = Struct(">i")
UINT32 = Struct(">I")
INT64 = Struct(">q")
FLOAT64 = Struct(">d")

UVARINT_BYTES_MAX = 5
# No Kafka message has ten tagged fields. Without a bound, 4 MiB could hold two million empty ones.
TAGGED_FIELDS_MAX = 64

# A caller that takes one entry after the other cannot pause between topics without one.
EMPTY_TOPICS_MAX = 1_000

# By `flexible`, for `Cursor.rows`: the place and value of the byte that says "no tagged fields".
NO_TAGS: dict[bool, dict[int, int]] = {False: {}, True: {-1: 0}}


class TopicRows(NamedTuple):
    """Entries of one topic's partitions. The first is at `position`; each next one begins `stride`
    bytes later.
    """

    topic: str
    rows: Iterator[tuple[Any, ...]]
    position: int
    stride: int


def encode_uvarint(value: int) -> bytes:
    """KIP-482 unsigned varint of a value in 0 … 2^32 - 1."""
    if value < 0x80:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_uvarint_in(value: int, size: int) -> bytes:
    """A uvarint of exactly `size` bytes, with leading zeros, which decoders accept. Raises
    MalformedMessage if `value` does not fit.
    """
    encoded = bytearray(encode_uvarint(value))
    if len(encoded) > size:
        raise MalformedMessage(f"{value} does not fit into {size} bytes")
    while len(encoded) < size:
        encoded[-1] |= 0x80
        encoded.append(0)
    return bytes(encoded)


def decode_uvarint(buf: Buffer, pos: int, end: int | None = None) -> tuple[int, int]:
    """(value, position after it). Never reads at or after `end`."""
    limit = len(buf) if end is None else end
    value = shift = 0
    for position in range(pos, pos + UVARINT_BYTES_MAX):
        if position >= limit:
            raise Truncated(f"uvarint at byte {pos} has no end")
        byte = buf[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise MalformedMessage(f"uvarint at byte {pos} is longer than {UVARINT_BYTES_MAX} bytes")


def encode_string(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    raw = value.encode()
    return (encode_uvarint(len(raw) + 1) if flexible else INT16.pack(len(raw))) + raw


def encode_bytes(value: bytes | None, flexible: bool) -> bytes:
    if value is None:
        return b"\x00" if flexible else b"\xff\xff\xff\xff"
    return (encode_uvarint(len(value) + 1) if flexible else INT32.pack(len(value))) + value


def encode_count(count: int | None, flexible: bool) -> bytes:
    """The count before an array's elements. None: the null array."""
    if count is None:
        return b"\x00" if flexible else b"\xff\xff\xff\xff"
    return encode_uvarint(count + 1) if flexible else INT32.pack(count)


class Cursor:
    """Reads one message front to back. `pos` is the next unread byte of `buf`."""

    __slots__ = ("buf", "end", "pos")

    def __init__(self, buf: Buffer, pos: int = 0, end: int | None = None) -> None:
        self.buf = buf
        self.pos = pos
        self.end = len(buf) if end is None else end

    @property
    def remaining(self) -> int:
        return self.end - self.pos

    def skip(self, size: int, field: str = "field") -> int:
        start = self.pos
        if size < 0:
            raise MalformedMessage(f"{field} at byte {start} has negative length {size}")
        if start + size > self.end:
            raise Truncated(f"{field} at byte {start} needs {size} bytes, {self.end - start} left")
        self.pos = start + size
        return start

    def int8(self) -> int:
        value = self.buf[self.skip(1, "int8")]
        return value - 256 if value > 127 else value

    def boolean(self) -> bool:
        return self.buf[self.skip(1, "boolean")] != 0

    def int16(self) -> int:
        return INT16.unpack_from(self.buf, self.skip(2, "int16"))[0]  # type: ignore[no-any-return]

    def int32(self) -> int:
        return INT32.unpack_from(self.buf, self.skip(4, "int32"))[0]  # type: ignore[no-any-return]

    def int64(self) -> int:
        return INT64.unpack_from(self.buf, self.skip(8, "int64"))[0]  # type: ignore[no-any-return]

    def float64(self) -> float:
        return FLOAT64.unpack_from(self.buf, self.skip(8, "float64"))[0]  # type: ignore[no-any-return]

    def uuid(self) -> UUID:
        start = self.skip(16, "uuid")
        return UUID(bytes=bytes(self.buf[start : start + 16]))

    def uvarint(self) -> int:
        pos = self.pos
        if pos < self.end and (byte := self.buf[pos]) < 0x80:
            self.pos = pos + 1
            return byte
        value, self.pos = decode_uvarint(self.buf, pos, self.end)
        return value

    def _length(self, flexible: bool, wide: bool) -> int:
        if flexible:
            return self.uvarint() - 1
        length = self.int32() if wide else self.int16()
        if length < -1:
            raise MalformedMessage(f"length {length} before byte {self.pos}")
        return length

    def nullable_string(self, flexible: bool) -> str | None:
        length = self._length(flexible, wide=False)
        if length < 0:
            return None
        start = self.skip(length, "string")
        try:
            return bytes(self.buf[start : self.pos]).decode()
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"string at byte {start} is not UTF-8: {error}") from None

    def string(self, flexible: bool) -> str:
        value = self.nullable_string(flexible)
        if value is None:
            raise MalformedMessage(f"null string before byte {self.pos}")
        return value

    def skip_string(self, flexible: bool) -> None:
        self.skip(max(self._length(flexible, wide=False), 0), "string")

    def nullable_bytes(self, flexible: bool) -> bytes | None:
        length = self._length(flexible, wide=True)
        if length < 0:
            return None
        start = self.skip(length, "bytes")
        return bytes(self.buf[start : self.pos])

    def skip_bytes(self, flexible: bool) -> None:
        self.skip(max(self._length(flexible, wide=True), 0), "bytes")

    def count(self, flexible: bool) -> int | None:
        """The number of elements of the array that follows. None: the null array.

        A count above the number of remaining bytes is malformed, so no caller loops for long.
        """
        count = self._length(flexible, wide=True)
        if count > self.remaining:
            raise MalformedMessage(
                f"array before byte {self.pos} claims {count} elements in {self.remaining} bytes"
            )
        return None if count < 0 else count

    def rows(
        self, row: Struct, count_max: int, fixed: Mapping[int, int]
    ) -> tuple[int, Iterator[tuple[Any, ...]]]:
        """The number of next entries that are as long as `row`, and these entries unpacked.

        `fixed`: bytes that prove this length, by their place in the entry (-1 is the last byte).
        They are the counts of arrays and of tagged fields. It stops before the first other entry,
        at `count_max`, or at the end of the message. Much faster than field by field.
        """
        count = min(count_max, self.remaining // row.size)
        entries = memoryview(self.buf)[self.pos : self.pos + count * row.size]
        # If an entry is as long as `row`, the next entry begins at the expected place.
        for at, byte in fixed.items():
            column = bytes(entries[at % row.size :: row.size])
            count = min(count, len(column) - len(column.lstrip(byte.to_bytes())))
        self.pos += count * row.size
        return count, row.iter_unpack(entries[: count * row.size])

    def by_topic(
        self, entry: str, flexible: bool, entries_max: int | None = None
    ) -> Iterator[TopicRows]:
        """Read an array of topics, each with a name and an array of entries: at most `entries_max`
        topics and as many entries, and EMPTY_TOPICS_MAX topics without entries.

        `entry`: the struct format of an entry's fields. Entries of a topic come together up to the
        first one with tagged fields; from there on they come one by one. The caller reads the
        fields around the array.
        """
        fields, row = Struct(entry), Struct(entry + "x" * flexible)
        topics, empty = self.count(flexible) or 0, 0
        most = self.remaining if entries_max is None else entries_max
        left = -1 if topics > most else most
        for _ in range(topics):
            topic = self.string(flexible)
            count, at = self.count(flexible) or 0, self.pos
            empty += not count
            left -= count
            if left < 0 or empty > EMPTY_TOPICS_MAX:
                raise MalformedMessage(
                    f"more than {most} partitions"
                    if left < 0
                    else f"more than {EMPTY_TOPICS_MAX} topics without a partition"
                )
            plain, rows = self.rows(row, count, NO_TAGS[flexible])
            if plain:
                yield TopicRows(topic, rows, at, row.size)
            for _ in range(count - plain):
                at = self.skip(fields.size, "entry of a partition")
                self.skip_tags(flexible)
                yield TopicRows(topic, iter([fields.unpack_from(self.buf, at)]), at, 0)
            self.skip_tags(flexible)

    def _tag_count(self) -> int:
        count = self.uvarint()
        if count > TAGGED_FIELDS_MAX:
            raise MalformedMessage(
                f"{count} tagged fields before byte {self.pos}, at most {TAGGED_FIELDS_MAX} may be"
            )
        return count

    def skip_tags(self, flexible: bool = True) -> None:
        """Step over a tagged-field section (KIP-482). Raises for more than TAGGED_FIELDS_MAX."""
        if flexible:
            for _ in range(self._tag_count()):
                self.uvarint()
                self.skip(self.uvarint(), "tagged field")

    def tags(self) -> list[tuple[int, int, int]]:
        """A tagged-field section as (tag, start, end), with positions in `buf`."""
        tag_list = []
        for _ in range(self._tag_count()):
            tag = self.uvarint()
            size = self.uvarint()
            tag_list.append((tag, self.skip(size, "tagged field"), self.pos))
        return tag_list
