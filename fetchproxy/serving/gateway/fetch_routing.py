"""Decides the routes of one connection's partitions for which the broker answers out of range.

The decisions are made in parallel with the client's fetches, which read the routes and wait only
for `decided`. Nothing here reads records, but the purgatory warms what was found in the archive.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from typing import NamedTuple
from uuid import UUID

from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.fetch import (
    FetchEntry,
    PartitionKey,
    PartitionPatch,
    TopicRef,
    entry_bytes_max,
    fetch_offset,
    leader_epoch,
)

from fetchproxy.errors import ClusterError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.observability.logs import RECENT_EVENTS
from fetchproxy.observability.metrics import CATCHES
from fetchproxy.reading.segment_reader import PARTITIONS_READ_MAX, RemoteReadRequest
from fetchproxy.runtime.cooperative import checkpoint, cooperative, in_steps, pieces
from fetchproxy.serving.gateway.fetch_routes import (
    LOG_OFFSETS_AGE_MAX_MS,
    FetchPlan,
    FetchRoutes,
    Knowledge,
    PartitionRoute,
)
from fetchproxy.serving.gateway.fetch_session import FetchSessionMirror
from fetchproxy.serving.gateway.out_of_range import (
    WAITING_ROUTES,
    Route,
    RouteDecision,
)
from fetchproxy.serving.gateway.shared_by_fetches import SharedByFetches
from fetchproxy.serving.gateway.topic_identities import TopicIdentities

Spawn = Callable[[Coroutine[None, None, object], str], None]


class DecisionsSoFar(NamedTuple):
    """`remote`: partitions found in the archive. `has_error`: the client must get an error for
    some.

    `ask_broker`: the broker must answer for some. `undecided`: some are still being decided.
    """

    remote: Mapping[PartitionKey, TopicIdPartition]
    has_error: bool
    ask_broker: bool
    undecided: bool


class FetchRouting:
    """`by_id`: the client's last fetch named topics by id (v13+).

    `node_id` is the broker's; None if the client connected to the bootstrap address.
    """

    def __init__(
        self,
        shared: SharedByFetches,
        mirror: FetchSessionMirror,
        spawn: Spawn,
        node_id: int | None,
    ) -> None:
        self._shared = shared
        self._mirror = mirror
        self._cluster = cluster = shared.archive.cluster
        self._clock = shared.archive.clock
        self._spawn = spawn
        self._node_id = node_id
        self.by_id = False
        self._to_decide: dict[PartitionKey, PartitionRoute] = {}
        self.routes = FetchRoutes(shared.permit_ttl_s)
        self.decided = asyncio.Event()
        self._known = Knowledge(self._view, cluster.cached_log_offsets, self.identify)
        self._unchecked: set[TopicIdPartition] = set()  # of the last plan: see `wants_check`
        self._refreshing: set[TopicIdPartition] = set()
        self._identities = TopicIdentities(cluster, self._clock)

    # -- which tier answers the current fetch ------------------------------------------------------
    def plan_at_once(self) -> FetchPlan | None:
        """None: there are too many partitions for one step of the loop."""
        if self.routes.is_wide(self._mirror.asked, self._mirror.changed):
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
        asked, changed = self._mirror.asked, self._mirror.changed
        plan = yield from self.routes.plan_in_steps(asked, self._clock(), self._known, changed)
        while self.routes.led_on:
            self._shared.skipped.note(*self.routes.led_on.pop())
        self._mirror.lead(plan.ahead)
        return plan

    async def confirmed(
        self, plan: FetchPlan, deadline: float, alone_deadline: float
    ) -> tuple[FetchPlan, frozenset[TopicIdPartition]]:
        """`plan`, or a new one if topics or leaders may have changed; and the partitions that must
        wait until their new leader has told what is in its log.

        Brokers are asked until `deadline` (loop time), or until `alone_deadline` if no partition of
        the tail has to wait for their responses.
        """
        if await self._asked_for_topics(plan, alone_deadline if self.alone(plan) else deadline):
            plan = await self.plan()
        until = alone_deadline if self.alone(plan) else deadline
        held = await self._held_by_leaders(plan, until)
        if held is not None:
            plan = await self.plan()
        if plan.undecided:
            await self._still_held(plan.undecided)
        return plan, held or frozenset()

    def _view(self, tp: TopicIdPartition) -> PartitionView | None:
        """The view that clients may see. Notes the partition if its leader must be asked first."""
        archive = self._shared.archive
        known = archive.rlmm.view(tp)
        shown = None if known is None else archive.views.settled(known)
        if shown is None and known is not None:
            self._unchecked.add(tp)
            return archive.views.view(tp)
        return shown

    def alone(self, plan: FetchPlan) -> bool:
        """The broker is asked for no partition."""
        return len(plan.archive_keys) >= len(self._mirror.asked)

    async def _asked_for_topics(self, plan: FetchPlan, deadline: float) -> bool:
        """Look up the topics, and forget the routes of topics that no longer exist. True: brokers
        were asked, and may have named other leaders.
        """
        lost = await self._identities.lost(plan.tps, deadline)
        if lost:
            topics = {key[0] for key, view in plan.remote.items() if view.tp.topic_id in lost}
            self.routes.forget_topics(topics)
        return lost is not None

    async def _held_by_leaders(
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

    async def _still_held(self, undecided: Iterable[PartitionKey]) -> None:
        """The client asks for these again: tell `HeldReaders`, or have it hold them anew."""
        async for key in cooperative(undecided):
            route = self.routes.routes.get(key)
            if route is None or route.decision is None:
                continue
            if route.decision.outcome not in WAITING_ROUTES:
                continue
            if not self._shared.held.waits(self, self.by_id, key, route.offset):
                self._shared.held.hold(self, self.by_id, key, route.offset, route.decision)

    # -- partitions that the broker calls out of range ---------------------------------------------
    def identify(self, topic: TopicRef, partition: int) -> TopicIdPartition | None:
        """From memory; None: the topic is not known."""
        cluster = self._cluster
        if self.by_id:
            info = cluster.cached_topic_by_id(UUID(bytes=topic))
        else:
            info = cluster.cached_topic_by_name(topic.decode(errors="replace"))
        return None if info is None else TopicIdPartition(info.topic_id, info.name, partition)

    def catch(self, key: PartitionKey, asked: FetchEntry, client: str) -> PartitionPatch | None:
        """The broker called `key` out of range. Returns the entry that the client gets instead.

        None: the client must get the broker's error.
        """
        if key[1] < 0:
            return None  # no archive has it
        offset = fetch_offset(asked)
        if self.routes.denied_again(key, offset):
            return self._denied_again(key)
        now = self._clock()
        route = self.routes.catch(key, offset, now, leader_epoch(asked))
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
        route = self.routes.decide_again(key)
        if route is not None:
            self._start(key, route)

    def _start(self, key: PartitionKey, route: PartitionRoute) -> None:
        """All partitions of one response are decided together, in the next turn of the loop."""
        first = not self._to_decide  # a response may name one partition very often
        self._to_decide[key] = route
        if first:
            # The next fetch may have another kind of names, and other routes.
            self._spawn(self._decide(self.by_id, self.routes), "decide-routes")

    async def _decide(self, by_id: bool, routes: FetchRoutes) -> None:
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
                shared.held.hold(self, by_id, key, route.offset, decision)
            elif decision.outcome is Route.REMOTE and decision.tp is not None:
                remote.append(decision.tp)
                if len(remote) <= PARTITIONS_READ_MAX:
                    self._warm(decision.tp, key, route.offset)
        self.decided.set()
        if remote:
            await self._ask_log_offsets(remote, not_older_than=caught_at)
            routes.learned.update(key[0] for key in batch)

    def _warm(self, tp: TopicIdPartition, key: PartitionKey, offset: int) -> None:
        asked = self._mirror.asked.get(key)
        if asked is not None and fetch_offset(asked) == offset:
            wanted = tp, offset, entry_bytes_max(asked), IsolationLevel.READ_UNCOMMITTED
            self._shared.archive.purgatory.warm(RemoteReadRequest(*wanted))

    def settle(self, key: PartitionKey, offset: int, decision: RouteDecision) -> None:
        """See `HeldReaders`."""
        route = self.routes.routes.get(key)
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
        found: dict[PartitionKey, TopicIdPartition] = {}
        has_error = ask_broker = undecided = False
        now = self._clock()
        async for key in cooperative(list(keys)):
            route = self.routes.routes.get(key)
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
            elif tp is not None and self.routes.permitted(key[0], now):
                found[key] = tp
        return DecisionsSoFar(found, has_error, ask_broker, undecided)

    def decision(self, key: PartitionKey) -> RouteDecision | None:
        route = self.routes.routes.get(key)
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
                if tp not in self._refreshing and not cluster.knows_log_offsets(tp, oldest):
                    old.append(tp)
            await checkpoint(len(piece))
        if old:
            self._refreshing.update(old)
            self._spawn(self._ask_log_offsets(old, oldest), "refresh-log-edges")

    async def _ask_log_offsets(
        self, tps: Sequence[TopicIdPartition], not_older_than: float
    ) -> None:
        try:
            await self._cluster.fetch_log_offsets(tps, not_older_than=not_older_than)
        except ClusterError:
            pass  # lag figures stay as they were; the cluster client has counted the failure
        finally:
            self._refreshing.difference_update(tps)
