"""Kafka's messages from Kafka's own schemas, with one array as long as a frame allows. Pure.

Every API and version that kafka-python describes. The long array may be nested; its elements have
distinct names, the same name, empty names or names of full length. An element is encoded once and
repeated by joins, so that 100,000 elements take milliseconds.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from fetchproxy_protocol.apis import ApiKey, is_flexible
from fetchproxy_protocol.headers import request_header
from message_schema import covers, schema, uvarint

CLIENT_ID = "hostile"
HEX = 8  # digits of a number in a name
STRING_BYTES_MAX = 32_767
TOPIC_BYTES_MAX = 249
# What stands for the number of an element, by the depth of its array, until elements are joined.
_TEXT_MARKS = ("~~name0~", "~~name1~", "~~name2~", "~~name3~")
_INT_MARKS = tuple(struct.pack(">I", 0x7D7E7F00 + depth) for depth in range(4))
_WIDTHS = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "int64": 8, "float64": 8}
_PARTITIONS = ("Partition", "PartitionIndex", "PartitionId", "Index", "[]int32")
# So that a request gets past the first checks. `Partition` and the like come from the marks.
USUAL: Mapping[str, Any] = {
    "SessionTimeoutMs": 10_000,
    "RebalanceTimeoutMs": 1_000,
    "ProtocolType": "consumer",
    "GenerationId": -1,
    "GenerationIdOrMemberEpoch": -1,
    "MemberEpoch": -1,
    "MemberId": "",
    "GroupInstanceId": None,
    "ReplicaId": -1,
    "SessionEpoch": -1,
    "MaxBytes": 1 << 20,
    "PartitionMaxBytes": 1 << 10,
    "MaxWaitMs": 0,
    "ResponsePartitionLimit": 2_000,
    "TimeoutMs": 100,
    "CurrentLeaderEpoch": -1,
    "LeaderEpoch": -1,
    "ResourceType": 2,
    "EndpointType": 1,
    "Acks": 1,
    "Host": "127.0.0.1",
    "ClusterId": None,
    "TransactionalId": None,
}

Path = tuple[str, ...]


@dataclass(frozen=True)
class Shape:
    """Which array is long, of which elements. `names`: distinct, same, empty, full or known.

    `frame_bytes`: the whole message at most. `counts`: lengths of arrays around the long one; all
    others have one element. `fixed`: values by name of field, beside USUAL.
    """

    long: Path | None = None
    names: str = "distinct"
    frame_bytes: int = 1 << 20
    elements_max: int = 1 << 30
    counts: Mapping[Path, int] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    known: str = "orders"
    salt: int = 0  # others give other distinct names
    odd: int = 0  # seed of odd numbers in the place of usual ones; 0: none


def message_name(api_key: int, kind: str = "Request") -> str:
    return "".join(word.capitalize() for word in ApiKey(api_key).name.split("_")) + kind


@cache
def described() -> tuple[int, ...]:
    """API keys whose requests and responses have a schema."""
    names = {each.name for each in resources.files("kafka.protocol.schemas.resources").iterdir()}
    return tuple(
        int(key)
        for key in ApiKey
        if {f"{message_name(key)}.json", f"{message_name(key, 'Response')}.json"} <= names
    )


def versions_of(api_key: int) -> range:
    low, _, high = schema(message_name(api_key))["validVersions"].partition("-")
    return range(int(low), int(high or low) + 1)


def arrays_of(name: str, version: int) -> list[Path]:
    """The paths of all arrays of the message at this version, nested ones too."""
    return list(_arrays(name, schema(name)["fields"], version, ()))


def _arrays(name: str, fields: list[Any], version: int, path: Path) -> Iterator[Path]:
    for one in fields:
        if not covers(one["versions"], version) or covers(one.get("taggedVersions"), version):
            continue
        here = (*path, one["name"])
        if one["type"].startswith("[]"):
            yield here
        if inner := _fields_of(name, one):
            yield from _arrays(name, inner, version, here)


def _fields_of(name: str, one: dict[str, Any]) -> list[Any] | None:
    if "fields" in one:
        return one["fields"]
    of = one["type"].removeprefix("[]")
    common = {each["name"]: each["fields"] for each in schema(name).get("commonStructs", ())}
    return common.get(of)


class _Writer:
    def __init__(self, name: str, version: int, flexible: bool, shape: Shape, count: int) -> None:
        self._name, self._version, self._flexible = name, version, flexible
        self._shape, self._count = shape, count
        self._rng = random.Random(shape.odd)

    def body(self) -> bytes:
        return self._fields(schema(self._name)["fields"], (), 0)

    def _fields(self, fields: list[Any], path: Path, depth: int) -> bytes:
        out = b"".join(
            self._field(one, (*path, one["name"]), depth)
            for one in fields
            if covers(one["versions"], self._version)
            and not covers(one.get("taggedVersions"), self._version)
        )
        return out + (b"\x00" if self._flexible else b"")

    def _field(self, one: dict[str, Any], path: Path, depth: int) -> bytes:
        kind = one["type"]
        if kind.startswith("[]"):
            return self._array(one, path, depth)
        if inner := _fields_of(self._name, one):
            nullable = covers(one.get("nullableVersions"), self._version)
            if nullable and self._shape.fixed.get(one["name"], _NOT_GIVEN) is None:
                return b"\xff"
            return (b"\x01" if nullable else b"") + self._fields(inner, path, depth)
        return self._value(one, kind, path, depth)

    def _array(self, one: dict[str, Any], path: Path, depth: int) -> bytes:
        count = self._shape.counts.get(path, 1)
        if path == self._shape.long:
            count = self._count
        inner = _fields_of(self._name, one)
        if inner:
            element = self._fields(inner, path, depth + 1)
        else:
            element = self._value(one, one["type"][2:], path, depth + 1)
        return self._length(count, ">i") + repeated(
            element, count, depth + 1, self._shape.salt << 20
        )

    def _length(self, size: int | None, classic: str) -> bytes:
        if self._flexible:
            return uvarint(0 if size is None else size + 1)
        return struct.pack(classic, -1 if size is None else size)

    def _value(self, one: dict[str, Any], kind: str, path: Path, depth: int) -> bytes:
        nullable = covers(one.get("nullableVersions"), self._version)
        value = {**USUAL, **self._shape.fixed}.get(one["name"], _NOT_GIVEN)
        if kind in _WIDTHS:
            return self._number(one, kind, value, depth)
        if kind == "uuid":
            mark = _TEXT_MARKS[depth] if self._shape.names == "distinct" else "same-id-"
            return value if isinstance(value, bytes) else b"hostile-" + mark.encode()
        if kind == "string":
            text = self._text(one, path, depth) if value is _NOT_GIVEN else value
            if text is None and not nullable:
                text = ""
            raw = None if text is None else text.encode()
            return self._length(None if raw is None else len(raw), ">h") + (raw or b"")
        raw = value if isinstance(value, bytes) else b""
        return self._length(len(raw), ">i") + raw

    def _number(self, one: dict[str, Any], kind: str, value: Any, depth: int) -> bytes:
        width = _WIDTHS[kind]
        place = one["name"] if not one["type"].startswith("[]") else one["type"]
        if kind == "int32" and place in _PARTITIONS and depth and value is _NOT_GIVEN:
            return _INT_MARKS[depth] if self._shape.names == "distinct" else bytes(4)
        if self._shape.odd and self._rng.random() < 0.2:
            edge = 1 << (8 * width - 1)
            value = self._rng.choice((0, 1, -1, -2, -3, -4, -5, 7, edge - 1, -edge))
        if value is _NOT_GIVEN or value is None:
            value = 0
        return int(value % (1 << 8 * width)).to_bytes(width, "big")

    def _text(self, one: dict[str, Any], path: Path, depth: int) -> str:
        names, mark = self._shape.names, _TEXT_MARKS[depth]
        within = self._shape.long is not None and path[: len(self._shape.long)] == self._shape.long
        if names == "known":
            return self._shape.known
        if not within:
            return "hostile"
        if names == "full":
            topic = one.get("entityType") == "topicName"
            return mark + "n" * ((TOPIC_BYTES_MAX if topic else STRING_BYTES_MAX) - len(mark))
        return {"distinct": mark, "same": "hostile", "empty": ""}[names]


_NOT_GIVEN = object()


def repeated(element: bytes, count: int, depth: int, salt: int = 0) -> bytes:
    """`count` times the element, with its number in the place of each mark of this depth."""
    text, number = _TEXT_MARKS[depth].encode(), _INT_MARKS[depth]
    if text not in element and number not in element:
        return element * count
    if element.count(text) == 1 and number not in element:
        before, after = element.split(text)
        return b"".join([before + b"%08x" % (i + salt) + after for i in range(count)])
    return b"".join(
        [
            element.replace(text, b"%08x" % (i + salt)).replace(number, struct.pack(">i", i))
            for i in range(count)
        ]
    )


def body_of(name: str, version: int, flexible: bool, shape: Shape, room: int) -> bytes:
    """A body of at most `room` bytes, if one element fits."""

    def made(count: int) -> bytes:
        return _Writer(name, version, flexible, shape, count).body()

    if shape.long is None:
        return made(1)
    one, two = len(made(1)), len(made(2))
    count = 1 + max(0, room - one - 10) // max(1, two - one)
    return made(min(count, shape.elements_max))


def request(
    api_key: int, version: int, shape: Shape, correlation: int = 7, client: str = CLIENT_ID
) -> bytes:
    """With its size prefix."""
    head = request_header(api_key, version, correlation, client)
    flexible = is_flexible(api_key, version)
    room = shape.frame_bytes - len(head) - 4
    frame = head + body_of(message_name(api_key), version, flexible, shape, room)
    return struct.pack(">i", len(frame)) + frame


def response(api_key: int, version: int, shape: Shape, correlation: int) -> bytes:
    """With its size prefix."""
    flexible = is_flexible(api_key, version)
    head = struct.pack(">i", correlation)
    if flexible and api_key != ApiKey.API_VERSIONS:
        head += b"\x00"
    room = shape.frame_bytes - len(head) - 4
    frame = head + body_of(message_name(api_key, "Response"), version, flexible, shape, room)
    return struct.pack(">i", len(frame)) + frame
