"""The proxy's own requests to the brokers: leaders, log offsets of the local log, raw batches."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Self, TypeVar
from uuid import UUID

from fetchproxy_protocol.apis import ApiKey, ErrorCode, error_text
from fetchproxy_protocol.topic_entries import ClusterMetadata, TopicInfo
from kafka.protocol.admin import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from kafka.protocol.consumer.fetch import FetchRequest

from fetchproxy.brokers.connections import BrokerConnection, BrokerConnections
from fetchproxy.brokers.leaders import LeaderEpochEnd, Leaders, LogOffsetsReads, epoch_ends
from fetchproxy.brokers.messages import FetchedPartition, decode_fetch, raise_for
from fetchproxy.brokers.sasl import sasl_credentials
from fetchproxy.brokers.topic_metadata import ClusterMetadataCache
from fetchproxy.config.schema import ClusterConfig, TlsConfig
from fetchproxy.config.values import HostPort, parse_bootstrap
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.model import IsolationLevel, LogOffsets, TopicIdPartition, is_topic_name
from fetchproxy.observability.health import Condition
from fetchproxy.runtime.cooperative import chosen, cooperative
from fetchproxy.runtime.single_flight import SingleFlight
from fetchproxy.runtime.waits import first_success
from fetchproxy.storage.continued_topics import ContinuedTopics
from fetchproxy.tls.reloading import ReloadingContext, upstream_context

__all__ = ["Cluster", "FetchedPartition", "TopicInfo"]

T = TypeVar("T")
K = TypeVar("K", str, UUID)

_ALL_TOPICS = "all topics"
_CONSUMER = -1  # replica_id
_NO_SESSION = -1  # session_epoch of a full fetch outside any session (KIP-227)
_NAMES_LEADER_EPOCH_FROM = 9  # of Fetch
_TOPIC_RESOURCE = 2  # of DescribeConfigs

# After this pause without a connection to one broker, the next one is tried too.
CONNECT_STAGGER_S = 1.0
# Brokers and topics are asked for again after this age. A wrong leader is noticed at once.
METADATA_AGE_MAX_MS = 30_000
# A broker waits so long for all replicas to trim, and then reports an error.
_REPLICAS_WAIT_MS = 5_000


class Cluster:
    """The proxy's own requests to the brokers. `async with Cluster(config) as cluster`. Connects at
    the first request, never over a client's connection.

    Raises `ClusterUnavailable` if no broker answered in time, `ClusterError` with Kafka's code if
    a broker refused.
    """

    def __init__(
        self,
        config: ClusterConfig,
        rng: random.Random | None = None,
        tls: ReloadingContext | None = None,
        continued: ContinuedTopics | None = None,
    ) -> None:
        """`tls` is made here if not given. `continued`: of the archive that this cluster's topics
        belong to; None: topics have the ids that brokers know. Raises ConfigError if a file cannot
        be used.
        """
        self._config = config
        self.bootstrap = parse_bootstrap(config.bootstrap)
        self._rng = rng or random.Random()
        self._sasl = sasl_credentials(config)
        upstream = tls or upstream_context(config, TlsConfig())
        self._connections = BrokerConnections(config, self._sasl, upstream)
        self.continued = ContinuedTopics() if continued is None else continued
        self._metadata = ClusterMetadataCache(self.continued)
        self._metadata_calls = SingleFlight[ClusterMetadata]()
        self._leaders = Leaders(config.request_max_ms, self._rng, self._metadata, self.topics_of)
        self._log_offsets = LogOffsetsReads(self._leaders, self._connections)
        # What is known, however old. Every archived fetch asks, and none of these blocks.
        self.cached_topic_by_id = self._metadata.by_id.get
        self.cached_topic_by_name = self._metadata.by_name.get
        self.cached_log_offsets = self._log_offsets.known.get
        self._last_good: HostPort | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connections.close()
        await asyncio.sleep(0)  # the transports report their end in the loop's next turn

    @property
    def refusal(self) -> str | None:
        """Why brokers refuse the proxy's own credentials; None: no refusal, or not asked yet."""
        return None if self._sasl is None else self._sasl.refusal

    def conditions(self, now: float) -> Iterable[Condition]:
        """Conditions of the proxy's own credentials. Never blocks."""
        return () if self._sasl is None else self._sasl.health.all(now)

    # --- brokers and topics ---
    async def brokers(self, max_age_ms: int | None = None) -> dict[int, HostPort]:
        """The brokers by id, at most METADATA_AGE_MAX_MS old."""
        if self._metadata.brokers_at < self._oldest(max_age_ms):
            await self._ask_metadata([])
        return dict(self._metadata.brokers)

    def known_brokers(self) -> Mapping[int, HostPort]:
        """By id, as the cluster named them last; empty before the first response. Never blocks."""
        return self._metadata.brokers

    async def greet(self, address: HostPort) -> None:
        """Ask this broker which brokers it knows. Raises ClusterError."""
        await self._metadata.ask(await self._connections.shared(address), [])

    async def cluster_id(self) -> str | None:
        """None: the brokers report no id. It is as fresh as the result of `brokers`."""
        await self.brokers()
        return self._metadata.cluster_id

    async def topics(self, max_age_ms: int | None = None) -> list[TopicInfo]:
        """All topics visible to these credentials, sorted by name. Default age as for `brokers`."""
        if self._metadata.all_topics_at < self._oldest(max_age_ms):
            await self._ask_metadata(None)
        return self._metadata.topics()

    async def topic_by_name(self, name: str, max_age_ms: int | None = None) -> TopicInfo:
        """Raises ClusterError with the broker's code: 3 for an unknown topic and for a name that no
        topic can have. Creates no topic.
        """
        return _result_or_raise((await self.topics_by_name([name], max_age_ms))[name])

    async def topics_by_name(
        self, names: Collection[str], max_age_ms: int | None = None
    ) -> dict[str, TopicInfo | ClusterError]:
        """As `topic_by_name`, in one request. Raises ClusterUnavailable if no broker answers."""
        possible = await chosen(names, is_topic_name)
        topics = dict.fromkeys(
            names,
            ClusterError("no topic can have this name", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        )
        return {**topics, **await self._look_up(possible, max_age_ms)}

    async def topic_by_id(self, topic_id: UUID, max_age_ms: int | None = None) -> TopicInfo:
        """Raises ClusterError: 100 for an unknown id (also after a deletion or re-creation)."""
        results = await self._look_up([topic_id], max_age_ms)
        return _result_or_raise(results[topic_id])

    async def topics_of(
        self, keys: Collection[str | UUID], max_age_ms: int | None = None
    ) -> dict[str | UUID, TopicInfo | ClusterError]:
        """As `topics_by_name`, for names and ids, in at most two requests."""
        # A request names either names or ids: a broker that reads ids ignores names.
        names = [key for key in keys if isinstance(key, str)]
        ids = [key for key in keys if isinstance(key, UUID)]
        by_name = await self.topics_by_name(names, max_age_ms)
        by_id = await self._look_up(ids, max_age_ms)
        return dict((*by_name.items(), *by_id.items()))

    async def _look_up(
        self, keys: Collection[K], max_age_ms: int | None
    ) -> dict[K, TopicInfo | ClusterError]:
        oldest = self._oldest(max_age_ms)
        results: dict[K, TopicInfo | ClusterError] = {}
        uncached_keys: list[K] = []
        async for key in cooperative(keys):
            topic = self._metadata.find(key, oldest)
            if topic is None:
                uncached_keys.append(key)
            else:
                results[key] = topic
        if uncached_keys:
            response = await self._ask_metadata(uncached_keys)
            by_key = {
                key: topic
                for topic in response.topics
                for key in (topic.name, topic.topic_id, topic.id_at_brokers)
            }
            async for key in cooperative(uncached_keys):
                results[key] = by_key.get(key) or _metadata_error(key, response)
        return results

    async def still_there(self, max_age_ms: int) -> list[TopicInfo]:
        """The topics in memory, sorted by name. Asks about those that were not heard of for so
        long: nobody else may ask about a deleted topic. Raises ClusterUnavailable.
        """
        await self._look_up([topic.name for topic in self._metadata.topics()], max_age_ms)
        return self._metadata.topics()

    async def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        """`is_gone`: for topics that no longer exist. Those that the cluster lacks are forgotten
        too.
        """

        def topic_is_gone(tp: TopicIdPartition) -> bool:
            return is_gone(tp.topic_id) or tp.topic not in self._metadata.by_name

        await self._log_offsets.forget(topic_is_gone)

    async def topic_config(self, name: str) -> dict[str, str]:
        """The topic's effective configuration; {} if the broker has no DescribeConfigs."""

        async def ask(connection: BrokerConnection) -> dict[str, str]:
            if ApiKey.DESCRIBE_CONFIGS not in connection.versions:
                return {}
            resource = DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=None
            )
            request = DescribeConfigsRequest(resources=[resource])
            response = await connection.call(request, DescribeConfigsResponse)
            names: dict[str, str] = {}
            for result in response.results:
                raise_for(result.error_code, f"DescribeConfigs of {result.resource_name}")
                # Brokers leave sensitive values out.
                names.update({c.name: c.value for c in result.configs if c.value is not None})
            return names

        return await self.ask_any(ask)

    # --- one partition ---
    async def log_offsets(
        self, tp: TopicIdPartition, *, not_older_than: float | None = None
    ) -> LogOffsets:
        """The log's start, high watermark and LSO, from the leader (ListOffsets).

        The start includes records that the broker keeps in a tier of its own (-2, not -4 of
        KIP-405): it serves them. The response is from loop time `not_older_than` (seconds) or
        later; None: from now on.
        """
        now = asyncio.get_running_loop().time()
        oldest = now if not_older_than is None else not_older_than
        return _result_or_raise((await self._log_offsets.get([tp], oldest))[tp])

    async def fetch_log_offsets(
        self, tps: Collection[TopicIdPartition], *, not_older_than: float
    ) -> dict[TopicIdPartition, LogOffsets | ClusterError]:
        """As `log_offsets`, by three requests to each leader, all leaders at once. Raises nothing.
        `cached_log_offsets` has each broker's response while other brokers are still asked.
        """
        return await self._log_offsets.get(tps, not_older_than)

    async def ask_epoch_ends(
        self,
        epochs: Mapping[TopicIdPartition, int],
        on_result: Callable[[TopicIdPartition, LeaderEpochEnd | ClusterError], None],
    ) -> None:
        """Ask each leader, in one request, where one epoch of each partition ended in its log.

        `on_result` is called for each partition as soon as its response is known, perhaps twice.
        It gets the offset at which the epoch ended, and the leader's own epoch. None: the leader
        does not know this request or reports no epochs. Raises nothing.
        """

        async def ask(
            connection: BrokerConnection, topics: Mapping[TopicIdPartition, TopicInfo]
        ) -> dict[TopicIdPartition, LeaderEpochEnd | ClusterError]:
            return await epoch_ends(connection, topics, epochs)

        await self.ask_leaders(epochs.keys(), ask, on_result)

    async def ask_leaders(
        self,
        tps: Collection[TopicIdPartition],
        ask: Callable[
            [BrokerConnection, Mapping[TopicIdPartition, TopicInfo]],
            Awaitable[Mapping[TopicIdPartition, T | ClusterError]],
        ],
        on_result: Callable[[TopicIdPartition, T | ClusterError], None] | None = None,
    ) -> dict[TopicIdPartition, T | ClusterError]:
        """`ask` each leader about its partitions, all leaders at once, and again after an election.
        For short requests. `on_result`: see `Leaders.ask`. Raises nothing.
        """

        async def shared(
            leader: HostPort, topics: Mapping[TopicIdPartition, TopicInfo]
        ) -> Mapping[TopicIdPartition, T | ClusterError]:
            return await ask(await self._connections.shared(leader), topics)

        return await self._leaders.ask(tps, shared, on_result)

    async def fetch(
        self,
        tp: TopicIdPartition,
        offset: int,
        *,
        bytes_max: int,
        wait_max_ms: int,
        isolation: IsolationLevel,
    ) -> FetchedPartition:
        """Raw batches from `offset` on. The first batch comes whole, even above `bytes_max`.

        Raises on every error except an offset out of range. Asks by topic id if the broker can
        (Kafka 3.1), so that a re-created topic is never taken for this one.
        """

        async def ask(connection: BrokerConnection, topic: TopicInfo) -> FetchedPartition:
            version = connection.version_of(ApiKey.FETCH)
            leader_epoch = topic.leaders[tp.partition][1]
            topic_type = FetchRequest.FetchTopic
            requested = topic_type.FetchPartition(
                partition=tp.partition,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                partition_max_bytes=bytes_max,
            )
            request = FetchRequest(
                replica_id=_CONSUMER,
                max_wait_ms=wait_max_ms,
                min_bytes=1,
                max_bytes=bytes_max,
                isolation_level=int(isolation),
                session_id=0,
                session_epoch=_NO_SESSION,
                topics=[
                    topic_type(
                        partitions=[requested], topic=topic.name, topic_id=topic.id_at_brokers
                    )
                ],
                forgotten_topics_data=[],
                rack_id="",
            )
            body = request.encode(version=version)
            [payload] = await connection.send(ApiKey.FETCH, version, [body], wait_max_ms)
            fetched = decode_fetch(payload, version, tp)
            # The broker refuses a request that names another epoch than its own (KIP-320).
            names_leader_epoch = version >= _NAMES_LEADER_EPOCH_FROM
            return replace(fetched, leader_epoch=leader_epoch) if names_leader_epoch else fetched

        return await self.ask_leader(tp, ask)

    async def ask_leader(
        self, tp: TopicIdPartition, ask: Callable[[BrokerConnection, TopicInfo], Awaitable[T]]
    ) -> T:
        """`ask` the partition's leader on an exclusive connection, and again after an election. For
        requests that may wait in the broker. A request whose response was lost is sent again.
        """

        async def ask_single(
            leader: HostPort, topics: Mapping[TopicIdPartition, TopicInfo]
        ) -> dict[TopicIdPartition, T | ClusterError]:
            async with self._connections.exclusive(leader) as connection:
                return {tp: await ask(connection, topics[tp])}

        return _result_or_raise((await self._leaders.ask([tp], ask_single))[tp])

    # --- whom to ask ---
    async def _ask_metadata(self, topics: Sequence[str | UUID] | None) -> ClusterMetadata:
        key = _ALL_TOPICS if topics is None else tuple(topics)
        return await self._metadata_calls.run(key, lambda: self._fetch_metadata(topics))

    async def _fetch_metadata(self, topics: Sequence[str | UUID] | None) -> ClusterMetadata:
        response = await self.ask_any(lambda connection: self._metadata.ask(connection, topics))
        self._connections.retain({*self._candidates(), *self.bootstrap})
        return response

    def exclusive(self, address: HostPort) -> AbstractAsyncContextManager[BrokerConnection]:
        """A connection that no other task uses inside the block, for requests that wait long."""
        return self._connections.exclusive(address)

    async def ask_any(self, ask: Callable[[BrokerConnection], Awaitable[T]]) -> T:
        """`ask` the broker that answered last, else other brokers or the bootstrap addresses.

        The next one is tried if a broker cannot be connected at once. A broker that hangs gets
        connect_max_ms while others are left, even on an open connection.
        """
        error: ClusterUnavailable | None = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.request_max_ms / 1000
        candidates = self._candidates()
        while candidates and (error is None or loop.time() <= deadline):
            connects = [partial(self._connections.shared, address) for address in candidates]
            connection = await first_success(connects, CONNECT_STAGGER_S, ClusterUnavailable)
            candidates.remove(address := connection.address)
            patience_s = self._config.connect_max_ms / 1000 if candidates else None
            try:
                async with asyncio.timeout(patience_s):
                    response = await ask(connection)
            except ClusterUnavailable as failure:
                error = failure
            except TimeoutError:
                error = ClusterUnavailable(f"broker {address}: no response in time")
            else:
                self._last_good = address
                return response
            if self._last_good == address:
                self._last_good = None
        raise error or ClusterUnavailable("no broker is known")

    def _candidates(self) -> list[HostPort]:
        """Bootstrap addresses come between the known brokers, which may all have moved."""
        brokers = list(self._metadata.brokers.values())
        self._rng.shuffle(brokers)  # spread the load if the last broker fails
        first = [] if self._last_good is None else [self._last_good]
        candidates = [one for pair in zip_longest(brokers, self.bootstrap) for one in pair if one]
        return list(dict.fromkeys([*first, *candidates]))

    def _oldest(self, max_age_ms: int | None) -> float:
        age_ms = METADATA_AGE_MAX_MS if max_age_ms is None else max_age_ms
        return asyncio.get_running_loop().time() - age_ms / 1000


