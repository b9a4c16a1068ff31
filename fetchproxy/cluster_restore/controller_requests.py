"""What a restore asks of the active controller, one function for each request.

Each is right to do twice, because a response may be lost. All raise ClusterError.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from fetchproxy_protocol import inter_broker as wire
from fetchproxy_protocol.apis import ApiKey, ErrorCode, WireError, error_text
from fetchproxy_protocol.messages import MessageFields, Structure, decode_response, encode_body
from kafka.protocol.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse

from fetchproxy.brokers.connections import SOFTWARE_VERSION, BrokerConnection
from fetchproxy.brokers.messages import body_of, raise_for
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.new_cluster import InterBrokerListener
from fetchproxy.cluster_restore.plan import Place
from fetchproxy.cluster_restore.state_file import PhantomIdentity
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError

_FEATURES_VERSION = 4  # of ApiVersions: before, features whose lowest version is 0 are left out
_RESPONSE_MAX_MS = 30_000
_ALL_METADATA = 1 << 62  # an offset above all others
_PREFERRED = 0  # of ElectLeaders
# The controller refuses a request that makes more than 10,000 records of metadata.
PARTITIONS_A_REQUEST = 2_000

Features = Mapping[str, tuple[int, int]]  # lowest and highest version


class Heartbeat(NamedTuple):
    is_fenced: bool
    should_shut_down: bool


class IsrChange(NamedTuple):
    """`partition_epoch`: the number of changes that the partition has had, as the leader thinks."""

    topic_id: UUID
    leader_epoch: int
    partition_epoch: int
    in_sync: Sequence[int]


# --- a broker's life ------------------------------------------------------------------------------


async def supported_features(controller: ActiveController) -> Features:
    """The features of the controller: a broker must support what is in use."""

    async def ask(connection: BrokerConnection) -> Features:
        request = ApiVersionsRequest(
            client_software_name="fetchproxy", client_software_version=SOFTWARE_VERSION
        )
        for version in (_FEATURES_VERSION, _FEATURES_VERSION - 1):
            body = request.encode(version=version)
            [payload] = await connection.send(ApiKey.API_VERSIONS, version, [body])
            if int.from_bytes(payload[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION:
                continue
            response = body_of(ApiVersionsResponse, payload, version)
            raise_for(response.error_code, "ApiVersions of a controller")
            features = response.supported_features or ()
            return {one.name: (one.min_version, one.max_version) for one in features}
        raise ClusterError(f"controller {connection.address} does not return its features")

    return await controller.ask(ask)


async def register_broker(
    controller: ActiveController,
    phantom: PhantomIdentity,
    cluster_id: str,
    listeners: Mapping[InterBrokerListener, HostPort],
    features: Features,
) -> int:
    """The phantom's broker epoch. The same incarnation may register as often as it likes."""
    fields = {
        "broker_id": phantom.node_id,
        "cluster_id": cluster_id,
        "incarnation_id": phantom.incarnation_id,
        "listeners": [
            {
                "name": listener.name,
                "host": address.host,
                "port": address.port,
                "security_protocol": listener.security_protocol,
            }
            for listener, address in listeners.items()
        ],
        "features": [
            {"name": name, "min_supported_version": low, "max_supported_version": high}
            for name, (low, high) in features.items()
        ],
        "rack": None,
        "log_dirs": [phantom.log_dir_id],
    }
    response = await _ask(
        controller,
        ApiKey.BROKER_REGISTRATION,
        wire.BROKER_REGISTRATION_VERSION,
        (wire.BROKER_REGISTRATION_REQUEST, wire.BROKER_REGISTRATION_RESPONSE),
        fields,
        f"registration of broker {phantom.node_id}",
    )
    return int(response["broker_epoch"])


