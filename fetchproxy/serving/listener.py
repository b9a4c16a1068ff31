"""Where clients connect: sockets, TLS, how many may be there, and the looks at those that are.

A server gives it what makes a session of a connection; of requests it knows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog

from fetchproxy.config.schema import GatewayConfig
from fetchproxy.config.values import is_any_address, is_loopback, parse_host_port
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import CONNECTION_BUFFERS_BYTES, CONNECTIONS, LIMITS_REACHED
from fetchproxy.serving.limits import ConnectionLimits, ServingLimits, to_close
from fetchproxy.serving.session import ClientSession
from fetchproxy.serving.transport import ReceiveBuffer
from fetchproxy.tls.acceptor import TlsAcceptor
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


def tells_address_reached(config: GatewayConfig) -> bool:
    """Whether there is no one host that all clients are told."""
    return config.advertise_host is None and is_any_address(parse_host_port(config.listen).host)


def warn_of_address_reached(config: GatewayConfig, listener: str) -> None:
    """At the start: what clients are told, and for whom it is wrong."""
    log.warning(
        "listens_on_all_addresses",
        listener=listener,
        host=parse_host_port(config.listen).host,
        clients_are_told="the address at which each has reached this listener",
        fails_for="clients behind NAT, a load balancer or a container's published ports, and where "
        "a certificate does not name that address",
        hint="set gateway.advertise_host (--advertise) to a host that all clients can dial",
    )


class Listener:
    """An async context manager; no session outlives it. It is what sessions call their owner.

    Its owner cancels what it has begun in `tasks` before this ends. `name` is for the log. With
    `tls` clients speak TLS and nothing else; `knows` judges the names that they ask for.
    """

    def __init__(
        self,
        config: GatewayConfig,
        limits: ServingLimits,
        tls: ReloadingContext | None,
        warnings: SparingWarnings,
        name: str,
        knows: Callable[[str | None], bool] | None = None,
    ) -> None:
        self.config = config
        self.limits = limits
        self.warnings = warnings
        self.clock = asyncio.get_running_loop().time
        self.receive = ReceiveBuffer()
        self.tasks = asyncio.TaskGroup()
        self.host = parse_host_port(config.listen).host
        self._tls = tls
        self._name = name
        self._knows = knows
        self._acceptor: TlsAcceptor | None = None
        self._counts = ConnectionLimits(config, warnings.warn)
        self._sessions: set[ClientSession] = set()
        self._empty = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.tasks.__aenter__()
        if self._tls is not None:
            self._acceptor = TlsAcceptor(
                self._tls,
                self.tasks,
                self.limits.tls_handshake_max_ms,
                admit=self._admit,
                changed=self._count,
                warn=self.warnings.warn,
                knows=self._knows,
            )
        elif not is_loopback(self.host):
            log.warning("plaintext_beyond_loopback", listener=self._name, host=self.host)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The server closes its listening sockets before this."""
        if self._acceptor is not None:
            self._acceptor.close()
        for session in list(self._sessions):
            session.close()
        await self._closed()
        await self.tasks.__aexit__(kind, error, traceback)

    async def listen(self, port: int, new_session: NewSession) -> asyncio.Server:
        """Open until its owner closes it. Raises OSError."""
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
        return self._counts.count(self._acceptor)

    def _admit(self, client: str) -> bool:
        return self._counts.admit(client, self._acceptor)

    def _count(self) -> None:
        CONNECTIONS.set(self.connections)

    # -- sessions --------------------------------------------------------------------------------
    def made(self, session: ClientSession) -> None:
        if not self._admit(session.client):
            session.close()
            return
        self._sessions.add(session)
        self._counts.opened(session.client)
        self._count()
        self.tasks.create_task(self._run(session), name=f"session-{session.client}")

    def lost(self, session: ClientSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            self._counts.closed(session.client)
        self._count()
        if not self._sessions:
            self._empty.set()

    async def _run(self, session: ClientSession) -> None:
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

    async def sweep(self) -> None:
        """For ever: close what is silent, gone, takes nothing, or is too much.

        A few at a time: ten thousand connections would hold the loop for tens of milliseconds.
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
