"""Accumulates the console's Status from the parts of the process, all in lower layers.

`run()` asks archive and brokers at an interval; their own caches keep the responses. A status reads
only these caches, so it is never older than what the process itself acts on. This module decides
and repairs nothing. If store or brokers are out of reach, it shows the last known figures. It also
updates the gauges of the archived ranges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from fetchproxy import __version__
from fetchproxy.archive import wall_clock_ms
from fetchproxy.brokers.broker_watch import BrokersStatus
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import Config
from fetchproxy.config.values import mask_text
from fetchproxy.console import status as counters
from fetchproxy.console.headline import (
    LeastTimesLeft,
    Moment,
    Outlook,
    Problem,
    archiving_stopped_elsewhere,
    outlook,
    problems,
)
from fetchproxy.console.history import SAMPLE_INTERVAL_MS, History, ProcessFigures
from fetchproxy.console.status import (
    ONLY_TOTALS,
    ArchiverStatus,
    OperationRow,
    PartitionQuery,
    PartitionRows,
    PartitionsHealth,
    PartitionStatus,
    Status,
    StoreStatus,
    is_same_archive,
    largest_clients,
    partition_status,
    with_work,
)
from fetchproxy.console.time_left import TimeLeft
from fetchproxy.console.timeline import FEW_ANCHORS, TimelineSpan, timeline
from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.metadata.archiver_positions import RecoveryPoint
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import (
    PARTITIONS_ALONE_MAX,
    RemoteLogMetadataManager,
)
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.observability import metrics
from fetchproxy.observability.health import (
    Condition,
    Health,
    Kind,
    Level,
    counts,
    headlines,
    missing,
    worst_first,
)
from fetchproxy.observability.logs import RECENT_EVENTS, RecentEvents
from fetchproxy.runtime.cooperative import a_turn, cooperative, forget
from fetchproxy.serving.client_groups import GroupsOfClients
from fetchproxy.serving.consumer_pacing import ClientStatus, ConsumerPaces
from fetchproxy.storage.archive_objects import ConditionsObject
from fetchproxy.storage.listings import Unlisted
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.discovery import matching_topics, partitions_of
from fetchproxy.writing.leadership import LeadershipState
from fetchproxy.writing.published_conditions import (
    PublishedConditions,
    read_published_conditions,
)
from fetchproxy.writing.status import PartitionArchiveStatus

# Making a line takes about 50 µs.
LINES_AT_ONCE = 20
# An outage may cause a condition for each of very many partitions. Sorting these takes long.
CONDITIONS_ON_THE_LOOP_MAX = 50

ALL_PARTITIONS = PartitionQuery()

_Archiver = tuple[LeadershipState, tuple[int, int], Mapping[str, str]]
_GAUGES = (
    metrics.ARCHIVE_START_OFFSET,
    metrics.ARCHIVE_END_OFFSET,
    metrics.ARCHIVE_LAG_OFFSETS,
    metrics.ARCHIVE_MARGIN_OFFSETS,
)


@dataclass(frozen=True, slots=True)
class StatusSources:
    """Facts that only the whole process knows. Each status calls these, so none may block.

    `health`: all conditions except those from the archive, which the collector adds. `work`: what
    this process's archiver does with a partition; None: the archiver does not have it. `archiver`:
    its leadership, how many partitions it leads and follows, and the topics that it refuses, with
    the reason; None: the process has no archiver. `published_conditions`: what the archiver has
    found. `recovery_point`: what would be lost with brokers and archivers now; None: no archiver
    with a journal is known.
    `consumer_paces`: the rates of the clients, `groups`: which groups they name; None: the process
    serves no clients. `clock_ms`: epoch time, for people.
    """

    mode: str
    health: Health
    listeners: Callable[[], Iterable[str]] = tuple
    brokers: Callable[[], BrokersStatus] = BrokersStatus
    work: Callable[[TopicIdPartition], PartitionArchiveStatus | None] = lambda tp: None
    archiver: Callable[[], _Archiver | None] = lambda: None
    published_conditions: Callable[[], PublishedConditions | None] = lambda: None
    recovery_point: Callable[[], RecoveryPoint | None] = lambda: None
    consumer_paces: Callable[[], ConsumerPaces | None] = lambda: None
    groups: Callable[[], GroupsOfClients | None] = lambda: None
    clock_ms: Callable[[], int] = wall_clock_ms


@dataclass(frozen=True, slots=True)
class _Row:
    """A partition's line and its sources. The line is made again when these change."""

    view: PartitionView | None
    log_offsets: LogOffsets | None
    status: PartitionStatus

    def is_of(self, view: PartitionView | None, log_offsets: LogOffsets | None) -> bool:
        """True also if the view was read again and has not changed."""
        same = view is self.view or (
            view is not None and self.view is not None and is_same_archive(view, self.view)
        )
        return same and log_offsets == self.log_offsets


