"""What can be true of a partition and of a segment, whoever says it. Pure.

Everything that comes in from the metadata topic, from the store or from a cache file passes here as
it is decoded, and nothing behind it checks again: paths are made of topic names, and one is added
to offsets.
"""

from __future__ import annotations

from uuid import UUID

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import (
    OFFSET_MAX,
    SEGMENT_BYTES_MAX,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
    is_topic_name,
)

PARTITION_MAX = 2**31 - 1
_NAME_SHOWN_MAX = 80


def legal_partition(topic_id: UUID, topic: str, partition: int) -> TopicIdPartition:
    """Raises CorruptSegment."""
    if not is_topic_name(topic):
        raise CorruptSegment(f"field topic: {topic[:_NAME_SHOWN_MAX]!r} is no topic name")
    if not 0 <= partition <= PARTITION_MAX:
        raise CorruptSegment(f"field partition is {partition}, not 0 to {PARTITION_MAX}")
    return TopicIdPartition(topic_id, topic, partition)


def legal_segment(said: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """`said` itself. Raises CorruptSegment.

    A leader epoch of -1 stands for none: records of before Kafka 0.11 have none.
    """
    start, end, copied = said.start_offset, said.end_offset, said.stored_end_offset
    if not 0 <= start <= end <= copied <= OFFSET_MAX:
        raise CorruptSegment(
            f"offsets {start} to {end}, copied to {copied}: they do not rise from 0 to {OFFSET_MAX}"
        )
    size = said.segment_size_bytes
    if not 0 <= size <= SEGMENT_BYTES_MAX:
        raise CorruptSegment(f"a segment of {size} bytes: 0 to {SEGMENT_BYTES_MAX} are possible")
    if said.max_timestamp_ms < -1 or said.event_timestamp_ms < -1:
        raise CorruptSegment(
            f"timestamps {said.max_timestamp_ms} and {said.event_timestamp_ms}: below -1"
        )
    for epoch in said.segment_leader_epochs:
        if epoch.epoch < -1 or not 0 <= epoch.start_offset <= OFFSET_MAX:
            raise CorruptSegment(f"leader epoch {epoch.epoch} from offset {epoch.start_offset}")
    return said
