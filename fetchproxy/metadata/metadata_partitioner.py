"""In which partition of the metadata topic a topic's partition has its events. Pure.

Source: Kafka's RemoteLogMetadataTopicPartitioner, so that both find the same place.
"""

from __future__ import annotations

from uuid import UUID

from kafka.partitioner.default import murmur2

from fetchproxy.model import TopicIdPartition

_INT32_MASK = 0xFFFFFFFF
_INT64_MASK = 0xFFFFFFFFFFFFFFFF


def metadata_partition(tip: TopicIdPartition, partitions: int) -> int:
    hashed: int = murmur2(_java_hash(tip.topic_id, tip.partition).to_bytes(4, "big"))
    return (hashed & 0x7FFFFFFF) % partitions


def _java_hash(topic_id: UUID, partition: int) -> int:
    """Objects.hash(least significant 64 bits, most significant 64 bits, partition), unsigned."""
    most, least = topic_id.int >> 64, topic_id.int & _INT64_MASK
    result = 1
    for part in (least, most):
        result = 31 * result + ((part ^ (part >> 32)) & _INT32_MASK)
    return (31 * result + partition) & _INT32_MASK
