"""Addresses change, every other byte stays: against an encoder made from Kafka's own schemas."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from fetchproxy_protocol.addresses import (
    NODES_MAX,
    PRODUCE_ENDPOINTS_FROM,
    REBOOTSTRAP_FROM,
    Lookup,
    NodeAddress,
    locate_addresses,
    rebootstrap_response,
    splice_addresses,
    splice_node_endpoints_tag,
    tagged_node_endpoints,
)
from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey, ErrorCode, WireError
from fetchproxy_protocol.primitives import Buffer, Cursor
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse
from message_schema import encode_response, uvarint, values

from fetchproxy.runtime.cooperative import at_once

# API -> (schema, name of the field that holds an address, name of its node id)
PLACES = {
    ApiKey.METADATA: ("MetadataResponse", "Brokers", "NodeId"),
    ApiKey.FIND_COORDINATOR: ("FindCoordinatorResponse", "Coordinators", "NodeId"),
    ApiKey.DESCRIBE_CLUSTER: ("DescribeClusterResponse", "Brokers", "BrokerId"),
    ApiKey.PRODUCE: ("ProduceResponse", "NodeEndpoints", "NodeId"),
    ApiKey.SHARE_FETCH: ("ShareFetchResponse", "NodeEndpoints", "NodeId"),
    ApiKey.SHARE_ACKNOWLEDGE: ("ShareAcknowledgeResponse", "NodeEndpoints", "NodeId"),
}
CASES = [
    (key, version)
    for key in PLACES
    for version in range(PROXIED_VERSIONS[key][0], PROXIED_VERSIONS[key][1] + 1)
    if key != ApiKey.PRODUCE or version >= PRODUCE_ENDPOINTS_FROM
]


def find(payload: Buffer, key: ApiKey, version: int) -> list[NodeAddress]:
    return [place[:3] for place in at_once(locate_addresses(payload, key, version)).spans]


def splice(payload: Buffer, key: ApiKey, version: int, lookup: Lookup) -> bytes:
    addresses_located = at_once(locate_addresses(payload, key, version))
    return at_once(splice_addresses(payload, key, version, addresses_located, lookup))


def lookup(node_id: int, host: str, port: int) -> tuple[str, int]:
    return f"proxy-{len(host)}" * (1 + node_id % 20), port ^ 0x55


def holders(key: ApiKey, version: int, value: dict[str, Any]) -> list[dict[str, Any]]:
    """The structs that hold an address a client could connect to."""
    _, field, node_id = PLACES[key]
    flat = key == ApiKey.FIND_COORDINATOR and version < 4
    values = [value] if flat else value.get(field) or []
    return [h for h in values if h[node_id] >= 0 and h["Host"]]


def relocated(key: ApiKey, version: int, value: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(value)
    node_id = PLACES[key][2]
    for holder in holders(key, version, changed):
        address = lookup(holder[node_id], holder["Host"], holder["Port"])
        holder["Host"], holder["Port"] = address
    return changed


@pytest.mark.parametrize(("key", "version"), CASES)
def test_only_addresses_change(key: ApiKey, version: int) -> None:
    name, _, node_id = PLACES[key]

    @settings(max_examples=25)
    @given(values(name, version))
    def check(value: dict[str, Any]) -> None:
        payload = encode_response(name, version, value)
        expected = [(h[node_id], h["Host"], h["Port"]) for h in holders(key, version, value)]
        assert find(payload, key, version) == expected
        relocated_response = encode_response(name, version, relocated(key, version, value))
        assert splice(payload, key, version, lookup) == relocated_response
        view = memoryview(bytearray(payload))
        assert splice(view, key, version, lookup) == relocated_response

    check()


@pytest.mark.parametrize(("key", "version"), CASES)
def test_truncation_and_garbage_raise_only_wire_errors(key: ApiKey, version: int) -> None:
    name = PLACES[key][0]

    @settings(max_examples=25)
    @given(values(name, version), st.data())
    def check(value: dict[str, Any], data: st.DataObject) -> None:
        payload = bytearray(encode_response(name, version, value))
        end = data.draw(st.integers(0, len(payload)))
        for at in data.draw(st.lists(st.integers(0, len(payload) - 1), max_size=3)):
            payload[at] = data.draw(st.integers(0, 255))
        for broken in (bytes(payload[:end]), data.draw(st.binary(max_size=60))):
            with contextlib.suppress(WireError):
                find(broken, key, version)
                splice(broken, key, version, lookup)

    check()


@pytest.mark.parametrize("version", range(14))
def test_metadata_as_kafka_python_reads_it(version: int) -> None:
    response = MetadataResponse[version]
    brokers = [
        response.MetadataResponseBroker(node_id=n, host=f"broker-{n}", port=9092 + n, rack="r")
        for n in range(6)
    ]
    message = response(brokers=brokers, topics=[], cluster_id="c", controller_id=3)
    message.with_header(correlation_id=5)
    payload = bytes(message.encode(header=True))
    spliced = splice(payload, ApiKey.METADATA, version, lookup)
    decoded = response.decode(spliced, header=True)
    assert decoded.header.correlation_id == 5
    assert [(b.node_id, b.host, b.port) for b in decoded.brokers] == [
        (b.node_id, *lookup(b.node_id, b.host, b.port)) for b in brokers
    ]
    if version >= 1:
        assert [b.rack for b in decoded.brokers] == ["r"] * 6
        assert decoded.controller_id == 3


@pytest.mark.parametrize("version", range(7))
def test_coordinator_error_without_address_is_left_alone(version: int) -> None:
    response = FindCoordinatorResponse[version]
    if version < 4:
        message = response(error_code=15, error_message="no", node_id=-1, host="", port=-1)
    else:
        message = response(
            coordinators=[
                response.Coordinator(
                    key="g", node_id=-1, host="", port=-1, error_code=15, error_message="no"
                )
            ]
        )
    message.with_header(correlation_id=5)
    payload = bytes(message.encode(header=True))
    assert find(payload, ApiKey.FIND_COORDINATOR, version) == []
    assert splice(payload, ApiKey.FIND_COORDINATOR, version, lookup) == payload


def endpoints_section(value: dict[str, Any]) -> bytes:
    """The last tagged-field section of a Fetch response: what follows a response without topics."""
    empty = {"ThrottleTimeMs": 0, "ErrorCode": 0, "SessionId": 0, "Responses": []}
    tagged = {key: value[key] for key in ("NodeEndpoints", "_tags") if key in value}
    return encode_response("FetchResponse", 18, empty | tagged)[4 + 1 + 10 + 1 :]


@given(values("FetchResponse", 16))
def test_fetch_tag_section(value: dict[str, Any]) -> None:
    section = endpoints_section(value)
    changed = copy.deepcopy(value)
    endpoints = [e for e in changed.get("NodeEndpoints", []) if e["NodeId"] >= 0 and e["Host"]]
    places = tagged_node_endpoints(Cursor(section))
    assert [one[:3] for one in places if one.node_id >= 0 and one.host] == [
        (e["NodeId"], e["Host"], e["Port"]) for e in endpoints
    ]
    for endpoint in endpoints:
        address = lookup(endpoint["NodeId"], endpoint["Host"], endpoint["Port"])
        endpoint["Host"], endpoint["Port"] = address
    assert splice_node_endpoints_tag(section, lookup) == endpoints_section(changed)


def test_fetch_tag_section_with_a_size_in_two_bytes() -> None:
    data = b"\x02" + b"\x00\x00\x00\x01" + b"\x02h" + b"\x00\x00\x00\x09" + b"\x00\x00"
    [place] = tagged_node_endpoints(Cursor(b"\x01\x00" + uvarint(len(data)) + data))
    assert place[:3] == (1, "h", 9)
    padded = bytes([0x80 | len(data), 0x00])
    section = b"\x01\x00" + padded + data
    moved = splice_node_endpoints_tag(section, lambda *_: ("hh", 9))
    expected = data.replace(b"\x02h", b"\x03hh")
    assert moved == b"\x01\x00" + uvarint(len(expected)) + expected


@given(st.binary(max_size=40))
def test_garbage_tag_section_raises_only_wire_errors(section: bytes) -> None:
    with contextlib.suppress(WireError):
        tagged_node_endpoints(Cursor(section))
        splice_node_endpoints_tag(section, lookup)


@pytest.mark.parametrize("version", [10, 12, 13])
@pytest.mark.parametrize("topics", [1, 2])
@pytest.mark.parametrize("error", [0, 6])
@pytest.mark.parametrize("tags", [{}, {50: bytes(9)}])
def test_usual_produce_answers(
    version: int, topics: int, error: int, tags: dict[int, bytes]
) -> None:
    result = {
        "Index": 0,
        "ErrorCode": error,
        "BaseOffset": 5,
        "LogAppendTimeMs": -1,
        "LogStartOffset": 0,
        "RecordErrors": [],
        "ErrorMessage": None,
    }
    topic = {
        "Name": "orders",
        "TopicId": bytes(range(16)),
        "PartitionResponses": [result],
        "_tags": tags,
    }
    value: dict[str, Any] = {
        "Responses": [topic] * topics,
        "ThrottleTimeMs": 0,
    }
    endpoint = {"NodeId": 2, "Host": "broker-2", "Port": 9092, "Rack": None}
    with_endpoint = value | {"NodeEndpoints": [endpoint]}
    host, port = lookup(2, "broker-2", 9092)
    moved = value | {"NodeEndpoints": [endpoint | {"Host": host, "Port": port}]}
    name = "ProduceResponse"
    plain = encode_response(name, version, value)
    key = ApiKey.PRODUCE
    assert splice(plain, key, version, lookup) == plain
    payload = encode_response(name, version, with_endpoint)
    assert find(payload, key, version) == [(2, "broker-2", 9092)]
    assert splice(payload, key, version, lookup) == encode_response(name, version, moved)
    for end in range(4, len(payload)):
        with pytest.raises(WireError):
            splice(payload[:end], key, version, lookup)


def brokers(count: int) -> bytes:
    """A Metadata answer (v1) with so many brokers and no topics."""
    one = {"NodeId": 1, "Host": "b", "Port": 9092, "Rack": None}
    value = {"Brokers": [one] * count, "ControllerId": 1, "Topics": []}
    return encode_response("MetadataResponse", 1, value)


def test_an_answer_names_as_many_nodes_as_a_cluster_may_have() -> None:
    assert len(find(brokers(NODES_MAX), ApiKey.METADATA, 1)) == NODES_MAX
    with pytest.raises(WireError, match=f"{NODES_MAX + 1} nodes"):
        find(brokers(NODES_MAX + 1), ApiKey.METADATA, 1)


def test_many_coordinators_are_read_in_steps() -> None:
    """It took a turn of 1 s."""
    place = {"NodeId": 1, "Host": "b", "Port": 9092, "ErrorCode": 0, "ErrorMessage": None}
    every = [place | {"Key": f"group-{number}"} for number in range(10_000)]
    value = {"ThrottleTimeMs": 0, "Coordinators": every}
    payload = encode_response("FindCoordinatorResponse", 4, value)
    steps = list(locate_addresses(payload, ApiKey.FIND_COORDINATOR, 4))
    assert len(steps) >= 100


def test_a_client_is_told_to_bootstrap_again() -> None:
    nothing = {
        "ThrottleTimeMs": 0, "Brokers": [], "ClusterId": None, "ControllerId": -1, "Topics": [],
        "ErrorCode": ErrorCode.REBOOTSTRAP_REQUIRED,
    }  # fmt: skip
    expected = encode_response("MetadataResponse", REBOOTSTRAP_FROM, nothing, 4711)
    assert rebootstrap_response(4711) == expected
    assert PROXIED_VERSIONS[ApiKey.METADATA][1] == REBOOTSTRAP_FROM
