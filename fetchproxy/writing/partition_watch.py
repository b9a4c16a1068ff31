"""Reports slow failures once each: copies that hang, records that near the brokers' retention. It
checks every partition at an interval, not after turns, because a turn that hangs has no end.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

import structlog

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.open_transactions import (
    FirstBatch,
    OpenTransaction,
    ended_by,
    first_batch_at,
    oldest_open_transaction,
    pinned_in_words,
)
from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.errors import ClusterError
from fetchproxy.metadata.archiver_positions import OperatorNotes
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability import metrics
from fetchproxy.observability.health import Condition, Kind, of_partition
from fetchproxy.observability.logs import utc_text
from fetchproxy.runtime.cooperative import for_each
from fetchproxy.writing.published_conditions import PublishedConditions
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
# Kafka's default of transaction.max.timeout.ms: a coordinator that works ends older ones itself.
OPEN_TRANSACTION_MAX_MS = 900_000
# Where transactions follow one another, the last stable offset moves between looks this far apart.
PINNED_MIN_MS = 60_000
# What the brokers are asked about single partitions: time between two questions about one, and
# questions in one look, because all partitions may wait at once. The next looks ask the rest.
ASKED_AGAIN_AFTER_MS = 60_000
QUESTIONS_MAX = 100
# A partition changes hands in less time, and an archiver publishes what it accumulates every
# second.
NOT_LED_MIN_S = 60.0
_ASKED_AT_ONCE = 8


@dataclass(slots=True)
class _Watched:
    archive_end: int | None = None
    waiting_since_ms: int | None = None  # since when records above that archive end exist
    used: float | None = None  # `retention_used` at the last look
    deleted_in_ms: int | None = None
    since: tuple[int, float] | None = None  # epoch ms and used share of bytes at that archive end
    stalled: UUID | None = None  # the copy that was reported
    first: tuple[int, FirstBatch | None] | None = None  # the first unarchived offset, its batch
    stable: tuple[int, int] | None = None  # the last stable offset, seen unchanged since (epoch ms)
    oldest: OpenTransaction | None = None
    due_by_ms: int | None = None  # when the brokers were asked for it
    begun_at: int | None = None  # the first log start seen, while nothing is archived


def deleted_at(deleted_in_ms: int | None) -> float | None:
    """The loop time (s) at which the brokers begin to delete."""
    if deleted_in_ms is None:
        return None
    return asyncio.get_running_loop().time() + deleted_in_ms / 1000


def until(deleted_in_ms: int | None, subject: str = "it") -> str:
    """In whole minutes, so that the sentence does not change at each look."""
    if deleted_in_ms is None:
        return f"it is not known when the brokers delete {subject}"
    minutes = -(-deleted_in_ms // 60_000)
    if minutes <= 0:
        return f"the brokers may delete {subject} at any time"
    span = f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
    return f"the brokers may delete {subject} from about {span} on"


def lasting(ms: int) -> str:
    """In steps, so that the sentence does not change at each look."""
    minutes = ms // 60_000
    if minutes >= 120:
        return f"{minutes // 60} h"
    return f"{minutes if minutes < 5 else minutes // 5 * 5} min"


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


def ms_until_deletion(
    limits: BrokerRetention, age_ms: int | None, by_bytes: float | None, trend: tuple[float, int]
) -> int | None:
    """The least time (ms) until the brokers may delete the oldest unarchived record. They delete
    whole segments, once the newest record has passed: they may do it later, but not before. None:
    not known, or they will not.

    `by_bytes`: the used share of their bytes. `trend`: that share before, and how long (ms) before.
    """
    times_left = []
    if age_ms is not None and limits.ms is not None:
        times_left.append(max(limits.ms - age_ms, 0))
    since, for_ms = trend
    if by_bytes is not None and by_bytes >= 1:
        times_left.append(0)
    elif by_bytes is not None and by_bytes > since and for_ms > 0:
        times_left.append(round((1 - by_bytes) / (by_bytes - since) * for_ms))
    return min(times_left, default=None)


def retention_used(
    retention: BrokerRetention, *, age_ms: int | None, unarchived_bytes: int | None
) -> float | None:
    """The larger of the two shares. None: no limit, or nothing is known. `age_ms`: of the oldest
    unarchived record. `unarchived_bytes`: from that record to the log's end.
    """
    shares = [_share(age_ms, retention.ms), _share(unarchived_bytes, retention.bytes)]
    return max((share for share in shares if share is not None), default=None)


def _share(used: int | None, limit: int | None) -> float | None:
    return None if used is None or limit is None else used / max(limit, 1)


class PartitionWatch:
    """Reports copies that hang, and unarchived records that the brokers will soon delete.
    `accumulated`: the offset from which on some archiver accumulates a partition. None: not asked.
    """

    def __init__(
        self,
        config: ArchiveConfig,
        published_conditions: PublishedConditions,
        accumulated: Callable[[TopicIdPartition], int | None] | None = None,
    ) -> None:
        self._accumulated = accumulated
        self._not_led: dict[TopicIdPartition, float] = {}  # since when (loop s)
        self._published_conditions = published_conditions
        self._stalled_after_s = STALLED_SHARE * config.copy_max_ms / 1000
        self._watched: dict[TopicIdPartition, _Watched] = {}
        # What the last look could not know: the batch at an offset, and who holds up a partition.
        self._unread: dict[TopicIdPartition, int] = {}
        self._held_up: dict[TopicIdPartition, int] = {}
        # Partitions not archived because this archiver's disk is full, failing or read-only.
        self._disk = f"{socket.gethostname()}, {config.spool_dir or tempfile.gettempdir()}"
        self._disk_errors: dict[TopicIdPartition, str] = {}
        metrics.ARCHIVER_DISK_FAILING.set(0)

    def margin(self, tp: TopicIdPartition) -> tuple[float | None, int | None]:
        """`retention_used` and `deleted_in_ms` of the partition's status at the last look."""
        watched = self._watched.get(tp, _Watched())
        return watched.used, watched.deleted_in_ms

    def forget(self, tp: TopicIdPartition) -> None:
        """This archiver does not manage the partition any more."""
        self._watched.pop(tp, None)
        self._published_conditions.forget(
            tp,
            Kind.ARCHIVE_MARGIN_SMALL,
            Kind.UNARCHIVED_RECORDS_DELETED,
            Kind.OPEN_TRANSACTION,
            Kind.SEGMENT_COPY_STALLED,
        )
        metrics.ARCHIVE_RETENTION_USED_SHARE.remove(tp.topic, tp.partition)

    async def look(
        self, statuses: Iterable[PartitionArchiveStatus], now: float, now_ms: int
    ) -> None:
        """`now`: loop time (s). `now_ms`: epoch ms. Yields to other tasks in between."""
        leading = 0
        not_led: dict[TopicIdPartition, float] = {}
        ages: list[float] = []
        self._unread.clear()
        self._held_up.clear()
        for number, status in enumerate(statuses, 1):
            if number % _IN_A_ROW == 0:
                await asyncio.sleep(0)
            if not status.leads:
                self.forget(status.tp)
                if self._accumulated is not None and self._accumulated(status.tp) is None:
                    not_led[status.tp] = self._not_led.get(status.tp, now)
                continue
            leading += 1
            watched = self._watched.setdefault(status.tp, _Watched())
            copy_s = status.copy_seconds(now)
            if copy_s is not None:
                ages.append(copy_s)
            self._look_at_copy(status, watched, copy_s)
            age_ms = self._note_oldest_age_ms(status, watched, now_ms)
            self._look_at_margin(status, watched, age_ms, now_ms)
            self._look_at_transaction(status, watched, now_ms)
            self._look_at_losses(status, watched)
        self._look_at_disk()
        self._not_led = not_led
        self._look_at_not_led(now)
        metrics.ARCHIVE_LEADER_PARTITIONS.set(leading)
        metrics.ARCHIVE_OLDEST_COPY_SECONDS.set(max(ages, default=0.0))
        metrics.ARCHIVE_STALLED_COPIES.set(sum(age >= self._stalled_after_s for age in ages))

    def _look_at_copy(
        self, status: PartitionArchiveStatus, watched: _Watched, age_s: float | None
    ) -> None:
        health, kind, copy = (
            self._published_conditions.health,
            Kind.SEGMENT_COPY_STALLED,
            status.copy,
        )
        if watched.stalled is not None and (copy is None or copy.segment_id != watched.stalled):
            watched.stalled = None
            health.clear(kind, status.tp)
        if copy is None or age_s is None or age_s < self._stalled_after_s:
            return
        watched.stalled = copy.segment_id
        ended_after_s = self._stalled_after_s / STALLED_SHARE
        health.report(
            of_partition(
                kind,
                status.tp,
                f"a copy has taken {int(age_s // 10) * 10} s so far; the archiver gives it up "
                f"after {int(ended_after_s)} s",
                since=copy.started_at,
                until=copy.started_at + ended_after_s,
            ),
            status.tp,
            segment_id=str(copy.segment_id),
            base_offset=copy.base_offset,
            size_bytes=copy.size_bytes,
            since_s=round(age_s, 1),
            ended_after_s=ended_after_s,
        )

    def disk_failed(self, tp: TopicIdPartition, error: OSError) -> None:
        self._disk_errors[tp] = error.strerror or str(error)
        self._look_at_disk()

    def disk_works(self, tp: TopicIdPartition) -> None:
        """The partition was archived, or this archiver does not archive it any more."""
        if self._disk_errors.pop(tp, None) is not None:
            self._look_at_disk()

    def _look_at_disk(self) -> None:
        """Also called at each look, because the time until the brokers delete shrinks by itself."""
        kind, health, count = (
            Kind.ARCHIVER_DISK_FAILING,
            self._published_conditions.health,
            len(self._disk_errors),
        )
        metrics.ARCHIVER_DISK_FAILING.set(count)
        if not count:
            health.clear(kind, self._disk)
            return
        first, error = next(iter(self._disk_errors.items()))
        subject = f"{first} is" if count == 1 else f"{first} and {count - 1} more partitions are"
        margins_ms = [ms for tp in self._disk_errors if (ms := self.margin(tp)[1]) is not None]
        least_ms = min(margins_ms, default=None)
        message = (
            f"The archiver's disk fails ({self._disk}: {error}): until it has room again {subject} "
            f"not archived; {until(least_ms)}"
        )
        health.report(Condition(kind, message, self._disk, until=deleted_at(least_ms)))

    def _look_at_not_led(self, now: float) -> None:
        kind, health = Kind.PARTITIONS_NOT_LED, self._published_conditions.health
        long = {tp: since for tp, since in self._not_led.items() if now - since >= NOT_LED_MIN_S}
        if not long:
            health.clear(kind)
            return
        first = min(long)
        subject = f"{first} is" if len(long) == 1 else f"{first} and {len(long) - 1} more are"
        message = (
            f"{subject} not archived: no archiver with archive.log_dirs runs beside the broker "
            "that leads them, or it does not archive them"
        )
        health.report(Condition(kind, message, since=min(long.values())))

    def operator_notes(self, configs: Iterable[Mapping[str, str] | None]) -> OperatorNotes:
        """Texts for people. `configs`: of the topics that this archiver accumulates. Never
        blocks.
        """
        failing = self._published_conditions.health.reported(Kind.ARCHIVER_DISK_FAILING, self._disk)
        limits = [broker_retention(config or {}) for config in configs]
        ages = [limit.ms for limit in limits if limit.ms is not None]
        sizes = [limit.bytes for limit in limits if limit.bytes is not None]
        retention = retention_in_words(min(ages, default=None), min(sizes, default=None))
        return OperatorNotes(() if failing is None else (failing.what,), retention)

    def least_deleted_in_ms(self) -> int | None:
        """Least time until the brokers delete unarchived records, over all partitions."""
        times_ms = [watched.deleted_in_ms for watched in self._watched.values()]
        return min((ms for ms in times_ms if ms is not None), default=None)

    def _look_at_margin(
        self, status: PartitionArchiveStatus, watched: _Watched, age_ms: int | None, now_ms: int
    ) -> None:
        limits, size_bytes = status.broker_retention, status.unarchived_bytes
        if size_bytes is None and watched.first is not None and watched.first[1] is not None:
            size_bytes = round((status.lag_offsets or 0) * watched.first[1].bytes_per_offset)
        used = retention_used(limits, age_ms=age_ms, unarchived_bytes=size_bytes)
        tp, small = status.tp, Kind.ARCHIVE_MARGIN_SMALL
        if used is None:
            watched.used = watched.deleted_in_ms = None
            self._published_conditions.release(small, tp)
            return
        by_bytes = _share(size_bytes, limits.bytes)
        if watched.since is None or (by_bytes or 0) < watched.since[1]:
            watched.since = now_ms, by_bytes or 0
        at_ms, since = watched.since
        watched.used = used
        watched.deleted_in_ms = None
        if status.lag_offsets != 0:
            watched.deleted_in_ms = ms_until_deletion(
                limits, age_ms, by_bytes, (since, now_ms - at_ms)
            )
        metrics.ARCHIVE_RETENTION_USED_SHARE.labels(tp.topic, str(tp.partition)).set(used)
        if used >= MARGIN_WARN_SHARE:
            percent = int(used * 20) * 5  # in steps of 5, so the sentence does not change each time
            self._published_conditions.hold(
                small,
                tp,
                f"{tp}: the records from offset {status.first_unarchived} on are not archived and "
                f"have used up {percent} % of the brokers' retention; at 100 % the brokers delete "
                f"them; cause: {_cause(status, watched)}",
                until=deleted_at(watched.deleted_in_ms),
                retention_used=round(used, 3),
                lag_offsets=status.lag_offsets,
                margin_offsets=status.margin_offsets,
            )
        elif used < MARGIN_WARN_SHARE * _MARGIN_CLEAR_SHARE:
            self._published_conditions.release(small, tp)

    def _look_at_transaction(
        self, status: PartitionArchiveStatus, watched: _Watched, now_ms: int
    ) -> None:
        """A transaction that is open for long, or about to cost records."""
        kind, tp, stable = Kind.OPEN_TRANSACTION, status.tp, status.last_stable_offset
        if stable is None or not status.is_pinned:
            watched.stable = watched.oldest = watched.due_by_ms = None
            self._published_conditions.release(kind, tp)
            return
        # Where the brokers delete its first records, Kafka moves it to the log start.
        moved = watched.stable is not None and stable not in (
            watched.stable[0],
            status.log_start_offset,
        )
        if watched.stable is None or moved:
            watched.stable, watched.oldest, watched.due_by_ms = (stable, now_ms), None, None
        seen_ms = now_ms - watched.stable[1]
        urgent = watched.used is not None and watched.used >= MARGIN_WARN_SHARE
        if not urgent and seen_ms < PINNED_MIN_MS:
            self._published_conditions.release(kind, tp)
            return
        if watched.due_by_ms is None or now_ms - watched.due_by_ms >= ASKED_AGAIN_AFTER_MS:
            self._held_up[tp] = now_ms
        if not urgent and seen_ms < OPEN_TRANSACTION_MAX_MS:
            self._published_conditions.release(kind, tp)
            return
        self._published_conditions.hold(
            kind,
            tp,
            f"{tp}: {pinned_in_words(stable, watched.oldest)}, for at least {lasting(seen_ms)}"
            f"{_written_at(watched)}: nothing from there on is archived; "
            f"{ended_by(tp, watched.oldest)}",
            until=deleted_at(watched.deleted_in_ms),
            lag_offsets=status.lag_offsets,
        )

    def _look_at_losses(self, status: PartitionArchiveStatus, watched: _Watched) -> None:
        deleted, lost = Kind.UNARCHIVED_RECORDS_DELETED, status.lost
        log_start = status.log_start_offset
        if status.archive_end is not None or log_start is None:
            watched.begun_at = None
        elif watched.begun_at is None:
            watched.begun_at = log_start
        elif log_start > max(watched.begun_at, status.raised_log_start):
            lost = max(watched.begun_at, status.raised_log_start), log_start - 1
        if lost is None:
            self._published_conditions.release(deleted, status.tp)
            return
        # The sentence omits the last offset, which rises while the loss goes on.
        message = (
            f"{status.tp}: the brokers have deleted records from offset {lost[0]} on before they "
            f"could be archived; cause: {_cause(status, watched)}"
        )
        self._published_conditions.hold(deleted, status.tp, message, lost)

    def _note_oldest_age_ms(
        self, status: PartitionArchiveStatus, watched: _Watched, now_ms: int
    ) -> int | None:
        """The age of the oldest unarchived record: by its timestamp if it was read, else since it
        was first known to wait. 0: none waits. None: not known. A status that knows nothing new
        changes nothing.
        """
        if status.archive_end is not None and status.archive_end != watched.archive_end:
            watched.archive_end, watched.waiting_since_ms = status.archive_end, None
            watched.since = None
        if status.lag_offsets == 0:
            watched.waiting_since_ms = watched.first = None
            return 0
        if watched.waiting_since_ms is None and status.lag_offsets is not None:
            watched.waiting_since_ms = now_ms
        first_ms = status.first_unarchived_ms
        if first_ms is None:
            first_ms = self._read_ms(status, watched, now_ms)
        ages_ms = [
            moment
            for moment in (first_ms, watched.waiting_since_ms)
            if moment is not None and moment >= 0
        ]
        return max(now_ms - min(ages_ms), 0) if ages_ms else None

    def _read_ms(
        self, status: PartitionArchiveStatus, watched: _Watched, now_ms: int
    ) -> int | None:
        """The first unarchived record's timestamp, as read from the brokers. No turn may ever read
        it, and after a restart nobody knows how long it has waited.
        """
        offset, since_ms = status.first_unarchived, watched.waiting_since_ms
        if watched.first is not None and watched.first[0] == offset:
            batch = watched.first[1]
            return None if batch is None else batch.timestamp_ms
        if offset is not None and since_ms is not None and now_ms > since_ms:
            self._unread[status.tp] = offset
        return None

    async def ask(self, cluster: Cluster) -> None:
        """Asks the brokers for what the last look did not know. The next look uses their responses.
        Takes no longer than the time between two looks.
        """

        async def read(tp: TopicIdPartition) -> None:
            watched, offset = self._watched.get(tp), self._unread[tp]
            if watched is None:
                return  # it has gone meanwhile
            with suppress(ClusterError):  # the next look asks again
                watched.first = offset, await first_batch_at(cluster, tp, offset)

        async def describe(tp: TopicIdPartition) -> None:
            watched = self._watched.get(tp)
            if watched is None:
                return
            watched.due_by_ms = self._held_up[tp]
            try:
                watched.oldest = await oldest_open_transaction(cluster, tp)
            except ClusterError as error:  # such as no READ: the condition says how to find it
                log.info("producers_not_described", **tp.logged, error=str(error))

        for questions, ask in ((self._held_up, describe), (self._unread, read)):
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_INTERVAL_S):
                    await for_each(list(questions)[:QUESTIONS_MAX], ask, _ASKED_AT_ONCE)


def _written_at(watched: _Watched) -> str:
    batch = None if watched.first is None else watched.first[1]
    if batch is None:
        return ""
    return f" (the record there is of {utc_text(batch.timestamp_ms)})"


def _cause(status: PartitionArchiveStatus, watched: _Watched) -> str:
    """Why records wait, and what to do. Ends without a stop."""
    if status.is_pinned and status.last_stable_offset is not None:
        pinned = pinned_in_words(status.last_stable_offset, watched.oldest)
        return f"{pinned}; {ended_by(status.tp, watched.oldest)}"
    if status.last_error is not None:
        return f"the archiver's last error: {status.last_error}"
    return "copies are slower than producers, or have just begun"
