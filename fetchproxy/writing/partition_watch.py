"""Reports slow failures once each: copies that hang, records that near the brokers' retention. It
checks every partition at an interval, not after turns, because a turn that hangs has no end.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

import structlog

from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.metadata.archiver_positions import ForPeople
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability import metrics
from fetchproxy.observability.health import Condition, Kind, of_partition
from fetchproxy.writing.concerns import ArchiverConcerns
from fetchproxy.writing.status import (
    STALLED_SHARE,
    BrokerRetention,
    PartitionArchiveStatus,
    broker_retention,
)

log = structlog.get_logger(__name__)

# The share of the brokers' retention, used by the oldest unarchived record, that is a concern.
MARGIN_WARN_SHARE = 0.5

WATCH_INTERVAL_S = 5.0
_IN_A_ROW = 50
# An alarm that rises at 0.5 and falls at 0.49 would flap.
_MARGIN_CLEAR_SHARE = 0.8


@dataclass(slots=True)
class _Watched:
    archive_end: int | None = None
    waiting_since_ms: int | None = None  # since when records above that archive end exist
    used: float | None = None  # `retention_used` at the last look
    deleted_in_ms: int | None = None
    since: tuple[int, float] | None = None  # epoch ms and used share at that archive end
    stalled: UUID | None = None  # the copy that was reported


def deleted_at(deleted_in_ms: int | None) -> float | None:
    """The loop time (s) at which the brokers begin to delete."""
    if deleted_in_ms is None:
        return None
    return asyncio.get_running_loop().time() + deleted_in_ms / 1000


def until(deleted_in_ms: int | None, what: str = "it") -> str:
    """In whole minutes, so that the sentence does not change at each look."""
    if deleted_in_ms is None:
        return f"it is not known when the brokers delete {what}"
    minutes = -(-deleted_in_ms // 60_000)
    if minutes <= 0:
        return f"the brokers are deleting {what}"
    span = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return f"the brokers begin to delete {what} in about {span}"


def retention_in_words(ms: int | None, size_bytes: int | None) -> str:
    """The brokers' retention of unarchived records, as a sentence. None: unlimited."""
    limits = []
    if ms is not None:
        hours, minutes = ms // 3_600_000, ms // 60_000
        limits.append(f"records older than {f'{hours} h' if hours > 1 else f'{minutes} min'}")
    if size_bytes is not None:
        limits.append(f"the oldest records above {size_bytes} bytes in a partition")
    return f"the brokers delete {' and '.join(limits) or 'nothing'}"


# At a used share of 1 the broker may delete the oldest unarchived record. The share is by time and
# bytes, not by offsets: the log start moves a segment at a time, so all unarchived records of a
# topic with little traffic may be one deletion away by offsets, and safe for days by the clock.


def _deleted_in_ms(used: float, since: float, for_ms: int) -> int | None:
    """Time until the brokers delete unarchived records if the trend goes on. `since`: the share
    `for_ms` ago; nothing was copied since then. None: the share does not rise.
    """
    if used >= 1:
        return 0
    if used <= since or for_ms <= 0:
        return None
    return round((1 - used) / (used - since) * for_ms)


def retention_used(
    retention: BrokerRetention, *, age_ms: int | None, unarchived_bytes: int | None
) -> float | None:
    """The larger of the two shares. None: no limit, or nothing is known. `age_ms`: of the oldest
    unarchived record. `unarchived_bytes`: from that record to the log's end.
    """
    shares = [
        used / max(limit, 1)
        for used, limit in ((age_ms, retention.ms), (unarchived_bytes, retention.bytes))
        if used is not None and limit is not None
    ]
    return max(shares, default=None)


