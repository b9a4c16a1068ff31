"""Field tables of the APIs that describe a cluster and its topics. Source: Kafka's message JSON."""

from __future__ import annotations

from protocol.message_codec import (
    BOOLEAN,
    I8,
    I16,
    I32,
    ID,
    NULLABLE_TEXT,
    TEXT,
    Array,
    Field,
    NullableStructure,
    Structure,
    array,
)

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
