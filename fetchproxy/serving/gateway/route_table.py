"""The routes and permits of one connection's partitions, and the plan of a fetch. Pure.

A `PartitionRoute` is of one partition whose offset the broker called out of range. A *permit* is an
OffsetOutOfRange of the broker on this connection: the broker checks authorization and leader epoch
before the range. So for a while (`permit_ttl_ms`) this client may read the topic's archive without
another question to the broker. A fetch with a leader epoch that was not checked goes to the broker:
only the broker can tell FENCED_LEADER_EPOCH from UNKNOWN_LEADER_EPOCH.
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Generator,
    Mapping,
    Sequence,
    Set,
)
from dataclasses import dataclass, field

from fetchproxy_protocol.fetch import (
    NO_LEADER_EPOCH,
    FetchEntry,
    PartitionKey,
    PartitionPatch,
    TopicRef,
    fetch_offset,
    leader_epoch,
)

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.serving.gateway.route_decision import (
    Route,
    RouteDecision,
)

# Partitions that are looked at in one step of the loop, some 10 µs each.
PARTITIONS_PER_STEP = 250


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
            view = _serving(decision.tp, offset, known, route.caught)
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
            if (view := _serving(tp, offset, known)) is not None:
                self.routes[key] = PartitionRoute(offset, RouteDecision(Route.REMOTE, tp))
                remote[key] = view


def _serving(
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
