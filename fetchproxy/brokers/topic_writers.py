"""Who may write to the metadata topic, as the brokers' ACLs say; told once, at the start.

Whoever writes there tells every archiver what to delete. Super users, and an authorizer that lets
in everybody where it has no rule, are in no ACL: brokers tell nobody of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog
from fetchproxy_protocol.apis import ErrorCode
from kafka.protocol.admin.acl import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ACLResourceType,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.config.schema import ClusterConfig, Config
from fetchproxy.config.values import is_loopback, parse_host_port
from fetchproxy.errors import ClusterError

log = structlog.get_logger(__name__)

_WRITES = (ACLOperation.WRITE, ACLOperation.ALL)
_EVERYBODY, _EVERYWHERE = "User:*", "*"
_NAMED_MAX = 20


class MetadataTopicWriters:
    """Of the topic of `config.metadata`, asked over `cluster`, which its owner opens."""

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self._cluster = cluster
        self._topic = config.metadata.topic_name
        self._own = own_principal(config.cluster)
        self._exposed = not is_loopback(parse_host_port(config.gateway.listen).host)
        self._told = False

    async def tell_once(self) -> None:
        """Raises nothing of the brokers': the topic serves without an answer as well."""
        if self._told:
            return
        try:
            acls = await self._acls()
        except ClusterError as error:
            if error.retriable or error.error_code is None:
                return  # at the next opening
            self._told = True
            self._tell_unknown(error)
            return
        self._told = True
        others = sorted(writers(acls) - {self._own})
        if others:
            log.warning(
                "metadata_topic_open_to_others",
                topic=self._topic,
                writers=others[:_NAMED_MAX],
                count=len(others),
                hint="whoever writes there can have the archive deleted: leave WRITE to the users "
                "of archivers and proxies",
            )

    def _tell_unknown(self, error: ClusterError) -> None:
        if error.error_code == ErrorCode.SECURITY_DISABLED:
            tell = log.warning if self._exposed else log.info
            tell(
                "metadata_topic_open_to_anybody",
                topic=self._topic,
                reason="the brokers have no authorizer",
                hint="whoever reaches the brokers can have the archive deleted",
            )
            return
        log.info(
            "metadata_topic_writers_not_known",
            topic=self._topic,
            error=str(error),
            hint="DESCRIBE on the cluster lets this process see who may write there",
        )

    async def _acls(self) -> list[Any]:
        """Every rule that holds for the topic: of its name, of a beginning of it, of all topics."""
        asked = DescribeAclsRequest(
            resource_type_filter=ACLResourceType.TOPIC,
            resource_name_filter=self._topic,
            pattern_type_filter=ACLResourcePatternType.MATCH,
            principal_filter=None,
            host_filter=None,
            operation=ACLOperation.ANY,
            permission_type=ACLPermissionType.ANY,
        )

        async def ask(connection: BrokerConnection) -> list[Any]:
            answer = await connection.call(asked, DescribeAclsResponse)
            if answer.error_code:
                raise ClusterError(f"DescribeAcls: {answer.error_message}", answer.error_code)
            return [acl for resource in answer.resources for acl in resource.acls]

        return await self._cluster.ask_any(ask)


def own_principal(config: ClusterConfig) -> str | None:
    """None where only the brokers know it: of certificates and tokens."""
    if config.security_protocol == "PLAINTEXT":
        return "User:ANONYMOUS"
    return None if config.sasl_username is None else f"User:{config.sasl_username}"


def writers(acls: Iterable[Any]) -> set[str]:
    """Principals that may write from somewhere. What is denied everywhere is not allowed."""
    rules = [acl for acl in acls if acl.operation in _WRITES]
    denied = {
        acl.principal
        for acl in rules
        if acl.permission_type == ACLPermissionType.DENY and acl.host == _EVERYWHERE
    }
    if _EVERYBODY in denied:
        return set()
    return {
        acl.principal for acl in rules if acl.permission_type == ACLPermissionType.ALLOW
    } - denied
