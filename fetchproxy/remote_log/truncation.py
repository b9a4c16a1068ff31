"""What has to happen to an archive whose log was cut by an unclean leader election. Pure.

Where the archive parts from the leader's log says `metadata.divergence`. As a follower truncates
its log, so is the archive truncated: segments wholly at or above the place are dropped, one that
straddles it is clipped, its objects staying what they are (KIP-405, "log truncation": the metadata
get truncation offsets, nothing that somebody may be reading is rewritten).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fetchproxy.metadata.divergence import Joint
from fetchproxy.metadata.lineage import extend_lineage
from fetchproxy.metadata.overlaps import first_difference
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    AbortedTxn,
    EpochStart,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from fetchproxy.remote_log.sources.gathered_segment import GatheredSegment

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
Transaction = tuple[int, int]  # producer id, first offset


@dataclass(frozen=True, slots=True)
class TruncationPlan:
    """To be done in this order, so that readers see a shorter log each time and never a gap."""

    drop: tuple[RemoteLogSegmentMetadata, ...]  # the highest first
    clip: tuple[RemoteLogSegmentMetadata, ...]  # as they were, the highest first

    def __bool__(self) -> bool:
        return bool(self.drop or self.clip)


def plan_truncation(segments: Iterable[RemoteLogSegmentMetadata], offset: int) -> TruncationPlan:
    """Nothing that is finished may end at or above `offset`; copies under way see to themselves."""
    above = [s for s in segments if s.state is _FINISHED and s.end_offset >= offset]
    above.sort(key=lambda s: (s.start_offset, s.end_offset), reverse=True)
    return TruncationPlan(
        drop=tuple(s for s in above if s.start_offset >= offset),
        clip=tuple(s for s in above if s.start_offset < offset),
    )


def buried_copies(
    segments: Iterable[RemoteLogSegmentMetadata], view: PartitionView
) -> tuple[TruncationPlan, dict[RemoteLogSegmentMetadata, int]]:
    """Finished copies of a dead log that lie below others of the log that lives (`overlaps`).

    The view does not show them, or not all of them. The plan, and where each is to be clipped
    (its new end offset): they must not come back when those above them go.
    """
    shown = {segment.segment_id.id: segment.end_offset for segment in view.segments}
    drop: list[RemoteLogSegmentMetadata] = []
    clip: dict[RemoteLogSegmentMetadata, int] = {}
    for segment in segments:
        if segment.state is not _FINISHED or segment.end_offset < view.raised_log_start:
            continue
        if not view.history.shows(segment):
            continue  # a person has said so, and may say otherwise
        end = shown.get(segment.segment_id.id)
        if end is not None:
            if end < segment.end_offset:
                clip[segment] = end
            continue
        over = view.segment_at_or_after(max(segment.start_offset, view.raised_log_start))
        parted = None if over is None else first_difference(segment, over)
        if parted is not None and parted > segment.start_offset:
            clip[segment] = parted - 1
        elif parted is not None:
            drop.append(segment)
    drop.reverse()
    return TruncationPlan(tuple(drop), tuple(clip)), clip


def joints_of(
    lineage: Sequence[EpochStart], archive_end: int | None, segment: GatheredSegment
) -> tuple[tuple[EpochStart, ...], tuple[Joint, ...]]:
    """(the lineage with `segment` behind the archive, where its epochs meet).

    What was read from several leaders hangs together only if these are where the leader has them.
    """
    joints = [
        Joint(one.epoch, other.start_offset, other.start_offset)
        for one, other in pairwise(segment.leader_epochs)
    ]
    if lineage and archive_end is not None and segment.leader_epochs:
        last, first = lineage[-1].epoch, segment.leader_epochs[0].epoch
        if first > last:
            joints.insert(0, Joint(last, archive_end, segment.start_offset))
    return extend_lineage(lineage, segment.leader_epochs), tuple(joints)


def decided_below(
    offset: int,
    last_stable_offset: int,
    below: RemoteLogSegmentMetadata | None,
    archived: Iterable[AbortedTxn],
    leader: Collection[Transaction] | None,
) -> int:
    """`offset`, or below it where a transaction that was open there may have ended otherwise.

    What is archived must be decided, and as the leader has it: it lies below its last stable
    offset, and of the transactions that began before `offset` and ended above it the same ones were
    aborted. `archived` is the transaction index of `below`, the segment with `offset` - 1; `leader`
    what the leader lists from `offset` on, None where it has deleted that.
    """
    if leader is None or below is None:
        return min(offset, last_stable_offset)
    # In a segment that ends there an entry's end may be its marker's, or the segment's own.
    ended = offset if below.stored_end_offset >= offset else offset - 1
    ours = {
        (entry.producer_id, entry.first_offset)
        for entry in archived
        if entry.first_offset < offset and entry.last_offset >= ended
    }
    theirs = {txn for txn in leader if txn[1] < offset}
    differing = [first for _, first in ours ^ theirs]
    return min([offset, last_stable_offset, *differing])