async def heartbeat(
    controller: ActiveController, node_id: int, broker_epoch: int, *, leave: bool = False
) -> Heartbeat:
    """A broker may lead when it has read the metadata log up to its own registration, which is
    later than its epoch if it has registered again. A phantom needs nothing of that log.
    """
    fields = {
        "broker_id": node_id,
        "broker_epoch": broker_epoch,
        "current_metadata_offset": _ALL_METADATA,
        "want_fence": leave,
        "want_shut_down": leave,
    }
    response = await _ask(
        controller,
        ApiKey.BROKER_HEARTBEAT,
        wire.BROKER_HEARTBEAT_VERSION,
        (wire.BROKER_HEARTBEAT_REQUEST, wire.BROKER_HEARTBEAT_RESPONSE),
        fields,
        f"heartbeat of broker {node_id}",
    )
    return Heartbeat(response["is_fenced"], response["should_shut_down"])


async def unregister_broker(controller: ActiveController, node_id: int) -> None:
    """Nothing happens if the broker is not registered."""
    try:
        await _ask(
            controller,
            ApiKey.UNREGISTER_BROKER,
            wire.UNREGISTER_BROKER_VERSION,
            (wire.UNREGISTER_BROKER_REQUEST, wire.UNREGISTER_BROKER_RESPONSE),
            {"broker_id": node_id},
            f"removal of broker {node_id}",
        )
    except ClusterError as error:
        if error.error_code != ErrorCode.BROKER_ID_NOT_REGISTERED:
            raise


async def allocate_producer_ids(
    controller: ActiveController, node_id: int, broker_epoch: int
) -> tuple[int, int]:
    """The next block of producer ids, which no other broker gets: its first id, and how many. The
    block of a lost response is nobody's.
    """
    response = await _ask(
        controller,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        wire.ALLOCATE_PRODUCER_IDS_VERSION,
        (wire.ALLOCATE_PRODUCER_IDS_REQUEST, wire.ALLOCATE_PRODUCER_IDS_RESPONSE),
        {"broker_id": node_id, "broker_epoch": broker_epoch},
        f"producer ids for broker {node_id}",
    )
    return response["producer_id_start"], response["producer_id_len"]


# --- topics and replicas --------------------------------------------------------------------------


async def create_topic(
    controller: ActiveController,
    name: str,
    replicas: Sequence[Sequence[int]],
    configs: Mapping[str, str],
    *,
    validate_only: bool = False,
) -> UUID | None:
    """`replicas`: of each partition. None: there is a topic by this name."""

    async def ask(connection: BrokerConnection) -> UUID | None:
        topic = CreateTopicsRequest.CreatableTopic
        request = CreateTopicsRequest(
            topics=[
                topic(
                    name=name,
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[
                        topic.CreatableReplicaAssignment(
                            partition_index=n, broker_ids=list(of_partition)
                        )
                        for n, of_partition in enumerate(replicas)
                    ],
                    configs=[
                        topic.CreatableTopicConfig(name=key, value=value)
                        for key, value in configs.items()
                    ],
                )
            ],
            timeout_ms=_RESPONSE_MAX_MS,
            validate_only=validate_only,
        )
        response = await connection.call(request, CreateTopicsResponse, _RESPONSE_MAX_MS)
        [result] = response.topics
        if result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return None
        _raise_with(result, f"creation of topic {name}")
        return UUID(str(result.topic_id))

    return await controller.ask(ask)


async def reassign(
    controller: ActiveController, replicas: Mapping[Place, Sequence[int]]
) -> dict[Place, ClusterError]:
    """Gives partitions other replicas, which the first one is to lead. Returns the refused ones."""

    async def ask(connection: BrokerConnection) -> dict[Place, ClusterError]:
        topic = AlterPartitionReassignmentsRequest.ReassignableTopic
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=_RESPONSE_MAX_MS,
            topics=[
                topic(
                    name=name,
                    partitions=[
                        topic.ReassignablePartition(
                            partition_index=number, replicas=list(replicas[name, number])
                        )
                        for number in numbers
                    ],
                )
                for name, numbers in _by_topic(replicas).items()
            ],
        )
        response = await connection.call(
            request, AlterPartitionReassignmentsResponse, _RESPONSE_MAX_MS
        )
        _raise_with(response, "reassignment of replicas")
        return {
            (topic.name, one.partition_index): _error(
                one, f"reassignment of {topic.name}-{one.partition_index}"
            )
            for topic in response.responses
            for one in topic.partitions
            if one.error_code
        }

    return await controller.ask(ask)


