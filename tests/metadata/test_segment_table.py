"""A table and a dict get the same random history; the table also after a load from a file."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_view import plain_view
from segment_values import (
    DELETED,
    DELETING,
    FINISHED,
    STARTED,
    TP,
    PlainTable,
    histories,
    log_histories,
    segment,
)

from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.catalogue import PartitionTable, build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    LogHistory,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from fetchproxy.segments.json_fields import NewerMetadataVersion
from fetchproxy.segments.records import (
    LogStartOffset,
    MetadataEvent,
    compact,
    encode_cache_entry,
    framed,
)

STATES = (STARTED, FINISHED, DELETING, DELETED)


def check_same(table: PartitionTable, plain: PlainTable) -> None:
    known = plain.segments.values()
    assert list(table.segments()) == sorted(
        known, key=lambda s: (s.start_offset, s.segment_id.id.bytes)
    )
    assert table.raised_log_start == plain.raised_log_start
    assert table.deletion == plain.deletion
    for each in known:
        assert table.known(each) == each
    assert_same_view(table.view(4.0, {7}), plain_view(TP, known, 4.0, {7}, plain.raised_log_start))


def assert_same_view(actual: PartitionView, expected: PartitionView) -> None:
    assert list(actual.segments) == list(expected.segments)
    assert set(actual.unfinished) == set(expected.unfinished)
    assert len(actual.unfinished) == len(expected.unfinished)
    for name in ("tp", "copies_started", "read_at", "unreadable", "raised_log_start"):
        assert getattr(actual, name) == getattr(expected, name)


@given(histories(), log_histories, st.integers(0, 90), st.sets(st.integers(0, 90), max_size=2))
def test_a_view_of_what_a_person_has_said(
    events: list[MetadataEvent], history: LogHistory, start: int, unreadable: set[int]
) -> None:
    plain = PlainTable()
    for event in events:
        plain.apply(event)
    known = [*plain.segments.values()]
    view = build_view(TP, known, 4.0, unreadable, start, history)
    assert_same_view(view, plain_view(TP, known, 4.0, unreadable, start, history))


def written(events: list[MetadataEvent]) -> bytes:
    return b"".join(map(encode_cache_entry, events))


@given(histories())
def test_a_table_knows_what_a_dict_knows(history: list[MetadataEvent]) -> None:
    table, plain = PartitionTable(TP), PlainTable()
    for event in history:
        before = table.view(1.0)
        segments = list(before.segments)
        assert table.apply(event) == plain.apply(event)
        check_same(table, plain)
        assert list(before.segments) == segments  # a view does not change


@given(histories(), st.data())
def test_so_does_one_that_is_loaded_from_what_was_written(
    history: list[MetadataEvent], data: st.DataObject
) -> None:
    table, plain = PartitionTable(TP), PlainTable()
    taken = [event for event in history if table.apply(event)]
    for event in taken:
        plain.apply(event)
    once = compact(written(taken), TP, "a file")
    assert compact(once, TP, "a file") == once
    check_same(PartitionTable.load(TP, once), plain)
    # A compaction at any time in between changes nothing.
    cut = data.draw(st.integers(0, len(taken)))
    twice = compact(written(taken[:cut]), TP, "a file") + written(taken[cut:])
    check_same(PartitionTable.load(TP, compact(twice, TP, "a file")), plain)


@st.composite
def lives(draw: st.DrawFn) -> list[MetadataEvent]:
    """Events of writers that see each other: one life of each segment, up to some point."""
    waiting: list[list[MetadataEvent]] = []
    for number in range(draw(st.integers(1, 5))):
        start = number * 10 - draw(st.sampled_from([0, 0, 3]))
        life = [segment(number, max(0, start), number * 10 + 9, state) for state in STATES]
        life.insert(2, replace(life[1], end_offset=number * 10 + 4, copied_end_offset=99))
        waiting.append([*life[: draw(st.integers(1, 5))]])
    waiting.append([LogStartOffset(TP, at, 0) for at in (3, 12)])
    history = []
    while any(waiting):
        history.append(draw(st.sampled_from([life for life in waiting if life])).pop(0))
    return history


@given(lives(), st.data())
def test_events_that_are_read_again_change_nothing_in_the_end(
    history: list[MetadataEvent], data: st.DataObject
) -> None:
    """After a crash the file may have more events than were committed."""
    table = PartitionTable(TP)
    assert all([table.apply(event) for event in history])
    known, view = list(table.segments()), table.view(1.0)
    for event in history[data.draw(st.integers(0, len(history))) :]:
        table.apply(event)
    assert list(table.segments()) == known
    assert_same_view(table.view(1.0), view)


def finished(count: int) -> list[RemoteLogSegmentMetadata]:
    return [segment(n, n * 10, n * 10 + 9, max_timestamp_ms=n) for n in range(1, count + 1)]


def test_the_usual_file_is_taken_in_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this a cold start would take ten times as long, and nothing would report it."""
    monkeypatch.setattr(
        PartitionTable, "_insert_many", lambda _, segments: len(segments) == 0 or 1 / 0
    )
    segments = finished(700)
    copying = [segment(900, 8000, 8001, STARTED), segment(901, 8000, 8001, DELETING)]
    clipped = segment(701, 7010, 7015, copied_end_offset=7019)
    start = LogStartOffset(TP, 0, 0)
    entries = compact(written([*segments, *copying, start, clipped]), TP, "a file")
    table = PartitionTable.load(TP, entries)
    assert list(table.view(0.0).segments) == [*segments, clipped]
    assert list(table.view(0.0).unfinished) == copying


