"""Rights and reach, found out before anything is touched.

A right is tested by a request that must fail for another reason: a heartbeat of a broker that does
not exist, the removal of one, the validation of a topic.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import closing

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.cluster_restore import controller_requests as requests
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.plan import PlannedTopic, RestorePlan, TopicAction
from fetchproxy.config.values import HostPort, is_loopback
from fetchproxy.errors import ClusterError, ConfigError

# OpenSSL's codes: the certificate does not name this host, or this address.
_OF_ANOTHER_HOST = (62, 64)
_DIAL_MAX_S = 5.0
_REFUSED = (
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)


async def check_rights(controller: ActiveController, free_node_id: int) -> None:
    """`free_node_id`: of no broker. Raises ConfigError, naming the right; ClusterError."""
    missing = []
    try:
        await requests.heartbeat(controller, free_node_id, 0)
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
    if missing:
        raise ConfigError(
            f"the controllers do not allow {' and '.join(missing)} on the cluster to the user of "
            "cluster.sasl_username: add these ACLs, and CREATE on the cluster, then run it again"
        )


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
            f"the certificate of gateway.tls_certificate_file is not one of {address.host}, to "
            f"which brokers connect: {error.verify_message}. Name another host with --advertise"
        ) from None
    except ssl.SSLError:
        return  # somebody is there, who wants a certificate that brokers have
    except (OSError, TimeoutError) as error:
        raise ConfigError(
            f"nobody responds at {address}, where brokers would connect: see --listen and "
            f"--advertise ({error or 'no response in time'})"
        ) from None
    with closing(writer):
        return


async def refused_by_controller(controller: ActiveController, plan: RestorePlan) -> dict[str, str]:
    """The topics that the new cluster would not create as they were, and why."""
    found = {}
    for topic in plan.of(TopicAction.CREATE):
        try:
            await _validate(controller, topic)
        except ClusterError as error:
            if error.retriable:
                raise
            found[topic.name] = str(error)
    return found


async def _validate(controller: ActiveController, topic: PlannedTopic) -> None:
    count = len(topic.archived.partitions)
    configs = dict(topic.archived.configs)
    await requests.create_topic(
        controller, topic.name, count, topic.replicas[0], configs, validate_only=True
    )
