"""The entries of a flat file: their places, and which of them still count."""

from __future__ import annotations

import pytest
from fetchproxy_protocol.primitives import decode_uvarint
from hypothesis import given
from hypothesis import strategies as st
from segment_values import (
    DELETED,
    DELETING,
    FINISHED,
    STARTED,
    TP,
    any_events,
    segment,
)

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from fetchproxy.segments.json_fields import NewerMetadataVersion
from fetchproxy.segments.records import (
    EPOCHS_AT,
    HEAD_FIELDS,
    SEGMENT_EPOCH,
    SEGMENT_HEAD,
    SEGMENT_TAILS,
    TAIL_FIELDS,
    LogStartOffset,
    MetadataEvent,
    compact,
    decode_entry,
    encode_cache_entry,
    framed,
    walk_entries,
)


def one_by_one(entries: bytes) -> list[MetadataEvent]:
    entries_found, at = [], 0
    while at < len(entries):
        length, body = decode_uvarint(entries, at)
        at = body + length
        entries_found.append(decode_entry(entries[body:at], TP, "a file"))
    return entries_found


def walked(entries: bytes) -> list[MetadataEvent]:
    events: list[MetadataEvent] = []
    for _, body, end, epochs in walk_entries(entries, "a file"):
        event = decode_entry(entries[body:end], TP, "a file")
        if isinstance(event, RemoteLogSegmentMetadata):
            assert len(event.segment_leader_epochs) == epochs
            packed, absent = SEGMENT_TAILS[entries[body + 1]]
            tail_at = end - packed.size
            head = SEGMENT_HEAD.unpack_from(entries, body + 2)
            tail = packed.unpack_from(entries, tail_at) + absent
            fields = dict(zip(HEAD_FIELDS + TAIL_FIELDS, head + tail, strict=True))
            assert fields["start_offset"] == event.start_offset
            assert fields["segment_size_bytes"] == event.segment_size_bytes
            assert fields["state"] == event.state
            stated = SEGMENT_EPOCH.iter_unpack(entries[body + EPOCHS_AT : tail_at])
            assert [EpochStart(*each) for each in stated] == [*event.segment_leader_epochs]
        else:
            assert epochs == -1
        events.append(event)
    return events


@given(st.lists(any_events(), max_size=12))
def test_what_is_walked_over_are_the_entries(events: list[MetadataEvent]) -> None:
    entries = b"".join(map(encode_cache_entry, events))
    assert walked(entries) == one_by_one(entries) == events


@given(st.lists(any_events(), max_size=12), st.data())
def test_an_entry_that_is_cut_is_named(events: list[MetadataEvent], data: st.DataObject) -> None:
    entries = b"".join(map(encode_cache_entry, events))
    borders = {len(b"".join(map(encode_cache_entry, events[:n]))) for n in range(len(events) + 1)}
    end = data.draw(st.integers(0, len(entries)))
    if end in borders:
        assert walked(entries[:end]) == one_by_one(entries[:end])
    else:
        last = max(border for border in borders if border < end)
        with pytest.raises(CorruptSegment, match=f"a file, entry at byte {last}: "):
            list(walk_entries(entries[:end], "a file"))


@given(st.binary(max_size=300))
def test_no_bytes_bring_another_error(raw: bytes) -> None:
    for entries in (raw, b"\x00".join([raw, raw]), bytes([len(raw) % 128]) + b"\x00\x01" + raw):
        try:
            compact(entries, TP, "a file")
        except CorruptSegment:
            continue


def written(*events: MetadataEvent) -> bytes:
    return b"".join(map(encode_cache_entry, events))


def test_the_last_state_of_each_segment_is_kept_and_finished_ones_come_last() -> None:
    entries = written(
        segment(1, 20, 29, STARTED),
        segment(2, 0, 9, STARTED),
        segment(1, 20, 29),
        segment(3, 30, 39, STARTED),
        segment(2, 0, 9),
        segment(4, 40, 49, STARTED),
        segment(3, 30, 39, DELETING),
        segment(4, 40, 49, FINISHED),
        segment(3, 30, 39, DELETED),
        segment(5, 10, 19, STARTED),
    )
    assert one_by_one(compact(entries, TP, "a file")) == [
        segment(5, 10, 19, STARTED),
        segment(2, 0, 9),
        segment(1, 20, 29),
        segment(4, 40, 49),
    ]


def test_the_highest_log_start_and_the_last_deletion_are_kept() -> None:
    marked, started, deleted = (
        RemotePartitionDeleteMetadata(TP, state, 0) for state in RemotePartitionDeleteState
    )
    starts = [LogStartOffset(TP, offset, 0) for offset in (5, 9, 7)]
    entries = written(starts[0], marked, starts[1], segment(1, 9, 12), started, starts[2])
    events_kept = [starts[1], started, segment(1, 9, 12)]
    assert one_by_one(compact(entries, TP, "a file")) == events_kept
    assert compact(entries + written(deleted), TP, "a file") == b""
    later = written(segment(2, 0, 3))
    assert compact(entries + written(deleted) + later, TP, "a file") == later


def test_what_a_newer_one_wrote_is_not_dropped() -> None:
    for newer in (b"\x00\x03" + bytes(90), b"\x09\x00abc"):
        with pytest.raises(NewerMetadataVersion):
            compact(written(segment(1, 0, 9)) + framed(newer), TP, "a file")
