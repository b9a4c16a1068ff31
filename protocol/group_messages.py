"""Field tables of the classic group protocol and of groups' administration.

Source: Kafka's message JSON.
"""

from __future__ import annotations

from protocol.cluster_messages import NO_OPERATIONS
from protocol.message_codec import (
    BOOLEAN,
    BYTES,
    I16,
    I32,
    NULLABLE_TEXT,
    TEXT,
    Array,
    Field,
    Structure,
    array,
)

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