def _result_or_raise(value: T | ClusterError) -> T:
    if isinstance(value, ClusterError):
        raise value
    return value


def _metadata_error(key: str | UUID, response: ClusterMetadata) -> ClusterError:
    by_id = isinstance(key, UUID)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    code = response.failed.get(key, unknown)
    name = f"topic id {key}" if by_id else f"topic {key!r}"
    return ClusterError(f"{name}: {error_text(code)}", code)


async def delete_records(cluster: Cluster, tp: TopicIdPartition, offset: int) -> int:
    """Delete the records below `offset` from the brokers. Returns all replicas' new log start.

    Kafka takes only topic *names* here, so the topic's id is looked up anew before: a re-created
    topic is another log. May be repeated. Raises ClusterError; if it has no Kafka code, the
    deletion may have happened.
    """

    async def ask(connection: BrokerConnection, topic: TopicInfo) -> int:
        topic_type = DeleteRecordsRequest.DeleteRecordsTopic
        requested = topic_type.DeleteRecordsPartition(partition_index=tp.partition, offset=offset)
        request = DeleteRecordsRequest(
            topics=[topic_type(name=topic.name, partitions=[requested])],
            timeout_ms=_REPLICAS_WAIT_MS,
        )
        response = await connection.call(request, DeleteRecordsResponse, _REPLICAS_WAIT_MS)
        for topic_response in response.topics:
            for partition in topic_response.partitions:
                raise_for(partition.error_code, f"DeleteRecords of {topic_response.name}")
                return int(partition.low_watermark)
        raise ClusterError("DeleteRecords was answered without the partition")

    await cluster.topic_by_id(tp.topic_id, max_age_ms=0)
    return await cluster.ask_leader(tp, ask)