def test_an_old_attempt_cannot_come_back() -> None:
    table = PartitionTable(TP)
    for state in STATES:
        assert table.apply(segment(1, 0, 9, state))
    assert not table.apply(segment(1, 0, 9, FINISHED))
    assert list(table.segments()) == []


def test_a_segment_is_known_by_id_and_start() -> None:
    table = PartitionTable(TP)
    for state in (STARTED, FINISHED):
        table.apply(segment(1, 10, 19, state))
    assert table.known(segment(1, 10, 12)) == segment(1, 10, 19)
    assert table.known(segment(1, 11, 19)) is None
    assert not table.apply(segment(1, 11, 19, DELETING))


def test_deleting_the_partition_leaves_a_new_one() -> None:
    table = PartitionTable(TP)
    events: list[MetadataEvent] = [
        segment(1, 0, 9, STARTED),
        segment(1, 0, 9),
        LogStartOffset(TP, 5, 1),
    ]
    events += [RemotePartitionDeleteMetadata(TP, state, 2) for state in RemotePartitionDeleteState]
    assert all(table.apply(event) for event in events)
    assert compact(written(events), TP, "a file") == b""
    assert table.view(0.0) == PartitionTable(TP).view(0.0)
    assert table.deletion is None
    assert table.apply(segment(2, 0, 4, STARTED))


def test_what_cannot_be_read_is_named() -> None:
    good = encode_cache_entry(segment(1, 0, 9))
    with pytest.raises(NewerMetadataVersion, match="version 3 was written by a newer"):
        PartitionTable.load(TP, good + framed(b"\x00\x03" + bytes(90)))
    with pytest.raises(CorruptSegment, match="orders-3, entry at byte 89: not whole"):
        PartitionTable.load(TP, good + good[:-1])
    wrong = segment(2, 10, 19)
    bad = encode_cache_entry(wrong).replace(bytes([0, 0, 0, 0, 0, 0, 0, 19]), b"\xff" * 8)
    with pytest.raises(CorruptSegment, match="field endOffset"):
        PartitionTable.load(TP, good + bad)


def test_version_0_is_loaded() -> None:
    new = encode_cache_entry(segment(3, 0, 9))[3:]
    old = framed(b"\x00\x00" + new[:-18] + (103).to_bytes(4, "big") + b"\x01")
    both = compact(old + encode_cache_entry(segment(4, 10, 19)), TP, "a file")
    loaded = PartitionTable.load(TP, both).view(0.0).segments
    assert list(loaded) == [segment(3, 0, 9), segment(4, 10, 19)]
    assert loaded[0].segment_id.id == UUID(int=3)
