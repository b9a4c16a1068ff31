"""What the brokers' authorizer tells: the operations that this user may do, and ACLs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fetchproxy_protocol.apis import ErrorCode
from kafka.protocol.admin import DescribeClusterRequest, DescribeClusterResponse
from kafka.protocol.admin.acl import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ACLResourceType,
    DescribeAclsRequest,
)

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.messages import raise_for
from fetchproxy.errors import ClusterError


async def operations_on_cluster(cluster: Cluster) -> Collection[int] | None:
    """Codes of `ACLOperation`. None: the brokers do not tell, as before 2.8. Raises
    ClusterError.
    """
    request = DescribeClusterRequest(include_cluster_authorized_operations=True, endpoint_type=1)

    async def ask(connection: BrokerConnection) -> Any:
        return await connection.call(request, DescribeClusterResponse)

    try:
        response = await cluster.ask_any(ask)
        raise_for(response.error_code, "DescribeCluster")
    except ClusterError as error:
        if error.error_code == ErrorCode.UNSUPPORTED_VERSION:
            return None
        raise
    operations: Collection[int] | None = response.authorized_operations
    return operations


def acls_of_topic(topic: str) -> DescribeAclsRequest:
    """Asks for each ACL that applies to the topic: by its name, by a prefix, or for all topics."""
    return _acls(ACLResourceType.TOPIC, topic, ACLResourcePatternType.MATCH)


def all_acls() -> DescribeAclsRequest:
    return _acls(ACLResourceType.ANY, None, ACLResourcePatternType.ANY)


def _acls(kind: int, name: str | None, pattern: int) -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=kind,
        resource_name_filter=name,
        pattern_type_filter=pattern,
        principal_filter=None,
        host_filter=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
    )
