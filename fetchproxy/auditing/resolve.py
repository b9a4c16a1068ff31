"""Carries out an operator's decision about a log that begins again: `fetchproxy resolve`.

The archiver waits for the decision (LogBeginsAgain). The decision (`model.LogHistory`) is recorded
in the archive's metadata, where every archiver and reader finds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fetchproxy.errors import ResolutionRefused
from fetchproxy.metadata.leader_views import LeaderLog, compare_with_leader
from fetchproxy.metadata.lineage import Undecided, archived_lineage, compared_lineage
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import LogHistory, LogOffsets, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.health import Kind
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.log_truncation import LogTruncation


class LogChoice(StrEnum):
    """Which of the two logs counts."""

    KEEP = "keep"  # the archive, below its end
    TRUNCATE = "truncate"  # the leader's log; the archive's log is deleted
    NEW_HISTORY = "new-history"  # the leader's log; the archive's log stays stored, but hidden


@dataclass(frozen=True, slots=True)
class LeaderLogState:
    """The leader's responses about its log."""

    log_offsets: LogOffsets
    leader_epoch: int  # -1: the leader gives none
    archived_epochs_end: int  # an offset; -1: the leader does not know the archived epochs


@dataclass(frozen=True, slots=True)
class ResolutionPlan:
    """The steps, in this order. None: no such step."""

    drop: tuple[RemoteLogSegmentMetadata, ...]
    history: LogHistory | None
    log_start: int | None
    sentences: tuple[str, ...]  # the plan in sentences


def plan_resolution(
    choice: LogChoice,
    view: PartitionView,
    segments: Sequence[RemoteLogSegmentMetadata],
    leader: LeaderLogState,
) -> ResolutionPlan:
    """`segments`: all in the metadata, from the same time as `view`. Raises ResolutionRefused."""
    readable = tuple(s for s in segments if s.is_finished and view.history.shows(s))
    if choice is LogChoice.KEEP:
        return _keep(view, leader.log_offsets)
    lineage = archived_lineage(view)
    # If the archive has no segment, the last epoch before the leader's log.
    after_epoch = lineage[-1].epoch if lineage else leader.log_offsets.log_start_epoch - 1
    if choice is LogChoice.TRUNCATE and not (view.raised_log_start or view.history.kept_below):
        return ResolutionPlan(
            readable[::-1], None, None, _sentences_on_hidden_records(readable, leader.log_offsets)
        )
    if after_epoch <= view.history.after_epoch or leader.leader_epoch <= after_epoch:
        raise ResolutionRefused(
            f"{view.tp}: the leader's epoch is {leader.leader_epoch}, and epoch {after_epoch} is "
            "archived: the two logs cannot be told apart. Have the leader elected again "
            "(restart the broker), then try again"
        )
    start = max(leader.archived_epochs_end, leader.log_offsets.log_start_offset)
    log_start = start if start > leader.log_offsets.log_start_offset else None
    history = view.history.followed_by(after_epoch)
    if choice is LogChoice.TRUNCATE:
        words = _sentences_on_hidden_records(readable, leader.log_offsets)
        return ResolutionPlan(readable[::-1], history, log_start, words)
    words = (
        f"{len(readable)} segments stay in the store, hidden from readers",
        f"the log is archived from offset {start} on",
    )
    return ResolutionPlan((), history, log_start, words)


def plan_showing_again(
    view: PartitionView, segments: Sequence[RemoteLogSegmentMetadata]
) -> ResolutionPlan | None:
    """`--keep` for the log that `--new-history` put aside last. None: no log is put aside. Raises
    ResolutionRefused if another kept log is already shown.
    """
    now = view.history
    before = now.earlier[-1] if now.earlier else -1
    aside = [s for s in segments if s.is_finished and before < s.last_epoch <= now.after_epoch]
    if not aside:
        return None
    if now.kept_below:
        raise ResolutionRefused(
            f"{view.tp}: below offset {now.kept_below}, another log is shown already; a log that "
            "was hidden before it cannot be shown as well"
        )
    end = max(s.end_offset for s in aside) + 1
    history = LogHistory(before, end, now.after_epoch, now.earlier[:-1])
    words = (
        f"{len(aside)} segments are shown again, up to offset {end}",
        f"from offset {end} on, the leader's log counts",
    )
    return ResolutionPlan((), history, None, words)


