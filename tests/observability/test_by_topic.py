"""One series for each topic stands for those of its partitions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fetchproxy.observability import metrics

TOPIC = "by-topic"
NUMBER_OF_METRICS_OF_PARTITIONS = 14


@pytest.fixture(autouse=True)
def series() -> Iterator[None]:
    for number, value in enumerate((5, -3, 10)):
        metrics.ARCHIVE_LAG_OFFSETS.labels(TOPIC, number).set(value)
        metrics.ARCHIVE_MARGIN_OFFSETS.labels(TOPIC, number).set(value)
        metrics.ARCHIVE_RETENTION_USED_SHARE.labels(TOPIC, number).set(value / 10)
    metrics.ARCHIVE_GAPS.labels(TOPIC, 0)
    metrics.ARCHIVE_GAPS.labels(TOPIC, 1).inc(2)
    yield
    for remove, labels in metrics.series_by_topic():
        for one in labels:
            if one[0] == TOPIC:
                remove(*one)


def lines(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if TOPIC in line]


def test_a_topic_has_the_sum_of_its_partitions_or_the_worst() -> None:
    assert sorted(lines(metrics.BY_TOPIC)) == [
        'fetchproxy_archive_gaps_total{topic="by-topic"} 2.0',
        'fetchproxy_archive_lag_offsets{topic="by-topic"} 12.0',
        'fetchproxy_archive_margin_offsets{topic="by-topic"} -3.0',
        'fetchproxy_archive_retention_used_share{topic="by-topic"} 1.0',
    ]


def test_each_partition_is_there_on_request() -> None:
    partition_lines = lines(metrics.REGISTRY)
    assert len(partition_lines) == 11
    assert (
        'fetchproxy_archive_margin_offsets{partition="1",topic="by-topic"} -3.0' in partition_lines
    )


def test_both_have_the_same_metrics_with_the_same_names() -> None:
    def families(registry: CollectorRegistry) -> set[tuple[str, str, str]]:
        return {(one.name, one.type, one.documentation) for one in registry.collect()}

    assert families(metrics.BY_TOPIC) == families(metrics.REGISTRY)
    text = generate_latest(metrics.BY_TOPIC).decode()
    of_topics = [line for line in text.splitlines() if "topic=" in line]
    assert of_topics
    assert not any("partition=" in line for line in of_topics)
    assert metrics.table().count("| topic (partition) |") == NUMBER_OF_METRICS_OF_PARTITIONS
