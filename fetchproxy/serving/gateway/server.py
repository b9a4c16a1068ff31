"""A listener for each node of the cluster, and the parts that all their sessions share: the
archive, and the connections to brokers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import structlog

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import Config
from fetchproxy.config.values import HostPort, parse_bootstrap
from fetchproxy.errors import ClusterError
from fetchproxy.metadata.archiver_positions import ArchiverPositions
from fetchproxy.metadata.leader_views import LeaderViews
from fetchproxy.metadata.remote_reads import ReadableArchive
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Health
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.serving.admission import admission_of
from fetchproxy.serving.archived_reads import SkippedOffsets
from fetchproxy.serving.gateway.addresses import AddressMap, AdvertisedAddresses, ServerNames
from fetchproxy.serving.gateway.apis.delete_records import check_deletions
from fetchproxy.serving.gateway.apis.fetch import FetchHandler
from fetchproxy.serving.gateway.apis.table import BEHAVIOURS
from fetchproxy.serving.gateway.broker_link import BrokerLink
from fetchproxy.serving.gateway.fetch_routing import SharedByFetches
from fetchproxy.serving.gateway.held_readers import HeldReaders
from fetchproxy.serving.gateway.served_archive import (
    ArchivedKnowledge,
    ArchivedTopics,
    ArchiveStarts,
    ServedArchive,
)
from fetchproxy.serving.gateway.session import Gateway, GatewaySession
from fetchproxy.serving.gateway.startup_lookup import look_at_archived_topics
from fetchproxy.serving.gateway.upstream_dial import UpstreamDial
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.serving.listener import Listener, NewSession
from fetchproxy.serving.record_pipe import open_record_pipe
from fetchproxy.serving.session import Address, ClientSession
from fetchproxy.tls.reloading import ReloadingContext, listener_context, upstream_context

log = structlog.get_logger(__name__)


# Time between two looks at the brokers that the cluster names, and the age of a response that still
# counts for a node that cannot be reached.
NODES_LOOK_INTERVAL_S = 1.0
# Brokers that refuse the proxy's credentials are asked less often: each refusal counts.
NODES_REFUSED_INTERVAL_S = 5.0


@asynccontextmanager
async def open_gateway(
    config: Config,
    cluster: Cluster,
    rlmm: ReadableArchive,
    views: LeaderViews,
    purgatory: RemoteFetchPurgatory,
    positions: ArchiverPositions,
    is_archiving: Callable[[TopicIdPartition], bool] = lambda tp: False,
    rng: random.Random | None = None,
    tls: tuple[ReloadingContext | None, ReloadingContext | None] | None = None,
    limits: ServingLimits = ServingLimits(),  # noqa: B008 - frozen
    health: Health | None = None,
    first_looks_max_s: float = 0.0,
) -> AsyncIterator[Listener]:
    """The listeners are open inside this context.

    `views`: of `rlmm`, the same ones that `purgatory` uses. `tls`: the contexts for the listeners
    and for brokers; None: made here from `config`. Raises ConfigError.
    """
    of_listeners, upstream = tls or (
        listener_context(config.gateway, config.tls),
        upstream_context(config.cluster, config.tls),
    )
    names = ServerNames.of(config.gateway)
    knows = None if names is None else names.knows
    listener = Listener(config.gateway, limits, of_listeners, "gateway", knows, health)
    archive = ServedArchive(
        cluster=cluster,
        rlmm=rlmm,
        views=views,
        purgatory=purgatory,
        knowledge=ArchivedKnowledge(rlmm, cluster.continued, listener.clock, listener.warnings),
        starts=ArchiveStarts(cluster, rlmm, views),
        positions=positions,
        is_archiving=is_archiving,
        reads_at_once=config.store.small_reads_max,
        warnings=listener.warnings,
        clock=listener.clock,
    )
    fetches = _shared_by_fetches(config, archive, listener.limits, rng or random.Random())
    admission = admission_of(config, listener.limits, listener.clock, purgatory.accounts)
    listener.consumer_paces = admission.consumer_paces
    listener.groups = admission.groups
    listener.tables = [archive.starts]
    if health is not None:
        health.watch(lambda now: fetches.held_readers.conditions())
    async with AsyncExitStack() as opened:
        records = open_record_pipe(limits.splice_bytes_min)
        if records is not None:
            opened.callback(records.close)
        sasl = config.cluster.security_protocol.startswith("SASL_")
        new_fetches = partial(FetchHandler, shared=fetches)
        gateway = Gateway(archive, admission, BEHAVIOURS, new_fetches, records, sasl)
        await opened.enter_async_context(listener)
        if first_looks_max_s:
            await _look_first(listener, archive, first_looks_max_s)
        nodes = _Nodes(config, listener, gateway, upstream)
        opened.callback(nodes.addresses.close)
        await nodes.open()
        _keep_up(listener, archive, positions, fetches, nodes)
        log.info("gateway_listening", host=listener.host, port=listener.port)
        yield listener


def _keep_up(
    listener: Listener,
    archive: ServedArchive,
    positions: ArchiverPositions,
    fetches: SharedByFetches,
    nodes: _Nodes,
) -> None:
    for part, run, rests in (
        ("archived knowledge", archive.knowledge.run, "what is archived later is not noticed"),
        ("archiver positions", positions.run, "archivers that fall silent are not noticed"),
        ("archived topics", fetches.topics.run, "new topics are not looked up"),
        ("deletions", partial(check_deletions, archive), "deleted topics are not noticed"),
        (
            "held readers",
            partial(fetches.held_readers.run, fetches.decide_routes),
            "held readers wait longer",
        ),
        ("nodes", nodes.follow_cluster, "new brokers and new addresses are not followed"),
    ):
        listener.keep(part, run, rests)


def _shared_by_fetches(
    config: Config,
    archive: ServedArchive,
    limits: ServingLimits,
    rng: random.Random,
) -> SharedByFetches:
    gateway = config.gateway
    held_max_ms = max(limits.held_max_ms, 3 * config.archive.segment_age_max_ms)
    return SharedByFetches(
        archive=archive,
        refuses_lost=gateway.gap_policy == "error",
        held_readers=HeldReaders(archive.clock, held_max_ms),
        skipped=SkippedOffsets(),
        topics=ArchivedTopics(
            *(archive.cluster, archive.rlmm, archive.knowledge, archive.clock),
            limits.log_start_max_age_ms / 1000,
        ),
        wait_max_s=limits.remote_fetch_max_wait_ms / 1000,
        response_bytes_max=limits.remote_answer_bytes_max,
        permit_ttl_s=gateway.permit_ttl_ms / 1000,
        new_session_id=lambda: rng.randint(1, (1 << 31) - 1),
    )


async def _look_first(listener: Listener, archive: ServedArchive, wait_max_s: float) -> None:
    tried = asyncio.Event()
    listener.run(look_at_archived_topics(archive, tried), "first-looks")
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_max_s):
            await tried.wait()


class _Nodes:
    """A listener for each node of the cluster, and connections to the broker it stands for."""

    def __init__(
        self,
        config: Config,
        listener: Listener,
        gateway: Gateway,
        upstream: ReloadingContext | None,
    ) -> None:
        self._listener = listener
        self._gateway = gateway
        self._cluster = gateway.archive.cluster
        self._bootstrap = [(a.host, a.port) for a in parse_bootstrap(config.cluster.bootstrap)]
        self._dial = UpstreamDial(
            config.cluster.connect_max_ms,
            upstream,
            listener.limits.bootstrap_stagger_ms,
        )
        self.addresses = AddressMap(config.gateway, self._listen)
        self._addresses_told = AdvertisedAddresses(self.addresses)
        listener.node_addresses = self.addresses.proxied.copy

    async def open(self) -> None:
        """Open the listeners of `gateway.node_map`, and the bootstrap one. Raises ConfigError."""
        await self.addresses.open_mapped()
        await self._listener.open(self._sessions(None))
        self.addresses.default_base = self._listener.port + 1

    async def follow_cluster(self) -> None:
        """For ever: open a listener for each node that the cluster names, because clients that knew
        this proxy before its restart connect to a node without asking first. If nodes have moved,
        their ports lead to the new addresses.
        """
        while True:
            with suppress(ClusterError):  # the broker watch and the credentials' health say so
                brokers = await self._cluster.brokers()
                await self._follow(brokers)
                self.addresses.forget_absent(brokers, self._listener.clock())
            refused = self._cluster.refusal is not None
            await asyncio.sleep(NODES_REFUSED_INTERVAL_S if refused else NODES_LOOK_INTERVAL_S)

    async def _follow(self, brokers: Mapping[int, HostPort]) -> None:
        named = {node_id: (broker.host, broker.port) for node_id, broker in brokers.items()}
        if named == self.addresses.brokers:
            return
        self.addresses.brokers.clear()  # removed brokers; they may return: see `forget_absent`
        for node_id, address in named.items():
            try:
                await self.addresses.ensure([(node_id, *address)])
            except OSError as error:
                log.warning(
                    "node_listener_not_opened",
                    broker_id=node_id,
                    error=str(error),
                    hint="free the port, or change gateway.node_port_base or gateway.node_map",
                )
        ports_in_use = set(named.values())

        def is_misled(session: ClientSession) -> bool:
            """Another broker is now at the address that it is connected to, and answers it: so the
            client would never leave.
            """
            if not isinstance(session, GatewaySession) or session.node_id is None:
                return False
            reached = session.upstream.address
            return reached in ports_in_use and named.get(session.node_id) != reached

        self._listener.close_sessions(is_misled, "broker_moved")

    async def _listen(self, node_id: int, port: int) -> asyncio.Server:
        return await self._listener.listen(port, self._sessions(node_id))

    def _sessions(self, node_id: int | None) -> NewSession:
        """Sessions with the broker that the client's server name (SNI) stands for, otherwise with
        `node_id`. None: with any broker.
        """
        names, listener = self.addresses.names, self._listener

        def new_session(server_name: str | None) -> GatewaySession:
            named = names.node_of(server_name) if names is not None else None
            node = node_id if named is None else named
            connect = partial(self._connect, node)
            addresses = (
                AdvertisedAddresses(self.addresses)
                if listener.tells_reached
                else self._addresses_told
            )
            return GatewaySession(listener, self._gateway, addresses, connect, node)

        return new_session

    # -- brokers ---------------------------------------------------------------------------------
    async def _connect(self, node_id: int | None, factory: Callable[[], BrokerLink]) -> BrokerLink:
        if node_id is not None:
            return await self._connect_node(node_id, factory)
        # The bootstrap addresses may be gone, while the brokers are there.
        known = sorted(self.addresses.brokers.values())
        return await self._dial.to_any(list(dict.fromkeys([*self._bootstrap, *known])), factory)

    async def _connect_node(self, node_id: int, factory: Callable[[], BrokerLink]) -> BrokerLink:
        """Raises OSError if the cluster does not have the node, or it cannot be reached."""
        known, failure = self.addresses.brokers.get(node_id), None
        if known is not None:
            try:
                return await self._connect_to(known, factory)
            except OSError as error:
                failure = error
        # The node has moved, or its port was open before the node was known.
        now = await self._address_now(node_id)
        if failure is not None and now in (None, known):
            raise failure
        if now is None:
            raise OSError(f"node {node_id} is not in the cluster")
        self.addresses.brokers[node_id] = now
        return await self._connect_to(now, factory)

    async def _connect_to(self, address: Address, factory: Callable[[], BrokerLink]) -> BrokerLink:
        link = await self._dial.to(address, factory)
        link.address = address
        return link

    async def _address_now(self, node_id: int) -> Address | None:
        """As the cluster names it now; None: it does not. Raises OSError if no broker answers."""
        try:
            brokers = await self._cluster.brokers(round(NODES_LOOK_INTERVAL_S * 1000))
        except ClusterError as error:
            raise OSError(f"node {node_id} is not known: {error}") from error
        broker = brokers.get(node_id)
        return None if broker is None else (broker.host, broker.port)
