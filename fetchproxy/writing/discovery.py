"""Finds the topics to archive, and why others are not archived. Starts nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from uuid import UUID

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.brokers.messages import RETRIABLE
from fetchproxy.errors import ClusterError
from fetchproxy.model import ZERO_UUID, TopicIdPartition
from fetchproxy.observability.health import Health, Kind, of_topic
from fetchproxy.observability.metrics import ARCHIVE_REFUSED_TOPICS

_INTERNAL_PREFIX = "__"


def matching_topics(pattern: str, topics: Iterable[TopicInfo]) -> list[TopicInfo]:
    """The topics whose whole name matches. Internal topics never match."""
    compiled = re.compile(pattern)
    return [
        topic
        for topic in topics
        if not topic.is_internal
        and not topic.name.startswith(_INTERNAL_PREFIX)
        and compiled.fullmatch(topic.name)
    ]


def refusal(topic: TopicInfo, topic_config: dict[str, str]) -> str | None:
    """Why a topic cannot be archived, as a sentence for the operator. None: it can be archived.

    Compaction removes records from the log after they were copied (KIP-405 excludes it too). An
    archive is keyed by topic id (KIP-516).
    """
    if topic.topic_id == ZERO_UUID:
        return "the brokers have no topic ids; they are older than 2.8"
    policies = {policy.strip() for policy in topic_config.get("cleanup.policy", "").split(",")}
    if "compact" in policies:
        return "cleanup.policy contains compact; compacted topics are not archived"
    return None


def partitions_of(topics: Iterable[TopicInfo]) -> list[TopicIdPartition]:
    return sorted(TopicIdPartition(t.topic_id, t.name, p) for t in topics for p in t.leaders)


class TopicDiscovery:
    """The last result stands until the next `look` succeeds, so an outage changes no topic."""

    def __init__(
        self, cluster: Cluster, pattern: str, interval_ms: int, health: Health | None = None
    ) -> None:
        self._health = health or Health()
        self._cluster = cluster
        self._pattern = pattern
        self._interval_ms = interval_ms
        self._configs: dict[UUID, dict[str, str]] = {}
        # Topic -> why it is not archived, although `archive.topics` matches it.
        self.refused: dict[str, str] = {}

    def topic_config(self, topic_id: UUID) -> Mapping[str, str] | None:
        """An archived topic's settings at the last `look`. None: they cannot be read."""
        return self._configs.get(topic_id)

    async def look(self) -> list[TopicInfo]:
        """The topics to archive that these credentials may see. Raises ClusterError."""
        topics = await self._cluster.topics(self._interval_ms // 2)
        archived: list[TopicInfo] = []
        refused: dict[str, str] = {}
        configs: dict[UUID, dict[str, str]] = {}
        for topic in matching_topics(self._pattern, topics):
            reason = await self._judge(topic, configs)
            if reason is None:
                archived.append(topic)
            else:
                refused[topic.name] = reason
        self._configs = configs
        self._publish(refused)
        return archived

    async def _judge(self, topic: TopicInfo, configs: dict[UUID, dict[str, str]]) -> str | None:
        try:
            config = await self._cluster.topic_config(topic.name)
        except ClusterError as error:
            if error.retriable or error.error_code in RETRIABLE:
                raise  # an outage, or a topic that is being deleted: look again later
            known = self._configs.get(topic.topic_id)
            if known is None:
                # Without its configuration the archiver cannot tell if the topic is compacted.
                return f"its configuration cannot be read ({error})"
            config = known  # the configuration as last read
        configs[topic.topic_id] = config
        return refusal(topic, config)

    def _publish(self, refused: dict[str, str]) -> None:
        kind = Kind.TOPIC_REFUSED
        reasons = {name: f"{name} is not archived: {why}" for name, why in refused.items()}
        self._health.keep(kind, [of_topic(kind, name, what) for name, what in reasons.items()])
        self.refused = refused
        ARCHIVE_REFUSED_TOPICS.set(len(refused))
