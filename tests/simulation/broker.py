"""A small cluster that speaks Kafka over the simulated network, with real frames and fetch rules.

It serves ApiVersions, Metadata, ListOffsets, and Fetch 4–13 with long polls and fetch sessions
(KIP-227). kafka-python's classes decode and encode, so the product shares no wire code with it.
Sources of the rules: Kafka's ReplicaManager, DelayedFetch, FetchSession and KafkaApis.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast
from uuid import UUID

from broker_connection import BrokerProtocol
from broker_log import LogRead, SimulatedLog
from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse
from kafka.protocol.consumer.offsets import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from network import Address, SimulatedNetwork

from fetchproxy.model import ZERO_UUID

FETCH, LIST_OFFSETS, METADATA, API_VERSIONS, DESCRIBE_CONFIGS, DESCRIBE_PRODUCERS = (
    1,
    2,
    3,
    18,
    32,
    61,
)
VERSIONS = {
    FETCH: (4, 13),
    LIST_OFFSETS: (1, 8),
    METADATA: (0, 13),
    API_VERSIONS: (0, 3),
    DESCRIBE_CONFIGS: (1, 2),
    DESCRIBE_PRODUCERS: (0, 0),
}
_REQUESTS = {
    FETCH: FetchRequest,
    LIST_OFFSETS: ListOffsetsRequest,
    METADATA: MetadataRequest,
    API_VERSIONS: ApiVersionsRequest,
    DESCRIBE_CONFIGS: DescribeConfigsRequest,
    DESCRIBE_PRODUCERS: DescribeProducersRequest,
}
TOPIC_AUTHORIZATION_FAILED = 29
PRODUCER_ID = 4711
UNKNOWN_TOPIC, NOT_LEADER, SESSION_NOT_FOUND, WRONG_EPOCH, UNKNOWN_TOPIC_ID = 3, 6, 70, 71, 100
EARLIEST, EARLIEST_LOCAL = -2, -4

Partition = Any  # FetchRequest.FetchTopic.FetchPartition
Key = tuple[str | UUID, int]


@dataclass(slots=True)
class FetchSession:
    epoch: int  # the next request must carry this one
    partitions: dict[Key, Partition]
    log_ends_sent: dict[Key, tuple[int, int]] = field(
        default_factory=dict
    )  # high watermark, log start


class SimulatedCluster:
    """`changed` is set, and replaced by a new event, each time a log moves."""

    def __init__(
        self, network: SimulatedNetwork, rng: Random, logs: Sequence[SimulatedLog], nodes: int
    ) -> None:
        self.network = network
        self.rng = rng
        self.logs = {(log.tp.topic, log.tp.partition): log for log in logs}
        self.topic_ids = {log.tp.topic: log.tp.topic_id for log in logs}
        self.names = {topic_id: name for name, topic_id in self.topic_ids.items()}
        self.nodes = [BrokerNode(self, number + 1) for number in range(nodes)]
        self.leaders = {key: self.nodes[i % nodes].node_id for i, key in enumerate(self.logs)}
        self.changed = asyncio.Event()
        self.topic_configs: dict[str, dict[str, str]] = {}  # empty: no DescribeConfigs support
        self.describes_producers = True  # False: the proxy's user has no READ

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in (node.address for node in self.nodes))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            for node in self.nodes:
                node.tasks = tasks
                node.listener = self.network.listen(lambda n=node: BrokerProtocol(n), *node.address)
            try:
                yield
            finally:
                for node in self.nodes:
                    node.listener.close()
                    for connection in list(node.connections):
                        connection.close()

    def add(self, log: SimulatedLog) -> None:
        """A log of a new topic, or one more of the topic that was added last."""
        key, topic_id = (log.tp.topic, log.tp.partition), log.tp.topic_id
        self.logs[key], self.topic_ids[log.tp.topic] = log, topic_id
        self.names[topic_id] = log.tp.topic
        self.leaders[key] = self.nodes[log.tp.partition % len(self.nodes)].node_id
        if self.topic_configs:
            self.topic_configs.setdefault(log.tp.topic, {})

    def delete(self, topic: str) -> None:
        del self.names[self.topic_ids.pop(topic)]
        self.topic_configs.pop(topic, None)
        for key in [key for key in self.logs if key[0] == topic]:
            del self.logs[key], self.leaders[key]

    def moved(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def log_of(self, topic: str | UUID, partition: int) -> SimulatedLog | None:
        name = self.names.get(topic, "") if isinstance(topic, UUID) else topic
        return self.logs.get((name, partition))


class BrokerNode:
    def __init__(self, cluster: SimulatedCluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.address: Address = (f"10.0.0.{node_id}", 9092)
        self.sessions: dict[int, FetchSession] = {}
        self.sessions_max = 100
        self.sessions_lost = 0
        self.connections: dict[BrokerProtocol, None] = {}
        self.tasks: asyncio.TaskGroup | None = None
        self.listener: Any = None

    async def response(self, request: bytes) -> bytes:
        key, version = struct.unpack_from(">hh", request)
        low, high = VERSIONS[key]  # a KeyError ends the connection, and the simulation notices
        assert low <= version <= high, f"API {key} version {version}"
        message = cast(Any, _REQUESTS[key]).decode(request, version=version, header=True)
        if key == FETCH:
            response = await self._fetch(message, version)
        elif key == LIST_OFFSETS:
            response = self._list_offsets(message)
        elif key == METADATA:
            response = self._metadata(message, version)
        elif key == DESCRIBE_CONFIGS:
            response = self._describe_configs(message)
        elif key == DESCRIBE_PRODUCERS:
            response = self._describe_producers(message)
        else:
            response = self._api_versions()
        response.API_VERSION = version
        response.with_header(correlation_id=message.header.correlation_id)
        return bytes(response.encode(header=True, framed=True))

    # -- small ones ------------------------------------------------------------------------------
    def _api_versions(self) -> Any:
        ranges = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in VERSIONS.items()
            if key != DESCRIBE_CONFIGS or self.cluster.topic_configs
        ]
        return ApiVersionsResponse(error_code=0, api_keys=ranges, throttle_time_ms=0)

    def _metadata(self, request: Any, version: int) -> Any:
        cluster = self.cluster
        names_and_ids: Iterable[tuple[str | None, UUID | None]] = [
            (name, topic_id) for name, topic_id in cluster.topic_ids.items()
        ]
        if request.topics is not None and (version > 0 or request.topics):
            names_and_ids = [
                (topic.name, getattr(topic, "topic_id", None)) for topic in request.topics
            ]
        partitions: dict[str, list[tuple[int, int]]] = {}
        for (topic, number), leader in cluster.leaders.items():
            partitions.setdefault(topic, []).append((number, leader))
        broker = MetadataResponse.MetadataResponseBroker
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[
                broker(node_id=n.node_id, host=n.address[0], port=n.address[1], rack=None)
                for n in cluster.nodes
            ],
            cluster_id="simulated",
            controller_id=1,
            topics=[
                self._described(name, topic_id, partitions) for name, topic_id in names_and_ids
            ],
        )

    def _described(
        self,
        name: str | None,
        topic_id: UUID | None,
        partitions: Mapping[str, Sequence[tuple[int, int]]],
    ) -> Any:
        """`partitions`: of all topics, each with its leader."""
        cluster = self.cluster
        topic = MetadataResponse.MetadataResponseTopic
        by_id = name is None
        name = cluster.names.get(topic_id or ZERO_UUID) if name is None else name
        known = name in cluster.topic_ids
        return topic(
            error_code=0 if known else UNKNOWN_TOPIC_ID if by_id else UNKNOWN_TOPIC,
            name=name,
            topic_id=cluster.topic_ids.get(name or "", topic_id or ZERO_UUID),
            is_internal=False,
            partitions=[
                topic.MetadataResponsePartition(
                    error_code=0,
                    partition_index=partition,
                    leader_id=leader,
                    leader_epoch=0,
                    replica_nodes=[leader],
                    isr_nodes=[leader],
                    offline_replicas=[],
                )
                for partition, leader in partitions.get(name or "", ())
            ],
        )

    def _describe_configs(self, request: Any) -> Any:
        result = DescribeConfigsResponse.DescribeConfigsResult
        return DescribeConfigsResponse(
            throttle_time_ms=0,
            results=[
                result(
                    error_code=0
                    if config_resource.resource_name in self.cluster.topic_configs
                    else UNKNOWN_TOPIC,
                    error_message=None,
                    resource_type=config_resource.resource_type,
                    resource_name=config_resource.resource_name,
                    configs=[
                        result.DescribeConfigsResourceResult(
                            name=name,
                            value=value,
                            read_only=False,
                            config_source=1,
                            is_sensitive=False,
                            synonyms=[],
                        )
                        for name, value in self.cluster.topic_configs.get(
                            config_resource.resource_name, {}
                        ).items()
                    ],
                )
                for config_resource in request.resources
            ],
        )

    def _describe_producers(self, request: Any) -> Any:
        """One producer, with the transaction that nobody ends."""
        of_topic = DescribeProducersResponse.TopicResponse
        of_partition = of_topic.PartitionResponse
        topics = []
        for topic in request.topics:
            partitions = []
            for number in topic.partition_indexes:
                log = self.cluster.log_of(topic.name, number)
                error = self._error_of(topic.name, number, log)
                since = None if log is None else log.open_since
                if not self.cluster.describes_producers:
                    error = TOPIC_AUTHORIZATION_FAILED
                producer = of_partition.ProducerState(
                    producer_id=PRODUCER_ID,
                    producer_epoch=0,
                    last_sequence=1,
                    last_timestamp=0,
                    coordinator_epoch=0,
                    current_txn_start_offset=-1 if since is None else since,
                )
                partitions.append(
                    of_partition(
                        partition_index=number,
                        error_code=error,
                        error_message=None,
                        active_producers=[] if error else [producer],
                    )
                )
            topics.append(of_topic(name=topic.name, partitions=partitions))
        return DescribeProducersResponse(throttle_time_ms=0, topics=topics)

    def _list_offsets(self, request: Any) -> Any:
        responded = ListOffsetsResponse.ListOffsetsTopicResponse
        topics = []
        for topic in request.topics:
            partitions = [
                responded.ListOffsetsPartitionResponse(
                    partition_index=p.partition_index,
                    **self._offset(topic.name, p, getattr(request, "isolation_level", 0)),
                )
                for p in topic.partitions
            ]
            topics.append(responded(name=topic.name, partitions=partitions))
        return ListOffsetsResponse(throttle_time_ms=0, topics=topics)

    def _offset(self, topic: str, partition_request: Any, isolation: int) -> dict[str, int]:
        log = self.cluster.log_of(topic, partition_request.partition_index)
        error = self._error_of(topic, partition_request.partition_index, log)
        offset = -1
        if log is not None and not error:
            if partition_request.timestamp in (EARLIEST, EARLIEST_LOCAL):
                offset = log.start_offset
            else:
                offset = log.last_stable_offset if isolation else log.high_watermark
        return {"error_code": error, "timestamp": -1, "offset": offset, "leader_epoch": 0}

    def _error_of(self, topic: str | UUID, partition: int, log: SimulatedLog | None) -> int:
        if log is None:
            return UNKNOWN_TOPIC_ID if isinstance(topic, UUID) else UNKNOWN_TOPIC
        leader = self.cluster.leaders[log.tp.topic, log.tp.partition]
        return 0 if leader == self.node_id else NOT_LEADER

    # -- fetch -----------------------------------------------------------------------------------
    async def _fetch(self, request: Any, version: int) -> Any:
        partitions_asked = _keyed(request.topics, version)
        error, session_id, session, incremental = self._context(request, partitions_asked, version)
        if error:
            return FetchResponse(throttle_time_ms=0, error_code=error, session_id=0, responses=[])
        partitions = session.partitions if session is not None else partitions_asked
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.max_wait_ms / 1000
        while True:
            changed = self.cluster.changed
            reads = self._read_all(partitions, request)
            size = sum(len(log_read.records) for log_read in reads.values())
            failed = any(log_read.error_code for log_read in reads.values())
            if failed or not reads or size >= request.min_bytes or loop.time() >= deadline:
                break
            try:
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
            except TimeoutError:
                pass
        if session is not None:
            reads = self._news(session, reads, incremental)
        return self._fetch_response(session_id, reads, request.isolation_level, version)

    def _context(
        self, request: Any, partitions: dict[Key, Partition], version: int
    ) -> tuple[int, int, FetchSession | None, bool]:
        """(error code, session id to show, session, incremental or not), as in FetchManager."""
        if version < 7:
            return 0, 0, None, False
        session_id, epoch = request.session_id, request.session_epoch
        if epoch == -1:
            self.sessions.pop(session_id, None)
            return 0, 0, None, False
        if epoch == 0:
            self.sessions.pop(session_id, None)
            if len(self.sessions) >= self.sessions_max or not partitions:
                return 0, 0, None, False
            new_id = self.cluster.rng.randint(1, 2**31 - 1)
            self.sessions[new_id] = session = FetchSession(1, dict(partitions))
            return 0, new_id, session, False
        known = self.sessions.get(session_id)
        if known is None:
            return SESSION_NOT_FOUND, 0, None, False
        if epoch != known.epoch:
            return WRONG_EPOCH, 0, None, False
        known.epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        known.partitions.update(partitions)
        for topic in request.forgotten_topics_data:
            name = topic.topic_id if version >= 13 else topic.topic
            for partition in topic.partitions:
                known.partitions.pop((name, partition), None)
                known.log_ends_sent.pop((name, partition), None)
        if not known.partitions:
            del self.sessions[session_id]
            return 0, 0, FetchSession(0, {}), False
        return 0, session_id, known, True

    def _read_all(self, partitions: dict[Key, Partition], request: Any) -> dict[Key, LogRead]:
        bytes_left, whole_first = request.max_bytes, True
        reads: dict[Key, LogRead] = {}
        for (topic, number), partition in partitions.items():
            log = self.cluster.log_of(topic, number)
            error = self._error_of(topic, number, log)
            if log is None or error:
                reads[topic, number] = LogRead(error)
                continue
            limit = min(partition.partition_max_bytes, max(bytes_left, 0))
            committed = bool(request.isolation_level)
            log_read = log.read(partition.fetch_offset, limit, committed, whole_first)
            if log_read.first_incomplete:
                log_read = LogRead(0, aborted=log_read.aborted)
            if log_read.records:
                whole_first = False
                bytes_left -= len(log_read.records)
            reads[topic, number] = log_read
        return reads

    def _news(
        self, session: FetchSession, reads: dict[Key, LogRead], incremental: bool
    ) -> dict[Key, LogRead]:
        """The partitions the response names; those with data move to the session's end
        (fairness).
        """
        reads_kept: dict[Key, LogRead] = {}
        for key, log_read in reads.items():
            log = self.cluster.log_of(*key)
            edges = (-1, -1)
            if log is not None and not log_read.error_code:
                edges = (log.high_watermark, log.start_offset)
            news = log_read.records or log_read.error_code or not incremental
            if news or session.log_ends_sent.get(key) != edges:
                reads_kept[key] = log_read
            session.log_ends_sent[key] = edges
            if log_read.records:
                session.partitions[key] = session.partitions.pop(key)
        return reads_kept

    def _fetch_response(
        self, session_id: int, reads: dict[Key, LogRead], isolation: int, version: int
    ) -> Any:
        of_topic = FetchResponse.FetchableTopicResponse
        grouped: dict[str | UUID, list[Any]] = {}
        for (topic, number), log_read in reads.items():
            log = self.cluster.log_of(topic, number)
            known = log is not None and not log_read.error_code
            aborted = None
            if isolation and known:
                aborted = [
                    of_topic.PartitionData.AbortedTransaction(
                        producer_id=a.producer_id, first_offset=a.first_offset
                    )
                    for a in log_read.aborted
                ]
            data = of_topic.PartitionData(
                partition_index=number,
                error_code=log_read.error_code,
                high_watermark=log.high_watermark if log and known else -1,
                last_stable_offset=log.last_stable_offset if log and known else -1,
                log_start_offset=log.start_offset if log and known else -1,
                aborted_transactions=aborted,
                preferred_read_replica=-1,
                records=log_read.records,
            )
            grouped.setdefault(topic, []).append(data)
        name = "topic_id" if version >= 13 else "topic"
        return FetchResponse(
            throttle_time_ms=0,
            error_code=0,
            session_id=session_id,
            responses=[of_topic(**{name: topic}, partitions=p) for topic, p in grouped.items()],
        )


def _keyed(topics: Iterable[Any], version: int) -> dict[Key, Partition]:
    return {
        (topic.topic_id if version >= 13 else topic.topic, partition.partition): partition
        for topic in topics
        for partition in topic.partitions
    }
