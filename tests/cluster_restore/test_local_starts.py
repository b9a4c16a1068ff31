"""Where local history begins: decisions from the metadata of segments and their indexes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from fetchproxy.cluster_restore.archived_records import highest_producer_id
from fetchproxy.cluster_restore.local_history import (
    LocalAmount,
    epochs_from,
    first_segment,
    parse_local_amount,
    reaches_below,
    start_in_segment,
    usable_segments,
)
from fetchproxy.metadata.columns import SegmentRows
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.segments.remote_log_index import IndexSpan, RemoteLogIndex, encode_index_entry

TP = TopicIdPartition(uuid.UUID(int=7), "orders", 0)
SPAN_BYTES = 1_000


def segment(
    first: int, epoch: int | Sequence[tuple[int, int]], max_ms: int = 0
) -> RemoteLogSegmentMetadata:
    """100 offsets from `first` on, in ten entries of SPAN_BYTES."""
    epochs = [(epoch, first)] if isinstance(epoch, int) else epoch
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(TP, uuid.uuid4()),
        start_offset=first,
        end_offset=first + 99,
        max_timestamp_ms=max_ms or first + 99,
        event_timestamp_ms=0,
        segment_leader_epochs=tuple(EpochStart(*one) for one in epochs),
        segment_size_bytes=10 * SPAN_BYTES,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        has_aborted_txns=False,
    )


def view_of(*segments: RemoteLogSegmentMetadata, unreadable: tuple[int, ...] = ()) -> PartitionView:
    rows = SegmentRows.of(TP, segments)
    return PartitionView(TP, rows, copies_started=False, read_at=0.0, unreadable=unreadable)


def index_of(one: RemoteLogSegmentMetadata) -> RemoteLogIndex:
    """Timestamps are offsets."""
    raw = b""
    for number in range(10):
        first = one.start_offset + 10 * number
        span = IndexSpan(number * SPAN_BYTES, SPAN_BYTES, first, first + 9, first, first + 9)
        raw += encode_index_entry("key", span)
    return RemoteLogIndex.parse(raw)


def start_of(view: PartitionView, amount: LocalAmount, usable: int = 0) -> int | None:
    for number in range(first_segment(view, amount, usable), len(view.segments)):
        start = start_in_segment(view, number, index_of(view.segments[number]), amount)
        if start is not None:
            return start
    return None


THREE = view_of(segment(0, 1), segment(100, 1), segment(200, [(1, 200), (4, 250)]))


@pytest.mark.parametrize(
    ("size", "start"),
    [(0, None), (999, None), (1_000, 290), (10_000, 200), (10_999, 200), (11_000, 190),
     (30_000, 0), (1 << 40, 0)],
)  # fmt: skip
def test_as_many_bytes_as_fit(size: int, start: int | None) -> None:
    assert start_of(THREE, LocalAmount(bytes_max=size)) == start


@pytest.mark.parametrize(
    ("from_ms", "start"),
    [(0, 0), (9, 0), (10, 10), (100, 100), (205, 200), (299, 290), (300, None)],
)
def test_records_from_a_time_on(from_ms: int, start: int | None) -> None:
    assert start_of(THREE, LocalAmount(from_ms=from_ms)) == start


def test_a_raised_log_start_is_not_passed() -> None:
    raised = replace(THREE, raised_log_start=115)
    assert start_of(raised, LocalAmount(bytes_max=1 << 40)) == 120


def test_the_end_may_lie_inside_a_segment() -> None:
    assert start_of(THREE.up_to(250), LocalAmount(bytes_max=2_000)) == 230


@pytest.mark.parametrize(
    ("view", "first", "words"),
    [
        (THREE, 0, ""),
        (
            view_of(segment(0, 3), segment(100, 2), segment(200, 2)),
            1,
            "below offset 100, leader epochs",
        ),
        (
            view_of(segment(0, 1), segment(100, -1), segment(200, 2)),
            2,
            "below offset 200, leader epochs",
        ),
        (view_of(segment(0, 1), segment(100, [(2, 100), (1, 150)])), 2, "below offset 200"),
        (
            view_of(segment(0, 1), segment(200, 1), unreadable=(100,)),
            1,
            "at offset 100 cannot be read",
        ),
        (view_of(segment(0, 1), segment(100, ())), 0, ""),
    ],
)
def test_what_followers_cannot_append_is_not_local(
    view: PartitionView, first: int, words: str
) -> None:
    usable = usable_segments(view)
    assert usable.first == first
    assert words in usable.why
    assert reaches_below(view, LocalAmount(bytes_max=1 << 40), first)


def test_less_than_was_ordered_is_noticed() -> None:
    assert not reaches_below(THREE, LocalAmount(bytes_max=10_000), 2)
    assert reaches_below(THREE, LocalAmount(bytes_max=10_001), 2)
    assert not reaches_below(THREE, LocalAmount(from_ms=200), 2)
    assert reaches_below(THREE, LocalAmount(from_ms=199), 2)


@pytest.mark.parametrize(
    ("start", "epochs"),
    [(0, [(1, 0), (4, 250)]), (210, [(1, 210), (4, 250)]), (250, [(4, 250)]), (270, [(4, 270)])],
)
def test_the_epochs_are_those_of_a_log_that_begins_there(
    start: int, epochs: list[tuple[int, int]]
) -> None:
    assert [(one.epoch, one.start_offset) for one in epochs_from(THREE, start, 0)] == epochs


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("10GiB", LocalAmount(bytes_max=10 << 30)),
        ("0B", LocalAmount(bytes_max=0)),
        ("7d", LocalAmount(from_ms=1_000_000_000 - 7 * 86_400_000)),
        ("30m", LocalAmount(from_ms=1_000_000_000 - 1_800_000)),
    ],
)
def test_an_amount_is_a_size_or_an_age(text: str, amount: LocalAmount) -> None:
    assert parse_local_amount(text, 1_000_000_000) == amount


@pytest.mark.parametrize("text", ["", "10", "10GB", "-1d", "1.5GiB", "seven"])
def test_another_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="10GiB, or an age such as 7d"):
        parse_local_amount(text, 0)


def test_the_highest_producer_of_batches() -> None:
    def batch(producer_id: int, size: int) -> bytes:
        raw = bytearray(size)
        raw[8:12] = (size - 12).to_bytes(4, "big")
        raw[16] = 2
        raw[43:51] = producer_id.to_bytes(8, "big", signed=True)
        return bytes(raw)

    batches = batch(5, 70) + batch(7_000, 61) + batch(-1, 90)
    assert highest_producer_id(batches) == 7_000
    assert highest_producer_id(batch(-1, 61)) == -1
