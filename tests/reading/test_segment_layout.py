from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.segments.remote_log_index import (
    IndexSpan,
    RemoteLogIndex,
    SegmentLayout,
    encode_index_entry,
)


def index(sizes: list[int], stamps: list[int] | None = None) -> RemoteLogIndex:
    """Span i holds offsets 100·i … 100·i + 50."""
    position, raw = 0, b""
    for i, size in enumerate(sizes):
        stamp = i if stamps is None else stamps[i]
        raw += encode_index_entry(
            "k", IndexSpan(position, size, 100 * i, 100 * i + 50, stamp, stamp)
        )
        position += size
    return RemoteLogIndex.parse(raw)


@given(st.lists(st.integers(61, 500), min_size=1, max_size=40), st.integers(1, 1500))
def test_chunks_are_whole_spans_without_gap_or_overlap(sizes: list[int], chunk: int) -> None:
    layout = SegmentLayout(index(sizes), chunk)
    ranges = [layout.byte_range(n) for n in range(len(layout))]
    assert ranges[0].start == 0
    assert ranges[-1].end == sum(sizes)
    edges = {sum(sizes[:i]) for i in range(len(sizes) + 1)}
    for before, after in pairwise(ranges):
        assert before.end == after.start
    for r in ranges:
        assert {r.start, r.end} <= edges
        spans = [s for i, s in enumerate(sizes) if r.start <= sum(sizes[:i]) < r.end]
        assert r.length <= chunk or len(spans) == 1
    # The layout is greedy: the span after a chunk did not fit into the chunk.
    for before, after in pairwise(ranges):
        following = next(s for i, s in enumerate(sizes) if sum(sizes[:i]) == after.start)
        assert before.length + following > chunk


@given(st.lists(st.integers(61, 500), min_size=1, max_size=20), st.integers(-10, 3000))
def test_an_offset_finds_the_chunk_that_ends_at_or_above_it(sizes: list[int], offset: int) -> None:
    layout = SegmentLayout(index(sizes), 700)
    number = layout.chunk_at_or_after(offset)
    assert all(last < offset for last in layout.last_offsets[:number])
    assert all(last >= offset for last in layout.last_offsets[number:])


def test_timestamps_are_the_largest_of_each_chunk() -> None:
    layout = SegmentLayout(index([100] * 6, [50, 10, 20, 90, 30, 70]), 200)
    assert list(layout.max_timestamps_ms) == [50, 90, 70]
    assert [layout.first_chunk_with_timestamp(t) for t in (0, 50, 51, 90, 91)] == [0, 0, 1, 1, None]
