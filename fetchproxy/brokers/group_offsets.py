"""The committed offsets of a cluster's groups: read from, and written to, their coordinators."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from fetchproxy_protocol.apis import ErrorCode
from kafka.protocol.admin import ListGroupsRequest, ListGroupsResponse
from kafka.protocol.consumer.group import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from kafka.protocol.metadata import FindCoordinatorRequest, FindCoordinatorResponse

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.messages import raise_for
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError
from fetchproxy.runtime.cooperative import for_each

_GROUP = 0  # FindCoordinator's key type
# The leader of a partition of this topic coordinates its groups, and is the only one to list them.
_OFFSETS_TOPIC = "__consumer_offsets"
_READS_MAX = 3  # while coordinators move
# A commit waits for the replicas of its log. So many connections to each coordinator.
_GROUPS_AT_ONCE = 16
T = TypeVar("T")


class GroupOffset(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None


async def committed_offsets(cluster: Cluster) -> list[GroupOffset]:
    """Of all consumer groups, active ones too. Raises as `read_while_coordinators_stay`."""
    return await read_while_coordinators_stay(cluster, lambda: _listed_offsets(cluster))


async def read_while_coordinators_stay(cluster: Cluster, read: Callable[[], Awaitable[T]]) -> T:
    """`read()` asks each broker for the groups that it coordinates. It is called again if
    coordinators have moved meanwhile. Raises ClusterError, also if the groups of some coordinators
    cannot be listed now: a cluster in trouble would look like one with fewer groups.
    """
    leaders_before = await _offsets_leaders(cluster)
    for _ in range(_READS_MAX):
        result = await read()
        leaders_after = await _offsets_leaders(cluster)
        if leaders_after == leaders_before:
            return result
        leaders_before = leaders_after
    raise ClusterError(f"the leaders of {_OFFSETS_TOPIC} keep moving: try again later")


async def _offsets_leaders(cluster: Cluster) -> Mapping[int, tuple[int, int]]:
    """Leaders and their epochs; none if there are no groups, or without the right to see them."""
    topic = (await cluster.topics_by_name([_OFFSETS_TOPIC], max_age_ms=0))[_OFFSETS_TOPIC]
    if not isinstance(topic, TopicInfo):
        return {}
    without = sum(leader < 0 for leader, _ in topic.leaders.values())
    if without:
        raise ClusterError(
            f"{without} of {len(topic.leaders)} partitions of {_OFFSETS_TOPIC} have no leader, so "
            "the commits of their groups cannot be read: start the brokers that have them"
        )
    return topic.leaders


async def _listed_offsets(cluster: Cluster) -> list[GroupOffset]:
    offsets: list[GroupOffset] = []
    for address in (await cluster.brokers()).values():
        async with cluster.exclusive(address) as connection:
            request = ListGroupsRequest(states_filter=[], types_filter=[])
            response = await connection.call(request, ListGroupsResponse)
            raise_for(response.error_code, f"ListGroups of {address}")
            for group in sorted(group.group_id for group in response.groups):
                offsets += await _offsets_of(connection, group)
    return offsets


async def _offsets_of(connection: BrokerConnection, group: str) -> list[GroupOffset]:
    request = OffsetFetchRequest(group_id=group, topics=None, require_stable=False)
    response = await connection.call(request, OffsetFetchResponse)
    raise_for(response.error_code, f"OffsetFetch of group {group}")
    return [
        GroupOffset(
            group,
            topic.name,
            partition.partition_index,
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.metadata,
        )
        for topic in response.topics
        for partition in topic.partitions
        if partition.committed_offset >= 0
    ]


async def commit_offsets(
    cluster: Cluster, offsets: Mapping[str, Iterable[GroupOffset]]
) -> dict[str, ClusterError]:
    """Commits for groups without members, by group. Returns what failed, by group."""
    failed: dict[str, ClusterError] = {}

    async def commit(group: str) -> None:
        try:
            await _commit(cluster, group, offsets[group])
        except ClusterError as error:
            failed[group] = error

    await for_each(offsets, commit, _GROUPS_AT_ONCE)
    return failed


async def _commit(cluster: Cluster, group: str, offsets: Iterable[GroupOffset]) -> None:
    topics: dict[str, list[Any]] = {}
    topic_type = OffsetCommitRequest.OffsetCommitRequestTopic
    for offset in offsets:
        partition_type = topic_type.OffsetCommitRequestPartition(
            partition_index=offset.partition,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            committed_metadata=offset.metadata,
        )
        topics.setdefault(offset.topic, []).append(partition_type)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[topic_type(name=name, partitions=places) for name, places in topics.items()],
    )
    async with cluster.exclusive(await coordinator_of(cluster, group)) as connection:
        response = await connection.call(request, OffsetCommitResponse)
    for topic in response.topics:
        for partition_type in topic.partitions:
            operation = (
                f"OffsetCommit of group {group} for {topic.name}-{partition_type.partition_index}"
            )
            if partition_type.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                operation += " (the group has members: stop them first)"
            raise_for(partition_type.error_code, operation)


async def coordinator_of(cluster: Cluster, group: str) -> HostPort:
    """Raises ClusterError."""

    async def ask(connection: BrokerConnection) -> Any:
        request = FindCoordinatorRequest(key=group, key_type=_GROUP, coordinator_keys=[group])
        return await connection.call(request, FindCoordinatorResponse)

    response = await cluster.ask_any(ask)
    coordinator = response.coordinators[0] if response.coordinators else response
    raise_for(coordinator.error_code, f"FindCoordinator of group {group}")
    return HostPort(coordinator.host, coordinator.port)
