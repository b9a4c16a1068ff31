"""ApiVersions answers: only the ranges change, in every version and in the error 35 form."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from fetchproxy_protocol.apis import ApiKey, WireError, offered_versions
from fetchproxy_protocol.headers import intersect_response, unsupported_version_response
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.metadata import ApiVersionsResponse
from message_schema import encode_response, values

NEWEST = 5  # of ApiVersions, since Kafka 4.4 (KIP-1242)
NAME = "ApiVersionsResponse"


def narrowed(value: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(value)
    entries_kept = []
    for entry in changed["ApiKeys"]:
        offered = offered_versions(entry["ApiKey"], entry["MinVersion"], entry["MaxVersion"])
        if offered is not None:
            entry["MinVersion"], entry["MaxVersion"] = offered
            entries_kept.append(entry)
    changed["ApiKeys"] = entries_kept
    return changed


@pytest.mark.parametrize("version", range(5))
def test_only_ranges_change(version: int) -> None:
    @settings(max_examples=60)
    @given(values(NAME, version))
    def check(value: dict[str, Any]) -> None:
        value["ErrorCode"] = 0
        payload = encode_response(NAME, version, value)
        expected = encode_response(NAME, version, narrowed(value))
        assert intersect_response(payload, version) == expected

    check()


@pytest.mark.parametrize("version", range(6))
def test_error_35_has_the_body_of_v0(version: int) -> None:
    ranges = [
        {"ApiKey": 18, "MinVersion": 0, "MaxVersion": 9},
        {"ApiKey": 10_000, "MinVersion": 0, "MaxVersion": 1},
    ]
    value = {"ErrorCode": 35, "ApiKeys": ranges}
    payload = encode_response(NAME, 0, value)
    expected = encode_response(
        NAME,
        0,
        {"ErrorCode": 35, "ApiKeys": [{"ApiKey": 18, "MinVersion": 0, "MaxVersion": NEWEST}]},
    )
    assert intersect_response(payload, version) == expected


def test_error_35_of_librdkafkas_mock_cluster_is_mended() -> None:
    as_sent = bytes.fromhex("00000001 0023 01 0012 0000 0002 00000000")
    expected = encode_response(
        NAME, 0, {"ErrorCode": 35, "ApiKeys": [{"ApiKey": 18, "MinVersion": 0, "MaxVersion": 2}]}
    )
    assert intersect_response(as_sent, 4)[4:] == expected[4:]


@pytest.mark.parametrize(("high", "offered"), [("7fff", NEWEST), ("ffff", 0)])
def test_mended_range_stays_within_what_we_read(high: str, offered: int) -> None:
    as_sent = bytes.fromhex(f"00000001 0023 01 0012 0000 {high} 00000000")
    decoded = ApiVersionsResponse[0].decode(intersect_response(as_sent, 4), header=True)
    assert [(k.min_version, k.max_version) for k in decoded.api_keys] == [(0, offered)]


@pytest.mark.parametrize("version", range(5))
def test_as_kafka_python_reads_it(version: int) -> None:
    response_class = ApiVersionsResponse[version]
    ranges = {0: (0, 13), 1: (0, 20), 17: (0, 1), 99: (0, 3), 35: (1, 5)}
    message = response_class(
        error_code=0,
        api_keys=[
            response_class.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in ranges.items()
        ],
        throttle_time_ms=0,
    )
    message.with_header(correlation_id=12)
    response = intersect_response(bytes(message.encode(header=True)), version)
    decoded = response_class.decode(response, header=True)
    assert decoded.header.correlation_id == 12
    assert {k.api_key: (k.min_version, k.max_version) for k in decoded.api_keys} == {
        0: (0, 13),
        1: (4, 18),
        17: (1, 1),
        35: (1, 5),
    }


def test_own_answer_to_a_too_new_request() -> None:
    decoded = ApiVersionsResponse[0].decode(unsupported_version_response(77), header=True)
    assert decoded.header.correlation_id == 77
    assert decoded.error_code == 35
    assert [(k.api_key, k.min_version, k.max_version) for k in decoded.api_keys] == [
        (ApiKey.API_VERSIONS, 0, NEWEST)
    ]


@pytest.mark.parametrize("version", range(5))
def test_truncation_and_garbage_raise_only_wire_errors(version: int) -> None:
    @settings(max_examples=60)
    @given(values(NAME, version), st.data(), st.binary(max_size=40))
    def check(value: dict[str, Any], data: st.DataObject, junk: bytes) -> None:
        payload = encode_response(NAME, version, value)
        end = data.draw(st.integers(0, len(payload)))
        for broken in (payload[:end], junk):
            with contextlib.suppress(WireError):
                intersect_response(broken, version)

    check()
