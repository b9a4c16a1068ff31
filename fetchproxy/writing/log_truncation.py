"""Truncates archives whose log was cut by an unclean leader election."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise

import structlog
from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import walk

from fetchproxy.errors import (
    CorruptSegment,
    LogBeginsAgain,
    LogDiverged,
    LogTruncated,
    ObjectNotFound,
)
from fetchproxy.metadata.leader_views import NO_EPOCH, Compared, LeaderLog, compare_with_leader
from fetchproxy.metadata.lineage import (
    EpochTransition,
    Undecided,
    compared_lineage,
    compared_part,
    extend_lineage,
)
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import (
    AbortedTxn,
    ByteRange,
    EpochStart,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.observability.metrics import ARCHIVE_TRUNCATED_OFFSETS
from fetchproxy.segments.contents import AccumulatedSegment
from fetchproxy.segments.leader_epochs import NOT_COUNTED, rising
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.overlaps import first_difference
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.segments.side_files import decode_aborted
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.writing.deletion.segment_deletion import SegmentDeletion

# The archive is truncated where it parts from the leader's log (`lineage`), as a follower truncates
# its log: segments wholly at or above that offset are dropped; a segment that contains it is
# clipped in its metadata, and its objects stay unchanged (KIP-405, "log truncation").

Transaction = tuple[int, int]  # producer id, first offset

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TruncationPlan:
    """In this order, so that readers see a shorter log at each step and never a gap."""

    drop: tuple[RemoteLogSegmentMetadata, ...]  # the highest first
    # The unclipped segments, the highest first -> their new end offsets.
    clip: Mapping[RemoteLogSegmentMetadata, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.drop or self.clip)


def plan_truncation(segments: Iterable[RemoteLogSegmentMetadata], offset: int) -> TruncationPlan:
    """No finished segment may end at or above `offset`. Copies under way check it themselves."""
    above = [s for s in segments if s.is_finished and s.end_offset >= offset]
    above.sort(key=lambda s: (s.start_offset, s.end_offset), reverse=True)
    return TruncationPlan(
        drop=tuple(s for s in above if s.start_offset >= offset),
        clip={s: offset - 1 for s in above if s.start_offset < offset},
    )


def buried_copies(
    segments: Iterable[RemoteLogSegmentMetadata], view: PartitionView
) -> TruncationPlan:
    """Finished copies of a dead log that the view hides below copies of the living log
    (`overlaps`). They must not reappear when the copies above them are deleted.
    """
    end_of = {segment.segment_id.id: segment.end_offset for segment in view.segments}
    drop: list[RemoteLogSegmentMetadata] = []
    clip: dict[RemoteLogSegmentMetadata, int] = {}
    for segment in segments:
        if not segment.is_finished or segment.end_offset < view.raised_log_start:
            continue
        if not view.history.shows(segment):
            continue  # an operator has put it aside and may undo that
        end = end_of.get(segment.segment_id.id)
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
    return TruncationPlan(tuple(drop), clip)


def transitions_of(
    lineage: Sequence[EpochStart], archive_end: int | None, segment: AccumulatedSegment
) -> tuple[tuple[EpochStart, ...], tuple[EpochTransition, ...]]:
    """Returns the lineage of archive and `segment`, and the transitions between its epochs. Records
    that were read from several leaders are of one log only if the leader has these transitions at
    the same offsets.
    """
    epochs = rising(segment.leader_epochs)
    starts = [entry.start_offset for entry in segment.leader_epochs]
    end_by_start = dict(zip(starts, segment.epoch_ends or starts[1:], strict=False))
    transitions = [
        EpochTransition(
            one.epoch,
            min(end_by_start.get(one.start_offset, other.start_offset), other.start_offset),
            other.start_offset,
        )
        for one, other in pairwise(epochs)
    ]
    if epochs:
        # The segment may begin with a hole.
        begin = max(epochs[0].start_offset, segment.index[0].first_offset)
        before = lineage[-1].epoch if lineage else epochs[0].epoch - 1
        if 0 <= before < epochs[0].epoch:
            known_to = begin if archive_end is None or not lineage else archive_end
            transitions.insert(0, EpochTransition(before, known_to, begin))
    return extend_lineage(lineage, segment.leader_epochs), tuple(transitions)


def decided_below(
    offset: int,
    last_stable_offset: int,
    below: RemoteLogSegmentMetadata | None,
    archived: Iterable[AbortedTxn],
    leader: Collection[Transaction] | None,
) -> int:
    """`offset`, lowered to the leader's last stable offset and to the start of any transaction that
    began before `offset`, ended above it, and was aborted in only one of the archive and the
    leader's log.

    `archived`: the transaction index of `below`.
    `below`: the segment with `offset` - 1.
    `leader`: the leader's aborted transactions from `offset` on. None: it has deleted those
    records.
    """
    if leader is None or below is None:
        return min(offset, last_stable_offset)
    # If the segment ends right below `offset`, an entry may end at its marker or with the segment.
    ended = offset if below.stored_end_offset >= offset else offset - 1
    of_archive = {
        (entry.producer_id, entry.first_offset)
        for entry in archived
        if entry.first_offset < offset and entry.last_offset >= ended
    }
    of_leader = {txn for txn in leader if txn[1] < offset}
    differing = [first for _, first in of_archive ^ of_leader]
    return min([offset, last_stable_offset, *differing])


@dataclass(slots=True)
class Resumed:
    """The archive's end at the last look, and the leader epochs up to it. Archived records below
    `kept_below` may differ from the leader's.
    """

    archive_start: int | None
    archive_end: int | None  # exclusive
    raised_log_start: int
    kept_below: int
    lineage: tuple[EpochStart, ...]
    # Where the next segment begins: the archive's end, or above it where the log has a gap.
    position: int | None  # None: not known yet
    is_bare: bool = False  # the look was one at all partitions, see `PartitionArchiver`
    leader_epoch: int | None = None  # of the leader that has this log; None: not compared yet

    @property
    def compared(self) -> tuple[EpochStart, ...]:
        """The part of the lineage that is compared with a leader's log."""
        if self.archive_start is None or self.archive_end is None:
            return self.lineage
        return compared_part(self.lineage, (self.archive_start, self.archive_end), self.kept_below)


