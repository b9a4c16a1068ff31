"""Where clients connect: sockets, TLS, how many may be there, and the looks at those that are.

It is one server with two things behind it, the brokers of a cluster (`relay.server`) or an archive
alone (`standalone.server`). They give it what makes a session of a connection, and what is to run
as long as it does. Of requests it knows nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Self

import structlog

from fetchproxy.config.schema import GatewayConfig
from fetchproxy.config.values import is_any_address, is_loopback, parse_host_port
from fetchproxy.errors import ConfigError
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import (
    CONNECTION_BUFFERS_BYTES,
    CONNECTIONS,
    CONNECTIONS_REFUSED,
    LIMITS_REACHED,
)
from fetchproxy.serving.appetite import Appetites
from fetchproxy.serving.limits import ServingLimits, to_close
from fetchproxy.serving.session import Address, ClientSession
from fetchproxy.serving.transport import ReceiveBuffer
from fetchproxy.tls.acceptor import TlsAcceptor, ip_of
from fetchproxy.tls.contexts import ReloadingContext

log = structlog.get_logger(__name__)

# Idle connections and half frames are looked for this often.
SWEEP_INTERVAL_S = 0.5
# Well below 1 ms of work between two breaths of the event loop.
SWEPT_AT_ONCE = 200
# At the end a client may take what was written, and its part in ending TLS, for so long.
CLOSE_MAX_S = 1.0
_BACKLOG = 1024

# Of the server name (SNI), where a client has given one.
NewSession = Callable[[str | None], ClientSession]


class Listener:
    """An async context manager; no session outlives it. It is what sessions call their owner.

    `name` is for the log. With `tls` clients speak TLS and nothing else; its owner keeps it fresh.
    `knows` judges the server names that they ask for, where these say whom a client wants.
    Its server sets `node_addresses()`, which is what clients are told, by node id, and `appetites`.
    """

    node_addresses: Callable[[], dict[int, Address]]
    appetites: Appetites

    def __init__(
        self,
        config: GatewayConfig,
        limits: ServingLimits,
        tls: ReloadingContext | None,
        name: str,
        knows: Callable[[str | None], bool] | None = None,
    ) -> None:
        self.config = config
        self.limits = limits
        self.clock = asyncio.get_running_loop().time
        self.warnings = SparingWarnings(self.clock)
        self.receive = ReceiveBuffer()
        self.host = parse_host_port(config.listen).host
        # There is no one host that all clients could be told.
        every_address = config.advertise_host is None and is_any_address(self.host)
        self.tells_reached = every_address and knows is None
        self._tls = tls
        self._name = name
        self._knows = knows
        self._acceptor: TlsAcceptor | None = None
        self._sessions: set[ClientSession] = set()
        self._by_ip: Counter[str] = Counter()  # handshakes included
        self._empty = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._own_tasks: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        CONNECTIONS.set_function(lambda: self.connections)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        if self._tls is not None:
            self._acceptor = TlsAcceptor(
                self._tls,
                self._tasks,
                self.limits.tls_handshake_max_ms,
                admit=self._admit,
                ended=self._uncount,
                warnings=self.warnings,
                knows=self._knows,
            )
        elif not is_loopback(self.host):
            log.warning("plaintext_beyond_loopback", listener=self._name, host=self.host)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Whoever has called `listen` closes that server before this."""
        if self._server is not None:
            self._server.close()
        for task in self._own_tasks:
            task.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
        for session in list(self._sessions):
            session.close()
        await self._closed()
        # Without the error, if there is one: a group of errors would hide what it is.
        await self._tasks.__aexit__(None, None, None)

    async def open(self, new_session: NewSession) -> None:
        """At `gateway.listen`. Raises ConfigError where it cannot listen there."""
        listen = self.config.listen
        try:
            self._server = await self.listen(parse_host_port(listen).port, new_session)
        except OSError as error:
            raise ConfigError(
                f"gateway.listen = {listen}: cannot listen there: {error.strerror}"
            ) from error
        self.run(self._sweep(), "connection-sweeper")
        if self.tells_reached:
            log.warning(
                "listens_on_all_addresses",
                listener=self._name,
                host=self.host,
                clients_are_told="the address at which each has reached this listener",
                fails_for="clients behind NAT, a load balancer or a container's published ports, "
                "and where a certificate does not name that address",
                hint="set gateway.advertise_host (--advertise) to a host that all clients can dial",
            )

    def run(self, work: Coroutine[None, None, None], name: str) -> None:
        """Until this is closed."""
        self._own_tasks.append(self._tasks.create_task(work, name=name))

    @property
    def port(self) -> int:
        """Of `gateway.listen`, also where port 0 was asked for."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def advertised(self, reached: str) -> Address:
        """What a client is told that has reached this at the address `reached`."""
        host = self.config.advertise_host or self.host
        return (reached if self.tells_reached else host), self.port

    async def listen(self, port: int, new_session: NewSession) -> asyncio.Server:
        """A further one, open until its owner closes it. Raises OSError."""
        factory: Callable[[], asyncio.BaseProtocol]
        if self._acceptor is None:
            factory = lambda: new_session(None)  # noqa: E731
        else:
            factory = self._acceptor.protocol_factory(new_session)
        loop = asyncio.get_running_loop()
        return await loop.create_server(factory, self.host, port, backlog=_BACKLOG)

    @property
    def connections(self) -> int:
        """Those that still shake hands included."""
        return len(self._sessions) + (0 if self._acceptor is None else len(self._acceptor))

    def _admit(self, client: str) -> bool:
        """Whether one more may be, of `address:port`: it counts from now on. Says so if not."""
        ip = ip_of(client)
        limits = (
            ("connections_max", self.connections, self.config.connections_max),
            ("connections_per_ip_max", self._by_ip[ip], self.config.connections_per_ip_max),
        )
        for reason, count, limit in limits:
            if count >= limit:
                LIMITS_REACHED.labels(reason).inc()
                CONNECTIONS_REFUSED.labels("limit").inc()
                self.warnings.warn(
                    "client_connection_closed",
                    (reason, ip),
                    client=client,
                    reason=reason,
                    limit=limit,
                )
                return False
        self._by_ip[ip] += 1
        return True

    def _uncount(self, client: str) -> None:
        ip = ip_of(client)
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]

    # -- sessions --------------------------------------------------------------------------------
    def made(self, session: ClientSession) -> None:
        if not self._admit(session.client):
            session.close()
            return
        self._sessions.add(session)
        self._tasks.create_task(self._serve(session), name=f"session-{session.client}")

    def lost(self, session: ClientSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            self._uncount(session.client)
        if not self._sessions:
            self._empty.set()

    async def _serve(self, session: ClientSession) -> None:
        try:
            await session.run()
        except Exception as error:
            log.error("session_crashed", client=session.client, error=repr(error), exc_info=True)

    async def _closed(self) -> None:
        """Until every connection has ended; those that take their time are cut off."""
        try:
            async with asyncio.timeout(CLOSE_MAX_S):
                while self._sessions:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            for session in list(self._sessions):
                session.abort()

    async def _sweep(self) -> None:
        """Close what is silent, gone, takes nothing, or is too much; a few at a time, as ten
        thousand connections would hold the loop for tens of milliseconds.
        """
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            held: list[tuple[int, ClientSession]] = []
            for number, session in enumerate(list(self._sessions), 1):
                session.look(self.clock())
                if kept := session.kept_bytes:
                    held.append((kept, session))
                if not number % SWEPT_AT_ONCE:
                    await asyncio.sleep(0)
            CONNECTION_BUFFERS_BYTES.set(sum(kept for kept, _ in held))
            for session in to_close(held, self.config.connection_buffers_bytes_max):
                LIMITS_REACHED.labels("connection_buffers_bytes_max").inc()
                session.close("connection_buffers_bytes_max")
                session.abort()  # or what it holds would stay
