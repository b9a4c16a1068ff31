"""Gives the new cluster the ACLs, the quotas and settings of topics. What is there stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from fetchproxy_protocol.apis import ErrorCode, error_text
from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.cluster_state.state import AclState, QuotaState

# Kafka's codes (org.apache.kafka.common.acl and .resource). A state has decimal numbers for others.
_RESOURCE_TYPES = {
    **{"TOPIC": 2, "GROUP": 3, "CLUSTER": 4, "TRANSACTIONAL_ID": 5},
    **{"DELEGATION_TOKEN": 6, "USER": 7},
}
_PATTERN_TYPES = {"LITERAL": 3, "PREFIXED": 4}
_OPERATIONS = {
    **{"ALL": 2, "READ": 3, "WRITE": 4, "CREATE": 5, "DELETE": 6, "ALTER": 7, "DESCRIBE": 8},
    **{"CLUSTER_ACTION": 9, "DESCRIBE_CONFIGS": 10, "ALTER_CONFIGS": 11, "IDEMPOTENT_WRITE": 12},
    **{"CREATE_TOKENS": 13, "DESCRIBE_TOKENS": 14, "TWO_PHASE_COMMIT": 15},
}
_PERMISSIONS = {"DENY": 2, "ALLOW": 3}
_ACLS_AT_ONCE = 500
_TOPICS_AT_ONCE = 500
_TOPIC_RESOURCE = 2  # of IncrementalAlterConfigs
_SET, _DELETE = 0, 1
_CODE_MAX, _CODE_DIGITS_MAX = 127, 3  # an int8


async def create_acls(cluster: Cluster, acls: Sequence[AclState]) -> list[str]:
    """What could not be created, and why. Raises ClusterError."""
    failed: list[str] = []
    for first in range(0, len(acls), _ACLS_AT_ONCE):
        if failed and failed[-1].startswith("the ACLs:"):
            break  # none of them can be created
        failed += await _create_some(cluster, acls[first : first + _ACLS_AT_ONCE])
    return failed


async def _create_some(cluster: Cluster, acls: Sequence[AclState]) -> list[str]:
    creation = CreateAclsRequest.AclCreation
    request = CreateAclsRequest(
        creations=[
            creation(
                resource_type=_code(_RESOURCE_TYPES, acl.resource_type),
                resource_name=acl.resource_name,
                resource_pattern_type=_code(_PATTERN_TYPES, acl.pattern_type),
                principal=acl.principal,
                host=acl.host,
                operation=_code(_OPERATIONS, acl.operation),
                permission_type=_code(_PERMISSIONS, acl.permission_type),
            )
            for acl in acls
        ]
    )

    async def ask(connection: BrokerConnection) -> Any:
        return await connection.call(request, CreateAclsResponse)

    response = await cluster.ask_any(ask)
    failed = []
    for acl, result in zip(acls, response.results, strict=True):
        if result.error_code == ErrorCode.SECURITY_DISABLED:
            return ["the ACLs: the new cluster has no authorizer (authorizer.class.name)"]
        if result.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return ["the ACLs: this user may not create them (ALTER on the cluster)"]
        if result.error_code:
            failed.append(f"ACL {_acl_text(acl)}: {_reason(result)}")
    return failed


async def set_quotas(cluster: Cluster, quotas: Sequence[QuotaState]) -> list[str]:
    """What could not be set, and why. Raises ClusterError."""
    entry = AlterClientQuotasRequest.EntryData
    entries = []
    for entity, some in groupby(sorted(quotas, key=_entity_text), key=lambda one: one.entity):
        names = [entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
        ops = [entry.OpData(key=one.key, value=one.value, remove=False) for one in some]
        entries.append(entry(entity=names, ops=ops))
    if not entries:
        return []
    request = AlterClientQuotasRequest(entries=entries, validate_only=False)

    async def ask(connection: BrokerConnection) -> Any:
        return await connection.call(request, AlterClientQuotasResponse)

    response = await cluster.ask_any(ask)
    if any(one.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED for one in response.entries):
        return ["the quotas: this user may not set them (ALTER_CONFIGS on the cluster)"]
    return [
        f"quota of {_names(one.entity)}: {_reason(one)}"
        for one in response.entries
        if one.error_code
    ]


async def set_topic_configs(
    cluster: Cluster, configs: Mapping[str, Mapping[str, str | None]]
) -> list[str]:
    """By topic; None: the topic has no value of its own. What could not be set, and why. Raises
    ClusterError.
    """
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    failed: list[str] = []
    names = [name for name, values in configs.items() if values]
    for first in range(0, len(names), _TOPICS_AT_ONCE):
        resources = [
            resource(
                resource_type=_TOPIC_RESOURCE,
                resource_name=name,
                configs=[
                    resource.AlterableConfig(
                        name=key, config_operation=_DELETE if value is None else _SET, value=value
                    )
                    for key, value in configs[name].items()
                ],
            )
            for name in names[first : first + _TOPICS_AT_ONCE]
        ]
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=False)
        response = await cluster.ask_any(partial(_alter_configs, request))
        failed += [
            f"configs of topic {one.resource_name}: {_reason(one)}"
            for one in response.responses
            if one.error_code
        ]
    return failed


async def _alter_configs(request: Any, connection: BrokerConnection) -> Any:
    return await connection.call(request, IncrementalAlterConfigsResponse)


def _code(codes: Mapping[str, int], name: str) -> int:
    """A state has the numbers of words that it did not know; 0: unknown."""
    if name in codes:
        return codes[name]
    is_code = name.isascii() and name.isdigit() and len(name) <= _CODE_DIGITS_MAX
    return int(name) if is_code and int(name) <= _CODE_MAX else 0


def _reason(result: Any) -> str:
    return result.error_message or error_text(result.error_code)


def _acl_text(acl: AclState) -> str:
    return (
        f"{acl.permission_type} {acl.operation} on {acl.resource_type} {acl.resource_name} "
        f"({acl.pattern_type}) for {acl.principal} from {acl.host}"
    )


def _entity_text(quota: QuotaState) -> str:
    return repr(quota.entity)


def _names(entity: Any) -> str:
    return ", ".join(f"{one.entity_type} {one.entity_name or '(default)'}" for one in entity)
