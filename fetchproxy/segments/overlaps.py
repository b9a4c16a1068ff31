"""Decides if two finished copies of the same offsets both count, or which of them. Pure.

Copies of the same log agree, and either may be served. If a former leader's archiver was slow to
see an unclean election, a copy of the dead log overlaps a copy of the living log. The higher epoch
counts from the first offset at which their leader epochs differ, as it was written later. (If the
lower epoch lives again, the archiver cuts the other copy in the archive before it copies anything:
`log_truncation`.)
"""

from __future__ import annotations

from fetchproxy.model import RemoteLogSegmentMetadata
from fetchproxy.segments.leader_epochs import epoch_at


def add_in_order(
    in_order: list[RemoteLogSegmentMetadata],
    segment: RemoteLogSegmentMetadata,
    settled_below: int = 0,
) -> None:
    """Appends the part of `segment` that counts to `kept`, if it adds an offset.

    The ends in `kept` rise, and `segment` starts at or above the last start. Offsets that it shows
    to be dead are clipped from earlier segments. Offsets below `settled_below` are not clipped: a
    person has said that they count.
    """
    while in_order and segment.start_offset <= in_order[-1].end_offset:
        before = in_order[-1]
        parted = first_difference(before, segment, settled_below)
        if parted is None:
            break
        epochs = segment.segment_leader_epochs
        if epoch_at(epochs, parted) < epoch_at(before.segment_leader_epochs, parted):
            if parted == segment.start_offset:
                return
            segment = segment.clipped(parted - 1)
            break
        in_order.pop()
        if parted > before.start_offset:
            remaining_part = before.clipped(parted - 1)
            if not in_order or remaining_part.end_offset > in_order[-1].end_offset:
                in_order.append(remaining_part)
                break
    if not in_order or segment.end_offset > in_order[-1].end_offset:
        in_order.append(segment)


def first_difference(
    one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata, from_offset: int = 0
) -> int | None:
    """The first offset of both, from `from_offset` on, at which their leader epochs differ.

    None: they agree there.
    """
    first = max(one.start_offset, other.start_offset, from_offset)
    last = min(one.end_offset, other.end_offset)
    starts = {e.start_offset for s in (one, other) for e in s.segment_leader_epochs}
    if first > last:
        return None
    for offset in sorted({first, *(start for start in starts if first < start <= last)}):
        epochs = [epoch_at(each.segment_leader_epochs, offset) for each in (one, other)]
        if -1 not in epochs and epochs[0] != epochs[1]:  # -1: written without epochs
            return offset
    return None
