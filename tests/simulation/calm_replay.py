"""A gateway without faults, and plain clients that replay through it: for shares and rates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

from broker import SimulatedCluster
from broker_log import SimulatedLog
from client_connection import (
    FETCH_RESPONSE,
    ClientConnection,
    ClientFetchSession,
    FetchEntry,
    metadata_request,
)
from faulty_store import NO_FAULTS, Faults, FaultyObjectStore
from generated_archive import make_batch, random_uuid, store_segment
from memory_object_store import MemoryObjectStore
from network import Conditions, NetworkLoop, SimulatedNetwork
from virtual_loop import run_virtual

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig, Config, GatewayConfig, RemoteFetchConfig
from fetchproxy.metadata.archiver_positions import ArchiverPositions
from fetchproxy.metadata.leader_views import LeaderLog, LeaderViews
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.serving.gateway.server import open_gateway
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.serving.listener import Listener
from fetchproxy.storage.reader_accounts import ReaderAccounts
from fetchproxy.storage.remote_storage import RemoteStorage

BOOTSTRAP = ("127.0.0.1", 9192)
BATCH_BYTES = 1_000
BATCH_OFFSETS = 10
VERSION = 12
JITTERY = Conditions()
GATEWAY = GatewayConfig(listen=f"{BOOTSTRAP[0]}:{BOOTSTRAP[1]}")


@dataclass(slots=True)
class Replay:
    cluster: SimulatedCluster
    logs: list[SimulatedLog]
    store: FaultyObjectStore
    gateway: Listener
    accounts: ReaderAccounts


def now() -> float:
    return asyncio.get_running_loop().time()


def run_replay(
    remote_fetch: RemoteFetchConfig,
    main: Callable[[Replay], Awaitable[None]],
    *,
    partitions: int,
    batches: int,
    tail_batches: int = 0,
    latency_s: float = 0.0,
    gateway: GatewayConfig = GATEWAY,
    limits: ServingLimits = ServingLimits(),  # noqa: B008 - frozen
    reading: ReadingLimits = ReadingLimits(),  # noqa: B008 - frozen
    conditions: Conditions = JITTERY,
) -> None:
    """All batches of a partition are archived and trimmed from the broker.

    With `tail_batches`, the last partition is not archived: only its first batch is produced.
    """
    loops: list[NetworkLoop] = []

    def new_loop() -> NetworkLoop:
        loops.append(NetworkLoop())
        return loops[-1]

    async def whole() -> None:
        rng = Random(7)
        loops[-1].network = network = SimulatedNetwork(Random(1), conditions)
        logs = whole_logs(rng, partitions, batches)
        cluster = SimulatedCluster(network, Random(2), logs, nodes=1)
        store = FaultyObjectStore(MemoryObjectStore(), Random(3))
        for log in logs:
            await _archive(rng, store, log, tail_batches and log is logs[-1])
        store.faults = Faults(latency_s, latency_s) if latency_s else NO_FAULTS
        async with (
            cluster.serving(),
            _gateway(cluster, store, remote_fetch, gateway, limits, reading) as opened,
        ):
            await main(Replay(cluster, logs, store, *opened))

    run_virtual(whole, new_loop)


def whole_logs(rng: Random, partitions: int, batches: int) -> list[SimulatedLog]:
    topic_id = random_uuid(rng)
    logs = []
    for partition in range(partitions):
        made = [
            make_batch(BATCH_OFFSETS * i, BATCH_OFFSETS, rng.randbytes(BATCH_BYTES - 61))
            for i in range(batches)
        ]
        end = BATCH_OFFSETS * batches
        tp = TopicIdPartition(topic_id, "weather", partition)
        logs.append(SimulatedLog(tp, made, (), [end] * (batches + 1)))
    return logs


async def _archive(rng: Random, store: FaultyObjectStore, log: SimulatedLog, tail: int) -> None:
    log.write(1 if tail else len(log.batches))
    log.replicate(now())
    if not tail:
        await store_segment(store.inner, rng, log.tp, list(log.batches), index_interval_bytes=1)
        log.trim(log.final_offset)


@asynccontextmanager
async def _gateway(
    cluster: SimulatedCluster,
    store: FaultyObjectStore,
    remote_fetch: RemoteFetchConfig,
    gateway_config: GatewayConfig,
    limits: ServingLimits,
    reading: ReadingLimits,
) -> AsyncIterator[tuple[Listener, ReaderAccounts]]:
    config = Config(
        cluster=ClusterConfig(bootstrap=cluster.bootstrap),
        gateway=gateway_config,
        remote_fetch=remote_fetch,
    )
    storage = RemoteStorage(store)
    warnings = SparingWarnings(asyncio.get_running_loop().time)
    async with (
        StoreBackedRemoteLogMetadataManager(storage, config.metadata) as rlmm,
        Cluster(config.cluster, Random(4)) as own_cluster,
        RemoteFetchPurgatory(
            remote_fetch,
            views := LeaderViews(rlmm, LeaderLog(own_cluster), warnings),
            storage,
            Random(5),
            limits=reading,
        ) as purgatory,
        ArchiverPositions(
            storage.objects, config.store.metadata_read_max_ms, asyncio.get_running_loop().time
        ) as positions,
        open_gateway(
            config, own_cluster, rlmm, views, purgatory, positions, rng=Random(6), limits=limits
        ) as gateway,
    ):
        yield gateway, storage.accounts


@dataclass(slots=True)
class Taken:
    at: float
    tp: TopicIdPartition
    size: int


@dataclass(slots=True)
class PlainReader:
    """Fetches again at once, even if told to wait; `name` is its client id, `host` its address."""

    name: str
    tps: list[TopicIdPartition]
    bytes_max: int = 1 << 20
    partition_bytes: int = 64 * 1024
    wait_ms: int = 500
    host: str = "10.9.9.9"
    responses: int = 0
    taken: list[Taken] = field(default_factory=list)
    throttles_ms: list[int] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)  # wait for each response after a throttle
    positions: dict[TopicIdPartition, int] = field(default_factory=dict)

    async def read(self, until: float, ends: int | None = None) -> None:
        """Read until that loop time, or until each partition is read up to the offset `ends`."""
        connection = await self.dial()
        session, throttled_ms, turn = ClientFetchSession(False), 0, 0
        self.positions = dict.fromkeys(self.tps, 0)
        while now() < until and not self._done(ends):
            turn += 1
            order = [*self.tps[turn % len(self.tps) :], *self.tps[: turn % len(self.tps)]]
            entries = {tp: FetchEntry(self.positions[tp], self.partition_bytes) for tp in order}
            limits = {
                "max_wait_ms": self.wait_ms,
                "min_bytes": 1,
                "max_bytes": self.bytes_max,
                "isolation_level": 0,
            }
            request, _ = session.request(entries, VERSION, limits)
            began = now()
            responded = await connection.ask(request, FETCH_RESPONSE, VERSION)
            if throttled_ms:
                self.pauses_s.append(responded.at - began)
            throttled_ms = responded.message.throttle_time_ms
            if throttled_ms:
                self.throttles_ms.append(throttled_ms)
            self.responses += 1
            self._take(responded.message, responded.at)
        await connection.close()

    def size(self, since: float = 0.0, until: float = float("inf")) -> int:
        return sum(taken.size for taken in self.taken if since <= taken.at <= until)

    def _done(self, ends: int | None) -> bool:
        return ends is not None and all(at >= ends for at in self.positions.values())

    def _take(self, message: object, at: float) -> None:
        by_number = {tp.partition: tp for tp in self.tps}
        for topic in message.responses:  # type: ignore[attr-defined]
            for part in topic.partitions:
                assert part.error_code == 0
                size = len(part.records or b"")
                if size:
                    assert size % BATCH_BYTES == 0
                    tp = by_number[part.partition_index]
                    self.positions[tp] += BATCH_OFFSETS * (size // BATCH_BYTES)
                    self.taken.append(Taken(at, tp, size))

    async def dial(self) -> ClientConnection:
        loop = asyncio.get_running_loop()
        make = lambda: ClientConnection(self.name)  # noqa: E731
        _, bootstrap = await loop.create_connection(make, *BOOTSTRAP, local_addr=(self.host, 0))
        response = (await bootstrap.ask(*metadata_request(["weather"]))).message
        await bootstrap.close()
        broker = response.brokers[0]
        _, connection = await loop.create_connection(
            make, broker.host, broker.port, local_addr=(self.host, 0)
        )
        return connection
