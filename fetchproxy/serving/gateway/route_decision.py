"""A broker said OffsetOutOfRange. Is the offset in the archive, gone for good, or on its way?

A client that gets OffsetOutOfRange skips data for good, so the error is passed on only with fresh
knowledge: the log's ends, the archivers' positions, and the view of the archive, each read *after*
the broker answered and in this order. `decide` is the rule, pure; `RouteDecider` gets the
knowledge, for all partitions of a fetch at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.fetch import PartitionKey, TopicRef

from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.errors import ClusterError, FetchProxyError, RemoteStorageError
from fetchproxy.metadata.archiver_positions import NOT_KNOWN
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import READS_AT_ONCE_MAX
from fetchproxy.model import LogOffsets, RemoteLogSegmentState, TopicIdPartition
from fetchproxy.observability.metrics import CATCH_OUTCOMES
from fetchproxy.runtime.cooperative import checkpoint, cooperative, for_each, pieces
from fetchproxy.serving.gateway.served_archive import ServedArchive, topic_key

# How long a re-created topic may still show its predecessor's records.
IDENTITY_AGE_MAX_MS = 1_000
UNKNOWN_TOPIC = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

# How long a decision waits for a new leader's word about the archive.
COMPARE_WAIT_MAX_S = 2.0
# Maximum age of archivers' positions if the topic has no archive: a group with stale offsets on a
# topic that is not archived asks the store no more often than this.
POSITIONS_AGE_MAX_S = 1.0
_Tps = Mapping[PartitionKey, TopicIdPartition]


class Route(Enum):
    """What the client gets for an offset that the broker calls out of range. The values are the
    labels of a metric.
    """

    REMOTE = "remote"  # the archive has it, or the records after its recorded gap
    LOCAL = "local"  # the broker has it (again): ask it
    RELAY_ERROR = "passed_on"  # above the end, below both tiers, never archived: the client's error
    WAIT = "held_stale"  # not known, or an archiver is accumulating it: no data and no error
    LOST = "lost"  # neither tier has it or will: the broker goes on at `RouteDecision.forward_to`
    END = "at_end"  # as LOST, and the broker is empty there: the reader is at the log's end
    REFUSED = "refused"  # LOST or END, for readers that prefer to stop (`gateway.gap_policy`)


# The reader waits for the archiver, or for records.
WAITING_ROUTES = (Route.WAIT, Route.END)


class Wait(Enum):
    """What a reader that is held waits for. A reader waits for nothing else."""

    RESPONSE = "the brokers and the store to respond"
    ACCUMULATED = "an archiver to copy the records that it accumulates"
    POSITION = "an archiver to find out where to continue"
    COPY = "a copy that no archiver claims"
    LEADER = "the leader to confirm what the archive has"
    LOG_RETURNS = "a log that has started over to reach the end of the archive"
    RECORDS = "new records"


# What ends each wait before the named limit; None: no limit, because the wait is not for archived
# records, or an outage must not cost a reader its place.
ENDS: Mapping[Wait, tuple[str, str | None]] = {
    Wait.RESPONSE: ("they answer", None),
    Wait.ACCUMULATED: (
        "the offset is archived, or the archiver passes it, fails for good or is silent",
        "held_max_ms",
    ),
    Wait.POSITION: ("the archiver knows its position, or fails for good", "SILENT_MAX_S"),
    Wait.COPY: ("the copy is finished or removed, or an archiver claims it", "SILENT_MAX_S"),
    Wait.LEADER: ("leader or archiver has compared both logs", "held_max_ms"),
    Wait.LOG_RETURNS: ("the log reaches the offset", "held_max_ms"),
    Wait.RECORDS: ("a record is produced", None),
}
# These may last for ever although no archiver will ever bring the records.
UNCERTAIN_WAITS = frozenset(wait for wait, (_, limit) in ENDS.items() if limit == "SILENT_MAX_S")


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """What the client gets for one partition at one offset, and why. `forward_to`: the broker's log
    start, for LOST. `waits_for`: for WAITING_ROUTES.
    """

    outcome: Route
    tp: TopicIdPartition | None = None
    forward_to: int = -1
    waits_for: Wait | None = None


def _wait_route(tp: TopicIdPartition | None, waits_for: Wait) -> RouteDecision:
    outcome = Route.END if waits_for is Wait.RECORDS else Route.WAIT
    return RouteDecision(outcome, tp, waits_for=waits_for)


def decide(
    offset: int,
    view: PartitionView,
    log_offsets: LogOffsets,
    archiver_position: int | None,
    *,
    may_wait: bool = True,
) -> Route:
    """The route for an offset that was out of the broker's range.

    `archiver_position`: an archiver accumulates the partition from there on; None: no archiver
    does.
    `may_wait`: wait for records on their way.
    """
    if view.covers_offset(offset):
        return Route.REMOTE
    if offset > log_offsets.high_watermark:
        # At the end of an archive whose log has begun again: the log may get there.
        at_end = offset == view.log_end_offset
        return Route.WAIT if at_end and may_wait else Route.RELAY_ERROR
    if offset >= log_offsets.log_start_offset:
        return Route.LOCAL
    if offset < view.raised_log_start:
        return Route.RELAY_ERROR  # deleted on purpose
    start = view.log_start_offset
    if start is not None and offset < start:
        return Route.RELAY_ERROR
    # Between the archive's end and the broker's log start: on its way, or lost.
    if may_wait and _is_more_coming(offset, view, log_offsets, archiver_position):
        return Route.WAIT
    if start is None:
        return Route.RELAY_ERROR  # never archived: the client begins at the log start
    return Route.END if log_offsets.log_start_offset == log_offsets.high_watermark else Route.LOST


def what_is_waited_for(offset: int, log_offsets: LogOffsets, archiver_position: int | None) -> Wait:
    """For an offset that `decide` holds."""
    if offset > log_offsets.high_watermark:
        return Wait.LOG_RETURNS
    if archiver_position == NOT_KNOWN:
        return Wait.POSITION
    if archiver_position is None or archiver_position >= log_offsets.log_start_offset:
        return Wait.COPY
    return Wait.ACCUMULATED


def _is_more_coming(
    offset: int, view: PartitionView, log_offsets: LogOffsets, archiver_position: int | None
) -> bool:
    """Whether an archiver has or copies records from `offset` on that the brokers no longer have.

    If nothing is archived yet, records from above `offset` on are not a reason to wait: a client
    that gets OffsetOutOfRange begins there.
    """
    started = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    if any(copy.end_offset >= offset for copy in view.unfinished if copy.state is started):
        return True
    if archiver_position is None or archiver_position >= log_offsets.log_start_offset:
        return False
    return archiver_position <= offset or view.log_start_offset is not None


@dataclass(slots=True)
class RouteDecider:
    """Decides the routes of partitions that a broker has called out of range. One look for all of
    `offsets`: brokers and store are not asked partition by partition.

    `refuses_lost`: a reader of lost offsets gets an error instead of going on after them.
    `caught_at` (loop time): knowledge must not be older. `waited_too_long`: held for too long.
    """

    archive: ServedArchive
    refuses_lost: bool
    by_id: bool
    offsets: Mapping[PartitionKey, int]
    caught_at: float
    waited_too_long: Collection[PartitionKey] = ()
    decisions: dict[PartitionKey, RouteDecision] = field(default_factory=dict)
    # Topics that may or may not be archived: the store has never answered.
    unlisted: set[UUID] = field(default_factory=set)

    async def run(self) -> dict[PartitionKey, RouteDecision]:
        """Raises nothing: if store or cluster does not answer, nothing is known (WAIT)."""
        tps = await self._identify()
        await self._decide_from_memory(tps)
        left = self._left(tps)
        archived = await self._archived(left) if left else {}
        unseen = {
            key: tp
            for key, tp in archived.items()
            if tp.topic_id not in self.unlisted and self.archive.rlmm.view(tp) is None
        }
        if unseen:
            await self._decide_from_memory(await self._refreshed(unseen, self.caught_at))
        left = self._left(archived)
        if left:
            await self._decide_from_fresh(left)
        for decision in self.decisions.values():
            CATCH_OUTCOMES.labels(decision.outcome.value).inc()
        return self.decisions

    def _left(self, tps: _Tps) -> dict[PartitionKey, TopicIdPartition]:
        return {key: tp for key, tp in tps.items() if key not in self.decisions}

    # --- which partitions these are ---
    async def _identify(self) -> _Tps:
        """Asks again: a name may mean a re-created topic, and any topic may have a new leader."""
        topics = await self._topics({ref for ref, _ in self.offsets})
        tps: dict[PartitionKey, TopicIdPartition] = {}
        async for key in cooperative(self.offsets):
            topic = topics[key[0]]
            if isinstance(topic, ClusterError):
                self.decisions[key] = self._unidentified(key[0], topic)
            else:
                tps[key] = TopicIdPartition(topic.topic_id, topic.name, key[1])
        return tps

    async def _topics(
        self, refs: Collection[TopicRef]
    ) -> Mapping[TopicRef, TopicInfo | ClusterError]:
        cluster = self.archive.cluster
        keys = {ref: topic_key(self.by_id, ref) for ref in refs}
        try:
            max_age_ms = IDENTITY_AGE_MAX_MS if self.by_id else 0
            topics = await cluster.topics_of(set(keys.values()), max_age_ms)
        except ClusterError as error:
            # An id keeps its meaning, whichever broker leads its partitions.
            by_id = cluster.cached_topic_by_id
            return {
                ref: (by_id(key) if isinstance(key, UUID) else None) or error
                for ref, key in keys.items()
            }
        return {ref: topics[key] for ref, key in keys.items()}

    def _unidentified(self, ref: TopicRef, error: ClusterError) -> RouteDecision:
        if error.error_code in UNKNOWN_TOPIC:
            return RouteDecision(Route.LOCAL)  # asked again, the broker says so itself
        if error.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            name = str(topic_key(self.by_id, ref))
            self.archive.warnings.warn(
                "topic_not_described",
                name,
                topic=name,
                hint="give the proxy's user the right DESCRIBE on the topic",
            )
            return RouteDecision(Route.RELAY_ERROR)  # this user cannot archive it either
        self._warn(None, None, error)
        return _wait_route(None, Wait.RESPONSE)

    # --- the archive ---
    async def _decide_from_memory(self, tps: _Tps) -> None:
        """Archived data that is known needs no further proof and no broker."""
        views = self.archive.views
        for piece in pieces(tps.items()):
            archived = {key: tp for key, tp in piece if self.archive.rlmm.view(tp) is not None}
            checked = await views.check(
                archived.values(), self.archive.clock() + COMPARE_WAIT_MAX_S
            )
            for key, tp in archived.items():
                view = views.view(tp)
                if tp in checked:
                    self.decisions[key] = _wait_route(tp, Wait.RESPONSE)
                elif view is not None and view.covers_offset(self.offsets[key]):
                    self.decisions[key] = RouteDecision(Route.REMOTE, tp)
            await checkpoint(len(piece))

    async def _archived(self, tps: _Tps) -> _Tps:
        """Partitions of topics that have, or will soon have, an archive; decides on the others.

        Topics without an archive behave as without a proxy, even during an outage of the store.
        """
        archive, archived = self.archive, dict[PartitionKey, TopicIdPartition]()
        may_be: dict[UUID, bool] = {}
        await self._decide_outside_the_log(tps)
        tps = self._left(tps)
        for topic_id in {tp.topic_id for tp in tps.values()}:
            try:
                # Since the broker's response: its log may have been cut after the first copy.
                may_be[topic_id] = await archive.knowledge.may_be_archived(topic_id, self.caught_at)
            except RemoteStorageError:
                may_be[topic_id] = True
                self.unlisted.add(topic_id)
        if not all(may_be.values()):
            await archive.positions.refresh_unless_failing(POSITIONS_AGE_MAX_S)
        async for key, tp in cooperative(tps.items()):
            if may_be[tp.topic_id] or archive.positions.archiver_position(tp) is not None:
                archived[key] = tp
            else:
                self.decisions[key] = RouteDecision(Route.RELAY_ERROR, tp)
        return archived

    async def _decide_outside_the_log(self, tps: _Tps) -> None:
        """Decides on offsets that are not below a log that has no archive, as far as memory knows.
        Asks the brokers, and no store.
        """
        archive = self.archive
        try:
            listed = await archive.knowledge.archived_among({tp.topic_id for tp in tps.values()})
            unlisted = {
                key: tp
                for key, tp in tps.items()
                if tp.topic_id not in listed and archive.positions.archiver_position(tp) is None
            }
            log_offsets = await archive.cluster.fetch_log_offsets(
                list(unlisted.values()), not_older_than=self.caught_at
            )
        except (ClusterError, RemoteStorageError):
            return  # then the store is asked
        known = {key: tp for key, tp in unlisted.items() if isinstance(log_offsets[tp], LogOffsets)}
        await self._decide_by_log_offsets(known, log_offsets)

    async def _refreshed(self, tps: _Tps, not_older_than: float) -> _Tps:
        """The partitions whose views are up to date now; each topic is listed once."""
        of_topics: dict[UUID, dict[PartitionKey, TopicIdPartition]] = {}
        for key, tp in tps.items():
            of_topics.setdefault(tp.topic_id, {})[key] = tp
        fresh: dict[PartitionKey, TopicIdPartition] = {}

        async def refresh(topic_id: UUID, of_topic: _Tps) -> None:
            try:
                if len(of_topic) == 1:
                    await self.archive.views.refresh(next(iter(of_topic.values())), not_older_than)
                else:
                    await self.archive.rlmm.refresh_topic(topic_id, not_older_than)
            except RemoteStorageError as error:
                if error.may_be_of_object and len(of_topic) > 1:
                    # One partition's folder cannot be listed: each one is looked at alone.
                    for key, tp in of_topic.items():
                        await refresh(topic_id, {key: tp})
                    return
                for key, tp in of_topic.items():
                    self._note_unknown(key, tp, error)
            else:
                fresh.update(of_topic)

        await for_each(of_topics.items(), lambda item: refresh(*item), READS_AT_ONCE_MAX)
        return fresh

    # --- both tiers ---
    async def _decide_from_fresh(self, tps: _Tps) -> None:
        archive = self.archive
        try:
            log_offsets = await self.archive.cluster.fetch_log_offsets(
                list(tps.values()), not_older_than=self.caught_at
            )
            await self._decide_by_log_offsets(tps, log_offsets)
            await archive.positions.refresh(self.caught_at)
        except (ClusterError, RemoteStorageError) as error:
            async for key, tp in cooperative(self._left(tps).items()):
                self._note_unknown(key, tp, error)
            return
        between: dict[PartitionKey, TopicIdPartition] = {}
        async for key, tp in cooperative(self._left(tps).items()):
            # An archiver that has it in its spool has not copied it yet.
            archiver_position, offset = archive.positions.archiver_position(tp), self.offsets[key]
            known = log_offsets[tp]
            archiver_has_it = archiver_position is not None and archiver_position <= offset
            view = archive.rlmm.view(tp)
            # A log start never falls, but a person may declare a log another one's history.
            log_continues = not archive.views.begins_again(tp)
            if log_continues and view is not None and offset < view.raised_log_start:
                self.decisions[key] = RouteDecision(Route.RELAY_ERROR, tp)  # deleted on purpose
            elif (
                archiver_has_it
                and key not in self.waited_too_long
                and isinstance(known, LogOffsets)
            ):
                self.decisions[key] = _wait_route(
                    tp, what_is_waited_for(offset, known, archiver_position)
                )
            else:
                between[key] = tp
        # Not older than the archivers' positions: an offset below them is in the view, or is lost.
        fresh = await self._refreshed(between, archive.clock())
        for piece in pieces(fresh.items()):
            checked = await archive.views.check(
                dict(piece).values(), archive.clock() + COMPARE_WAIT_MAX_S
            )
            for key, tp in piece:
                known = log_offsets[tp]
                if tp in checked or isinstance(known, ClusterError):
                    self.decisions[key] = _wait_route(tp, Wait.RESPONSE)
                else:
                    self.decisions[key] = self._decide_from_all(key, tp, known)
            await checkpoint(len(piece))

    async def _decide_by_log_offsets(
        self, tps: _Tps, log_offsets: Mapping[TopicIdPartition, LogOffsets | ClusterError]
    ) -> None:
        """Decides on the partitions that need no look at the store."""
        async for key, tp in cooperative(tps.items()):
            known, offset = log_offsets[tp], self.offsets[key]
            if isinstance(known, ClusterError):
                self._note_unknown(key, tp, known)
            elif offset > known.high_watermark:
                view = self.archive.views.view(tp)
                if view is None or view.log_end_offset != offset:
                    self.decisions[key] = RouteDecision(Route.RELAY_ERROR, tp)
            elif offset >= known.log_start_offset:
                self.decisions[key] = RouteDecision(Route.LOCAL, tp)

    def _decide_from_all(
        self, key: PartitionKey, tp: TopicIdPartition, log_offsets: LogOffsets
    ) -> RouteDecision:
        archive = self.archive
        view = archive.views.view(tp) or build_view(tp, (), self.caught_at)
        archiver_position, offset = archive.positions.archiver_position(tp), self.offsets[key]
        may_wait = key not in self.waited_too_long
        outcome = decide(offset, view, log_offsets, archiver_position, may_wait=may_wait)
        forward_to = log_offsets.log_start_offset if outcome is Route.LOST else -1
        if outcome is Route.WAIT:
            return _wait_route(tp, what_is_waited_for(offset, log_offsets, archiver_position))
        if outcome in (Route.LOST, Route.END):
            stored = archive.rlmm.view(tp)
            hidden = stored is not None and stored.covers_offset(self.offsets[key])
            if hidden and key not in self.waited_too_long:
                # Hidden since an election: leader or archiver will settle it (`LeaderViews`).
                return _wait_route(tp, Wait.LEADER)
            if self.refuses_lost:
                outcome = Route.REFUSED
        if outcome is Route.END:
            return _wait_route(tp, Wait.RECORDS)
        return RouteDecision(outcome, tp, forward_to)

    def _note_unknown(
        self, key: PartitionKey, tp: TopicIdPartition, error: FetchProxyError
    ) -> None:
        self._warn(tp, self.offsets[key], error)
        self.decisions[key] = _wait_route(tp, Wait.RESPONSE)

    def _warn(
        self, tp: TopicIdPartition | None, offset: int | None, error: FetchProxyError
    ) -> None:
        self.archive.warnings.warn(
            "judgement_without_fresh_knowledge",
            tp,
            topic=tp.topic if tp else None,
            partition=tp.partition if tp else None,
            offset=offset,
            error=str(error),
        )
