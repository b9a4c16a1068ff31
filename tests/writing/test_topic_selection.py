"""Which topics are archived."""

from __future__ import annotations

from uuid import UUID

import pytest

from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.model import ZERO_UUID, TopicIdPartition
from fetchproxy.writing.discovery import matching_topics, partitions_of, refusal


def topic(name: str, is_internal: bool = False, topic_id: UUID = UUID(int=1)) -> TopicInfo:  # noqa: B008
    return TopicInfo(topic_id, name, is_internal, {1: (1, 0), 0: (1, 0)})


OWN_TOPIC = "remote-log"
ALL = ArchiveConfig(topics=".*")


def test_whole_names_match_and_internal_is_what_kafka_calls_internal() -> None:
    names = ["orders", "orders-eu", "__audit", "__debezium-heartbeat.srv", "-", ".hidden", "_"]
    own_topics = [topic("__consumer_offsets", True), topic("not-by-name", True), topic(OWN_TOPIC)]
    topics = [*map(topic, names), *own_topics]

    def matching(topics_pattern: str, compacted: str | None = None) -> list[str]:
        config = ArchiveConfig(topics=topics_pattern, compacted_topics=compacted)
        return [t.name for t in matching_topics(config, topics, OWN_TOPIC)]

    assert matching("orders") == ["orders"]
    assert matching(".*") == matching("orders", ".*") == names
    assert matching("order|remote-log") == []
    assert matching("orders", "_+audit") == ["orders", "__audit"]


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
    reason = refusal(topic("t"), {"cleanup.policy": policy}, ALL)
    assert (reason is not None) == refused
    assert reason is None or "archive.compacted_topics does not match it" in reason
    of_both = ArchiveConfig(topics=".*", compacted_topics="t")
    assert refusal(topic("t"), {"cleanup.policy": policy}, of_both) is None
    assert (refusal(topic("u"), {"cleanup.policy": policy}, of_both) is not None) == refused


def test_a_reader_has_to_be_able_to_meet_each_deletion() -> None:
    config = ArchiveConfig(topics=".*", compacted_topics=".*")
    settings = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
    assert "delete.retention.ms=0" in (refusal(topic("t"), settings, config) or "")
    assert refusal(topic("t"), settings | {"delete.retention.ms": "1"}, config) is None


def test_without_a_configuration_or_a_topic_id() -> None:
    assert refusal(topic("t"), {}, ALL) is None
    assert "2.8" in (refusal(topic("t", topic_id=ZERO_UUID), {}, ALL) or "")


def test_partitions_in_order() -> None:
    expected = [TopicIdPartition(UUID(int=1), "t", p) for p in (0, 1)]
    assert partitions_of([topic("t")]) == expected
