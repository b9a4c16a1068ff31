"""Content of a partition's `log-history` object. Pure.

{"version": 1, "topic": "orders", "topic_id": "…", "partition": 0,
 "after_epoch": -1, "kept_below": 4000, "kept_epoch": 7, "earlier": []}
"""

from __future__ import annotations

import json

from fetchproxy.metadata.json_fields import INT32, INT64, Fields, decode_document
from fetchproxy.model import LogHistory, TopicIdPartition
from fetchproxy.storage.layout import uuid_text

VERSION = 1


def encode_log_history(tip: TopicIdPartition, history: LogHistory) -> bytes:
    fields = {
        "version": VERSION,
        "topic": tip.topic,
        "topic_id": uuid_text(tip.topic_id),
        "partition": tip.partition,
        "after_epoch": history.after_epoch,
        "kept_below": history.kept_below,
        "kept_epoch": history.kept_epoch,
        "earlier": history.earlier,
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode_log_history(raw: bytes, key: str) -> LogHistory:
    """Raises CorruptSegment, naming `key` and the field; NewerMetadataVersion."""
    return decode_document(raw, key, VERSION, _history)


def _history(fields: Fields) -> LogHistory:
    return LogHistory(
        after_epoch=fields.integer("after_epoch", -1, INT32),
        kept_below=fields.integer("kept_below", 0, INT64),
        kept_epoch=fields.integer("kept_epoch", -1, INT32),
        earlier=fields.integers("earlier", 0, INT32),
    )
