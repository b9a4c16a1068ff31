"""Checks of the brokers: addresses, TLS, protocol, login, versions, rights."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from fetchproxy_protocol.apis import ApiKey, ErrorCode, error_text
from kafka.protocol.consumer.group import HeartbeatRequest, HeartbeatResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.group_offsets import coordinator_of
from fetchproxy.config.schema import Config
from fetchproxy.config.values import HostPort, parse_bootstrap
from fetchproxy.doctor.installation import (
    NOTHING,
    CheckFunction,
    DoesNotApply,
    Finding,
    Installation,
    NotChecked,
    Passed,
)
from fetchproxy.errors import AuthenticationRefused, ClusterError, ConfigError
from fetchproxy.tls.dial import dial
from fetchproxy.tls.handshake_errors import handshake_error_in_words
from fetchproxy.tls.reloading import ReloadingContext
from fetchproxy.writing.deletion.retention import effective_retention
from fetchproxy.writing.discovery import matching_topics

# Rights in a broker's response (KIP-430): the numbers of Kafka's AclOperation, and the names that
# kafka-acls.sh gives them.
_READ, _WRITE, _DELETE, _DESCRIBE_CONFIGS = 3, 4, 6, 10
_OPERATIONS = {
    _READ: "Read",
    _WRITE: "Write",
    _DELETE: "Delete",
    _DESCRIBE_CONFIGS: "DescribeConfigs",
}
_RIGHTS_FROM_VERSION = 8  # of Metadata
# More topics without a right are counted, and not named.
NAMED_MAX = 5
_NO_MEMBER = "fetchproxy-doctor"
# A new cluster makes the topic of the groups when it is first asked for a coordinator.
_NO_COORDINATOR_YET = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
_COORDINATOR_TRIES_MAX, _COORDINATOR_PAUSE_S = 50, 0.2

_ALWAYS = (ApiKey.METADATA, ApiKey.FETCH, ApiKey.LIST_OFFSETS)
_OF_GROUPS = (ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT)
_TOPIC_IDS_FROM = 10  # of Metadata: Kafka 2.8


async def dial_error(address: HostPort, tls: ReloadingContext | None = None) -> OSError | None:
    """Connect and close again; the error, or None."""
    try:
        transport, _ = await dial(asyncio.Protocol, address.host, address.port, tls)
    except OSError as error:
        return error
    transport.abort()
    return None


async def dial_each(
    addresses: Sequence[HostPort], wait_max_ms: int, tls: ReloadingContext | None = None
) -> dict[HostPort, str]:
    """The errors in words, by address; all are dialed at once."""
    faults: dict[HostPort, str] = {}

    async def one(address: HostPort) -> None:
        try:
            async with asyncio.timeout(wait_max_ms / 1000):
                error = await dial_error(address, tls)
        except TimeoutError:
            error = OSError(f"no connection within {wait_max_ms} ms")
        if error is not None:
            faults[address] = f"{address}: {handshake_error_in_words(error)}"

    async with asyncio.TaskGroup() as tasks:
        for address in addresses:
            tasks.create_task(one(address))
    return faults


def _broker_finding(address: HostPort, reason: str) -> Finding:
    words = {"host": address.host, "port": address.port, "address": address}
    return Finding(reason, words)


async def _one_takes_connections(installation: Installation) -> Sequence[Finding]:
    faults = await _dial_bootstrap(installation)
    addresses = parse_bootstrap(installation.config.cluster.bootstrap)
    return (
        [_broker_finding(*one) for one in faults.items()]
        if len(faults) == len(set(addresses))
        else NOTHING
    )


async def _each_takes_connections(installation: Installation) -> Sequence[Finding]:
    return [_broker_finding(*one) for one in (await _dial_bootstrap(installation)).items()]


async def _dial_bootstrap(installation: Installation) -> dict[HostPort, str]:
    installation.check_has_brokers()
    config = installation.config.cluster
    return await dial_each(parse_bootstrap(config.bootstrap), config.connect_max_ms)


async def _tls_works(installation: Installation) -> Sequence[Finding]:
    installation.check_has_brokers()
    config, tls = installation.config.cluster, await installation.upstream()
    if tls is None:
        raise DoesNotApply(f"cluster.security_protocol = {config.security_protocol}")
    away = await _dial_bootstrap(installation)
    reachable = [a for a in parse_bootstrap(config.bootstrap) if a not in away]
    faults = await dial_each(reachable, config.connect_max_ms, tls)
    return [_broker_finding(*one) for one in faults.items()]


async def _speak_kafka(installation: Installation) -> Passed | Sequence[Finding]:
    try:
        brokers = await (await installation.cluster()).brokers(0)
    except (AuthenticationRefused, ConfigError):
        return NOTHING  # the next check says so
    return Passed("1 broker" if len(brokers) == 1 else f"{len(brokers)} brokers")


async def _accept_our_user(installation: Installation) -> Sequence[Finding]:
    await (await installation.cluster()).brokers()
    return NOTHING


async def _have_the_requests(installation: Installation) -> Sequence[Finding]:
    needs = _needs(installation.config)

    async def ask(connection: BrokerConnection) -> list[Finding]:
        missing = []
        for key in needs:
            try:
                connection.version_of(key)
            except ClusterError as error:
                missing.append(Finding(f"broker {connection.address}: {key.name}: {error}"))
        highest = connection.versions.get(ApiKey.METADATA, (0, 0))[1]
        if not missing and highest < _TOPIC_IDS_FROM:
            missing.append(Finding(f"broker {connection.address} has no topic ids (Kafka 2.8)"))
        return missing

    return await (await installation.cluster()).ask_any(ask)


def _needs(config: Config) -> list[ApiKey]:
    needs = list(_ALWAYS)
    if config.archive.topics is not None:
        if config.archive.group_id is not None:
            needs += _OF_GROUPS
        if effective_retention(config.archive, "", None).trims_locally:
            needs.append(ApiKey.DELETE_RECORDS)
    if config.metadata.manager == "topic":
        needs += [ApiKey.PRODUCE, ApiKey.CREATE_TOPICS]
    return needs


async def _broker_faults(installation: Installation) -> tuple[dict[HostPort, str], int]:
    """The errors of brokers that do not answer, and how many brokers there are."""
    cluster = await installation.cluster()
    addresses = list(dict.fromkeys((await cluster.brokers()).values()))
    faults: dict[HostPort, str] = {}

    async def one(address: HostPort) -> None:
        try:
            await cluster.greet(address)
        except ClusterError as error:
            faults[address] = str(error)

    async with asyncio.TaskGroup() as tasks:
        for address in addresses:
            tasks.create_task(one(address))
    return faults, len(addresses)


async def _can_be_reached(installation: Installation) -> Sequence[Finding]:
    faults, count = await _broker_faults(installation)
    return [_broker_finding(*one) for one in faults.items()] if len(faults) == count else NOTHING


async def _each_responds(installation: Installation) -> Sequence[Finding]:
    faults, _ = await _broker_faults(installation)
    return [_broker_finding(*one) for one in faults.items()]


# --- the rights of the proxy's own user ---


async def topic_rights(installation: Installation) -> dict[str, set[int]]:
    """The rights on each visible topic. {}: the brokers do not tell (before Kafka 2.3)."""
    request = MetadataRequest(
        topics=None,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=True,
    )

    async def ask(connection: BrokerConnection) -> dict[str, set[int]]:
        if connection.version_of(ApiKey.METADATA) < _RIGHTS_FROM_VERSION:
            return {}
        response = await connection.call(request, MetadataResponse)
        rights = {topic.name: topic.authorized_operations for topic in response.topics}
        return {name: allowed for name, allowed in rights.items() if allowed is not None}

    return await (await installation.cluster()).ask_any(ask)


async def _has_topic_rights(installation: Installation) -> Sequence[Finding]:
    config = installation.config
    if not installation.archives and config.metadata.manager == "store":
        raise DoesNotApply("a process that does not archive needs only DESCRIBE")
    rights = await topic_rights(installation)
    if not rights and not await (await installation.cluster()).topics(0):
        return NOTHING
    findings = []
    for operation, topics in _missing_rights(config, rights, await _matching(installation)).items():
        more = f" and {len(topics) - NAMED_MAX} more" if len(topics) > NAMED_MAX else ""
        reason = f"{operation} is missing on {', '.join(topics[:NAMED_MAX])}{more}"
        findings.append(Finding(reason, {"operation": operation, "topic": topics[0]}))
    return findings


async def _matching(installation: Installation) -> list[str]:
    topics = await (await installation.cluster()).topics(0)
    archive, metadata_topic = installation.config.archive, installation.config.metadata.topic_name
    return [] if archive.topics is None else [
        topic.name for topic in matching_topics(archive, topics, metadata_topic)
    ]  # fmt: skip


def _missing_rights(
    config: Config, rights: Mapping[str, set[int]], matching: Sequence[str]
) -> dict[str, list[str]]:
    """The topics by the operation that is missing there."""
    missing: dict[str, list[str]] = {}

    def need(topic: str, *operations: int) -> None:
        for operation in operations:
            if topic in rights and operation not in rights[topic]:
                missing.setdefault(_OPERATIONS[operation], []).append(topic)

    for topic in matching:
        need(topic, _READ, _DESCRIBE_CONFIGS)
        if effective_retention(config.archive, topic, None).trims_locally:
            need(topic, _DELETE)
    if config.metadata.manager == "topic":
        need(config.metadata.topic_name, _READ, _WRITE, _DESCRIBE_CONFIGS)
    return missing


async def _may_join_the_group(installation: Installation) -> Sequence[Finding]:
    """A heartbeat of a member that does not exist: READ on the group is checked before the member,
    and no group learns of it.
    """
    group = installation.config.archive.group_id
    if group is None or not installation.archives:
        raise DoesNotApply("`archive.group_id` is not set")
    for _ in range(_COORDINATOR_TRIES_MAX):
        code = await _heartbeat_code((await installation.cluster()), group)
        if code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
            return [Finding(f"group {group}: {error_text(code)}")]
        if code not in _NO_COORDINATOR_YET:
            return NOTHING
        await asyncio.sleep(_COORDINATOR_PAUSE_S)
    raise NotChecked(f"group {group} has no coordinator yet")


async def _heartbeat_code(cluster: Cluster, group: str) -> int:
    """Kafka's code in the coordinator's response, or in that of the look-up. Raises NotChecked."""
    request = HeartbeatRequest(
        group_id=group, generation_id=0, member_id=_NO_MEMBER, group_instance_id=None
    )
    try:
        async with cluster.exclusive(await coordinator_of(cluster, group)) as connection:
            return int((await connection.call(request, HeartbeatResponse)).error_code)
    except ClusterError as error:
        if error.error_code is None:
            raise NotChecked(str(error)) from error
        return error.error_code


BROKER_CHECKS: Mapping[str, CheckFunction] = {
    "FP0101": _one_takes_connections,
    "FP0102": _each_takes_connections,
    "FP0103": _tls_works,
    "FP0104": _speak_kafka,
    "FP0105": _accept_our_user,
    "FP0106": _have_the_requests,
    "FP0107": _can_be_reached,
    "FP0108": _each_responds,
    "FP0109": _has_topic_rights,
    "FP0110": _may_join_the_group,
}
