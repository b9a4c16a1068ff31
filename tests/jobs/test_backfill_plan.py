"""Ranges of a backfill: each offset in one, whatever the archive's segments become."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from retention_segments import TP, archives, segment

from fetchproxy.errors import ConfigError
from fetchproxy.jobs.backfill_plan import (
    VERSION,
    BackfillRange,
    Plan,
    next_plan,
    of_other_topics,
)
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.remotelog.planning import OffsetSpan
from fetchproxy.writing.completeness_records import uncovered

SETTINGS = {"isolationLevel": "read_committed"}
ID = str(TP.topic_id)


def whole(view: PartitionView) -> OffsetSpan:
    return OffsetSpan(view.log_start_offset or 0, view.log_end_offset or 0)


def planned(
    view: PartitionView,
    last: Plan | None = None,
    done: tuple[BackfillRange, ...] = (),
    bytes_max: int = 10,
) -> Plan:
    return next_plan(
        last,
        done,
        [(view, whole(view))],
        SETTINGS,
        bytes_max=bytes_max,
    )


def offsets(plan: Plan) -> list[tuple[int, int]]:
    return [(one.first, one.end) for one in plan.ranges]


def row(*sizes: int) -> list[RemoteLogSegmentMetadata]:
    made: list[RemoteLogSegmentMetadata] = []
    for number, size in enumerate(sizes):
        start = made[-1].end_offset + 1 if made else 0
        made.append(segment(number + 1, start, start + size - 1))
    return made


def test_segments_share_a_range_and_large_ones_are_cut() -> None:
    view = build_view(TP, row(4, 4, 4, 25, 3), 0.0)
    assert offsets(planned(view)) == [(0, 8), (8, 12), (12, 20), (20, 28), (28, 37), (37, 40)]


def test_a_range_is_named_by_topic_partition_and_offsets() -> None:
    name = BackfillRange("orders", ID, 3, 10, 20).name
    assert name == "orders-3-00000000000000000010-00000000000000000019"


@given(archives(), st.integers(1, 30), st.integers(1, 30), st.data())
def test_each_archived_offset_is_in_one_range_over_all_runs(
    archive: tuple[list[RemoteLogSegmentMetadata], PartitionView],
    bytes_max: int,
    later_bytes_max: int,
    data: st.DataObject,
) -> None:
    _, view = archive
    first = planned(view, bytes_max=bytes_max)
    done = tuple(one for one in first.ranges if data.draw(st.booleans()))
    # Meanwhile the archive has grown and all of it was merged into one segment.
    end = (view.log_end_offset or 0) + 9
    grown = build_view(TP, [segment(99, view.log_start_offset or 0, end)], 1.0)
    second = planned(grown, first, done, later_bytes_max)
    assert set(first.ranges) - set(done) <= set(second.ranges)
    every = sorted([*done, *second.ranges])
    covered = [o for one in every for o in range(one.first, one.end)]
    assert len(covered) == len(set(covered))
    offsets_archived = {o for s in grown.segments for o in range(s.start_offset, s.end_offset + 1)}
    assert offsets_archived <= set(covered)
    again = planned(grown, second, (*done, *second.ranges))
    assert again.ranges == ()


def test_what_was_planned_keeps_its_ranges() -> None:
    small = build_view(TP, row(4, 4), 0.0)
    first = planned(small)
    assert offsets(first) == [(0, 8)]
    grown = build_view(TP, row(4, 4, 4), 0.0)
    assert offsets(planned(grown, first)) == [(0, 8), (8, 12)]


def test_other_settings_are_refused() -> None:
    first = replace(planned(build_view(TP, row(4), 0.0)), settings={"isolationLevel": "other"})
    with pytest.raises(ConfigError, match=r"begun with isolationLevel=other.*read_committed"):
        planned(build_view(TP, row(4), 0.0), first)


def test_a_topic_that_was_made_again_is_refused() -> None:
    first = planned(build_view(TP, row(4), 0.0))
    other = TopicIdPartition(UUID(int=2), TP.topic, TP.partition)
    view = replace(build_view(TP, row(4, 4), 0.0), tp=other)
    views = [(view, whole(view))]
    (refused,) = of_other_topics(first.ranges, views)
    assert refused.name == "orders-0"
    assert "another topic orders" in refused.error
    assert of_other_topics((), views) == []


def test_a_plan_is_read_back_and_damage_is_named() -> None:
    plan = planned(build_view(TP, row(4, 9), 0.0))
    assert Plan.decode(plan.encode(), "x") == plan
    other = plan.encode().replace(b'"version": %d' % VERSION, b'"version": %d' % (VERSION - 1))
    for raw in (b"", b"[]", b"{}", other):
        with pytest.raises(ConfigError, match="there"):
            Plan.decode(raw, "there")


@given(
    st.tuples(st.integers(0, 30), st.integers(0, 30)),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=5),
)
def test_what_is_left_of_a_span(span: tuple[int, int], ranges: list[tuple[int, int]]) -> None:
    spans = [OffsetSpan(*sorted(one)) for one in ranges]
    taken = sorted((one.start, one.end - 1) for one in spans)
    ranges_left = uncovered(span[0], span[1] - 1, taken)
    offsets_left = [o for first, last in ranges_left for o in range(first, last + 1)]
    expected = set(range(*span)) - {o for one in spans for o in range(one.start, one.end)}
    assert offsets_left == sorted(expected)
