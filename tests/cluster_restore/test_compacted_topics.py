"""What the archive has of compacted logs, in words."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from retention_segments import TP, segment

from fetchproxy.cluster_restore.compacted_topics import copy_lines, copy_state, is_served_whole
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import CompactedCopy, LogHistory, RemoteLogSegmentId

COPY = replace(CompactedCopy.begun(1_800_000_000_000, UUID(int=1)), made_to=20)


def view(copy: CompactedCopy | None) -> PartitionView:
    """Two segments of `COPY` with the offsets 5 to 29, and one of another copy."""

    def of(copy: CompactedCopy, number: int, start: int, end: int) -> object:
        one = segment(number, start, end)
        return replace(one, segment_id=RemoteLogSegmentId(TP, copy.segment_id(UUID(int=number))))

    other = replace(COPY, number=COPY.number + 1)
    segments = [of(COPY, 1, 5, 19), of(COPY, 2, 20, 29), of(other, 3, 7, 9)]
    return build_view(TP, segments, 0.0, history=LogHistory(compacted=copy))  # type: ignore[arg-type]


def test_a_whole_copy_is_served_whole() -> None:
    state = copy_state(view(COPY))
    assert state is not None
    assert (state.start_offset, state.end_offset, state.segments) == (5, 30, 2)
    assert (state.size_bytes, state.begun_at_ms) == (25, 1_800_000_000_000)
    assert is_served_whole(view(COPY))
    assert list(copy_lines([state])) == [
        f"compacted topic {TP.topic}: whole copies of 1 of 1 partitions, 25 bytes in 2 segments"
    ]


def test_without_a_whole_copy_nothing_is_served() -> None:
    begun = copy_state(view(CompactedCopy()))
    assert begun is not None
    assert not begun.is_whole
    assert not is_served_whole(view(CompactedCopy()))
    whole = copy_state(view(COPY))
    assert whole is not None
    lines = list(copy_lines([begun, replace(whole, partition=1)]))
    assert "whole copies of 1 of 2 partitions" in lines[0]


def test_other_logs_are_no_copies() -> None:
    assert copy_state(view(None)) is None
    assert not is_served_whole(view(None))


def test_what_does_not_count_yet_is_not_served() -> None:
    state = copy_state(view(replace(COPY, shown_to=20)))
    assert state is not None
    assert (state.end_offset, state.segments) == (20, 1)