class PartitionWatch:
    def __init__(self, config: ArchiveConfig, concerns: ArchiverConcerns) -> None:
        self._concerns = concerns
        self._stalled_after_s = STALLED_SHARE * config.copy_max_ms / 1000
        self._watched: dict[TopicIdPartition, _Watched] = {}
        # Partitions not archived because this archiver's disk is full, failing or read-only.
        self._disk = f"{socket.gethostname()}, {config.spool_dir or tempfile.gettempdir()}"
        self._disk_errors: dict[TopicIdPartition, str] = {}
        metrics.ARCHIVER_DISK_FAILING.set(0)

    def margin(self, tip: TopicIdPartition) -> tuple[float | None, int | None]:
        """`retention_used` and `deleted_in_ms` of the partition's status at the last look."""
        watched = self._watched.get(tip, _Watched())
        return watched.used, watched.deleted_in_ms

    def forget(self, tip: TopicIdPartition) -> None:
        """This archiver does not manage the partition any more."""
        self._watched.pop(tip, None)
        self._concerns.forget(
            tip,
            Kind.ARCHIVE_MARGIN_SMALL,
            Kind.UNARCHIVED_RECORDS_DELETED,
            Kind.SEGMENT_COPY_STALLED,
        )
        metrics.ARCHIVE_RETENTION_USED_SHARE.remove(tip.topic, tip.partition)

    async def look(
        self, statuses: Iterable[PartitionArchiveStatus], now: float, now_ms: int
    ) -> None:
        """`now`: loop time (s). `now_ms`: epoch ms. Yields to other tasks in between."""
        leading = 0
        ages: list[float] = []
        for number, status in enumerate(statuses, 1):
            if number % _IN_A_ROW == 0:
                await asyncio.sleep(0)
            if not status.leads:
                self.forget(status.tip)
                continue
            leading += 1
            watched = self._watched.setdefault(status.tip, _Watched())
            copy_s = status.copy_seconds(now)
            if copy_s is not None:
                ages.append(copy_s)
            self._look_at_copy(status, watched, copy_s)
            self._look_at_margin(status, watched, now_ms)
            self._look_at_losses(status)
        self._look_at_disk()
        metrics.ARCHIVE_LEADER_PARTITIONS.set(leading)
        metrics.ARCHIVE_OLDEST_COPY_SECONDS.set(max(ages, default=0.0))
        metrics.ARCHIVE_STALLED_COPIES.set(sum(age >= self._stalled_after_s for age in ages))

    def _look_at_copy(
        self, status: PartitionArchiveStatus, watched: _Watched, age_s: float | None
    ) -> None:
        health, kind, copy = self._concerns.health, Kind.SEGMENT_COPY_STALLED, status.copy
        if watched.stalled is not None and (copy is None or copy.segment_id != watched.stalled):
            watched.stalled = None
            health.clear(kind, status.tip)
        if copy is None or age_s is None or age_s < self._stalled_after_s:
            return
        watched.stalled = copy.segment_id
        ended_after_s = self._stalled_after_s / STALLED_SHARE
        health.report(
            of_partition(
                kind,
                status.tip,
                f"a copy has taken {int(age_s // 10) * 10} s so far; the archiver ends it after "
                f"{int(ended_after_s)} s",
                since=copy.started_at,
                until=copy.started_at + ended_after_s,
            ),
            status.tip,
            segment_id=str(copy.segment_id),
            base_offset=copy.base_offset,
            size_bytes=copy.size_bytes,
            since_s=round(age_s, 1),
            ended_after_s=ended_after_s,
        )

    def disk_failed(self, tip: TopicIdPartition, error: OSError) -> None:
        self._disk_errors[tip] = error.strerror or str(error)
        self._look_at_disk()

    def disk_works(self, tip: TopicIdPartition) -> None:
        """The partition was archived, or this archiver does not archive it any more."""
        if self._disk_errors.pop(tip, None) is not None:
            self._look_at_disk()

    def _look_at_disk(self) -> None:
        """Also called at each look, because the time until the brokers delete shrinks by itself."""
        kind, health, count = (
            Kind.ARCHIVER_DISK_FAILING,
            self._concerns.health,
            len(self._disk_errors),
        )
        metrics.ARCHIVER_DISK_FAILING.set(count)
        if not count:
            health.clear(kind, self._disk)
            return
        first, error = next(iter(self._disk_errors.items()))
        which = f"{first} is" if count == 1 else f"{first} and {count - 1} more partitions are"
        known = [ms for tip in self._disk_errors if (ms := self.margin(tip)[1]) is not None]
        least_ms = min(known, default=None)
        what = (
            f"The archiver's disk fails ({self._disk}: {error}): until it has room again {which} "
            f"not archived; {until(least_ms)}"
        )
        health.report(Condition(kind, what, self._disk, until=deleted_at(least_ms)))

    def for_people(self, configs: Iterable[Mapping[str, str] | None]) -> ForPeople:
        """Texts for people. `configs`: of the topics that this archiver gathers. Never blocks."""
        failing = self._concerns.health.reported(Kind.ARCHIVER_DISK_FAILING, self._disk)
        limits = [broker_retention(config or {}) for config in configs]
        ages = [limit.ms for limit in limits if limit.ms is not None]
        sizes = [limit.bytes for limit in limits if limit.bytes is not None]
        retention = retention_in_words(min(ages, default=None), min(sizes, default=None))
        return ForPeople(() if failing is None else (failing.what,), retention)

    def least_deleted_in_ms(self) -> int | None:
        """Least time until the brokers delete unarchived records, over all partitions."""
        known = [watched.deleted_in_ms for watched in self._watched.values()]
        return min((ms for ms in known if ms is not None), default=None)

    def _look_at_margin(
        self, status: PartitionArchiveStatus, watched: _Watched, now_ms: int
    ) -> None:
        age_ms = self._oldest_age_ms(status, watched, now_ms)
        used = retention_used(
            status.broker_retention, age_ms=age_ms, unarchived_bytes=status.unarchived_bytes
        )
        tip, small = status.tip, Kind.ARCHIVE_MARGIN_SMALL
        if used is None:
            watched.used = watched.deleted_in_ms = None
            self._concerns.release(small, tip)
            return
        if watched.since is None or used < watched.since[1]:
            watched.since = now_ms, used
        at_ms, since = watched.since
        watched.used = used
        watched.deleted_in_ms = _deleted_in_ms(used, since, now_ms - at_ms)
        metrics.ARCHIVE_RETENTION_USED_SHARE.labels(tip.topic, str(tip.partition)).set(used)
        if used >= MARGIN_WARN_SHARE:
            first = status.log_start_offset if status.archive_end is None else status.archive_end
            percent = int(used * 20) * 5  # in steps of 5, so the sentence does not change each time
            self._concerns.hold(
                small,
                tip,
                f"{tip}: the records from offset {first} on are not archived and have used up "
                f"{percent} % of the brokers' retention; at 100 % the brokers delete them",
                until=deleted_at(watched.deleted_in_ms),
                retention_used=round(used, 3),
                lag_offsets=status.lag_offsets,
                margin_offsets=status.margin_offsets,
            )
        elif used < MARGIN_WARN_SHARE * _MARGIN_CLEAR_SHARE:
            self._concerns.release(small, tip)

    def _look_at_losses(self, status: PartitionArchiveStatus) -> None:
        deleted, lost = Kind.UNARCHIVED_RECORDS_DELETED, status.lost
        if lost is None:
            self._concerns.release(deleted, status.tip)
            return
        # The sentence omits the last offset, which rises while the loss goes on.
        what = (
            f"{status.tip}: the brokers have deleted records from offset {lost[0]} on before they "
            "could be archived; the archive continues after them when copies succeed again"
        )
        self._concerns.hold(deleted, status.tip, what, lost)

    @staticmethod
    def _oldest_age_ms(
        status: PartitionArchiveStatus, watched: _Watched, now_ms: int
    ) -> int | None:
        """The age of the oldest unarchived record: by its timestamp if it was read, else since it
        was first known to wait. 0: none waits. None: not known. A status that knows nothing new
        changes nothing.
        """
        if status.archive_end is not None and status.archive_end != watched.archive_end:
            watched.archive_end, watched.waiting_since_ms = status.archive_end, None
            watched.since = None
        if status.lag_offsets == 0:
            watched.waiting_since_ms = None
            return 0
        if watched.waiting_since_ms is None and status.lag_offsets is not None:
            watched.waiting_since_ms = now_ms
        known = [
            moment
            for moment in (status.first_unarchived_ms, watched.waiting_since_ms)
            if moment is not None and moment >= 0
        ]
        return max(now_ms - min(known), 0) if known else None
