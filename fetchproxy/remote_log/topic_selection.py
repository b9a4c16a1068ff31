"""Which topics are archived, and why one is not. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fetchproxy.cluster.client import TopicInfo
from fetchproxy.model import ZERO_UUID, TopicIdPartition

_INTERNAL_PREFIX = "__"


def matching_topics(pattern: str, topics: Iterable[TopicInfo]) -> list[TopicInfo]:
    """Those whose whole name matches; never internal ones, whatever the pattern says."""
    compiled = re.compile(pattern)
    return [
        topic
        for topic in topics
        if not topic.is_internal
        and not topic.name.startswith(_INTERNAL_PREFIX)
        and compiled.fullmatch(topic.name)
    ]


def refusal(topic: TopicInfo, topic_config: dict[str, str]) -> str | None:
    """Why a topic cannot be archived, as a sentence for the operator; None: it can.

    Compaction takes records out of the log after they were copied, so archive and log would differ
    (KIP-405 excludes it too). An archive is keyed by topic id (KIP-516).
    """
    if topic.topic_id == ZERO_UUID:
        return "the brokers have no topic ids; they are older than 2.8"
    policies = {policy.strip() for policy in topic_config.get("cleanup.policy", "").split(",")}
    if "compact" in policies:
        return "cleanup.policy contains compact; compacted topics are not archived"
    return None


def partitions_of(topic: TopicInfo) -> list[TopicIdPartition]:
    return [TopicIdPartition(topic.topic_id, topic.name, p) for p in sorted(topic.leaders)]
