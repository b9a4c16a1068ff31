"""GatewayServer: the listeners, the sessions behind them, and the limits on both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import structlog

from fetchproxy.cluster.client import Cluster
from fetchproxy.config.addresses import parse_bootstrap, parse_host_port
from fetchproxy.config.sections import Config
from fetchproxy.gateway.address_map import Address, AddressMap
from fetchproxy.gateway.broker_link import BrokerLink
from fetchproxy.gateway.client_session import ClientSession
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.receive_buffer import ReceiveBuffer
from fetchproxy.gateway.sparing_warnings import SparingWarnings
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import CONNECTIONS, CONNECTIONS_REFUSED, LIMITS_REACHED
from fetchproxy.remote_fetch.purgatory import RemoteFetchPurgatory

log = structlog.get_logger(__name__)

# Idle connections and half frames are looked for this often.
SWEEP_INTERVAL_S = 0.5


class GatewayServer:
    """An async context manager; the listeners are open inside it and no session outlives it."""

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        rlmm: RemoteLogMetadataManager,
        purgatory: RemoteFetchPurgatory,
        is_archiving: Callable[[TopicIdPartition], bool] = lambda tip: False,
        rng: random.Random | None = None,
    ) -> None:
        self._config = config.gateway
        self._bootstrap = parse_bootstrap(config.cluster.bootstrap)
        self._addresses = AddressMap(config.gateway, self._listen_for_node)
        loop = asyncio.get_running_loop()
        self._parts = GatewayParts(
            config=config.gateway,
            remote_fetch=config.remote_fetch,
            cluster=cluster,
            rlmm=rlmm,
            purgatory=purgatory,
            addresses=self._addresses,
            receive=ReceiveBuffer(),
            random=rng or random.Random(),
            clock=loop.time,
            warnings=SparingWarnings(loop.time),
            is_archiving=is_archiving,
        )
        self._sessions: set[ClientSession] = set()
        self._stack = AsyncExitStack()
        self._tasks: asyncio.TaskGroup | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        listen = parse_host_port(self._config.listen)
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        try:
            self._server = await self._listen(listen.port, self._to_bootstrap)
        except OSError:
            await self._stack.aclose()
            raise
        self._addresses.number_from(self.port + 1)
        self._sweeper = self._tasks.create_task(self._sweep(), name="connection-sweeper")
        log.info("gateway_listening", host=listen.host, port=self.port)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        await self._addresses.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for session in list(self._sessions):
            session.close()
        await self._stack.aclose()

    @property
    def port(self) -> int:
        """Of the bootstrap listener, also where port 0 was asked for."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._sessions)

    def node_addresses(self) -> dict[int, Address]:
        """What clients are told, by node id."""
        return self._addresses.proxied()

    # -- listeners -------------------------------------------------------------------------------
    async def _listen(
        self, port: int, candidates: Callable[[], Awaitable[Sequence[Address]]]
    ) -> asyncio.Server:
        host = parse_host_port(self._config.listen).host
        loop = asyncio.get_running_loop()

        def new_session() -> ClientSession:
            async def connect(factory: Callable[[], BrokerLink]) -> BrokerLink:
                return await self._dial(await candidates(), factory)

            return ClientSession(self._parts, connect, self._made, self._lost)

        return await loop.create_server(new_session, host, port, backlog=1024)

    async def _listen_for_node(self, node_id: int, port: int) -> asyncio.Server:
        async def candidates() -> Sequence[Address]:
            return [self._addresses.broker_address(node_id)]

        return await self._listen(port, candidates)

    async def _to_bootstrap(self) -> Sequence[Address]:
        return [(address.host, address.port) for address in self._bootstrap]

    async def _dial(
        self, candidates: Sequence[Address], factory: Callable[[], BrokerLink]
    ) -> BrokerLink:
        """The first that answers; raises OSError naming the last failure."""
        loop = asyncio.get_running_loop()
        failure: OSError = OSError("no broker address is known")
        for host, port in candidates:
            try:
                async with asyncio.timeout(self._config.upstream_connect_max_ms / 1000):
                    _, link = await loop.create_connection(factory, host, port)
                    return link
            except TimeoutError:
                failure = OSError(f"{host}:{port} did not answer in time")
            except OSError as error:
                failure = OSError(f"{host}:{port}: {error}")
        raise failure

    # -- sessions --------------------------------------------------------------------------------
    def _made(self, session: ClientSession) -> None:
        assert self._tasks is not None
        if len(self._sessions) >= self._config.connections_max:
            LIMITS_REACHED.labels("connections_max").inc()
            CONNECTIONS_REFUSED.labels("limit").inc()
            session.close("connections_max", limit=self._config.connections_max)
            return
        self._sessions.add(session)
        CONNECTIONS.set(len(self._sessions))
        self._tasks.create_task(self._run(session), name=f"session-{session.client}")

    def _lost(self, session: ClientSession) -> None:
        self._sessions.discard(session)
        CONNECTIONS.set(len(self._sessions))

    async def _run(self, session: ClientSession) -> None:
        try:
            await session.run()
        except Exception as error:
            log.error("session_crashed", client=session.client, error=repr(error), exc_info=True)

    async def _sweep(self) -> None:
        """Close what is silent, or began a frame and does not end it."""
        idle = self._config.idle_max_ms / 1000
        half = self._config.half_frame_max_ms / 1000
        clock = self._parts.clock
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            now = clock()
            for session in list(self._sessions):
                begun = session.frame_begun
                if begun is not None and now - begun > half:
                    LIMITS_REACHED.labels("half_frame_max_ms").inc()
                    session.close("half_frame_max_ms", waited_s=round(now - begun, 1))
                elif now - session.last_activity > idle and session.closing:
                    session.abort()  # it never took what was still to be written
                elif now - session.last_activity > idle:
                    LIMITS_REACHED.labels("idle_max_ms").inc()
                    session.close("idle_max_ms")
