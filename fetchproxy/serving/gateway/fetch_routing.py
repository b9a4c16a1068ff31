"""Decides which tier serves each partition of a connection's fetches.

Four subjects, from shared to single: what all connections share (`SharedByFetches`), the routes of
one connection (`RouteTable`, pure), what its topics' names stand for (`TopicIdentities`), and the
decisions (`FetchRouter`). They are in one file, as a fetch of the archive passes all of them.

A `PartitionRoute` is of one partition whose offset the broker called out of range. A *permit* is an
OffsetOutOfRange of the broker on this connection: the broker checks authorization and leader epoch
before the range. So for a while (`permit_ttl_ms`) this client may read the topic's archive without
another question to the broker. A fetch with a leader epoch that was not checked goes to the broker:
only the broker can tell FENCED_LEADER_EPOCH from UNKNOWN_LEADER_EPOCH.

`TopicIdentities` finds out whether a topic's name still stands for the id whose archive the
connection reads. A topic that is deleted and created again keeps its name, and a broker says
nothing about partitions for which it was not asked. So before a connection reads the archive, it
looks at Metadata, unless it did so a short while ago.

`FetchRouter` decides the routes of partitions that the broker calls out of range. The decisions are
made in parallel with the client's fetches, which read the routes and wait only for `decided`. It
reads no records, but the purgatory warms what it found in the archive.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Generator,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
    Set,
)
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.fetch import (
    NO_LEADER_EPOCH,
    FetchEntry,
    PartitionKey,
    PartitionPatch,
    TopicRef,
    entry_bytes_max,
    fetch_offset,
    leader_epoch,
)

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import IsolationLevel, LogOffsets, TopicIdPartition
from fetchproxy.observability.logs import RECENT_EVENTS
from fetchproxy.observability.metrics import CATCHES
from fetchproxy.reading.segment_reader import PARTITIONS_READ_MAX, RemoteReadRequest
from fetchproxy.runtime.cooperative import checkpoint, chosen, cooperative, in_steps, pieces
from fetchproxy.serving.archived_reads import SkippedOffsets
from fetchproxy.serving.gateway.fetch_session import FetchSessionPair
from fetchproxy.serving.gateway.held_readers import HeldReaders
from fetchproxy.serving.gateway.route_decision import (
    IDENTITY_AGE_MAX_MS,
    UNKNOWN_TOPIC,
    WAITING_ROUTES,
    Route,
    RouteDecider,
    RouteDecision,
)
from fetchproxy.serving.gateway.served_archive import ArchivedTopics, ServedArchive

# Log offsets older than this are asked for again. They only serve lag figures and the change from
# the archive back to the broker.
LOG_OFFSETS_AGE_MAX_MS = 2_000
Spawn = Callable[[Coroutine[None, None, object], str], None]

# Partitions that are looked at in one step of the loop, some 10 µs each.
PARTITIONS_PER_STEP = 250


@dataclass(frozen=True, slots=True)
class SharedByFetches:
    """What the fetches of all connections share. One per process. `refuses_lost`: see
    `RouteDecider`.

    `topics`: the log starts of archived topics that clients read at the tail.
    `permit_ttl_s`: how long a broker's permission for a client to read a topic is valid.
    `new_session_id`: makes the id of a fetch session that only the proxy knows.
    """

    archive: ServedArchive
    refuses_lost: bool
    held_readers: HeldReaders
    skipped: SkippedOffsets
    topics: ArchivedTopics
    wait_max_s: float
    response_bytes_max: int
    permit_ttl_s: float
    new_session_id: Callable[[], int]

    async def decide_routes(
        self,
        by_id: bool,
        offsets: Mapping[PartitionKey, int],
        caught_at: float,
        waited_too_long: Collection[PartitionKey] = (),
    ) -> Mapping[PartitionKey, RouteDecision]:
        decider = RouteDecider(
            self.archive, self.refuses_lost, by_id, offsets, caught_at, waited_too_long
        )
        return await decider.run()

    def watermarks(
        self, tp: TopicIdPartition | None, view: PartitionView | None = None
    ) -> PartitionPatch:
        """The ends of the live log and the start of the archived one, as far as they are in memory.

        `view`: the archive as the response shows it; None: the current view.
        """
        if tp is None:
            return PartitionPatch()
        view = view or self.archive.views.view(tp)
        log_offsets = self.archive.cluster.cached_log_offsets(tp)
        start = view.log_start_offset if view is not None else None
        if log_offsets is None:
            return PartitionPatch(log_start_offset=-1 if start is None else start)
        # The archive may have grown since the log offsets were read.
        end = view.log_end_offset if view is not None else None
        high_watermark = max(log_offsets.high_watermark, end or 0)
        last_stable = max(log_offsets.last_stable_offset, end or 0)
        local_start = log_offsets.log_start_offset
        return PartitionPatch(
            high_watermark, last_stable, local_start if start is None else min(start, local_start)
        )


@dataclass(slots=True)
class PartitionRoute:
    """The route of one partition at one offset. `decision` is about `offset`; it is None while the
    route for `offset` is being decided.

    `caught` is the highest offset that the broker called out of range (-1: none). The broker's log
    start is above it, even if older log offsets say otherwise.
    `last_sent`: the log ends that the client last saw.
    """

    offset: int
    decision: RouteDecision | None = None
    caught: int = -1
    last_sent: PartitionPatch | None = None


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """Which partitions of a fetch the archive serves.

    `kept_from_broker`: those in `remote` and `undecided`. The broker is asked for all others.
    `remote` has the views at the time of the plan; a read that begins at once uses them.
    `broker_offsets`: where the broker is asked for the first offset after lost ones instead.
    """

    remote: Mapping[PartitionKey, PartitionView]
    undecided: Set[PartitionKey]
    broker_offsets: Mapping[PartitionKey, int] = field(default_factory=dict)
    kept_from_broker: frozenset[PartitionKey] = field(init=False)
    tps: Sequence[TopicIdPartition] = field(init=False)  # of `remote`, in its order

    def __post_init__(self) -> None:
        object.__setattr__(self, "kept_from_broker", frozenset(self.undecided).union(self.remote))
        object.__setattr__(self, "tps", [view.tp for view in self.remote.values()])


ALL_FROM_BROKERS = FetchPlan({}, frozenset())


@dataclass(frozen=True, slots=True)
class CachedLookups:
    """Look-ups that never wait; each returns None if nothing is known."""

    view: Callable[[TopicIdPartition], PartitionView | None]
    log_offsets: Callable[[TopicIdPartition], LogOffsets | None]
    identify: Callable[[TopicRef, int], TopicIdPartition | None]


@dataclass(slots=True)
class RouteTable:
    """The routes of one connection's partitions, and its permits. Pure."""

    permit_ttl_s: float
    routes: dict[PartitionKey, PartitionRoute] = field(default_factory=dict)
    permits: dict[TopicRef, float] = field(default_factory=dict)  # loop time of expiry
    # The leader epoch that the broker last checked, for partitions of permitted topics.
    epochs: dict[PartitionKey, int] = field(default_factory=dict)
    # Permitted topics with news: the next plan looks at all their partitions.
    topics_with_news: set[TopicRef] = field(default_factory=set)
    # Lost offsets that readers have passed: (partition, first, last). The owner empties this list.
    skipped_ranges: list[tuple[TopicIdPartition, int, int]] = field(default_factory=list)

    def permitted(self, topic: TopicRef, now: float) -> bool:
        return self.permits.get(topic, now) > now

    def denied_again(self, key: PartitionKey, offset: int) -> bool:
        """True: the broker was asked again for an offset that the leader has, but lacks it. Forgets
        the route.
        """
        route = self.routes.get(key)
        if route is None or route.offset != offset or route.decision is None:
            return False
        if route.decision.outcome is not Route.LOCAL:
            return False
        del self.routes[key]
        return True

    def catch(
        self, key: PartitionKey, offset: int, now: float, leader_epoch: int = NO_LEADER_EPOCH
    ) -> PartitionRoute | None:
        """The broker called `offset` out of range. None: the decision is RELAY_ERROR already.

        Otherwise returns the new or renewed route, which must be decided if its decision is None.
        """
        if key[0] not in self.permits:
            self.topics_with_news.add(key[0])
        self.permits[key[0]] = now + self.permit_ttl_s
        self.epochs[key] = leader_epoch
        route = self.routes.get(key)
        if route is not None and route.offset == offset and route.decision is not None:
            if route.decision.outcome is Route.RELAY_ERROR:
                del self.routes[key]
                return None
            if route.decision.outcome is Route.REMOTE:
                route.caught = offset
                return route  # a renewal of the permit
        route = PartitionRoute(offset, caught=offset)
        self.routes[key] = route
        return route

    def error_sent(self, key: PartitionKey) -> None:
        """The client was given an error: its next fetch is decided anew."""
        route = self.routes.get(key)
        decided = (Route.RELAY_ERROR, Route.REFUSED)
        if route is not None and route.decision is not None and route.decision.outcome in decided:
            del self.routes[key]

    def move_to_end(self, key: PartitionKey) -> None:
        """Move the partition to the end: next time the others come first, as brokers rotate too."""
        route = self.routes.pop(key, None)
        if route is not None:
            self.routes[key] = route

    def decide_again(self, key: PartitionKey) -> PartitionRoute | None:
        """Have a partition decided anew: the decision was wrong (its segment is gone)."""
        route = self.routes.get(key)
        if route is not None:
            route = self.routes[key] = PartitionRoute(route.offset, caught=route.caught)
        return route

    def forget_topics(self, topics: Collection[TopicRef]) -> None:
        """The names of `topics` now stand for other topics than the archived ones: the broker
        decides anew, also about authorization.
        """
        self.routes = {key: route for key, route in self.routes.items() if key[0] not in topics}
        self.permits = {topic: at for topic, at in self.permits.items() if topic not in topics}
        self.epochs = {key: epoch for key, epoch in self.epochs.items() if key[0] not in topics}

    def is_wide(
        self, partitions: Collection[PartitionKey], changed: Collection[PartitionKey]
    ) -> bool:
        """True: the plan takes more than one step of the loop."""
        if not (self.routes or self.permits):
            return False
        return (
            len(self.routes) + len(partitions if self.topics_with_news else changed)
            >= PARTITIONS_PER_STEP
        )

    def plan_in_steps(
        self,
        partitions: Mapping[PartitionKey, FetchEntry],
        now: float,
        known: CachedLookups,
        changed: Collection[PartitionKey] | None = None,
    ) -> Generator[None, None, FetchPlan]:
        """Decide which tier answers each partition, and forget routes that no longer apply.

        `changed`: the partitions of `partitions` that are new or have a new offset (None: all).
        Others without a route are not looked at again, so a large session costs nothing.
        """
        if not (self.routes or self.permits):
            return ALL_FROM_BROKERS
        self._forget_permits(now)
        remote: dict[PartitionKey, PartitionView] = {}
        undecided: dict[PartitionKey, None] = {}  # ordered, so that equal runs do the same
        broker_offsets: dict[PartitionKey, int] = {}
        for number, key in enumerate(list(self.routes), 1):
            entry = partitions.get(key)
            if entry is None or self._other_epoch(key, entry):
                del self.routes[key]
            else:
                self._place(key, fetch_offset(entry), remote, undecided, broker_offsets, known)
            if not number % PARTITIONS_PER_STEP:
                yield
        if self.permits:
            yield from self._extend(
                partitions, partitions if changed is None else changed, remote, known
            )
        return FetchPlan(remote, undecided.keys(), broker_offsets)

    def _forget_permits(self, now: float) -> None:
        over = [topic for topic, at in self.permits.items() if at <= now]
        for topic in over:
            del self.permits[topic]
        if over:
            self.epochs = {key: epoch for key, epoch in self.epochs.items() if key[0] not in over}

    def _other_epoch(self, key: PartitionKey, entry: FetchEntry) -> bool:
        """The fetch has another leader epoch than its permit. Brokers do not check NO_LEADER_EPOCH
        either.
        """
        epoch = leader_epoch(entry)
        if epoch == NO_LEADER_EPOCH or key[0] not in self.permits:
            return False
        return epoch != self.epochs.get(key)

    def _place(
        self,
        key: PartitionKey,
        offset: int,
        remote: dict[PartitionKey, PartitionView],
        undecided: dict[PartitionKey, None],
        broker_offsets: dict[PartitionKey, int],
        known: CachedLookups,
    ) -> None:
        route = self.routes[key]
        if route.decision is None:
            if route.offset == offset:
                undecided[key] = None
            else:
                del self.routes[key]  # the client seeked away: the broker decides anew
            return
        decision = route.decision
        if decision.outcome is Route.REMOTE and decision.tp is not None:
            view = _view_that_serves(decision.tp, offset, known, route.caught)
            if view is None:
                del self.routes[key]
                return
            route.offset = offset
            if key[0] in self.permits:  # otherwise it goes to the broker once, for a new permit
                remote[key] = view
        elif route.offset != offset:
            if decision.tp is not None and route.offset < decision.forward_to <= offset:
                self.skipped_ranges.append((decision.tp, route.offset, decision.forward_to - 1))
            del self.routes[key]  # the client asks for another offset: the broker decides anew
        elif decision.outcome is Route.LOST:
            broker_offsets[key] = decision.forward_to
        elif decision.outcome in (Route.WAIT, Route.END, Route.REFUSED):
            undecided[key] = None  # the broker has nothing for it
        # RELAY_ERROR and LOCAL: the broker is asked once more, and the client gets its response.

    def _extend(
        self,
        partitions: Mapping[PartitionKey, FetchEntry],
        changed: Collection[PartitionKey],
        remote: dict[PartitionKey, PartitionView],
        known: CachedLookups,
    ) -> Generator[None, None, None]:
        """Add partitions of permitted topics that are known to be below the broker's log start.

        The broker itself reports the others as out of range.
        """
        checked = 0
        if self.topics_with_news:
            changed = [*changed, *(key for key in partitions if key[0] in self.topics_with_news)]
            self.topics_with_news.clear()
        for key in changed:
            if key[0] not in self.permits or key in self.routes:
                continue
            entry = partitions.get(key)
            if entry is None or self._other_epoch(key, entry):
                continue
            checked += 1
            if not checked % PARTITIONS_PER_STEP:
                yield
            tp = known.identify(*key)
            log_offsets = None if tp is None else known.log_offsets(tp)
            offset = fetch_offset(entry)
            if tp is None or log_offsets is None or offset >= log_offsets.log_start_offset:
                continue
            if (view := _view_that_serves(tp, offset, known)) is not None:
                self.routes[key] = PartitionRoute(offset, RouteDecision(Route.REMOTE, tp))
                remote[key] = view


