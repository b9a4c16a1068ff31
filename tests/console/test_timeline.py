"""Of which days records are archived, on the brokers or lost, as far as metadata tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from segment_values import segment_of
from test_console_partitions import TP

from fetchproxy.console.timeline import (
    FEW_ANCHORS,
    SpanKind,
    TimelineSpan,
    coarse_spans,
    merged_spans,
    timeline,
)
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import LogOffsets

NOW = 1_000_000


def view(*segments: tuple[int, int, int], copied_at: int = 0) -> PartitionView:
    """(start, end, largest timestamp) of each."""
    made: list[Any] = [
        segment_of(
            TP, start + 1, start, end, segment_leader_epochs=(), max_timestamp_ms=at_ms,
            event_timestamp_ms=copied_at,
        )
        for start, end, at_ms in segments
    ]  # fmt: skip
    return build_view(TP, made, 0.0)


def test_what_is_archived_and_what_the_brokers_have() -> None:
    spans = timeline(view((0, 99, 100_000), (100, 199, 200_000)), LogOffsets(150, 300, 300), NOW)
    assert spans == (
        TimelineSpan(SpanKind.ARCHIVED, 0, 200_000, 0, 199),
        TimelineSpan(SpanKind.BROKERS, 151_000, NOW, 150, 299),
    )


def test_a_gap_has_the_time_between_its_neighbours() -> None:
    spans = timeline(view((0, 99, 100_000), (200, 299, 300_000)), None, NOW)
    assert [(one.kind, one.first_offset, one.last_offset) for one in spans] == [
        ("archived", 0, 99), ("archived", 200, 299), ("lost", 100, 199),
    ]  # fmt: skip
    assert (spans[2].from_ms, spans[2].until_ms) == (101_000, 200_000)


def test_what_the_brokers_have_deleted_unarchived_is_lost() -> None:
    spans = timeline(view((0, 99, 100_000)), LogOffsets(150, 200, 200), NOW)
    lost = [one for one in spans if one.kind == SpanKind.LOST]
    assert [(one.first_offset, one.last_offset) for one in lost] == [(100, 149)]
    assert 100_000 < lost[0].from_ms < lost[0].until_ms < NOW
    purged = replace(view((0, 99, 100_000)), raised_log_start=150)
    spans = timeline(purged, LogOffsets(150, 200, 200), NOW)
    assert {one.kind for one in spans} == {SpanKind.ARCHIVED, SpanKind.BROKERS}


def test_impossible_timestamps_count_as_the_time_of_the_copy() -> None:
    spans = timeline(view((0, 99, -1), (100, 199, NOW * 5), copied_at=700_000), None, NOW)
    assert (spans[0].from_ms, spans[0].until_ms) == (700_000, 700_000)
    falling = timeline(view((0, 99, 500_000), (100, 199, 400_000)), None, NOW)
    assert falling[0].from_ms <= falling[0].until_ms


def test_nothing_archived_has_no_dates() -> None:
    assert timeline(None, LogOffsets(0, 5, 5), NOW) == ()
    assert timeline(view(), LogOffsets(0, 5, 5), NOW) == ()


def test_many_segments_have_few_anchors_and_the_same_ends() -> None:
    every = [(n * 10, n * 10 + 9, 1_000 + n * 10) for n in range(20_000)]
    spans = timeline(view(*every), None, NOW)
    assert spans[0].until_ms == 1_000 + 19_999 * 10
    assert abs(spans[0].from_ms - 990) < 10


def test_spans_of_partitions_that_meet_are_one() -> None:
    spans = [
        TimelineSpan(SpanKind.LOST, 50, 60, 1, 2), TimelineSpan(SpanKind.ARCHIVED, 10, 40, 0, 5),
        TimelineSpan(SpanKind.ARCHIVED, 0, 20, 0, 5), TimelineSpan(SpanKind.ARCHIVED, 70, 80, 0, 5),
    ]  # fmt: skip
    assert merged_spans(spans) == (
        TimelineSpan(SpanKind.ARCHIVED, 0, 40, partitions=2),
        TimelineSpan(SpanKind.ARCHIVED, 70, 80),
        TimelineSpan(SpanKind.LOST, 50, 60),
    )
    assert merged_spans(merged_spans(spans)) == merged_spans(spans)


def test_very_many_spans_are_a_few_coarse_ones() -> None:
    day_ms = 86_400_000
    lost = [
        TimelineSpan(SpanKind.LOST, n * day_ms, n * day_ms + 1_000, n, n) for n in range(20_000)
    ]
    archived = TimelineSpan(SpanKind.ARCHIVED, 0, 20_000 * day_ms, 0, 9)
    assert len(merged_spans([archived, *lost])) == 20_001
    far_apart = [TimelineSpan(SpanKind.LOST, at, at, 1, 1) for at in (10 * day_ms, 9_000 * day_ms)]
    assert coarse_spans([archived, *far_apart]) == merged_spans([archived, *far_apart])
    few = coarse_spans([archived, *lost])
    assert len(few) <= 2 * 500
    assert sum(one.partitions for one in few if one.kind == SpanKind.LOST) == 20_000
    assert coarse_spans(few) == few
    assert coarse_spans([]) == ()


def test_few_anchors_have_the_same_ends() -> None:
    many = view(*((n * 10, n * 10 + 9, n * 1_000 + 1) for n in range(900)))
    at = LogOffsets(100, 9_500, 9_500)
    coarse, fine = timeline(many, at, NOW, FEW_ANCHORS), timeline(many, at, NOW)
    assert [(one.kind, one.first_offset, one.last_offset) for one in coarse] == [
        (one.kind, one.first_offset, one.last_offset) for one in fine
    ]
    assert coarse[0].until_ms == fine[0].until_ms
