"""Content of a `.log-start-offset` object, for people who look into the store. Pure.

    {"version": 1, "topic": "orders", "topic_id": "…", "partition": 0, "log_start_offset": 1234}

Nothing reads it back: the object's key says all that counts (`storage.layout`).
"""

from __future__ import annotations

import json

from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.layout import uuid_text

VERSION = 1


def encode_log_start(tip: TopicIdPartition, offset: int) -> bytes:
    fields = {
        "version": VERSION,
        "topic": tip.topic,
        "topic_id": uuid_text(tip.topic_id),
        "partition": tip.partition,
        "log_start_offset": offset,
    }
    return json.dumps(fields, indent=1).encode() + b"\n"
