"""The choices a seed makes before a session simulation begins: network, logs, configuration."""

from __future__ import annotations

from pathlib import Path
from random import Random

from broker import SimulatedCluster
from broker_log import LogGenerator, SimulatedLog
from generated_archive import random_uuid
from network import Conditions
from simulated_consumer import BOOTSTRAP

from fetchproxy.app import Limits
from fetchproxy.config.schema import (
    ArchiveConfig,
    ClusterConfig,
    Config,
    GatewayConfig,
    KiB,
    MiB,
    RemoteFetchConfig,
    StoreConfig,
)
from fetchproxy.model import TopicIdPartition
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.serving.limits import ArchiveOnlyLimits
from fetchproxy.writing.limits import WritingLimits
from lab.limited import section_and_limits


def draw_conditions(rng: Random) -> Conditions:
    return Conditions(
        latency_s_min=0.0001,
        latency_s_max=rng.choice([0.0005, 0.005, 0.02]),
        cutting=rng.choice(["whole", "parts", "bytes"]),
        window_bytes=rng.choice([8, 64, 1024]) * KiB,
        sends_at_once=rng.random() < 0.7,
    )


def draw_logs(rng: Random) -> list[SimulatedLog]:
    topics = [("weather", random_uuid(rng)), ("harvest", random_uuid(rng))]
    logs = []
    for name, topic_id in topics[: rng.choice([1, 1, 2])]:
        for partition in range(rng.randint(1, 3)):
            tp = TopicIdPartition(topic_id, name, partition)
            noise_bytes_max = rng.choice([50, 400, 3_000])
            generator = LogGenerator(Random(rng.random()), noise_bytes_max)
            logs.append(generator.generate(tp, rng.randint(30, 150)))
    return logs


def draw_start(rng: Random, log: SimulatedLog) -> int:
    """Mostly the log's beginning; else any offset, the high watermark, or above the final end."""
    return rng.choice(
        [
            *[log.first_offset] * 5,
            *[rng.randint(log.first_offset, log.high_watermark)] * 3,
            log.high_watermark,
            log.final_offset + rng.choice([1, 1_000]),
        ]
    )


def draw_config(rng: Random, cluster: SimulatedCluster, folder: Path) -> tuple[Config, Limits]:
    gateway, serving = section_and_limits(
        GatewayConfig,
        ArchiveOnlyLimits,
        listen=f"{BOOTSTRAP[0]}:{BOOTSTRAP[1]}",
        inflight_requests_max=rng.choice([1, 2, 64]),
        buffer_bytes_max=rng.choice([KiB, 64 * KiB, MiB]),
        permit_ttl_ms=rng.choice([300, 5_000, 60_000]),
        remote_fetch_max_wait_ms=rng.choice([100, 500]),
    )
    remote_fetch, reading = section_and_limits(
        RemoteFetchConfig,
        ReadingLimits,
        fetcher_tasks_max=rng.choice([1, 2, 16]),
        purgatory_entries_max=rng.choice([1, 2, 100]),
        inflight_bytes_max=MiB,
        chunk_bytes=rng.choice([1, 4, 32]) * KiB,
        chunk_cache_bytes_max=rng.choice([0, 5 * KiB, 40 * KiB, MiB]),
        read_ahead_chunks_max=rng.choice([0, 1, 4]),
        chunk_read_max_ms=rng.choice([500, 3_000]),
        backoff_initial_ms=50,
        backoff_max_ms=2_000,
        remote_error_after_ms=rng.choice([2_000, 5_000, 60_000]),
        unasked_read_max_ms=rng.choice([100, 5_000]),
        corrupt_retry_ms=1_000,
    )
    store = StoreConfig(
        connections_max=reading.fetcher_tasks_max, timeout_ms=2 * rng.choice([1_000, 5_000])
    )
    archive, writing = section_and_limits(
        ArchiveConfig,
        WritingLimits,
        topics=rng.choice([None, "weather|harvest"]),
        segment_bytes_max=rng.choice([1, 8, 64]) * KiB,
        segment_age_max_ms=rng.choice([500, 3_000]),
        rlm_process_interval_ms=rng.choice([100, 1_000]),
        rlm_retry_interval_ms=500,
        copy_max_ms=5_000,
        fetch_bytes_max=rng.choice([1, 64]) * KiB,
        spool_dir=folder,
    )
    config = Config(
        cluster=ClusterConfig(bootstrap=cluster.bootstrap, request_max_ms=5_000),
        gateway=gateway,
        remote_fetch=remote_fetch,
        store=store,
        archive=archive,
    )
    return config, Limits(serving=serving, reading=reading, writing=writing)
