"""How much of the broker's retention is used up before the copy, and the reports of it."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import (
    ARCHIVE_LEADER_PARTITIONS,
    ARCHIVE_OLDEST_COPY_SECONDS,
    ARCHIVE_RETENTION_USED_SHARE,
    ARCHIVE_STALLED_COPIES,
    REGISTRY,
)
from fetchproxy.writing.copier import CopyProgress
from fetchproxy.writing.partition_watch import PartitionWatch, retention_used
from fetchproxy.writing.published_conditions import PublishedConditions
from fetchproxy.writing.status import (
    BROKER_UNLIMITED,
    BrokerRetention,
    PartitionArchiveStatus,
    broker_retention,
    publish,
    withdraw,
)

TP = TopicIdPartition(UUID(int=1), "orders", 3)
HOUR = 3_600_000
LAGGING = PartitionArchiveStatus(
    tp=TP,
    archive_start=0,
    archive_end=100,
    log_start_offset=40,
    last_stable_offset=150,
    accumulated_bytes=0,
    last_error=None,
    last_success_ms=None,
    stopped=False,
    broker_retention=BrokerRetention(ms=10 * HOUR, bytes=None),
)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, BROKER_UNLIMITED),
        ({"retention.ms": "-1", "retention.bytes": "-1"}, BROKER_UNLIMITED),
        ({"retention.ms": "5", "retention.bytes": "7"}, BrokerRetention(5, 7)),
        ({"retention.ms": "5", "cleanup.policy": "compact"}, BROKER_UNLIMITED),
        (  # what is on no disk is in the brokers' tier, and archived from there
            {
                "retention.ms": "5",
                "retention.bytes": "-1",
                "local.retention.ms": "3",
                "local.retention.bytes": "7",
                "remote.storage.enable": "true",
            },
            BrokerRetention(5, None),
        ),
        (
            {"retention.ms": "5", "local.retention.ms": "3", "remote.storage.enable": "false"},
            BrokerRetention(5, None),
        ),
    ],
)
def test_retention_of_a_topic(settings: dict[str, str], expected: BrokerRetention) -> None:
    assert broker_retention(settings) == expected


def test_the_larger_share_counts() -> None:
    limits = BrokerRetention(ms=1_000, bytes=100)
    assert retention_used(limits, age_ms=100, unarchived_bytes=50) == 0.5
    assert retention_used(limits, age_ms=900, unarchived_bytes=50) == 0.9
    assert retention_used(limits, age_ms=None, unarchived_bytes=None) is None
    assert retention_used(BROKER_UNLIMITED, age_ms=900, unarchived_bytes=50) is None


def watch(published_conditions: PublishedConditions | None = None) -> PartitionWatch:
    config = ArchiveConfig(copy_max_ms=60_000)
    return PartitionWatch(config, published_conditions or PublishedConditions())


async def test_warned_once_per_episode_by_the_records_own_time() -> None:
    published_conditions = PublishedConditions()
    partition_watch = watch(published_conditions)
    status = replace(LAGGING, first_unarchived_ms=1_000 * HOUR)
    with capture_logs() as logs:
        for hours in (1_004, 1_005, 1_006, 1_007):
            await partition_watch.look([status], 0.0, hours * HOUR)
    assert [(e["event"], e["retention_used"]) for e in logs] == [("archive_margin_small", 0.5)]
    assert logs[0]["log_level"] == "error"
    assert partition_watch.margin(TP)[0] == pytest.approx(0.7)
    assert ARCHIVE_RETENTION_USED_SHARE.labels("orders", "3")._value.get() == pytest.approx(0.7)
    assert [str(condition) for condition in published_conditions.health.conditions(0.0)] == [
        "archive_margin_small: orders-3: the records from offset 100 on are not archived and have "
        "used up 70 % of the brokers' retention; at 100 % the brokers delete them; cause: copies "
        "are slower than producers, or have just begun"
    ]
    caught_up = replace(LAGGING, archive_end=150)
    with capture_logs() as logs:
        await partition_watch.look([caught_up], 0.0, 1_008 * HOUR)
        await partition_watch.look([status], 0.0, 1_009 * HOUR)
    assert [e["event"] for e in logs] == ["archive_margin_small_no_more", "archive_margin_small"]
    partition_watch.forget(TP)
    assert published_conditions.health.conditions(0.0) == ()
    assert ("orders", "3") not in ARCHIVE_RETENTION_USED_SHARE._metrics


async def test_what_nobody_could_read_counts_from_when_it_was_known_to_wait() -> None:
    partition_watch = watch()
    await partition_watch.look([LAGGING], 0.0, 0)
    unknown = replace(LAGGING, last_stable_offset=None)  # the brokers are away
    await partition_watch.look([unknown], 0.0, 4 * HOUR)
    assert partition_watch.margin(TP)[0] == pytest.approx(0.4)
    copied = replace(LAGGING, archive_end=120)
    await partition_watch.look([copied], 0.0, 5 * HOUR)  # another range waits, from now on
    assert partition_watch.margin(TP)[0] == 0


async def test_bytes_count_too() -> None:
    partition_watch = watch()
    limits = BrokerRetention(ms=None, bytes=1_000)
    with capture_logs() as logs:
        await partition_watch.look(
            [replace(LAGGING, broker_retention=limits, bytes_per_offset=9.98)], 0.0, 0
        )
        assert logs == []
        await partition_watch.look(
            [replace(LAGGING, broker_retention=limits, bytes_per_offset=16.0)], 0.0, 0
        )
    assert [e["retention_used"] for e in logs] == [0.8]


async def test_without_limits_nothing_is_said() -> None:
    partition_watch = watch()
    with capture_logs() as logs:
        await partition_watch.look([replace(LAGGING, broker_retention=BROKER_UNLIMITED)], 0.0, 0)
        await partition_watch.look(
            [replace(LAGGING, broker_retention=BROKER_UNLIMITED)], 0.0, 9_999 * HOUR
        )
    assert logs == []
    assert partition_watch.margin(TP)[0] is None


@pytest.mark.remedy("segment_copy_stalled")
async def test_a_copy_that_hangs_is_said_once_and_shown() -> None:
    published_conditions = PublishedConditions()
    partition_watch = watch(published_conditions)
    copy = CopyProgress(UUID(int=9), base_offset=100, size_bytes=5, started_at=1_000.0)
    status = replace(LAGGING, broker_retention=BROKER_UNLIMITED, copy=copy)
    with capture_logs() as logs:
        for now in (1_010.0, 1_029.0):
            await partition_watch.look([status], now, 0)
        assert published_conditions.health.conditions(0.0) == ()
        for now in (1_030.0, 1_047.0, 1_059.0):
            await partition_watch.look([status], now, 0)
    assert [(e["event"], e["since_s"], e["ended_after_s"]) for e in logs] == [
        ("segment_copy_stalled", 30.0, 60.0)
    ]
    [condition] = published_conditions.health.conditions(0.0)
    assert condition.what == "a copy has taken 50 s so far; the archiver gives it up after 60 s"
    assert (condition.since, condition.until) == (1_000.0, 1_060.0)
    assert ARCHIVE_OLDEST_COPY_SECONDS._value.get() == 59
    assert ARCHIVE_STALLED_COPIES._value.get() == 1
    await partition_watch.look([replace(status, copy=None)], 1_061.0, 0)
    assert published_conditions.health.conditions(0.0) == ()
    assert ARCHIVE_OLDEST_COPY_SECONDS._value.get() == 0
    assert ARCHIVE_STALLED_COPIES._value.get() == 0


async def test_a_follower_is_not_watched() -> None:
    partition_watch = watch()
    with capture_logs() as logs:
        await partition_watch.look(
            [replace(LAGGING, leads=False, first_unarchived_ms=0)], 0.0, 999 * HOUR
        )
    assert logs == []
    assert ARCHIVE_LEADER_PARTITIONS._value.get() == 0


def test_counters_begin_at_0_so_that_the_first_gap_is_an_increase() -> None:
    tp = TopicIdPartition(UUID(int=1), "never-counted", 7)
    publish(replace(LAGGING, tp=tp))
    place = {"topic": "never-counted", "partition": "7"}
    for name in ("fetchproxy_archive_gaps", "fetchproxy_archive_truncated_offsets"):
        assert REGISTRY.get_sample_value(f"{name}_total", place) == 0
    name = "kafka_server_brokertopicmetrics_remotecopyerrors_total"
    assert REGISTRY.get_sample_value(name, {"topic": "never-counted"}) == 0
    withdraw(tp)


@pytest.mark.remedy("partitions_not_led")
async def test_partitions_that_no_archiver_leads_are_named_until_one_does() -> None:
    published_conditions, accumulated = PublishedConditions(), dict[TopicIdPartition, int]()
    partition_watch = PartitionWatch(
        ArchiveConfig(copy_max_ms=60_000), published_conditions, accumulated.get
    )
    other = replace(LAGGING, tp=TopicIdPartition(TP.topic_id, "orders", 4), leads=False)
    followed = [replace(LAGGING, leads=False), other]
    for now in (0.0, 59.9):
        await partition_watch.look(followed, now, 0)
        assert published_conditions.health.conditions(0.0) == ()
    await partition_watch.look(followed, 60.0, 0)
    [condition] = published_conditions.health.conditions(0.0)
    assert condition.kind == "partitions_not_led"
    assert condition.what.startswith("orders-3 and 1 more are not archived")
    accumulated |= {TP: 100, other.tp: 100}  # an archiver was started beside their broker
    await partition_watch.look(followed, 65.0, 0)
    assert published_conditions.health.conditions(0.0) == ()
