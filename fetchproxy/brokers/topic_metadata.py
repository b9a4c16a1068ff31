"""Brokers' responses about topics and brokers, and their age."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
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
from fetchproxy.storage.continued_topics import ContinuedTopics

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

    A topic that continues an archived log has the id of that log here, and can be found by both:
    only requests name the one that brokers know (`continued`).
    """

    def __init__(self, continued: ContinuedTopics | None = None) -> None:
        self._continued = ContinuedTopics() if continued is None else continued
        self._continued.watch(self._rename)
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
        if by_id and topics and self._continued:
            topics = self._at_brokers(topics)
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
        if self._continued:
            response.topics = [self._of_log(topic) async for topic in cooperative(response.topics)]
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

    def _of_log(self, topic: TopicInfo) -> TopicInfo:
        """With the id of its log, see `ContinuedTopics`."""
        log_id = self._continued.log_id(topic.id_at_brokers)
        if log_id == topic.topic_id:
            return topic
        return replace(topic, topic_id=log_id, renamed_from=topic.id_at_brokers)

    def _at_brokers(self, topics: Sequence[str | UUID]) -> Sequence[str | UUID]:
        """Ids that the brokers may know: the same log has another id in each cluster."""
        return [
            known
            for topic in topics
            for known in (
                self._continued.ids_at_brokers(topic) if isinstance(topic, UUID) else [topic]
            )
        ]

    def _rename(self, topic_ids: Iterable[UUID]) -> None:
        """More topics are known to continue a log."""
        self._responses.clear()  # decoded with the ids before
        for topic_id in topic_ids:
            if (topic := self.by_id.get(topic_id)) is not None:
                self.by_name[topic.name] = renamed = self._of_log(topic)
                self._index(renamed)

    def _index(self, topic: TopicInfo) -> None:
        for topic_id in (topic.topic_id, topic.id_at_brokers):
            if topic_id != ZERO_UUID:
                self.by_id[topic_id] = topic

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
            self._index(topic)
        for missing, error_code in response.failed.items():
            known = self.find(missing) if error_code in _GONE else None
            # The id of its log is not the one that these brokers know it by.
            if known is not None and missing in (known.name, known.id_at_brokers):
                self._forget(known)
        if all_topics:
            self.all_topics_at = sent_at
            named = {topic.name for topic in response.topics} | set(response.failed)
            for gone in [topic for name, topic in self.by_name.items() if name not in named]:
                self._forget(gone)

    def _forget(self, topic: TopicInfo) -> None:
        """The topic was deleted, and may have been made again."""
        self.by_name.pop(topic.name, None)
        self.by_id.pop(topic.topic_id, None)
        self.by_id.pop(topic.id_at_brokers, None)
        self._topic_at.pop(topic.name, None)
        forget_counts(topic.name, topic.leaders)
