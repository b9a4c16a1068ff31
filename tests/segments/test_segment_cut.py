"""Which batches join a segment, and when it is closed."""

from __future__ import annotations

import pytest
from fetchproxy_protocol.record_batch import BatchHeader
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.segments.contents import CutReason, Take, cut_reason, plan_take


def header(base: int, last: int, size: int) -> BatchHeader:
    return BatchHeader(0, size, base, size - 12, 0, 0, 0, last - base, 0, 0, -1, -1, -1, 1)


def batches(*sizes: int, first: int = 0) -> list[BatchHeader]:
    return [header(first + 10 * i, first + 10 * i + 9, size) for i, size in enumerate(sizes)]


def take(headers: list[BatchHeader], **changes: int) -> Take:
    arguments = {
        "position": 0,
        "last_stable_offset": 10**9,
        "accumulated_bytes": 0,
        "segment_bytes_max": 1000,
        **changes,
    }
    return plan_take(headers, **arguments)


def test_batches_below_the_segments_size_leave_it_open() -> None:
    assert take(batches(300, 300, 300)) == Take(0, 3, full=False)


def test_the_batch_that_does_not_fit_begins_the_next_segment() -> None:
    assert take(batches(300, 300, 500)) == Take(0, 2, full=True)
    assert take(batches(300), accumulated_bytes=800) == Take(0, 0, full=True)


def test_batches_of_exactly_the_segments_size_fill_it() -> None:
    assert take(batches(500, 500)) == Take(0, 2, full=True)


def test_a_batch_larger_than_a_segment_is_one_by_itself() -> None:
    assert take(batches(5000, 10)) == Take(0, 1, full=True)
    assert take(batches(5000, 10), accumulated_bytes=1) == Take(0, 0, full=True)


def test_never_above_the_last_stable_offset() -> None:
    assert take(batches(10, 10, 10), last_stable_offset=20) == Take(0, 2, full=False)
    assert take(batches(10, 10, 10), last_stable_offset=19) == Take(0, 1, full=False)
    assert take(batches(10), last_stable_offset=0) == Take(0, 0, full=False)


def test_batches_below_the_position_are_passed_over() -> None:
    assert take(batches(10, 10, 10), position=10) == Take(1, 3, full=False)
    # The position lies inside the second batch, which is taken whole.
    assert take(batches(10, 10, 10), position=15) == Take(1, 3, full=False)
    assert take(batches(10), position=10) == Take(1, 1, full=False)


@given(
    st.lists(st.integers(min_value=61, max_value=2_000), max_size=30),
    st.integers(min_value=61, max_value=4_000),
    st.integers(min_value=0, max_value=300),
)
def test_repeated_takes_cut_the_whole_log_once(sizes: list[int], limit: int, stable: int) -> None:
    headers = batches(*sizes)
    segments: list[list[BatchHeader]] = [[]]
    headers_left = headers
    while headers_left:
        accumulated = sum(h.size for h in segments[-1])
        planned = take(
            headers_left,
            last_stable_offset=stable,
            accumulated_bytes=accumulated,
            segment_bytes_max=limit,
        )
        segments[-1] += headers_left[planned.start : planned.end]
        headers_left = headers_left[planned.end :]
        if not planned.full:
            break
        segments.append([])
    copied = [h for segment in segments for h in segment]
    assert copied == [h for h in headers if h.last_offset < stable]
    assert all(
        len(segment) == 1 or sum(h.size for h in segment) <= limit
        for segment in segments
        if segment
    )


@pytest.mark.parametrize(
    ("age_ms", "spool_bytes", "is_last_copy", "expected"),
    [
        (0, 0, False, None),
        (999, 99, False, None),
        (1000, 0, False, CutReason.AGE),
        (0, 100, False, CutReason.SPOOL),
        (5000, 500, True, CutReason.AGE),
        (299, 99, True, None),
        (300, 0, True, CutReason.LAST_COPY),
    ],
)
def test_cut_before_it_is_full(
    age_ms: int, spool_bytes: int, is_last_copy: bool, expected: CutReason | None
) -> None:
    assert (
        cut_reason(
            age_ms=age_ms,
            spool_bytes=spool_bytes,
            segment_age_max_ms=1000,
            spool_bytes_max=100,
            last_copy_age_min_ms=300,
            is_last_copy=is_last_copy,
        )
        is expected
    )