async def elect_preferred(
    controller: ActiveController, places: Collection[Place]
) -> dict[Place, ClusterError]:
    """Lets the first replica lead. Returns the partitions that it does not lead now."""

    async def ask(connection: BrokerConnection) -> dict[Place, ClusterError]:
        topic = ElectLeadersRequest.TopicPartitions
        request = ElectLeadersRequest(
            election_type=_PREFERRED,
            topic_partitions=[
                topic(topic=name, partitions=numbers) for name, numbers in _by_topic(places).items()
            ],
            timeout_ms=_RESPONSE_MAX_MS,
        )
        response = await connection.call(request, ElectLeadersResponse, _RESPONSE_MAX_MS)
        raise_for(response.error_code, "election of leaders")
        return {
            (topic.topic, one.partition_id): _error(
                one, f"election in {topic.topic}-{one.partition_id}"
            )
            for topic in response.replica_election_results
            for one in topic.partition_result
            if one.error_code not in (0, ErrorCode.ELECTION_NOT_NEEDED)
        }

    return await controller.ask(ask)


async def alter_isr(
    controller: ActiveController,
    node_id: int,
    broker_epoch: int,
    changes: Mapping[Place, IsrChange],
) -> dict[Place, int]:
    """The leader's word on which replicas are in sync. Returns the error code of each partition."""
    names: dict[UUID, str] = {}
    topics: dict[UUID, list[MessageFields]] = {}
    for (name, partition), change in changes.items():
        names[change.topic_id] = name
        topics.setdefault(change.topic_id, []).append(
            {
                "partition_index": partition,
                "leader_epoch": change.leader_epoch,
                "new_isr": list(change.in_sync),
                "partition_epoch": change.partition_epoch,
            }
        )
    fields = {
        "broker_id": node_id,
        "broker_epoch": broker_epoch,
        "topics": [{"topic_id": key, "partitions": rows} for key, rows in topics.items()],
    }
    response = await _ask(
        controller,
        ApiKey.ALTER_PARTITION,
        wire.ALTER_PARTITION_VERSION,
        (wire.ALTER_PARTITION_REQUEST, wire.ALTER_PARTITION_RESPONSE),
        fields,
        "change of the in-sync replicas",
    )
    return {
        (names[topic["topic_id"]], one["partition_index"]): one["error_code"]
        for topic in response["topics"] or ()
        for one in topic["partitions"] or ()
    }


# --- helpers --------------------------------------------------------------------------------------


async def _ask(
    controller: ActiveController,
    key: ApiKey,
    version: int,
    tables: tuple[Structure, Structure],
    fields: Mapping[str, Any],
    operation: str,
) -> MessageFields:
    """Request and response of `inter_broker`, whose top-level error is raised."""
    body = encode_body(tables[0], fields, key, version)

    async def ask(connection: BrokerConnection) -> MessageFields:
        low, high = connection.versions.get(key, (0, -1))
        if not low <= version <= high:
            raise ClusterError(
                f"{operation}: {connection.address} has no API {key.name} v{version}: it must be a "
                "controller of Kafka 3.7 or newer (KRaft)",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        [payload] = await connection.send(key, version, [body])
        try:
            response = decode_response(tables[1], payload, key, version)
        except WireError as error:
            raise ClusterError(f"{operation}: malformed response: {error}") from None
        raise_for(response["error_code"], operation)
        return response

    return await controller.ask(ask)


def _by_topic(places: Iterable[Place]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return topics


def _error(result: Any, operation: str) -> ClusterError:
    detail = f": {result.error_message}" if result.error_message else ""
    return ClusterError(f"{operation}: {error_text(result.error_code)}{detail}", result.error_code)


def _raise_with(result: Any, operation: str) -> None:
    if result.error_code:
        raise _error(result, operation)
