"""Request and response headers of every API and version that kafka-python can write."""

from __future__ import annotations

import contextlib
import struct
from importlib import resources

import pytest
from fetchproxy_protocol.apis import ApiKey, MalformedMessage, Truncated, WireError, is_flexible
from fetchproxy_protocol.headers import (
    client_id,
    client_software,
    correlation_id,
    handshake_refusal,
    peek_request_header,
    response_body,
    response_header_version,
)
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.api_header import RequestHeader as OracleHeader
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslHandshakeResponse
from message_schema import schema, uvarint

KEYS = [
    (schema(path.name.removesuffix(".json"))["apiKey"], version)
    for path in resources.files("kafka.protocol.schemas.resources").iterdir()
    if path.name.endswith("Request.json") and path.name != "RequestHeader.json"
    for version in (0, 20)
]
ids = st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=40))


def oracle(key: int, version: int, correlation: int, name: str | None) -> bytes:
    header = OracleHeader(
        request_api_key=key,
        request_api_version=version,
        correlation_id=correlation,
        client_id=name,
    )
    return bytes(header.encode(flexible=is_flexible(key, version)))


@given(st.sampled_from(KEYS), st.integers(-(2**31), 2**31 - 1), ids, st.binary(max_size=20))
def test_header_as_kafka_python_writes_it(
    api: tuple[int, int], correlation: int, name: str | None, lead: bytes
) -> None:
    raw = oracle(*api, correlation, name)
    buf = lead + raw + b"body"
    head = peek_request_header(buf, len(lead))
    assert (head.api_key, head.api_version, head.correlation_id) == (*api, correlation)
    assert client_id(buf, head) == (name or "")
    assert buf[head.body_position :] == b"body"
    assert peek_request_header(memoryview(buf), len(lead), len(buf) - 4) == head
    for end in range(len(raw)):
        with pytest.raises(Truncated):
            peek_request_header(lead + raw[:end], len(lead))
        with pytest.raises(Truncated):
            peek_request_header(buf, len(lead), len(lead) + end)


@given(st.dictionaries(st.integers(0, 1000), st.binary(max_size=200), max_size=3))
def test_header_tags_are_stepped_over(tags: dict[int, bytes]) -> None:
    section = uvarint(len(tags))
    for tag, data in sorted(tags.items()):
        section += uvarint(tag) + uvarint(len(data)) + data
    buf = oracle(ApiKey.FETCH, 12, 9, "me")[:-1] + section + b"body"
    assert buf[peek_request_header(buf).body_position :] == b"body"


def test_client_id_that_is_no_text() -> None:
    buf = struct.pack(">hhih", 1, 4, 7, 2) + b"\xff\xfe"
    assert client_id(buf, peek_request_header(buf)) == "��"


def test_impossible_client_id_length() -> None:
    with pytest.raises(MalformedMessage):
        peek_request_header(struct.pack(">hhih", 1, 4, 7, -2))


@given(st.binary(max_size=40))
def test_garbage_raises_only_wire_errors(junk: bytes) -> None:
    with contextlib.suppress(WireError):
        head = peek_request_header(junk)
        assert head.body_position <= len(junk)
        client_id(junk, head)
    with contextlib.suppress(WireError):
        correlation_id(junk)
        response_body(junk, ApiKey.FETCH, 12)


def test_response_header_versions() -> None:
    assert response_header_version(ApiKey.FETCH, 11) == 0
    assert response_header_version(ApiKey.FETCH, 12) == 1
    assert response_header_version(ApiKey.API_VERSIONS, 4) == 0
    assert response_header_version(ApiKey.SASL_HANDSHAKE, 1) == 0


def test_a_response_body_begins_behind_its_tagged_fields() -> None:
    tagged = b"\x00\x00\x00\x07" + b"\x01\x05\x02ab" + b"body"
    assert correlation_id(tagged) == 7
    assert response_body(tagged, ApiKey.FETCH, 12).pos == 9
    assert response_body(tagged, ApiKey.FETCH, 11).pos == 4
    assert response_body(tagged, ApiKey.API_VERSIONS, 3).pos == 4


def test_handshake_refusal() -> None:
    decoded = SaslHandshakeResponse[0].decode(handshake_refusal(31), header=True)
    assert decoded.header.correlation_id == 31
    assert decoded.error_code == 35
    assert decoded.mechanisms == []


@pytest.mark.parametrize("version", [0, 2, 3, 4])
@given(name=st.text(max_size=200), library_version=st.text(max_size=20))
def test_client_software(version: int, name: str, library_version: str) -> None:
    request = ApiVersionsRequest[version]()
    if version >= 3:
        request.client_software_name = name
        request.client_software_version = library_version
    frame = oracle(ApiKey.API_VERSIONS, version, 1, "id") + request.encode()
    head = peek_request_header(frame)
    software = client_software(frame, head, len(frame))
    assert software == ((name, library_version) if version >= 3 else ("", ""))
    for end in range(head.body_position, len(frame)):
        assert client_software(frame[:end], head, end) in {software, (software[0], ""), ("", "")}
