"""Which operations the brokers allow to this user, found out without changing anything.

Brokers tell the operations on the cluster and on topics that exist. For a topic that does not
exist, the request itself is sent: brokers look at rights before they look for the topic. A group is
probed by the heartbeat of a member that it does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from kafka.protocol.admin import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kafka.protocol.admin.acl import ACLOperation
from kafka.protocol.consumer.group import HeartbeatRequest, HeartbeatResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from fetchproxy.brokers.authorizer import operations_on_cluster
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.messages import body_of, raise_for
from fetchproxy.cluster_restore.needed_rights import CLUSTER, NeededRight, Resource
from fetchproxy.runtime.cooperative import pieces

_AT_ONCE = 500  # resources in a request, or requests on a connection
_NAMES_TO = 12  # of Produce: later versions name topics by ids
_WAIT_MS = 30_000
_TOPIC_RESOURCE = 2
_SET = 0
_ANY_CONFIG = ("retention.ms", "1")
_NAMES = {operation.value: operation.name for operation in ACLOperation}


async def allowed_operations(
    cluster: Cluster, needed: Iterable[NeededRight]
) -> dict[Resource, Collection[str]]:
    """Of the resources of `needed`. Raises ClusterError."""
    names: dict[str, set[str]] = {}
    for right in needed:
        names.setdefault(right.resource[0], set()).add(right.resource[1])
    allowed: dict[Resource, Collection[str]] = {}
    of_cluster = _words(await operations_on_cluster(cluster))
    if of_cluster is not None:
        allowed[CLUSTER] = of_cluster
    for some in pieces(sorted(names.get("topic", ()))):
        allowed |= {("topic", name): ops for name, ops in (await _of_topics(cluster, some)).items()}
    for some in pieces(sorted(names.get("group", ()))):
        readable = await _readable_groups(cluster, some)
        allowed |= {("group", name): ("READ",) if name in readable else () for name in some}
    return allowed


def _words(operations: Iterable[int] | None) -> Collection[str] | None:
    if operations is None:
        return None
    return {_NAMES[code] for code in operations if code in _NAMES}


async def _of_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, Collection[str]]:
    async def ask(connection: BrokerConnection) -> Any:
        topic = MetadataRequest.MetadataRequestTopic
        request = MetadataRequest(
            topics=[topic(name=name) for name in names],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=True,
        )
        return await connection.call(request, MetadataResponse)

    response = await cluster.ask_any(ask)
    allowed: dict[str, Collection[str]] = {}
    absent, hidden = [], []
    for one in response.topics:
        if one.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            absent.append(one.name)
        elif one.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            hidden.append(one.name)  # whether it exists, or not
        else:
            raise_for(one.error_code, f"Metadata of topic {one.name}")
            if (words := _words(one.authorized_operations)) is not None:
                allowed[one.name] = words
    if absent:
        probed = await _of_absent_topics(cluster, absent)
        allowed |= {name: {"DESCRIBE", *operations} for name, operations in probed.items()}
    if hidden:
        allowed |= await _of_absent_topics(cluster, hidden)
    return allowed


async def _of_absent_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, Collection[str]]:
    probes = {
        "CREATE": _refused_creations,
        "WRITE": _refused_writes,
        "DELETE": _refused_deletions,
        "READ": _refused_reads,
        "ALTER_CONFIGS": _refused_configs,
    }
    refused = {
        operation: await cluster.ask_any(partial(probe, names))
        for operation, probe in probes.items()
    }
    return {name: {op for op in probes if name not in refused[op]} for name in names}


async def _refused_creations(names: Sequence[str], connection: BrokerConnection) -> set[str]:
    topic = CreateTopicsRequest.CreatableTopic
    request = CreateTopicsRequest(
        topics=[
            topic(name=name, num_partitions=1, replication_factor=-1, assignments=[], configs=[])
            for name in names
        ],
        timeout_ms=_WAIT_MS,
        validate_only=True,
    )
    response = await connection.call(request, CreateTopicsResponse, _WAIT_MS)
    return {one.name for one in response.topics if _is_of_rights(one.error_code)}


async def _refused_writes(names: Sequence[str], connection: BrokerConnection) -> set[str]:
    """Without any batch, so that nothing is written, even if the topic has just been created."""
    topic = ProduceRequest.TopicProduceData
    nothing = topic.PartitionProduceData(index=0, records=b"")
    request = ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=_WAIT_MS,
        topic_data=[topic(name=name, partition_data=[nothing]) for name in names],
    )
    version = min(connection.version_of(ApiKey.PRODUCE), _NAMES_TO)
    body = request.encode(version=version)
    [payload] = await connection.send(ApiKey.PRODUCE, version, [body])
    response = body_of(ProduceResponse, payload, version)
    return {
        topic.name
        for topic in response.responses
        for one in topic.partition_responses
        if _is_of_rights(one.error_code)
    }


async def _refused_deletions(names: Sequence[str], connection: BrokerConnection) -> set[str]:
    """Below offset 0 there is nothing to delete."""
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    first = topic.DeleteRecordsPartition(partition_index=0, offset=0)
    request = DeleteRecordsRequest(
        topics=[topic(name=name, partitions=[first]) for name in names], timeout_ms=_WAIT_MS
    )
    response = await connection.call(request, DeleteRecordsResponse, _WAIT_MS)
    return {
        topic.name
        for topic in response.topics
        for one in topic.partitions
        if _is_of_rights(one.error_code)
    }


async def _refused_reads(names: Sequence[str], connection: BrokerConnection) -> set[str]:
    topic = DescribeProducersRequest.TopicRequest
    request = DescribeProducersRequest(
        topics=[topic(name=name, partition_indexes=[0]) for name in names]
    )
    response = await connection.call(request, DescribeProducersResponse)
    return {
        topic.name
        for topic in response.topics
        for one in topic.partitions
        if _is_of_rights(one.error_code)
    }


async def _refused_configs(names: Sequence[str], connection: BrokerConnection) -> set[str]:
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    key, value = _ANY_CONFIG
    change = resource.AlterableConfig(name=key, config_operation=_SET, value=value)
    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(resource_type=_TOPIC_RESOURCE, resource_name=name, configs=[change])
            for name in names
        ],
        validate_only=True,
    )
    response = await connection.call(request, IncrementalAlterConfigsResponse)
    return {one.resource_name for one in response.responses if _is_of_rights(one.error_code)}


async def _readable_groups(cluster: Cluster, names: Sequence[str]) -> set[str]:
    async def ask(connection: BrokerConnection) -> set[str]:
        version = connection.version_of(ApiKey.HEARTBEAT)
        bodies = [
            HeartbeatRequest(
                group_id=name, generation_id=0, member_id="nobody", group_instance_id=None
            ).encode(version=version)
            for name in names
        ]
        payloads = await connection.send(ApiKey.HEARTBEAT, version, bodies)
        codes = [body_of(HeartbeatResponse, one, version).error_code for one in payloads]
        return {name for name, code in zip(names, codes, strict=True) if not _is_of_rights(code)}

    return await cluster.ask_any(ask)


def _is_of_rights(code: int) -> bool:
    return code in (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    )
