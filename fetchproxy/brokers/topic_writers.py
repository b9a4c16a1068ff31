"""Logs once, at the start, which users the brokers' ACLs allow to write to the metadata topic.

A writer of that topic can make every archiver delete segments. The ACLs show neither super users
nor an authorizer that allows every user if no ACL is found: brokers report neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import structlog
from fetchproxy_protocol.apis import ErrorCode
from kafka.protocol.admin.acl import (
    ACLOperation,
    ACLPermissionType,
    DescribeAclsResponse,
)

from fetchproxy.brokers.authorizer import acls_of_topic
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.config.schema import ClusterConfig, Config
from fetchproxy.config.values import is_loopback, parse_host_port
from fetchproxy.errors import ClusterError

log = structlog.get_logger(__name__)

_WRITES = (ACLOperation.WRITE, ACLOperation.ALL)
_EVERYBODY, _EVERYWHERE = "User:*", "*"
_NAMED_MAX = 20


async def log_writers(cluster: Cluster, config: Config) -> bool:
    """Log the writers of the topic in `config.metadata`. False: try again later. Raises no
    broker error, because the topic works without a response too.
    """
    topic = config.metadata.topic_name
    try:
        acls = await _acls(cluster, topic)
    except ClusterError as error:
        if error.retriable or error.error_code is None:
            return False
        exposed = not is_loopback(parse_host_port(config.gateway.listen).host)
        _log_unknown_writers(topic, error, exposed)
        return True
    others = sorted(writers(acls) - {own_principal(config.cluster)})
    if others:
        log.warning(
            "metadata_topic_open_to_others",
            topic=topic,
            writers=others[:_NAMED_MAX],
            count=len(others),
            hint="any writer to this topic can have the archive deleted: allow WRITE only to the "
            "users of archivers and proxies",
        )
    return True


def _log_unknown_writers(topic: str, error: ClusterError, exposed: bool) -> None:
    if error.error_code == ErrorCode.SECURITY_DISABLED:
        log_at_level = log.warning if exposed else log.info
        log_at_level(
            "metadata_topic_open_to_anybody",
            topic=topic,
            reason="the brokers have no authorizer",
            hint="any client that reaches the brokers can have the archive deleted: let only "
            "trusted clients reach them, or configure an authorizer",
        )
        return
    log.info(
        "metadata_topic_writers_not_known",
        topic=topic,
        error=str(error),
        hint="DESCRIBE on the cluster lets this process see who may write there",
    )


async def _acls(cluster: Cluster, topic: str) -> list[Any]:
    async def ask(connection: BrokerConnection) -> list[Any]:
        response = await connection.call(acls_of_topic(topic), DescribeAclsResponse)
        if response.error_code:
            raise ClusterError(f"DescribeAcls: {response.error_message}", response.error_code)
        return [acl for resource in response.resources for acl in resource.acls]

    return await cluster.ask_any(ask)


def own_principal(config: ClusterConfig) -> str | None:
    """None: only the brokers know it (certificates and tokens)."""
    if config.security_protocol == "PLAINTEXT":
        return "User:ANONYMOUS"
    return None if config.sasl_username is None else f"User:{config.sasl_username}"


def writers(acls: Iterable[Any]) -> set[str]:
    """Principals that may write from some host. A principal denied everywhere is left out."""
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
