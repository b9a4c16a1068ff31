"""In which partition of the metadata topic a topic's partition has its events. Pure.

Source: Kafka's RemoteLogMetadataTopicPartitioner, so that both find the same place.
"""

from __future__ import annotations

from uuid import UUID

from fetchproxy.model import TopicIdPartition

_INT32_MASK = 0xFFFFFFFF
_INT64_MASK = 0xFFFFFFFFFFFFFFFF
_MURMUR2_SEED = 0x9747B28C
_MURMUR2_M = 0x5BD1E995
_MURMUR2_R = 24


def metadata_partition(tip: TopicIdPartition, partitions: int) -> int:
    hashed = _java_hash(tip.topic_id, tip.partition)
    return (_murmur2_of_int(hashed) & 0x7FFFFFFF) % partitions


def _java_hash(topic_id: UUID, partition: int) -> int:
    """Objects.hash(least significant 64 bits, most significant 64 bits, partition), unsigned."""
    most, least = topic_id.int >> 64, topic_id.int & _INT64_MASK
    result = 1
    for part in (least, most):
        result = 31 * result + ((part ^ (part >> 32)) & _INT32_MASK)
    return (31 * result + partition) & _INT32_MASK


def _murmur2_of_int(value: int) -> int:
    """Utils.murmur2 of the value's four bytes, the highest first; unsigned."""
    k = int.from_bytes(value.to_bytes(4, "big"), "little")
    k = k * _MURMUR2_M & _INT32_MASK
    k ^= k >> _MURMUR2_R
    k = k * _MURMUR2_M & _INT32_MASK
    h = (_MURMUR2_SEED ^ 4) * _MURMUR2_M & _INT32_MASK
    h ^= k
    h ^= h >> 13
    h = h * _MURMUR2_M & _INT32_MASK
    return h ^ (h >> 15)
