"""What the lost cluster has besides records, and the same read from the new one by stock clients
and Kafka's own tools.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from fetchproxy.runtime.cooperative import pieces
from lab.kafka import run_tool
from rehearsal.clients import QUIET
from rehearsal.ledger import Place

PARTITIONS_PER_TOPIC = 50
PAYMENTS, SCHEMAS, MEANWHILE = "drill-payments", "_schemas", "created-meanwhile"
_PAYMENTS_PARTITIONS = 3
_ACLS_PER_TOPIC = 2
_USERS = ("ann", "ben", "cleo")
_CALL_S = 60.0
_TOPICS_AT_ONCE = 20
_DYNAMIC_TOPIC_CONFIG = 1  # of confluent_kafka.admin.ConfigSource


@dataclass(frozen=True, slots=True)
class Inventory:
    """`topics`: partitions by name; each plain topic has settings of its own."""

    topics: Mapping[str, int]
    configs: Mapping[str, Mapping[str, str]]
    acls: frozenset[AclBinding]
    quotas: Mapping[str, int]  # producer_byte_rate by user

    @property
    def plain(self) -> list[Place]:
        """The places of the idempotent producer."""
        return [
            (name, number)
            for name, partitions in self.topics.items()
            if name not in (PAYMENTS, SCHEMAS)
            for number in range(partitions)
        ]

    @property
    def payments(self) -> list[Place]:
        return [(PAYMENTS, number) for number in range(self.topics[PAYMENTS])]


def planned_inventory(partitions: int) -> Inventory:
    """So many partitions in all."""
    topics = {PAYMENTS: _PAYMENTS_PARTITIONS, SCHEMAS: 1}
    plain = partitions - sum(topics.values())
    for number in range(-(-plain // PARTITIONS_PER_TOPIC)):
        rest = plain - number * PARTITIONS_PER_TOPIC
        topics[f"drill-{number:03}"] = min(PARTITIONS_PER_TOPIC, rest)
    configs: dict[str, dict[str, str]] = {
        name: {"retention.ms": str(86_400_000 + number), "min.insync.replicas": "2"}
        for number, name in enumerate(topics)
    }
    configs[SCHEMAS] = {"cleanup.policy": "compact"}
    acls = frozenset(
        _acl(user, name, operation)
        for name in topics
        for user, operation in (("ann", AclOperation.READ), ("ben", AclOperation.WRITE))
    )
    quotas = {user: 1_000_000 + number for number, user in enumerate(_USERS)}
    return Inventory(topics, configs, acls, quotas)


def _acl(user: str, topic: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", operation,
        AclPermissionType.ALLOW,
    )  # fmt: skip


def create(bootstrap: str, inventory: Inventory) -> None:
    """Raises KafkaException, PartFailed."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    for some in pieces(inventory.topics.items(), _TOPICS_AT_ONCE):
        new = [
            NewTopic(name, count, 3, config=dict(inventory.configs[name])) for name, count in some
        ]
        for future in admin.create_topics(new, operation_timeout=_CALL_S).values():
            future.result()
    for acl_future in admin.create_acls(list(inventory.acls)).values():
        acl_future.result()
    for user, rate in inventory.quotas.items():
        _configs_tool(bootstrap, "--alter", "--add-config", f"producer_byte_rate={rate}",
                      "--entity-type", "users", "--entity-name", user)  # fmt: skip


def create_topic_meanwhile(bootstrap: str) -> None:
    """While the phantoms are there: the controller may give them partitions of it."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    [future] = admin.create_topics([NewTopic(MEANWHILE, 12, 3)], operation_timeout=_CALL_S).values()
    future.result(timeout=300)


def _configs_tool(bootstrap: str, *words: str) -> str:
    return run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, *words).stdout


# --- reading it back ------------------------------------------------------------------------------


def found_inventory(bootstrap: str, expected: Inventory) -> Inventory:
    """What of `expected` there is."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    metadata = admin.list_topics(timeout=_CALL_S).topics
    topics = {name: len(metadata[name].partitions) for name in expected.topics if name in metadata}
    every = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    return Inventory(
        topics,
        {name: _configs(admin, name) for name in topics},
        frozenset(admin.describe_acls(every).result(timeout=_CALL_S)),
        _quotas(bootstrap),
    )


def _configs(admin: AdminClient, topic: str) -> dict[str, str]:
    """The topic's own settings, without defaults."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(timeout=_CALL_S)
    return {
        name: entry.value
        for name, entry in entries.items()
        if entry.source == _DYNAMIC_TOPIC_CONFIG
    }


def _quotas(bootstrap: str) -> dict[str, int]:
    text = _configs_tool(bootstrap, "--describe", "--entity-type", "users")
    rows = re.findall(r"user-principal '(\w+)' are .*?producer_byte_rate=([\d.]+)", text)
    return {user: int(float(rate)) for user, rate in rows}


def starts_and_ends(bootstrap: str, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def listed(spec: OffsetSpec) -> dict[Place, int]:
        offsets = {}
        for some in pieces(places, 500):
            specs = {TopicPartition(*place): spec for place in some}
            futures = admin.list_offsets(specs, isolation_level=IsolationLevel.READ_UNCOMMITTED)
            for one, future in futures.items():
                offsets[one.topic, one.partition] = future.result(timeout=_CALL_S).offset
        return offsets

    starts, ends = listed(OffsetSpec.earliest()), listed(OffsetSpec.latest())
    return {place: (starts[place], ends[place]) for place in places}


def committed(bootstrap: str, groups: Iterable[str]) -> dict[tuple[str, Place], int]:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    offsets = {}
    for group in groups:
        request = [ConsumerGroupTopicPartitions(group)]
        [future] = admin.list_consumer_group_offsets(request, request_timeout=_CALL_S).values()
        for one in future.result().topic_partitions or ():
            offsets[group, (one.topic, one.partition)] = one.offset
    return offsets


def phantoms_left(bootstrap: str, brokers: set[int], *, tells_fenced: bool) -> list[str]:
    """Where a broker is named that is none of `brokers`: in replicas of any topic, in Metadata, and
    among the registered ones, of which Kafka tells the fenced from 4.0 on (KIP-1073).
    """
    metadata = AdminClient({"bootstrap.servers": bootstrap, **QUIET}).list_topics(timeout=_CALL_S)
    places = [f"broker {node} in Metadata" for node in set(metadata.brokers) - brokers]
    for topic in metadata.topics.values():
        for partition in topic.partitions.values():
            strange = (set(partition.replicas) | set(partition.isrs)) - brokers
            places += [f"replica {n} of {topic.topic}-{partition.id}" for n in strange]
    if tells_fenced:
        listed = run_tool(
            "org.apache.kafka.tools.ClusterTool", "list-endpoints", "--bootstrap-server", bootstrap,
            "--include-fenced-brokers",
        ).stdout  # fmt: skip
        registered = {int(n) for n in re.findall(r"^(\d+)\s", listed, re.M)}
        places += [f"broker {node} is registered" for node in registered - brokers]
    return places
