"""Field tables of requests that write, to refuse them in form. Source: Kafka's message JSON."""

from __future__ import annotations

from uuid import UUID

from protocol.message_codec import (
    BOOLEAN,
    I16,
    I32,
    I64,
    ID,
    NULLABLE_BYTES,
    NULLABLE_TEXT,
    TEXT,
    Array,
    Field,
    Structure,
    array,
)

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
