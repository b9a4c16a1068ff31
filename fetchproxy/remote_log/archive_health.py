"""What is to be known of a partition's archive by what lies in the store: lost, missing, put aside.

Reads no log and asks no broker. `verify` and `segments` look at every partition, the status page at
those with holes alone: each look is a listing and a small read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.api import MetadataProblem, RemoteLogMetadataManager
from fetchproxy.metadata.finished_offsets_json import FinishedOffsets
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    FIRST_HISTORY,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.remote_log.archive_records import read_finished_offsets
from fetchproxy.remote_log.concerns import (
    Finding,
    StoredConcern,
    in_order,
    lost,
    missing,
    not_known,
    put_aside,
    unreadable,
)
from fetchproxy.remote_log.verification.expected_offsets import Held, NotHeld, Offsets, not_held
from fetchproxy.storage.partition_records import PartitionRecords

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


@dataclass(frozen=True, slots=True)
class OffsetsLook:
    """`stated`: what archivers put on record; None: nothing, or it is `damaged`, in words."""

    stated: FinishedOffsets | None
    damaged: str | None
    found: NotHeld


async def look_at_offsets(
    records: PartitionRecords,
    rlmm: RemoteLogMetadataManager,
    tip: TopicIdPartition,
    refresh: Callable[[], Awaitable[PartitionView]],
    also: Callable[[], Iterable[Offsets]] = tuple,
) -> OffsetsLook:
    """Which offsets are in no segment, and what is on record of them.

    `also`: offsets that are known to be there otherwise. Raises RemoteStorageError.
    """
    look = await _look(records, rlmm, tip, refresh, also)
    if look.found.missing:
        # Truncated or deleted meanwhile? Then the second look finds them in order.
        look = await _look(records, rlmm, tip, refresh, also)
    if look.found.missing:
        now = asyncio.get_running_loop().time()
        if await rlmm.partition_deletion(tip, now) is not None:
            look = replace(look, found=replace(look.found, missing=()))
    return look


async def _look(
    records: PartitionRecords,
    rlmm: RemoteLogMetadataManager,
    tip: TopicIdPartition,
    refresh: Callable[[], Awaitable[PartitionView]],
    also: Callable[[], Iterable[Offsets]],
) -> OffsetsLook:
    """What must be there before what is, and its gaps last: a copy under way is no fault."""
    stated, damaged = None, None
    try:
        stated = await read_finished_offsets(records, tip)
    except CorruptSegment as error:
        damaged = str(error)
    view = await refresh()
    done = [s for s in rlmm.list_remote_log_segments(tip) if s.state is FINISHED]
    held = Held(
        segments=[*((s.start_offset, s.end_offset) for s in done), *also()],
        uncertain=view.unreadable,
        log_start_offset=view.raised_log_start,
        newest_epoch=max((e.epoch for s in done for e in s.segment_leader_epochs[-1:]), default=-1),
    )
    gaps = [(gap.first_offset, gap.last_offset) async for gap in records.list_archive_gaps(tip)]
    return OffsetsLook(stated, damaged, not_held(held, stated, gaps))


def offsets_in_words(tip: TopicIdPartition, found: NotHeld) -> list[Finding]:
    return [
        *(lost(tip, *offsets) for offsets in found.gaps),
        *(missing(tip, *offsets) for offsets in found.missing),
        *(not_known(tip, *offsets) for offsets in found.not_known),
    ]


def metadata_in_words(
    view: PartitionView,
    problems: Sequence[MetadataProblem],
    segments: Callable[[], Iterable[RemoteLogSegmentMetadata]],
) -> list[Finding]:
    """What needs no look at the store. `segments` is asked only where something was put aside."""
    found = [unreadable(view.tip, len(problems), problems[0].what)] if problems else []
    if view.history == FIRST_HISTORY:
        return found
    aside = [s for s in segments() if s.state is FINISHED and not view.history.shows(s)]
    if aside:
        first, last = min(s.start_offset for s in aside), max(s.end_offset for s in aside)
        found.append(put_aside(view.tip, len(aside), first, last))
    return found


def with_stored(
    findings: Iterable[Finding], stored: Iterable[StoredConcern], topic: str | None
) -> tuple[Finding, ...]:
    """And what archivers have said; `topic`: of this one alone, None: of the archive."""
    said = [s.finding for s in stored if topic is None or s.finding.topic == topic]
    return in_order([*findings, *said])


async def partition_health(
    records: PartitionRecords, rlmm: RemoteLogMetadataManager, tip: TopicIdPartition
) -> list[Finding]:
    """All that the store tells of a partition. Raises RemoteStorageError."""

    async def refresh() -> PartitionView:
        return await rlmm.refresh(tip, asyncio.get_running_loop().time())

    look = await look_at_offsets(records, rlmm, tip, refresh)
    found = offsets_in_words(tip, look.found)
    view = rlmm.view(tip)
    if view is not None:
        found += metadata_in_words(
            view, rlmm.problems(tip), lambda: rlmm.list_remote_log_segments(tip)
        )
    return found
