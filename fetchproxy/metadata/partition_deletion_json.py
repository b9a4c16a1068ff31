"""Content of a partition's `delete-partition-state` object: RemotePartitionDeleteMetadata. Pure.

{"version": 1, "topic": "orders", "topic_id": "…", "partition": 0,
 "state": "DELETE_PARTITION_MARKED", "event_timestamp_ms": …, "epoch": -1}
"""

from __future__ import annotations

import json

from fetchproxy.metadata.json_fields import INT32, INT64, Fields, decode_document
from fetchproxy.model import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from fetchproxy.storage.layout import uuid_text

VERSION = 1


def encode_partition_deletion(deletion: RemotePartitionDeleteMetadata) -> bytes:
    tip = deletion.topic_id_partition
    fields = {
        "version": VERSION,
        "topic": tip.topic,
        "topic_id": uuid_text(tip.topic_id),
        "partition": tip.partition,
        "state": deletion.state.name,
        "event_timestamp_ms": deletion.event_timestamp_ms,
        "epoch": deletion.epoch,
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode_partition_deletion(raw: bytes, key: str) -> RemotePartitionDeleteMetadata:
    """Raises CorruptSegment, naming `key` and the field; NewerMetadataVersion."""
    return decode_document(raw, key, VERSION, _deletion)


def _deletion(fields: Fields) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(
        topic_id_partition=fields.partition(),
        state=fields.member("state", RemotePartitionDeleteState),
        event_timestamp_ms=fields.integer("event_timestamp_ms", -1, INT64),
        epoch=fields.integer("epoch", -1, INT32),
    )
