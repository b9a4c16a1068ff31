"""Rights and reach, found out before anything is touched.

A right is tested by a request that must fail for another reason: a heartbeat of a broker that does
not exist, the removal of one, the validation of a topic.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection, Iterable
from contextlib import closing

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cluster_restore import controller_requests as requests
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.needed_rights import (
    CLUSTER,
    NeededRight,
    missing_rights,
    rights_text,
)
from fetchproxy.cluster_restore.plan import PlannedTopic, RestorePlan, TopicAction
from fetchproxy.cluster_restore.right_probes import allowed_operations
from fetchproxy.config.values import HostPort, is_loopback
from fetchproxy.errors import ClusterError, ClusterUnavailable, ConfigError

# OpenSSL's codes: the certificate does not name this host, or this address.
_OF_ANOTHER_HOST = (62, 64)
_DIAL_MAX_S = 5.0
_REFUSED = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)


PADDING_HINT = (
    "Or restore with --by padding, which needs no controllers, and only CREATE, WRITE and DELETE "
    "on the topics"
)


async def check_controllers(
    controller: ActiveController, free_node_id: int, principal: str, bootstrap: str
) -> None:
    """`free_node_id`: of no broker. Raises ConfigError, naming the rights; ClusterError."""
    missing = []
    try:
        await requests.heartbeat(controller, free_node_id, 0)
    except ClusterUnavailable as error:
        raise ClusterUnavailable(f"{error}. {PADDING_HINT}") from None
    except ClusterError as error:
        if error.error_code in _REFUSED:
            missing.append("CLUSTER_ACTION")
        elif error.error_code is None or error.error_code == ErrorCode.UNSUPPORTED_VERSION:
            raise
    try:
        await requests.unregister_broker(controller, free_node_id)
    except ClusterError as error:
        if error.error_code in _REFUSED:
            missing.append("ALTER")
        else:
            raise
    rights = [
        NeededRight(operation, CLUSTER, "to lead temporarily, at the controllers", True)
        for operation in missing
    ]
    raise_missing(rights, principal, bootstrap)


async def check_brokers(
    cluster: Cluster, needed: Collection[NeededRight], principal: str, bootstrap: str
) -> list[str]:
    """Returns what this user may not do, and the restore can go on without, in words. Raises
    ConfigError, naming the rights without which it cannot; ClusterError.
    """
    missing = missing_rights(needed, await allowed_operations(cluster, needed))
    raise_missing([right for right in missing if right.is_vital], principal, bootstrap)
    return list(rights_text(missing, principal, bootstrap))


def raise_missing(rights: Collection[NeededRight], principal: str, bootstrap: str) -> None:
    """Raises ConfigError if there are any."""
    if not rights:
        return
    lines = "; ".join(rights_text(rights, principal, bootstrap))
    hint = f". {PADDING_HINT}" if any(one.resource == CLUSTER for one in rights) else ""
    raise ConfigError(f"{lines}{hint}")


def check_address(address: HostPort, brokers: Iterable[HostPort]) -> None:
    """Raises ConfigError if brokers on other machines would look for it on their own."""
    far = [str(broker) for broker in brokers if not is_loopback(broker.host)]
    if far and is_loopback(address.host):
        raise ConfigError(
            f"brokers such as {far[0]} cannot reach this machine at {address.host}: name an "
            "address of this machine with --listen HOST:PORT"
        )


async def check_reach(address: HostPort, trusted: ssl.SSLContext | None) -> None:
    """Whether the advertised address leads to this process. `trusted`: if its port has TLS, what
    brokers' certificates are checked by. Raises ConfigError; also if the certificate there is for
    another host, which brokers would refuse (ssl.endpoint.identification.algorithm).
    """
    name = None if trusted is None else address.host
    try:
        async with asyncio.timeout(_DIAL_MAX_S):
            _, writer = await asyncio.open_connection(
                address.host, address.port, ssl=trusted, server_hostname=name
            )
    except ssl.SSLCertVerificationError as error:
        if error.verify_code not in _OF_ANOTHER_HOST:
            return  # the brokers may trust other authorities than this command
        raise ConfigError(
            f"the certificate in gateway.tls_certificate_file is not valid for {address.host}, to "
            f"which brokers connect: {error.verify_message}. Name another host with --advertise"
        ) from None
    except ssl.SSLError:
        return  # somebody is there, who wants a certificate that brokers have
    except (OSError, TimeoutError) as error:
        raise ConfigError(
            f"nothing responds at {address}, where brokers would connect: see --listen and "
            f"--advertise ({error or 'no response in time'})"
        ) from None
    with closing(writer):
        return


async def refused_by_controller(controller: ActiveController, plan: RestorePlan) -> dict[str, str]:
    """The topics that the new cluster would not create as they were, and why."""
    refusals = {}
    for topic in plan.of(TopicAction.CREATE):
        try:
            await _validate(controller, topic)
        except ClusterError as error:
            if error.retriable:
                raise
            if error.error_code not in _REFUSED:  # rights are looked at for all topics together
                refusals[topic.name] = str(error)
    return refusals


async def _validate(controller: ActiveController, topic: PlannedTopic) -> None:
    configs = dict(topic.archived.configs)
    await requests.create_topic(controller, topic.name, topic.replicas, configs, validate_only=True)
