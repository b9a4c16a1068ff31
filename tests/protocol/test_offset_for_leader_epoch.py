"""OffsetForLeaderEpoch: requests and answers of v2 to v4, and answers patched in place."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from fetchproxy_protocol.apis import ApiKey, WireError
from fetchproxy_protocol.headers import peek_request_header, response_body
from fetchproxy_protocol.offset_for_leader_epoch import (
    EpochResult,
    partitions_in,
    patch,
    replica_id,
    results_in,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from message_schema import encode_body, encode_response, values

REQUEST = "OffsetForLeaderEpochRequest"
RESPONSE = "OffsetForLeaderEpochResponse"
VERSIONS = (2, 3, 4)


def parse_response(payload: bytes | bytearray, version: int) -> list[EpochResult]:
    body = response_body(payload, ApiKey.OFFSET_FOR_LEADER_EPOCH, version)
    return list(results_in(body, version))


@pytest.mark.parametrize("version", VERSIONS)
def test_request(version: int) -> None:
    @settings(max_examples=60)
    @given(values(REQUEST, version), st.binary(max_size=9))
    def check(value: dict[str, Any], lead: bytes) -> None:
        body = encode_body(REQUEST, version, value)
        assert replica_id(lead + body, len(lead), version) == value.get("ReplicaId", -2)
        assert list(partitions_in(lead + body + b"next", len(lead), version)) == [
            ((t["Topic"], p["Partition"]), p["LeaderEpoch"])
            for t in value["Topics"]
            for p in t["Partitions"]
        ]

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_response_and_patch(version: int) -> None:
    @settings(max_examples=60)
    @given(values(RESPONSE, version), st.data())
    def check(value: dict[str, Any], data: st.DataObject) -> None:
        payload = bytearray(encode_response(RESPONSE, version, value))
        results = parse_response(payload, version)
        assert [r[:5] for r in results] == [
            (t["Topic"], p["Partition"], p["ErrorCode"], p["LeaderEpoch"], p["EndOffset"])
            for t in value["Topics"]
            for p in t["Partitions"]
        ]
        if not results:
            return
        number = data.draw(st.integers(0, len(results) - 1))
        patch(payload, results[number]._replace(leader_epoch=77, end_offset=1 << 40))
        changed = copy.deepcopy(value)
        places = [p for t in changed["Topics"] for p in t["Partitions"]]
        places[number] |= {"LeaderEpoch": 77, "EndOffset": 1 << 40}
        assert bytes(payload) == encode_response(RESPONSE, version, changed)

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_as_kafka_python_writes_and_reads_them(version: int) -> None:
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    request = OffsetForLeaderEpochRequest(
        replica_id=-1,
        topics=[
            asked(
                topic="orders",
                partitions=[
                    asked.OffsetForLeaderPartition(
                        partition=3, current_leader_epoch=9, leader_epoch=5
                    )
                ],
            )
        ],
    )
    request.API_VERSION = version
    request.with_header(correlation_id=4, client_id="c")
    frame = bytes(request.encode(header=True))
    head = peek_request_header(frame)
    asked_for = partitions_in(frame, head.body_position, version)
    assert list(asked_for) == [(("orders", 3), 5)]
    assert replica_id(frame, head.body_position, version) == (-2 if version == 2 else -1)

    message = OffsetForLeaderEpochResponse[version]
    topic = message.OffsetForLeaderTopicResult
    response = message(
        topics=[
            topic(
                topic="orders",
                partitions=[
                    topic.EpochEndOffset(partition=3, error_code=0, leader_epoch=5, end_offset=100)
                ],
            )
        ]
    )
    response.with_header(correlation_id=4)
    payload = bytearray(response.encode(header=True))
    [result] = parse_response(payload, version)
    patch(payload, result._replace(leader_epoch=4, end_offset=60))
    decoded = message.decode(bytes(payload), header=True)
    [partition] = decoded.topics[0].partitions
    assert (partition.partition, partition.leader_epoch, partition.end_offset) == (3, 4, 60)


@pytest.mark.parametrize("version", VERSIONS)
@given(junk=st.binary(max_size=60))
def test_garbage_raises_only_wire_errors(version: int, junk: bytes) -> None:
    with contextlib.suppress(WireError):
        list(partitions_in(junk, 0, version))
    with contextlib.suppress(WireError):
        parse_response(junk, version)
