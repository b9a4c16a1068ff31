"""Segments in columns, compared with a plain list of the same segments."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from segment_values import TP, any_segments, segment

from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.metadata.columns import SegmentRows
from fetchproxy.metadata.store_backed import StoredPartition
from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata, SegmentRef, TopicIdPartition


@st.composite
def disjoint(draw: st.DrawFn, most: int = 30, after: int = 0) -> list[RemoteLogSegmentMetadata]:
    """Segments without overlap; their ids are numbers above `after`."""
    segments_made = []
    position = draw(st.integers(0, 5))
    for number in range(after + 1, after + 1 + draw(st.integers(0, most))):
        start = position + draw(st.sampled_from([0, 0, 3]))
        end = start + draw(st.integers(0, 6))
        copied = draw(st.sampled_from([None, None, end + 9]))
        times = {"max_timestamp_ms": draw(st.integers(-1, 40)), "event_timestamp_ms": number}
        segments_made.append(segment(number, start, end, copied_end_offset=copied, **times))
        position = end + 1
    return segments_made


@given(any_segments())
def test_a_row_keeps_all_of_a_segment(metadata: RemoteLogSegmentMetadata) -> None:
    finished = metadata.with_state(segment(0, 0, 0).state, metadata.event_timestamp_ms)
    assert list(SegmentRows.of(TP, [finished])) == [finished]


@given(disjoint(), st.data())
def test_it_is_a_sequence(plain: list[RemoteLogSegmentMetadata], data: st.DataObject) -> None:
    rows = SegmentRows.of(TP, plain)
    assert list(rows) == plain
    assert rows == plain
    assert rows == tuple(plain)
    assert tuple(plain) == rows
    assert len(rows) == len(plain)
    assert bool(rows) == bool(plain)
    assert list(reversed(rows)) == plain[::-1]
    some = data.draw(st.slices(len(plain)))
    assert rows[some] == tuple(plain[some])
    for index in range(-len(plain), len(plain)):
        assert rows[index] == plain[index]
    for index in (len(plain), -len(plain) - 1):
        with pytest.raises(IndexError):
            rows[index]
    if plain:
        assert rows != plain[:-1]
        assert rows != [*plain[:-1], segment(99, 5000, 5001)]


@given(disjoint())
def test_questions_of_offset_and_time(plain: list[RemoteLogSegmentMetadata]) -> None:
    rows = SegmentRows.of(TP, plain)
    assert list(rows.bounds()) == [(s.start_offset, s.end_offset) for s in plain]
    refs = [
        (
            SegmentRef(
                TP,
                s.segment_id.id.bytes,
                s.start_offset,
                s.stored_end_offset,
                s.segment_size_bytes,
                s.has_aborted_txns,
                s.packed,
            ),
            s.end_offset,
        )
        for s in plain
    ]
    assert [(s.ref, s.end_offset) for s in plain] == refs
    assert [s.segment_id for s in plain] == [ref.segment_id for ref, _ in refs]
    for index in range(len(plain) + 1):
        assert list(rows.refs(index)) == refs[index:]
    for offset in range(-1, (plain[-1].end_offset if plain else 0) + 2):
        expected = [i for i, s in enumerate(plain) if s.end_offset >= offset]
        assert rows.index_at_or_after(offset) == (expected or [len(plain)])[0]
        begun = [
            e.epoch for s in plain for e in s.segment_leader_epochs if e.start_offset <= offset
        ]
        assert rows.epoch_at(offset) == rows.epoch_at(offset) == max(begun, default=-1)
    for timestamp in range(-2, 42):
        for index in range(len(plain) + 1):
            late = [i for i, s in enumerate(plain) if s.max_timestamp_ms >= timestamp]
            index_expected = ([i for i in late if i >= index] or [len(plain)])[0]
            assert rows.index_at_or_after_timestamp(timestamp, index) == index_expected
        below = [s.max_timestamp_ms for s in plain if s.max_timestamp_ms < timestamp]
        assert rows.max_timestamp_ms(below=timestamp) == max(below, default=None)
    assert rows.max_timestamp_ms() == max((s.max_timestamp_ms for s in plain), default=None)
    assert rows.size_bytes == sum(s.segment_size_bytes for s in plain)
    for i, each in enumerate(plain):
        assert rows[rows.index_at_or_after(each.start_offset)] == each
        assert rows.start_offset(i) == each.start_offset
        assert rows.end_offset(i) == each.end_offset
        assert rows.find(each.segment_id.id, each.start_offset) == i
        assert rows.find(each.segment_id.id, each.start_offset + 1) is None
        assert rows.find(segment(1000, 0, 0).segment_id.id, each.start_offset) is None


@given(disjoint(), st.data())
def test_a_change_leaves_the_old_sequence_alone(
    plain: list[RemoteLogSegmentMetadata], data: st.DataObject
) -> None:
    rows = SegmentRows.of(TP, plain)
    old = list(plain)
    for turn in range(1, 5):
        first = data.draw(st.integers(0, len(plain)))
        last = data.draw(st.integers(first, len(plain)))
        fresh = data.draw(disjoint(6, turn * 100))
        before, rows = rows, rows.replaced(first, last, fresh)
        assert list(before) == plain
        plain = [*plain[:first], *fresh, *plain[last:]]
        assert list(rows) == plain
        one = segment(turn * 100, 10_000, 10_009)
        before, rows = rows, rows.appended(one)
        assert list(before) == plain
        plain = [*plain, one]
        assert list(rows) == plain
        peaks = [max(s.max_timestamp_ms for s in plain[: i + 1]) for i in range(len(plain))]
        for timestamp in (-1, 5, 40):
            expected = ([i for i, peak in enumerate(peaks) if peak >= timestamp] or [len(plain)])[0]
            assert rows.index_at_or_after_timestamp(timestamp) == expected
    assert list(SegmentRows.of(TP, old)) == old


def test_when_a_long_partition_was_archived_last_is_known_without_its_segments() -> None:
    """A look asks it of each partition of a topic that was made again."""
    assert SegmentRows.of(TP, []).archived_at_ms() == 0
    times = [1_000 + (n * 7) % 9_973 for n in range(20_000)]
    rows = SegmentRows.of(
        TP, (segment(n, n, n, event_timestamp_ms=at) for n, at in enumerate(times))
    ).replaced(0, 3)
    began_s = time.thread_time()
    assert rows.archived_at_ms() == max(times[3:])
    assert time.thread_time() - began_s < 0.05


def test_two_that_go_on_from_one_sequence_do_not_see_each_other() -> None:
    rows = SegmentRows.of(TP, [segment(1, 0, 9)])
    one, other = (rows.appended(segment(n, 10, 19)) for n in (2, 3))
    assert list(rows) == [segment(1, 0, 9)]
    assert list(one) == [segment(1, 0, 9), segment(2, 10, 19)]
    assert list(other) == [segment(1, 0, 9), segment(3, 10, 19)]


def test_what_retention_takes_does_not_keep_its_memory() -> None:
    rows = SegmentRows.of(TP, [segment(n, n, n) for n in range(1000)])
    for n in range(1000, 5000):
        rows = rows.replaced(0, 1).appended(segment(n, n, n))
    assert [s.start_offset for s in rows] == list(range(4000, 5000))
    assert len(rows._columns) <= 2001


@given(disjoint())
def test_leader_epochs_in_the_order_of_the_log(plain: list[RemoteLogSegmentMetadata]) -> None:
    """Only repeated epochs are left out, so the lineage is the same."""

    def newer(epochs: Iterable[EpochStart]) -> list[EpochStart]:
        epoch_starts: list[EpochStart] = []
        for entry in epochs:
            if not epoch_starts or entry.epoch > epoch_starts[-1].epoch:
                epoch_starts.append(entry)
        return epoch_starts

    every = [entry for s in plain for entry in s.segment_leader_epochs]
    taken = list(SegmentRows.of(TP, plain).leader_epochs())
    assert newer(taken) == newer(every)
    assert len(taken) <= len(every)


def test_segments_of_one_leader_keep_its_epochs_once() -> None:
    rows = SegmentRows.of(TP, [segment(2 * n, n, n) for n in range(4)])
    assert len(rows._columns.pool.packed) == 1
    assert [s.segment_leader_epochs for s in rows] == [(EpochStart(0, n),) for n in range(4)]


def test_sequences_that_begin_without_a_segment_have_nothing_in_common() -> None:
    empty, other = SegmentRows(TP), SegmentRows(TP)
    first, second = segment(1, 0, 4), segment(2, 5, 9)
    assert list(empty.appended(first).appended(second)) == [first, second]
    assert list(other.replaced(0, 0, [second])) == [second]
    assert not list(empty)
    assert not list(other.replaced(0, 0))
    assert not list(SegmentRows(TP))


def test_a_partition_without_a_segment_takes_about_a_kilobyte() -> None:
    """An archive of many topics has tens of thousands; columns would take as much again."""
    tps = [TopicIdPartition(TP.topic_id, "many", number) for number in range(1_000)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        with_views = [(StoredPartition(table := PartitionTable(tp)), table.view(0.0)) for tp in tps]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(with_views) < 1_200
