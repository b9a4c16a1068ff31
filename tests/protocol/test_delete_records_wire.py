"""DeleteRecords: requests and answers of every version, and answers patched in place."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.delete_records import parse_response, partitions_in, patch
from fetchproxy_protocol.headers import peek_request_header
from fetchproxy_protocol.primitives import Cursor
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse
from message_schema import encode_body, encode_response, values

REQUEST = "DeleteRecordsRequest"
RESPONSE = "DeleteRecordsResponse"
VERSIONS = range(3)


@pytest.mark.parametrize("version", VERSIONS)
def test_request(version: int) -> None:
    @settings(max_examples=60)
    @given(values(REQUEST, version), st.binary(max_size=9))
    def check(value: dict[str, Any], lead: bytes) -> None:
        body = encode_body(REQUEST, version, value)
        cursor = Cursor(lead + body + b"next", len(lead))
        assert list(partitions_in(cursor, version)) == [
            ((t["Name"], p["PartitionIndex"]), p["Offset"])
            for t in value["Topics"]
            for p in t["Partitions"]
        ]
        assert cursor.int32() == value["TimeoutMs"]

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_response_and_patch(version: int) -> None:
    @settings(max_examples=60)
    @given(values(RESPONSE, version), st.data())
    def check(value: dict[str, Any], data: st.DataObject) -> None:
        payload = bytearray(encode_response(RESPONSE, version, value))
        results = list(parse_response(payload, version))
        assert [r[:4] for r in results] == [
            (t["Name"], p["PartitionIndex"], p["LowWatermark"], p["ErrorCode"])
            for t in value["Topics"]
            for p in t["Partitions"]
        ]
        if not results:
            return
        number = data.draw(st.integers(0, len(results) - 1))
        patch(payload, results[number]._replace(low_watermark=1 << 40, error_code=56))
        changed = copy.deepcopy(value)
        places = [p for t in changed["Topics"] for p in t["Partitions"]]
        places[number] |= {"LowWatermark": 1 << 40, "ErrorCode": 56}
        assert bytes(payload) == encode_response(RESPONSE, version, changed)

    check()


@pytest.mark.parametrize("version", VERSIONS)
def test_as_kafka_python_writes_and_reads_them(version: int) -> None:
    asked = DeleteRecordsRequest.DeleteRecordsTopic
    partition = asked.DeleteRecordsPartition(partition_index=3, offset=-1)
    request = DeleteRecordsRequest(
        topics=[asked(name="orders", partitions=[partition])], timeout_ms=700
    )
    request.API_VERSION = version
    request.with_header(correlation_id=4, client_id="c")
    frame = bytes(request.encode(header=True))
    cursor = Cursor(frame, peek_request_header(frame).body_position)
    assert list(partitions_in(cursor, version)) == [(("orders", 3), -1)]
    assert cursor.int32() == 700

    message = DeleteRecordsResponse[version]
    topic = message.DeleteRecordsTopicResult
    result = topic.DeleteRecordsPartitionResult(partition_index=3, low_watermark=9, error_code=0)
    response = message(topics=[topic(name="orders", partitions=[result])])
    response.with_header(correlation_id=4)
    payload = bytearray(response.encode(header=True))
    [found] = parse_response(payload, version)
    patch(payload, found._replace(low_watermark=-1, error_code=56))
    [decoded] = message.decode(bytes(payload), header=True).topics[0].partitions
    assert (decoded.partition_index, decoded.low_watermark, decoded.error_code) == (3, -1, 56)


@pytest.mark.parametrize("version", VERSIONS)
@given(junk=st.binary(max_size=60))
def test_garbage_raises_only_wire_errors(version: int, junk: bytes) -> None:
    with contextlib.suppress(WireError):
        list(partitions_in(Cursor(junk), version))
    with contextlib.suppress(WireError):
        list(parse_response(junk, version))
