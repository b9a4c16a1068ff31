"""Metadata as one broker tells it, as plain values. Keeps nothing: see `metadata_cache`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
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
# Answers that are kept: 30 bytes a partition.
KEPT_ANSWERS_MAX = 16
KEPT_BYTES_MAX = 1024 * 1024


class SameAnswers:
    """The last answers: one that says the same again is not taken apart again.

    Who looks up thousands of partitions asks for their topic each second, and nearly always
    nothing has changed; then the very same values are given, which is seen at once too.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[bytes, MetadataAnswer]] = OrderedDict()

    async def decode(
        self, payload: memoryview, version: int, asked: Sequence[str | UUID] | None
    ) -> MetadataAnswer:
        """Raises ClusterError."""
        said = bytes(payload)  # behind the correlation id
        key = version, None if asked is None else tuple(asked)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == said:
            self._kept.move_to_end(key)
            return kept[1]
        answer = await decode_metadata(payload, version)
        if len(said) <= KEPT_BYTES_MAX:
            self._kept[key] = said, answer
            if len(self._kept) > KEPT_ANSWERS_MAX:
                self._kept.popitem(last=False)
        return answer


async def ask_metadata(
    connection: BrokerConnection,
    version: int,
    topics: Sequence[str | UUID] | None,
    same: SameAnswers,
) -> MetadataAnswer:
    """Of all topics for None; by id only from METADATA_BY_TOPIC_ID_VERSION on. Creates none."""
    body = await collected(write_request(version, topics))
    request = EncodedRequest(messages.METADATA, version, body)
    return await same.decode(await connection.request(request, whole), version, topics)


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
