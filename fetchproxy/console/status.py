"""The console's status as plain values, from the last responses of archive and brokers. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client.metrics import MetricWrapperBase

from fetchproxy.brokers.broker_watch import BrokersStatus
from fetchproxy.config.values import harmless
from fetchproxy.console.headline import LeastTimesLeft, Outlook, Problem
from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.archiver_positions import RecoveryPoint
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import FIRST_HISTORY, LogOffsets, TopicIdPartition
from fetchproxy.observability import metrics
from fetchproxy.observability.health import (
    Condition,
    Health,
    Kind,
    Level,
    first_of_each_kind,
)
from fetchproxy.observability.logs import RecentEvent
from fetchproxy.runtime.cooperative import a_turn, cooperative
from fetchproxy.serving.consumer_pacing import ClientStatus, Consumer
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.writing.archive_health import partition_health
from fetchproxy.writing.completeness_records import read_finished_offsets
from fetchproxy.writing.status import PartitionArchiveStatus

DISPLAYED_CLIENTS_MAX = 50
# There may be as many clients as connections; each takes about 3 µs.
_CLIENTS_AT_ONCE = 100
# If there are more partitions, the next looks read the rest.
FINISHED_OFFSETS_READ_MAX = 200
_PARTITIONS_AT_ONCE = 20


# The console shows a `Status`, whatever accumulates it (`fetchproxy.console.collect` in the
# product, a function in a test). Field names are the JSON names of `/api/status`.


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `first` to `last`, both inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """`archived` are ranges without holes, `gaps` the holes. `Status.conditions` explain each hole.

    Unknown values are null, never 0.

    `lag_offsets`: offsets on the brokers, up to the high watermark, that are not archived yet.
    `margin_offsets`: archive end minus the broker's log start offset; below 0, the brokers have
    deleted records that are not archived. `role` in this process: leader or follower; null: this
    process does not archive the partition. `copy_seconds`: how long a copy has been under way.
    `retention_used`: the share of the brokers' retention that the oldest unarchived record has used
    up. `deleted_in_seconds`: time until the brokers delete unarchived records, at the present pace.
    `lost_offsets`: those in `gaps`, and unarchived ones that the brokers have deleted since, except
    by DeleteRecords.
    """

    topic: str
    partition: int
    archived: tuple[OffsetRange, ...] = ()
    gaps: tuple[OffsetRange, ...] = ()
    segments: int = 0
    size_bytes: int = 0
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    lag_offsets: int | None = None
    margin_offsets: int | None = None
    role: str | None = None
    copy_seconds: float | None = None
    retention_used: float | None = None
    deleted_in_seconds: int | None = None
    lost_offsets: int = 0


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """All partitions of a topic. `faulty`: those with a condition other than on record.
    `lag_offsets`, `size_bytes` and `lost_offsets` are sums, `deleted_in_seconds` is the minimum.
    `lost_offsets`: in no segment, and no longer on the brokers.
    """

    topic: str
    partitions: int = 0
    faulty: int = 0
    lag_offsets: int = 0
    size_bytes: int = 0
    deleted_in_seconds: int | None = None
    lost_offsets: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """All partitions: the fields are those of TopicStatus. `lossy`: partitions that have lost
    offsets.
    """

    topics: int = 0
    partitions: int = 0
    faulty: int = 0
    lossy: int = 0
    lag_offsets: int = 0
    size_bytes: int = 0
    lost_offsets: int = 0
    deleted_in_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ArchiverStatus:
    """The archiver of this process. `leadership`: sole, group or log-dirs. `members`: the members
    of its group; None: not known. `refused`: topics that match the pattern and are not archived,
    with the reason.
    """

    leadership: str
    state: str
    leads: int
    follows: int
    members: int | None = None
    error: str | None = None
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperationRow:
    """`up`: None before the first response."""

    up: bool | None
    failing_seconds: float = 0.0
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """`up` is None before the first response, and False while any of `operations` (list, read,
    write, delete) fails. `failing_seconds` and `last_error` are from the one that has failed for
    longest.
    """

    url: str
    up: bool | None
    failing_seconds: float = 0.0
    last_error: str | None = None
    operations: dict[str, OperationRow] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """`conditions`: JSON objects, the worst first, for the process, for the shown partitions, and
    the first of each kind. `condition_counts`: the number of all conditions, by kind. `relay`,
    `remote_reads` and `cache`: figures by name, see below.

    `missing` names what this process lacks to be ready (empty: it is ready). `headlines` has one
    sentence for each kind on which a person has to act. `problems` has all kinds, in an operator's
    words. `outlook` says when records are lost. These are derived from the conditions.
    `archiver`: None if this process does not archive. `recovery_point`: what would be lost with
    brokers and archivers now; None: no archiver with a journal is known. `partitions`: those asked
    for, faulty ones first, then by topic and partition. `topics` (as many as asked for, faulty ones
    first) and `totals` cover all partitions. `clients`: up to CLIENTS_MAX clients, those that read
    most bytes.
    `shows_records`: whether `/api/records` answers.
    """

    version: str
    mode: str
    bootstrap: str
    uptime_seconds: float
    missing: tuple[str, ...]
    listeners: tuple[str, ...]
    store: StoreStatus
    relay: Mapping[str, int]
    remote_reads: Mapping[str, int]
    cache: Mapping[str, int]
    partitions: tuple[PartitionStatus, ...]
    events: tuple[RecentEvent, ...]
    brokers: BrokersStatus = field(default_factory=BrokersStatus)
    archiver: ArchiverStatus | None = None
    recovery_point: RecoveryPoint | None = None
    headlines: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    outlook: Outlook = field(default_factory=Outlook)
    conditions: tuple[dict[str, str | int | float | bool | None], ...] = ()
    condition_counts: dict[str, int] = field(default_factory=dict)
    topics: tuple[TopicStatus, ...] = ()
    totals: Totals = field(default_factory=Totals)
    partitions_total: int = 0
    partitions_matching: int = 0
    clients: tuple[ClientStatus, ...] = ()
    clients_total: int = 0
    shows_records: bool = False


@dataclass(frozen=True, slots=True)
class PartitionQuery:
    """At most `rows_max` (None: all) of the partitions with `name_part` in their name, and at most
    `topics_max` topics. The totals are those of all partitions, unless `counts_all` is False: then
    no partition and no client is looked at.
    """

    rows_max: int | None = None
    name_part: str = ""
    topics_max: int | None = None
    counts_all: bool = True


ONLY_TOTALS = PartitionQuery(rows_max=0, topics_max=0)
NO_PARTITIONS = PartitionQuery(rows_max=0, topics_max=0, counts_all=False)

# Called on the event loop for every request, so it must not wait, and must take only short turns.
StatusSource = Callable[[PartitionQuery], Awaitable[Status]]


# Figures of a status, read from the metrics, so that nothing is counted twice.


def relay(connections_max: int) -> dict[str, int]:
    return {
        "connections": total(metrics.CONNECTIONS),
        "connections_max": connections_max,
        "to_broker_bytes": total(metrics.RELAYED_BYTES, direction="to_broker"),
        "to_client_bytes": total(metrics.RELAYED_BYTES, direction="to_client"),
    }


def remote_reads() -> dict[str, int]:
    """`waiting`: fetches in the RemoteFetchPurgatory. Counts begin at the start of the process.

    `held_partitions`: partitions with a reader that now waits for the archiver. `led_on`: answers
    that let a reader skip lost offsets; `offsets_skipped`: those offsets.
    """
    return {
        "in_flight": total(metrics.REMOTE_READS_IN_FLIGHT),
        "queued": total(metrics.REMOTE_LOG_READER_TASK_QUEUE_SIZE),
        "waiting": total(metrics.PURGATORY_ENTRIES),
        "read_bytes": total(metrics.REMOTE_FETCH_BYTES),
        "backoffs": total(metrics.BACKOFFS),
        "catches": total(metrics.CATCHES),
        "held_stale": total(metrics.CATCH_OUTCOMES, outcome="held_stale"),
        "passed_on": total(metrics.CATCH_OUTCOMES, outcome="passed_on"),
        "held_partitions": total(metrics.HELD_PARTITIONS),
        "led_on": total(metrics.READERS_LED_ON),
        "offsets_skipped": total(metrics.OFFSETS_SKIPPED),
        "corrupt_chunks": total(metrics.CORRUPT_CHUNKS),
    }


def cache(bytes_max: int) -> dict[str, int]:
    return {
        "bytes": total(metrics.CHUNK_CACHE_BYTES),
        "bytes_max": bytes_max,
        "hits": total(metrics.CHUNK_CACHE_HITS),
        "misses": total(metrics.CHUNK_CACHE_MISSES),
        "evictions": total(metrics.CHUNK_CACHE_EVICTIONS),
    }


def total(metric: MetricWrapperBase, **labels: str) -> int:
    """The sum of a counter or a gauge over all children with these labels."""
    samples = (sample for family in metric.collect() for sample in family.samples)
    return int(sum(sample.value for sample in samples if labels.items() <= sample.labels.items()))


# The partitions of a status: the shown ones in order, and sums of all by topic. Pure.
#
# Lines come one by one, by topic and partition, so that the caller can yield to the event loop.


class PartitionRows:
    def __init__(self, query: PartitionQuery, conditions: Iterable[Condition]) -> None:
        self._name_part = query.name_part.lower()
        self._rows_max = query.rows_max
        self._with_condition = {
            (condition.topic, condition.partition)
            for condition in conditions
            if condition.level != Level.ON_RECORD
        }
        self._faulty: list[PartitionStatus] = []  # both lists have at most `rows_max`
        self._others: list[PartitionStatus] = []
        self._topics: dict[str, TopicStatus] = {}
        self._topics_max = query.topics_max
        self._lossy = 0
        self.least_times = LeastTimesLeft()
        self.total = 0
        self.matching = 0

    def add(self, line: PartitionStatus) -> None:
        faulty = self.is_faulty(line)
        self._count(line, faulty)
        self.total += 1
        if self._name_part in f"{line.topic}-{line.partition}".lower():
            self.matching += 1
            rows = self._faulty if faulty else self._others
            if self._rows_max is None or len(rows) < self._rows_max:
                rows.append(line)

    def rows(self) -> tuple[PartitionStatus, ...]:
        """The shown lines, faulty partitions first."""
        return tuple([*self._faulty, *self._others][: self._rows_max])

    def conditions_in_view(self, conditions: tuple[Condition, ...]) -> tuple[Condition, ...]:
        """Conditions of shown partitions, those about no partition, and the first of each kind."""
        if self._rows_max is None and not self._name_part:
            return conditions
        in_rows = {(row.topic, row.partition) for row in self.rows()}
        first = set(map(id, first_of_each_kind(conditions)))
        return tuple(
            condition
            for condition in conditions
            if condition.partition is None
            or id(condition) in first
            or (condition.topic, condition.partition) in in_rows
        )

    def topics(self) -> tuple[TopicStatus, ...]:
        """Topics with faulty partitions first, then by name."""
        every = self._topics.values()
        rows_max = len(every) if self._topics_max is None else self._topics_max
        return tuple(heapq.nsmallest(rows_max, every, key=lambda one: (not one.faulty, one.topic)))

    def totals(self) -> Totals:
        topics = self._topics.values()
        deletion_times = [s for row in topics if (s := row.deleted_in_seconds) is not None]
        return Totals(
            topics=len(topics),
            partitions=self.total,
            faulty=sum(topic.faulty for topic in topics),
            lossy=self._lossy,
            lag_offsets=sum(topic.lag_offsets for topic in topics),
            size_bytes=sum(topic.size_bytes for topic in topics),
            lost_offsets=sum(topic.lost_offsets for topic in topics),
            deleted_in_seconds=min(deletion_times, default=None),
        )

    def is_faulty(self, line: PartitionStatus) -> bool:
        partition = (line.topic, line.partition)
        return partition in self._with_condition or (line.topic, None) in self._with_condition

    def _count(self, line: PartitionStatus, faulty: bool) -> None:
        before = self._topics.get(line.topic) or TopicStatus(line.topic)
        deletion_times = [
            s for s in (before.deleted_in_seconds, line.deleted_in_seconds) if s is not None
        ]
        if line.deleted_in_seconds is not None:
            self._note_time(line.deleted_in_seconds, line.role == "leader", faulty)
        self._lossy += line.lost_offsets > 0
        self._topics[line.topic] = TopicStatus(
            topic=line.topic,
            partitions=before.partitions + 1,
            faulty=before.faulty + faulty,
            lag_offsets=before.lag_offsets + (line.lag_offsets or 0),
            size_bytes=before.size_bytes + line.size_bytes,
            deleted_in_seconds=min(deletion_times, default=None),
            lost_offsets=before.lost_offsets + line.lost_offsets,
        )

    def _note_time(self, seconds: int, led: bool, faulty: bool) -> None:
        def least(before: int | None, counts: bool) -> int | None:
            return before if not counts else seconds if before is None else min(before, seconds)

        now = self.least_times
        self.least_times = LeastTimesLeft(
            least(now.led, led), least(now.elsewhere, not led), least(now.faulty, faulty)
        )


# The clients of a status.


async def largest_clients(
    consumers: Sequence[Consumer], now: float, topic_names: Mapping[bytes, str]
) -> tuple[ClientStatus, ...]:
    """The clients that read most bytes, largest first, in one pass. Some may leave meanwhile.
    `topic_names`: by topic id.
    """
    rows: list[tuple[ClientStatus, Consumer]] = []
    for first in range(0, len(consumers), _CLIENTS_AT_ONCE):
        part = consumers[first : first + _CLIENTS_AT_ONCE]
        rows += [(one.status(now), one) for one in part if one.readers]
        rows = heapq.nlargest(
            DISPLAYED_CLIENTS_MAX, rows, key=lambda row: (row[0].bytes_per_s, row[0].pauses)
        )
        await a_turn()
    return tuple(
        [
            replace(row, topics=_topic_names(one, topic_names))
            async for row, one in cooperative(rows, 1)
        ]
    )


def _topic_names(consumer: Consumer, topic_names: Mapping[bytes, str]) -> tuple[str, ...]:
    """Clients name topics by id or by name. An unknown id is left out."""
    names = [topic_names.get(ref) or ref.decode(errors="replace") for ref in consumer.topics()]
    return tuple(sorted(harmless(name) for name in names if "\ufffd" not in name))


# One partition's line, from the last responses of archive and broker. Pure.


def partition_status(
    tp: TopicIdPartition, view: PartitionView | None, log_offsets: LogOffsets | None
) -> PartitionStatus:
    """`view` or `log_offsets` None: not known; the fields that depend on it then stay unknown."""
    gaps = () if view is None else tuple(OffsetRange(first, last) for first, last in view.gaps())
    archive_end = None if view is None else view.log_end_offset
    return PartitionStatus(
        topic=tp.topic,
        partition=tp.partition,
        archived=() if view is None else archived_ranges(view),
        gaps=gaps,
        segments=0 if view is None else len(view.segments),
        size_bytes=0 if view is None else view.segments.size_bytes,
        log_start_offset=None if log_offsets is None else log_offsets.log_start_offset,
        log_end_offset=None if log_offsets is None else log_offsets.high_watermark,
        lag_offsets=None
        if view is None or log_offsets is None
        else lag_offsets(archive_end, log_offsets),
        margin_offsets=(
            None
            if log_offsets is None or archive_end is None
            else archive_end - log_offsets.log_start_offset
        ),
        lost_offsets=sum(gap.last - gap.first + 1 for gap in gaps)
        + deleted_since(view, log_offsets),
    )


def with_work(
    status: PartitionStatus, work: PartitionArchiveStatus | None, now: float
) -> PartitionStatus:
    """The line with the work of this process's archiver; `now` is loop time (s).

    The archiver's gauges and log have the same figures, so that all places agree.
    """
    if work is None:
        return status
    copy_s, left_ms = work.copy_seconds(now), work.deleted_in_ms
    if work.leads and work.last_stable_offset is not None:
        status = replace(
            status,
            log_start_offset=work.log_start_offset,
            lag_offsets=work.lag_offsets,
            margin_offsets=work.margin_offsets,
        )
    return replace(
        status,
        role="leader" if work.leads else "follower",
        copy_seconds=None if copy_s is None else round(copy_s, 1),
        retention_used=None if work.retention_used is None else round(work.retention_used, 4),
        deleted_in_seconds=None if left_ms is None else round(left_ms / 1000),
    )


def archived_ranges(view: PartitionView) -> tuple[OffsetRange, ...]:
    """The archive's span, cut at the recorded gaps."""
    if view.log_start_offset is None or view.log_end_offset is None:
        return ()
    firsts = [view.log_start_offset, *(last + 1 for _, last in view.gaps())]
    lasts = [*(first - 1 for first, _ in view.gaps()), view.log_end_offset - 1]
    return tuple(map(OffsetRange, firsts, lasts))


