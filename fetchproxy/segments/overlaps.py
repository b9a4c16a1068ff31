"""Two finished copies of the same offsets: do both count, and if not, which? Pure.

Copies of the same log agree, and either may be served. Where a former leader's archiver was slow to
see an unclean election, a copy of the dead log lies over one of the log that lives: from the first
offset on at which their leader epochs differ the higher epoch counts, as it was written later.
(Where the lower one lives again, the archiver has cut the other one in the archive before it copies
anything: `log_truncation`.)
"""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata


def add_in_order(
    kept: list[RemoteLogSegmentMetadata], segment: RemoteLogSegmentMetadata, settled_below: int = 0
) -> None:
    """Append `segment` to `kept`, whose ends rise, as far as it counts and adds an offset.

    It starts at or above the last one's start. What it shows to be dead in those before it is
    clipped from them. Below `settled_below` nothing is clipped: a person has said that it counts.
    """
    while kept and segment.start_offset <= kept[-1].end_offset:
        before = kept[-1]
        parted = first_difference(before, segment, settled_below)
        if parted is None:
            break
        epochs = segment.segment_leader_epochs
        if epoch_at(epochs, parted) < epoch_at(before.segment_leader_epochs, parted):
            if parted == segment.start_offset:
                return
            segment = segment.clipped(parted - 1)
            break
        kept.pop()
        if parted > before.start_offset:
            rest = before.clipped(parted - 1)
            if not kept or rest.end_offset > kept[-1].end_offset:
                kept.append(rest)
                break
    if not kept or segment.end_offset > kept[-1].end_offset:
        kept.append(segment)


def first_difference(
    one: RemoteLogSegmentMetadata, other: RemoteLogSegmentMetadata, from_offset: int = 0
) -> int | None:
    """The first offset of both, from that one on, at which their leader epochs differ; None: none.

    Then they agree there.
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


def epoch_at(epochs: Sequence[EpochStart], offset: int) -> int:
    """The epoch of a batch that begins at `offset`; the first one also below its start; -1: none.

    The first entry starts with the segment, whose first batch may begin below that.
    """
    found = epochs[0].epoch if epochs else -1
    for entry in epochs:
        if entry.start_offset <= offset:
            found = entry.epoch
    return found
