"""The messages with which a broker registers, leads partitions and leaves (KRaft, KIP-500), and
those with which it responds to its followers.

The first five are requests to the active controller, on the controllers' own listener. The
responses of the last part are for other brokers, which fetch as replicas. Only fields without tags
are here: none of the others is needed. A test compares all tables with Kafka's own schemas.
"""

from __future__ import annotations

from struct import Struct

from fetchproxy_protocol.messages import (
    BOOLEAN,
    I8,
    I16,
    I32,
    I64,
    ID,
    NULLABLE_TEXT,
    TEXT,
    Array,
    Field,
    Plain,
    Structure,
)

_UINT16 = Struct(">H")
U16 = Plain(lambda cursor, _: cursor.int16() & 0xFFFF, lambda value, _: _UINT16.pack(value))

# --- a broker's life ------------------------------------------------------------------------------
BROKER_REGISTRATION_VERSION = 4  # before, features whose lowest version is 0 could not be named
BROKER_REGISTRATION_REQUEST = Structure(
    Field("broker_id", I32),
    Field("cluster_id", TEXT),
    Field("incarnation_id", ID),
    Field(
        "listeners",
        Array(
            Structure(
                Field("name", TEXT),
                Field("host", TEXT),
                Field("port", U16),
                Field("security_protocol", I16),
            )
        ),
    ),
    Field(
        "features",
        Array(
            Structure(
                Field("name", TEXT),
                Field("min_supported_version", I16),
                Field("max_supported_version", I16),
            )
        ),
    ),
    Field("rack", NULLABLE_TEXT),
    Field("is_migrating_zk_broker", BOOLEAN, 1, default=False),
    Field("log_dirs", Array(ID), 2),
    Field("previous_broker_epoch", I64, 3, default=-1),
)
BROKER_REGISTRATION_RESPONSE = Structure(
    Field("throttle_time_ms", I32),
    Field("error_code", I16),
    Field("broker_epoch", I64),
)

BROKER_HEARTBEAT_VERSION = 1
BROKER_HEARTBEAT_REQUEST = Structure(
    Field("broker_id", I32),
    Field("broker_epoch", I64),
    Field("current_metadata_offset", I64),
    Field("want_fence", BOOLEAN),
    Field("want_shut_down", BOOLEAN),
)
BROKER_HEARTBEAT_RESPONSE = Structure(
    Field("throttle_time_ms", I32),
    Field("error_code", I16),
    Field("is_caught_up", BOOLEAN),
    Field("is_fenced", BOOLEAN),
    Field("should_shut_down", BOOLEAN),
)

UNREGISTER_BROKER_VERSION = 0
UNREGISTER_BROKER_REQUEST = Structure(Field("broker_id", I32))
UNREGISTER_BROKER_RESPONSE = Structure(
    Field("throttle_time_ms", I32),
    Field("error_code", I16),
    Field("error_message", NULLABLE_TEXT),
)

ALLOCATE_PRODUCER_IDS_VERSION = 0
ALLOCATE_PRODUCER_IDS_REQUEST = Structure(
    Field("broker_id", I32),
    Field("broker_epoch", I64),
)
ALLOCATE_PRODUCER_IDS_RESPONSE = Structure(
    Field("throttle_time_ms", I32),
    Field("error_code", I16),
    Field("producer_id_start", I64),
    Field("producer_id_len", I32),
)

# --- a leader's word on its followers -------------------------------------------------------------
ALTER_PARTITION_VERSION = 2  # the lowest with topic ids; later ones check the followers' epochs too
ALTER_PARTITION_REQUEST = Structure(
    Field("broker_id", I32),
    Field("broker_epoch", I64),
    Field(
        "topics",
        Array(
            Structure(
                Field("topic_id", ID, 2),
                Field(
                    "partitions",
                    Array(
                        Structure(
                            Field("partition_index", I32),
                            Field("leader_epoch", I32),
                            Field("new_isr", Array(I32), 0, 2),
                            Field("leader_recovery_state", I8, 1, default=0),
                            Field("partition_epoch", I32),
                        )
                    ),
                ),
            )
        ),
    ),
)
ALTER_PARTITION_RESPONSE = Structure(
    Field("throttle_time_ms", I32),
    Field("error_code", I16),
    Field(
        "topics",
        Array(
            Structure(
                Field("topic_id", ID, 2),
                Field(
                    "partitions",
                    Array(
                        Structure(
                            Field("partition_index", I32),
                            Field("error_code", I16),
                            Field("leader_id", I32),
                            Field("leader_epoch", I32),
                            Field("isr", Array(I32)),
                            Field("leader_recovery_state", I8, 1),
                            Field("partition_epoch", I32),
                        )
                    ),
                ),
            )
        ),
    ),
)

# --- responses of a leader ------------------------------------------------------------------------
API_VERSIONS_RESPONSE = Structure(
    Field("error_code", I16),
    Field(
        "api_keys",
        Array(
            Structure(
                Field("api_key", I16),
                Field("min_version", I16),
                Field("max_version", I16),
            )
        ),
    ),
    Field("throttle_time_ms", I32, 1, default=0),
)
LIST_OFFSETS_RESPONSE = Structure(
    Field("throttle_time_ms", I32, 2, default=0),
    Field(
        "topics",
        Array(
            Structure(
                Field("name", TEXT),
                Field(
                    "partitions",
                    Array(
                        Structure(
                            Field("partition_index", I32),
                            Field("error_code", I16),
                            Field("timestamp", I64, 1, default=-1),
                            Field("offset", I64, 1, default=-1),
                            Field("leader_epoch", I32, 4, default=-1),
                        )
                    ),
                ),
            )
        ),
    ),
)
OFFSET_FOR_LEADER_EPOCH_RESPONSE = Structure(
    Field("throttle_time_ms", I32, 2, default=0),
    Field(
        "topics",
        Array(
            Structure(
                Field("topic", TEXT),
                Field(
                    "partitions",
                    Array(
                        Structure(
                            Field("error_code", I16),
                            Field("partition", I32),
                            Field("leader_epoch", I32, 1, default=-1),
                            Field("end_offset", I64, default=-1),
                        )
                    ),
                ),
            )
        ),
    ),
)
