"""How long the brokers keep what nobody archives, from the archive's newest timestamp."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_console_partitions import TP, segment
from test_timeline import view

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.console.time_left import TimeLeft
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.model import LogOffsets
from fetchproxy.writing.status import BROKER_UNLIMITED, BrokerRetention
from lab.kafka import KafkaServer

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS


def test_the_newest_archived_record_and_the_retention_tell() -> None:
    time_left = TimeLeft({"orders": (0.0, BrokerRetention(10 * HOUR_MS, None))})
    archived = view((0, 99, NOW_MS - 8 * HOUR_MS), (100, 199, NOW_MS - 4 * HOUR_MS))
    assert time_left.seconds("orders", archived, NOW_MS) == 6 * 3600
    assert time_left.seconds("orders", archived, NOW_MS + 9 * HOUR_MS) == 0, "it has passed"


def test_what_is_not_known_is_not_told() -> None:
    archived = view((0, 99, NOW_MS - HOUR_MS))
    assert TimeLeft().seconds("orders", archived, NOW_MS) is None
    unlimited = TimeLeft({"orders": (0.0, BROKER_UNLIMITED)})
    assert unlimited.seconds("orders", archived, NOW_MS) is None
    time_left = TimeLeft({"orders": (0.0, BrokerRetention(HOUR_MS, None))})
    assert time_left.seconds("orders", None, NOW_MS) is None
    assert time_left.seconds("orders", build_view(TP, [], 0.0), NOW_MS) is None
    assert time_left.seconds("orders", build_view(TP, [segment(0, 9)], 0.0), NOW_MS) is None
    assert time_left.seconds("orders", view((0, 9, 2 * NOW_MS)), NOW_MS) is None, "the future"


def test_retention_by_bytes_tells_from_the_pace_since_the_newest_archived_record() -> None:
    """100 offsets of a byte each came in the last two hours, and 300 more fit."""
    archived = view((0, 99, NOW_MS - 2 * HOUR_MS))
    assert archived.segments[0].segment_size_bytes == 100
    at = LogOffsets(50, 200, 200)
    by_size = TimeLeft({"orders": (0.0, BrokerRetention(None, 400))})
    assert by_size.seconds("orders", archived, NOW_MS, at) == 6 * 3600
    assert by_size.seconds("orders", archived, NOW_MS) is None, "the brokers have not told"
    full = TimeLeft({"orders": (0.0, BrokerRetention(None, 100))})
    assert full.seconds("orders", archived, NOW_MS, at) == 0
    assert full.seconds("orders", view((0, 99, 2 * NOW_MS)), NOW_MS, at) == 0, "full at any pace"


def test_the_sooner_limit_counts() -> None:
    archived, at = view((0, 99, NOW_MS - 2 * HOUR_MS)), LogOffsets(50, 200, 200)
    for age_ms, size_bytes, hours in ((5 * HOUR_MS, 400, 3), (50 * HOUR_MS, 400, 6)):
        time_left = TimeLeft({"orders": (0.0, BrokerRetention(age_ms, size_bytes))})
        assert time_left.seconds("orders", archived, NOW_MS, at) == hours * 3600


@pytest.mark.kafka
async def test_a_real_brokers_retention_by_bytes(
    kafka_server: KafkaServer, create_topic: Callable[..., str]
) -> None:
    limits = {"retention.bytes": "400", "retention.ms": "-1"}
    topic = create_topic(config=limits)
    time_left = TimeLeft()
    async with Cluster(ClusterConfig(bootstrap=kafka_server.bootstrap)) as cluster:
        await time_left.update(cluster, [topic])
    archived, at = view((0, 99, NOW_MS - 2 * HOUR_MS)), LogOffsets(50, 200, 200)
    assert time_left.seconds(topic, archived, NOW_MS, at) == 6 * 3600
