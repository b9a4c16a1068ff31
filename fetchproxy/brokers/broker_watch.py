"""Checks every few seconds which brokers answer, also while no client asks for anything.

A broker that refuses the proxy's own credentials counts as answering. A broker that the cluster no
longer names is still asked, and may count as away, until FORGOTTEN_AFTER_S has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.observability.metrics import BROKERS_KNOWN, BROKERS_REACHABLE

# With the default of cluster.request_max_ms, a silent broker is noticed within 15 s.
_ASK_INTERVAL_S = 2.0
# Brokers that refuse credentials are asked less often: they count each refusal and delay its
# response.
REFUSED_INTERVAL_S = 60.0
# A broker that the cluster has not named for this long was taken out of the cluster.
BROKER_FORGOTTEN_AFTER_S = 3_600.0


@dataclass(slots=True)
class _Broker:
    listed_at: float  # loop s, when the cluster last named it
    away_since: float | None = None
    responded: bool = False  # since the start
    ask_next_at: float = 0.0
    error: str = ""
    is_counted: bool = True  # False: asked only for the brokers it knows


@dataclass(frozen=True, slots=True)
class BrokersStatus:
    """`away`: addresses of the brokers that do not answer. `none_for_s`: for how long no broker has
    answered (s); None: some broker answers, or this is not known yet.
    """

    known: int = 0
    away: tuple[str, ...] = ()
    none_for_s: float | None = None
    last_error: str | None = None


class BrokerWatch:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._brokers: dict[HostPort, _Broker] = {}
        self._ever_listed: set[HostPort] = set()  # bootstrap addresses, by the cluster
        self._by_id: dict[int, HostPort] = {}  # the last address of each broker
        self._none_since: float | None = None
        self._health = Health()

    async def run(self) -> None:
        while True:
            await self.ask_brokers()
            await asyncio.sleep(_ASK_INTERVAL_S)

    async def ask_brokers(self) -> None:
        """Ask every broker, all at once. Each response counts as soon as it arrives."""
        now = asyncio.get_running_loop().time()
        self._note_listed(now)
        async with asyncio.TaskGroup() as tasks:
            for address, broker in list(self._brokers.items()):
                if now >= broker.ask_next_at:
                    tasks.create_task(self._ask(address, broker))
            if self._none_since is not None:  # other brokers may have replaced them
                for address in set(self._cluster.bootstrap) - self._brokers.keys():
                    tasks.create_task(self._ask(address, _Broker(now, is_counted=False)))
        self._publish()

    def _note_listed(self, now: float) -> None:
        by_id = self._cluster.known_brokers()
        listed_addresses = dict.fromkeys(by_id.values())
        for node_id, before in self._by_id.items():
            if before not in listed_addresses and by_id.get(node_id, before) != before:
                self._brokers.pop(before, None)  # the broker has moved
        self._by_id.update(by_id)
        for address in listed_addresses or self._cluster.bootstrap:
            self._brokers.setdefault(address, _Broker(now)).listed_at = now
        # A bootstrap address that the cluster does not name is not one of the brokers.
        unlisted = (
            set(self._cluster.bootstrap) - {*listed_addresses} - self._ever_listed
            if listed_addresses
            else set()
        )
        self._ever_listed.update(listed_addresses.keys() & set(self._cluster.bootstrap))
        self._brokers = {
            address: broker
            for address, broker in self._brokers.items()
            if now - broker.listed_at < BROKER_FORGOTTEN_AFTER_S and address not in unlisted
        }
        self._by_id = {n: address for n, address in self._by_id.items() if address in self._brokers}

    def status(self) -> BrokersStatus:
        away = [a for a, broker in self._brokers.items() if broker.away_since is not None]
        none_for_s = None
        if self._none_since is not None:
            none_for_s = asyncio.get_running_loop().time() - self._none_since
        error = self._brokers[away[0]].error if away else None
        return BrokersStatus(len(self._brokers), tuple(map(str, away)), none_for_s, error)

    def conditions(self, now: float) -> Iterable[Condition]:
        """If no broker answers, only that one condition."""
        none = self._health.reported(Kind.BROKERS_AWAY)
        return self._health.all(now) if none is None else (none,)

    def _away_condition(self, address: HostPort, since: float) -> Condition:
        total, away = len(self._brokers), len(self.status().away)
        message = (
            f"Broker {address} does not respond; {total - away} of {total} do: partitions that it "
            "leads are neither served nor archived until other brokers lead them"
        )
        return Condition(Kind.BROKER_AWAY, message, str(address), since=since)

    async def _ask(self, address: HostPort, broker: _Broker) -> None:
        for is_last in (False, True):
            try:
                await self._cluster.greet(address)
            except ClusterUnavailable as error:
                if is_last:
                    self._note_failure(address, broker, error)
                    return
                continue  # the connection may have been stale: try a new one
            except ClusterError:
                broker.ask_next_at = asyncio.get_running_loop().time() + REFUSED_INTERVAL_S
            break
        broker.away_since = None
        broker.responded = True
        self._publish()

    def _note_failure(self, address: HostPort, broker: _Broker, error: ClusterUnavailable) -> None:
        broker.error = str(error)
        if broker.away_since is None and broker.is_counted:
            broker.away_since = asyncio.get_running_loop().time()
            away = self._away_condition(address, broker.away_since)
            self._health.report(away, error=broker.error)
        self._publish()

    def _publish(self) -> None:
        reachable = sum(b.responded and b.away_since is None for b in self._brokers.values())
        BROKERS_KNOWN.set(len(self._brokers))
        BROKERS_REACHABLE.set(reachable)
        away = [(a, b.away_since) for a, b in self._brokers.items() if b.away_since is not None]
        self._health.keep(
            Kind.BROKER_AWAY, [self._away_condition(address, since) for address, since in away]
        )
        if len(away) < len(self._brokers):
            self._none_since = None
            self._health.clear(Kind.BROKERS_AWAY)
        elif away:
            if self._none_since is None:
                self._none_since = asyncio.get_running_loop().time()
            addresses, error = ", ".join(map(str, self._brokers)), self.status().last_error
            message = (
                "No broker responds: until one does, clients are not served and archiving has "
                f"stopped ({error})"
            )
            none = Condition(
                Kind.BROKERS_AWAY, message, missing="brokers: none answers", since=self._none_since
            )
            self._health.report(none, addresses=addresses, error=error)
