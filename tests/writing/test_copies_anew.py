"""When a compacted log is copied anew, and what a copy may lack."""

from __future__ import annotations

from uuid import UUID

import pytest
from retention_segments import segment as any_segment

from fetchproxy.model import CompactedCopy, LogHistory
from fetchproxy.writing.compaction import (
    ADDED_SEGMENTS_MAX,
    COPY_AGE_MAX_MS,
    CopySize,
    WhyAnew,
    delete_retention_ms,
    is_compacted,
    may_lack_deletes,
    why_anew,
)

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000
DAY_MS = 24 * HOUR_MS
EVEN = CopySize(0, 1_000, 0, 0)


def reason(
    size: CopySize = EVEN,
    *,
    age_ms: int = 2 * HOUR_MS,
    caught_up_ago_ms: int = 0,
    log_start_offset: int = 0,
) -> WhyAnew | None:
    return why_anew(
        CompactedCopy.begun(NOW_MS - age_ms, UUID(int=5)),
        size,
        log_start_offset=log_start_offset,
        caught_up_ms=NOW_MS - caught_up_ago_ms,
        now_ms=NOW_MS,
        retention_ms=DAY_MS,
        interval_min_ms=HOUR_MS,
    )


def test_a_copy_is_made_anew_when_it_has_doubled() -> None:
    assert reason() is None
    assert reason(CopySize(0, 1_000, 999, 3)) is None
    assert reason(CopySize(0, 1_000, 1_000, 3)) is WhyAnew.GROWN
    assert reason(CopySize(0, 1_000, 1_000, 3), age_ms=HOUR_MS - 1) is None
    assert reason(CopySize(None, 0, 0, 0)) is None
    assert reason(CopySize(0, 0, 10, 1)) is WhyAnew.GROWN


def test_many_small_segments_an_age_and_a_new_log_start_are_reasons_too() -> None:
    assert reason(CopySize(0, 10_000, 100, ADDED_SEGMENTS_MAX - 1)) is None
    assert reason(CopySize(0, 10_000, 100, ADDED_SEGMENTS_MAX)) is WhyAnew.PIECES
    assert reason(age_ms=COPY_AGE_MAX_MS - 1) is None
    assert reason(age_ms=COPY_AGE_MAX_MS) is WhyAnew.OLD
    assert reason(log_start_offset=1) is WhyAnew.TRIMMED
    assert reason(CopySize(1, 1_000, 0, 0), log_start_offset=1) is None


def test_deletions_may_be_missing_after_three_quarters_of_their_retention() -> None:
    assert not may_lack_deletes(NOW_MS - 18 * HOUR_MS, NOW_MS, DAY_MS)
    assert may_lack_deletes(NOW_MS - 18 * HOUR_MS - 1, NOW_MS, DAY_MS)
    assert may_lack_deletes(NOW_MS + 1, NOW_MS, DAY_MS), "the clock was set back"
    assert reason(caught_up_ago_ms=19 * HOUR_MS, age_ms=0) is WhyAnew.LATE


def test_no_copy_is_whole_yet() -> None:
    first = why_anew(
        CompactedCopy(), CopySize(None, 0, 0, 0), log_start_offset=0, caught_up_ms=-1,
        now_ms=NOW_MS, retention_ms=DAY_MS, interval_min_ms=HOUR_MS,
    )  # fmt: skip
    assert first is WhyAnew.FIRST


@pytest.mark.parametrize(
    ("settings", "compacted", "retention_ms"),
    [
        ({}, False, DAY_MS),
        ({"cleanup.policy": "delete"}, False, DAY_MS),
        ({"cleanup.policy": "delete, compact", "delete.retention.ms": "7"}, True, 7),
    ],
)
def test_settings(settings: dict[str, str], compacted: bool, retention_ms: int) -> None:
    assert is_compacted(settings) == compacted
    assert delete_retention_ms(settings) == retention_ms


def test_ids_tell_copies_apart() -> None:
    one = CompactedCopy.begun(NOW_MS, UUID(int=2**128 - 1))
    other = CompactedCopy.begun(NOW_MS, UUID(int=1))
    assert one.begun_at_ms == other.begun_at_ms == NOW_MS
    assert one.number > other.number
    assert one.number < 2**63
    segment = any_segment(1, 0, 9)
    of_one = one.segment_id(UUID(int=2**127 + 77))
    assert of_one.int & (2**64 - 1) == 77
    history = LogHistory(compacted=one)
    assert not history.shows(segment)
    assert LogHistory().shows(segment)
    assert history.followed_by(3).compacted == one
