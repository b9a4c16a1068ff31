"""Reads the state of a cluster by admin requests, in the order that keeps it consistent.

Groups come before the partitions' ends: ends only rise, so a group that had committed an offset
when its coordinator was asked is not ahead of an end that was read later. (A broker lets a client
commit an offset that its log does not have, and a log may be cut or begin again; who uses a state
compares the two.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cluster_state.administration import (
    CLUSTER_DESCRIBE,
    CLUSTER_DESCRIBE_CONFIGS,
    check_groups_are_shown,
    read_acls,
    read_broker_configs,
    read_quotas,
    read_scram_users,
)
from fetchproxy.cluster_state.committed import read_groups
from fetchproxy.cluster_state.missing_parts import MissingParts
from fetchproxy.cluster_state.state import ClusterState
from fetchproxy.cluster_state.topics import read_producer_id_max, read_topics
from fetchproxy.errors import ClusterUnavailable
from fetchproxy.model import TopicIdPartition

# A reading that takes longer is given up: its groups would be much older than its ends.
READ_MAX_S = 300.0


async def read_cluster_state(
    cluster: Cluster, is_archived: Callable[[str], bool], wall_clock_ms: Callable[[], int]
) -> ClusterState:
    """`is_archived`: whether a topic's batches are archived; only their producers matter. Raises
    ClusterError if the state cannot be read as a whole now.
    """
    try:
        async with asyncio.timeout(READ_MAX_S):
            return await _read(cluster, is_archived, wall_clock_ms)
    except TimeoutError:
        raise ClusterUnavailable(f"the cluster's state was not read in {READ_MAX_S:g} s") from None


async def _read(
    cluster: Cluster, is_archived: Callable[[str], bool], wall_clock_ms: Callable[[], int]
) -> ClusterState:
    read_at_ms, missing = wall_clock_ms(), MissingParts()
    cluster_id = await cluster.cluster_id() or ""
    await check_groups_are_shown(cluster, missing)
    groups = await read_groups(cluster, missing)
    topics = await read_topics(cluster, missing)
    archived = [
        TopicIdPartition(topic.topic_id, topic.name, one.partition)
        for topic in topics
        if is_archived(topic.name)
        for one in topic.partitions
    ]
    producer_id_max = await read_producer_id_max(cluster, archived, missing)
    describe, configs = CLUSTER_DESCRIBE, CLUSTER_DESCRIBE_CONFIGS
    acls = await missing.part("ACLs", describe, read_acls(cluster), ())
    quotas = await missing.part("quotas", configs, read_quotas(cluster), ())
    users = await missing.part("SCRAM users", describe, read_scram_users(cluster), ())
    broker_configs = await missing.part(
        "broker settings", configs, read_broker_configs(cluster, missing), ()
    )
    return ClusterState(
        cluster_id,
        read_at_ms,
        topics,
        groups,
        acls,
        quotas,
        users,
        broker_configs,
        producer_id_max,
        missing.parts,
    )
