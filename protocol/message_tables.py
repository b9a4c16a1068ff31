"""The fields of the messages that an archive answers by itself, version by version. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct, calcsize
from typing import NamedTuple
from uuid import UUID

from protocol.apis import ApiKey, is_flexible
from protocol.messages import (
    BOOLEAN,
    BYTES,
    I8,
    I16,
    I32,
    I64,
    ID,
    NULLABLE_BYTES,
    NULLABLE_TEXT,
    TEXT,
    Array,
    Field,
    NullableStructure,
    Structure,
    array,
)
from protocol.primitives import Cursor, encode_count, encode_string

# Field tables of the APIs that describe a cluster and its topics. Source: Kafka's message JSON.

NO_OPERATIONS = -(1 << 31)  # authorized operations were not asked for

_THROTTLE = Field("throttle_time_ms", I32, default=0)

API_VERSIONS_REQUEST = Structure(
    Field("client_software_name", TEXT, since=3, default=""),
    Field("client_software_version", TEXT, since=3, default=""),
    Field("cluster_id", NULLABLE_TEXT, since=5),
    Field("node_id", I32, since=5, default=-1),
)
API_VERSIONS_RESPONSE = Structure(
    Field("error_code", I16, default=0),
    Field(
        "api_keys",
        array(Field("api_key", I16), Field("min_version", I16), Field("max_version", I16)),
    ),
    Field("throttle_time_ms", I32, since=1, default=0),
)

METADATA_REQUEST = Structure(
    Field(
        "topics",
        array(Field("topic_id", ID, since=10), Field("name", NULLABLE_TEXT)),
    ),
    Field("allow_auto_topic_creation", BOOLEAN, since=4, default=True),
    Field("include_cluster_authorized_operations", BOOLEAN, since=8, until=10),
    Field("include_topic_authorized_operations", BOOLEAN, since=8),
)
METADATA_RESPONSE = Structure(
    Field("throttle_time_ms", I32, since=3, default=0),
    Field(
        "brokers",
        array(
            Field("node_id", I32),
            Field("host", TEXT),
            Field("port", I32),
            Field("rack", NULLABLE_TEXT, since=1),
        ),
    ),
    Field("cluster_id", NULLABLE_TEXT, since=2),
    Field("controller_id", I32, since=1),
    Field(
        "topics",
        array(
            Field("error_code", I16, default=0),
            Field("name", NULLABLE_TEXT),
            Field("topic_id", ID, since=10),
            Field("is_internal", BOOLEAN, since=1, default=False),
            Field(
                "partitions",
                array(
                    Field("error_code", I16, default=0),
                    Field("partition_index", I32),
                    Field("leader_id", I32),
                    Field("leader_epoch", I32, since=7, default=-1),
                    Field("replica_nodes", Array(I32)),
                    Field("isr_nodes", Array(I32)),
                    Field("offline_replicas", Array(I32), since=5, default=()),
                ),
            ),
            Field("topic_authorized_operations", I32, since=8, default=NO_OPERATIONS),
        ),
    ),
    Field("cluster_authorized_operations", I32, since=8, until=10, default=NO_OPERATIONS),
    Field("error_code", I16, since=13, default=0),
)

FIND_COORDINATOR_REQUEST = Structure(
    Field("key", TEXT, until=3),
    Field("key_type", I8, since=1, default=0),
    Field("coordinator_keys", Array(TEXT), since=4),
)
FIND_COORDINATOR_RESPONSE = Structure(
    Field("throttle_time_ms", I32, since=1, default=0),
    Field("error_code", I16, until=3),
    Field("error_message", NULLABLE_TEXT, since=1, until=3),
    Field("node_id", I32, until=3),
    Field("host", TEXT, until=3),
    Field("port", I32, until=3),
    Field(
        "coordinators",
        array(
            Field("key", TEXT),
            Field("node_id", I32),
            Field("host", TEXT),
            Field("port", I32),
            Field("error_code", I16),
            Field("error_message", NULLABLE_TEXT),
        ),
        since=4,
    ),
)

DESCRIBE_CLUSTER_REQUEST = Structure(
    Field("include_cluster_authorized_operations", BOOLEAN),
    Field("endpoint_type", I8, since=1, default=1),
    Field("include_fenced_brokers", BOOLEAN, since=2, default=False),
)
DESCRIBE_CLUSTER_RESPONSE = Structure(
    _THROTTLE,
    Field("error_code", I16, default=0),
    Field("error_message", NULLABLE_TEXT),
    Field("endpoint_type", I8, since=1, default=1),
    Field("cluster_id", TEXT),
    Field("controller_id", I32),
    Field(
        "brokers",
        array(
            Field("broker_id", I32),
            Field("host", TEXT),
            Field("port", I32),
            Field("rack", NULLABLE_TEXT),
            Field("is_fenced", BOOLEAN, since=2, default=False),
        ),
    ),
    Field("cluster_authorized_operations", I32, default=NO_OPERATIONS),
)

_CURSOR = NullableStructure(Field("topic_name", TEXT), Field("partition_index", I32))

DESCRIBE_TOPIC_PARTITIONS_REQUEST = Structure(
    Field("topics", array(Field("name", TEXT))),
    Field("response_partition_limit", I32),
    Field("cursor", _CURSOR),
)
DESCRIBE_TOPIC_PARTITIONS_RESPONSE = Structure(
    _THROTTLE,
    Field(
        "topics",
        array(
            Field("error_code", I16, default=0),
            Field("name", NULLABLE_TEXT),
            Field("topic_id", ID),
            Field("is_internal", BOOLEAN, default=False),
            Field(
                "partitions",
                array(
                    Field("error_code", I16, default=0),
                    Field("partition_index", I32),
                    Field("leader_id", I32),
                    Field("leader_epoch", I32, default=-1),
                    Field("replica_nodes", Array(I32)),
                    Field("isr_nodes", Array(I32)),
                    Field("eligible_leader_replicas", Array(I32), default=()),
                    Field("last_known_elr", Array(I32), default=()),
                    Field("offline_replicas", Array(I32), default=()),
                ),
            ),
            Field("topic_authorized_operations", I32, default=NO_OPERATIONS),
        ),
    ),
    Field("next_cursor", _CURSOR),
)

DESCRIBE_CONFIGS_REQUEST = Structure(
    Field(
        "resources",
        array(
            Field("resource_type", I8),
            Field("resource_name", TEXT),
            Field("configuration_keys", Array(TEXT)),
        ),
    ),
    Field("include_synonyms", BOOLEAN, since=1, default=False),
    Field("include_documentation", BOOLEAN, since=3, default=False),
)
DESCRIBE_CONFIGS_RESPONSE = Structure(
    _THROTTLE,
    Field(
        "results",
        array(
            Field("error_code", I16, default=0),
            Field("error_message", NULLABLE_TEXT),
            Field("resource_type", I8),
            Field("resource_name", TEXT),
            Field(
                "configs",
                array(
                    Field("name", TEXT),
                    Field("value", NULLABLE_TEXT),
                    Field("read_only", BOOLEAN, default=True),
                    Field("config_source", I8, since=1),
                    Field("is_sensitive", BOOLEAN, default=False),
                    Field(
                        "synonyms",
                        array(
                            Field("name", TEXT), Field("value", NULLABLE_TEXT), Field("source", I8)
                        ),
                        since=1,
                        default=(),
                    ),
                    Field("config_type", I8, since=3),
                    Field("documentation", NULLABLE_TEXT, since=3),
                ),
            ),
        ),
    ),
)


# Field tables of the classic group protocol and of groups' administration.
#
# Source: Kafka's message JSON.

_THROTTLE_FROM_1 = Field("throttle_time_ms", I32, since=1, default=0)

JOIN_GROUP_REQUEST = Structure(
    Field("group_id", TEXT),
    Field("session_timeout_ms", I32),
    Field("rebalance_timeout_ms", I32, since=1, default=-1),
    Field("member_id", TEXT),
    Field("group_instance_id", NULLABLE_TEXT, since=5),
    Field("protocol_type", TEXT),
    Field("protocols", array(Field("name", TEXT), Field("metadata", BYTES))),
    Field("reason", NULLABLE_TEXT, since=8),
)
JOIN_GROUP_RESPONSE = Structure(
    Field("throttle_time_ms", I32, since=2, default=0),
    Field("error_code", I16, default=0),
    Field("generation_id", I32, default=-1),
    Field("protocol_type", NULLABLE_TEXT, since=7),
    Field("protocol_name", NULLABLE_TEXT),
    Field("leader", TEXT, default=""),
    Field("skip_assignment", BOOLEAN, since=9, default=False),
    Field("member_id", TEXT),
    Field(
        "members",
        array(
            Field("member_id", TEXT),
            Field("group_instance_id", NULLABLE_TEXT, since=5),
            Field("metadata", BYTES),
        ),
        default=(),
    ),
)

SYNC_GROUP_REQUEST = Structure(
    Field("group_id", TEXT),
    Field("generation_id", I32),
    Field("member_id", TEXT),
    Field("group_instance_id", NULLABLE_TEXT, since=3),
    Field("protocol_type", NULLABLE_TEXT, since=5),
    Field("protocol_name", NULLABLE_TEXT, since=5),
    Field("assignments", array(Field("member_id", TEXT), Field("assignment", BYTES))),
)
SYNC_GROUP_RESPONSE = Structure(
    _THROTTLE_FROM_1,
    Field("error_code", I16, default=0),
    Field("protocol_type", NULLABLE_TEXT, since=5),
    Field("protocol_name", NULLABLE_TEXT, since=5),
    Field("assignment", BYTES, default=b""),
)

HEARTBEAT_REQUEST = Structure(
    Field("group_id", TEXT),
    Field("generation_id", I32),
    Field("member_id", TEXT),
    Field("group_instance_id", NULLABLE_TEXT, since=3),
)
HEARTBEAT_RESPONSE = Structure(_THROTTLE_FROM_1, Field("error_code", I16))

LEAVE_GROUP_REQUEST = Structure(
    Field("group_id", TEXT),
    Field("member_id", TEXT, until=2),
    Field(
        "members",
        array(
            Field("member_id", TEXT),
            Field("group_instance_id", NULLABLE_TEXT),
            Field("reason", NULLABLE_TEXT, since=5),
        ),
        since=3,
    ),
)
LEAVE_GROUP_RESPONSE = Structure(
    _THROTTLE_FROM_1,
    Field("error_code", I16, default=0),
    Field(
        "members",
        array(
            Field("member_id", TEXT),
            Field("group_instance_id", NULLABLE_TEXT),
            Field("error_code", I16),
        ),
        since=3,
        default=(),
    ),
)

DESCRIBE_GROUPS_REQUEST = Structure(
    Field("groups", Array(TEXT)),
    Field("include_authorized_operations", BOOLEAN, since=3, default=False),
)
DESCRIBE_GROUPS_RESPONSE = Structure(
    _THROTTLE_FROM_1,
    Field(
        "groups",
        array(
            Field("error_code", I16, default=0),
            Field("error_message", NULLABLE_TEXT, since=6),
            Field("group_id", TEXT),
            Field("group_state", TEXT),
            Field("protocol_type", TEXT),
            Field("protocol_data", TEXT),
            Field(
                "members",
                array(
                    Field("member_id", TEXT),
                    Field("group_instance_id", NULLABLE_TEXT, since=4),
                    Field("client_id", TEXT),
                    Field("client_host", TEXT),
                    Field("member_metadata", BYTES),
                    Field("member_assignment", BYTES),
                ),
            ),
            Field("authorized_operations", I32, since=3, default=NO_OPERATIONS),
        ),
    ),
)

LIST_GROUPS_REQUEST = Structure(
    Field("states_filter", Array(TEXT), since=4),
    Field("types_filter", Array(TEXT), since=5),
)
LIST_GROUPS_RESPONSE = Structure(
    _THROTTLE_FROM_1,
    Field("error_code", I16, default=0),
    Field(
        "groups",
        array(
            Field("group_id", TEXT),
            Field("protocol_type", TEXT),
            Field("group_state", TEXT, since=4),
            Field("group_type", TEXT, since=5),
        ),
    ),
)

DELETE_GROUPS_REQUEST = Structure(Field("groups_names", Array(TEXT)))
DELETE_GROUPS_RESPONSE = Structure(
    Field("throttle_time_ms", I32, default=0),
    Field("results", array(Field("group_id", TEXT), Field("error_code", I16))),
)


# Field tables of the APIs that ask for, commit and forget offsets. Source: Kafka's message JSON.
#
# ListOffsets requests are read by `protocol.list_offsets`.

LIST_OFFSETS_RESPONSE = Structure(
    Field("throttle_time_ms", I32, since=2, default=0),
    Field(
        "topics",
        array(
            Field("name", TEXT),
            Field(
                "partitions",
                array(
                    Field("partition_index", I32),
                    Field("error_code", I16, default=0),
                    Field("timestamp", I64, since=1, default=-1),
                    Field("offset", I64, since=1, default=-1),
                    Field("leader_epoch", I32, since=4, default=-1),
                ),
            ),
        ),
    ),
)

OFFSET_FOR_LEADER_EPOCH_REQUEST = Structure(
    Field("replica_id", I32, since=3, default=-2),
    Field(
        "topics",
        array(
            Field("topic", TEXT),
            Field(
                "partitions",
                array(
                    Field("partition", I32),
                    Field("current_leader_epoch", I32, since=2, default=-1),
                    Field("leader_epoch", I32),
                ),
            ),
        ),
    ),
)
OFFSET_FOR_LEADER_EPOCH_RESPONSE = Structure(
    Field("throttle_time_ms", I32, since=2, default=0),
    Field(
        "topics",
        array(
            Field("topic", TEXT),
            Field(
                "partitions",
                array(
                    Field("error_code", I16, default=0),
                    Field("partition", I32),
                    Field("leader_epoch", I32, since=1, default=-1),
                    Field("end_offset", I64, default=-1),
                ),
            ),
        ),
    ),
)

OFFSET_COMMIT_REQUEST = Structure(
    Field("group_id", TEXT),
    Field("generation_id", I32, since=1, default=-1),
    Field("member_id", TEXT, since=1, default=""),
    Field("group_instance_id", NULLABLE_TEXT, since=7),
    Field("retention_time_ms", I64, since=2, until=4),
    Field(
        "topics",
        array(
            Field("name", TEXT),
            Field(
                "partitions",
                array(
                    Field("partition_index", I32),
                    Field("committed_offset", I64),
                    Field("committed_leader_epoch", I32, since=6, default=-1),
                    Field("commit_timestamp", I64, since=1, until=1),
                    Field("committed_metadata", NULLABLE_TEXT),
                ),
            ),
        ),
    ),
)
OFFSET_COMMIT_RESPONSE = Structure(
    Field("throttle_time_ms", I32, since=3, default=0),
    Field(
        "topics",
        array(
            Field("name", TEXT),
            Field("partitions", array(Field("partition_index", I32), Field("error_code", I16))),
        ),
    ),
)

_ASKED_TOPICS = array(Field("name", TEXT), Field("partition_indexes", Array(I32)))

OFFSET_FETCH_REQUEST = Structure(
    Field("group_id", TEXT, until=7),
    Field("topics", _ASKED_TOPICS, until=7),
    Field(
        "groups",
        array(
            Field("group_id", TEXT),
            Field("member_id", NULLABLE_TEXT, since=9),
            Field("member_epoch", I32, since=9, default=-1),
            Field("topics", _ASKED_TOPICS),
        ),
        since=8,
    ),
    Field("require_stable", BOOLEAN, since=7, default=False),
)
_FETCHED_TOPICS = array(
    Field("name", TEXT),
    Field(
        "partitions",
        array(
            Field("partition_index", I32),
            Field("committed_offset", I64, default=-1),
            Field("committed_leader_epoch", I32, since=5, default=-1),
            Field("metadata", NULLABLE_TEXT, default=""),
            Field("error_code", I16, default=0),
        ),
    ),
)
OFFSET_FETCH_RESPONSE = Structure(
    Field("throttle_time_ms", I32, since=3, default=0),
    Field("topics", _FETCHED_TOPICS, until=7),
    Field("error_code", I16, since=2, until=7, default=0),
    Field(
        "groups",
        array(
            Field("group_id", TEXT),
            Field("topics", _FETCHED_TOPICS),
            Field("error_code", I16, default=0),
        ),
        since=8,
    ),
)

OFFSET_DELETE_REQUEST = Structure(
    Field("group_id", TEXT),
    Field(
        "topics",
        array(Field("name", TEXT), Field("partitions", array(Field("partition_index", I32)))),
    ),
)
OFFSET_DELETE_RESPONSE = Structure(
    Field("error_code", I16, default=0),
    Field("throttle_time_ms", I32, default=0),
    Field(
        "topics",
        array(
            Field("name", TEXT),
            Field("partitions", array(Field("partition_index", I32), Field("error_code", I16))),
        ),
    ),
)


# Metadata by whoever wants to know of topics: the request's body, and an answer entry by entry.
#
# An answer may name 10,000 partitions, so both are made piece by piece, and who reads them may
# let others run in between. What clients are answered is not read here: see `protocol.metadata`.

_TOPIC_ID_FROM = 10
_EPOCH_FROM = 7
_AUTHORIZED_OPERATIONS_FROM = 8
_CLUSTER_OPERATIONS_TO = 10
_PARTITION = ">hii"  # error code, partition, leader
_PARTITION_WITH_EPOCH = ">hiii"
_LEADERS_AT_ONCE = 100
_ZERO = UUID(int=0)
_NO_EPOCH = (-1,)


class BrokerEntry(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class ClusterEntry(NamedTuple):
    cluster_id: str | None


class TopicEntry(NamedTuple):
    """Its partitions follow. `topic_id` is zero before v10; `name` None where the id is unknown."""

    error_code: int
    name: str | None
    topic_id: UUID
    is_internal: bool


class LeaderEntries(NamedTuple):
    """Leader id and leader epoch of some partitions of the topic before it."""

    leaders: dict[int, tuple[int, int]]


Entry = BrokerEntry | ClusterEntry | TopicEntry | LeaderEntries


def write_request(api_version: int, topics: Sequence[str | UUID] | None) -> Iterator[bytes]:
    """A request's body, v5 to v13, in pieces; None for all topics, by id from v12 on.

    Creates no topic, and asks for no authorized operations.
    """
    flexible = is_flexible(ApiKey.METADATA, api_version)
    tags = b"\x00" if flexible else b""
    yield encode_count(None if topics is None else len(topics), flexible)
    for topic in topics or ():
        by_id = isinstance(topic, UUID)
        topic_id = topic.bytes if isinstance(topic, UUID) else _ZERO.bytes
        name = encode_string(None if by_id else str(topic), flexible)
        yield (topic_id if api_version >= _TOPIC_ID_FROM else b"") + name + tags
    operations = b""
    if api_version >= _AUTHORIZED_OPERATIONS_FROM:
        operations = b"\x00\x00" if api_version <= _CLUSTER_OPERATIONS_TO else b"\x00"
    yield b"\x00" + operations + tags


def entries_in(cursor: Cursor, api_version: int) -> Iterator[Entry]:
    """Of an answer from its body on, v5 to v13. Raises `WireError`."""
    flexible = is_flexible(ApiKey.METADATA, api_version)
    cursor.skip(4, "throttle time")
    for _ in range(cursor.count(flexible) or 0):
        node_id, host, port = cursor.int32(), cursor.string(flexible), cursor.int32()
        yield BrokerEntry(node_id, host, port, cursor.nullable_string(flexible))
        if flexible:
            cursor.skip_tags()
    yield ClusterEntry(cursor.nullable_string(flexible))
    cursor.skip(4, "controller id")
    for _ in range(cursor.count(flexible) or 0):
        error_code = cursor.int16()
        name = cursor.nullable_string(flexible)
        topic_id = cursor.uuid() if api_version >= _TOPIC_ID_FROM else _ZERO
        yield TopicEntry(error_code, name, topic_id, cursor.boolean())
        yield from _leaders_in(cursor, api_version, flexible)
        if api_version >= _AUTHORIZED_OPERATIONS_FROM:
            cursor.skip(4, "authorized operations")
        if flexible:
            cursor.skip_tags()


def _leaders_in(cursor: Cursor, api_version: int, flexible: bool) -> Iterator[LeaderEntries]:
    """One partition field by field, then as rows those that have as many replicas of each kind."""
    form = _PARTITION_WITH_EPOCH if api_version >= _EPOCH_FROM else _PARTITION
    left = cursor.count(flexible) or 0
    while left:
        begin = cursor.pos
        lengths = _skip_partition(cursor, calcsize(form), flexible)
        row = Struct(f"{form}{cursor.pos - begin - calcsize(form)}x")
        cursor.pos = begin
        plain = 1
        while plain and left:
            plain, rows = cursor.rows(row, min(left, _LEADERS_AT_ONCE), lengths)
            # (error code, partition, leader[, epoch])
            yield LeaderEntries({each[1]: (each[2:] + _NO_EPOCH)[:2] for each in rows})
            left -= plain


def _skip_partition(cursor: Cursor, fields_size: int, flexible: bool) -> dict[int, int]:
    """The bytes that make it as long as it is, by their place in it."""
    begin = cursor.skip(fields_size, "partition")
    lengths: dict[int, int] = {}

    def note(at: int) -> None:
        lengths.update({n - begin: cursor.buf[n] for n in range(at, cursor.pos)})

    for what in ("replicas", "in-sync replicas", "offline replicas"):
        at = cursor.pos
        count = cursor.count(flexible) or 0
        note(at)
        cursor.skip(4 * count, what)
    if flexible:
        at = cursor.pos
        cursor.skip_tags()
        note(at)
    return lengths


# Field tables of requests that write, to refuse them in form. Source: Kafka's message JSON.

PRODUCE_REQUEST = Structure(
    Field("transactional_id", NULLABLE_TEXT, since=3),
    Field("acks", I16),
    Field("timeout_ms", I32),
    Field(
        "topics",
        array(
            Field("name", TEXT),
            Field("partitions", array(Field("index", I32), Field("records", NULLABLE_BYTES))),
        ),
    ),
)
PRODUCE_RESPONSE = Structure(
    Field(
        "topics",
        array(
            Field("name", TEXT),
            Field(
                "partitions",
                array(
                    Field("index", I32),
                    Field("error_code", I16),
                    Field("base_offset", I64, default=-1),
                    Field("log_append_time_ms", I64, since=2, default=-1),
                    Field("log_start_offset", I64, since=5, default=-1),
                    Field("record_errors", Array(I32), since=8, default=()),  # always empty
                    Field("error_message", NULLABLE_TEXT, since=8),
                ),
            ),
        ),
    ),
    Field("throttle_time_ms", I32, since=1, default=0),
)

INIT_PRODUCER_ID_RESPONSE = Structure(
    Field("throttle_time_ms", I32, default=0),
    Field("error_code", I16),
    Field("producer_id", I64, default=-1),
    Field("producer_epoch", I16, default=-1),
)

CREATE_TOPICS_REQUEST = Structure(
    Field(
        "topics",
        array(
            Field("name", TEXT),
            Field("num_partitions", I32),
            Field("replication_factor", I16),
            Field(
                "assignments",
                array(Field("partition_index", I32), Field("broker_ids", Array(I32))),
            ),
            Field("configs", array(Field("name", TEXT), Field("value", NULLABLE_TEXT))),
        ),
    ),
    Field("timeout_ms", I32),
    Field("validate_only", BOOLEAN, since=1, default=False),
)
CREATE_TOPICS_RESPONSE = Structure(
    Field("throttle_time_ms", I32, since=2, default=0),
    Field(
        "topics",
        array(
            Field("name", TEXT),
            Field("topic_id", ID, since=7, default=UUID(int=0)),
            Field("error_code", I16),
            Field("error_message", NULLABLE_TEXT, since=1),
            Field("num_partitions", I32, since=5, default=-1),
            Field("replication_factor", I16, since=5, default=-1),
            Field("configs", Array(I32), since=5, default=()),  # always empty
        ),
    ),
)
