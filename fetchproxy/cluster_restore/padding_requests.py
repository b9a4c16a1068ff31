"""What a restore by padding asks of the leaders, with a client's rights. All raise ClusterError."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from fetchproxy_protocol import list_offsets
from fetchproxy_protocol.apis import ApiKey, ErrorCode, error_text
from fetchproxy_protocol.headers import response_body
from fetchproxy_protocol.topic_entries import TopicInfo
from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.producers import active_producers
from fetchproxy.cluster_restore.padding_batch import PADDING_MS
from fetchproxy.cluster_restore.padding_plan import FirstRecord
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.runtime.cooperative import collected, cooperative, pieces

_ALL_REPLICAS = -1  # acks
_REPLICAS_WAIT_MS = 30_000
_PARTITIONS_AT_ONCE = 500  # of DeleteRecords, which waits for all replicas
# The leader has the batch, and does not know yet whether it stays.
_UNSURE = (
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


class Appended(NamedTuple):
    """`base_offset`: of the batch's first record. `throttle_ms`: what a quota costs before the next
    request. `has_broker_time`: the topic has message.timestamp.type=LogAppendTime.
    """

    base_offset: int
    throttle_ms: int
    has_broker_time: bool


class Unsure(NamedTuple):
    """Nobody knows whether the batch is in the log: the response was lost."""

    why: str


async def create_topic_of_brokers_choice(
    cluster: Cluster,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    *,
    validate_only: bool = False,
) -> UUID | None:
    """The brokers choose the replicas. None: there is a topic by this name."""
    topic = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            topic(
                name=name,
                num_partitions=partitions,
                replication_factor=replication_factor,
                assignments=[],
                configs=[
                    topic.CreatableTopicConfig(name=key, value=value)
                    for key, value in configs.items()
                ],
            )
        ],
        timeout_ms=_REPLICAS_WAIT_MS,
        validate_only=validate_only,
    )

    async def ask(connection: BrokerConnection) -> UUID | None:
        response = await connection.call(request, CreateTopicsResponse, _REPLICAS_WAIT_MS)
        [result] = response.topics
        if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return None
        if result.error_code:
            detail = f": {result.error_message}" if result.error_message else ""
            text = f"creation of topic {name}: {error_text(result.error_code)}{detail}"
            raise ClusterError(text, result.error_code)
        return UUID(str(result.topic_id))

    return await cluster.ask_any(ask)


async def append(cluster: Cluster, tp: TopicIdPartition, batch: bytes) -> Appended | Unsure:
    """One batch, with all replicas in sync. It is not appended twice: after a response that was
    lost, nothing is repeated.
    """
    topic_type = ProduceRequest.TopicProduceData
    place = topic_type.PartitionProduceData(index=tp.partition, records=batch)

    async def ask(connection: BrokerConnection, topic: TopicInfo) -> Appended | Unsure:
        data = topic_type(name=topic.name, topic_id=topic.topic_id, partition_data=[place])
        request = ProduceRequest(
            transactional_id=None,
            acks=_ALL_REPLICAS,
            timeout_ms=_REPLICAS_WAIT_MS,
            topic_data=[data],
        )
        try:
            response = await connection.call(request, ProduceResponse, _REPLICAS_WAIT_MS)
        except ClusterUnavailable as error:
            return Unsure(str(error))  # raised, it would be sent again
        return _appended(response, tp)

    return await cluster.ask_leader(tp, ask)


def _appended(response: Any, tp: TopicIdPartition) -> Appended | Unsure:
    for topic in response.responses:
        for one in topic.partition_responses:
            if one.error_code in _UNSURE:
                return Unsure(error_text(one.error_code))
            if one.error_code == ErrorCode.NOT_ENOUGH_REPLICAS:
                text = f"padding of {tp}: too few replicas are in sync"
                raise ClusterUnavailable(text, one.error_code)
            if one.error_code:
                detail = f": {one.error_message}" if one.error_message else ""
                text = f"padding of {tp} is refused: {error_text(one.error_code)}{detail}"
                raise ClusterError(text, one.error_code)
            has_broker_time = one.log_append_time_ms >= 0
            return Appended(one.base_offset, response.throttle_time_ms or 0, has_broker_time)
    raise ClusterError("Produce was answered without the partition")


async def first_records(
    cluster: Cluster, tps: Collection[TopicIdPartition]
) -> dict[TopicIdPartition, FirstRecord | None]:
    """The first record after the time of padding in each partition. None: there is none."""

    async def ask(
        connection: BrokerConnection, topics: Mapping[TopicIdPartition, TopicInfo]
    ) -> Mapping[TopicIdPartition, FirstRecord | ClusterError | None]:
        version = connection.version_of(ApiKey.LIST_OFFSETS)
        by_topic: dict[str, list[tuple[int, int]]] = {}
        async for tp, topic in cooperative(topics.items()):
            by_topic.setdefault(topic.name, []).append(
                (tp.partition, topic.leaders[tp.partition][1])
            )
        isolation = IsolationLevel.READ_UNCOMMITTED
        pieces_of_body = list_offsets.write_request(version, isolation, by_topic, PADDING_MS + 1)
        body = b"".join(await collected(pieces_of_body))
        [payload] = await connection.send(ApiKey.LIST_OFFSETS, version, [body])
        cursor = response_body(payload, ApiKey.LIST_OFFSETS, version)
        rows = {
            (one.topic, one.partition): one
            async for one in cooperative(list_offsets.results_in(cursor, version))
        }
        return {
            tp: _first_record(rows.get((topic.name, tp.partition)), tp)
            async for tp, topic in cooperative(topics.items())
        }

    results = await cluster.ask_leaders(tps, ask)
    records: dict[TopicIdPartition, FirstRecord | None] = {}
    for tp, result in results.items():
        if isinstance(result, ClusterError):
            raise result
        records[tp] = result
    return records


def _first_record(
    result: list_offsets.OffsetResult | None, tp: TopicIdPartition
) -> FirstRecord | ClusterError | None:
    if result is None:
        return ClusterError(f"ListOffsets was answered without {tp}")
    if result.error_code:
        text = f"ListOffsets of {tp}: {error_text(result.error_code)}"
        return ClusterError(text, result.error_code)
    return FirstRecord(result.offset, result.timestamp) if result.offset >= 0 else None


async def delete_below(
    cluster: Cluster,
    offsets: Mapping[TopicIdPartition, int],
    failed: Callable[[TopicIdPartition, ClusterError], None],
) -> None:
    """DeleteRecords below `offsets`, on all replicas. May be repeated."""
    for some in pieces(offsets, _PARTITIONS_AT_ONCE):
        results = await cluster.ask_leaders(some, _delete_call(offsets))
        for tp, result in results.items():
            if isinstance(result, ClusterError):
                failed(tp, result)


def _delete_call(offsets: Mapping[TopicIdPartition, int]) -> Any:
    topic_type = DeleteRecordsRequest.DeleteRecordsTopic

    async def ask(
        connection: BrokerConnection, topics: Mapping[TopicIdPartition, TopicInfo]
    ) -> Mapping[TopicIdPartition, int | ClusterError]:
        by_topic: dict[str, list[Any]] = {}
        for tp, topic in topics.items():
            place = topic_type.DeleteRecordsPartition(
                partition_index=tp.partition, offset=offsets[tp]
            )
            by_topic.setdefault(topic.name, []).append(place)
        request = DeleteRecordsRequest(
            topics=[topic_type(name=name, partitions=rows) for name, rows in by_topic.items()],
            timeout_ms=_REPLICAS_WAIT_MS,
        )
        response = await connection.call(request, DeleteRecordsResponse, _REPLICAS_WAIT_MS)
        rows = {
            (topic.name, one.partition_index): one
            for topic in response.topics
            for one in topic.partitions
        }
        return {tp: _deleted(rows[topic.name, tp.partition], tp) for tp, topic in topics.items()}

    return ask


def _deleted(row: Any, tp: TopicIdPartition) -> int | ClusterError:
    if row.error_code:
        text = f"DeleteRecords of {tp}: {error_text(row.error_code)}"
        return ClusterError(text, row.error_code)
    return int(row.low_watermark)


async def producer_ids(cluster: Cluster, tp: TopicIdPartition) -> Sequence[int] | None:
    """Of the producers with an id that have written lately; None: this user may not know."""
    try:
        producers = await active_producers(cluster, tp)
    except ClusterError as error:
        if error.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return None
        raise
    return None if producers is None else sorted(one.producer_id for one in producers)
