"""What of each partition is history and what is live; no row twice, and none too few."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.errors import ConfigError
from fetchproxy.remotelog.options import EARLIEST, LATEST, Bound, BoundKind
from fetchproxy.remotelog.tier_boundary import TierBoundary, split_at_boundary

ARCHIVED, LIVE = ("orders", 0), ("orders", 1)
TIER_BOUNDARY = TierBoundary({ARCHIVED: 500}, {LIVE: 0})
FIRST, LAST = Bound(BoundKind.EARLIEST), Bound(BoundKind.LATEST)


def offsets(archived: int, live: int) -> Bound:
    return Bound(BoundKind.OFFSETS, {ARCHIVED: archived, LIVE: live})


def test_a_partition_without_archive_at_the_crossing_is_read_live_alone() -> None:
    history, live = split_at_boundary(TIER_BOUNDARY, FIRST, LAST)
    assert history == {ARCHIVED: (EARLIEST, 500)}
    assert live == {ARCHIVED: (500, LATEST), LIVE: (0, LATEST)}


def test_latest_means_the_brokers_latest() -> None:
    history, live = split_at_boundary(TIER_BOUNDARY, LAST, LAST)
    assert history == {}
    assert live == {ARCHIVED: (LATEST, LATEST), LIVE: (LATEST, LATEST)}
    history, live = split_at_boundary(TIER_BOUNDARY, offsets(LATEST, 7), LAST)
    assert history == {}
    assert live == {ARCHIVED: (LATEST, LATEST), LIVE: (7, LATEST)}


def test_an_end_holds_on_both_sides_of_the_crossing() -> None:
    history, live = split_at_boundary(TIER_BOUNDARY, FIRST, offsets(10, 20))
    assert history == {ARCHIVED: (EARLIEST, 10)}
    assert live == {LIVE: (0, 20)}
    history, live = split_at_boundary(TIER_BOUNDARY, FIRST, offsets(700, LATEST))
    assert history == {ARCHIVED: (EARLIEST, 500)}
    assert live == {ARCHIVED: (500, 700), LIVE: (0, LATEST)}


@given(st.integers(EARLIEST, 30), st.integers(LATEST, 30), st.integers(0, 20))
def test_every_offset_is_read_once(start: int, end: int, cross: int) -> None:
    """Of a partition that is archived from 0 on, and has 25 records on the brokers."""
    there = 25
    tier_boundary = TierBoundary({ARCHIVED: cross}, {})
    if start == LATEST:
        return
    starting, ending = ({ARCHIVED: each} for each in (start, end))
    history, live = split_at_boundary(
        tier_boundary, Bound(BoundKind.OFFSETS, starting), Bound(BoundKind.OFFSETS, ending)
    )
    offsets_read = [
        offset
        for half in (history, live)
        for begin, until in half.values()
        for offset in range(max(begin, 0), there if until == LATEST else min(until, there))
    ]
    last = there if end == LATEST else min(end, there)
    assert offsets_read == list(range(max(start, 0), last))


def test_each_partition_is_named_or_none() -> None:
    bound = Bound(BoundKind.OFFSETS, {ARCHIVED: 5})
    with pytest.raises(ConfigError, match="startingOffsets has to name each partition"):
        split_at_boundary(TIER_BOUNDARY, bound, LAST)
    with pytest.raises(ConfigError, match="endingOffsets has to name each partition"):
        split_at_boundary(TIER_BOUNDARY, FIRST, bound)


def test_a_crossing_is_kept_as_it_was() -> None:
    assert TierBoundary.decode(TIER_BOUNDARY.encode(), "here") == TIER_BOUNDARY


def test_one_that_was_kept_before_is_understood() -> None:
    text = json.dumps({"orders": {"0": 500, "1": EARLIEST}})
    assert TierBoundary.decode(text, "here") == TierBoundary({ARCHIVED: 500}, {LIVE: EARLIEST})


@pytest.mark.parametrize("text", ["", "[]", "{", '{"version": 2}', '{"orders": 5}'])
def test_a_damaged_file_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"the crossing file hdfs:///x\.json is damaged"):
        TierBoundary.decode(text, "hdfs:///x.json")
