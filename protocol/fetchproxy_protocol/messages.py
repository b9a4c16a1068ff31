"""Whole messages from tables of their fields, for the APIs that the proxy answers itself.

A table repeats Kafka's message JSON: each field's type and the versions that have it. Fields become
the keys of a dict, with Kafka's names in snake_case. Tagged fields are skipped when read and never
written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct as Packed
from typing import Any

from fetchproxy_protocol.apis import MalformedMessage, is_flexible
from fetchproxy_protocol.headers import response_body, response_header_version
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

MessageFields = dict[str, Any]  # Any: only the table knows a field's type

_INT8 = Packed(">b")
_LATEST_VERSION = 0x7FFF

# Elements of all arrays of one request: twice the partitions that a client names at once. An
# element takes many times its bytes in memory.
ELEMENTS_MAX = 20_000


# A step over this many elements takes about a millisecond.
ELEMENTS_PER_STEP = 100

_Steps = Generator[None, None, Any]


class _RequestCursor(Cursor):
    """Counts down the array elements that may still be read."""

    __slots__ = ("_elements_max", "elements_left", "read")

    def __init__(self, buf: Buffer, pos: int, elements_max: int) -> None:
        super().__init__(buf, pos)
        self._elements_max = self.elements_left = elements_max
        self.read = 0

    def count(self, flexible: bool) -> int | None:
        count = super().count(flexible)
        self.elements_left -= count or 0
        if self.elements_left < 0:
            elements_max = self._elements_max
            raise MalformedMessage(
                f"{elements_max - self.elements_left} elements up to the array before byte "
                f"{self.pos}; expected at most {elements_max} in a request"
            )
        return count


class _Writing(bytearray):
    """Bytes written so far. `elements`: how many elements of arrays they have."""

    elements = 0


class Composite(ABC):
    """Reads and writes a kind of value that has others in it. The generators yield
    after every ELEMENTS_PER_STEP array elements, so that the caller can serve other clients.
    """

    @abstractmethod
    def read(self, cursor: _RequestCursor, version: int, flexible: bool) -> _Steps: ...

    @abstractmethod
    def write(self, out: _Writing, value: Any, version: int, flexible: bool) -> _Steps: ...


class Plain:
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


BOOLEAN = Plain(lambda cursor, _: cursor.boolean(), lambda value, _: bytes([bool(value)]))
I8 = Plain(lambda cursor, _: cursor.int8(), lambda value, _: _INT8.pack(value))
I16 = Plain(lambda cursor, _: cursor.int16(), lambda value, _: INT16.pack(value))
I32 = Plain(lambda cursor, _: cursor.int32(), lambda value, _: INT32.pack(value))
I64 = Plain(lambda cursor, _: cursor.int64(), lambda value, _: INT64.pack(value))
F64 = Plain(lambda cursor, _: cursor.float64(), lambda value, _: FLOAT64.pack(value))
ID = Plain(lambda cursor, _: cursor.uuid(), lambda value, _: value.bytes)
TEXT = Plain(Cursor.string, encode_string)
NULLABLE_TEXT = Plain(Cursor.nullable_string, encode_string)
BYTES = Plain(_bytes, encode_bytes)
NULLABLE_BYTES = Plain(Cursor.nullable_bytes, encode_bytes)


MessageFieldKind = Plain | Composite


@dataclass(frozen=True, slots=True)
class Field:
    """`since` and `until` are versions, both inclusive; other versions have `default`."""

    name: str
    kind: MessageFieldKind
    since: int = 0
    until: int = _LATEST_VERSION
    default: Any = None

    def within(self, version: int) -> bool:
        return self.since <= version <= self.until


class Structure(Composite):
    """`nullable`: a byte before the fields says whether they follow; below zero it means null."""

    def __init__(self, *fields: Field, nullable: bool = False) -> None:
        self.fields = fields
        self._nullable = nullable

    def read(self, cursor: _RequestCursor, version: int, flexible: bool) -> _Steps:
        if self._nullable and cursor.int8() < 0:
            return None
        fields: MessageFields = {}
        for field in self.fields:
            kind = field.kind
            if not field.within(version):
                fields[field.name] = field.default
            elif isinstance(kind, Plain):
                fields[field.name] = kind.read(cursor, version, flexible)
            else:
                fields[field.name] = yield from kind.read(cursor, version, flexible)
        cursor.skip_tags(flexible)
        return fields

    def write(self, out: _Writing, value: Any, version: int, flexible: bool) -> _Steps:
        if self._nullable:
            out += _INT8.pack(-1 if value is None else 1)
            if value is None:
                return
        for field in self.fields:
            if not field.within(version):
                continue
            kind, content = field.kind, value.get(field.name, field.default)
            if isinstance(kind, Plain):
                kind.write(out, content, version, flexible)
            else:
                yield from kind.write(out, content, version, flexible)
        if flexible:
            out.append(0)


class Array(Composite):
    """An array of values of one kind; None is the null array."""

    def __init__(self, kind: MessageFieldKind) -> None:
        self._kind = kind

    def read(self, cursor: _RequestCursor, version: int, flexible: bool) -> _Steps:
        count, kind = cursor.count(flexible), self._kind
        if count is None:
            return None
        elements = []
        for _ in range(count):
            cursor.read += 1
            if not cursor.read % ELEMENTS_PER_STEP:
                yield
            if isinstance(kind, Plain):
                elements.append(kind.read(cursor, version, flexible))
            else:
                elements.append((yield from kind.read(cursor, version, flexible)))
        return elements

    def write(self, out: _Writing, value: Any, version: int, flexible: bool) -> _Steps:
        kind = self._kind
        out += encode_count(None if value is None else len(value), flexible)
        for element in value or ():
            out.elements += 1
            if not out.elements % ELEMENTS_PER_STEP:
                yield
            if isinstance(kind, Plain):
                kind.write(out, element, version, flexible)
            else:
                yield from kind.write(out, element, version, flexible)


def read_request(
    table: Structure,
    buf: Buffer,
    body_at: int,
    api_key: int,
    version: int,
    elements_max: int = ELEMENTS_MAX,
) -> Generator[None, None, MessageFields]:
    """The body of a whole request, in steps. Raises `WireError`. Left-over bytes are ignored, as by
    a broker (AbstractRequest.parseRequest): librdkafka 2.16 sends more than it should.
    """
    cursor = _RequestCursor(buf, body_at, elements_max)
    fields: MessageFields = yield from table.read(cursor, version, is_flexible(api_key, version))
    return fields


def write_response(
    table: Structure, values: Mapping[str, Any], api_key: int, version: int, correlation_id: int
) -> Generator[None, None, Buffer]:
    """In steps, with its size prefix."""
    out = _Writing(4)
    out += INT32.pack(correlation_id)
    if response_header_version(api_key, version) == 1:
        out.append(0)
    yield from table.write(out, values, version, is_flexible(api_key, version))
    INT32.pack_into(out, 0, len(out) - 4)
    return out


def encode_body(table: Structure, values: Mapping[str, Any], api_key: int, version: int) -> bytes:
    """The body of a request or a response at once: for the program's own, short messages."""
    out = _Writing()
    for _ in table.write(out, values, version, is_flexible(api_key, version)):
        pass
    return bytes(out)


def decode_response(table: Structure, payload: Buffer, api_key: int, version: int) -> MessageFields:
    """A whole response without its size prefix, at once. Raises `WireError`."""
    body = response_body(payload, api_key, version)
    cursor = _RequestCursor(payload, body.pos, ELEMENTS_MAX)
    steps = table.read(cursor, version, is_flexible(api_key, version))
    while True:
        try:
            next(steps)
        except StopIteration as read:
            return read.value  # type: ignore[no-any-return]


def elements(value: Sequence[Any] | None) -> Sequence[Any]:
    """An array's elements. A null array that a client may not send counts as empty."""
    return () if value is None else value