class _Findings(NamedTuple):
    """All conditions, the worst first, and values derived from them."""

    conditions: tuple[Condition, ...]
    headlines: tuple[str, ...]
    missing: tuple[str, ...]
    counts: dict[str, int]
    problems: tuple[Problem, ...]
    moment: Moment


@dataclass(frozen=True, kw_only=True)
class ConsoleLimits:
    # Time between two reads of the brokers' offsets and of shown partitions: enough for people.
    refresh_interval_ms: int = 5_000
    # Time between two listings of the whole archive, for page and metrics: an S3 store charges for
    # them.
    archive_refresh_interval_ms: int = 30_000
    # Time between two samples of the history.
    sample_interval_ms: int = SAMPLE_INTERVAL_MS


@dataclass(eq=False, repr=False)
class StatusCollector:
    """A StatusSource. `cluster` None: there is no broker to ask.

    The status is only up to date while `run()` runs.
    """

    config: Config
    storage: RemoteStorage
    rlmm: RemoteLogMetadataManager
    cluster: Cluster | None
    sources: StatusSources
    events: RecentEvents = RECENT_EVENTS
    limits: ConsoleLimits = ConsoleLimits()

    def __post_init__(self) -> None:
        self._started_at = asyncio.get_running_loop().time()
        self.history = History(self.sources.clock_ms)
        self._time_left = TimeLeft()
        self._topic_names: dict[bytes, str] = {}  # by id, of the known partitions
        self._tps: list[TopicIdPartition] = []
        self._archived: tuple[TopicIdPartition, ...] = ()
        self._archive_read_at = float("-inf")
        self._probed: TopicIdPartition | None = None  # has the fewest segments: listed fastest
        self._rows: dict[TopicIdPartition, _Row] = {}
        self._stored: Mapping[ConditionsObject, Condition] = {}
        self._objects, self._store_health = self.storage.objects, self.storage.health
        self._partitions = PartitionsHealth(self._objects, self.rlmm)
        self._archive_up: bool | None = None
        self._health = self.sources.health
        self._health.watch(self._archive_conditions)

    async def __call__(self, query: PartitionQuery = ALL_PARTITIONS) -> Status:
        now = asyncio.get_running_loop().time()
        knowledge = await self._knowledge(now)
        table = PartitionRows(query, knowledge.conditions)
        await a_turn()
        clients: tuple[ClientStatus, ...] = ()
        clients_total = 0
        if query.counts_all:
            await self._fill(table)
            clients, clients_total = await self._clients()
        conditions = table.conditions_in_view(knowledge.conditions)
        await a_turn()
        totals = table.totals()
        await a_turn()
        return Status(
            version=__version__,
            mode=self.sources.mode,
            bootstrap="" if self.cluster is None else self.config.cluster.bootstrap,
            uptime_seconds=round(now - self._started_at, 1),
            missing=knowledge.missing,
            listeners=tuple(self.sources.listeners()),
            store=self._store_status(),
            relay=counters.relay(self.config.gateway.connections_max),
            remote_reads=counters.remote_reads(),
            cache=counters.cache(self.config.remote_fetch.chunk_cache_bytes_max),
            partitions=table.rows(),
            topics=table.topics(),
            totals=totals,
            partitions_total=table.total,
            partitions_matching=table.matching,
            events=tuple(self.events.newest_first()),
            archiver=self._archiver(),
            recovery_point=self.sources.recovery_point(),
            headlines=knowledge.headlines,
            problems=knowledge.problems,
            outlook=await self._outlook(knowledge, table.least_times),
            brokers=self.sources.brokers(),
            conditions=tuple(
                [
                    condition.as_json_at(now)
                    async for condition in cooperative(conditions, LINES_AT_ONCE)
                ]
            ),
            condition_counts=knowledge.counts,
            clients=clients,
            clients_total=clients_total,
            shows_records=self.config.console.show_records,
        )

    # -- for the rows of the API -------------------------------------------------------------------
    @property
    def tps(self) -> Sequence[TopicIdPartition]:
        """All known partitions, by name and number. An update replaces the list."""
        return self._tps

    def line(self, tp: TopicIdPartition) -> PartitionStatus:
        line, work = self._partition_line(tp), self.sources.work(tp)
        if work is not None or not line.lag_offsets:
            return with_work(line, work, asyncio.get_running_loop().time())
        log_offsets = None if self.cluster is None else self.cluster.cached_log_offsets(tp)
        clock_ms = self.sources.clock_ms()
        left_s = self._time_left.seconds(tp.topic, self.rlmm.view(tp), clock_ms, log_offsets)
        return line if left_s is None else replace(line, deleted_in_seconds=left_s)

    def spans(self, tp: TopicIdPartition, *, coarse: bool = False) -> tuple[TimelineSpan, ...]:
        """`coarse`: for one of very many partitions."""
        log_offsets = None if self.cluster is None else self.cluster.cached_log_offsets(tp)
        anchors = {"anchors_max": FEW_ANCHORS} if coarse else {}
        return timeline(self.rlmm.view(tp), log_offsets, self.sources.clock_ms(), **anchors)

    async def conditions(self) -> tuple[Condition, ...]:
        """All conditions, the worst first."""
        return (await self._knowledge(asyncio.get_running_loop().time())).conditions

    async def run(self) -> None:
        """Updates and takes samples at intervals, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._update_forever())
            tasks.create_task(self._sample_forever())

    async def _update_forever(self) -> None:
        while True:
            await self.update()
            await asyncio.sleep(self.limits.refresh_interval_ms / 1000)

    async def _sample_forever(self) -> None:
        """Beside the updates, which wait for a store that does not answer."""
        while True:
            await self.sample()
            await asyncio.sleep(self.limits.sample_interval_ms / 1000)

    async def sample(self) -> None:
        """Adds the figures of now to the history."""
        status = await self(ONLY_TOTALS)
        accounts = self.storage.accounts
        history_bytes = accounts.others.served_bytes + accounts.this_process.served_bytes
        async for account in cooperative(accounts.clients()):
            history_bytes += account.served_bytes
        has_partitions = bool(self._tps)
        reads, totals = status.remote_reads, status.totals
        figures = ProcessFigures(
            lag_offsets=totals.lag_offsets if has_partitions else None,
            lost_offsets=totals.lost_offsets if has_partitions else None,
            archive_bytes=totals.size_bytes if has_partitions else None,
            connections=status.relay["connections"],
            waiting_fetches=reads["waiting"],
            errors=sum(
                problem.count for problem in status.problems if problem.level == Level.ERROR
            ),
            archived_bytes=counters.total(metrics.REMOTE_COPY_BYTES),
            tail_bytes=status.relay["to_client_bytes"],
            written_bytes=status.relay["to_broker_bytes"],
            history_bytes=history_bytes,
            store_bytes=reads["read_bytes"],
            store_retries=reads["backoffs"],
            throttle_seconds=counters.total(metrics.CLIENT_THROTTLE_SECONDS),
        )
        self.history.add(figures, asyncio.get_running_loop().time())

    async def update(self) -> None:
        """Updates the caches, as far as store and brokers answer."""
        # S3 charges for listing the whole archive, so this has a longer interval while the store is
        # up. In between, one small listing tells whether the store still answers.
        now = asyncio.get_running_loop().time()
        interval_s = self.limits.archive_refresh_interval_ms / 1000
        whole_archive = not self._archive_up or now >= self._archive_read_at + interval_s
        if whole_archive:
            await self._update_archive(now - interval_s)
            self._archive_read_at = now
        else:
            await self._probe_archive(now)
        shown_tps = await self._tps_to_show()
        # Hashing and sorting thousands would hold the event loop.
        tps = await asyncio.to_thread(_by_name_if_new, (*self._archived, *shown_tps), self._rows)
        if tps is not None:
            self._tps = tps
            log_ids = dict(self.cluster.continued.log_ids) if self.cluster is not None else {}
            self._topic_names = await asyncio.to_thread(_names_by_id, tps, log_ids)
            rows = {tp: self._rows[tp] for tp in self._tps if tp in self._rows}
            rows_before, self._rows = self._rows, rows
            await self._withdraw_gauges([tp for tp in rows_before if tp not in rows])
        if self.cluster is not None:
            log_offsets_s = self.limits.refresh_interval_ms / 1000
            await self.cluster.fetch_log_offsets(self._tps, not_older_than=now - log_offsets_s)
        lag_in: set[str] = set()
        async for tp in cooperative(self._tps, LINES_AT_ONCE):
            line = self._partition_line(tp)  # for the gauges, too
            if line.lag_offsets and self.sources.work(tp) is None:
                lag_in.add(tp.topic)
        if self.cluster is not None:
            archiving_stopped = archiving_stopped_elsewhere(await self.conditions())
            await self._time_left.update(self.cluster, lag_in if archiving_stopped else ())
        if whole_archive:
            await self._update_partitions()

    async def _update_archive(self, not_older_than: float) -> None:
        unlisted: Unlisted = {}
        try:
            listed_tps = await self.rlmm.list_partitions(unlisted)
            before = [tp for tp in self._archived if tp.topic in unlisted]
            self._archived = (*listed_tps, *before)
            self._stored = await read_published_conditions(self._objects, self._stored)
            in_order = await asyncio.to_thread(sorted, self._archived)
            for _, tps in groupby(in_order, lambda tp: tp.topic_id):
                await self._refresh(list(tps), not_older_than, unlisted)
            await self._choose_probed_partition()
        except RemoteStorageError as error:
            self._note_archive(error)
        else:
            self._note_archive(next(iter(unlisted.values()), None))

    async def _refresh(
        self, tps: Sequence[TopicIdPartition], not_older_than: float, unlisted: Unlisted
    ) -> None:
        """`tps`: of one topic. For many partitions, one listing is cheaper than one for each. A
        topic whose folder alone cannot be listed is put into `unlisted`, by name.
        """
        if len(tps) > PARTITIONS_ALONE_MAX:
            try:
                await self.rlmm.refresh_topic(tps[0].topic_id, not_older_than)
            except RemoteStorageError as error:
                if not error.may_be_of_object:
                    raise
        async for tp in cooperative(tps):
            try:
                await self.rlmm.refresh(tp, not_older_than)
            except RemoteStorageError as error:
                if not error.may_be_of_object:
                    raise
                unlisted[str(tp)] = error

    async def _update_partitions(self) -> None:
        try:
            await self._partitions.update(self._tps, self._has_holes)
        except RemoteStorageError as error:
            self._note_archive(error)

    def archived_partition(self, topic: str, partition: int) -> TopicIdPartition | None:
        """The partition of that name at the last update; of several topics that had
        the name, the one whose archive ends last.
        """
        matching = [tp for tp in self._tps if tp.partition == partition and tp.topic == topic]
        ends = {tp: view.log_end_offset or 0 for tp in matching if (view := self.rlmm.view(tp))}
        return max(matching, key=lambda tp: ends.get(tp, -1), default=None)

    def _has_holes(self, tp: TopicIdPartition) -> bool:
        """Whether the partition's line on the page shows gaps."""
        return tp in self._rows and bool(self._rows[tp].status.gaps)

    def _archive_conditions(self, now: float) -> Iterator[Condition]:
        published = self.sources.published_conditions() or PublishedConditions()
        yield from published.merged(self._stored, now)
        yield from self._partitions.conditions()

    async def _knowledge(self, now: float) -> _Findings:
        conditions = list(self._health.all(now))
        moment, tail = Moment(now, self.sources.clock_ms()), self.cluster is not None
        if len(conditions) <= CONDITIONS_ON_THE_LOOP_MAX:
            return _in_words(conditions, moment, tail)
        return await asyncio.to_thread(_in_words, conditions, moment, tail)

    async def _outlook(self, knowledge: _Findings, least_times: LeastTimesLeft) -> Outlook:
        archives = self.sources.archiver() is not None
        evaluate = partial(
            outlook, knowledge.conditions, least_times, knowledge.moment, archives=archives
        )
        if len(knowledge.conditions) <= CONDITIONS_ON_THE_LOOP_MAX:
            return evaluate()
        return await asyncio.to_thread(evaluate)

    async def _probe_archive(self, now: float) -> None:
        try:
            if self._probed is not None:
                await self.rlmm.refresh(self._probed, now)
            else:
                self._archived = tuple(await self.rlmm.list_partitions())
        except RemoteStorageError as error:
            self._note_archive(error)

    async def _choose_probed_partition(self) -> None:
        self._probed, least = None, float("inf")
        async for tp in cooperative(self._archived):
            if (count := self._segment_count(tp)) < least:
                self._probed, least = tp, count

    def _segment_count(self, tp: TopicIdPartition) -> int:
        view = self.rlmm.view(tp)
        return 0 if view is None else len(view.segments)

    async def _tps_to_show(self) -> Iterable[TopicIdPartition]:
        """Partitions of the topics to be archived, also if nothing of them is archived yet."""
        if self.config.archive.topics is None or self.cluster is None:
            return []
        try:
            topics = await self.cluster.topics()
        except ClusterError:
            return self._tps
        archive, metadata_topic = self.config.archive, self.config.metadata.topic_name
        return partitions_of(matching_topics(archive, topics, metadata_topic))

    def _note_archive(self, error: RemoteStorageError | None) -> None:
        """Reports the error, unless the store itself fails, which has a condition of its own."""
        self._archive_up = error is None
        now = asyncio.get_running_loop().time()
        store_fails = any(
            operation.up is False for operation in self._store_health.status(now).values()
        )
        if error is None or store_fails:
            self._health.clear(Kind.ARCHIVE_LISTING_FAILING)
        else:
            message = f"The archive cannot be listed: {type(error).__name__}: {error}"
            self._health.report(Condition(Kind.ARCHIVE_LISTING_FAILING, message))

    def _store_status(self) -> StoreStatus:
        """`up` is False also if the archive is missing or another cluster's."""
        now = asyncio.get_running_loop().time()
        operations = {
            operation.value: OperationRow(
                status.up, round(status.failing_for_s, 1), _masked(status.last_error)
            )
            for operation, status in self._store_health.status(now).items()
        }
        failing = [status for status in operations.values() if status.up is False]
        listing = self._health.reported(Kind.ARCHIVE_LISTING_FAILING)
        if not failing and listing is not None:
            for_s = round(now - (listing.since or now), 1)
            failing = [OperationRow(False, for_s, mask_text(listing.what))]
        url = mask_text(self.config.store.url or "")
        if failing:
            worst = max(failing, key=lambda status: status.failing_seconds)
            seconds, error = worst.failing_seconds, worst.last_error
            return StoreStatus(url, False, seconds, error, operations)
        has_responded = self._archive_up or any(status.up for status in operations.values())
        return StoreStatus(url, True if has_responded else None, operations=operations)

    async def _fill(self, table: PartitionRows) -> None:
        async for tp in cooperative(self._tps, LINES_AT_ONCE):
            table.add(self.line(tp))

    async def _clients(self) -> tuple[tuple[ClientStatus, ...], int]:
        """The clients that are shown, and the number of all clients."""
        consumer_paces = self.sources.consumer_paces()
        if consumer_paces is None:
            return (), 0
        consumers = consumer_paces.consumers()
        rows = await largest_clients(consumers, consumer_paces.clock(), self._topic_names)
        return rows, len(consumers)

    def _archiver(self) -> ArchiverStatus | None:
        archiver = self.sources.archiver()
        if archiver is None:
            return None
        leadership, leads_and_follows, refused_topics = archiver
        return ArchiverStatus(
            leadership.kind,
            leadership.state,
            *leads_and_follows,
            leadership.members,
            _masked(leadership.error),
            {topic: mask_text(reason) for topic, reason in refused_topics.items()},
        )

    def _partition_line(self, tp: TopicIdPartition) -> PartitionStatus:
        view = self.rlmm.view(tp)
        log_offsets = None if self.cluster is None else self.cluster.cached_log_offsets(tp)
        line = self._rows.get(tp)
        if line is None or not line.is_of(view, log_offsets):
            line = self._rows[tp] = _Row(view, log_offsets, partition_status(tp, view, log_offsets))
            if self.sources.work(tp) is None:
                _set_gauges(line.status)
        return line.status

    async def _withdraw_gauges(self, gone_tps: Sequence[TopicIdPartition]) -> None:
        """A partition that was made again under the name of one that is gone sets its own anew."""
        places = {(tp.topic, tp.partition) for tp in gone_tps}
        async for tp in cooperative(gone_tps):
            if self.sources.work(tp) is None:
                for gauge in _GAUGES:
                    gauge.remove(tp.topic, tp.partition)
        if places:
            await forget(self._rows, lambda tp: (tp.topic, tp.partition) in places)


