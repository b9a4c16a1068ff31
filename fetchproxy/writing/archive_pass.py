"""One pass over partitions: archives what is there now, then ends and says what it could not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

import structlog
from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.brokers.open_transactions import (
    ended_by,
    oldest_open_transaction,
    pinned_in_words,
)
from fetchproxy.errors import (
    ClusterError,
    CorruptSegment,
    FetchProxyError,
    LogDamaged,
    LogTruncated,
    RemoteStorageError,
)
from fetchproxy.metadata.remote_log_metadata_manager import PARTITIONS_ALONE_MAX
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.observability.health import Kind, Offsets
from fetchproxy.runtime.cooperative import cooperative, for_each, pieces
from fetchproxy.runtime.retrying import Backoff
from fetchproxy.writing.compacted_log import CompactedLog
from fetchproxy.writing.compaction import is_compacted
from fetchproxy.writing.discovery import partitions_of
from fetchproxy.writing.partition_archiver import PartitionArchiver, may_pass
from fetchproxy.writing.published_positions import PublishedPositions
from fetchproxy.writing.remote_log_manager import ArchiverParts
from fetchproxy.writing.spool import Spool

log = structlog.get_logger(__name__)

# How often a pass tries a partition whose error may pass. The store's client and the cluster's have
# tried each request several times before.
PARTITION_TRIES_MAX = 3
PAUSES = Backoff(1_000, 30_000, 0.2)
# If so many partitions fail one after the other for such a reason, store or brokers are away: the
# others are not asked, because each would wait for its time-outs.
PARTITIONS_FAILED_IN_A_ROW_MAX = 20
# A partition with so few offsets to copy takes round trips, and hardly processor, disk or line. So
# one worker has several of them at once, and each takes its share of the worker's memory.
SHORT_OFFSETS_MAX = 1_000
SHORT_A_WORKER = 4
# Partitions whose log offsets are read together.
LOOKED_AT_ONCE = 500
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
_DENIED = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


@dataclass(frozen=True, slots=True)
class NotArchived:
    """Records that a pass has not archived. `offsets`: first and last, inclusive; None: not known.
    `failed`: False if nothing has gone wrong. `may_succeed_again`: the same pass may succeed later.
    """

    tp: TopicIdPartition
    offsets: Offsets | None
    cause: str
    remedy: str
    failed: bool = True
    may_succeed_again: bool = False

    def __str__(self) -> str:
        return f"{self.tp}: {self.what}"

    @property
    def what(self) -> str:
        """All but the partition's name."""
        range_words = "" if self.offsets is None else "offsets {} to {}: ".format(*self.offsets)
        return f"{range_words}{self.cause}; {self.remedy}"


class NotAllArchived(FetchProxyError):
    """A pass over one partition has not archived all; says what, why and what to do."""

    def __init__(self, not_archived: Iterable[NotArchived]) -> None:
        not_archived = tuple(not_archived)
        super().__init__("; ".join(one.what for one in not_archived))
        self.retriable = all(partition.may_succeed_again for partition in not_archived)


