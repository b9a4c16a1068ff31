"""Content of the `.metadata` object beside each segment: RemoteLogSegmentMetadata as JSON. Pure.

    {"version": 1, "topic": "orders", "topic_id": "…", "partition": 0, "segment_id": "…",
     "base_offset": 0, "end_offset": 999, "max_timestamp_ms": …, "event_timestamp_ms": …,
     "leader_epochs": [{"epoch": 0, "start_offset": 0}], "segment_size_bytes": 67108864,
     "state": "COPY_SEGMENT_FINISHED", "has_aborted_txns": false}

`base_offset` is the segment's `start_offset`; ids are written as Kafka writes Uuids. A field that
an older reader may overlook can be added to a version; anything else makes a new version, which
an older reader refuses instead of guessing.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.storage.layout import parse_uuid, uuid_text

VERSION = 1
_INT64 = 2**63
_INT32 = 2**31


class NewerMetadataVersion(CorruptSegment):
    """Written by a newer fetchproxy; not broken, but not to be read by this one."""


def encode_segment(metadata: RemoteLogSegmentMetadata) -> bytes:
    tip = metadata.topic_id_partition
    fields = {
        "version": VERSION,
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
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode_segment(raw: bytes, key: str) -> RemoteLogSegmentMetadata:
    """Raises CorruptSegment, naming `key` and the field; NewerMetadataVersion."""
    try:
        # RecursionError: thousands of nested brackets; ValueError: no JSON or no UTF-8.
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptSegment(f"{key}: no JSON: {error}") from None
    try:
        return _segment(_Fields(document))
    except NewerMetadataVersion as error:
        raise NewerMetadataVersion(f"{key}: {error}") from None
    except CorruptSegment as error:
        raise CorruptSegment(f"{key}: {error}") from None


class _Fields:
    """Typed look-ups in one JSON object; a fault is a CorruptSegment that names the field."""

    def __init__(self, document: Any) -> None:  # whatever json.loads gave
        if not isinstance(document, dict):
            raise CorruptSegment(f"a JSON {type(document).__name__}, not an object")
        self._document = document

    def _field(self, name: str) -> Any:
        try:
            return self._document[name]
        except KeyError:
            raise CorruptSegment(f"field {name} is missing") from None

    def integer(self, name: str, low: int, limit: int) -> int:
        value = self._field(name)
        # bool is an int in Python, but not in JSON.
        if type(value) is not int or not low <= value < limit:
            raise CorruptSegment(f"field {name} is no integer from {low} below {limit}")
        return value

    def text(self, name: str) -> str:
        value = self._field(name)
        if not isinstance(value, str):
            raise CorruptSegment(f"field {name} is no text")
        return value

    def uuid(self, name: str) -> UUID:
        value = parse_uuid(self.text(name))
        if value is None:
            raise CorruptSegment(f"field {name} is no Kafka Uuid")
        return value

    def boolean(self, name: str) -> bool:
        value = self._field(name)
        if not isinstance(value, bool):
            raise CorruptSegment(f"field {name} is neither true nor false")
        return value

    def state(self, name: str) -> RemoteLogSegmentState:
        value = self.text(name)
        if value not in RemoteLogSegmentState.__members__:
            raise CorruptSegment(f"field {name} is no segment state: {value[:80]!r}")
        return RemoteLogSegmentState[value]

    def epochs(self, name: str) -> tuple[EpochStart, ...]:
        value = self._field(name)
        if not isinstance(value, list):
            raise CorruptSegment(f"field {name} is no list")
        entries = (_Fields(entry) for entry in value)
        return tuple(
            EpochStart(e.integer("epoch", -1, _INT32), e.integer("start_offset", 0, _INT64))
            for e in entries
        )


def _segment(fields: _Fields) -> RemoteLogSegmentMetadata:
    version = fields.integer("version", 1, _INT32)
    if version > VERSION:
        raise NewerMetadataVersion(
            f"metadata version {version} was written by a newer fetchproxy, "
            f"this one reads up to version {VERSION}"
        )
    tip = TopicIdPartition(
        topic_id=fields.uuid("topic_id"),
        topic=fields.text("topic"),
        partition=fields.integer("partition", 0, _INT32),
    )
    base_offset = fields.integer("base_offset", 0, _INT64)
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(tip, fields.uuid("segment_id")),
        start_offset=base_offset,
        end_offset=fields.integer("end_offset", base_offset, _INT64),
        max_timestamp_ms=fields.integer("max_timestamp_ms", -1, _INT64),
        event_timestamp_ms=fields.integer("event_timestamp_ms", -1, _INT64),
        segment_leader_epochs=fields.epochs("leader_epochs"),
        segment_size_bytes=fields.integer("segment_size_bytes", 0, _INT64),
        state=fields.state("state"),
        has_aborted_txns=fields.boolean("has_aborted_txns"),
    )
