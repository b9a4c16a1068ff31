"""An oracle for tests: encodes any message from Kafka's own JSON schema, unknown tags included.

Values are dicts by schema field name; `_tags` of a struct holds its unknown tagged fields as
{tag: bytes}. The schemas are those that kafka-python bundles; `schemas/` has the ones it lacks,
from Apache Kafka's kafka-clients jar (without their prose; v0 from 4.0 joined in).
"""

from __future__ import annotations

import json
import struct
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

UNKNOWN_TAG_MIN = 40
_INTS = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q"}
_FIXED = {**_INTS, "float64": ">d", "bool": ">?"}


@cache
def schema(name: str) -> dict[str, Any]:
    schema_file = Path(__file__).parent / "schemas" / f"{name}.json"
    if schema_file.exists():
        text = schema_file.read_text()
    else:
        bundled = resources.files("kafka.protocol.schemas.resources")
        text = (bundled / f"{name}.json").read_text()
    lines = [line for line in text.splitlines() if not line.strip().startswith("//")]
    return json.loads("\n".join(lines))


def covers(versions: str | None, version: int) -> bool:
    if versions is None or versions == "none":
        return False
    low, _, high = versions.partition("-")
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    return int(low) <= version <= int(high or low)


def is_flexible(name: str, version: int) -> bool:
    return covers(schema(name)["flexibleVersions"], version)


def uvarint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _length(size: int | None, flexible: bool, classic: str) -> bytes:
    if flexible:
        return uvarint(0 if size is None else size + 1)
    return struct.pack(classic, -1 if size is None else size)


def _encode_value(field: dict[str, Any], kind: str, value: Any, version: int, flex: bool) -> bytes:
    if kind.startswith("[]"):
        head = _length(None if value is None else len(value), flex, ">i")
        items = value or []
        return head + b"".join(_encode_value(field, kind[2:], v, version, flex) for v in items)
    if kind in _FIXED:
        return struct.pack(_FIXED[kind], value)
    if kind == "uuid":
        return value
    if kind == "string":
        raw = None if value is None else value.encode()
        return _length(None if raw is None else len(raw), flex, ">h") + (raw or b"")
    if kind in ("bytes", "records"):
        return _length(None if value is None else len(value), flex, ">i") + (value or b"")
    return _encode_fields(field["fields"], value, version, flex)


def _encode_fields(fields: list[Any], value: dict[str, Any], version: int, flex: bool) -> bytes:
    out = b""
    tagged: dict[int, bytes] = dict(value.get("_tags", {})) if flex else {}
    for field in fields:
        if not covers(field["versions"], version):
            continue
        if covers(field.get("taggedVersions"), version):
            if field["name"] in value:
                content = value[field["name"]]
                tagged[field["tag"]] = _encode_value(field, field["type"], content, version, flex)
            continue
        out += _encode_value(field, field["type"], value[field["name"]], version, flex)
    if flex:
        out += uvarint(len(tagged))
        for tag, raw in sorted(tagged.items()):
            out += uvarint(tag) + uvarint(len(raw)) + raw
    return out


def encode_body(name: str, version: int, value: dict[str, Any]) -> bytes:
    return _encode_fields(schema(name)["fields"], value, version, is_flexible(name, version))


def encode_response(
    name: str, version: int, value: dict[str, Any], correlation_id: int = 7
) -> bytes:
    """With the response header, without a size prefix. `_header_tags` of the value go there."""
    head = struct.pack(">i", correlation_id)
    if is_flexible(name, version) and name != "ApiVersionsResponse":
        tags = value.get("_header_tags", {})
        head += uvarint(len(tags))
        for tag, raw in sorted(tags.items()):
            head += uvarint(tag) + uvarint(len(raw)) + raw
    return head + encode_body(name, version, value)


_unknown_tags = st.one_of(
    st.just({}),
    st.dictionaries(st.integers(UNKNOWN_TAG_MIN, 70_000), st.binary(max_size=140), max_size=2),
)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def _scalar(kind: str) -> st.SearchStrategy[Any]:
    if kind == "bool":
        return st.booleans()
    if kind == "float64":
        return st.floats(allow_nan=False)
    if kind in _INTS:
        bits = 8 * struct.calcsize(_INTS[kind])
        low, high = (0, 2**bits) if kind == "uint16" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        return st.one_of(st.integers(-1 if low else 0, 9), st.integers(low, high - 1))
    if kind == "uuid":
        return st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16))
    if kind == "string":
        return _text
    return st.binary(max_size=60)


def _values(field: dict[str, Any], kind: str, version: int, flex: bool) -> st.SearchStrategy[Any]:
    if kind.startswith("[]"):
        inner = _values(field, kind[2:], version, flex)
        longest = 150 if kind == "[]int32" else 3
        strategy = st.one_of(st.lists(inner, max_size=3), st.lists(inner, max_size=longest))
    elif "fields" in field:
        strategy = _structs(field["fields"], version, flex)
    else:
        strategy = _scalar(kind)
    if covers(field.get("nullableVersions"), version) and kind == field["type"]:
        return st.one_of(strategy, st.none())
    return strategy


def _structs(fields: list[Any], version: int, flex: bool) -> st.SearchStrategy[Any]:
    required, optional = {}, {}
    for field in fields:
        if covers(field["versions"], version):
            target = optional if covers(field.get("taggedVersions"), version) else required
            target[field["name"]] = _values(field, field["type"], version, flex)
    if flex:
        required["_tags"] = _unknown_tags
    return st.fixed_dictionaries(required, optional=optional)


@cache
def values(name: str, version: int) -> st.SearchStrategy[dict[str, Any]]:
    """Values of the message at that version, with unknown tags at every level and the header."""
    flex = is_flexible(name, version)
    body = _structs(schema(name)["fields"], version, flex)
    return st.builds(lambda value, tags: value | {"_header_tags": tags}, body, _unknown_tags)
