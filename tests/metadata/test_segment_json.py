"""The `.metadata` object: round trip, and a specific error for any bad content."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import (
    OFFSET_MAX,
    SEGMENT_BYTES_MAX,
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.segments.description import decode_segment, encode_segment
from fetchproxy.segments.json_fields import NewerMetadataVersion

KEY = "orders-x/0/1.metadata"
INT64 = st.integers(0, 2**63 - 1)
TOPICS = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,248}", fullmatch=True)
SEGMENTS = st.builds(
    RemoteLogSegmentMetadata,
    segment_id=st.builds(
        RemoteLogSegmentId,
        st.builds(TopicIdPartition, st.uuids(), TOPICS, st.integers(0, 2**31 - 1)),
        st.uuids(),
    ),
    start_offset=st.integers(0, 2**62),
    end_offset=st.integers(2**62, OFFSET_MAX),
    max_timestamp_ms=st.integers(-1, 2**63 - 1),
    event_timestamp_ms=INT64,
    segment_leader_epochs=st.lists(
        st.builds(EpochStart, st.integers(-1, 2**31 - 1), st.integers(0, OFFSET_MAX)), max_size=4
    ).map(tuple),
    segment_size_bytes=st.integers(0, SEGMENT_BYTES_MAX),
    state=st.sampled_from(RemoteLogSegmentState),
    has_aborted_txns=st.booleans(),
    copied_end_offset=st.none() | st.just(OFFSET_MAX),
    packed=st.booleans(),
)
EXAMPLE = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(TopicIdPartition(UUID(int=1), "orders", 3), UUID(int=2)),
    start_offset=5,
    end_offset=9,
    max_timestamp_ms=1_700_000_000_000,
    event_timestamp_ms=1_700_000_000_001,
    segment_leader_epochs=(EpochStart(0, 0), EpochStart(2, 7)),
    segment_size_bytes=1_234,
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    has_aborted_txns=True,
)


def test_the_document_is_what_the_docs_say() -> None:
    assert json.loads(encode_segment(EXAMPLE)) == {
        "version": 1,
        "topic": "orders",
        "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ",
        "partition": 3,
        "segment_id": "AAAAAAAAAAAAAAAAAAAAAg",
        "base_offset": 5,
        "end_offset": 9,
        "max_timestamp_ms": 1_700_000_000_000,
        "event_timestamp_ms": 1_700_000_000_001,
        "leader_epochs": [{"epoch": 0, "start_offset": 0}, {"epoch": 2, "start_offset": 7}],
        "segment_size_bytes": 1_234,
        "state": "COPY_SEGMENT_FINISHED",
        "has_aborted_txns": True,
    }


def test_a_clipped_segment_is_refused_by_readers_that_know_no_clips() -> None:
    clipped = EXAMPLE.clipped(6)
    assert clipped.segment_leader_epochs == (EpochStart(0, 0),)
    document = json.loads(encode_segment(clipped))
    assert (document["version"], document["end_offset"], document["copied_end_offset"]) == (2, 6, 9)
    assert decode_segment(encode_segment(clipped.clipped(5)), KEY).copied_end_offset == 9
    del document["copied_end_offset"]
    with pytest.raises(CorruptSegment, match="copied_end_offset is missing"):
        decode_segment(json.dumps(document).encode(), KEY)


def test_a_packed_segment_is_refused_by_readers_that_know_none() -> None:
    document = json.loads(encode_segment(replace(EXAMPLE, packed=True)))
    assert (document["version"], document["packed"]) == (3, True)
    assert "copied_end_offset" not in document
    clipped = replace(EXAMPLE, packed=True).clipped(6)
    document = json.loads(encode_segment(clipped))
    assert (document["version"], document["copied_end_offset"]) == (3, 9)
    assert decode_segment(encode_segment(clipped), KEY) == clipped


@given(SEGMENTS)
def test_round_trip(metadata: RemoteLogSegmentMetadata) -> None:
    assert decode_segment(encode_segment(metadata), KEY) == metadata


@given(SEGMENTS, st.data())
def test_every_cut_is_corrupt(metadata: RemoteLogSegmentMetadata, data: st.DataObject) -> None:
    raw = encode_segment(metadata).rstrip(b"\n")
    with pytest.raises(CorruptSegment, match=KEY):
        decode_segment(raw[: data.draw(st.integers(0, len(raw) - 1))], KEY)


@given(st.binary(max_size=100))
def test_garbage_is_corrupt(raw: bytes) -> None:
    with pytest.raises(CorruptSegment, match=KEY):
        decode_segment(raw, KEY)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@given(st.sampled_from(sorted(json.loads(encode_segment(EXAMPLE)))), JSON_VALUES)
def test_any_value_in_any_field_is_read_or_named(name: str, value: object) -> None:
    document = json.loads(encode_segment(EXAMPLE)) | {name: value}
    fault = ""
    try:
        decode_segment(json.dumps(document).encode(), KEY)
    except CorruptSegment as error:
        fault = str(error)
    assert fault == "" or fault.startswith(KEY)


@pytest.mark.parametrize("name", sorted(json.loads(encode_segment(EXAMPLE))))
def test_a_missing_field_is_named(name: str) -> None:
    document = json.loads(encode_segment(EXAMPLE))
    del document[name]
    with pytest.raises(CorruptSegment, match=f"{KEY}: field {name} is missing"):
        decode_segment(json.dumps(document).encode(), KEY)


def test_a_newer_version_is_refused_in_plain_words() -> None:
    document = json.loads(encode_segment(EXAMPLE)) | {"version": 4, "state": "WHO_KNOWS"}
    with pytest.raises(NewerMetadataVersion, match=f"{KEY}: .*version 4 .* newer fetchproxy"):
        decode_segment(json.dumps(document).encode(), KEY)


def test_a_field_that_a_later_writer_added_is_passed_over() -> None:
    document = json.loads(encode_segment(EXAMPLE)) | {"broker_id": 4}
    assert decode_segment(json.dumps(document).encode(), KEY) == EXAMPLE


def test_nested_brackets_do_not_break_the_reader() -> None:
    with pytest.raises(CorruptSegment, match=KEY):
        decode_segment(b"[" * 100_000, KEY)


def test_an_end_below_the_base_is_corrupt() -> None:
    document = json.loads(encode_segment(EXAMPLE)) | {"end_offset": 4}
    with pytest.raises(CorruptSegment, match="end_offset"):
        decode_segment(json.dumps(document).encode(), KEY)
