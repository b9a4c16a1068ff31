"""Which archived records the new brokers get themselves. Pure.

A log begins at a batch: the entries of a segment's index begin at batches, some 64 KiB apart, so
the start is found without reading any record. What followers could not append as it was, and what
cannot be read, is below the start: a log has no hole that the archive does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from fetchproxy.config.values import DURATION, SIZE
from fetchproxy.metadata.lineage import from_log_start
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import EpochStart
from fetchproxy.segments.leader_epochs import NOT_COUNTED, rising
from fetchproxy.segments.remote_log_index import RemoteLogIndex

_AMOUNT = re.compile(r"([0-9]{1,18})([A-Za-z]+)")


class LocalAmount(NamedTuple):
    """How much of each partition: one of the two is None. `from_ms`: records at or after this time,
    in epoch ms.
    """

    bytes_max: int | None = None
    from_ms: int | None = None


ALL = LocalAmount(bytes_max=1 << 62)


def parse_local_amount(text: str, now_ms: int) -> LocalAmount:
    """`10GiB`, or `7d` before `now_ms`. Raises ValueError."""
    match = _AMOUNT.fullmatch(text.strip())
    number, unit = match.groups() if match is not None else ("", "")
    sizes, durations = dict(SIZE.units), dict(DURATION.units)
    if unit in sizes:
        return LocalAmount(bytes_max=int(number) * sizes[unit])
    if unit in durations:
        return LocalAmount(from_ms=now_ms - int(number) * durations[unit])
    raise ValueError("expected a size such as 10GiB, or an age such as 7d")


class UsableSegments(NamedTuple):
    """The segments from number `first` on can be given to followers. `why`: why not those before;
    empty if there are none, or all are deleted.
    """

    first: int
    why: str


def usable_segments(view: PartitionView) -> UsableSegments:
    """Of a view that ends where the new records begin. Leader epochs have to rise: a follower's
    cache forgets what lies above a fall.
    """
    unreadable = max(view.unreadable, default=-1)
    epoch_after: int | None = None
    for number in range(len(view.segments) - 1, -1, -1):
        segment = view.segments[number]
        if segment.end_offset <= unreadable:
            return UsableSegments(number + 1, f"the segment at offset {unreadable} cannot be read")
        epochs = [entry.epoch for entry in segment.segment_leader_epochs]
        rise = [*epochs, *([] if epoch_after is None else [epoch_after])]
        if NOT_COUNTED in epochs or rise != sorted(rise):
            why = f"below offset {segment.end_offset + 1}, leader epochs do not rise"
            return UsableSegments(number + 1, why)
        epoch_after = epochs[0] if epochs else epoch_after
    return UsableSegments(0, "")


def first_segment(view: PartitionView, amount: LocalAmount, usable: int) -> int:
    """The segment in which the local history begins, or the one before it."""
    count = len(view.segments)
    if amount.from_ms is not None:
        index = view.index_at_or_after_timestamp(amount.from_ms, usable)
        return count if index is None else index
    room = amount.bytes_max or 0
    number = count
    while number > usable and room > 0:
        number -= 1
        room -= view.segments[number].segment_size_bytes
    return number


def start_in_segment(
    view: PartitionView, number: int, index: RemoteLogIndex, amount: LocalAmount
) -> int | None:
    """The first entry of the segment's index that belongs to the local history; None: none does.
    The base offset of its first batch.
    """
    end_offset = view.segments[number].end_offset
    before = view.segments.end_offset(number - 1) if number else -1
    lowest = max(view.raised_log_start, before + 1)
    spans = [span for span in index.spans() if span.first_offset <= end_offset]
    if not spans:
        return None
    room = (amount.bytes_max or 0) - sum(
        view.segments[later].segment_size_bytes for later in range(number + 1, len(view.segments))
    )
    for span in spans:
        if span.first_offset < lowest:
            continue
        if amount.from_ms is not None:
            if span.max_timestamp_ms >= amount.from_ms:
                return span.first_offset
        elif spans[-1].end - span.position <= room:
            return span.first_offset
    return None


def epochs_from(view: PartitionView, start_offset: int, first: int) -> tuple[EpochStart, ...]:
    """The cache of a leader whose log begins at `start_offset`, in segment `first` or later."""

    def entries() -> Iterator[EpochStart]:
        for number in range(first, len(view.segments)):
            yield from view.segments[number].segment_leader_epochs

    return from_log_start(rising(entries()), start_offset)


def reaches_below(view: PartitionView, amount: LocalAmount, usable: int) -> bool:
    """Whether more was ordered than the segments from `usable` on have."""
    if amount.from_ms is not None:
        index = view.index_at_or_after_timestamp(amount.from_ms)
        return index is not None and index < usable
    rows = range(usable, len(view.segments))
    return sum(view.segments[n].segment_size_bytes for n in rows) < (amount.bytes_max or 0)
