"""What is known of brokers and topics, and since when. Asks nobody; times are loop seconds."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from fetchproxy.cluster.answers import (
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    BrokerAddress,
    MetadataAnswer,
    TopicInfo,
)
from fetchproxy.model import ZERO_UUID

NEVER = float("-inf")
# Other errors of a topic (no leader, not authorized) say nothing about its existence.
_GONE = frozenset({UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID})


class MetadataCache:
    def __init__(self) -> None:
        self.brokers: Mapping[int, BrokerAddress] = {}
        self.brokers_at = NEVER
        self.cluster_id: str | None = None
        self.all_topics_at = NEVER
        self._by_name: dict[str, TopicInfo] = {}
        self._names: dict[UUID, str] = {}
        self._topic_at: dict[str, float] = {}

    def by_name(self, name: str, not_older_than: float = NEVER) -> TopicInfo | None:
        if self._topic_at.get(name, NEVER) < not_older_than:
            return None
        return self._by_name.get(name)

    def by_id(self, topic_id: UUID, not_older_than: float = NEVER) -> TopicInfo | None:
        name = self._names.get(topic_id)
        return None if name is None else self.by_name(name, not_older_than)

    def topics(self) -> list[TopicInfo]:
        return [self._by_name[name] for name in sorted(self._by_name)]

    def expire(self, name: str) -> None:
        """What is known of this topic proved wrong: it is asked for before it is used again."""
        self._topic_at[name] = NEVER

    def learn(self, answer: MetadataAnswer, asked_at: float, *, all_topics: bool) -> None:
        """`all_topics`: what the answer does not name is gone."""
        if answer.brokers:
            self.brokers = answer.brokers
            self.brokers_at = asked_at
            self.cluster_id = answer.cluster_id
        for topic in answer.topics:
            self._forget(topic.name)
            self._by_name[topic.name] = topic
            self._topic_at[topic.name] = asked_at
            if topic.topic_id != ZERO_UUID:
                self._names[topic.topic_id] = topic.name
        for missing, error_code in answer.failed.items():
            if error_code in _GONE:
                self._forget(self._names.get(missing) if isinstance(missing, UUID) else missing)
        if all_topics:
            self.all_topics_at = asked_at
            self._keep({topic.name for topic in answer.topics} | set(answer.failed))

    def _keep(self, names: Collection[str | UUID]) -> None:
        for name in [known for known in self._by_name if known not in names]:
            self._forget(name)

    def _forget(self, name: str | None) -> None:
        topic = self._by_name.pop(name, None) if name is not None else None
        if topic is not None:
            self._names.pop(topic.topic_id, None)
            self._topic_at.pop(topic.name, None)
