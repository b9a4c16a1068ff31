"""A topic of a restored cluster that continues the log of an archived topic, as a document.

    {"version": 1, "topic": "orders", "topic_id": "…", "continues": "…", "cluster_id": "…",
     "start_offsets": [10000, 7, 0], "continued_at_ms": 1700000000000}

`cluster restore` writes one for each topic before it lets producers write to it. The key alone says
which log is continued, so only who asks about the seam reads the content.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import is_topic_name
from fetchproxy.segments.json_fields import (
    INT64_LIMIT,
    JsonFields,
    decode_document,
    json_document,
)
from fetchproxy.segments.object_keys import uuid_text

_VERSION = 1


@dataclass(frozen=True, slots=True)
class ContinuedTopic:
    """`topic_id`: the one that the brokers of `cluster_id` know. `log_id`: the id of the archived
    topic, which names its log for ever. `start_offsets`: of each partition, from 0 on, the first
    offset that this cluster wrote.
    """

    topic: str
    topic_id: UUID
    log_id: UUID
    cluster_id: str
    start_offsets: tuple[int, ...]
    continued_at_ms: int


def encode_continued_topic(continued: ContinuedTopic) -> bytes:
    return json_document(
        {
            "version": _VERSION,
            "topic": continued.topic,
            "topic_id": uuid_text(continued.topic_id),
            "continues": uuid_text(continued.log_id),
            "cluster_id": continued.cluster_id,
            "start_offsets": list(continued.start_offsets),
            "continued_at_ms": continued.continued_at_ms,
        }
    )


def decode_continued_topic(raw: bytes, key: str) -> ContinuedTopic:
    """Raises CorruptSegment, naming `key`."""
    return decode_document(raw, key, _VERSION, _continued_topic)


def _continued_topic(fields: JsonFields) -> ContinuedTopic:
    topic = fields.text("topic")
    if not is_topic_name(topic):
        raise CorruptSegment(f"invalid topic name {topic[:80]!r}")
    return ContinuedTopic(
        topic,
        fields.uuid("topic_id"),
        fields.uuid("continues"),
        fields.text("cluster_id"),
        fields.integers("start_offsets", 0, INT64_LIMIT),
        fields.integer("continued_at_ms", 0, INT64_LIMIT),
    )
