"""Whole messages from tables of their fields, for the APIs that the proxy answers itself.

A table repeats Kafka's message JSON: each field's type and the versions that have it. Fields become
the keys of a dict, with Kafka's names in snake_case. Tagged fields are skipped when read and never
written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct as Packed
from typing import Any

from fetchproxy_protocol.apis import MalformedMessage, is_flexible
from fetchproxy_protocol.headers import response_header_version
from fetchproxy_protocol.primitives import (
    FLOAT64,
    INT16,
    INT32,
    INT64,
    Buffer,
    Cursor,
    encode_bytes,
    encode_count,
    encode_string,
)

Fields = dict[str, Any]  # Any: only the table knows a field's type

_INT8 = Packed(">b")
_LATEST_VERSION = 0x7FFF

# Elements of all arrays of one request: twice the partitions that a client names at once. Reading
# an element takes some microseconds, during which no other client is served, and many times its
# bytes in memory.
ELEMENTS_MAX = 20_000


class _RequestCursor(Cursor):
    """Counts down the array elements that may still be read."""

    __slots__ = ("elements_left",)

    def __init__(self, buf: Buffer, pos: int) -> None:
        super().__init__(buf, pos)
        self.elements_left = ELEMENTS_MAX

    def count(self, flexible: bool) -> int | None:
        count = super().count(flexible)
        self.elements_left -= count or 0
        if self.elements_left < 0:
            raise MalformedMessage(
                f"{ELEMENTS_MAX - self.elements_left} elements up to the array before byte "
                f"{self.pos}; expected at most {ELEMENTS_MAX} in a request"
            )
        return count


class Kind(ABC):
    """Reads and writes one kind of value."""

    @abstractmethod
    def read(self, cursor: Cursor, version: int, flexible: bool) -> Any: ...

    @abstractmethod
    def write(self, out: bytearray, value: Any, version: int, flexible: bool) -> None: ...


class _Plain(Kind):
    """A value with the same form in all versions."""

    def __init__(
        self, read: Callable[[Cursor, bool], Any], encode: Callable[[Any, bool], bytes]
    ) -> None:
        self._read = read
        self._encode = encode

    def read(self, cursor: Cursor, version: int, flexible: bool) -> Any:
        return self._read(cursor, flexible)

    def write(self, out: bytearray, value: Any, version: int, flexible: bool) -> None:
        out += self._encode(value, flexible)


def _bytes(cursor: Cursor, flexible: bool) -> bytes:
    value = cursor.nullable_bytes(flexible)
    if value is None:
        raise MalformedMessage(f"null bytes before byte {cursor.pos}")
    return value


BOOLEAN = _Plain(lambda cursor, _: cursor.boolean(), lambda value, _: bytes([bool(value)]))
I8 = _Plain(lambda cursor, _: cursor.int8(), lambda value, _: _INT8.pack(value))
I16 = _Plain(lambda cursor, _: cursor.int16(), lambda value, _: INT16.pack(value))
I32 = _Plain(lambda cursor, _: cursor.int32(), lambda value, _: INT32.pack(value))
I64 = _Plain(lambda cursor, _: cursor.int64(), lambda value, _: INT64.pack(value))
F64 = _Plain(lambda cursor, _: cursor.float64(), lambda value, _: FLOAT64.pack(value))
ID = _Plain(lambda cursor, _: cursor.uuid(), lambda value, _: value.bytes)
TEXT = _Plain(Cursor.string, encode_string)
NULLABLE_TEXT = _Plain(Cursor.nullable_string, encode_string)
BYTES = _Plain(_bytes, encode_bytes)
NULLABLE_BYTES = _Plain(Cursor.nullable_bytes, encode_bytes)


@dataclass(frozen=True, slots=True)
class Field:
    """`since` and `until` are versions, both inclusive; other versions have `default`."""

    name: str
    kind: Kind
    since: int = 0
    until: int = _LATEST_VERSION
    default: Any = None

    def within(self, version: int) -> bool:
        return self.since <= version <= self.until


class Structure(Kind):
    """`nullable`: a byte before the fields says whether they follow; below zero it means null."""

    def __init__(self, *fields: Field, nullable: bool = False) -> None:
        self.fields = fields
        self._nullable = nullable

    def read(self, cursor: Cursor, version: int, flexible: bool) -> Any:
        if self._nullable and cursor.int8() < 0:
            return None
        found = {
            field.name: field.kind.read(cursor, version, flexible)
            if field.within(version)
            else field.default
            for field in self.fields
        }
        cursor.skip_tags(flexible)
        return found

    def write(self, out: bytearray, value: Any, version: int, flexible: bool) -> None:
        if self._nullable:
            out += _INT8.pack(-1 if value is None else 1)
            if value is None:
                return
        for field in self.fields:
            if field.within(version):
                content = value.get(field.name, field.default)
                field.kind.write(out, content, version, flexible)
        if flexible:
            out.append(0)


class Array(Kind):
    """An array of values of one kind; None is the null array."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def read(self, cursor: Cursor, version: int, flexible: bool) -> list[Any] | None:
        count = cursor.count(flexible)
        if count is None:
            return None
        return [self._kind.read(cursor, version, flexible) for _ in range(count)]

    def write(self, out: bytearray, value: Any, version: int, flexible: bool) -> None:
        out += encode_count(None if value is None else len(value), flexible)
        for element in value or ():
            self._kind.write(out, element, version, flexible)


def read_request(table: Structure, buf: Buffer, body_at: int, api_key: int, version: int) -> Fields:
    """The body of a whole request. Raises `WireError`. Left-over bytes are ignored, as by a broker
    (AbstractRequest.parseRequest): librdkafka 2.16 sends more than it should.
    """
    cursor = _RequestCursor(buf, body_at)
    fields: Fields = table.read(cursor, version, is_flexible(api_key, version))
    return fields


def write_response(
    table: Structure, values: Mapping[str, Any], api_key: int, version: int, correlation_id: int
) -> bytes:
    out = bytearray(4)
    out += INT32.pack(correlation_id)
    if response_header_version(api_key, version) == 1:
        out.append(0)
    table.write(out, values, version, is_flexible(api_key, version))
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def elements(value: Sequence[Any] | None) -> Sequence[Any]:
    """An array's elements. A null array that a client may not send counts as empty."""
    return () if value is None else value
