"""The state of a cluster at one moment, as plain values. Pure.

It is what a new cluster needs besides records, so that producers and consumer groups go on where
they were: topics with their ends, groups' offsets, rights, quotas. Ends and groups of one state
belong together: no group is ahead of its partition.

Names of Kafka's enumerations are Kafka's own words ("TOPIC", "LITERAL"); a code that this program
does not know is its decimal number.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

STATE_VERSION = 1
EPOCH_UNKNOWN = -1
PRODUCER_ID_UNKNOWN = -1
NamedValues = tuple[tuple[str, str], ...]  # sorted by name


class GroupKind(StrEnum):
    """As ListGroups names them (KIP-848). Streams groups commit as consumer groups do."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """`log_end_offset`: the high watermark. `leader_epoch`: of the leader that reported it."""

    partition: int
    log_start_offset: int
    log_end_offset: int
    leader_epoch: int = EPOCH_UNKNOWN


@dataclass(frozen=True, slots=True)
class TopicState:
    """`configs`: set on the topic itself. `inherited`: from the configuration of its brokers, where
    that is not Kafka's default; a new cluster may have other ones. `partition_count`: partitions
    whose ends could not be read are not in `partitions`.
    """

    name: str
    topic_id: UUID
    replication_factor: int
    partition_count: int
    configs: NamedValues = ()
    inherited: NamedValues = ()
    partitions: tuple[PartitionState, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetOfGroup:
    """A committed offset; of a share group: the first record that it has not finished."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = EPOCH_UNKNOWN
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class GroupWithOffsets:
    group_id: str
    kind: GroupKind
    offsets: tuple[OffsetOfGroup, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class AclState:
    """One ACL binding."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission_type: str


@dataclass(frozen=True, slots=True)
class QuotaState:
    """`entity`: its types ("user", "client-id", "ip") with names; None: the default of the type."""

    entity: tuple[tuple[str, str | None], ...]
    key: str
    value: float


@dataclass(frozen=True, slots=True)
class MissingPart:
    """What could not be read, as a subject ("the quotas"), and why. `right`: what Kafka's
    authorizer would have to allow ("DESCRIBE_CONFIGS on the cluster"); "": it is not about rights.
    """

    what: str
    why: str
    right: str = ""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """`read_at_ms`: epoch ms at which reading began. `broker_configs`: dynamic and for all
    brokers. `producer_id_max`: the highest that a broker reported.
    """

    cluster_id: str
    read_at_ms: int
    topics: tuple[TopicState, ...] = ()
    groups: tuple[GroupWithOffsets, ...] = ()
    acls: tuple[AclState, ...] = ()
    quotas: tuple[QuotaState, ...] = ()
    scram_users: tuple[str, ...] = ()
    broker_configs: NamedValues = ()
    producer_id_max: int = PRODUCER_ID_UNKNOWN
    missing: tuple[MissingPart, ...] = ()
    version: int = STATE_VERSION