def deleted_since(view: PartitionView | None, log_offsets: LogOffsets | None) -> int:
    """How many offsets behind the archive's end the brokers have deleted by themselves."""
    if view is None or view.log_end_offset is None or log_offsets is None:
        return 0
    kept_from = max(view.log_end_offset, view.raised_log_start)
    return max(log_offsets.log_start_offset - kept_from, 0)


def lag_offsets(archive_end: int | None, log_offsets: LogOffsets) -> int:
    """Offsets up to the high watermark that the broker has and the archive does not."""
    copied_to = log_offsets.log_start_offset if archive_end is None else archive_end
    return max(0, log_offsets.high_watermark - max(copied_to, log_offsets.log_start_offset))


@dataclass(eq=False, repr=False)
class PartitionsHealth:
    """The conditions of partitions that are found in the store, for page and gauges.

    Memory shows that most partitions have none: no hole, no unreadable metadata, and an archive end
    that has not fallen. A small object states the expected end. It is read once for each partition
    after the start, and again when the end has fallen, for example when the newest segments are
    gone.
    """

    records: ArchiveObjects
    rlmm: RemoteLogMetadataManager

    def __post_init__(self) -> None:
        self._results: dict[TopicIdPartition, tuple[PartitionView, list[Condition]]] = {}
        self._health = Health()
        self._checked_ends: dict[TopicIdPartition, int] = {}
        self._reads_left = 0

    def conditions(self) -> Iterable[Condition]:
        return self._health.all(0.0)

    async def update(
        self, tps: Sequence[TopicIdPartition], has_holes: Callable[[TopicIdPartition], bool]
    ) -> None:
        """Examines each partition whose archive has changed. Raises RemoteStorageError; the earlier
        findings then stay.
        """
        results: dict[TopicIdPartition, tuple[PartitionView, list[Condition]]] = {}
        self._reads_left = FINISHED_OFFSETS_READ_MAX
        async for tp in cooperative(tps, _PARTITIONS_AT_ONCE):
            view, before = self.rlmm.view(tp), self._results.get(tp)
            if view is None:
                continue
            if before is not None and is_same_archive(view, before[0]):
                results[tp] = before
            elif (
                has_holes(tp)
                or view.history != FIRST_HISTORY
                or self.rlmm.problems(tp)
                or await self._may_end_early(tp, view)
            ):
                results[tp] = view, await partition_health(self.records, self.rlmm, tp)
        self._results = results
        self._note({condition for _, conditions in results.values() for condition in conditions})
        if len(self._checked_ends) > len(tps):
            known_tps = set(tps)
            self._checked_ends = {t: end for t, end in self._checked_ends.items() if t in known_tps}

    def _note(self, conditions_found: set[Condition]) -> None:
        """Logs missing offsets only. The code that copied or read has logged the other kinds."""
        to_log = Kind.ARCHIVED_OFFSETS_MISSING
        for gone_condition in set(self.conditions()) - conditions_found:
            end = self._health.clear if gone_condition.kind == to_log else self._health.forget
            end(gone_condition.kind, gone_condition)
        for condition in conditions_found:
            begin = self._health.report if condition.kind == to_log else self._health.hold
            begin(condition, condition)

    async def _may_end_early(self, tp: TopicIdPartition, view: PartitionView) -> bool:
        end, checked_end = view.log_end_offset or 0, self._checked_ends.get(tp)
        if checked_end is not None and end >= checked_end:
            self._checked_ends[tp] = end
            return False
        if self._reads_left == 0:
            return False
        self._reads_left -= 1
        try:
            finished_offsets = await read_finished_offsets(self.records, tp)
        except CorruptSegment:
            finished_offsets = None  # `verify` says it
        if finished_offsets is not None and finished_offsets.end_offset >= end:
            self._checked_ends.pop(tp, None)
            return True
        self._checked_ends[tp] = end
        return False


def is_same_archive(view: PartitionView, before: PartitionView) -> bool:
    """True if the archive is the same, although it may have been read again."""
    return view.segments is before.segments and replace(view, read_at=before.read_at) == before
