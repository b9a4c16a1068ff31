"""The rights, quotas, users and dynamic settings of a cluster."""

from __future__ import annotations

from typing import Any

from fetchproxy_protocol.apis import ErrorCode
from kafka.protocol.admin import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kafka.protocol.admin.acl import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ACLResourceType,
    DescribeAclsResponse,
)

from fetchproxy.brokers.authorizer import all_acls, operations_on_cluster
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.messages import raise_for
from fetchproxy.cluster_state.missing_parts import MissingParts, call_decoded, in_words
from fetchproxy.cluster_state.state import AclState, NamedValues, QuotaState

CLUSTER_DESCRIBE = "DESCRIBE on the cluster"
CLUSTER_DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS on the cluster"
_BROKER_RESOURCE = 4  # of DescribeConfigs
_ALL_BROKERS = ""
_DYNAMIC_OF_ALL_BROKERS = 3  # a config's source


async def check_groups_are_shown(cluster: Cluster, missing: MissingParts) -> None:
    """Without the right to see the cluster, ListGroups leaves groups out and says nothing."""
    operations = await operations_on_cluster(cluster)  # None: the requests show what is refused
    if operations is not None and ACLOperation.DESCRIBE not in operations:
        missing.add(
            "groups that this user may not see", "the brokers leave them out", CLUSTER_DESCRIBE
        )


async def read_acls(cluster: Cluster) -> tuple[AclState, ...]:
    """Sorted; none if the brokers have no authorizer. Raises ClusterError."""
    request = all_acls()
    response = await cluster.ask_any(lambda one: call_decoded(one, request, DescribeAclsResponse))
    if response.error_code == ErrorCode.SECURITY_DISABLED:
        return ()
    raise_for(response.error_code, "DescribeAcls")
    return tuple(
        sorted(
            AclState(
                _word(ACLResourceType, resource.resource_type),
                resource.resource_name,
                _word(ACLResourcePatternType, resource.pattern_type),
                acl.principal,
                acl.host,
                _word(ACLOperation, acl.operation),
                _word(ACLPermissionType, acl.permission_type),
            )
            for resource in response.resources
            for acl in resource.acls
        )
    )


def _word(words: Any, code: int) -> str:
    return next((word.name for word in words if word.value == code), str(code))


async def read_quotas(cluster: Cluster) -> tuple[QuotaState, ...]:
    """Sorted. Raises ClusterError."""
    request = DescribeClientQuotasRequest(components=[], strict=False)
    response = await cluster.ask_any(
        lambda one: call_decoded(one, request, DescribeClientQuotasResponse)
    )
    raise_for(response.error_code, "DescribeClientQuotas")
    quotas = [
        QuotaState(
            tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)),
            value.key,
            value.value,
        )
        for entry in response.entries or ()
        for value in entry.values
    ]
    return tuple(sorted(quotas, key=lambda one: (str(one.entity), one.key)))


async def read_scram_users(cluster: Cluster) -> tuple[str, ...]:
    """The names alone: no request gives out their keys. Raises ClusterError."""
    # No users mean all. Without a list, a broker that refuses the request never responds (4.1.1).
    request = DescribeUserScramCredentialsRequest(users=[])
    response = await cluster.ask_any(
        lambda one: call_decoded(one, request, DescribeUserScramCredentialsResponse)
    )
    raise_for(response.error_code, "DescribeUserScramCredentials")
    return tuple(sorted(one.user for one in response.results if one.credential_infos))


async def read_broker_configs(cluster: Cluster, missing: MissingParts) -> NamedValues:
    """Dynamic settings of all brokers. Raises ClusterError."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_BROKER_RESOURCE, resource_name=_ALL_BROKERS, configuration_keys=None
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=False, include_documentation=False
    )
    response = await cluster.ask_any(
        lambda one: call_decoded(one, request, DescribeConfigsResponse)
    )
    configs: dict[str, str | None] = {}
    for result in response.results:
        raise_for(result.error_code, "DescribeConfigs of all brokers")
        configs.update(
            {c.name: c.value for c in result.configs if c.config_source == _DYNAMIC_OF_ALL_BROKERS}
        )
    if secret := [name for name, value in configs.items() if value is None]:
        missing.add(f"broker settings {in_words(secret)}", "brokers do not return secret values")
    return tuple(sorted((name, value) for name, value in configs.items() if value is not None))
