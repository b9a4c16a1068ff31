"""What archive-only mode reads and writes against Kafka's JSON schemas, in all versions served."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from fetchproxy_protocol.apis import ApiKey, WireError
from fetchproxy_protocol.messages import (
    Array,
    MessageFieldKind,
    Structure,
    read_request,
    write_response,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from message_schema import covers, encode_body, encode_response, schema, values

from fetchproxy.runtime.cooperative import at_once
from fetchproxy.serving.archive_only.schemas import request_of, response_of
from fetchproxy.serving.archive_only.table import ADVERTISED, API_VERSIONS_REQUEST

RANGES = {api.key: (api.lowest, api.highest) for api in ADVERTISED.values()}
OTHERWISE = {ApiKey.FETCH}  # has readers and writers of its own
TABLES: dict[str, Structure] = {
    **{f"{key.name}_REQUEST": request_of(key) for key in RANGES.keys() - OTHERWISE},
    **{f"{key.name}_RESPONSE": response_of(key) for key in RANGES.keys() - OTHERWISE},
    "API_VERSIONS_REQUEST": API_VERSIONS_REQUEST,
}


def api_of(table: str) -> tuple[ApiKey, str]:
    """(key, the message's name in Kafka's schemas)"""
    api, _, kind = table.rpartition("_")
    key = ApiKey[api]
    return key, "".join(word.capitalize() for word in api.split("_")) + kind.capitalize()


# The oracle has no null structures; archive-only's own tests read these by a client's codec.
WITH_NULL_STRUCTURES = ("DESCRIBE_TOPIC_PARTITIONS_REQUEST", "DESCRIBE_TOPIC_PARTITIONS_RESPONSE")


def cases(kind: str) -> list[tuple[str, int]]:
    cases_found = []
    for table in sorted(TABLES):
        if table.endswith(kind) and table not in WITH_NULL_STRUCTURES:
            low, high = RANGES[api_of(table)[0]]
            known = schema(api_of(table)[1])["validVersions"]
            versions = range(low, high + 1)
            cases_found += [(table, v) for v in versions if covers(known, v)]
    return cases_found


def decoded_by_table(kind: MessageFieldKind, fields: Any, value: Any, version: int) -> Any:
    """A value of the schema under the names of our table, field by field in order."""
    if value is None:
        return None
    if isinstance(kind, Array):
        return [decoded_by_table(kind._kind, fields, element, version) for element in value]
    if not isinstance(kind, Structure):
        return UUID(bytes=value) if isinstance(value, bytes) and fields == "uuid" else value
    named = {}
    schema_fields = [
        f
        for f in fields
        if covers(f["versions"], version) and not covers(f.get("taggedVersions"), version)
    ]
    own_fields = [f for f in kind.fields if f.within(version)]
    assert len(own_fields) == len(schema_fields), (
        [f.name for f in own_fields],
        [f["name"] for f in schema_fields],
    )
    for our, their in zip(own_fields, schema_fields, strict=True):
        inner = their.get("fields", their["type"].removeprefix("[]"))
        named[our.name] = decoded_by_table(our.kind, inner, value[their["name"]], version)
    return named


def without_tags(fields: Any, value: Any, version: int) -> Any:
    if isinstance(value, list):
        return [without_tags(fields, element, version) for element in value]
    if not isinstance(value, dict):
        return value
    return {
        f["name"]: without_tags(f.get("fields"), value[f["name"]], version)
        for f in fields
        if f["name"] in value and not covers(f.get("taggedVersions"), version)
    }


def same(actual: Any, expected: Any) -> bool:
    """`read` also has the defaults of fields that the version lacks."""
    if isinstance(expected, dict):
        return all(same(actual[name], value) for name, value in expected.items())
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(same, actual, expected))
    return bool(actual == expected)


def test_there_is_something_to_look_at() -> None:
    assert len(cases("_REQUEST")) > 60
    assert len(cases("_RESPONSE")) > 60


@pytest.mark.parametrize(("table", "version"), cases("_REQUEST"))
@settings(max_examples=4)
@given(data=st.data())
def test_requests_are_read(table: str, version: int, data: st.DataObject) -> None:
    key, name = api_of(table)
    value = data.draw(values(name, version))
    body = encode_body(name, version, value)
    if not body:
        return  # a request without fields
    expected = decoded_by_table(TABLES[table], schema(name)["fields"], value, version)
    try:
        fields_read = at_once(read_request(TABLES[table], b"head" + body, 4, key, version))
    except WireError:
        assert has_null(expected)  # where Kafka allows null and no client sends it
        return
    assert same(fields_read, expected)
    cut = body[: data.draw(st.integers(0, len(body)))][:-1]
    with pytest.raises(WireError):
        at_once(read_request(TABLES[table], cut, 0, key, version))


def has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(has_null(v) for v in value.values())
    if isinstance(value, list):
        return any(has_null(v) for v in value)
    return value is None


@pytest.mark.parametrize(("table", "version"), cases("_RESPONSE"))
@settings(max_examples=4)
@given(data=st.data())
def test_responses_are_written(table: str, version: int, data: st.DataObject) -> None:
    key, name = api_of(table)
    fields = schema(name)["fields"]
    value = without_tags(fields, data.draw(values(name, version)), version)
    values_of = decoded_by_table(TABLES[table], fields, value, version)
    written = at_once(write_response(TABLES[table], values_of, key, version, 7))
    expected = encode_response(name, version, value, 7)
    assert written == struct.pack(">i", len(expected)) + expected


def test_what_is_left_over_is_overlooked() -> None:
    table = TABLES["HEARTBEAT_REQUEST"]
    whole = at_once(read_request(table, bytes(8), 0, ApiKey.HEARTBEAT, 0))
    assert at_once(read_request(table, bytes(11), 0, ApiKey.HEARTBEAT, 0)) == whole
    with pytest.raises(WireError):
        at_once(read_request(table, bytes(7), 0, ApiKey.HEARTBEAT, 0))
