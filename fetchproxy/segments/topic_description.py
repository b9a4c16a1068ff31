"""What the archive knows of each topic besides its records, in bytes: its number of partitions.

    {"version": 1, "topic": "orders", "topic_id": "…", "partitions": 12, "cluster_id": "…",
     "empty": {"4": 0, "11": 500}, "described_at_ms": 1700000000000}

Segments alone do not tell it: a partition, and a whole topic, may have no record. An archiver
writes one object for each topic that it archives, and writes it again when its content changes.
`empty`: partitions without a record, and where their logs begin. An archive of an older program
has no such objects; then the highest archived partition tells the least number of partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from uuid import UUID

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import is_topic_name
from fetchproxy.segments.json_fields import (
    INT32_LIMIT,
    INT64_LIMIT,
    JsonFields,
    decode_document,
    json_document,
)
from fetchproxy.segments.object_keys import uuid_text

_VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """`empty`: partition without a record -> its log start. `described_at_ms` (epoch) tells which
    of two topics of one name is the newer one.
    """

    topic_id: UUID
    topic: str
    partitions: int
    cluster_id: str = ""
    empty: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    described_at_ms: int = field(default=0, compare=False)


def encode_topic_description(description: TopicDescription) -> bytes:
    return json_document(
        {
            "version": _VERSION,
            "topic": description.topic,
            "topic_id": uuid_text(description.topic_id),
            "partitions": description.partitions,
            "cluster_id": description.cluster_id,
            "empty": {str(number): start for number, start in sorted(description.empty.items())},
            "described_at_ms": description.described_at_ms,
        }
    )


def decode_topic(raw: bytes, key: str) -> TopicDescription:
    """Raises CorruptSegment, naming `key`."""
    return decode_document(raw, key, _VERSION, _topic)


def _topic(fields: JsonFields) -> TopicDescription:
    topic, partitions = fields.text("topic"), fields.integer("partitions", 1, INT32_LIMIT)
    if not is_topic_name(topic):
        raise CorruptSegment(f"invalid topic name {topic[:80]!r}")
    return TopicDescription(
        fields.uuid("topic_id"),
        topic,
        partitions,
        fields.text("cluster_id"),
        dict(_empty(JsonFields(fields.mapping("empty")), partitions)),
        fields.integer("described_at_ms", 0, INT64_LIMIT),
    )


def _empty(fields: JsonFields, partitions: int) -> Iterator[tuple[int, int]]:
    for name in fields.names():
        # Python refuses to parse numbers of thousands of digits.
        short = name.isascii() and name.isdecimal() and len(name) <= 10
        if not short or int(name) >= partitions:
            raise CorruptSegment(f"{name[:80]!r} is not one of {partitions} partitions")
        yield int(name), fields.integer(name, 0, INT64_LIMIT)
