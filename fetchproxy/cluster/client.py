"""The proxy's own requests to the brokers: leaders, edges of the local log, raw batches.

Runs on its own connections and never on a client's. It caches what it is told and says how old
that may be; it decides nothing about archives or clients. Errors: `ClusterUnavailable` where no
broker answered in time, `ClusterError` with Kafka's code where one refused.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar
from uuid import UUID

from fetchproxy.cluster import messages
from fetchproxy.cluster.answers import (
    RETRIABLE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerAddress,
    FetchedPartition,
    MetadataAnswer,
    TopicInfo,
)
from fetchproxy.cluster.connection import BrokerConnection
from fetchproxy.cluster.connections import BrokerConnections
from fetchproxy.cluster.fetched_partition import decode_fetch
from fetchproxy.cluster.metadata_cache import MetadataCache
from fetchproxy.cluster.sasl import sasl_credentials
from fetchproxy.cluster.single_flight import SingleFlight
from fetchproxy.config.addresses import HostPort, parse_bootstrap
from fetchproxy.config.sections import ClusterConfig, TlsConfig
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.model import (
    ZERO_UUID,
    IsolationLevel,
    LogEdges,
    TopicIdPartition,
    is_topic_name,
)
from fetchproxy.tls.reloading import ReloadingContext, upstream_context
from fetchproxy.tls.upstream import UpstreamTls

__all__ = ["BrokerAddress", "Cluster", "FetchedPartition", "TopicInfo"]

T = TypeVar("T")

# Pauses between two tries at a leader. An election takes 10 ms to seconds, so begin low and stay
# below a second: the whole is bounded by request_max_ms anyway.
RETRY_PAUSE_INITIAL_MS = 20
RETRY_PAUSE_MAX_MS = 500
RETRY_JITTER = 0.2

_ALL_TOPICS = "all topics"


@dataclass(frozen=True, slots=True)
class _Edges:
    edges: LogEdges
    asked_at: float  # loop seconds, before the request left


class Cluster:
    """`async with Cluster(config) as cluster`. Connects when first asked, not on entry."""

    def __init__(
        self,
        config: ClusterConfig,
        rng: random.Random | None = None,
        tls: ReloadingContext | None = None,
    ) -> None:
        """`tls` is made here if not given. Raises ConfigError where a file cannot be used."""
        self._config = config
        self._bootstrap = parse_bootstrap(config.bootstrap)
        self._rng = rng or random.Random()
        self._sasl = sasl_credentials(config)
        upstream = UpstreamTls(tls or upstream_context(config, TlsConfig()))
        self._connections = BrokerConnections(config, self._sasl, upstream)
        self._metadata = MetadataCache()
        self._metadata_flights = SingleFlight[MetadataAnswer]()
        self._edges: dict[TopicIdPartition, _Edges] = {}
        self._edges_flights = SingleFlight[None]()
        self._last_good: HostPort | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._connections.close()
        await asyncio.sleep(0)  # the transports report their end in the loop's next turn

    @property
    def refusal(self) -> str | None:
        """Why the brokers do not take the proxy's own credentials; None: they do, or were not
        asked yet."""
        return None if self._sasl is None else self._sasl.refusal

    # --- brokers and topics ---
    async def brokers(self) -> dict[int, BrokerAddress]:
        """Not older than metadata_max_age_ms."""
        if self._metadata.brokers_at < self._oldest(None):
            await self._ask_metadata([])
        return dict(self._metadata.brokers)

    async def cluster_id(self) -> str | None:
        """None: the brokers do not say; age as for `brokers`."""
        await self.brokers()
        return self._metadata.cluster_id

    async def topics(self, max_age_ms: int | None = None) -> list[TopicInfo]:
        """All topics that these credentials may see, by name; age as for `brokers` by default."""
        if self._metadata.all_topics_at < self._oldest(max_age_ms):
            await self._ask_metadata(None)
        return self._metadata.topics()

    async def topic_by_name(self, name: str, max_age_ms: int | None = None) -> TopicInfo:
        """Raises ClusterError with the broker's code; 3 for an unknown topic. Creates none.

        A name that no topic can have is unknown without asking, as clients may send anything.
        """
        if not is_topic_name(name):
            raise ClusterError("no topic can have this name", UNKNOWN_TOPIC_OR_PARTITION)
        known = self._metadata.by_name(name, self._oldest(max_age_ms))
        if known is not None:
            return known
        answer = await self._ask_metadata([name])
        for topic in answer.topics:
            if topic.name == name:
                return topic
        code = answer.failed.get(name, UNKNOWN_TOPIC_OR_PARTITION)
        raise ClusterError(f"topic {name!r}: error {code}", code)

    async def topic_by_id(self, topic_id: UUID, max_age_ms: int | None = None) -> TopicInfo:
        """Raises ClusterError; 100 for an unknown id (also: deleted, or re-created by its name)."""
        known = self._metadata.by_id(topic_id, self._oldest(max_age_ms))
        if known is not None:
            return known
        answer = await self._ask_metadata([topic_id])
        for topic in answer.topics:
            if topic.topic_id == topic_id:
                return topic
        code = answer.failed.get(topic_id, UNKNOWN_TOPIC_ID)
        raise ClusterError(f"topic id {topic_id}: error {code}", code)

    def cached_topic_by_id(self, topic_id: UUID) -> TopicInfo | None:
        """The last known, however old. Never blocks."""
        return self._metadata.by_id(topic_id)

    def cached_topic_by_name(self, name: str) -> TopicInfo | None:
        """The last known, however old. Never blocks."""
        return self._metadata.by_name(name)

    async def topic_config(self, name: str) -> dict[str, str]:
        """The topic's effective configuration; {} where the broker has no DescribeConfigs."""

        async def ask(connection: BrokerConnection) -> dict[str, str]:
            if messages.DESCRIBE_CONFIGS not in connection.versions:
                return {}
            version = connection.version_of(messages.DESCRIBE_CONFIGS)
            request = messages.describe_topic_request(version, name)
            return await connection.request(request, messages.decode_configs)

        return await self.ask_any(ask)

    # --- one partition ---
    async def log_edges(
        self,
        tip: TopicIdPartition,
        max_age_ms: int = 1000,
        *,
        not_older_than: float | None = None,
    ) -> LogEdges:
        """The local log's start, high watermark and LSO as its leader says (ListOffsets).

        Asked for at most `max_age_ms` ago, or at or after loop time `not_older_than` (seconds).
        Source of -4 and -2: KIP-405; brokers without -4 (ListOffsets < 8) have no remote tier.
        """
        now = asyncio.get_running_loop().time()
        oldest = now - max_age_ms / 1000 if not_older_than is None else min(not_older_than, now)
        while not self.knows_log_edges(tip, oldest):
            # A flight that began before `oldest` may land here; the next round then asks anew.
            await self._edges_flights.run(tip, lambda: self._ask_edges(tip))
        return self._edges[tip].edges

    def cached_log_edges(self, tip: TopicIdPartition) -> LogEdges | None:
        """The last known, however old. Never blocks."""
        known = self._edges.get(tip)
        return None if known is None else known.edges

    def knows_log_edges(self, tip: TopicIdPartition, not_older_than: float) -> bool:
        """Whether `log_edges` would answer from memory. Never blocks."""
        known = self._edges.get(tip)
        return known is not None and known.asked_at >= not_older_than

    async def fetch(
        self,
        tip: TopicIdPartition,
        offset: int,
        *,
        bytes_max: int,
        wait_max_ms: int,
        isolation: IsolationLevel,
    ) -> FetchedPartition:
        """Raw batches from `offset` on; the first one comes whole, also above `bytes_max`.

        An offset out of range comes back as `error_code` 1, every other error is raised. By topic
        id where the broker can (Kafka 3.1), so that a re-created topic is never taken for this one.
        """

        async def ask(connection: BrokerConnection, topic: TopicInfo) -> FetchedPartition:
            request = messages.fetch_request(
                connection.version_of(messages.FETCH),
                topic,
                tip.partition,
                offset,
                bytes_max=bytes_max,
                wait_max_ms=wait_max_ms,
                isolation=isolation,
            )
            answers = await connection.request_all(
                [request],
                lambda payload, version: decode_fetch(payload, version, tip),
                extra_ms=wait_max_ms,
            )
            return answers[0]

        return await self.ask_leader(tip, ask)

    async def ask_leader(
        self, tip: TopicIdPartition, ask: Callable[[BrokerConnection, TopicInfo], Awaitable[T]]
    ) -> T:
        """`ask` on a connection of its own to the partition's leader, again after an election.

        For requests that may wait in the broker. One whose answer was lost is sent again.
        """

        async def alone(leader: HostPort, topic: TopicInfo) -> T:
            async with self._connections.exclusive(leader) as connection:
                return await ask(connection, topic)

        return await self._ask_leader(tip, alone)

    async def _ask_edges(self, tip: TopicIdPartition) -> None:
        asked_at = asyncio.get_running_loop().time()

        async def ask(leader: HostPort, topic: TopicInfo) -> LogEdges:
            connection = await self._connections.shared(leader)
            version = connection.version_of(messages.LIST_OFFSETS)
            local = version >= messages.LIST_OFFSETS_LOCAL_VERSION
            # The start first and the high watermark last, so that start <= LSO <= high watermark.
            wanted = (
                (
                    messages.EARLIEST_LOCAL if local else messages.EARLIEST,
                    IsolationLevel.READ_UNCOMMITTED,
                ),
                (messages.LATEST, IsolationLevel.READ_COMMITTED),
                (messages.LATEST, IsolationLevel.READ_UNCOMMITTED),
            )
            epoch = topic.leaders[tip.partition][1]
            requests = [
                messages.list_offsets_request(
                    version, topic.name, tip.partition, epoch, timestamp, isolation
                )
                for timestamp, isolation in wanted
            ]
            (start, start_epoch), (stable, _), (end, _) = await connection.request_all(
                requests, messages.decode_list_offsets
            )
            return LogEdges(start, end, stable, start_epoch)

        self._edges[tip] = _Edges(await self._ask_leader(tip, ask), asked_at)

    # --- whom to ask ---
    async def _ask_leader(
        self, tip: TopicIdPartition, ask: Callable[[HostPort, TopicInfo], Awaitable[T]]
    ) -> T:
        """`ask` the partition's leader; on a wrong or lost one look again, back off and retry.

        No try begins later than request_max_ms after the first, so the whole takes up to twice
        that. That the topic is gone is believed at once when Metadata itself says so.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.request_max_ms / 1000
        pause_ms = float(RETRY_PAUSE_INITIAL_MS)
        while True:
            topic: TopicInfo | None = None
            try:
                topic = await self._topic_of(tip)
                return await ask(self._leader(topic, tip.partition), topic)
            except ClusterError as error:
                leader_may_move = topic is not None and error.error_code in RETRIABLE
                if not (error.retriable or leader_may_move):
                    raise
                if topic is not None:
                    self._metadata.expire(topic.name)
                pause_s = self._jittered(pause_ms) / 1000
                if loop.time() + pause_s > deadline:
                    raise
            await asyncio.sleep(pause_s)
            pause_ms = min(2 * pause_ms, RETRY_PAUSE_MAX_MS)

    def _jittered(self, pause_ms: float) -> float:
        return pause_ms * (1 + RETRY_JITTER * (2 * self._rng.random() - 1))

    async def _topic_of(self, tip: TopicIdPartition) -> TopicInfo:
        try:
            if tip.topic_id == ZERO_UUID:  # brokers before 2.8
                topic = await self.topic_by_name(tip.topic)
            else:
                topic = await self.topic_by_id(tip.topic_id)
        except ClusterError as error:
            if error.error_code in (UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION):
                self._edges.pop(tip, None)
            raise
        if tip.partition not in topic.leaders:
            raise ClusterError(f"{tip} is no partition of the topic", UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    def _leader(self, topic: TopicInfo, partition: int) -> HostPort:
        leader = self._metadata.brokers.get(topic.leaders[partition][0])
        if leader is None:
            raise ClusterUnavailable(f"{topic.name}-{partition} has no leader", 5)
        return HostPort(leader.host, leader.port)

    async def _ask_metadata(
        self, topics: list[str | UUID] | list[str] | list[UUID] | None
    ) -> MetadataAnswer:
        key = _ALL_TOPICS if topics is None else tuple(topics)
        return await self._metadata_flights.run(key, lambda: self._fetch_metadata(topics))

    async def _fetch_metadata(
        self, topics: list[str | UUID] | list[str] | list[UUID] | None
    ) -> MetadataAnswer:
        asked_at = asyncio.get_running_loop().time()

        async def ask(connection: BrokerConnection) -> tuple[MetadataAnswer, bool]:
            version = connection.version_of(messages.METADATA)
            by_id = any(isinstance(topic, UUID) for topic in topics or ())
            # Brokers before 2.8 … 3.0 cannot be asked by id: ask for all and look.
            everything = by_id and version < messages.METADATA_BY_TOPIC_ID_VERSION
            asked = None if everything else topics
            request = messages.metadata_request(version, asked)
            answer = await connection.request(request, messages.decode_metadata)
            return answer, asked is None

        answer, all_topics = await self.ask_any(ask)
        self._metadata.learn(answer, asked_at, all_topics=all_topics)
        self._connections.retain({*self._candidates(), *self._bootstrap})
        return answer

    def exclusive(self, address: HostPort) -> AbstractAsyncContextManager[BrokerConnection]:
        """A connection that nobody else uses inside the block, for requests that wait long."""
        return self._connections.exclusive(address)

    async def ask_any(self, ask: Callable[[BrokerConnection], Awaitable[T]]) -> T:
        """`ask` the broker that answered last, else the others, else the bootstrap addresses.

        One that hangs has connect_max_ms while there are others, whatever connection is open to it.
        """
        error: ClusterUnavailable | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.request_max_ms / 1000
        candidates = self._candidates()
        for left, address in zip(reversed(range(len(candidates))), candidates, strict=True):
            if error is not None and loop.time() > deadline:
                break
            patience_s = self._config.connect_max_ms / 1000 if left else None
            try:
                async with asyncio.timeout(patience_s):
                    answer = await ask(await self._connections.shared(address))
            except ClusterUnavailable as failure:
                error = failure
            except TimeoutError:
                error = ClusterUnavailable(f"broker {address}: no answer in time")
            else:
                self._last_good = address
                return answer
            if self._last_good == address:
                self._last_good = None
        raise error or ClusterUnavailable("no broker is known")

    def _candidates(self) -> list[HostPort]:
        known = [HostPort(b.host, b.port) for b in self._metadata.brokers.values()]
        self._rng.shuffle(known)  # spread over brokers when the last one fails
        first = [] if self._last_good is None else [self._last_good]
        return list(dict.fromkeys([*first, *known, *self._bootstrap]))

    def _oldest(self, max_age_ms: int | None) -> float:
        age_ms = self._config.metadata_max_age_ms if max_age_ms is None else max_age_ms
        return asyncio.get_running_loop().time() - age_ms / 1000
