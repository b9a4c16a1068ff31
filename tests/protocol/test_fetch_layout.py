"""`fetch_layout` and Kafka's schemas have the same fields, and entries are read by it at any
version.

A session keeps entries without their version. So a new fixed field must leave the fields that are
read where they were in other entries of the same size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from fetchproxy_protocol.fetch import entry_bytes_max, fetch_offset, from_offset, leader_epoch
from fetchproxy_protocol.fetch_layout import (
    FETCH_VERSIONS,
    LEADER_EPOCH_FROM,
    REQUEST_ENTRY_BYTES,
    REQUEST_PARTITION,
    RESPONSE_PARTITION,
    FixedField,
    size,
)
from message_schema import covers, encode_body, schema

_CODES = {"int16": "h", "int32": "i", "int64": "q"}


def partition_fields(message: str, topics: str) -> list[dict[str, Any]]:
    (topic,) = (field for field in schema(message)["fields"] if field["name"] == topics)
    (partition,) = (field for field in topic["fields"] if field["name"] == "Partitions")
    return list(partition["fields"])


def fixed(fields: Iterable[dict[str, Any]], version: int) -> list[tuple[str, str]]:
    """Those at the beginning, up to the first one of another kind."""
    fixed_fields = []
    for field in fields:
        if not covers(field["versions"], version) or covers(field.get("taggedVersions"), version):
            continue
        if field["type"] not in _CODES:
            break
        fixed_fields.append((field["name"], _CODES[field["type"]]))
    return fixed_fields


def described(fields: Iterable[FixedField], version: int) -> list[tuple[str, str]]:
    return [(field.name, field.code) for field in fields if field.since <= version]


@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_the_description_is_kafkas(version: int) -> None:
    request = partition_fields("FetchRequest", "Topics")
    response = partition_fields("FetchResponse", "Responses")
    assert described(REQUEST_PARTITION, version) == fixed(request, version)
    assert described(RESPONSE_PARTITION, version) == fixed(response, version)
    # All other fields of a request's partition are tagged ones: nothing follows the fixed fields.
    present = [field for field in request if covers(field["versions"], version)]
    untagged = [f for f in present if not covers(f.get("taggedVersions"), version)]
    assert len(untagged) == len(described(REQUEST_PARTITION, version))


def entry(version: int, tags: dict[int, bytes]) -> bytes:
    """As a client encodes it: the last partition of an encoded request, without what follows."""
    values = {"Partition": 1, "CurrentLeaderEpoch": 2, "FetchOffset": 3 << 40}
    values |= {"LastFetchedEpoch": 4, "LogStartOffset": 5 << 40, "PartitionMaxBytes": 6 << 20}
    request = {
        "ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 0, "IsolationLevel": 0,
        "SessionId": 0, "SessionEpoch": 0, "ForgottenTopicsData": [], "RackId": "",
    }  # fmt: skip
    topic = {"Topic": "", "TopicId": bytes(16)}
    empty = encode_body("FetchRequest", version, request | {"Topics": [topic | {"Partitions": []}]})
    whole = encode_body(
        "FetchRequest",
        version,
        request | {"Topics": [topic | {"Partitions": [values | {"_tags": tags}]}]},
    )
    length = len(whole) - len(empty)
    begin = next(at for at in range(len(whole)) if whole[at] != empty[at]) + 1
    return whole[begin : begin + length]


@pytest.mark.parametrize("tags", [{}, {77: b"x"}, {77: bytes(1000)}], ids=["none", "one", "large"])
@pytest.mark.parametrize("version", FETCH_VERSIONS)
def test_an_entry_is_read_without_its_version(version: int, tags: dict[int, bytes]) -> None:
    content = entry(version, tags)
    assert len(content) >= REQUEST_ENTRY_BYTES[version] == size(REQUEST_PARTITION, version)
    assert fetch_offset(content) == 3 << 40
    assert entry_bytes_max(content) == 6 << 20
    assert leader_epoch(content) == (2 if version >= LEADER_EPOCH_FROM else -1)
    moved = from_offset(content, 9)
    assert fetch_offset(moved) == 9
    assert from_offset(moved, 3 << 40) == content
