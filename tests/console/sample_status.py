"""A status as a busy proxy would give it, for tests and for looking at the page."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from fetchproxy.console.status import (
    ArchiverStatus,
    OffsetRange,
    PartitionStatus,
    Status,
    StoreStatus,
    TopicStatus,
)
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import (
    Condition,
    Kind,
    counts,
    headlines,
    missing,
    of_partition,
    worst_first,
)
from fetchproxy.observability.logs import RecentEvent
from fetchproxy.serving.consumer_pacing import ClientStatus
from fetchproxy.writing.archive_health import NotHeld, offsets_in_words

PARTITIONS = (
    PartitionStatus(
        topic="orders",
        partition=0,
        archived=(OffsetRange(0, 1_840_221),),
        segments=212,
        size_bytes=14_203_118_992,
        log_start_offset=1_512_000,
        log_end_offset=1_911_402,
        lag_offsets=71_181,
        margin_offsets=328_222,
        role="leader",
        copy_seconds=2.4,
        retention_used=0.0312,
    ),
    PartitionStatus(
        topic="orders",
        partition=1,
        archived=(OffsetRange(0, 420_000), OffsetRange(500_001, 1_790_113)),
        gaps=(OffsetRange(420_001, 500_000),),
        segments=198,
        size_bytes=13_903_118_992,
        log_start_offset=1_512_000,
        log_end_offset=1_811_402,
        lag_offsets=21_289,
        margin_offsets=278_114,
        role="follower",
    ),
    PartitionStatus(
        topic="payments.settled.v2",
        partition=0,
        archived=(OffsetRange(120, 9_112),),
        segments=3,
        size_bytes=8_221_118,
        log_start_offset=9_400,
        log_end_offset=9_871,
        lag_offsets=758,
        margin_offsets=-287,
    ),
    PartitionStatus(topic="telemetry", partition=0, log_start_offset=0, log_end_offset=0),
)

ORDERS_1 = TopicIdPartition(UUID(int=1), "orders", 1)
STEP = of_partition(
    Kind.RETENTION_STEP_ANNOUNCED,
    ORDERS_1,
    "orders-1: retention will hide 82 % of the archive, all below offset 1480000, at "
    "2026-03-01 09:00 UTC; to stop it, correct the retention or the clock before then",
    (0, 1_479_999),
    since=100.0,
    until=90_000.0,
)
FAILING = of_partition(
    Kind.PARTITION_FAILING,
    TopicIdPartition(UUID(int=2), "payments.settled.v2", 0),
    "copy of 9113…9399 is impossible: the broker has deleted them",
    since=900.0,
)
GAP = offsets_in_words(ORDERS_1, NotHeld(gaps=((420_001, 500_000),)))[0]
NOW = 1_000.0


def condition_rows(
    *conditions: Condition,
) -> tuple[dict[str, str | int | float | bool | None], ...]:
    return tuple(one.as_json_at(NOW) for one in worst_first(conditions))


STATUS = Status(
    archiver=ArchiverStatus("group", "stable", leads=3, follows=1, members=2),
    headlines=headlines([STEP, FAILING, GAP]),
    conditions=condition_rows(STEP, FAILING, GAP),
    condition_counts=dict(counts([STEP, FAILING, GAP])),
    version="0.1.0",
    mode="serve",
    bootstrap="kafka-1:9092,kafka-2:9092",
    uptime_seconds=93_784.2,
    missing=(),
    listeners=("127.0.0.1:9192", "127.0.0.1:9193"),
    store=StoreStatus("s3://archive/kafka", up=True),
    relay={
        "connections": 412, "connections_max": 20_000, "to_broker_bytes": 8_111_222_333,
        "to_client_bytes": 99_221_334_112,
    },
    remote_reads={
        "in_flight": 7, "queued": 3, "waiting": 12, "read_bytes": 22_113_889_120, "backoffs": 14,
        "catches": 96, "held_stale": 2, "passed_on": 1, "held_partitions": 0, "led_on": 0,
        "offsets_skipped": 0, "corrupt_chunks": 0,
    },
    cache={
        "bytes": 201_326_592, "bytes_max": 268_435_456, "hits": 81_220, "misses": 5_312,
        "evictions": 5_264,
    },
    partitions=PARTITIONS,
    partitions_total=4,
    partitions_matching=4,
    clients=(
        ClientStatus(
            "replay", "librdkafka 2.5.0", "10.0.0.7", 3, 12, 412_000, 44_100_000, 2, 418_300, 31.72
        ),
        ClientStatus("", "", "10.0.0.9", 1, 4_000, None, 1_200_000, 0, None, 0.0),
    ),
    clients_total=51,
    shows_records=True,
    topics=(
        TopicStatus("payments.settled.v2", 1, faulty=1, lag_offsets=758, size_bytes=8_221_118),
        TopicStatus("orders", 2, lag_offsets=92_470, size_bytes=28_106_237_984),
        TopicStatus("telemetry", 1),
    ),
    events=(
        RecentEvent("2026-11-20T10:22:31.104Z", "info", "catch", 4,
              {"topic": "orders", "partition": "0"}),
        RecentEvent("2026-11-20T10:21:02.500Z", "warning", "store_failing_no_more", 1,
              {"failed_seconds": "72.4"}),
        RecentEvent("2026-11-20T10:19:50.110Z", "error", "store_failing", 1,
              {"error": "Connection refused by archive.example:9000"}),
    ),
)  # fmt: skip

REFUSED = "get_range: Connection refused by archive.example:9000"
OUTAGE = (
    Condition(
        Kind.GATEWAY_NOT_LISTENING,
        "The gateway does not listen at 127.0.0.1:9193 yet",
        missing="gateway listener 127.0.0.1:9193",
        since=990.0,
    ),
    Condition(
        Kind.STORE_FAILING,
        f"The store's reads have been failing: {REFUSED}. Reads from the brokers "
        "continue; readers of the archive wait and keep their position.",
        "read",
        since=NOW - 192.3,
    ),
    STEP,
    FAILING,
    GAP,
)

STATUS_IN_OUTAGE = replace(
    STATUS,
    store=StoreStatus("s3://archive/kafka", False, 192.3, REFUSED),
    conditions=condition_rows(*OUTAGE),
    condition_counts=dict(counts(OUTAGE)),
    headlines=headlines(worst_first(OUTAGE)),
    missing=missing(OUTAGE),
    remote_reads={**STATUS.remote_reads, "corrupt_chunks": 1},
)
