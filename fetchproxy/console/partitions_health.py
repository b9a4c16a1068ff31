"""What the store tells of partitions that have something to tell, for page and gauges.

Most have nothing, and are known by memory alone: no hole, no unreadable metadata, and an end that
has not fallen. Where the archive has to end is a small object; it is read once for each partition
after the start, and when an end has fallen, as when the newest segments are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from fetchproxy.errors import CorruptSegment
from fetchproxy.many_items import each_of
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import FIRST_HISTORY, TopicIdPartition
from fetchproxy.remote_log.archive_health import partition_health
from fetchproxy.remote_log.archive_records import read_finished_offsets
from fetchproxy.remote_log.concerns import Concern, Finding, in_order
from fetchproxy.storage.partition_records import PartitionRecords

log = structlog.get_logger(__name__)

# Of very many partitions the others follow at the next looks.
STATED_ENDS_READ_MAX = 200
_PARTITIONS_AT_ONCE = 20


class PartitionsHealth:
    def __init__(self, records: PartitionRecords, rlmm: RemoteLogMetadataManager) -> None:
        self._records = records
        self._rlmm = rlmm
        self._looked: dict[TopicIdPartition, tuple[PartitionView, list[Finding]]] = {}
        self._sound_ends: dict[TopicIdPartition, int] = {}
        self._reads_left = 0

    def findings(self) -> Iterable[Finding]:
        return (one for _, found in self._looked.values() for one in found)

    async def look(
        self, tips: Sequence[TopicIdPartition], has_holes: Callable[[TopicIdPartition], bool]
    ) -> None:
        """At each once, while its archive stays the same. Raises RemoteStorageError: what was found
        before stands."""
        looked: dict[TopicIdPartition, tuple[PartitionView, list[Finding]]] = {}
        self._reads_left = STATED_ENDS_READ_MAX
        async for tip in each_of(tips, _PARTITIONS_AT_ONCE):
            view, before = self._rlmm.view(tip), self._looked.get(tip)
            if view is None:
                continue
            if before is not None and is_same_archive(view, before[0]):
                looked[tip] = before
            elif (
                has_holes(tip)
                or view.history != FIRST_HISTORY
                or self._rlmm.problems(tip)
                or await self._may_end_early(tip, view)
            ):
                looked[tip] = view, await partition_health(self._records, self._rlmm, tip)
        before_all, self._looked = set(self._missing()), looked
        _log_changes(before_all, set(self._missing()))
        if len(self._sound_ends) > len(tips):
            kept = set(tips)
            self._sound_ends = {t: end for t, end in self._sound_ends.items() if t in kept}

    def _missing(self) -> Iterable[Finding]:
        """What nobody has said in a log: the rest did whoever copied or read."""
        return (f for f in self.findings() if f.concern == Concern.ARCHIVED_OFFSETS_MISSING)

    async def _may_end_early(self, tip: TopicIdPartition, view: PartitionView) -> bool:
        end, sound = view.log_end_offset or 0, self._sound_ends.get(tip)
        if sound is not None and end >= sound:
            self._sound_ends[tip] = end
            return False
        if self._reads_left == 0:
            return False
        self._reads_left -= 1
        try:
            stated = await read_finished_offsets(self._records, tip)
        except CorruptSegment:
            stated = None  # `verify` says it
        if stated is not None and stated.end_offset >= end:
            self._sound_ends.pop(tip, None)
            return True
        self._sound_ends[tip] = end
        return False


def _log_changes(before: set[Finding], now: set[Finding]) -> None:
    for one in in_order(now - before):
        log.error(one.concern, topic=one.topic, partition=one.partition, error=one.what)
    for one in in_order(before - now):
        log.info(f"{one.concern}_no_more", topic=one.topic, partition=one.partition)


def is_same_archive(view: PartitionView, before: PartitionView) -> bool:
    """Nothing has changed, though it may have been read again."""
    return view.segments is before.segments and replace(view, read_at=before.read_at) == before