def _view_that_serves(
    tp: TopicIdPartition, offset: int, known: CachedLookups, caught: int = -1
) -> PartitionView | None:
    """The archive's view, if it answers for `offset` and the broker is not known to have it."""
    view = known.view(tp)
    if view is None or not view.covers_offset(offset):
        return None
    if offset > caught:
        log_offsets = known.log_offsets(tp)
        if log_offsets is not None and offset >= log_offsets.log_start_offset:
            return None
    return view


class TopicIdentities:
    """Finds out whether a topic's name still stands for the same topic id. One per connection;
    `clock` gives loop time in seconds.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._checked_at: dict[UUID, float] = {}

    async def replaced_topics(
        self, tps: Iterable[TopicIdPartition], deadline: float
    ) -> set[UUID] | None:
        """The topic ids of `tps` whose topic name now stands for another topic or for none. None:
        all were looked up a short while ago.

        If the brokers do not answer until `deadline` (loop time), the ids count as valid until the
        next look-up is due. Never raises ClusterError.
        """
        now = self._clock()
        oldest = now - IDENTITY_AGE_MAX_MS / 1000
        due: dict[UUID, str] = {}
        for piece in pieces(tps):
            for tp in piece:
                if self._checked_at.get(tp.topic_id, oldest) <= oldest:
                    due[tp.topic_id] = tp.topic
            await checkpoint(len(piece))
        if not due:
            return None
        self._checked_at = {known: at for known, at in self._checked_at.items() if at > oldest}
        topics: Mapping[str, TopicInfo | ClusterError] = {}
        # Without an answer the broker's permit still holds.
        with suppress(TimeoutError, ClusterUnavailable):
            async with asyncio.timeout(deadline - now):
                names = set(due.values())
                topics = await self._cluster.topics_by_name(names, IDENTITY_AGE_MAX_MS)
        lost = set(
            await chosen(due, lambda topic_id: _is_lost(topic_id, topics.get(due[topic_id])))
        )
        checked_at = self._clock()
        self._checked_at.update(dict.fromkeys(due.keys() - lost, checked_at))
        return lost


def _is_lost(topic_id: UUID, topic: TopicInfo | ClusterError | None) -> bool:
    """`found`: what has the topic's name now. None: that is not known."""
    if isinstance(topic, ClusterError):
        return topic.error_code in UNKNOWN_TOPIC
    return topic is not None and topic.topic_id != topic_id