@dataclass(eq=False, repr=False, kw_only=True)
class ArchivePass(ArchiverParts):
    """Archives all that is there now, and ends. For cron, jobs and tests. It uses the same
    PartitionArchiver as a running archiver, so it resumes where any archiver stopped, even beside
    another archiver. What it begins to archive, a later pass expires. `topic_configs`: None for the
    brokers' response at `run`. `tries_max`: how often a partition is tried. `log_starts`: log start
    offsets from which on a loss counts, if nothing is archived yet. A log start that is not given
    is read at the partition's turn.
    """

    topic_configs: Mapping[UUID, Mapping[str, str] | None] | None = None
    tries_max: int = PARTITION_TRIES_MAX
    log_starts: Mapping[TopicIdPartition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A pass is too short to watch the clock.
        self.limits = replace(self.limits, retention_clock_settle_ms=0)
        super().__post_init__()
        self._at_work: dict[TopicIdPartition, PartitionArchiver] = {}
        self._bare: set[TopicIdPartition] = set()  # in the look at the start of `archive`
        self._rng = random.Random()

    def topic_config(self, topic_id: UUID) -> Mapping[str, str] | None:
        if self.topic_configs is not None:
            return self.topic_configs.get(topic_id)
        return super().topic_config(topic_id)

    async def run(self) -> tuple[list[TopicIdPartition], list[NotArchived]]:
        """Archive all matching partitions. Returns them, and what was not archived of them.
        `discovery` has the refused topics. Raises as `archive`, and ClusterError.
        """
        topics = await self.discovery.look()
        tps = partitions_of(topics)
        not_archived = await self.archive(tps)
        try:
            await self.recorder.record(topics)
        except (ClusterError, RemoteStorageError) as error:  # the next run describes them
            log.warning("topics_not_described", error=str(error))
        await self.cluster_state.write_once()
        await self._publish()
        return tps, not_archived

    async def archive(self, tps: Iterable[TopicIdPartition]) -> list[NotArchived]:
        """Copy up to the current last stable offset; the last segment may be short. Returns what
        was not archived, by partition. No partition's failure ends the others; those whose failure
        may pass are tried again.

        Raises OSError if the spool folder cannot be created, and bugs, in a group, at the end.
        """
        published = PublishedPositions(
            self._objects, self.uuid_factory(), lambda: self._at_work, self._archiver_position
        )
        async with self.opened_spool() as spool, asyncio.TaskGroup() as workers:
            telling = workers.create_task(published.run(), name="archive positions")
            tps = list(tps)
            self._bare = await self._without_objects(tps)
            try:
                not_archived = await self._all(tps, spool)
            finally:
                telling.cancel()
            await self._publish()
        return sorted(
            not_archived, key=lambda partition: (partition.tp, partition.offsets or (-1, -1))
        )

    async def _without_objects(self, tps: list[TopicIdPartition]) -> set[TopicIdPartition]:
        """The partitions, of topics with many, that have no object in the store, by two requests
        for a thousand of them. None are, if the store does not say; then each is looked at alone.
        """
        by_topic: dict[UUID, set[TopicIdPartition]] = {}
        async for tp in cooperative(tps):
            by_topic.setdefault(tp.topic_id, set()).add(tp)
        bare: set[TopicIdPartition] = set()
        for topic_id, of_topic in by_topic.items():
            if len(of_topic) > PARTITIONS_ALONE_MAX:
                began_at = asyncio.get_running_loop().time()
                with suppress(RemoteStorageError):
                    bare_of_topic = of_topic.difference(await self._objects.list_topic(topic_id))
                    async for tp in cooperative(bare_of_topic):
                        self.rlmm.note_empty(tp, began_at)
                    bare |= bare_of_topic
        return bare

    async def _all(self, tps: list[TopicIdPartition], spool: Spool) -> list[NotArchived]:
        not_archived: list[NotArchived] = []
        for number in range(1, self.tries_max + 1):
            this = _Round()
            await self._try_each(tps, spool, this)
            if this.crashes:
                raise ExceptionGroup("partitions crashed", this.crashes)
            not_archived += [one for one in this.partitions if not one.may_succeed_again]
            failures = [one for one in this.partitions if one.may_succeed_again]
            tps = [partition.tp for partition in failures]
            if not failures or number == self.tries_max:
                return not_archived + failures
            pause_s = PAUSES.pause_ms(number, self._rng.random()) / 1000
            log.warning(
                "partitions_tried_again",
                partitions=len(tps),
                tries_left=self.tries_max - number,
                pause_s=round(pause_s, 1),
                error=str(failures[0]),
            )
            await asyncio.sleep(pause_s)
        return not_archived

    async def _try_each(self, tps: list[TopicIdPartition], spool: Spool, this: _Round) -> None:
        """Those with few records first, many at once: what they take are round trips. Not so many
        at first: store or brokers may be away.
        """
        at_once, longer = self.config.workers_max, list[TopicIdPartition]()
        first, others = tps[:PARTITIONS_FAILED_IN_A_ROW_MAX], tps[PARTITIONS_FAILED_IN_A_ROW_MAX:]
        for piece in (first, *pieces(others, LOOKED_AT_ONCE)):
            short = await self._short(piece) if this.away is None else {}
            await for_each(short, partial(self._try, spool, this, short), at_once)
            at_once = SHORT_A_WORKER * self.config.workers_max
            longer += [tp for tp in piece if tp not in short]
        await for_each(longer, partial(self._try, spool, this, {}), self.config.workers_max)

    async def _short(self, tps: list[TopicIdPartition]) -> dict[TopicIdPartition, LogOffsets]:
        """Those with few offsets, and their log offsets, by three requests to each leader."""
        began_at = asyncio.get_running_loop().time()
        log_offsets = await self.cluster.fetch_log_offsets(tps, not_older_than=began_at)
        return {
            tp: one
            for tp, one in log_offsets.items()
            if not isinstance(one, ClusterError)
            and one.last_stable_offset - one.log_start_offset <= SHORT_OFFSETS_MAX
            and not self._is_compacted(tp)
        }

    async def _try(
        self,
        spool: Spool,
        this: _Round,
        short: Mapping[TopicIdPartition, LogOffsets],
        tp: TopicIdPartition,
    ) -> None:
        if this.away is not None:
            cause = f"not tried, because others failed before: {this.away.cause}"
            this.partitions.append(replace(this.away, tp=tp, offsets=None, cause=cause))
            return
        lost: list[Offsets] = []
        not_archived: list[NotArchived] = []
        try:
            not_archived = await self._archive(tp, spool, lost, short.get(tp))
        except (FetchProxyError, OSError) as error:
            not_archived = [self._failure(tp, error)]
        except Exception as error:  # one partition's defect must not end the others
            log.exception("partition_process_crashed", **tp.logged)
            this.crashes.append(error)
        this.note([*(_lost(tp, offsets) for offsets in lost), *not_archived])

    def _failure(self, tp: TopicIdPartition, error: FetchProxyError | OSError) -> NotArchived:
        if isinstance(error, LogTruncated):
            self.published_conditions.hold(Kind.PARTITION_STOPPED, tp, str(error))
        elif isinstance(error, LogDamaged):
            self.published_conditions.hold(Kind.LOG_DAMAGED, tp, str(error))
        log_offsets, view = self.cluster.cached_log_offsets(tp), self.rlmm.view(tp)
        end = None if view is None else view.log_end_offset
        offsets = (
            None
            if log_offsets is None
            else _above(end, log_offsets, log_offsets.last_stable_offset)
        )
        # What a store denies, it denies a second later too.
        may_succeed_again = may_pass(error) and getattr(error, "retriable", True)
        return NotArchived(
            tp,
            offsets,
            str(error) or type(error).__name__,
            _remedy(error),
            may_succeed_again=may_succeed_again,
        )

    async def _publish(self) -> None:
        try:
            await self.published_conditions.publish()
        except RemoteStorageError as error:
            log.warning("concerns_not_published", error=str(error))

    def _archiver_position(self, tp: TopicIdPartition) -> int | None:
        archiver = self._at_work.get(tp)
        return None if archiver is None else archiver.position

    async def _archive(
        self,
        tp: TopicIdPartition,
        spool: Spool,
        lost: list[Offsets],
        short: LogOffsets | None,
    ) -> list[NotArchived]:
        """Archive up to the last stable offset of the beginning, or until no more is available;
        returns what an open transaction keeps from the archive. `lost` gets what was lost before it
        could be copied. `short`: the offsets of a log with few, which is archived beside many.

        Then delete what retention has passed. Segments hidden now lose their objects in a later
        pass.
        """
        log_offsets = short or await self.cluster.log_offsets(tp)
        log_start = self.log_starts.get(tp, log_offsets.log_start_offset)
        is_bare = tp in self._bare
        self._bare.discard(tp)
        archiver = self.archiver(
            tp, spool, on_lost=lost.append, log_start_offset=log_start, is_bare=is_bare
        )
        log_of_keys = self.compacted_log(tp, spool) if self._is_compacted(tp) else None
        if short is not None:
            archiver.accumulator.share = SHORT_A_WORKER
        self._at_work[tp] = archiver if log_of_keys is None else log_of_keys.growth
        try:
            end = await self._copy(log_of_keys or archiver, tp, log_offsets.last_stable_offset)
            if log_of_keys is not None and not log_of_keys.is_whole:
                return [_not_whole(tp)]
        finally:
            del self._at_work[tp]
            await (log_of_keys or archiver).release()
        self.published_conditions.release(Kind.PARTITION_STOPPED, tp)
        self.published_conditions.release(Kind.LOG_DAMAGED, tp)
        # Where nothing was before, the next pass is the first that may find something to delete.
        while not is_bare and await self.expirer.expire(tp):
            continue
        await self.local_retention.trim(tp)
        log.info(
            "partition_archived",
            **tp.logged,
            archive_end=end,
            last_stable_offset=log_offsets.last_stable_offset,
        )
        if log_offsets.high_watermark <= max(log_offsets.last_stable_offset, end or 0):
            return []
        return await self._pinned(tp, end)

    def _is_compacted(self, tp: TopicIdPartition) -> bool:
        return is_compacted(self.topic_config(tp.topic_id) or {})

    async def _copy(
        self, archiver: PartitionArchiver | CompactedLog, tp: TopicIdPartition, to: int
    ) -> int | None:
        """Up to the offset `to`, or until no more is available. Returns the archive's end."""
        at_work = self._at_work[tp]
        while await archiver.process(close_short=True):
            end = at_work.archive_end
            whole = not isinstance(archiver, CompactedLog) or archiver.is_whole
            if end is not None and end >= to and whole:
                break
        return at_work.archive_end

    async def _pinned(self, tp: TopicIdPartition, end: int | None) -> list[NotArchived]:
        """What is above the last stable offset still, or nothing."""
        log_offsets = await self.cluster.log_offsets(tp)
        offsets = _above(end, log_offsets, log_offsets.high_watermark)
        if offsets is None or log_offsets.last_stable_offset >= log_offsets.high_watermark:
            return []
        try:
            oldest = await oldest_open_transaction(self.cluster, tp)
        except ClusterError as error:
            log.info("producers_not_described", **tp.logged, error=str(error))
            oldest = None
        cause = pinned_in_words(log_offsets.last_stable_offset, oldest)
        return [NotArchived(tp, offsets, cause, ended_by(tp, oldest), failed=False)]


class _Round:
    """One try of several partitions. `away`: a failure, if store or brokers are away."""

    def __init__(self) -> None:
        self.partitions: list[NotArchived] = []
        self.crashes: list[Exception] = []
        self.away: NotArchived | None = None
        self._in_a_row = 0

    def note(self, not_archived: Iterable[NotArchived]) -> None:
        not_archived = list(not_archived)
        self.partitions += not_archived
        passing = next(
            (partition for partition in not_archived if partition.may_succeed_again), None
        )
        self._in_a_row = 0 if passing is None else self._in_a_row + 1
        if self._in_a_row >= PARTITIONS_FAILED_IN_A_ROW_MAX:
            self.away = passing


def _above(end: int | None, log_offsets: LogOffsets, to: int) -> Offsets | None:
    """The offsets above the archive's end and below `to`. None: there are none."""
    first = max(end or 0, log_offsets.log_start_offset)
    return (first, to - 1) if first < to else None


def _not_whole(tp: TopicIdPartition) -> NotArchived:
    return NotArchived(
        tp,
        None,
        "its compacted log was not copied in time, or another replica became its leader",
        "run this again",
        may_succeed_again=True,
    )


def _lost(tp: TopicIdPartition, offsets: Offsets) -> NotArchived:
    return NotArchived(
        tp,
        offsets,
        "the brokers deleted them before they could be copied",
        "they cannot be recovered: raise the brokers' retention, or archive more often",
    )


def _remedy(error: FetchProxyError | OSError) -> str:
    if isinstance(error, LogDamaged):
        return Kind.LOG_DAMAGED.meaning.remedy.replace("`", "")
    if isinstance(error, CorruptSegment):
        return "run fetchproxy verify"
    if isinstance(error, LogTruncated):
        return "run fetchproxy resolve"
    if isinstance(error, RemoteStorageError):
        return "repair the store or the network to it, then run this again"
    if isinstance(error, ClusterError) and error.error_code in _GONE:
        return "the topic was deleted; if it was recreated, run this again for the new one"
    if isinstance(error, ClusterError) and error.error_code in _DENIED:
        return "grant these rights to the user in cluster.sasl_username, then run this again"
    if isinstance(error, ClusterError):
        return "repair the cluster or the network to it, then run this again"
    if isinstance(error, OSError):
        return "free space on the disk of the spool folder, or replace the disk"
    return "read the error, then run this again"