def _keep(view: PartitionView, log_offsets: LogOffsets) -> ResolutionPlan:
    end = max(view.log_end_offset or 0, view.raised_log_start)
    lineage = archived_lineage(view)
    epoch = lineage[-1].epoch if lineage else view.history.kept_epoch
    words = (
        f"the archive below offset {end} stays, and readers see it",
        f"the log's own records below offset {end} are not archived (it ends at offset "
        f"{log_offsets.high_watermark} now)",
        f"archiving continues at offset {end}, once the log reaches it",
    )
    history = replace(view.history, kept_below=end, kept_epoch=epoch)
    return ResolutionPlan((), history, None, words)


def _sentences_on_hidden_records(
    segments: Sequence[RemoteLogSegmentMetadata], log_offsets: LogOffsets
) -> tuple[str, ...]:
    size_bytes = sum(s.segment_size_bytes for s in segments)
    return (
        f"{len(segments)} segments ({size_bytes} bytes) are deleted, their objects after "
        "archive.retention_grace_ms",
        f"the log is archived from its start, offset {log_offsets.log_start_offset}",
    )


async def resolve(
    tp: TopicIdPartition,
    choice: LogChoice,
    leader: LeaderLog,
    storage: RemoteStorage,
    rlmm: RemoteLogMetadataManager,
    *,
    wall_clock_ms: Callable[[], int],
    dry_run: bool = False,
) -> ResolutionPlan:
    """The plan that was carried out, or would be. May be repeated after a failure. Raises
    ResolutionRefused if no decision is needed, ClusterError, RemoteStorageError.
    """
    objects = storage.objects
    view = await rlmm.refresh(tp, asyncio.get_running_loop().time())
    segments = rlmm.list_remote_log_segments(tp)
    log_offsets = await leader.leader_log_offsets(tp)
    needs_decision = await _needs_decision(leader, view, log_offsets)
    if needs_decision:
        plan = plan_resolution(
            choice, view, segments, await _leader_state(leader, view, log_offsets)
        )
    else:
        shown_again = plan_showing_again(view, segments) if choice is LogChoice.KEEP else None
        if shown_again is None:
            if not dry_run:
                await objects.delete_conditions(tp, Kind.PARTITION_STOPPED)
            raise ResolutionRefused(
                f"{tp}: the leader's log matches the archive; there is nothing to resolve"
            )
        plan = shown_again
    if dry_run:
        return plan
    if choice is not LogChoice.KEEP or not needs_decision:
        # Delete the records (`published`) first, as they would no longer match the archive.
        await objects.forget_records(tp)
    if plan.drop:
        truncation = LogTruncation(leader, storage.rsm, rlmm, wall_clock_ms=wall_clock_ms)
        await truncation.drop(tp, plan.drop)
    if plan.history is not None:
        await rlmm.put_log_history(tp, plan.history)
    if plan.log_start is not None:
        await rlmm.raise_log_start_offset(tp, plan.log_start)
    await objects.delete_conditions(tp, Kind.PARTITION_STOPPED)
    return plan


async def _needs_decision(leader: LeaderLog, view: PartitionView, log_offsets: LogOffsets) -> bool:
    end = view.log_end_offset
    if end is None:
        return log_offsets.log_start_offset < view.raised_log_start > view.history.kept_below
    compared = await compare_with_leader(leader, view.tp, compared_lineage(view), end)
    stops = compared.begins_again or compared.cut_without_election
    return stops or isinstance(compared.result, Undecided)


async def _leader_state(
    leader: LeaderLog, view: PartitionView, log_offsets: LogOffsets
) -> LeaderLogState:
    lineage = archived_lineage(view)
    epoch = lineage[-1].epoch if lineage else log_offsets.log_start_epoch
    epoch_end = await leader.epoch_end(view.tp, epoch) if epoch >= 0 else None
    if epoch_end is None:
        return LeaderLogState(log_offsets, -1, -1)
    leader_epoch, end = epoch_end
    return LeaderLogState(log_offsets, leader_epoch, end.end_offset if lineage else -1)
