"""Finds the topics to archive, and why others are not archived. Starts nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.brokers.messages import RETRIABLE
from fetchproxy.config.schema import METADATA_TOPIC, ArchiveConfig
from fetchproxy.errors import ClusterError
from fetchproxy.model import ZERO_UUID, TopicIdPartition
from fetchproxy.observability.health import Health, Kind, of_topic
from fetchproxy.observability.metrics import ARCHIVE_REFUSED_TOPICS
from fetchproxy.writing.compaction import NO_DELETES, delete_retention_ms, is_compacted


def is_internal(topic: TopicInfo, metadata_topic: str) -> bool:
    """Kafka's own flag decides: users' topics may begin with `__` too. `metadata_topic`: the topic
    of our own metadata (`metadata.topic_name`), which is no user's either.
    """
    return topic.is_internal or topic.name == metadata_topic


def matching_topics(
    config: ArchiveConfig, topics: Iterable[TopicInfo], metadata_topic: str
) -> list[TopicInfo]:
    """The topics that the patterns name and that are not internal. Every part uses this rule."""
    return [
        topic
        for topic in topics
        if config.names(topic.name) and not is_internal(topic, metadata_topic)
    ]


def refusal(topic: TopicInfo, topic_config: Mapping[str, str], config: ArchiveConfig) -> str | None:
    """Why a topic cannot be archived, as a sentence for the operator. None: it can be archived.

    Compaction removes records from the log after they were copied (KIP-405 excludes it too), so a
    compacted topic is copied in another way (`compacted_partition`), if the operator wants it. An
    archive is keyed by topic id (KIP-516).
    """
    if topic.topic_id == ZERO_UUID:
        return "the brokers have no topic ids; they are older than 2.8"
    if not is_compacted(topic_config):
        return None
    if not re.fullmatch(config.compacted_topics or "", topic.name):
        return (
            "cleanup.policy contains compact, and archive.compacted_topics does not match it; "
            "other compacted topics are not archived"
        )
    return None if delete_retention_ms(topic_config) > 0 else NO_DELETES


def partitions_of(topics: Iterable[TopicInfo]) -> list[TopicIdPartition]:
    return sorted(TopicIdPartition(t.topic_id, t.name, p) for t in topics for p in t.leaders)


class TopicDiscovery:
    """The last result stands until the next `look` succeeds, so an outage changes no topic. Each
    look reads `archive.topics` anew.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ArchiveConfig,
        interval_ms: int,
        health: Health | None = None,
        metadata_topic: str = METADATA_TOPIC,
        name_fault: Callable[[str, UUID], str | None] = lambda topic, topic_id: None,
    ) -> None:
        """`name_fault`: why the store cannot hold a topic of this name and id; None: it can."""
        self._health = health or Health()
        self._cluster = cluster
        self._config = config
        self._interval_ms = interval_ms
        self._metadata_topic = metadata_topic
        self._name_fault = name_fault
        self._configs: dict[UUID, dict[str, str]] = {}
        # Topic -> why it is not archived, although `archive.topics` matches it.
        self.refused: dict[str, str] = {}
        # Internal topics that `archive.topics` names.
        self.internal: list[str] = []

    @property
    def _pattern(self) -> str:
        return self._config.topics or ""

    def topic_config(self, topic_id: UUID) -> Mapping[str, str] | None:
        """An archived topic's settings at the last `look`. None: they cannot be read."""
        return self._configs.get(topic_id)

    async def look(self) -> list[TopicInfo]:
        """The topics to archive that these credentials may see. Raises ClusterError."""
        topics = await self._cluster.topics(self._interval_ms // 2)
        archived: list[TopicInfo] = []
        refused: dict[str, str] = {}
        found_configs: dict[UUID, dict[str, str]] = {}
        matching = matching_topics(self._config, topics, self._metadata_topic)
        self.internal = [
            topic.name
            for topic in topics
            if is_internal(topic, self._metadata_topic) and self.names(topic.name)
        ]
        for topic in matching:
            reason = await self._refusal_of(topic, found_configs)
            if reason is not None:
                refused[topic.name] = reason
            elif self._is_wanted(topic, found_configs):
                archived.append(topic)
        self._configs = found_configs
        self._publish(refused)
        return archived

    def names(self, topic: str) -> bool:
        """Whether `archive.topics` or `archive.compacted_topics` matches this whole name."""
        return self._config.names(topic)

    def is_compacted(self, topic_id: UUID) -> bool:
        """Whether an archived topic was compacted at the last `look`."""
        return is_compacted(self._configs.get(topic_id, {}))

    def _is_wanted(self, topic: TopicInfo, found_configs: dict[UUID, dict[str, str]]) -> bool:
        """False: only `archive.compacted_topics` names it, and it is not compacted."""
        if re.fullmatch(self._pattern, topic.name) or is_compacted(found_configs[topic.topic_id]):
            return True
        del found_configs[topic.topic_id]
        return False

    def why_nothing(self) -> str | None:
        """Why the last `look` found no topic to archive and refused none, as a sentence."""
        if self._configs or self.refused:
            return None
        if not self.internal:
            return f"archive.topics = {self._pattern!r} matches no topic"
        return (
            f"archive.topics = {self._pattern!r} matches only internal topics, which are not "
            f"archived: {', '.join(self.internal)}"
        )

    async def _refusal_of(
        self, topic: TopicInfo, found_configs: dict[UUID, dict[str, str]]
    ) -> str | None:
        """None: the topic has its settings in `found_configs`."""
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
        found_configs[topic.topic_id] = config
        return refusal(topic, config, self._config) or self._name_fault(topic.name, topic.topic_id)

    def _publish(self, refused: dict[str, str]) -> None:
        kind = Kind.TOPIC_REFUSED
        reasons = {name: f"{name} is not archived: {why}" for name, why in refused.items()}
        self._health.keep(kind, [of_topic(kind, name, reason) for name, reason in reasons.items()])
        self.refused = refused
        ARCHIVE_REFUSED_TOPICS.set(len(refused))
