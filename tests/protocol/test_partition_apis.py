"""DeleteRecords, ListOffsets and OffsetForLeaderEpoch, in every version of each.

Requests and responses that Kafka's own schemas encode are read as they are, damaged ones raise
only `WireError`, and what is patched in place is what would have been encoded anew.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fetchproxy_protocol import delete_records, list_offsets, offset_for_leader_epoch
from fetchproxy_protocol.apis import ApiKey, WireError
from fetchproxy_protocol.headers import peek_request_header, response_body
from fetchproxy_protocol.primitives import Cursor
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse
from kafka.protocol.consumer import (
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from message_schema import encode_body, encode_response, values

Value = dict[str, Any]


@dataclass(frozen=True)
class PartitionApi:
    """An API whose messages name topics and partitions, as this project reads and patches it."""

    name: str
    versions: range
    topic: str  # the schema's names of fields
    partition: str
    request_field: str
    result_fields: dict[str, str]  # the schema's field: this project's
    patched: dict[str, int]  # by the schema's names
    partitions_in: Callable[[bytes, int, int], Any]
    results_in: Callable[[bytes | bytearray, int], list[Any]]
    patch: Callable[[bytearray, int, Any], None]

    def partitions(self, value: Value) -> Iterator[tuple[str, Value]]:
        return ((t[self.topic], p) for t in value["Topics"] for p in t["Partitions"])


def results_of_list_offsets(payload: bytes | bytearray, version: int) -> list[Any]:
    body = response_body(payload, ApiKey.LIST_OFFSETS, version)
    return list(list_offsets.results_in(body, version))


def results_of_epochs(payload: bytes | bytearray, version: int) -> list[Any]:
    body = response_body(payload, ApiKey.OFFSET_FOR_LEADER_EPOCH, version)
    return list(offset_for_leader_epoch.results_in(body, version))


DELETE_RECORDS = PartitionApi(
    "DeleteRecords",
    range(3),
    *("Name", "PartitionIndex", "Offset"),
    {"LowWatermark": "low_watermark", "ErrorCode": "error_code"},
    {"LowWatermark": 1 << 40, "ErrorCode": 56},
    lambda body, at, version: delete_records.partitions_in(Cursor(body, at), version),
    lambda payload, version: list(delete_records.parse_response(payload, version)),
    lambda payload, version, result: delete_records.patch(payload, result),
)
LIST_OFFSETS = PartitionApi(
    "ListOffsets",
    range(12),
    *("Name", "PartitionIndex", "Timestamp"),
    {
        "ErrorCode": "error_code",
        "Timestamp": "timestamp",
        "Offset": "offset",
        "LeaderEpoch": "leader_epoch",
    },
    {"ErrorCode": 0, "Timestamp": 2**40, "Offset": 2**41, "LeaderEpoch": 5},
    list_offsets.partitions_in,
    results_of_list_offsets,
    list_offsets.patch,
)
EPOCHS = PartitionApi(
    "OffsetForLeaderEpoch",
    range(2, 5),
    *("Topic", "Partition", "LeaderEpoch"),
    {"ErrorCode": "error_code", "LeaderEpoch": "leader_epoch", "EndOffset": "end_offset"},
    {"LeaderEpoch": 77, "EndOffset": 1 << 40},
    offset_for_leader_epoch.partitions_in,
    results_of_epochs,
    lambda payload, version, result: offset_for_leader_epoch.patch(payload, result),
)
EACH = [
    pytest.param(api, version, id=f"{api.name}-v{version}")
    for api in (DELETE_RECORDS, LIST_OFFSETS, EPOCHS)
    for version in api.versions
]
# ListOffsets v0 has another response, which nobody here reads.
EACH_READ = [each for each in EACH if each.id != "ListOffsets-v0"]


@pytest.mark.parametrize(("api", "version"), EACH)
def test_the_partitions_of_a_request_are_read_wherever_it_begins(
    api: PartitionApi, version: int
) -> None:
    @settings(max_examples=60)
    @given(values(f"{api.name}Request", version), st.binary(max_size=9))
    def check(value: Value, lead: bytes) -> None:
        body = lead + encode_body(f"{api.name}Request", version, value)
        assert list(api.partitions_in(body + b"next", len(lead), version)) == [
            ((name, p[api.partition]), p[api.request_field]) for name, p in api.partitions(value)
        ]
        if api is EPOCHS:
            replica_id = offset_for_leader_epoch.replica_id(body, len(lead), version)
            assert replica_id == value.get("ReplicaId", -2)
        if api is DELETE_RECORDS:
            cursor = Cursor(body, len(lead))
            list(delete_records.partitions_in(cursor, version))
            assert cursor.int32() == value["TimeoutMs"]

    check()


@pytest.mark.parametrize(("api", "version"), EACH_READ)
def test_response_and_patch(api: PartitionApi, version: int) -> None:
    response = f"{api.name}Response"

    @settings(max_examples=60)
    @given(values(response, version), st.data())
    def check(value: Value, data: st.DataObject) -> None:
        payload = bytearray(encode_response(response, version, value))
        results = api.results_in(payload, version)
        assert [tuple(result[: 2 + len(api.result_fields)]) for result in results] == [
            (name, p[api.partition], *(p.get(field, -1) for field in api.result_fields))
            for name, p in api.partitions(value)
        ]
        changed = copy.deepcopy(value)
        for result, (_, p) in zip(results, api.partitions(changed), strict=True):
            if data.draw(st.booleans()):
                own_fields = {
                    api.result_fields[field]: number for field, number in api.patched.items()
                }
                api.patch(payload, version, result._replace(**own_fields))
                p |= {field: number for field, number in api.patched.items() if field in p}
        assert bytes(payload) == encode_response(response, version, changed)

    check()


@pytest.mark.parametrize(("api", "version"), EACH)
def test_truncation_and_garbage_raise_only_wire_errors(api: PartitionApi, version: int) -> None:
    request, response = f"{api.name}Request", f"{api.name}Response"

    @settings(max_examples=40)
    @given(values(request, version), values(response, version), st.data(), st.binary(max_size=60))
    def check(request_value: Value, value: Value, data: st.DataObject, junk: bytes) -> None:
        body = encode_body(request, version, request_value)
        # The last byte of a request may be its tagged-field section, which nobody reads.
        for broken in (body[: data.draw(st.integers(0, len(body) - 1))], junk):
            with contextlib.suppress(WireError):
                list(api.partitions_in(broken, 0, version))
        payload = encode_response(response, version, value)
        for broken in (payload[: data.draw(st.integers(0, len(payload) - 1))], junk):
            with contextlib.suppress(WireError):
                api.results_in(broken, version or 1)

    check()


@pytest.mark.parametrize("version", LIST_OFFSETS.versions)
def test_one_timestamp_for_all(version: int) -> None:
    @settings(max_examples=60)
    @given(
        values("ListOffsetsRequest", version),
        st.sampled_from([None, -2, -1, 0, 2**62 + 258]),
        st.data(),
    )
    def check(value: Value, timestamp: int | None, data: st.DataObject) -> None:
        for topic in value["Topics"]:
            topic["Partitions"] *= data.draw(st.integers(1, 40))
        for _, partition in LIST_OFFSETS.partitions(value):
            if timestamp is not None:
                partition["Timestamp"] = timestamp
        body = encode_body("ListOffsetsRequest", version, value)
        common_timestamp = list_offsets.timestamp_of_all(b"lead" + body, 4, version)
        timestamps = {timestamp for _, timestamp in list_offsets.partitions_in(body, 0, version)}
        assert common_timestamp is None or {common_timestamp} == timestamps
        plain = version >= 4 and value["Topics"] and all(t["Partitions"] for t in value["Topics"])
        if timestamp is not None and plain and not has_tags(value):
            assert common_timestamp == timestamp

    check()


def has_tags(value: Any) -> bool:
    if isinstance(value, dict):
        return any(("tag" in str(k).lower() and v) or has_tags(v) for k, v in value.items())
    return isinstance(value, list) and any(map(has_tags, value))


# -- as kafka-python writes and reads them -------------------------------------------------------
@pytest.mark.parametrize("version", DELETE_RECORDS.versions)
def test_delete_records_of_kafka_python(version: int) -> None:
    request_topic = DeleteRecordsRequest.DeleteRecordsTopic
    partition = request_topic.DeleteRecordsPartition(partition_index=3, offset=-1)
    request = DeleteRecordsRequest(
        topics=[request_topic(name="orders", partitions=[partition])], timeout_ms=700
    )
    frame = framed(request, version)
    cursor = Cursor(frame, peek_request_header(frame).body_position)
    assert list(delete_records.partitions_in(cursor, version)) == [(("orders", 3), -1)]
    assert cursor.int32() == 700

    message = DeleteRecordsResponse[version]
    topic = message.DeleteRecordsTopicResult
    result = topic.DeleteRecordsPartitionResult(partition_index=3, low_watermark=9, error_code=0)
    payload = responded(message(topics=[topic(name="orders", partitions=[result])]))
    [partition_result] = DELETE_RECORDS.results_in(payload, version)
    delete_records.patch(payload, partition_result._replace(low_watermark=-1, error_code=56))
    [decoded] = message.decode(bytes(payload), header=True).topics[0].partitions
    assert (decoded.partition_index, decoded.low_watermark, decoded.error_code) == (3, -1, 56)


@pytest.mark.parametrize("version", EPOCHS.versions)
def test_epochs_of_kafka_python(version: int) -> None:
    request_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = request_topic.OffsetForLeaderPartition(
        partition=3, current_leader_epoch=9, leader_epoch=5
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[request_topic(topic="orders", partitions=[partition])]
    )
    frame = framed(request, version)
    at = peek_request_header(frame).body_position
    assert list(EPOCHS.partitions_in(frame, at, version)) == [(("orders", 3), 5)]
    replica = offset_for_leader_epoch.replica_id(frame, at, version)
    assert replica == (-2 if version == 2 else -1)

    message = OffsetForLeaderEpochResponse[version]
    topic = message.OffsetForLeaderTopicResult
    end = topic.EpochEndOffset(partition=3, error_code=0, leader_epoch=5, end_offset=100)
    payload = responded(message(topics=[topic(topic="orders", partitions=[end])]))
    [result] = EPOCHS.results_in(payload, version)
    EPOCHS.patch(payload, version, result._replace(leader_epoch=4, end_offset=60))
    [decoded] = message.decode(bytes(payload), header=True).topics[0].partitions
    assert (decoded.partition, decoded.leader_epoch, decoded.end_offset) == (3, 4, 60)


@pytest.mark.parametrize("version", LIST_OFFSETS.versions[1:])
def test_list_offsets_of_kafka_python(version: int) -> None:
    message = ListOffsetsResponse[version]
    topic = message.ListOffsetsTopicResponse
    results = [
        topic.ListOffsetsPartitionResponse(partition_index=n, error_code=1) for n in range(3)
    ]
    payload = responded(message(throttle_time_ms=3, topics=[topic(name="t", partitions=results)]))
    result = LIST_OFFSETS.results_in(payload, version)[1]
    LIST_OFFSETS.patch(payload, version, result._replace(error_code=0, timestamp=1000, offset=42))
    [decoded] = message.decode(bytes(payload), header=True).topics
    assert [(p.error_code, p.timestamp, p.offset) for p in decoded.partitions] == [
        (1, -1, -1),
        (0, 1000, 42),
        (1, -1, -1),
    ]


def framed(request: Any, version: int) -> bytes:
    request.API_VERSION = version
    request.with_header(correlation_id=4, client_id="c")
    return bytes(request.encode(header=True))


def responded(response: Any) -> bytearray:
    response.with_header(correlation_id=4)
    return bytearray(response.encode(header=True))
