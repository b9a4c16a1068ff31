from __future__ import annotations

from itertools import pairwise
from random import Random
from uuid import UUID

from generated_archive import random_tp
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, RemoteLogSegmentState
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


@given(st.lists(st.integers(61, 500), min_size=1, max_size=20), st.integers(0, 10_000))
def test_a_segment_of_one_chunk_is_laid_out_as_by_its_index(sizes: list[int], stamp: int) -> None:
    by_index = SegmentLayout(index(sizes, [stamp] * len(sizes)), sum(sizes))
    metadata = RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(random_tp(Random(1)), UUID(int=1)),
        start_offset=0,
        end_offset=100 * (len(sizes) - 1) + 50,
        max_timestamp_ms=stamp,
        event_timestamp_ms=0,
        segment_leader_epochs=(),
        segment_size_bytes=sum(sizes),
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        has_aborted_txns=False,
    )
    for clipped in (metadata, metadata.clipped(metadata.end_offset - 1)):
        presumed = SegmentLayout.presumed(clipped)
        assert presumed.is_presumed > by_index.is_presumed
        for name in ("ends", "first_offsets", "last_offsets", "max_timestamps_ms"):
            assert getattr(presumed, name) == getattr(by_index, name)
