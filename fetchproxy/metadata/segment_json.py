"""Content of the `.metadata` object beside each segment: RemoteLogSegmentMetadata as JSON. Pure.

    {"version": 1, "topic": "orders", "topic_id": "…", "partition": 0, "segment_id": "…",
     "base_offset": 0, "end_offset": 999, "max_timestamp_ms": …, "event_timestamp_ms": …,
     "leader_epochs": [{"epoch": 0, "start_offset": 0}], "segment_size_bytes": 67108864,
     "state": "COPY_SEGMENT_FINISHED", "has_aborted_txns": false}

`base_offset` is the segment's `start_offset`; ids are written as Kafka writes Uuids. A field that
an older reader may overlook can be added to a version; anything else makes a new version, which
an older reader refuses instead of guessing.

Version 2 is written for segments that a truncation has clipped, and for these alone: it adds
`"copied_end_offset"`, and whoever overlooked that would take the object for a damaged one.
"""

from __future__ import annotations

import json

from fetchproxy.metadata.json_fields import INT32, INT64, Fields, decode_document
from fetchproxy.metadata.legal_values import legal_segment
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from fetchproxy.storage.layout import uuid_text

VERSION = 2
_UNCLIPPED_VERSION = 1


def encode_segment(metadata: RemoteLogSegmentMetadata) -> bytes:
    tip = metadata.topic_id_partition
    copied_end_offset = metadata.copied_end_offset
    fields = {
        "version": _UNCLIPPED_VERSION if copied_end_offset is None else VERSION,
        "topic": tip.topic,
        "topic_id": uuid_text(tip.topic_id),
        "partition": tip.partition,
        "segment_id": uuid_text(metadata.segment_id.id),
        "base_offset": metadata.start_offset,
        "end_offset": metadata.end_offset,
        "max_timestamp_ms": metadata.max_timestamp_ms,
        "event_timestamp_ms": metadata.event_timestamp_ms,
        "leader_epochs": [
            {"epoch": e.epoch, "start_offset": e.start_offset}
            for e in metadata.segment_leader_epochs
        ],
        "segment_size_bytes": metadata.segment_size_bytes,
        "state": metadata.state.name,
        "has_aborted_txns": metadata.has_aborted_txns,
    }
    if copied_end_offset is not None:
        fields["copied_end_offset"] = copied_end_offset
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode_segment(raw: bytes, key: str) -> RemoteLogSegmentMetadata:
    """Raises CorruptSegment, naming `key` and the field; NewerMetadataVersion."""
    return decode_document(raw, key, VERSION, _segment)


def _segment(fields: Fields) -> RemoteLogSegmentMetadata:
    base_offset = fields.integer("base_offset", 0, INT64)
    end_offset = fields.integer("end_offset", base_offset, INT64)
    clipped = fields.integer("version", 1, INT32) > _UNCLIPPED_VERSION
    segment = RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(fields.partition(), fields.uuid("segment_id")),
        start_offset=base_offset,
        end_offset=end_offset,
        max_timestamp_ms=fields.integer("max_timestamp_ms", -1, INT64),
        event_timestamp_ms=fields.integer("event_timestamp_ms", -1, INT64),
        segment_leader_epochs=_epochs(fields),
        segment_size_bytes=fields.integer("segment_size_bytes", 0, INT64),
        state=fields.member("state", RemoteLogSegmentState),
        has_aborted_txns=fields.boolean("has_aborted_txns"),
        copied_end_offset=(
            fields.integer("copied_end_offset", end_offset, INT64) if clipped else None
        ),
    )
    return legal_segment(segment)


def _epochs(fields: Fields) -> tuple[EpochStart, ...]:
    return tuple(
        EpochStart(e.integer("epoch", -1, INT32), e.integer("start_offset", 0, INT64))
        for e in fields.objects("leader_epochs")
    )
