"""Records of the metadata topic: byte for byte as in the schemas; clear errors for bad ones."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from struct import Struct
from uuid import UUID

import pytest
from fetchproxy_protocol.primitives import decode_uvarint
from hypothesis import given
from hypothesis import strategies as st
from segment_values import TP, any_events, any_segments

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from fetchproxy.segments.json_fields import NewerMetadataVersion
from fetchproxy.segments.records import (
    LogStartOffset,
    MetadataEvent,
    RecordType,
    decode_entry,
    decode_message,
    encode_cache_entry,
    encode_message,
    framed,
    record_head,
)

WHERE = "__remote_log_metadata-7 offset 41"
SEGMENT = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(TP, UUID("a1a2a3a4-a5a6-a7a8-a9aa-abacadaeafb0")),
    start_offset=1000,
    end_offset=1999,
    max_timestamp_ms=1_600_000_000_000,
    event_timestamp_ms=1_600_000_000_500,
    segment_leader_epochs=(EpochStart(4, 1000), EpochStart(5, 1500)),
    segment_size_bytes=1_048_576,
    state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    has_aborted_txns=False,
    copied_end_offset=2500,
)
UP_TO_EPOCHS = (
    "a1a2a3a4a5a6a7a8a9aaabacadaeafb0"  # segmentId
    "00000000000003e8 00000000000007cf"  # startOffset, endOffset
    "00000005 00000174876e8000 00000174876e81f4"  # leaderEpoch, maxTimestamp, eventTimestamp
    "00000002 00000004 00000000000003e8 00000005 00000000000005dc"  # segmentLeaderEpochs
)
VERSION_0 = bytes.fromhex(UP_TO_EPOCHS + "00100000 01")
VERSION_1 = bytes.fromhex(UP_TO_EPOCHS + "0000000000100000 01 00 00000000000009c4")
PLACE = bytes.fromhex("0006 6f7264657273 0102030405060708090a0b0c0d0e0f10 00000003")


def entry_body(event: MetadataEvent) -> bytes:
    entry = encode_cache_entry(event)
    length, at = decode_uvarint(entry, 0)
    assert length == len(entry) - at
    return entry[at:]


def test_golden_bytes_of_version_0_as_the_schema_has_it() -> None:
    """Version 0 has no transactions or cuts: the reader has to look for aborted transactions."""
    expected = replace(SEGMENT, has_aborted_txns=True, copied_end_offset=None)
    assert decode_entry(b"\x00\x00" + VERSION_0, TP, WHERE) == expected
    assert decode_message(b"\x00\x00" + PLACE + VERSION_0, WHERE) == expected


def test_golden_bytes_of_version_1() -> None:
    assert encode_cache_entry(SEGMENT) == bytes([2 + len(VERSION_1)]) + b"\x00\x01" + VERSION_1
    assert encode_message(SEGMENT) == b"\x00\x01" + PLACE + VERSION_1


def test_golden_bytes_of_version_2() -> None:
    """Older programs refuse it; unpacked segments stay in version 1, which they can read."""
    packed = replace(SEGMENT, packed=True)
    assert encode_message(packed) == b"\x00\x02" + PLACE + VERSION_1 + b"\x01"
    assert decode_message(encode_message(packed), WHERE) == packed


def test_golden_bytes_of_a_deletion() -> None:
    state = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
    deletion = RemotePartitionDeleteMetadata(TP, state, 7, epoch=9)
    data = bytes.fromhex("00000009 0000000000000007 01")
    assert encode_cache_entry(deletion) == bytes([15]) + b"\x01\x00" + data
    assert encode_message(deletion) == b"\x01\x00" + PLACE + data


def test_golden_bytes_of_a_log_start() -> None:
    data = bytes.fromhex("0000000000000100 0000000000000007")
    start = LogStartOffset(TP, 256, 7)
    assert encode_cache_entry(start) == bytes([18]) + b"\x02\x00" + data
    assert encode_message(start) == b"\x02\x00" + PLACE + data


TPS = st.builds(
    TopicIdPartition,
    st.binary(min_size=16, max_size=16).map(lambda raw: UUID(bytes=raw)),
    st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,248}", fullmatch=True),
    st.integers(0, 2**31 - 1),
)


@given(TPS.flatmap(any_events))
def test_an_event_is_read_back_as_it_was_written(event: MetadataEvent) -> None:
    assert decode_message(encode_message(event), WHERE) == event
    assert decode_entry(entry_body(event), event.topic_id_partition, WHERE) == event


@given(any_segments(), st.integers(0, 2**31 - 1))
def test_version_0_there_and_back(metadata: RemoteLogSegmentMetadata, size: int) -> None:
    new = entry_body(replace(metadata, packed=False))
    old = b"\x00\x00" + new[2:-18] + Struct(">ib").pack(size, metadata.state)
    expected = replace(
        metadata,
        segment_size_bytes=size,
        has_aborted_txns=True,
        copied_end_offset=None,
        packed=False,
    )
    assert decode_entry(old, TP, WHERE) == expected


@given(any_events(), st.data())
def test_what_is_cut_short_or_too_long_is_refused(
    event: MetadataEvent, data: st.DataObject
) -> None:
    raw = encode_message(event)
    for bad in (raw[: data.draw(st.integers(0, len(raw) - 1))], raw + b"\x00"):
        with pytest.raises(CorruptSegment, match=WHERE):
            decode_message(bad, WHERE)


@given(st.binary(max_size=200))
def test_no_bytes_bring_another_error(raw: bytes) -> None:
    for decode in (
        lambda: decode_message(raw, WHERE),
        lambda: decode_entry(raw, TP, WHERE),
        lambda: decode_entry(b"\x00\x01" + raw, TP, WHERE),
    ):
        with suppress(CorruptSegment):
            decode()


def changed(at: int, to: str) -> bytes:
    new = bytes.fromhex(to)
    return b"\x00\x01" + VERSION_1[:at] + new + VERSION_1[at + len(new) :]


FAULTS = {
    "startOffset": changed(16, "ff"),
    "endOffset": changed(24, "00000000000003e7"),
    "maxTimestamp": changed(36, "fe"),
    "eventTimestamp": changed(44, "fe"),
    "segmentLeaderEpochs claims 9999": changed(52, "0000270f"),
    r"segmentLeaderEpochs is -1": changed(52, "ffffffff"),
    r"segmentLeaderEpochs\.offset": changed(60, "ff"),
    "segmentSizeInBytes": changed(80, "ff"),
    "remoteLogState: 4 is not a RemoteLogSegmentState": changed(88, "04"),
    "hasAbortedTxns": changed(89, "02"),
    "copiedEndOffset is 1, below 1999": changed(90, "0000000000000001"),
    "8 bytes behind the last field": b"\x00\x01" + VERSION_1 + bytes(8),
    "segmentId": b"\x00\x01" + VERSION_1[:10],
}


@pytest.mark.parametrize("field", FAULTS)
def test_a_fault_names_place_and_field(field: str) -> None:
    with pytest.raises(CorruptSegment, match=f"^{WHERE}: .*{field}"):
        decode_entry(FAULTS[field], TP, WHERE)


def test_a_newer_version_and_an_unknown_type_are_named() -> None:
    with pytest.raises(
        NewerMetadataVersion, match=r"REMOTE_LOG_SEGMENT_METADATA version 3 .* up to version 2"
    ):
        decode_entry(b"\x00\x03" + VERSION_1, TP, WHERE)
    with pytest.raises(NewerMetadataVersion, match=f"{WHERE}: record type 300 is not known"):
        decode_message(b"\xac\x02\x00" + PLACE, WHERE)


def test_a_checkpoint_is_no_message() -> None:
    raw = record_head(RecordType.CACHE_FILE_CHECKPOINT) + PLACE + bytes(12)
    with pytest.raises(CorruptSegment, match="CACHE_FILE_CHECKPOINT is not an event"):
        decode_message(raw, WHERE)
    assert framed(raw)[0] == len(raw)
