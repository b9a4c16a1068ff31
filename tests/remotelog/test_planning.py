"""Tasks cover what is asked for, once, whatever the segments look like."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from segment_values import segment_of

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.remotelog.planning import OffsetSpan, ReadTask, _task_of, plan_tasks
from fetchproxy.remotelog.pushed_filters import PushedFilters

TP = TopicIdPartition(UUID(int=1), "orders", 0)


def segment(start: int, end: int, size: int, number: int = 0) -> RemoteLogSegmentMetadata:
    of = {"max_timestamp_ms": end, "event_timestamp_ms": number, "segment_size_bytes": size}
    return segment_of(TP, start * 1000 + number, start, end, **of)


def planned(view: PartitionView, span: OffsetSpan, bytes_max: int) -> list[ReadTask]:
    return plan_tasks([(view, span)], partition_bytes_max=bytes_max)


def covered(tasks: list[ReadTask], view: PartitionView) -> list[int]:
    """The offsets that tasks read, if each byte of a segment held an equal share of them."""
    offsets_covered = []
    for task in tasks:
        for part in task.parts:
            count = part.segment.stored_end_offset - part.segment.start_offset + 1
            # A batch belongs to the piece in which it begins.
            for n in range(count):
                begins = n * part.segment.segment_size_bytes // count
                offset = part.segment.start_offset + n
                in_piece = part.byte_from <= begins < part.byte_to
                if in_piece and part.offset_from <= offset < part.offset_end:
                    offsets_covered.append(offset)
    return offsets_covered


@st.composite
def archives(draw: st.DrawFn) -> PartitionView:
    segments, offset = [], draw(st.integers(0, 50))
    for number in range(draw(st.integers(1, 8))):
        offset += draw(st.sampled_from([0, 0, 0, 5]))  # a recorded gap
        end = offset + draw(st.integers(0, 30))
        overlap = draw(st.sampled_from([0, 0, 3]))
        start = max(0, offset - overlap)
        segments.append(segment(start, end, draw(st.integers(40, 400)), number))
        offset = end + 1
    raised = draw(st.sampled_from([0, 0, segments[0].start_offset + 2]))
    return build_view(TP, segments, 0.0, raised_log_start=raised)


@given(archives(), st.data())
def test_every_offset_that_is_asked_for_is_read_once_and_in_order(
    view: PartitionView, data: st.DataObject
) -> None:
    every = [o for s in view.segments for o in range(s.start_offset, s.end_offset + 1)]
    there = sorted({o for o in every if o >= view.raised_log_start})
    ends = st.integers(0, max(every, default=0) + 10)
    span = OffsetSpan(data.draw(ends), data.draw(ends))
    tasks = planned(view, span, data.draw(st.integers(20, 2000)))
    assert covered(tasks, view) == [o for o in there if span.start <= o < span.end]


@given(archives(), st.integers(20, 2000))
def test_tasks_survive_the_way_to_an_executor(view: PartitionView, bytes_max: int) -> None:
    tasks = planned(view, OffsetSpan(0, 10_000), bytes_max)
    assert pickle.loads(pickle.dumps(tasks)) == tasks


def test_a_task_is_sent_in_the_form_that_other_versions_read() -> None:
    whole = segment(10, 19, 600, 7)
    view = build_view(TP, [replace(whole, end_offset=17, copied_end_offset=19)], 0.0)
    [first, second] = planned(view, OffsetSpan(12, 15), 300)
    make, fields = second.__reduce__()
    assert make is _task_of
    assert fields == (
        TP.topic_id.bytes,
        "orders",
        0,
        ((whole.segment_id.id.bytes, 10, 19, 600, False, False, 300, 600, 12, 15),),
    )
    assert make(*fields) == second
    assert first.parts[0].segment == view.segments[0].ref


@given(archives(), st.integers(20, 2000))
def test_tasks_are_of_the_asked_size(view: PartitionView, bytes_max: int) -> None:
    tasks = planned(view, OffsetSpan(0, 10_000), bytes_max)
    assert all(task.size_bytes <= bytes_max for task in tasks)
    # No two neighbours would have fitted into one.
    for one, other in pairwise(tasks):
        first = other.parts[0]
        assert one.size_bytes + first.byte_to - first.byte_from > bytes_max


def counts_of(view: PartitionView, partitions_min: int, records_max: int = 0) -> list[ReadTask]:
    return plan_tasks(
        [(view, OffsetSpan(0, 1000))],
        partition_bytes_max=32 * 1024 * 1024,
        partitions_min=partitions_min,
        records_max=records_max,
    )


def test_at_least_as_many_partitions_are_made_as_are_asked_for() -> None:
    large = build_view(TP, [segment(0, 999, 64 * 1024 * 1024)], 0.0)
    assert [len(counts_of(large, partitions_min)) for partitions_min in (0, 2, 8, 20)] == [
        2,
        2,
        8,
        21,
    ]
    small = [segment(n * 10, n * 10 + 9, 1000) for n in range(7)]
    for partitions_min in (5, 7, 20, 33):
        assert len(counts_of(build_view(TP, small, 0.0), partitions_min)) >= partitions_min


@given(archives(), st.integers(20, 2000), st.integers(1, 40), st.data())
def test_no_task_has_more_records_than_it_may(
    view: PartitionView, bytes_max: int, records_max: int, data: st.DataObject
) -> None:
    span = OffsetSpan(data.draw(st.integers(0, 100)), data.draw(st.integers(0, 400)))
    tasks = plan_tasks([(view, span)], partition_bytes_max=bytes_max, records_max=records_max)
    every = [o for s in view.segments for o in range(s.start_offset, s.end_offset + 1)]
    there = sorted({o for o in every if o >= view.raised_log_start})
    assert covered(tasks, view) == [o for o in there if span.start <= o < span.end]
    assert all(len(covered([task], view)) <= records_max for task in tasks)


def filter_of(kind: str, name: str, value: Any = None) -> Any:
    made = type(kind, (SimpleNamespace,), {})
    return made(attribute=(name,), value=value)


def test_filters_become_ranges_and_the_rest_stays_with_spark() -> None:
    from datetime import UTC, datetime

    time = datetime(2026, 1, 1, microsecond=1500, tzinfo=UTC)
    ms = int(time.timestamp()) * 1000
    filters_left = [
        filter_of("EqualTo", "key", b"x"),
        filter_of("StringStartsWith", "topic", "ord"),
        filter_of("EqualNullSafe", "offset", 5),
        filter_of("In", "offset", (1, 2)),
    ]
    filters = PushedFilters()
    taken = [
        filter_of("IsNotNull", "offset"),
        filter_of("In", "topic", ("orders", "payments", None)),
        filter_of("EqualTo", "topic", "orders"),
        filter_of("LessThan", "partition", 3),
        filter_of("GreaterThan", "offset", 10),
        filter_of("LessThanOrEqual", "offset", 20),
        filter_of("GreaterThanOrEqual", "timestamp", time),
        filter_of("LessThan", "timestamp", time),
    ]
    assert filters.push([*taken, *filters_left]) == filters_left
    assert filters.takes_partition("orders", 2)
    assert not filters.takes_partition("orders", 3)
    assert not filters.takes_partition("payments", 0)
    assert (filters.offset.least, filters.offset.greatest) == (11, 20)
    assert (filters.timestamp.least, filters.timestamp.greatest) == (ms + 2, ms + 1)


def test_a_filter_on_timestamps_leaves_out_those_that_are_null() -> None:
    from datetime import UTC, datetime

    for taken in (
        filter_of("IsNotNull", "timestamp"),
        filter_of("GreaterThan", "timestamp", datetime(2026, 1, 1, tzinfo=UTC)),
    ):
        filters = PushedFilters()
        assert filters.push([taken]) == []
        assert not filters.timestamp.has(2**63 // 1000 + 1)
        assert filters.timestamp.has(2**63 // 1000)


@given(
    st.integers(-3, 3),
    st.integers(0, 999),
    st.sampled_from(
        ["EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]
    ),
)
def test_filters_on_timestamps_keep_what_spark_would_keep(ms: int, us: int, kind: str) -> None:
    from datetime import UTC, datetime, timedelta

    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms, microseconds=us)
    compare = {
        "EqualTo": int.__eq__,
        "GreaterThan": int.__gt__,
        "GreaterThanOrEqual": int.__ge__,
        "LessThan": int.__lt__,
        "LessThanOrEqual": int.__le__,
    }[kind]
    filters = PushedFilters()
    assert filters.push([filter_of(kind, "timestamp", time)]) == []
    for row_ms in range(-6, 7):
        assert filters.timestamp.has(row_ms) == compare(row_ms * 1000, ms * 1000 + us)
