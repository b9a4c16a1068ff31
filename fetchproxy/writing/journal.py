"""Writes what all partitions have gained into one object every few seconds (`segments.journal`).

A segment takes minutes to be full. Without the journal, all records since the last copies are lost
with the brokers and the archiver. A record is written once into the journal and once into its
segment, never more often. An object goes as soon as it and all objects before it have only records
of finished segments: like a write-ahead log, the journal is cut from its beginning (docs/adr/0089).
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from uuid import UUID

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import MiB
from fetchproxy.errors import ClusterError, FetchProxyError
from fetchproxy.metadata.archiver_positions import RecoveryPoint
from fetchproxy.model import ByteRange, TopicIdPartition
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.observability.metrics import (
    JOURNAL_BYTES,
    JOURNAL_OBJECTS,
    RECOVERY_POINT_AGE_SECONDS,
    RECOVERY_POINT_RECORDS,
)
from fetchproxy.runtime.cooperative import pieces
from fetchproxy.segments.journal import (
    PART_BYTES_MAX,
    TABLE_BYTES_MAX,
    TABLE_HEAD_BYTES_MAX,
    JournalEntry,
    JournalParts,
    JournalPlace,
    JournalTable,
    encode_table,
    table_bytes,
)
from fetchproxy.segments.packing import Cipher, WrappedKey
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.storage.ciphers import KEY_BYTES, AesGcm
from fetchproxy.storage.key_rings import KeyRing, journal_context
from fetchproxy.writing.partition_archiver import ManagedPartition
from fetchproxy.writing.sources.segment_writer import SegmentWriter, Written
from fetchproxy.writing.spool import Spool

# An archiver that catches up gains a lot. The rest goes into the next object, without a pause.
OBJECT_GAIN_BYTES_MAX = 256 * MiB
# Time limit (s) of one write: after an outage a hanging request must end.
_WRITE_MAX_S = 60.0
# With one write, so that an interval of 2 s costs two requests a second at most.
_DELETES_PER_WRITE_MAX = 3
# The pace of the last writes tells how many records came since the ends of the logs were read last.
_PACE_WRITES = 8
# What was gained of a partition that this archiver does not lead any more is kept until the archive
# has it. If that never happens (the topic is deleted), it is kept for this long (s).
_KEPT_MAX_S = 3600.0
# Segments of one partition that are not finished: two, unless turns fail again and again.
_EARLIER_MAX = 4


@dataclass(slots=True)
class _Gained:
    """How far a partition is in the journal. `first`: the first object with records of its segment.
    `earlier`: of segments before it, if the archive may not have all of their records: their first
    object, and how far they are in the journal. `left_at`: since when (loop s) nobody here leads
    the partition.
    """

    writer: SegmentWriter
    written: Written
    first: int
    earlier: tuple[tuple[int, int], ...] = ()
    left_at: float | None = None

    @property
    def needed_from(self) -> int:
        """The first object that may have records that are in no finished segment."""
        return min([self.first, *(first for first, _ in self.earlier)])

    def followed_by(self, gain: _Gain, number: int) -> _Gained:
        """After `gain` was written into the object `number`."""
        if gain.writer is self.writer:
            return _Gained(gain.writer, gain.after, self.first, self.earlier)
        earlier = (*self.earlier, (self.first, self.written.position))
        if len(earlier) > _EARLIER_MAX:
            firsts, ends = zip(*earlier, strict=True)
            earlier = ((min(firsts), max(ends)),)
        return _Gained(gain.writer, gain.after, number, earlier)


@dataclass(frozen=True, slots=True)
class _Gain:
    tp: TopicIdPartition
    writer: SegmentWriter
    before: Written
    after: Written
    aborted: tuple[tuple[int, int], ...]


@dataclass(eq=False, repr=False)
class Journal:
    """The journal of one archiver. `archiver`: its id, new in each run. `partitions`: those that it
    manages. `keys`: None if segments are not encrypted.
    """

    objects: ArchiveObjects
    archiver: UUID
    _: KW_ONLY
    interval_ms: int
    keys: KeyRing | None
    cluster: Cluster
    partitions: Callable[[], Mapping[TopicIdPartition, ManagedPartition]]
    health: Health
    wall_clock_ms: Callable[[], int]

    def __post_init__(self) -> None:
        self._gained: dict[TopicIdPartition, _Gained] = {}
        self._number = 0  # of the next object
        self._builds = 0  # of objects, also of those that could not be written
        self._oldest = 0  # of the objects that are not deleted
        self._key: tuple[WrappedKey, Cipher] | None = None
        # Loop times (s): all records before it are stored; the mean over the partitions.
        self._safe_until: float | None = None
        self._safe_until_mean = 0.0
        self._gained_records = 0  # since it was caught up
        # The loop time (s) of the last writes, and the records that were gained until then.
        self._paces: deque[tuple[float, int]] = deque(maxlen=_PACE_WRITES)
        self._cluster_id = ""

    async def run(self, spool: Spool) -> None:
        """Runs until it is cancelled."""
        clock = asyncio.get_running_loop().time
        RECOVERY_POINT_AGE_SECONDS.set_function(lambda: self._age_s(clock()))
        while True:
            begun_at = clock()
            more = await self._write_or_warn(spool)
            self._publish()
            if not more:
                await asyncio.sleep(max(begun_at + self.interval_ms / 1000 - clock(), 0))

    def recovery_point(self) -> RecoveryPoint:
        """Never blocks."""
        now = asyncio.get_running_loop().time()
        records = 0
        for tp, partition in self.partitions().items():
            if partition.leads:
                records += max(_log_end(partition, self.cluster) - self._safe_end(tp, partition), 0)
        if self._safe_until is None:
            return RecoveryPoint(None, records)
        # What came since the ends were read last is counted by its pace. Partitions are read one
        # after another, so most are safe up to a later moment than the one that shows as the age.
        came = round(self._records_per_s() * (now - self._safe_until_mean))
        return RecoveryPoint(round(1000 * self._age_s(now)), max(records, came))

    def _records_per_s(self) -> float:
        if len(self._paces) < 2:
            return 0.0
        (first_at, first), (last_at, last) = self._paces[0], self._paces[-1]
        return (last - first) / max(last_at - first_at, self.interval_ms / 1000)

    def _age_s(self, now: float) -> float:
        return math.nan if self._safe_until is None else now - self._safe_until

    def _publish(self) -> None:
        RECOVERY_POINT_RECORDS.set(self.recovery_point().records)
        JOURNAL_OBJECTS.set(self._number - self._oldest)

    def _safe_end(self, tp: TopicIdPartition, partition: ManagedPartition) -> int:
        gained = self._gained.get(tp)
        return max(partition.archiver.archive_end or 0, gained.written.position if gained else 0)

    # --- write ---
    async def _write_or_warn(self, spool: Spool) -> bool:
        """True: more is waiting."""
        try:
            async with asyncio.timeout(_WRITE_MAX_S):
                more = await self._write(spool)
                await self._cut()
        except (FetchProxyError, OSError) as error:  # TimeoutError is an OSError
            what = f"the journal is not written: {error or type(error).__name__}"
            self.health.report(Condition(Kind.JOURNAL_NOT_WRITTEN, what))
            return False
        self.health.clear(Kind.JOURNAL_NOT_WRITTEN)
        return more

    async def _write(self, spool: Spool) -> bool:
        caught_up_at = self._caught_up_at()
        gains, more = await self._gains()
        if gains:
            path = spool.new_file()
            try:
                table = await self._built(path, gains)
                if table.entries:
                    await self.objects.put_journal(self.archiver, self._number, path)
                    JOURNAL_BYTES.inc(table.entries[-1].stored.end)
            finally:
                await asyncio.to_thread(path.unlink, missing_ok=True)
            self._note(gains)
        if not more:
            self._safe_until, self._safe_until_mean = oldest_and_mean(caught_up_at)
        self._note_pace(gains)
        return more

    def _note_pace(self, gains: list[_Gain]) -> None:
        """While an archiver catches up, it reads faster than records come."""
        if self._safe_until is None:
            self._paces.clear()
            return
        self._gained_records += sum(one.after.position - one.before.position for one in gains)
        self._paces.append((asyncio.get_running_loop().time(), self._gained_records))

    def _caught_up_at(self) -> list[float]:
        """Loop times (s) before which each led partition had all records of its log."""
        led = [one.caught_up_at for one in self.partitions().values() if one.leads]
        return led or [asyncio.get_running_loop().time()]

    async def _gains(self) -> tuple[list[_Gain], bool]:
        """What is in no object yet, those that waited longest first. True: there is more."""
        gains: list[tuple[int, _Gain]] = []
        for piece in pieces(list(self.partitions().items())):
            for tp, partition in piece:
                gain = self._gain(tp, partition)
                if gain is not None:
                    gained = self._gained.get(tp)
                    gains.append((-1 if gained is None else gained.first, gain))
            await asyncio.sleep(0)  # 10,000 partitions take 80 ms
        gains.sort(key=lambda pair: pair[0])
        size_bytes, taken, room = 0, 0, TABLE_BYTES_MAX - TABLE_HEAD_BYTES_MAX
        while taken < len(gains) and size_bytes < OBJECT_GAIN_BYTES_MAX:
            gain = gains[taken][1]
            room -= table_bytes(gain.tp.topic, len(gain.aborted))
            if room < 0 and taken:
                break
            size_bytes += gain.after.size_bytes - gain.before.size_bytes
            taken += 1
        return [gain for _, gain in gains[:taken]], taken < len(gains)

    def _gain(self, tp: TopicIdPartition, partition: ManagedPartition) -> _Gain | None:
        writer = partition.archiver.accumulator.writer
        if writer is None or not partition.leads:
            return None
        gained = self._gained.get(tp)
        if gained is None or gained.writer is not writer:
            before = Written(writer.summary.start_offset, 0)
        else:
            before = gained.written
        if writer.written.size_bytes <= before.size_bytes:
            return None
        return _Gain(tp, writer, before, writer.written, writer.aborted_since(before))

    async def _built(self, path: Path, gains: list[_Gain]) -> JournalTable:
        key = await self._current_key()
        place = JournalPlace(self.archiver, self._number)
        head = JournalTable(
            place,
            await self._known_cluster_id(),
            self.wall_clock_ms(),
            None if key is None else key[0],
            (),
        )
        self._builds += 1
        parts = JournalParts(place, None if key is None else key[1], self._builds)
        return await asyncio.to_thread(_build, path, head, parts, gains)

    async def _known_cluster_id(self) -> str:
        """ "" if the brokers were away since the start: what they had is written all the same."""
        if not self._cluster_id:
            with suppress(ClusterError):
                self._cluster_id = await self.cluster.cluster_id() or ""
        return self._cluster_id

    async def _current_key(self) -> tuple[WrappedKey, Cipher] | None:
        """A data key for this run; another one as soon as the key ring has another active key, so
        that an old key is needed no longer than for objects that exist.
        """
        ring = self.keys
        if ring is None or not ring.writes:
            return None
        if self._key is None or self._key[0].key_id != await ring.active_key_id():
            data_key = os.urandom(KEY_BYTES)
            wrapped = await ring.wrap(data_key, journal_context(self.archiver))
            self._key = wrapped, AesGcm(data_key)
        return self._key

    def _note(self, gains: list[_Gain]) -> None:
        for gain in gains:
            gained = self._gained.get(gain.tp)
            self._gained[gain.tp] = (
                _Gained(gain.writer, gain.after, self._number)
                if gained is None
                else gained.followed_by(gain, self._number)
            )
        self._number += 1

    # --- cut ---
    async def _cut(self) -> None:
        """Delete the objects at the journal's beginning that no lost cluster needs."""
        now = asyncio.get_running_loop().time()
        for tp, gained in list(self._gained.items()):
            if self._is_covered(tp, gained, now):
                del self._gained[tp]
        needed_from = min((one.needed_from for one in self._gained.values()), default=self._number)
        for number in range(self._oldest, min(needed_from, self._oldest + _DELETES_PER_WRITE_MAX)):
            await self.objects.delete_journal(self.archiver, number)
            self._oldest = number + 1

    def _is_covered(self, tp: TopicIdPartition, gained: _Gained, now: float) -> bool:
        """Whether finished segments have all that was gained, or nobody will ever ask for it. Drops
        those of `earlier` whose records they have: while records come, there is always a segment
        that is not finished.
        """
        partition = self.partitions().get(tp)
        end = None
        if partition is not None:
            end = partition.archiver.archive_end
            if end is None and partition.view is not None:
                end = partition.view.log_end_offset
        if end is not None:
            gained.earlier = tuple(one for one in gained.earlier if one[1] > end)
            if end >= gained.written.position:
                return True
        if partition is not None and partition.leads:
            gained.left_at = None
        elif gained.left_at is None:
            gained.left_at = now
        return gained.left_at is not None and now - gained.left_at >= _KEPT_MAX_S


