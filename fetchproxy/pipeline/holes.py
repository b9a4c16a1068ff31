"""Which offsets that are asked for the archive does not have, and whether that is on record.

The rule is that of `verify` (`remote_log.verification.expected_offsets`): a gap is one only where
the archiver has put it on record; a hole without a record was archived and is gone. Data source and
jobs ask it here. Where nothing is missing it costs one small object a partition, and nothing where
what is asked for lies within the archive's ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fetchproxy.config.sections import MetadataConfig
from fetchproxy.errors import CorruptSegment, RemoteStorageError
from fetchproxy.metadata.finished_offsets_json import FinishedOffsets
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.remote_log.archive_health import look_at_offsets
from fetchproxy.remote_log.archive_records import read_finished_offsets
from fetchproxy.remote_log.concerns import in_no_segment
from fetchproxy.remote_log.verification.expected_offsets import Held, NotHeld, Offsets, not_held
from fetchproxy.storage.partition_records import PartitionRecords
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

PARTITIONS_AT_ONCE = 32
ALL_OFFSETS: Offsets = (0, 2**63 - 1)


@dataclass(frozen=True, slots=True)
class Holes:
    """Within what is asked for. `uncertain`: base offsets of segments whose metadata cannot be
    read, which no segment that can be read covers."""

    found: NotHeld
    uncertain: tuple[int, ...] = ()

    def in_words(self) -> str | None:
        """The first hole of the worst kind; None: there is none."""
        for first, last in self.found.missing:
            said = in_no_segment(first, last)
            return f"{said} any more, which is a fault: `fetchproxy verify` says more"
        for first, last in self.found.gaps:
            return f"offsets {first} to {last} were lost before they could be archived"
        for first, last in self.found.not_known:
            said = f"offsets {first} to {last} are in no segment"
            return f"{said}, and nothing says if they ever were"
        for base in self.uncertain:
            return (
                f"the metadata of the segment at offset {base} cannot be read: "
                "`fetchproxy verify --repair` may mend it"
            )
        return None


async def holes_of(
    rsm: RemoteStorageManager,
    views: Iterable[PartitionView],
    asked: Mapping[TopicIdPartition, Offsets],
    *,
    views_of_store: bool = True,
) -> dict[TopicIdPartition, Holes]:
    """Of each of `views` that has holes within `asked` (first and last offset, both inclusive;
    `ALL_OFFSETS`: from where the archive has to begin, to where it was finished).

    `views_of_store` False: they are older than the store, as those of cache files may be; then
    nothing is said of what lies behind their ends. Raises RemoteStorageError.
    """
    waiting = list(views)
    found: dict[TopicIdPartition, Holes] = {}
    failures: list[RemoteStorageError] = []

    async def look() -> None:
        # The first failure ends it; raised in here, the TaskGroup would wrap it.
        while waiting and not failures:
            view = waiting.pop()
            if _has_all(view, asked.get(view.tip, ALL_OFFSETS)):
                continue
            try:
                holes = await _holes(rsm, view, views_of_store)
            except RemoteStorageError as error:
                failures.append(error)
                return
            within = _within(holes, view, asked.get(view.tip, ALL_OFFSETS))
            if within.in_words() is not None:
                found[view.tip] = within

    async with asyncio.TaskGroup() as looking:
        for _ in range(min(PARTITIONS_AT_ONCE, len(waiting))):
            looking.create_task(look())
    if failures:
        raise failures[0]
    return found


def _has_all(view: PartitionView, asked: Offsets) -> bool:
    """Whether the view alone says so; where it does not, that may be known to the store."""
    first, last = asked
    if first > last:
        return True
    if view.unreadable or not view.segments:
        return False
    if first < (view.log_start_offset or 0) or last >= (view.log_end_offset or 0):
        return False
    return not any(start <= last and end >= first for start, end in view.gaps())


async def _holes(rsm: RemoteStorageManager, view: PartitionView, of_store: bool) -> NotHeld:
    stated = await _stated(rsm.records, view.tip)
    held = _held(view)
    found = not_held(held, stated, ())
    if found == NotHeld():
        return found
    if not of_store:
        recorded = rsm.records.list_archive_gaps(view.tip)
        gaps = [(gap.first_offset, gap.last_offset) async for gap in recorded]
        end = view.log_end_offset or 0
        return _clipped(not_held(held, stated, gaps), (0, end - 1))
    # What is read now was stated before: a copy or a truncation that was under way is no hole.
    async with StoreBackedRemoteLogMetadataManager(rsm, MetadataConfig()) as rlmm:

        async def refresh() -> PartitionView:
            return await rlmm.refresh(view.tip, asyncio.get_running_loop().time())

        look = await look_at_offsets(rsm.records, rlmm, view.tip, refresh)
    return look.found


async def _stated(records: PartitionRecords, tip: TopicIdPartition) -> FinishedOffsets | None:
    try:
        return await read_finished_offsets(records, tip)
    except CorruptSegment:
        return None  # `verify` names it


def _held(view: PartitionView) -> Held:
    last = view.segments[len(view.segments) - 1] if view.segments else None
    epochs = () if last is None else last.segment_leader_epochs
    return Held(
        segments=list(view.segments.bounds()),
        uncertain=view.unreadable,
        log_start_offset=view.raised_log_start,
        newest_epoch=epochs[-1].epoch if epochs else -1,
    )


def _within(found: NotHeld, view: PartitionView, asked: Offsets) -> Holes:
    uncertain = [
        base for base in view.unreadable if asked[0] <= base <= asked[1] and not view.covers(base)
    ]
    return Holes(_clipped(found, asked), tuple(uncertain))


def _clipped(found: NotHeld, asked: Offsets) -> NotHeld:
    def clipped(holes: Iterable[Offsets]) -> tuple[Offsets, ...]:
        shared = ((max(first, asked[0]), min(last, asked[1])) for first, last in holes)
        return tuple((first, last) for first, last in shared if first <= last)

    return NotHeld(clipped(found.missing), clipped(found.gaps), clipped(found.not_known))
