"""Which topics are archived."""

from __future__ import annotations

from uuid import UUID

import pytest

from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.model import ZERO_UUID, TopicIdPartition
from fetchproxy.writing.discovery import matching_topics, partitions_of, refusal


def topic(name: str, is_internal: bool = False, topic_id: UUID = UUID(int=1)) -> TopicInfo:  # noqa: B008
    return TopicInfo(topic_id, name, is_internal, {1: (1, 0), 0: (1, 0)})


OWN_TOPIC = "remote-log"


def test_whole_names_match_and_internal_is_what_kafka_calls_internal() -> None:
    names = ["orders", "orders-eu", "__audit", "__debezium-heartbeat.srv", "-", ".hidden", "_"]
    own_topics = [topic("__consumer_offsets", True), topic("not-by-name", True), topic(OWN_TOPIC)]
    topics = [*map(topic, names), *own_topics]
    assert [t.name for t in matching_topics("orders", topics, OWN_TOPIC)] == ["orders"]
    assert [t.name for t in matching_topics(".*", topics, OWN_TOPIC)] == names
    assert matching_topics("order|remote-log", topics, OWN_TOPIC) == []


@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        ("delete", False),
        ("", False),
        ("compact", True),
        ("compact,delete", True),
        ("delete, compact", True),
    ],
)
def test_compacted_topics_are_refused(policy: str, refused: bool) -> None:
    reason = refusal(topic("t"), {"cleanup.policy": policy})
    assert (reason is not None) == refused
    assert reason is None or "compact" in reason


def test_without_a_configuration_or_a_topic_id() -> None:
    assert refusal(topic("t"), {}) is None
    assert "2.8" in (refusal(topic("t", topic_id=ZERO_UUID), {}) or "")


def test_partitions_in_order() -> None:
    expected = [TopicIdPartition(UUID(int=1), "t", p) for p in (0, 1)]
    assert partitions_of([topic("t")]) == expected
