"""Metadata as one broker tells it, as plain values. Keeps nothing: see `metadata_cache`."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from fetchproxy.cluster import messages
from fetchproxy.cluster.answers import BrokerAddress, MetadataAnswer, TopicInfo
from fetchproxy.cluster.connection import BrokerConnection
from fetchproxy.cluster.encoded_request import EncodedRequest, body_at, whole
from fetchproxy.errors import ClusterError
from fetchproxy.many_items import collected, each_of
from protocol.errors import WireError
from protocol.topic_metadata import (
    BrokerEntry,
    ClusterEntry,
    LeaderEntries,
    TopicEntry,
    entries_in,
    write_request,
)

# Each may tell the leaders of a hundred partitions, some 30 µs.
ENTRIES_AT_ONCE = 10


async def ask_metadata(
    connection: BrokerConnection, version: int, topics: Sequence[str | UUID] | None
) -> MetadataAnswer:
    """Of all topics for None; by id only from METADATA_BY_TOPIC_ID_VERSION on. Creates none."""
    body = await collected(write_request(version, topics))
    request = EncodedRequest(messages.METADATA, version, body)
    return await decode_metadata(await connection.request(request, whole), version)


async def decode_metadata(payload: memoryview, version: int) -> MetadataAnswer:
    """Raises ClusterError."""
    brokers: dict[int, BrokerAddress] = {}
    topics: list[TopicInfo] = []
    failed: dict[str | UUID, int] = {}
    cluster_id: str | None = None
    leaders: dict[int, tuple[int, int]] = {}  # of the topic that is being read
    try:
        body = body_at(payload, messages.METADATA, version)
        async for entry in each_of(entries_in(body, version), ENTRIES_AT_ONCE):
            if isinstance(entry, LeaderEntries):
                leaders.update(entry.leaders)
            elif isinstance(entry, BrokerEntry):
                brokers[entry.node_id] = BrokerAddress(*entry)
            elif isinstance(entry, ClusterEntry):
                cluster_id = entry.cluster_id
            else:
                leaders = _add_topic(entry, topics, failed)
    except WireError as error:
        raise ClusterError(f"Metadata version {version} is malformed: {error}") from None
    return MetadataAnswer(brokers, tuple(topics), failed, cluster_id)


def _add_topic(
    entry: TopicEntry, topics: list[TopicInfo], failed: dict[str | UUID, int]
) -> dict[int, tuple[int, int]]:
    """Where the leaders of its partitions go, which follow."""
    leaders: dict[int, tuple[int, int]] = {}
    if entry.error_code:
        failed[entry.topic_id if entry.name is None else entry.name] = entry.error_code
    elif entry.name is not None:
        topics.append(TopicInfo(entry.topic_id, entry.name, entry.is_internal, leaders))
    return leaders
