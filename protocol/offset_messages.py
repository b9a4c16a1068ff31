"""Field tables of the APIs that ask for, commit and forget offsets. Source: Kafka's message JSON.

ListOffsets requests are read by `protocol.list_offsets`.
"""

from __future__ import annotations

from protocol.message_codec import (
    BOOLEAN,
    I16,
    I32,
    I64,
    NULLABLE_TEXT,
    TEXT,
    Array,
    Field,
    Structure,
    array,
)

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