def _names_by_id(tps: Iterable[TopicIdPartition], log_ids: Mapping[UUID, UUID]) -> dict[bytes, str]:
    """`log_ids`: see `ContinuedTopics`. Clients name such a topic by the id that brokers know."""
    names = {tp.topic_id.bytes: tp.topic for tp in tps}
    others = {one.bytes: names.get(log_id.bytes) for one, log_id in log_ids.items()}
    return names | {raw_id: name for raw_id, name in others.items() if name is not None}


def _by_name(tp: TopicIdPartition) -> tuple[str, int, int]:
    return tp.topic, tp.partition, tp.topic_id.int


def _by_name_if_new(
    tps: Iterable[TopicIdPartition], known_rows: Mapping[TopicIdPartition, object]
) -> list[TopicIdPartition] | None:
    """`tps` in the order of their names, because people look for names.

    None: they equal `known_rows`.

    For a thread. While this runs, the event loop does not change `known_rows`.
    """
    known_tps = set(tps)
    return None if known_tps == known_rows.keys() else sorted(known_tps, key=_by_name)


def _in_words(conditions: Iterable[Condition], moment: Moment, tail: bool) -> _Findings:
    """All conditions, with secrets in URLs masked."""
    masked = worst_first(
        replace(condition, what=mask_text(condition.what)) for condition in conditions
    )
    in_words = problems(masked, moment, tail=tail)
    return _Findings(
        masked, headlines(masked), missing(masked), dict(counts(masked)), in_words, moment
    )


def _masked(text: str | None) -> str | None:
    return None if text is None else mask_text(text)


def _set_gauges(status: PartitionStatus) -> None:
    labels = (status.topic, str(status.partition))
    if status.archived:
        metrics.ARCHIVE_START_OFFSET.labels(*labels).set(status.archived[0].first)
        metrics.ARCHIVE_END_OFFSET.labels(*labels).set(status.archived[-1].last + 1)
    if status.lag_offsets is not None:
        metrics.ARCHIVE_LAG_OFFSETS.labels(*labels).set(status.lag_offsets)
    if status.margin_offsets is not None:
        metrics.ARCHIVE_MARGIN_OFFSETS.labels(*labels).set(status.margin_offsets)