def oldest_and_mean(caught_up_at: Sequence[float]) -> tuple[float | None, float]:
    """Of such times. None: one of them is -inf, as the partition was not read up to its end yet."""
    oldest = min(caught_up_at)
    if oldest == float("-inf"):
        return None, oldest
    return oldest, sum(caught_up_at) / len(caught_up_at)


def _log_end(partition: ManagedPartition, cluster: Cluster) -> int:
    accumulator = partition.archiver.accumulator
    known = cluster.cached_log_offsets(partition.tp)
    return max(accumulator.last_stable_offset or 0, known.high_watermark if known else 0)


def _build(path: Path, head: JournalTable, parts: JournalParts, gains: list[_Gain]) -> JournalTable:
    """Write the object's file. Leaves out what was copied or dropped meanwhile. Blocks."""
    entries: list[JournalEntry] = []
    with path.open("wb") as file:
        for gain in gains:
            start = file.tell()
            before, after = gain.before, gain.after
            plain = gain.writer.parts(before.size_bytes, after.size_bytes, PART_BYTES_MAX)
            with suppress(FileNotFoundError):
                for stored in parts.stored(gain.tp, before.position, plain):
                    file.write(stored)
                entries.append(
                    JournalEntry(
                        gain.tp,
                        before.position,
                        after.position,
                        after.leader_epoch,
                        gain.aborted,
                        ByteRange(start, file.tell()),
                    )
                )
        table = JournalTable(head.place, head.cluster_id, head.read_at_ms, head.key, tuple(entries))
        file.write(encode_table(table))
    return table
