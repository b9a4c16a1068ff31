"""Which brokers answer: asked every few seconds, so that it is known also while nobody else asks.

A broker that refuses the proxy's own credentials answers. One that goes away is named by the others
no longer; it is still asked, and counted as away, until it has been gone for long.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.observability.metrics import BROKERS_KNOWN, BROKERS_REACHABLE

log = structlog.get_logger(__name__)

# With cluster.connect_max_ms and request_max_ms a silent broker is known of within 15 s.
LOOK_INTERVAL_S = 2.0
# Who refuses credentials is asked more rarely: each refusal counts, and costs the broker a delay.
REFUSED_INTERVAL_S = 60.0
# One that the others have not named for so long was taken out of the cluster.
FORGOTTEN_AFTER_S = 3_600.0


@dataclass(slots=True)
class _Broker:
    named_at: float  # loop s, when the cluster last named it
    away_since: float | None = None
    answered: bool = False  # since the start
    asked_next_at: float = 0.0
    error: str = ""
    counts: bool = True  # False: asked for what it knows, not one of the brokers


@dataclass(frozen=True, slots=True)
class BrokersStatus:
    """`away`: addresses of those that do not answer. `none_for_s`: since when none does; None: some
    do, or it is not known yet."""

    known: int = 0
    away: tuple[str, ...] = ()
    none_for_s: float | None = None
    last_error: str | None = None


class BrokerWatch:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._brokers: dict[HostPort, _Broker] = {}
        self._ever_named: set[HostPort] = set()  # by the cluster
        self._none_since: float | None = None

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def look(self) -> None:
        """Ask every broker, all at once; what one says counts at once."""
        now = asyncio.get_running_loop().time()
        self._note_named(now)
        async with asyncio.TaskGroup() as tasks:
            for address, broker in list(self._brokers.items()):
                if now >= broker.asked_next_at:
                    tasks.create_task(self._ask(address, broker))
            if self._none_since is not None:  # others may have taken their place
                for address in set(self._cluster.bootstrap) - self._brokers.keys():
                    tasks.create_task(self._ask(address, _Broker(now, counts=False)))
        self._publish()

    def _note_named(self, now: float) -> None:
        named = self._cluster.broker_addresses()
        for address in named or self._cluster.bootstrap:
            self._brokers.setdefault(address, _Broker(now)).named_at = now
        # A bootstrap address that is no broker's own name is not one of the brokers.
        strange = set(self._cluster.bootstrap) - set(named) - self._ever_named if named else set()
        self._ever_named.update(named)
        self._brokers = {
            address: broker
            for address, broker in self._brokers.items()
            if now - broker.named_at < FORGOTTEN_AFTER_S and address not in strange
        }

    def missing(self) -> tuple[str, ...]:
        """What keeps new clients from being served."""
        return () if self._none_since is None else ("brokers: none answers",)

    def status(self) -> BrokersStatus:
        away = [a for a, broker in self._brokers.items() if broker.away_since is not None]
        none_for_s = None
        if self._none_since is not None:
            none_for_s = asyncio.get_running_loop().time() - self._none_since
        error = self._brokers[away[0]].error if away else None
        return BrokersStatus(len(self._brokers), tuple(map(str, away)), none_for_s, error)

    def headlines(self) -> tuple[str, ...]:
        status = self.status()
        if status.none_for_s is not None:
            return (
                "No broker answers: until one does clients are not served, and nothing is archived "
                f"({status.last_error})",
            )
        if not status.away:
            return ()
        number = len(status.away)
        which = f"Broker {status.away[0]}" if number == 1 else f"Brokers {', '.join(status.away)}"
        verb = "does" if number == 1 else "do"
        whose = "it leads" if number == 1 else "they lead"
        return (
            f"{which} {verb} not answer; {status.known - number} of {status.known} do: partitions "
            f"that {whose} are neither served nor archived until others lead them",
        )

    async def _ask(self, address: HostPort, broker: _Broker) -> None:
        try:
            await self._cluster.greet(address)
        except ClusterUnavailable:
            # The connection may have been an old one: a new one tells.
            try:
                await self._cluster.greet(address)
            except ClusterUnavailable as error:
                self._failed(address, broker, error)
                return
            except ClusterError:
                broker.asked_next_at = asyncio.get_running_loop().time() + REFUSED_INTERVAL_S
        except ClusterError:
            broker.asked_next_at = asyncio.get_running_loop().time() + REFUSED_INTERVAL_S
        self._answered(address, broker)

    def _failed(self, address: HostPort, broker: _Broker, error: ClusterUnavailable) -> None:
        broker.error = str(error)
        if broker.away_since is None and broker.counts:
            broker.away_since = asyncio.get_running_loop().time()
            log.warning("broker_away", address=str(address), error=broker.error)
        self._publish()

    def _answered(self, address: HostPort, broker: _Broker) -> None:
        if broker.away_since is not None:
            away_for_s = round(asyncio.get_running_loop().time() - broker.away_since, 1)
            log.info("broker_back", address=str(address), away_for_s=away_for_s)
            broker.away_since = None
        broker.answered = True
        self._publish()

    def _publish(self) -> None:
        reachable = sum(b.answered and b.away_since is None for b in self._brokers.values())
        BROKERS_KNOWN.set(len(self._brokers))
        BROKERS_REACHABLE.set(reachable)
        now = asyncio.get_running_loop().time()
        if all(broker.away_since is not None for broker in self._brokers.values()):
            if self._none_since is None and self._brokers:
                self._none_since = now
                addresses = ", ".join(map(str, self._brokers))
                log.error("brokers_away", addresses=addresses, error=self.status().last_error)
        elif self._none_since is not None:
            log.info("brokers_back", away_for_s=round(now - self._none_since, 1))
            self._none_since = None
