"""Brokers' responses about topics and brokers, and their age."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping, Sequence
from uuid import UUID

from cachetools import LRUCache
from fetchproxy_protocol.apis import ApiKey, ErrorCode, WireError
from fetchproxy_protocol.headers import response_body
from fetchproxy_protocol.topic_entries import ClusterMetadata, TopicInfo, write_request

from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.messages import METADATA_BY_TOPIC_ID_VERSION
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError
from fetchproxy.model import ZERO_UUID
from fetchproxy.observability.metrics import forget_counts
from fetchproxy.runtime.cooperative import collected, cooperative

# Each step may read the leaders of a hundred partitions, some 30 µs.
STEPS_AT_ONCE = 10
# Limits of the kept responses: a response takes 30 bytes a partition.
KEPT_RESPONSES_MAX = 16
_KEPT_BYTES_MAX = 1024 * 1024
NEVER = float("-inf")
# Other errors of a topic (no leader, not authorized) say nothing about its existence.
_GONE = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


async def decode_metadata(payload: memoryview, version: int) -> ClusterMetadata:
    """Raises ClusterError."""
    response = ClusterMetadata()
    try:
        body = response_body(payload, ApiKey.METADATA, version)
        async for _ in cooperative(response.read(body, version), STEPS_AT_ONCE):
            pass
    except WireError as error:
        raise ClusterError(f"Metadata version {version} is malformed: {error}") from None
    return response


class ClusterMetadataCache:
    """Known brokers and topics, and since when they are known (loop seconds).

    Keeps the last responses: an identical response returns the same objects. Callers that look up
    thousands of partitions ask for their topics each second, and nearly always nothing has
    changed.
    """

    def __init__(self) -> None:
        self._responses: LRUCache[Hashable, tuple[bytes, ClusterMetadata]] = LRUCache(
            KEPT_RESPONSES_MAX
        )
        self.brokers: Mapping[int, HostPort] = {}
        self.brokers_at = NEVER
        self.cluster_id: str | None = None
        self.all_topics_at = NEVER
        self.by_name: dict[str, TopicInfo] = {}
        self.by_id: dict[UUID, TopicInfo] = {}  # without those of brokers before 2.8
        self._topic_at: dict[str, float] = {}

    async def ask(
        self, connection: BrokerConnection, topics: Sequence[str | UUID] | None
    ) -> ClusterMetadata:
        """Ask for these topics; None: all topics. Creates no topic. Raises ClusterError."""
        sent_at = asyncio.get_running_loop().time()
        version = connection.version_of(ApiKey.METADATA)
        by_id = any(isinstance(topic, UUID) for topic in topics or ())
        if by_id and version < METADATA_BY_TOPIC_ID_VERSION:
            topics = None  # brokers before 2.8 … 3.0 do not know ids: ask for all topics
        body = b"".join(await collected(write_request(version, topics)))
        [payload] = await connection.send(ApiKey.METADATA, version, [body])
        response = await self.decode(payload, version, topics)
        self._learn(response, sent_at, all_topics=topics is None)
        return response

    async def decode(
        self, payload: memoryview, version: int, topics: Sequence[str | UUID] | None
    ) -> ClusterMetadata:
        """Raises ClusterError."""
        body = bytes(payload[4:])  # after the correlation id
        key = version, None if topics is None else tuple(topics)
        last_response = self._responses.get(key)
        if last_response is not None and last_response[0] == body:
            return last_response[1]
        response = await decode_metadata(payload, version)
        if len(body) <= _KEPT_BYTES_MAX:
            self._responses[key] = body, response
        return response

    def find(self, key: str | UUID, not_older_than: float = NEVER) -> TopicInfo | None:
        topic = self.by_id.get(key) if isinstance(key, UUID) else self.by_name.get(key)
        if topic is None or self._topic_at[topic.name] < not_older_than:
            return None
        return topic

    def topics(self) -> list[TopicInfo]:
        return [self.by_name[name] for name in sorted(self.by_name)]

    def expire(self, name: str) -> None:
        """Our metadata of this topic proved wrong: it is asked for again before the next use."""
        if name in self._topic_at:
            self._topic_at[name] = NEVER

    def _learn(self, response: ClusterMetadata, sent_at: float, *, all_topics: bool) -> None:
        """`all_topics`: topics that the response does not name are gone."""
        if response.brokers:
            self.brokers = {n: HostPort(*address) for n, address in response.brokers.items()}
            self.brokers_at = sent_at
            self.cluster_id = response.cluster_id
        for topic in response.topics:
            previous = self.by_name.get(topic.name)
            if previous is not None and previous.topic_id != topic.topic_id:
                self._forget(previous)
            self.by_name[topic.name] = topic
            self._topic_at[topic.name] = sent_at
            if topic.topic_id != ZERO_UUID:
                self.by_id[topic.topic_id] = topic
        for missing, error_code in response.failed.items():
            if error_code in _GONE:
                self._forget(self.find(missing))
        if all_topics:
            self.all_topics_at = sent_at
            named = {topic.name for topic in response.topics} | set(response.failed)
            for topic in [topic for name, topic in self.by_name.items() if name not in named]:
                self._forget(topic)

    def _forget(self, topic: TopicInfo | None) -> None:
        """The topic was deleted, and may have been made again."""
        if topic is not None:
            self.by_name.pop(topic.name, None)
            self.by_id.pop(topic.topic_id, None)
            self._topic_at.pop(topic.name, None)
            forget_counts(topic.name, topic.leaders)
