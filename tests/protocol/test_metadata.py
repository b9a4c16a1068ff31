"""Topic ids, names and errors out of Metadata answers of every version."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from message_schema import encode_response, values

from protocol.errors import Truncated, WireError
from protocol.metadata import TopicEntry, topics_in

NAME = "MetadataResponse"


def expected(value: dict[str, Any]) -> list[TopicEntry]:
    found = []
    for topic in value["Topics"]:
        raw = topic.get("TopicId", bytes(16))
        topic_id = UUID(bytes=raw) if raw != bytes(16) else None
        found.append(TopicEntry(topic_id, topic["Name"], topic["ErrorCode"]))
    return found


@pytest.mark.parametrize("version", range(14))
def test_topics(version: int) -> None:
    @settings(max_examples=60)
    @given(values(NAME, version))
    def check(value: dict[str, Any]) -> None:
        payload = encode_response(NAME, version, value)
        assert topics_in(payload, version) == expected(value)
        assert topics_in(memoryview(payload), version) == expected(value)

    check()


@pytest.mark.parametrize("version", range(14))
def test_truncation_and_garbage_raise_only_wire_errors(version: int) -> None:
    @settings(max_examples=40)
    @given(values(NAME, version), st.data(), st.binary(max_size=40))
    def check(value: dict[str, Any], data: st.DataObject, junk: bytes) -> None:
        payload = bytearray(encode_response(NAME, version, value))
        end = data.draw(st.integers(0, len(payload)))
        for at in data.draw(st.lists(st.integers(0, len(payload) - 1), max_size=3)):
            payload[at] = data.draw(st.integers(0, 255))
        for broken in (bytes(payload[:end]), junk):
            with contextlib.suppress(WireError):
                topics_in(broken, version)

    check()


def partition(replicas: int, isr: int, offline: int) -> dict[str, Any]:
    return {
        "ErrorCode": 0,
        "PartitionIndex": 0,
        "LeaderId": 1,
        "LeaderEpoch": 1,
        "ReplicaNodes": [1] * replicas,
        "IsrNodes": [1] * isr,
        "OfflineReplicas": [1] * offline,
    }


def answer(partitions: list[dict[str, Any]], version: int) -> bytes:
    """Two topics, so that a wrong step over the first one's partitions is seen in the second."""
    topic = {
        "ErrorCode": 0,
        "Name": "t",
        "TopicId": bytes(range(16)),
        "IsInternal": False,
        "Partitions": partitions,
        "TopicAuthorizedOperations": 0,
    }
    value = {
        "ThrottleTimeMs": 0,
        "Brokers": [],
        "ClusterId": None,
        "ControllerId": 1,
        "Topics": [topic, topic | {"Name": "u", "ErrorCode": 3}],
        "ClusterAuthorizedOperations": 0,
        "ErrorCode": 0,
    }
    return encode_response(NAME, version, value)


@pytest.mark.parametrize("version", [0, 4, 8, 9, 10, 12, 13])
@given(
    st.lists(st.tuples(*[st.sampled_from([0, 1, 3, 126, 127, 200])] * 3), max_size=3),
    st.integers(1, 40),
)
@settings(max_examples=60)
def test_partitions_alike_and_not(
    version: int, layouts: list[tuple[int, int, int]], repeat: int
) -> None:
    partitions = [partition(*layout) for layout in layouts for _ in range(repeat)]
    found = topics_in(answer(partitions, version), version)
    assert [(t.name, t.error_code) for t in found] == [("t", 0), ("u", 3)]


def test_a_list_length_in_two_bytes_is_not_taken_for_one() -> None:
    """Read as one byte, the length 128 would lead over this very partition, one byte short."""
    trap = partition(127, 0, 0) | {"OfflineReplicas": None}
    found = topics_in(answer([trap], 12), 12)
    assert [(t.name, t.error_code) for t in found] == [("t", 0), ("u", 3)]


@pytest.mark.parametrize("version", [4, 8, 9, 10, 12])
@pytest.mark.parametrize("layout", [(3, 3, 0), (3, 200, 0)])
def test_every_cut_within_the_topics_is_seen(version: int, layout: tuple[int, int, int]) -> None:
    payload = answer([partition(*layout)] * 2, version)
    behind = {4: 0, 8: 4, 9: 4 + 1, 10: 4 + 1, 12: 1}[version]
    for end in range(len(payload) - behind):
        with pytest.raises(WireError):
            topics_in(payload[:end], version)
    assert [t.name for t in topics_in(payload[: len(payload) - behind], version)] == ["t", "u"]


def test_empty_payload_is_truncated() -> None:
    with pytest.raises(Truncated):
        topics_in(b"", 9)
