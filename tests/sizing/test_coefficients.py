"""Each coefficient is what its source says: a benchmark's row, or a constant of the code."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import uuid4

import pytest

from fetchproxy.cluster_state.document import encode_state
from fetchproxy.cluster_state.state import (
    ClusterState,
    GroupKind,
    GroupWithOffsets,
    OffsetOfGroup,
    PartitionState,
    TopicState,
)
from fetchproxy.config.memory_plan import CHUNK_BYTES, PART_BYTES, memory_parts
from fetchproxy.config.schema import ArchiveConfig, Config, MetadataConfig
from fetchproxy.metadata.archiver_positions import HEARTBEAT_INTERVAL_S, POSITIONS_READ_INTERVAL_S
from fetchproxy.metadata.partition_ends import EndsLimits
from fetchproxy.serving.gateway.served_archive import LIST_INTERVAL_S
from fetchproxy.sizing.coefficients import COEFFICIENTS
from fetchproxy.sizing.estimate import DAY_S, Workload
from fetchproxy.storage.stores.s3 import PAGE_OBJECTS
from fetchproxy.writing.limits import WritingLimits

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
LIMITS = WritingLimits()
MEASURED = (
    ("tail_cpu_s_per_gb", "tail", "CPU of the proxy, unpaused consumer, fetchproxy", 2),
    ("replay_cpu_s_per_gb", "replay", "S3 with 50 ms: CPU of the proxy", 2),
    ("archiving_cpu_s_per_gb", "archive", "CPU, S3 server, 1 KiB records", 2),
    ("segment_memory_topic_bytes", "metadata", "memory", 0),
    ("archiver_listings", "requests", "idle archiver: listings, without those of partitions", 0),
    ("refresh_listings", "requests", "idle archiver: listings of a partition", 0),
)
CONSTANTS = {
    "part_bytes": PART_BYTES,
    "chunk_bytes": CHUNK_BYTES,
    "page_objects": PAGE_OBJECTS,
    "archiver_listings": DAY_S / POSITIONS_READ_INTERVAL_S
    + DAY_S * 1000 / LIMITS.discovery_interval_ms
    + DAY_S / 60,
    "proxy_listings": DAY_S / POSITIONS_READ_INTERVAL_S + DAY_S / LIST_INTERVAL_S,
    "positions_reads": DAY_S / POSITIONS_READ_INTERVAL_S,
    "owner_reads": DAY_S / HEARTBEAT_INTERVAL_S,
    "refresh_listings": DAY_S * 1000 / LIMITS.remote_refresh_interval_ms,
    "retention_listings": DAY_S * 1000 / LIMITS.retention_check_interval_ms,
    "replay_listings": DAY_S * 1000 / MetadataConfig().view_age_max_ms,
    "whole_below_segments": EndsLimits().whole_below_segments,
    "full_listings": DAY_S * 1000 / EndsLimits().whole_listing_interval_ms,
    "orphan_searches": DAY_S * 1000 / LIMITS.orphan_check_interval_ms,
    "orphan_pages": 24
    * LIMITS.orphan_check_segments_per_hour
    * COEFFICIENTS.objects_per_segment
    / PAGE_OBJECTS,
    "orphan_searches_min": DAY_S * 1000 / LIMITS.orphan_check_interval_max_ms,
}


@pytest.mark.parametrize(("name", "part", "row", "digits"), MEASURED)
def test_a_coefficient_is_what_was_measured(name: str, part: str, row: str, digits: int) -> None:
    rows = json.loads((RESULTS / f"{part}.json").read_text("utf-8"))["rows"]
    (value,) = [each["value"] for each in rows if each["name"] == row]
    assert round(value, digits) == getattr(COEFFICIENTS, name)


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_coefficient_is_what_the_code_does(name: str) -> None:
    assert getattr(COEFFICIENTS, name) == CONSTANTS[name]


def test_an_idle_proxy_lists_about_as_often_as_it_was_measured() -> None:
    """The measurement stopped between two looks."""
    rows = json.loads((RESULTS / "requests.json").read_text("utf-8"))["rows"]
    (value,) = [each["value"] for each in rows if each["name"] == "idle proxy: listings"]
    assert value == pytest.approx(COEFFICIENTS.proxy_listings, rel=0.02)


def test_an_archiver_that_copies_writes_its_positions_each_second() -> None:
    """Twice as often as an idle one, which was measured."""
    rows = json.loads((RESULTS / "requests.json").read_text("utf-8"))["rows"]
    (value,) = [each["value"] for each in rows if each["name"] == "idle archiver: writes"]
    assert value == pytest.approx(DAY_S / HEARTBEAT_INTERVAL_S, rel=0.02)
    assert COEFFICIENTS.archiver_writes == DAY_S / HEARTBEAT_INTERVAL_S * 2


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("proxy_bytes", Config()),
        ("archiver_bytes", Config(archive=ArchiveConfig(topics="orders"))),
    ],
)
def test_memory_is_the_plan_of_the_defaults(name: str, config: Config) -> None:
    planned = sum(memory_parts(config).values())
    assert planned == pytest.approx(getattr(COEFFICIENTS, name), rel=0.001)


def test_a_load_begins_with_the_defaults_of_the_settings() -> None:
    load, archive = Workload(mb_per_s=1, partitions=1, retention_days=1), ArchiveConfig()
    assert load.segment_bytes == archive.segment_bytes_max
    assert load.segment_age_s * 1000 == archive.segment_age_max_ms
    assert load.manager == MetadataConfig().manager
    assert load.recovery_point_s * 1000 == archive.recovery_point_ms
    assert load.state_interval_s * 1000 == archive.cluster_state_interval_ms


def test_a_state_has_about_so_many_bytes_a_partition() -> None:
    """Of a cluster with 20 partitions a topic, and ten groups a topic with ten commits each."""
    topics = tuple(
        TopicState(
            f"orders-{number}", uuid4(), 3, 20, (("retention.ms", "604800000"),), (),
            tuple(PartitionState(one, 1_000_000, 9_000_000, 12) for one in range(20)),
        )
        for number in range(100)
    )  # fmt: skip
    groups = tuple(
        GroupWithOffsets(
            f"group-{number}", GroupKind.CLASSIC,
            tuple(
                OffsetOfGroup(topics[number % 100].name, one, 8_000_000, 12) for one in range(10)
            ),
        )
        for number in range(1_000)
    )  # fmt: skip
    size = len(encode_state(ClusterState("cluster", 1, topics, groups)))
    assert size / 2_000 == pytest.approx(COEFFICIENTS.state_bytes_per_partition, rel=0.3)
    week_ms = ArchiveConfig().cluster_state_retention_ms
    assert COEFFICIENTS.states_of_hours == week_ms / 3_600_000
