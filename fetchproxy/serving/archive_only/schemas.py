"""The messages' fields, version by version: Kafka's own schemas, as kafka-python ships them.

The codec is `fetchproxy_protocol.messages`: kafka-python's codec accepts cut strings and negative
counts, and writes more slowly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any
from uuid import UUID

from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.messages import (
    BOOLEAN,
    BYTES,
    F64,
    I8,
    I16,
    I32,
    I64,
    ID,
    NULLABLE_BYTES,
    NULLABLE_TEXT,
    TEXT,
    Array,
    Field,
    MessageFieldKind,
    Structure,
)

_SCHEMAS = "kafka.protocol.schemas.resources"
_LATEST_VERSION = 0x7FFF
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_PLAIN: Mapping[str, MessageFieldKind] = {
    "bool": BOOLEAN,
    "int8": I8,
    "int16": I16,
    "int32": I32,
    "int64": I64,
    "float64": F64,
    "uuid": ID,
    "string": TEXT,
    "bytes": BYTES,
    "records": NULLABLE_BYTES,
}
_NULLABLE: Mapping[str, MessageFieldKind] = {"string": NULLABLE_TEXT, "bytes": NULLABLE_BYTES}
_ABSENT: Mapping[str, Any] = {
    "bool": False,
    "uuid": UUID(int=0),
    "string": "",
    "bytes": b"",
}


@cache
def message(name: str) -> Structure:
    """By Kafka's name, such as `JoinGroupRequest`."""
    text = resources.files(_SCHEMAS).joinpath(f"{name}.json").read_text(encoding="utf-8")
    schema = json.loads(_COMMENT.sub("", text))
    named = {each["name"]: each["fields"] for each in schema.get("commonStructs", ())}
    return Structure(*_fields(schema["fields"], named))


@cache
def request_of(api_key: int) -> Structure:
    return message(f"{_camel(api_key)}Request")


@cache
def response_of(api_key: int) -> Structure:
    return message(f"{_camel(api_key)}Response")


def _camel(api_key: int) -> str:
    return "".join(word.capitalize() for word in ApiKey(api_key).name.split("_"))


def _fields(schemas: list[dict[str, Any]], named: Mapping[str, Any]) -> list[Field]:
    """Leaves out tagged fields: the codec skips them and writes none."""
    fields = []
    for schema in schemas:
        since, until = _range(schema["versions"])
        tagged = schema.get("taggedVersions")
        if tagged is not None and _range(tagged)[0] <= since:
            continue
        name = _WORD.sub("_", schema["name"]).lower()
        fields.append(Field(name, _kind(schema, named), since, until, _default(schema)))
    return fields


def _range(versions: str) -> tuple[int, int]:
    """The versions of "3", "3-5" or "3+"."""
    low, _, high = versions.partition("-")
    if versions.endswith("+"):
        return int(versions[:-1]), _LATEST_VERSION
    return int(low), int(high or low)


def _kind(schema: dict[str, Any], named: Mapping[str, Any]) -> MessageFieldKind:
    """A field nullable in some version is so in all: clients send no null in the others."""
    of, is_array = schema["type"].removeprefix("[]"), schema["type"].startswith("[]")
    nullable = "nullableVersions" in schema and not is_array
    fields = schema.get("fields") or named.get(of)
    kind: MessageFieldKind
    if fields is not None:
        kind = Structure(*_fields(fields, named), nullable=nullable)
    else:
        kind = _NULLABLE.get(of, _PLAIN[of]) if nullable else _PLAIN[of]
    return Array(kind) if is_array else kind


def _default(schema: dict[str, Any]) -> Any:
    """The value if a version has no such field, or a response sets none.

    If Kafka's schema has no default, nullable fields are null.
    """
    of, text = schema["type"], schema.get("default")
    if text is None:
        is_array = of.startswith("[]")
        return () if is_array else None if "nullableVersions" in schema else _ABSENT.get(of, 0)
    if text == "null":
        return None
    if of == "string":
        return text
    return text in (True, "true") if of == "bool" else int(str(text), 0)
