"""Content of a partition's `finished-offsets` object: what its archive has to hold. Pure.

    {"version": 1, "topic": "orders", "topic_id": "…", "partition": 0,
     "recorded_from": 0, "end_offset": 7355, "leader_epoch": 3,
     "log_start_offset": 0, "crc32c": "0a1b2c3d"}

The checksum is of the other values, as nothing else repeats them. And of an `.archive-gap` object,
which nothing reads back, as its key says all that counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.json_fields import INT32, INT64, Fields, decode_document
from fetchproxy.model import TopicIdPartition
from fetchproxy.storage.layout import uuid_text

VERSION = 1
NOT_STATED = -1


@dataclass(frozen=True, slots=True)
class FinishedOffsets:
    """From `recorded_from` up to `end_offset` (inclusive) each offset was copied, or has a record.

    A record is an `.archive-gap`; what a raised log start has deleted needs none. `end_offset` is
    where a segment ended that was finished, in `leader_epoch` (-1: written without epochs);
    NOT_STATED after a truncation, until the next segment is finished. More may have been finished.
    `log_start_offset` had been raised by then, 0: not.
    """

    topic_id_partition: TopicIdPartition
    recorded_from: int
    end_offset: int = NOT_STATED
    leader_epoch: int = -1
    log_start_offset: int = 0


def encode_finished_offsets(finished: FinishedOffsets) -> bytes:
    fields = _partition(finished.topic_id_partition) | {
        "recorded_from": finished.recorded_from,
        "end_offset": finished.end_offset,
        "leader_epoch": finished.leader_epoch,
        "log_start_offset": finished.log_start_offset,
        "crc32c": _checksum(finished),
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode_finished_offsets(raw: bytes, key: str, tip: TopicIdPartition) -> FinishedOffsets:
    """Raises CorruptSegment, naming `key` and the field; NewerMetadataVersion."""

    def read(fields: Fields) -> FinishedOffsets:
        if fields.partition() != tip:
            raise CorruptSegment(f"it is of {fields.partition()}")
        found = FinishedOffsets(
            topic_id_partition=tip,
            recorded_from=fields.integer("recorded_from", 0, INT64),
            end_offset=fields.integer("end_offset", NOT_STATED, INT64),
            leader_epoch=fields.integer("leader_epoch", -1, INT32),
            log_start_offset=fields.integer("log_start_offset", 0, INT64),
        )
        if fields.text("crc32c") != _checksum(found):
            raise CorruptSegment("its checksum does not match")
        return found

    return decode_document(raw, key, VERSION, read)


def encode_archive_gap(tip: TopicIdPartition, first: int, last: int) -> bytes:
    fields = _partition(tip) | {"first_lost_offset": first, "last_lost_offset": last}
    return json.dumps(fields, indent=1).encode() + b"\n"


def _checksum(finished: FinishedOffsets) -> str:
    tip = finished.topic_id_partition
    values = (
        finished.recorded_from,
        finished.end_offset,
        finished.leader_epoch,
        finished.log_start_offset,
    )
    said = f"{tip.topic} {uuid_text(tip.topic_id)} {tip.partition} {values}"
    return f"{crc32c(said.encode()):08x}"


def _partition(tip: TopicIdPartition) -> dict[str, object]:
    return {
        "version": VERSION,
        "topic": tip.topic,
        "topic_id": uuid_text(tip.topic_id),
        "partition": tip.partition,
    }
