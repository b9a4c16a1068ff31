"""ListOffsets: requests and answers of every version, and answers patched in place."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from fetchproxy_protocol.apis import ApiKey, WireError
from fetchproxy_protocol.headers import response_body
from fetchproxy_protocol.list_offsets import (
    OffsetResult,
    partitions_in,
    patch,
    results_in,
    timestamp_of_all,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import ListOffsetsResponse
from message_schema import encode_body, encode_response, values

REQUEST = "ListOffsetsRequest"
RESPONSE = "ListOffsetsResponse"
VERSIONS = range(12)


def parse_response(payload: bytes | bytearray, version: int) -> list[OffsetResult]:
    return list(results_in(response_body(payload, ApiKey.LIST_OFFSETS, version), version))


def each_partition(value: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(topic["Name"], p) for topic in value["Topics"] for p in topic["Partitions"]]


@pytest.mark.parametrize("version", VERSIONS)
def test_request(version: int) -> None:
    @settings(max_examples=60)
    @given(values(REQUEST, version), st.binary(max_size=9))
    def check(value: dict[str, Any], lead: bytes) -> None:
        body = encode_body(REQUEST, version, value)
        assert list(partitions_in(lead + body, len(lead), version)) == [
            ((name, p["PartitionIndex"]), p["Timestamp"]) for name, p in each_partition(value)
        ]

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_one_timestamp_for_all(version: int) -> None:
    @settings(max_examples=60)
    @given(values(REQUEST, version), st.sampled_from([None, -2, -1, 0, 2**62 + 258]), st.data())
    def check(value: dict[str, Any], timestamp: int | None, data: st.DataObject) -> None:
        for topic in value["Topics"]:
            topic["Partitions"] *= data.draw(st.integers(1, 40))
        for _, partition in each_partition(value):
            if timestamp is not None:
                partition["Timestamp"] = timestamp
        body = encode_body(REQUEST, version, value)
        found = timestamp_of_all(b"lead" + body, 4, version)
        asked = {timestamp for _, timestamp in partitions_in(body, 0, version)}
        assert found is None or {found} == asked
        plain = version >= 4 and value["Topics"] and all(t["Partitions"] for t in value["Topics"])
        if timestamp is not None and plain and not has_tags(value):
            assert found == timestamp

    check()


def has_tags(value: Any) -> bool:
    if isinstance(value, dict):
        return any(("tag" in str(k).lower() and v) or has_tags(v) for k, v in value.items())
    return isinstance(value, list) and any(map(has_tags, value))


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_response_and_patch(version: int) -> None:
    @settings(max_examples=60)
    @given(values(RESPONSE, version), st.data())
    def check(value: dict[str, Any], data: st.DataObject) -> None:
        payload = bytearray(encode_response(RESPONSE, version, value))
        results = parse_response(payload, version)
        assert [r[:6] for r in results] == [
            (
                name,
                p["PartitionIndex"],
                p["ErrorCode"],
                p["Timestamp"],
                p["Offset"],
                p.get("LeaderEpoch", -1),
            )
            for name, p in each_partition(value)
        ]
        changed = copy.deepcopy(value)
        for result, (_, p) in zip(results, each_partition(changed), strict=True):
            if data.draw(st.booleans()):
                p |= {"ErrorCode": 0, "Timestamp": 2**40, "Offset": 2**41}
                if version >= 4:
                    p["LeaderEpoch"] = 5
                patched = result._replace(
                    error_code=0, timestamp=2**40, offset=2**41, leader_epoch=5
                )
                patch(payload, version, patched)
        assert payload == encode_response(RESPONSE, version, changed)

    check()


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_patched_answer_as_kafka_python_reads_it(version: int) -> None:
    response = ListOffsetsResponse[version]
    topic = response.ListOffsetsTopicResponse
    result = topic.ListOffsetsPartitionResponse
    message = response(
        throttle_time_ms=3,
        topics=[
            topic(
                name="t",
                partitions=[result(partition_index=n, error_code=1) for n in range(3)],
            )
        ],
    )
    message.with_header(correlation_id=5)
    payload = bytearray(message.encode(header=True))
    results = parse_response(payload, version)
    patch(payload, version, results[1]._replace(error_code=0, timestamp=1000, offset=42))
    decoded = response.decode(bytes(payload), header=True)
    assert [(p.error_code, p.timestamp, p.offset) for p in decoded.topics[0].partitions] == [
        (1, -1, -1),
        (0, 1000, 42),
        (1, -1, -1),
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_truncation_and_garbage_raise_only_wire_errors(version: int) -> None:
    @settings(max_examples=40)
    @given(values(REQUEST, version), values(RESPONSE, version), st.data(), st.binary(max_size=40))
    def check(
        asked: dict[str, Any], value: dict[str, Any], data: st.DataObject, junk: bytes
    ) -> None:
        body = encode_body(REQUEST, version, asked)
        end = data.draw(st.integers(0, len(body) - 1))
        # The last byte of a request may be its tagged-field section, which nobody reads.
        with contextlib.suppress(WireError):
            list(partitions_in(body[:end], 0, version))
        payload = encode_response(RESPONSE, version, value)
        for broken in (payload[: data.draw(st.integers(0, len(payload) - 1))], junk):
            with contextlib.suppress(WireError):
                parse_response(broken, max(version, 1))
        with contextlib.suppress(WireError):
            list(partitions_in(junk, 0, version))

    check()
