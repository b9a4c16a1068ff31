"""Accepts client connections: sockets, TLS, limits on connections, and regular checks of them.

Both servers use it: `relay.server` in front of a cluster's brokers, and `standalone.server` in
front of an archive alone. They give it a function that makes a session for a connection, and the
work that runs as long as the listener. It knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import socket
from asyncio.trsock import TransportSocket
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import NamedTuple, Self
from weakref import WeakSet

import structlog

from fetchproxy.config.schema import GatewayConfig
from fetchproxy.config.values import is_any_address, is_loopback, parse_host_port, parse_networks
from fetchproxy.errors import ConfigError
from fetchproxy.metadata.forgetting import TopicTable
from fetchproxy.observability.health import Condition, Health, Kind
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import (
    CONNECTION_BUFFERS_BYTES,
    CONNECTIONS,
    CONNECTIONS_REFUSED,
    LIMITS_REACHED,
)
from fetchproxy.runtime.retrying import keep_running
from fetchproxy.serving.client_groups import GroupsOfClients
from fetchproxy.serving.consumer_pacing import ConsumerPaces
from fetchproxy.serving.limits import AccumulatedBytes, ServingLimits, to_close
from fetchproxy.serving.proxy_acceptor import ProxyAcceptor
from fetchproxy.serving.session import Address, ClientSession, Drain
from fetchproxy.serving.transport import ReceiveBuffer
from fetchproxy.tls.acceptor import ClientProtocol, TlsAcceptor, ip_of
from fetchproxy.tls.reloading import ReloadingContext

log = structlog.get_logger(__name__)

# Time between two checks for idle connections and incomplete frames.
SWEEP_INTERVAL_S = 0.5
# Connections checked in one step of the loop: well below 1 ms of work.
SWEPT_AT_ONCE = 200
# When the listener closes, clients have this long to take their last bytes and to end TLS.
_CLOSE_MAX_S = 1.0
# Connections that wait in the kernel to be accepted, and that one turn of the loop accepts at most:
# each takes about 0.2 ms.
_BACKLOG = 1024
_ACCEPTED_AT_ONCE = 8

# Sessions that are told in one turn that the process ends: 0.2 ms each if they end at once.
_DRAINED_AT_ONCE = 50
# When each stage ends at the latest, as a share of `gateway.drain_max_ms`. A client that has lost
# one connection has a new one within half a second.
_DRAIN_STAGES = ((Drain.NODES, 0.1), (Drain.ALL, 0.5), (Drain.FORCE, 1.0))

# A refusal is shown for this long: clients try again sooner.
REFUSED_SHOWN_S = 900.0
# Makes a session from the server name (SNI), or None if the client gave none.
NewSession = Callable[[str | None], ClientSession]


class _Refused(NamedTuple):
    """Messages over one limit: when the first and the last came (loop s), and the last in words."""

    since: float
    last_at: float
    times: int
    message: str


class Listener:
    """An async context manager; no session outlives it. It is the sessions' `SessionOwner`.

    `name` is for the log. With `tls`, clients must speak TLS; the caller keeps `tls` up to date.
    `knows` accepts or rejects a client's server name, if server names select the broker.
    The server sets `consumer_paces`, `groups`, and `node_addresses()`: the advertised addresses by
    node id. If it keeps anything by topic, it sets `tables`.
    `health`: a part that fails is a condition, and starts again; None: it ends the listener.
    """

    port: int  # of `gateway.listen`, set by `open`; with port 0, the one that the system chose
    node_addresses: Callable[[], dict[int, Address]]
    consumer_paces: ConsumerPaces
    groups: GroupsOfClients
    tables: Sequence[TopicTable] = ()

    def __init__(
        self,
        config: GatewayConfig,
        limits: ServingLimits,
        tls: ReloadingContext | None,
        name: str,
        knows: Callable[[str | None], bool] | None = None,
        health: Health | None = None,
    ) -> None:
        self.config = config
        self.limits = limits
        self.clock = asyncio.get_running_loop().time
        self.warnings = SparingWarnings(self.clock)
        self.receive = ReceiveBuffer()
        self.accumulated = AccumulatedBytes(config.connection_buffers_bytes_max)
        self._refused: dict[str, _Refused] = {}
        self.host = parse_host_port(config.listen).host
        # No single host could be advertised to all clients.
        every_address = config.advertise_host is None and is_any_address(self.host)
        self.tells_reached = every_address and knows is None
        self._tls = tls
        self._name = name
        self._knows = knows
        self._health = health
        if health is not None:
            health.watch(self.conditions)
        self._acceptor: TlsAcceptor | None = None
        self._balanced = self._proxy_acceptor()
        self._sessions: set[ClientSession] = set()
        self._by_ip: Counter[str] = Counter()  # handshakes included
        self._empty = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._part_tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._servers: WeakSet[asyncio.Server] = WeakSet()  # with those of single nodes
        self._drains: Drain | None = None  # set when the process ends
        CONNECTIONS.set_function(lambda: self.connections)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        if self._tls is not None:
            self._acceptor = TlsAcceptor(
                self._tls,
                self.limits.tls_handshake_max_ms,
                self.limits.tls_handshakes_max,
                admit=self._admit,
                on_end=self._uncount,
                warnings=self.warnings,
                knows=self._knows,
            )
        elif not is_loopback(self.host):
            log.warning(
                "plaintext_beyond_loopback",
                listener=self._name,
                host=self.host,
                hint="set gateway.tls_certificate_file, unless the network is trusted",
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        """A caller of `listen` must close its server before this."""
        if self._server is not None:
            self._server.close()
        for task in self._part_tasks:
            task.cancel()
        if self._balanced is not None:
            self._balanced.close()
        if self._acceptor is not None:
            self._acceptor.close()
        for session in list(self._sessions):
            session.close()
        if not await self._empty_by(self.clock() + _CLOSE_MAX_S):
            for session in list(self._sessions):
                session.abort()
        # Without the error, if any: the task group would hide it in an exception group.
        await self._tasks.__aexit__(None, None, None)

    async def open(self, new_session: NewSession) -> None:
        """Listen at `gateway.listen`. Raises ConfigError if that fails."""
        listen = self.config.listen
        try:
            self._server = await self.listen(parse_host_port(listen).port, new_session)
        except OSError as error:
            raise ConfigError(
                f"gateway.listen = {listen}: cannot listen there: {error.strerror}"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        rests = "silent connections, and those that take too much memory, are not closed"
        self.keep("connection sweeper", self._sweep, rests)
        if self.tells_reached:
            log.warning(
                "listens_on_all_addresses",
                listener=self._name,
                host=self.host,
                clients_are_told="the address at which each client has reached this listener",
                fails_for="clients behind NAT, a load balancer or a container's published ports, "
                "and if the certificate does not name that address",
                hint="set gateway.advertise_host (--advertise) to a host that all clients can "
                "reach",
            )

    def run(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run `work` as a task until the listener is closed."""
        self._part_tasks.append(self._tasks.create_task(work, name=name))

    def keep(self, part: str, run: Callable[[], Coroutine[None, None, None]], rests: str) -> None:
        """Run a part until the listener is closed; again if it fails. `rests`: see keep_running."""
        if self._health is None:
            self.run(run(), part)
        else:
            self.run(keep_running(part, run, random.Random(), self._health, rests), part)

    def advertised(self, address_reached: str) -> Address:
        """The address advertised to a client that has reached this at the address
        `address_reached`.
        """
        host = self.config.advertise_host or self.host
        return (address_reached if self.tells_reached else host), self.port

    def too_large(self, limit: str, message: str) -> None:
        """See `SessionOwner`. The session logs it."""
        now, before = self.clock(), self._refused.get(limit)
        if before is None or now - before.last_at > REFUSED_SHOWN_S:
            before = _Refused(now, now, 0, message)
        self._refused[limit] = _Refused(before.since, now, before.times + 1, message)

    def conditions(self, now: float) -> Iterator[Condition]:
        """Messages that were refused by their size. `Health` calls it."""
        for limit, refused in self._refused.items():
            if now - refused.last_at <= REFUSED_SHOWN_S:
                often = f", {refused.times} times" if refused.times > 1 else ""
                message = f"Refused{often}: {refused.message}"
                yield Condition(Kind.MESSAGE_TOO_LARGE, message, limit, since=refused.since)

    async def listen(self, port: int, new_session: NewSession) -> asyncio.Server:
        """Open a further server socket; the caller closes it. Raises OSError."""
        if self._drains is not None:
            raise OSError("the process is stopping and opens no port")
        factory: Callable[[], asyncio.BaseProtocol] = self._protocol_factory(new_session)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            factory,
            self.host,
            port,
            backlog=_ACCEPTED_AT_ONCE,
            reuse_port=self.config.share_ports or None,
        )
        # asyncio has one number for both; the kernel's may be set again.
        _set_backlog(server, _BACKLOG)
        self._servers.add(server)
        return server

    def _proxy_acceptor(self) -> ProxyAcceptor | None:
        balancers = parse_networks(self.config.proxy_protocol_from or "")
        if not balancers:
            return None
        limit_ms = self.limits.proxy_header_max_ms
        return ProxyAcceptor(balancers, limit_ms, self.receive, self._has_room, self.warnings)

    def _protocol_factory(self, new_session: NewSession) -> Callable[[], asyncio.BaseProtocol]:
        """A connection is balanced first, if balancers are known, then encrypted, then served."""
        served: Callable[[], ClientProtocol]
        if self._acceptor is None:
            served = lambda: new_session(None)  # noqa: E731
        else:
            served = self._acceptor.protocol_factory(new_session)
        if self._balanced is None:
            return served

        def begin(client: Address | None) -> ClientProtocol:
            protocol = served()
            protocol.peer = client
            return protocol

        return self._balanced.protocol_factory(begin)

    # -- the end ---------------------------------------------------------------------------------
    async def drain(self) -> None:
        """Let every client go between two of its responses, and return when all have gone, or when
        `gateway.drain_max_ms` is over.

        A client does not lose the bootstrap connection together with the others: librdkafka would
        tell its application that all brokers are down, at which kcat ends.
        """
        began_at, most_s = self.clock(), self.config.drain_max_ms / 1000
        if not most_s:
            return
        log.info("draining", connections=self.connections, drain_max_ms=self.config.drain_max_ms)
        self._drains = Drain.NODES
        for server in list(self._servers):
            await _close_gently(server)
        for stage, share in _DRAIN_STAGES:
            await self._ask_to_go(stage)
            if await self._empty_by(began_at + share * most_s):
                break
        lasted_s = round(self.clock() - began_at, 3)
        log.info("drained", lasted_s=lasted_s, connections_cut=len(self._sessions))

    async def _ask_to_go(self, stage: Drain) -> None:
        self._drains = stage
        for number, session in enumerate(list(self._sessions), 1):
            session.drain(stage)
            if not number % _DRAINED_AT_ONCE:
                await asyncio.sleep(0)

    async def _empty_by(self, until: float) -> bool:
        """Wait until loop time `until`, or until no client is served and none shakes hands: True.

        A connection without a byte is nobody's loss.
        """
        try:
            async with asyncio.timeout_at(until):
                while self._sessions or (self._acceptor is not None and self._acceptor.handshakes):
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True

    @property
    def connections(self) -> int:
        """All connections, also those still in the TLS handshake or without a PROXY header yet."""
        shaking = 0 if self._acceptor is None else len(self._acceptor)
        waiting = 0 if self._balanced is None else len(self._balanced.waiting)
        return len(self._sessions) + shaking + waiting

    def _has_room(self, client: str) -> bool:
        """True: one more connection is within `connections_max`. Otherwise logs the limit."""
        limit = self.config.connections_max
        return self._is_within("connections_max", self.connections, limit, client)

    def _admit(self, client: str) -> bool:
        """True: one more connection of `client` (`address:port`) is within the limits, and is now
        counted. Otherwise logs the limit.
        """
        ip = ip_of(client)
        per_ip_max = self.config.connections_per_ip_max
        if not (
            self._has_room(client)
            and self._is_within("connections_per_ip_max", self._by_ip[ip], per_ip_max, client)
        ):
            return False
        self._by_ip[ip] += 1
        return True

    def _is_within(self, reason: str, count: int, limit: int, client: str) -> bool:
        if count < limit:
            return True
        LIMITS_REACHED.labels(reason).inc()
        CONNECTIONS_REFUSED.labels("limit").inc()
        self.warnings.warn(
            "client_connection_closed",
            (reason, ip_of(client)),
            client=client,
            reason=reason,
            limit=limit,
        )
        return False

    def _uncount(self, client: str) -> None:
        ip = ip_of(client)
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]
        self._empty.set()  # perhaps: `_empty_by` looks

    # -- sessions --------------------------------------------------------------------------------
    def made(self, session: ClientSession) -> None:
        if not self._admit(session.client):
            session.close()
            return
        self._sessions.add(session)
        self._tasks.create_task(self._serve(session), name=f"session-{session.client}")
        if self._drains is not None:
            session.drain(self._drains)

    def lost(self, session: ClientSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            self._uncount(session.client)

    def close_sessions(self, which: Callable[[ClientSession], bool], reason: str) -> None:
        for session in [session for session in self._sessions if which(session)]:
            session.close(reason)

    async def _serve(self, session: ClientSession) -> None:
        try:
            await session.run()
        except Exception as error:
            log.error("session_crashed", client=session.client, error=repr(error), exc_info=True)

    async def _sweep(self) -> None:
        """Close connections that are silent, gone, take nothing, or hold too much memory. Checks a
        few at a time: ten thousand would hold the loop for tens of milliseconds.
        """
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            sizes: list[tuple[int, ClientSession]] = []
            for number, session in enumerate(list(self._sessions), 1):
                if session in self._sessions:  # else its client has gone since the last pause
                    session.look(self.clock())
                    if total_bytes := session.kept_bytes:
                        sizes.append((total_bytes, session))
                if not number % SWEPT_AT_ONCE:
                    await asyncio.sleep(0)
            reserved = self.accumulated.reserved
            kept_max = self.config.connection_buffers_bytes_max
            total_bytes = reserved + sum(total_bytes for total_bytes, _ in sizes)
            CONNECTION_BUFFERS_BYTES.set(total_bytes)
            self.accumulated.leave_to_others(total_bytes - self.accumulated.total, kept_max)
            for session in to_close(sizes, kept_max - reserved):
                session.give_up()


def _set_backlog(server: asyncio.Server, connections: int) -> None:
    """How many connections may wait in the kernel until they are accepted."""
    for listening in server.sockets:
        if isinstance(listening, TransportSocket):
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(connections)


async def _close_gently(server: asyncio.Server) -> None:
    """Close, and accept first what waits: the kernel would reset it.

    Meanwhile the kernel lets further clients wait, who try again within a second or so: then
    another process may have the port.
    """
    _set_backlog(server, 0)
    for _ in range(_BACKLOG // _ACCEPTED_AT_ONCE):
        sockets = [each for each in server.sockets if isinstance(each, TransportSocket)]
        if not select.select(sockets, [], [], 0)[0]:
            break
        await asyncio.sleep(0)
    server.close()