# The archiver begins anew after a truncation. The objects of dropped segments stay until the
# expirer's grace for current readers is over.


@dataclass(eq=False, repr=False)
class LogTruncation:
    """Clips and drops segments that the leader's log does not have any more. One for all
    partitions.
    """

    leader: LeaderLog
    rsm: RemoteStorageManager
    rlmm: RemoteLogMetadataManager
    _: KW_ONLY
    wall_clock_ms: Callable[[], int]

    def __post_init__(self) -> None:
        self._deletion = SegmentDeletion(self.rsm, self.rlmm, self.wall_clock_ms)

    def leader_epoch(self, tp: TopicIdPartition) -> int:
        """The last known leader epoch; -1: none. A read from a leader makes its epoch known."""
        return self.leader.known_epoch(tp)

    async def confirm(self, segment: AccumulatedSegment, archive: Resumed) -> int:
        """Check that the archive and `segment` after it are the leader's log; return the leader's
        epoch. Raises LogDiverged if they are not, LogTruncated if that cannot be decided,
        ClusterError.
        """
        epochs, lineage = rising(segment.leader_epochs), archive.lineage
        if lineage and epochs and epochs[0].epoch < lineage[-1].epoch:
            raise LogDiverged(f"{segment.tp}: epoch {epochs[0].epoch} after {lineage[-1].epoch}")
        whole_end, transitions = transitions_of(archive.compared, archive.archive_end, segment)
        end = segment.end_offset + 1
        shared, compared = await self._compare(segment.tp, whole_end, end, transitions)
        if shared < end:
            raise LogDiverged(f"{segment.tp}: accumulated to {end}, the leader's log from {shared}")
        await self._check_same_leader(segment)
        return self._epoch_of(segment.tp, compared)

    async def _check_same_leader(self, segment: AccumulatedSegment) -> None:
        """Where epochs do not count, only the leader that was read from is known to have the
        records. Raises LogDiverged if another one leads, ClusterError.
        """
        if segment.leader_epoch < 0 or NOT_COUNTED not in (e.epoch for e in segment.leader_epochs):
            return
        epoch_end = await self.leader.epoch_end(segment.tp, segment.leader_epoch)
        if epoch_end is not None and epoch_end[0] != segment.leader_epoch:
            raise LogDiverged(
                f"{segment.tp}: read from the leader of epoch {segment.leader_epoch}, and the "
                f"epoch is {epoch_end[0]} now"
            )

    async def agrees(self, tp: TopicIdPartition, archive: Resumed) -> int | None:
        """The leader's epoch if its log equals the archive up to the archive's end. None: its log
        differs. Raises as `confirm`, and LogBeginsAgain if the log has no record of the archive.
        """
        end = archive.archive_end
        if end is None:
            if archive.raised_log_start > archive.kept_below:
                await self._check_log_start(tp, archive.raised_log_start)
            return self.leader_epoch(tp)
        shared, compared = await self._compare(tp, archive.compared, end)
        self._refuse_new_beginning(tp, compared, end)
        return self._epoch_of(tp, compared) if shared >= end else None

    async def _check_log_start(self, tp: TopicIdPartition, raised_log_start: int) -> None:
        """For a partition without a segment. DeleteRecords asks the broker first, so the leader's
        log begins no lower than `raised_log_start`, or it begins again. Raises LogBeginsAgain,
        ClusterError.
        """
        log_offsets = await self.leader.leader_log_offsets(tp)
        if log_offsets.log_start_offset < raised_log_start:
            raise LogBeginsAgain(
                f"the log of {tp} has started over: everything below offset {raised_log_start} "
                f"was deleted, and it begins at offset {log_offsets.log_start_offset}; archiving "
                f"stops until you run: fetchproxy resolve {tp}"
            )

    async def truncate(self, view: PartitionView) -> None:
        """Remove offsets from the archive that are not in the leader's log. `view` must be the last
        one read. May be repeated, also by two archivers at once. Raises LogBeginsAgain if that
        would remove everything, LogTruncated, ClusterError, RemoteStorageError.
        """
        tp, end = view.tp, view.log_end_offset
        segments = self.rlmm.list_remote_log_segments(tp)  # read with `view`: others may add
        if end is None:
            return
        shared, compared = await self._compare(tp, compared_lineage(view), end)
        self._refuse_new_beginning(tp, compared, end)
        if shared >= end:
            return
        offset = max(await self._decided_below(view, shared), view.history.kept_below)
        plan = plan_truncation(segments, offset)
        # Log it first, so that a partial truncation is on record.
        log.error(
            "archive_truncated",
            **tp.logged,
            truncation_offset=offset,
            shared_end=shared,
            archive_end=end,
            leader_epoch=self._epoch_of(tp, compared),
            segments_dropped=len(plan.drop),
            segments_clipped=len(plan.clip),
            hint="find out why a replica that was behind became leader",
        )
        await self._carry_out(plan)
        lost = end - max(offset, view.log_start_offset or 0)
        ARCHIVE_TRUNCATED_OFFSETS.labels(tp.topic, str(tp.partition)).inc(lost)

    async def drop(
        self, tp: TopicIdPartition, segments: Sequence[RemoteLogSegmentMetadata]
    ) -> None:
        """Drop segments on an operator's decision, the highest first. Raises RemoteStorageError."""
        log.error(
            "archive_truncated",
            **tp.logged,
            truncation_offset=min(segment.start_offset for segment in segments),
            archive_end=max(segment.end_offset for segment in segments) + 1,
            segments_dropped=len(segments),
            hint="after fetchproxy resolve, nothing",
        )
        await self._carry_out(TruncationPlan(tuple(segments)))

    async def remove_buried(self, view: PartitionView) -> bool:
        """Remove the `buried_copies`. False: there are none. Raises RemoteStorageError."""
        plan = buried_copies(self.rlmm.list_remote_log_segments(view.tp), view)
        if not plan:
            return False
        log.warning(
            "dead_copies_removed",
            **view.tp.logged,
            segments_dropped=len(plan.drop),
            segments_clipped=len(plan.clip),
        )
        await self._carry_out(plan)
        return True

    async def _compare(
        self,
        tp: TopicIdPartition,
        lineage: Sequence[EpochStart],
        end_offset: int,
        transitions: Sequence[EpochTransition] = (),
    ) -> tuple[int, Compared]:
        """The offset at which the leader's log stops being the same, and the whole comparison."""
        compared = await compare_with_leader(self.leader, tp, lineage, end_offset, transitions)
        if isinstance(compared.result, Undecided):
            raise LogTruncated(
                f"{tp}, archived up to {end_offset}: {compared.result.what}; choose which "
                f"log counts: fetchproxy resolve {tp}"
            )
        return compared.result.end_offset, compared

    def _epoch_of(self, tp: TopicIdPartition, compared: Compared) -> int:
        epoch = compared.leader_epoch
        return self.leader_epoch(tp) if epoch == NO_EPOCH else epoch

    @staticmethod
    def _refuse_new_beginning(tp: TopicIdPartition, compared: Compared, end_offset: int) -> None:
        if compared.begins_again:
            raise LogBeginsAgain(
                f"the log of {tp} has started over: none of the archived records, up to offset "
                f"{end_offset}, is in it; nothing is archived or deleted until you run: "
                f"fetchproxy resolve {tp}"
            )
        if compared.cut_without_election:
            raise LogBeginsAgain(
                f"the log of {tp} has lost archived records, up to offset {end_offset}, without a "
                f"newer leader epoch than {compared.leader_epoch}, so no election has cut it; "
                f"nothing is archived or deleted until you run: fetchproxy resolve {tp}"
            )

    async def _decided_below(self, view: PartitionView, offset: int) -> int:
        log_offsets = await self.leader.leader_log_offsets(view.tp)
        below = view.segment_at_or_after(offset - 1) if view.covers(offset - 1) else None
        archived: tuple[AbortedTxn, ...] = ()
        if below is not None and below.has_aborted_txns:
            archived = decode_aborted(await self.rsm.fetch_index(below, SegmentFile.TXN))
        leader = None
        if offset >= log_offsets.log_start_offset:
            leader = await self.leader.aborted_from(view.tp, offset)
        return decided_below(offset, log_offsets.last_stable_offset, below, archived, leader)

    async def _carry_out(self, plan: TruncationPlan) -> None:
        for segment in plan.drop:
            await self._unless_deleted(segment, self._deletion.hide(segment))
        for segment, end_offset in plan.clip.items():
            clipped = await self._restamped(segment.clipped(end_offset))
            await self._unless_deleted(segment, self.rlmm.put(clipped))

    @staticmethod
    async def _unless_deleted(segment: RemoteLogSegmentMetadata, put: Awaitable[None]) -> None:
        try:
            await put
        except ValueError as error:
            # Another archiver, or retention, has deleted the segment since it was listed.
            log.warning("segment_not_truncated", **segment.logged, error=str(error))

    async def _restamped(self, clipped: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
        """`clipped` with the largest timestamp of its records, or the old one if unreadable."""
        try:
            max_timestamp_ms = await self._max_timestamp(clipped)
        except (CorruptSegment, ObjectNotFound, WireError) as error:
            log.warning(
                "clipped_segment_unreadable",
                **clipped.logged,
                error=str(error),
                hint="run fetchproxy verify",
            )
            max_timestamp_ms = clipped.max_timestamp_ms
        return replace(
            clipped, max_timestamp_ms=max_timestamp_ms, event_timestamp_ms=self.wall_clock_ms()
        )

    async def _max_timestamp(self, clipped: RemoteLogSegmentMetadata) -> int:
        raw = await self.rsm.fetch_index(clipped, SegmentFile.INDEX)
        latest = -1
        for span in RemoteLogIndex.parse(raw).spans():
            if span.last_offset <= clipped.end_offset:
                latest = max(latest, span.max_timestamp_ms)
            elif span.first_offset <= clipped.end_offset:
                byte_range = ByteRange(span.position, span.end)
                for header in walk(await self.rsm.fetch_log_segment(clipped, byte_range)):
                    if header.last_offset <= clipped.end_offset:
                        latest = max(latest, header.max_timestamp)
        return latest
