"""The choice of a metadata topic partition, against an independent murmur2."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2

from fetchproxy.metadata.topic_based import metadata_partition
from fetchproxy.model import TopicIdPartition

INT32 = 2**32


def java_long_hash(bits: bytes) -> int:
    high, low = int.from_bytes(bits[:4], "big"), int.from_bytes(bits[4:], "big")
    return high ^ low


@given(st.uuids(), st.integers(0, 2**31 - 1), st.integers(1, 200))
def test_as_kafka_does(topic_id: UUID, partition: int, partitions: int) -> None:
    """Objects.hash(least, most, partition), its four bytes through murmur2, toPositive, modulo."""
    hashed = 1
    for part in (
        java_long_hash(topic_id.bytes[8:]),
        java_long_hash(topic_id.bytes[:8]),
        partition,
    ):
        hashed = (31 * hashed + part) % INT32
    expected = (murmur2(hashed.to_bytes(4, "big")) & 0x7FFFFFFF) % partitions
    tp = TopicIdPartition(topic_id, "any", partition)
    assert metadata_partition(tp, partitions) == expected


@pytest.mark.parametrize(("partition", "place"), [(0, 11), (1, 2), (2, 38)])
def test_a_topic_partitions_place_in_the_metadata_topic_never_changes(
    partition: int, place: int
) -> None:
    """A changed result would make every reader look for known events in the wrong partition."""
    tp = TopicIdPartition(UUID("12345678-9abc-def0-1234-56789abcdef0"), "orders", partition)
    assert metadata_partition(tp, 50) == place
