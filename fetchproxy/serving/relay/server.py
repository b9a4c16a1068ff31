"""GatewayServer: the listeners, the sessions behind them, and the limits on both."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

import structlog

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import Config
from fetchproxy.config.values import is_loopback, parse_bootstrap, parse_host_port
from fetchproxy.errors import ClusterError, ConfigError, RemoteStorageError
from fetchproxy.metadata.archiver_positions import ArchiverPositions
from fetchproxy.metadata.leader_views import LeaderViews
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Condition
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import CONNECTION_BUFFERS_BYTES, CONNECTIONS, LIMITS_REACHED
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.runtime.loop import each_of
from fetchproxy.serving.admission import AnswerBudget, AnswerTurns, ClientRates, payer_of
from fetchproxy.serving.limits import ConnectionLimits, to_close
from fetchproxy.serving.relay.addresses import (
    Address,
    AddressMap,
    ToldAddresses,
    tells_address_reached,
    warn_of_address_reached,
)
from fetchproxy.serving.relay.archive_starts import ArchiveStarts
from fetchproxy.serving.relay.archived_topics import ArchivedKnowledge, ArchivedTopics
from fetchproxy.serving.relay.broker_link import BrokerLink, UpstreamDial
from fetchproxy.serving.relay.held_readers import HeldReaders, SkippedOffsets
from fetchproxy.serving.relay.judgement import Judgement, judge
from fetchproxy.serving.relay.offset_lookup import ArchiveLookup
from fetchproxy.serving.relay.parts import GatewayParts
from fetchproxy.serving.relay.session import ClientSession, Connect
from fetchproxy.serving.transport import ReceiveBuffer, open_record_pipe
from fetchproxy.tls.acceptor import TlsAcceptor
from fetchproxy.tls.contexts import (
    ReloadingContext,
    UpstreamTls,
    listener_context,
    upstream_context,
)
from protocol.fetch import PartitionKey

# What the archive has is looked up before a gateway listens.
#
# A process that has just started knows nothing, and the first client that asks where thousands of
# partitions begin would wait for all that has to be read. So every archived topic is looked up
# once, in the way in which a client's question is answered, and later ones find it in memory.
# Listening waits `FIRST_LOOKS_WAIT_MAX_S` for this, and no longer than the first attempt takes.
# What is not looked up by then goes on meanwhile, and a question that comes shares what is being
# read. In an outage it is tried again.

log = structlog.get_logger(__name__)

# Metadata of so many segments are looked up before anybody asks: 1 KB each, in the worst case.
SEGMENTS_MAX = 100_000
RETRY_PAUSE_S = 5.0
# A client that cannot connect asks another proxy, or again within a second. Two thousand partitions
# take 0.7 s with a store 40 ms away.
FIRST_LOOKS_WAIT_MAX_S = 2.0
_IDENTITY_AGE_MAX_MS = 60_000


async def look_at_archived_topics(parts: GatewayParts, tried: asyncio.Event) -> None:
    """One topic after the other; ends when all were looked at, or memory has enough of them.

    `tried` is set after the first attempt, whatever came of it.
    """
    while not await _is_done(parts):
        tried.set()
        await asyncio.sleep(RETRY_PAUSE_S)
    tried.set()


async def _is_done(parts: GatewayParts) -> bool:
    """False: the store or the brokers are away."""
    try:
        await _look(parts)
    except (ClusterError, RemoteStorageError) as error:
        log.info("archive_not_looked_up_yet", error=str(error))
        return False
    except Exception as error:  # no client may depend on this, so neither may the process
        log.exception("archive_not_looked_up", error=repr(error))
    return True


async def _look(parts: GatewayParts) -> None:
    archived = await parts.knowledge.topics()
    topics = await parts.cluster.topics_of(archived, _IDENTITY_AGE_MAX_MS)
    segments = 0
    for topic in topics.values():
        if isinstance(topic, ClusterError):
            continue  # it was deleted, or nobody may describe it
        if segments >= SEGMENTS_MAX:
            log.info("archive_looked_up_in_part", segments=segments)
            return
        partitions = await parts.rlmm.refresh_topic(topic.topic_id, float("-inf"))
        tips = [TopicIdPartition(topic.topic_id, topic.name, n) for n in partitions]
        # As clients may see it: held against its leaders.
        await ArchiveLookup(parts, parts.clock()).views(tips)
        async for view in each_of(partitions.values()):
            segments += len(view.segments)


# GatewayServer: the listeners, the sessions behind them, and the limits on both.


# Idle connections and half frames are looked for this often.
SWEEP_INTERVAL_S = 0.5
# Well below 1 ms of work between two breaths of the event loop.
SWEPT_AT_ONCE = 200
# While no broker answers, nodes are asked for this often.
NODES_RETRY_INTERVAL_S = 1.0
# At the end a client may take what was written, and its part in ending TLS, for so long.
CLOSE_MAX_S = 1.0


class GatewayServer:
    """An async context manager; the listeners are open inside it and no session outlives it."""

    def __init__(
        self,
        config: Config,
        cluster: Cluster,
        rlmm: RemoteLogMetadataManager,
        views: LeaderViews,
        purgatory: RemoteFetchPurgatory,
        positions: ArchiverPositions,
        is_archiving: Callable[[TopicIdPartition], bool] = lambda tip: False,
        rng: random.Random | None = None,
        tls: tuple[ReloadingContext | None, ReloadingContext | None] | None = None,
    ) -> None:
        """`views`: of `rlmm`, the same that `purgatory` reads by.

        `tls`: for the listeners and for brokers; made here if not given. Raises ConfigError."""
        self._config = config.gateway
        self._tls, upstream = tls or (
            listener_context(config.gateway, config.tls),
            upstream_context(config.cluster, config.tls),
        )
        self._bootstrap = [(a.host, a.port) for a in parse_bootstrap(config.cluster.bootstrap)]
        self._dial = UpstreamDial(config.gateway, UpstreamTls(upstream).for_host)
        self._addresses = AddressMap(config.gateway, self._listen_for_node)
        loop = asyncio.get_running_loop()
        warnings = SparingWarnings(loop.time)
        knowledge = ArchivedKnowledge(rlmm, loop.time, warnings)
        self._parts = GatewayParts(
            config=config.gateway,
            clients_use_sasl=config.cluster.security_protocol.startswith("SASL_"),
            remote_fetch=config.remote_fetch,
            cluster=cluster,
            rlmm=rlmm,
            views=views,
            purgatory=purgatory,
            addresses=ToldAddresses(self._addresses),
            receive=ReceiveBuffer(),
            records=open_record_pipe(config.gateway.splice_bytes_min),
            random=rng or random.Random(),
            clock=loop.time,
            warnings=warnings,
            is_archiving=is_archiving,
            knowledge=knowledge,
            starts=ArchiveStarts(cluster, rlmm, views),
            positions=positions,
            held=HeldReaders(loop.time, config.gateway.held_max_ms),
            skipped=SkippedOffsets(),
            archived=ArchivedTopics(
                cluster, rlmm, knowledge, loop.time, config.gateway.log_start_max_age_ms / 1000
            ),
            answers=AnswerBudget(
                config.gateway.remote_answer_bytes_max, config.gateway.remote_answers_bytes_max
            ),
            turns=AnswerTurns(
                config.gateway.remote_answer_turns_max,
                config.gateway.remote_answer_turn_max_ms / 1000,
            ),
            rates=ClientRates(config.remote_fetch.client_bytes_per_s_max, loop.time),
        )
        self._tells_reached = self._addresses.names is None and tells_address_reached(self._config)
        self._sessions: set[ClientSession] = set()
        self._limits = ConnectionLimits(config.gateway, self._parts.warnings.warn)
        self._empty = asyncio.Event()
        self._stack = AsyncExitStack()
        self._tasks: asyncio.TaskGroup | None = None
        self._own_tasks: list[asyncio.Task[None]] = []
        self._acceptor: TlsAcceptor | None = None
        self._server: asyncio.Server | None = None

    def conditions(self, now: float) -> Iterable[Condition]:
        """Readers that wait. Never blocks."""
        return self._parts.held.conditions()

    async def __aenter__(self) -> Self:
        if self._parts.records is not None:
            self._stack.callback(self._parts.records.close)
        listen = parse_host_port(self._config.listen)
        self._tasks = await self._stack.enter_async_context(asyncio.TaskGroup())
        if self._tls is not None:
            self._acceptor = self._accept_tls(self._tls, self._tasks)
        elif not is_loopback(listen.host):
            log.warning("plaintext_beyond_loopback", listener="gateway", host=listen.host)
        try:
            await self._addresses.open_mapped()
            self._server = await self._listen(listen.port)
        except (OSError, ConfigError):
            await self._addresses.close()
            await self._stack.aclose()
            raise
        self._addresses.number_from(self.port + 1)
        if self._tells_reached:
            warn_of_address_reached(self._config, "gateway")
        self._own_tasks = [
            self._tasks.create_task(self._sweep(), name="connection-sweeper"),
            self._tasks.create_task(self._parts.knowledge.run(), name="archived-knowledge"),
            self._tasks.create_task(self._parts.positions.run(), name="archiver-positions"),
            self._tasks.create_task(self._parts.archived.run(), name="archived-topics"),
            self._tasks.create_task(self._judge_held(), name="held-readers"),
            self._tasks.create_task(self._open_remembered(), name="remembered-nodes"),
        ]
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
        for task in self._own_tasks:
            task.cancel()
        if self._acceptor is not None:
            self._acceptor.close()
        for session in list(self._sessions):
            session.close()
        await self._closed()
        await self._stack.aclose()

    async def look_ahead(self, tried: asyncio.Event) -> None:
        """Look up what the archive has; may begin before this is entered. See `server`."""
        await look_at_archived_topics(self._parts, tried)

    @property
    def port(self) -> int:
        """Of the bootstrap listener, also where port 0 was asked for."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """Those that still shake hands included."""
        return self._limits.count(self._acceptor)

    def node_addresses(self) -> dict[int, Address]:
        """What clients are told, by node id."""
        return self._addresses.proxied()

    # -- listeners -------------------------------------------------------------------------------
    async def _listen(self, port: int, node_id: int | None = None) -> asyncio.Server:
        """For one broker, or for bootstrapping."""
        host = parse_host_port(self._config.listen).host
        loop = asyncio.get_running_loop()
        names = self._addresses.names

        def new_session(server_name: str | None = None) -> ClientSession:
            named = names.node_of(server_name) if names is not None else None
            node = node_id if named is None else named
            connect = self._to_bootstrap if node is None else self._connect_to(node)
            return ClientSession(self._parts_of_client(), connect, self._made, self._lost, node)

        acceptor = self._acceptor
        factory = new_session if acceptor is None else acceptor.protocol_factory(new_session)
        return await loop.create_server(factory, host, port, backlog=1024)

    async def _listen_for_node(self, node_id: int, port: int) -> asyncio.Server:
        return await self._listen(port, node_id)

    def _parts_of_client(self) -> GatewayParts:
        if not self._tells_reached:
            return self._parts
        return replace(self._parts, addresses=ToldAddresses(self._addresses))

    def _connect_to(self, node_id: int) -> Connect:
        async def connect(factory: Callable[[], BrokerLink]) -> BrokerLink:
            return await self._dial.to(await self._broker_address(node_id), factory)

        return connect

    def _accept_tls(self, source: ReloadingContext, tasks: asyncio.TaskGroup) -> TlsAcceptor:
        names = self._addresses.names
        return TlsAcceptor(
            source,
            tasks,
            self._config.tls_handshake_max_ms,
            admit=self._admit,
            changed=self._count,
            warn=self._parts.warnings.warn,
            knows=None if names is None else names.knows,
        )

    def _admit(self, client: str) -> bool:
        return self._limits.admit(client, self._acceptor)

    def _count(self) -> None:
        CONNECTIONS.set(self.connections)

    async def _judge_held(self) -> None:
        async def look(
            by_id: bool,
            offsets: Mapping[PartitionKey, int],
            now: float,
            impatient: Collection[PartitionKey],
        ) -> Mapping[PartitionKey, Judgement]:
            return await judge(self._parts, by_id, offsets, now, impatient)

        await self._parts.held.run(look)

    async def _open_remembered(self) -> None:
        """A client that knew this proxy before its restart dials a node without asking first."""
        while True:
            try:
                brokers = await self._parts.cluster.brokers()
                await self._addresses.ensure((n, b.host, b.port) for n, b in brokers.items())
                return
            except ClusterError:
                await asyncio.sleep(NODES_RETRY_INTERVAL_S)
            except OSError as error:
                log.warning("node_listeners_not_opened", error=str(error))
                return

    async def _broker_address(self, node_id: int) -> Address:
        """Raises OSError for a node that the cluster does not have, or cannot be asked about."""
        address = self._addresses.broker_address(node_id)
        if address is None:  # its port is open from the start, or a client remembered it
            try:
                brokers = await self._parts.cluster.brokers()
            except ClusterError as error:
                raise OSError(f"node {node_id} is not known: {error}") from error
            if node_id not in brokers:
                raise OSError(f"node {node_id} is not in the cluster")
            address = (brokers[node_id].host, brokers[node_id].port)
        return address

    async def _to_bootstrap(self, factory: Callable[[], BrokerLink]) -> BrokerLink:
        return await self._dial.to_any(self._bootstrap, factory)

    # -- sessions --------------------------------------------------------------------------------
    def _made(self, session: ClientSession, transport: asyncio.BaseTransport) -> None:
        assert self._tasks is not None
        if self._tells_reached:
            local = transport.get_extra_info("sockname")
            session.parts.addresses.reached = local[0] if local else None
        session.payer = payer_of(transport)
        if not self._admit(session.client):
            session.close()
            return
        self._sessions.add(session)
        self._limits.opened(session.client)
        self._count()
        self._tasks.create_task(self._run(session), name=f"session-{session.client}")

    def _lost(self, session: ClientSession) -> None:
        if session in self._sessions:
            self._sessions.remove(session)
            self._limits.closed(session.client)
        self._count()
        if not self._sessions:
            self._empty.set()

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

    async def _run(self, session: ClientSession) -> None:
        try:
            await session.run()
        except Exception as error:
            log.error("session_crashed", client=session.client, error=repr(error), exc_info=True)

    async def _sweep(self) -> None:
        """Close what is silent, gone, takes nothing, does not end a frame it began, or is too much.

        A few at a time: ten thousand connections would hold the loop for tens of milliseconds.
        """
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_S)
            held: list[tuple[int, ClientSession]] = []
            for number, session in enumerate(list(self._sessions), 1):
                self._look_at(session)
                if kept := session.kept_bytes:
                    held.append((kept, session))
                if not number % SWEPT_AT_ONCE:
                    await asyncio.sleep(0)
            CONNECTION_BUFFERS_BYTES.set(sum(kept for kept, _ in held))
            for session in to_close(held, self._config.connection_buffers_bytes_max):
                LIMITS_REACHED.labels("connection_buffers_bytes_max").inc()
                session.close("connection_buffers_bytes_max")
                session.abort()  # or what it holds would stay

    def _look_at(self, session: ClientSession) -> None:
        config, now = self._config, self._parts.clock()
        begun, silent_s = session.requests.begun_at, session.silent_s(now)
        if session.stalled_s(now) > config.client_stall_max_ms / 1000:
            LIMITS_REACHED.labels("client_stall_max_ms").inc()
            session.close("client_stall_max_ms")
            session.abort()  # it does not take what is still to be written
        elif session.reset_unheard:
            session.abort()  # nobody is there: a broker may hold the answer for hours
        elif begun is not None and now - begun > config.half_frame_max_ms / 1000:
            LIMITS_REACHED.labels("half_frame_max_ms").inc()
            session.close("half_frame_max_ms", waited_s=round(now - begun, 1))
        elif silent_s > config.idle_max_ms / 1000:
            if session.closing:
                session.abort()  # it never took what was still to be written
                return
            LIMITS_REACHED.labels("idle_max_ms").inc()
            session.close("idle_max_ms")