class DecisionsSoFar(NamedTuple):
    """What is decided of a plan's undecided partitions. `remote`: partitions found in the archive.
    `has_error`: the client must get an error for some.

    `ask_broker`: the broker must answer for some. `undecided`: some are still being decided.
    """

    remote: Mapping[PartitionKey, TopicIdPartition]
    has_error: bool
    ask_broker: bool
    undecided: bool


class FetchRouter:
    """Decides which tier serves each partition of one connection's fetches. `by_id`: the client's
    last fetch named topics by id (v13+).

    `node_id` is the broker's; None if the client connected to the bootstrap address. `client`: the
    connection's, for which the archive is read.
    """

    def __init__(
        self,
        shared: SharedByFetches,
        mirror: FetchSessionPair,
        spawn: Spawn,
        node_id: int | None,
        client: Callable[[], Hashable],
    ) -> None:
        self._shared = shared
        self._mirror = mirror
        self._cluster = cluster = shared.archive.cluster
        self._clock = shared.archive.clock
        self._spawn = spawn
        self._node_id = node_id
        self._client = client
        self.by_id = False
        self._to_decide: dict[PartitionKey, PartitionRoute] = {}
        self.table = RouteTable(shared.permit_ttl_s)
        self.decided = asyncio.Event()
        self._known = CachedLookups(self._view, cluster.cached_log_offsets, self.identify)
        self._unchecked: set[TopicIdPartition] = set()  # of the last plan: see `wants_check`
        self._refreshing: set[TopicIdPartition] = set()
        self._identities = TopicIdentities(cluster, self._clock)

    def name_topics(self, by_id: bool) -> None:
        """Routes are keyed by name or by id: forget those of the other kind."""
        self.by_id = by_id
        self.table = RouteTable(self._shared.permit_ttl_s)

    # -- which tier answers the current fetch ------------------------------------------------------
    def plan_at_once(self) -> FetchPlan | None:
        """None: there are too many partitions for one step of the loop."""
        if self.table.is_wide(self._mirror.partitions, self._mirror.changed):
            return None
        try:
            next(self._plan_in_steps())
        except StopIteration as ended:
            plan: FetchPlan = ended.value
            return plan
        raise AssertionError("a narrow plan takes one step")

    async def plan(self) -> FetchPlan:
        return await in_steps(self._plan_in_steps(), self._shared.archive.purgatory.steps.go_on)

    def _plan_in_steps(self) -> Generator[None, None, FetchPlan]:
        self._unchecked = set()
        partitions, changed = self._mirror.partitions, self._mirror.changed
        plan = yield from self.table.plan_in_steps(partitions, self._clock(), self._known, changed)
        while self.table.skipped_ranges:
            self._shared.skipped.note(*self.table.skipped_ranges.pop())
        self._mirror.set_broker_offsets(plan.broker_offsets)
        return plan

    async def confirm_plan(
        self, plan: FetchPlan, deadline: float, archive_deadline: float
    ) -> tuple[FetchPlan, frozenset[TopicIdPartition]]:
        """`plan`, or a new one if topics or leaders may have changed; and the partitions that must
        wait until their new leader has told what is in its log.

        Brokers are asked until `deadline` (loop time), or until `archive_deadline` if no partition
        of the tail has to wait for their responses.
        """
        if await self._look_up_topics(
            plan, archive_deadline if self.is_all_archived(plan) else deadline
        ):
            plan = await self.plan()
        until = archive_deadline if self.is_all_archived(plan) else deadline
        waiting = await self._waiting_for_leaders(plan, until)
        if waiting is not None:
            plan = await self.plan()
        if plan.undecided:
            await self._keep_waiting(plan.undecided)
        return plan, waiting or frozenset()

    def _view(self, tp: TopicIdPartition) -> PartitionView | None:
        """The view that clients may see. Notes the partition if its leader must be asked first."""
        archive = self._shared.archive
        known = archive.rlmm.view(tp)
        visible = None if known is None else archive.views.checked_view(known)
        if visible is None and known is not None:
            self._unchecked.add(tp)
            return archive.views.view(tp)
        return visible

    def is_all_archived(self, plan: FetchPlan) -> bool:
        """The broker is asked for no partition."""
        return len(plan.kept_from_broker) >= len(self._mirror.partitions)

    async def _look_up_topics(self, plan: FetchPlan, deadline: float) -> bool:
        """Look up the topics, and forget the routes of topics that no longer exist. True: brokers
        were asked, and may have named other leaders.
        """
        replaced_topics = await self._identities.replaced_topics(plan.tps, deadline)
        if replaced_topics:
            topics = {
                key[0] for key, view in plan.remote.items() if view.tp.topic_id in replaced_topics
            }
            self.table.forget_topics(topics)
        return replaced_topics is not None

    async def _waiting_for_leaders(
        self, plan: FetchPlan, deadline: float
    ) -> frozenset[TopicIdPartition] | None:
        """The partitions that must wait until a new leader has told what is in its log.

        None: no leader had to be asked, and the plan is unchanged. While a partition has no
        leader, this only looks in memory.
        """
        if not self._unchecked:
            return None
        tps = [tp async for tp in cooperative(plan.tps) if tp in self._unchecked]
        return await self._shared.archive.views.check(tps, deadline) if tps else None

    async def _keep_waiting(self, undecided: Iterable[PartitionKey]) -> None:
        """The client asks for these again: tell `HeldReaders`, or have it hold them anew."""
        async for key in cooperative(undecided):
            route = self.table.routes.get(key)
            if route is None or route.decision is None:
                continue
            if route.decision.outcome not in WAITING_ROUTES:
                continue
            if not self._shared.held_readers.note_fetch(self, self.by_id, key, route.offset):
                self._shared.held_readers.hold(self, self.by_id, key, route.offset, route.decision)

    # -- partitions that the broker calls out of range ---------------------------------------------
    def identify(self, topic: TopicRef, partition: int) -> TopicIdPartition | None:
        """From memory; None: the topic is not known."""
        cluster = self._cluster
        if self.by_id:
            info = cluster.cached_topic_by_id(UUID(bytes=topic))
        else:
            info = cluster.cached_topic_by_name(topic.decode(errors="replace"))
        return None if info is None else TopicIdPartition(info.topic_id, info.name, partition)

    def catch(self, key: PartitionKey, entry: FetchEntry, client: str) -> PartitionPatch | None:
        """The broker called `key` out of range. Returns the entry that the client gets instead.

        None: the client must get the broker's error.
        """
        if key[1] < 0:
            return None  # no archive has it
        offset = fetch_offset(entry)
        if self.table.denied_again(key, offset):
            return self._denied_again(key)
        now = self._clock()
        route = self.table.catch(key, offset, now, leader_epoch(entry))
        tp = self.identify(*key)
        topic = tp.topic if tp else ""
        CATCHES.labels(topic).inc()
        if route is None:
            return None
        if route.decision is None:
            RECENT_EVENTS.note(
                "offset_out_of_range_caught",
                client=client,
                topic=topic,
                partition=key[1],
                offset=offset,
            )
            self._start(key, route)
        return self._shared.watermarks(tp)

    def _denied_again(self, key: PartitionKey) -> PartitionPatch | None:
        """The broker lacks an offset that the leader has. None: it is a follower (KIP-392), and a
        client that gets its OffsetOutOfRange goes to the leader.

        If it is the leader itself, it contradicts what it told the proxy: the client gets an error
        upon which it looks up the leader anew.
        """
        topic, number = key
        tp = self.identify(topic, number)
        info = None if tp is None else self._cluster.cached_topic_by_id(tp.topic_id)
        leader = None if info is None else info.leaders.get(number)
        if leader is not None and self._node_id is not None and leader[0] != self._node_id:
            return None
        return PartitionPatch(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def again(self, key: PartitionKey) -> None:
        """Decide on `key` anew: its segment was deleted from the archive meanwhile."""
        route = self.table.decide_again(key)
        if route is not None:
            self._start(key, route)

    def _start(self, key: PartitionKey, route: PartitionRoute) -> None:
        """All partitions of one response are decided together, in the next turn of the loop."""
        first = not self._to_decide  # a response may name one partition very often
        self._to_decide[key] = route
        if first:
            # The next fetch may have another kind of names, and other routes.
            self._spawn(self._decide(self.by_id, self.table), "decide-routes")

    async def _decide(self, by_id: bool, table: RouteTable) -> None:
        shared = self._shared
        batch, self._to_decide = self._to_decide, {}
        caught_at = self._clock()
        offsets = {key: route.offset for key, route in batch.items()}
        remote: list[TopicIdPartition] = []
        decided = await shared.decide_routes(by_id, offsets, caught_at)
        async for key, decision in cooperative(decided.items()):
            route = batch[key]
            route.decision = decision
            if decision.outcome in WAITING_ROUTES:
                shared.held_readers.hold(self, by_id, key, route.offset, decision)
            elif decision.outcome is Route.REMOTE and decision.tp is not None:
                remote.append(decision.tp)
                if len(remote) <= PARTITIONS_READ_MAX:
                    self._warm(decision.tp, key, route.offset)
        self.decided.set()
        if remote:
            await self._ask_log_offsets(remote, not_older_than=caught_at)
            table.topics_with_news.update(key[0] for key in batch)

    def _warm(self, tp: TopicIdPartition, key: PartitionKey, offset: int) -> None:
        entry = self._mirror.partitions.get(key)
        if entry is not None and fetch_offset(entry) == offset:
            read = tp, offset, entry_bytes_max(entry), IsolationLevel.READ_UNCOMMITTED
            request = RemoteReadRequest(*read, self._client())
            self._shared.archive.purgatory.warm(request)

    def settle(self, key: PartitionKey, offset: int, decision: RouteDecision) -> None:
        """See `HeldReaders`."""
        route = self.table.routes.get(key)
        if route is None or route.offset != offset or route.decision is None:
            return
        if route.decision.outcome in WAITING_ROUTES:
            route.decision = decision
            self.decided.set()

    async def decisions_so_far(self, keys: dict[PartitionKey, None]) -> DecisionsSoFar:
        """The decisions on `keys` so far. Decided partitions are removed from it.

        A partition whose permit has run out is not in `remote`: the next fetch goes to the broker
        for a new permit.
        """
        remote: dict[PartitionKey, TopicIdPartition] = {}
        has_error = ask_broker = undecided = False
        now = self._clock()
        async for key in cooperative(list(keys)):
            route = self.table.routes.get(key)
            if route is None or route.decision is None:
                undecided = undecided or route is not None
                continue
            if route.decision.outcome in WAITING_ROUTES:
                continue
            del keys[key]
            outcome, tp = route.decision.outcome, route.decision.tp
            if outcome in (Route.LOCAL, Route.LOST):
                ask_broker = True
            elif outcome is not Route.REMOTE:
                has_error = True
            elif tp is not None and self.table.permitted(key[0], now):
                remote[key] = tp
        return DecisionsSoFar(remote, has_error, ask_broker, undecided)

    def decision(self, key: PartitionKey) -> RouteDecision | None:
        route = self.table.routes.get(key)
        return None if route is None else route.decision

    def drop(self) -> None:
        """The session is over: drop the partitions that wait to be decided, and what refers to this
        object.
        """
        self._to_decide = {}
        del self._known

    async def refresh_log_offsets(self, tps: Iterable[TopicIdPartition]) -> None:
        """Keep the shown watermarks current while the archive is read, without delaying the fetch.

        The brokers are asked for all old ones at once: a fetch may name ten thousand partitions.
        """
        oldest, cluster = self._clock() - LOG_OFFSETS_AGE_MAX_MS / 1000, self._cluster
        old: list[TopicIdPartition] = []
        for piece in pieces(tps):
            for tp in piece:
                known = cluster.cached_log_offsets(tp)
                if (known is None or known.read_at < oldest) and tp not in self._refreshing:
                    old.append(tp)
            await checkpoint(len(piece))
        if old:
            self._refreshing.update(old)
            self._spawn(self._ask_log_offsets(old, oldest), "refresh-log-offsets")

    async def _ask_log_offsets(
        self, tps: Sequence[TopicIdPartition], not_older_than: float
    ) -> None:
        try:
            await self._cluster.fetch_log_offsets(tps, not_older_than=not_older_than)
        except ClusterError:
            pass  # lag figures stay as they were; the cluster client has counted the failure
        finally:
            self._refreshing.difference_update(tps)
