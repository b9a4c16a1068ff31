"""What the relay has behind its listeners: the archive, and the brokers that it dials."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from struct import Struct
from typing import Any, TypeVar, cast

import structlog

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import Config
from fetchproxy.config.values import parse_bootstrap
from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.metadata.archiver_positions import ArchiverPositions
from fetchproxy.metadata.leader_views import LeaderViews
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Health
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.runtime.flights import SingleFlight
from fetchproxy.runtime.loop import each_of
from fetchproxy.serving.admission import admission_of
from fetchproxy.serving.archived_reads import SkippedOffsets
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.serving.listener import Listener, NewSession
from fetchproxy.serving.relay.addresses import AddressMap, ServerNames, ToldAddresses
from fetchproxy.serving.relay.apis.fetch import FetchHandler
from fetchproxy.serving.relay.apis.table import BEHAVIOURS
from fetchproxy.serving.relay.broker_link import BrokerLink
from fetchproxy.serving.relay.held_readers import HeldReaders
from fetchproxy.serving.relay.offset_lookup import ArchiveLookup
from fetchproxy.serving.relay.served_archive import (
    ArchivedKnowledge,
    ArchivedTopics,
    ArchiveStarts,
    ServedArchive,
)
from fetchproxy.serving.relay.session import Relay, RelaySession
from fetchproxy.serving.relay.withheld import SharedByFetches
from fetchproxy.serving.session import Address
from fetchproxy.serving.transport import open_record_pipe
from fetchproxy.tls.contexts import (
    ReloadingContext,
    UpstreamTls,
    in_words,
    listener_context,
    upstream_context,
)

# What the archive has is looked up before a gateway listens.
#
# A process that has just started knows nothing, and the first client that asks where thousands of
# partitions begin would wait for all that has to be read. So every archived topic is looked up
# once, in the way in which a client's question is answered, and later ones find it in memory.
# The gateway waits `first_looks_max_s` for this, and no longer than the first attempt takes.
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


async def look_at_archived_topics(archive: ServedArchive, tried: asyncio.Event) -> None:
    """One topic after the other; ends when all were looked at, or memory has enough of them.

    `tried` is set after the first attempt, whatever came of it.
    """
    while True:
        try:
            await _look(archive)
            break
        except (ClusterError, RemoteStorageError) as error:
            log.info("archive_not_looked_up_yet", error=str(error))
        except Exception as error:  # no client may depend on this, so neither may the process
            log.exception("archive_not_looked_up", error=repr(error))
            break
        tried.set()
        await asyncio.sleep(RETRY_PAUSE_S)
    tried.set()


async def _look(archive: ServedArchive) -> None:
    archived = await archive.knowledge.topics()
    topics = await archive.cluster.topics_of(archived, _IDENTITY_AGE_MAX_MS)
    segments = 0
    for topic in topics.values():
        if isinstance(topic, ClusterError):
            continue  # it was deleted, or nobody may describe it
        if segments >= SEGMENTS_MAX:
            log.info("archive_looked_up_in_part", segments=segments)
            return
        partitions = await archive.rlmm.refresh_topic(topic.topic_id, float("-inf"))
        tips = [TopicIdPartition(topic.topic_id, topic.name, n) for n in partitions]
        # As clients may see it: held against its leaders.
        await ArchiveLookup(archive, archive.clock()).views(tips)
        async for view in each_of(partitions.values()):
            segments += len(view.segments)


# Reaches the broker that a client's connection is for: one certain node, or any that answers.
#
# A broker that hangs still accepts connections (its kernel does), so of several it is asked which
# *answers* before a client is given to it. It knows no sessions and caches one answer, for a
# moment.

P = TypeVar("P", bound=asyncio.BaseProtocol)

# A burst of clients asks the brokers once; a broker that died a moment ago is dialed in vain.
ANSWER_AGE_MAX_S = 1.0

# ApiVersions 0 without a client id: every broker answers it, before any authentication (KIP-35).
_API_VERSIONS = Struct(">ihhih").pack(10, 18, 0, 0, -1)


class UpstreamDial:
    """`tls_for_host(host)`: what `create_connection` needs for TLS to it; {} where it has none."""

    def __init__(
        self,
        connect_max_ms: int,
        tls_for_host: Callable[[str], Mapping[str, Any]] = lambda host: {},
        stagger_ms: int = ServingLimits.bootstrap_stagger_ms,
    ) -> None:
        self._connect_max_s = connect_max_ms / 1000
        self._stagger_s = stagger_ms / 1000
        self._tls_for_host = tls_for_host
        self._races = SingleFlight[Address]()
        self._answered: Address | None = None
        self._answered_at = 0.0

    async def to(self, address: Address, factory: Callable[[], P]) -> P:
        """Raises OSError within the time to connect."""
        _, link = await self._connect(address, factory)
        return link

    async def _connect(
        self, address: Address, factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        host, port = address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_max_s):
                tls = self._tls_for_host(host)
                return await loop.create_connection(factory, host, port, **tls)
        except TimeoutError:
            raise OSError(f"{host}:{port} did not answer in time") from None
        except OSError as error:
            raise OSError(f"{host}:{port}: {in_words(error)}") from error

    async def to_any(self, addresses: Sequence[Address], factory: Callable[[], P]) -> P:
        """To the first that answers. Raises OSError naming a failure when none does."""
        left = list(addresses)
        while len(left) > 1:
            address = await self._answering(left)
            try:
                return await self.to(address, factory)
            except OSError:
                self._answered = None
                left.remove(address)
        return await self.to(left[0], factory)

    async def _answering(self, addresses: Sequence[Address]) -> Address:
        age = asyncio.get_running_loop().time() - self._answered_at
        if self._answered in addresses and age < ANSWER_AGE_MAX_S:
            return cast(Address, self._answered)
        return await self._races.run(tuple(addresses), lambda: self._race(addresses))

    async def _race(self, addresses: Sequence[Address]) -> Address:
        """Ask in order; the next as well when the last failed, or was silent for `stagger`."""
        waiting = deque(addresses)
        asked: set[asyncio.Task[Address | OSError]] = set()
        failure = OSError("no broker address is known")
        async with asyncio.TaskGroup() as tasks:
            while waiting or asked:
                if waiting:
                    asked.add(tasks.create_task(self._ask(waiting.popleft()), name="ask-broker"))
                pause = self._stagger_s if waiting else None
                done, asked = await asyncio.wait(
                    asked, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                for answer in (task.result() for task in done):
                    if isinstance(answer, OSError):
                        failure = answer
                        continue
                    self._answered = answer
                    self._answered_at = asyncio.get_running_loop().time()
                    for task in asked:
                        task.cancel()
                    return answer
        raise failure

    async def _ask(self, address: Address) -> Address | OSError:
        """One ApiVersions request: the address if anything comes back."""
        reader = asyncio.StreamReader()
        try:
            async with asyncio.timeout(self._connect_max_s):
                transport, _ = await self._connect(
                    address, lambda: asyncio.StreamReaderProtocol(reader)
                )
                try:
                    transport.write(_API_VERSIONS)
                    if not await reader.read(1):
                        return ConnectionResetError("closed without an answer")
                finally:
                    transport.abort()
        except TimeoutError:
            return OSError(f"{address[0]}:{address[1]} did not answer in time")
        except OSError as error:
            return error
        return address


# A listener for each node of the cluster, and sessions that share what is behind them.

# While no broker answers, nodes are asked for this often.
NODES_RETRY_INTERVAL_S = 1.0


@asynccontextmanager
async def open_gateway(
    config: Config,
    cluster: Cluster,
    rlmm: RemoteLogMetadataManager,
    views: LeaderViews,
    purgatory: RemoteFetchPurgatory,
    positions: ArchiverPositions,
    is_archiving: Callable[[TopicIdPartition], bool] = lambda tip: False,
    rng: random.Random | None = None,
    tls: tuple[ReloadingContext | None, ReloadingContext | None] | None = None,
    limits: ServingLimits = ServingLimits(),  # noqa: B008 - frozen
    health: Health | None = None,
    first_looks_max_s: float = 0.0,
) -> AsyncIterator[Listener]:
    """The listeners are open inside it.

    `views`: of `rlmm`, the same that `purgatory` reads by. `tls`: for the listeners and for
    brokers; made here if not given. Raises ConfigError.
    """
    of_listeners, upstream = tls or (
        listener_context(config.gateway, config.tls),
        upstream_context(config.cluster, config.tls),
    )
    names = ServerNames.of(config.gateway)
    knows = None if names is None else names.knows
    listener = Listener(config.gateway, limits, of_listeners, "gateway", knows)
    archive = ServedArchive(
        cluster=cluster,
        rlmm=rlmm,
        views=views,
        purgatory=purgatory,
        knowledge=ArchivedKnowledge(rlmm, listener.clock, listener.warnings),
        starts=ArchiveStarts(cluster, rlmm, views),
        positions=positions,
        is_archiving=is_archiving,
        reads_at_once=config.store.connections_max,
        warnings=listener.warnings,
        clock=listener.clock,
    )
    fetches = _shared_by_fetches(config, archive, listener.limits, rng or random.Random())
    admission = admission_of(config, listener.limits, listener.clock)
    listener.appetites = admission.appetites
    if health is not None:
        health.watch(lambda now: fetches.held.conditions())
    async with AsyncExitStack() as opened:
        records = open_record_pipe(limits.splice_bytes_min)
        if records is not None:
            opened.callback(records.close)
        sasl = config.cluster.security_protocol.startswith("SASL_")
        new_fetches = partial(FetchHandler, shared=fetches)
        relay = Relay(archive, admission, BEHAVIOURS, new_fetches, records, sasl)
        await opened.enter_async_context(listener)
        if first_looks_max_s:
            await _look_first(listener, archive, first_looks_max_s)
        nodes = _Nodes(config, listener, relay, upstream)
        opened.callback(nodes.addresses.close)
        await nodes.open()
        listener.run(archive.knowledge.run(), "archived-knowledge")
        listener.run(positions.run(), "archiver-positions")
        listener.run(fetches.topics.run(), "archived-topics")
        listener.run(fetches.held.run(fetches.judge), "held-readers")
        listener.run(nodes.open_remembered(), "remembered-nodes")
        log.info("gateway_listening", host=listener.host, port=listener.port)
        yield listener


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
        held=HeldReaders(archive.clock, held_max_ms),
        skipped=SkippedOffsets(),
        topics=ArchivedTopics(
            *(archive.cluster, archive.rlmm, archive.knowledge, archive.clock),
            limits.log_start_max_age_ms / 1000,
        ),
        wait_max_s=limits.remote_fetch_max_wait_ms / 1000,
        answer_bytes_max=limits.remote_answer_bytes_max,
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
    """A listener for each node of the cluster, and the way to the broker that it stands for."""

    def __init__(
        self, config: Config, listener: Listener, relay: Relay, upstream: ReloadingContext | None
    ) -> None:
        self._listener = listener
        self._relay = relay
        self._cluster = relay.archive.cluster
        self._bootstrap = [(a.host, a.port) for a in parse_bootstrap(config.cluster.bootstrap)]
        self._dial = UpstreamDial(
            config.cluster.connect_max_ms,
            UpstreamTls(upstream).for_host,
            listener.limits.bootstrap_stagger_ms,
        )
        self.addresses = AddressMap(config.gateway, self._listen)
        self._told = ToldAddresses(self.addresses)
        listener.node_addresses = self.addresses.proxied.copy

    async def open(self) -> None:
        """Those of `gateway.node_map`, and that of all brokers. Raises ConfigError."""
        await self.addresses.open_mapped()
        await self._listener.open(self._sessions(None))
        self.addresses.default_base = self._listener.port + 1

    async def open_remembered(self) -> None:
        """A client that knew this proxy before its restart dials a node without asking first."""
        while True:
            try:
                brokers = await self._cluster.brokers()
                await self.addresses.ensure((n, b.host, b.port) for n, b in brokers.items())
                return
            except ClusterError:
                await asyncio.sleep(NODES_RETRY_INTERVAL_S)
            except OSError as error:
                log.warning("node_listeners_not_opened", error=str(error))
                return

    async def _listen(self, node_id: int, port: int) -> asyncio.Server:
        return await self._listener.listen(port, self._sessions(node_id))

    def _sessions(self, node_id: int | None) -> NewSession:
        """With one broker; None: with that which the client's server name says, or any."""
        names, listener = self.addresses.names, self._listener

        def new_session(server_name: str | None) -> RelaySession:
            named = names.node_of(server_name) if names is not None else None
            node = node_id if named is None else named
            connect = partial(self._connect, node)
            told = ToldAddresses(self.addresses) if listener.tells_reached else self._told
            return RelaySession(listener, self._relay, told, connect, node)

        return new_session

    # -- brokers ---------------------------------------------------------------------------------
    async def _connect(self, node_id: int | None, factory: Callable[[], BrokerLink]) -> BrokerLink:
        if node_id is None:
            return await self._dial.to_any(self._bootstrap, factory)
        return await self._dial.to(await self._broker_address(node_id), factory)

    async def _broker_address(self, node_id: int) -> Address:
        """Raises OSError for a node that the cluster does not have, or cannot be asked about."""
        address = self.addresses.brokers.get(node_id)
        if address is None:  # its port is open from the start, or a client remembered it
            try:
                brokers = await self._cluster.brokers()
            except ClusterError as error:
                raise OSError(f"node {node_id} is not known: {error}") from error
            if node_id not in brokers:
                raise OSError(f"node {node_id} is not in the cluster")
            address = (brokers[node_id].host, brokers[node_id].port)
        return address
