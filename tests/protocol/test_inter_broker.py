"""The messages between brokers and controllers against Kafka's own schemas."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fetchproxy_protocol import inter_broker as tables
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.messages import Array, Structure, decode_response, encode_body
from hypothesis import given, settings
from hypothesis import strategies as st
from message_schema import covers, encode_response, schema, values
from message_schema import encode_body as kafkas_body

VERSIONS = {
    "BrokerRegistration": [tables.BROKER_REGISTRATION_VERSION],
    "BrokerHeartbeat": [tables.BROKER_HEARTBEAT_VERSION],
    "UnregisterBroker": [tables.UNREGISTER_BROKER_VERSION],
    "AllocateProducerIds": [tables.ALLOCATE_PRODUCER_IDS_VERSION],
    "AlterPartition": [tables.ALTER_PARTITION_VERSION],
    "ApiVersions": list(range(5)),
    "ListOffsets": list(range(6, 12)),
    "OffsetForLeaderEpoch": list(range(2, 5)),
}
OF_BROKERS = (
    "BrokerRegistration",
    "BrokerHeartbeat",
    "UnregisterBroker",
    "AllocateProducerIds",
    "AlterPartition",
)
CASES = [
    *((f"{api}Request", v) for api in OF_BROKERS for v in VERSIONS[api]),
    *((f"{api}Response", v) for api in VERSIONS for v in VERSIONS[api]),
]


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def table_of(message: str) -> Structure:
    structure = getattr(tables, snake(message).upper())
    assert isinstance(structure, Structure)
    return structure


def key_of(message: str) -> ApiKey:
    return ApiKey[snake(message).upper().rpartition("_")[0]]


def plain_fields(fields: list[Any], version: int) -> list[Any]:
    return [
        field
        for field in fields
        if covers(field["versions"], version) and not covers(field.get("taggedVersions"), version)
    ]


def compare_names(table: Structure, fields: list[Any], version: int) -> None:
    table_fields = [field for field in table.fields if field.within(version)]
    fields_of_kafka = plain_fields(fields, version)
    assert [field.name for field in table_fields] == [
        snake(field["name"]) for field in fields_of_kafka
    ]
    for field, their in zip(table_fields, fields_of_kafka, strict=True):
        inner = field.kind._kind if isinstance(field.kind, Array) else field.kind
        if isinstance(inner, Structure):
            compare_names(inner, their["fields"], version)


def without_tags(fields: list[Any], value: dict[str, Any], version: int) -> dict[str, Any]:
    bare = {}
    for field in plain_fields(fields, version):
        content = value[field["name"]]
        if "fields" in field and content is not None:
            content = [without_tags(field["fields"], each, version) for each in content]
        bare[field["name"]] = content
    return bare


@pytest.mark.parametrize(("message", "version"), CASES)
def test_fields_are_kafkas(message: str, version: int) -> None:
    compare_names(table_of(message), schema(message)["fields"], version)


@pytest.mark.parametrize(("message", "version"), CASES)
@settings(max_examples=20)
@given(st.data())
def test_every_message_is_read_and_written_as_kafka_does(
    message: str, version: int, data: st.DataObject
) -> None:
    value, key, table = data.draw(values(message, version)), key_of(message), table_of(message)
    # A request's body is read like a response's: only the headers differ.
    decoded = decode_response(table, encode_response(message, version, value), key, version)
    bare = without_tags(schema(message)["fields"], value, version)
    assert encode_body(table, decoded, key, version) == kafkas_body(message, version, bare)
