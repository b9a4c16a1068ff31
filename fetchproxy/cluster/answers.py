"""What brokers say, as plain values. Decodes nothing and asks nothing: see `messages`, `client`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

NO_ERROR = 0
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
UNSUPPORTED_VERSION = 35
UNKNOWN_TOPIC_ID = 100

# Codes after which the same request may succeed once leaders are known afresh. Source: Kafka's
# Errors (RetriableException), as far as Metadata, ListOffsets and Fetch may answer them.
RETRIABLE = frozenset(
    {
        UNKNOWN_TOPIC_OR_PARTITION,  # a broker that has not heard of a new topic yet
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        7,  # REQUEST_TIMED_OUT
        9,  # REPLICA_NOT_AVAILABLE
        13,  # NETWORK_EXCEPTION
        56,  # KAFKA_STORAGE_ERROR
        74,  # FENCED_LEADER_EPOCH
        75,  # UNKNOWN_LEADER_EPOCH
        78,  # OFFSET_NOT_AVAILABLE: a new leader whose high watermark lags
        UNKNOWN_TOPIC_ID,
        103,  # INCONSISTENT_TOPIC_ID
    }
)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where one broker's clients reach it, by its own word."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """`topic_id` is the zero UUID on brokers before 2.8. Leader -1: none at the moment."""

    topic_id: UUID
    name: str
    is_internal: bool
    leaders: Mapping[int, tuple[int, int]]  # partition -> (leader node id or -1, leader epoch)


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """`failed` has the topics that were asked for and refused, by name or by id."""

    brokers: Mapping[int, BrokerAddress]
    topics: tuple[TopicInfo, ...]
    failed: Mapping[str | UUID, int]  # -> error code
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition's part of a Fetch answer; `error_code` is 0 or OFFSET_OUT_OF_RANGE (1).

    With an error the offsets are -1 and there are no records. `records` may end in a part of a
    batch. `aborted` is empty unless read_committed was asked for.
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]  # (producer id, first offset)
    records: bytes | memoryview
