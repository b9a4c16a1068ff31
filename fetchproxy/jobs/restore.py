"""The job `restore`: `fetchproxy restore` with a task for some partitions at a time.

Metadata objects that are lost are derived from their logs; then the metadata topic gets what it
does not know. Partitions whose events lie in the same partition of that topic share a task, so that
each part of it is read once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from fetchproxy.archive import (
    for_executors,
    in_loop,
    stored_archive,
    stored_partitions,
    wall_clock_ms,
)
from fetchproxy.auditing.repair import repair_archive
from fetchproxy.auditing.restore import RestoredPartition, restore_archive
from fetchproxy.auditing.verify import metadata_faults
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import Config
from fetchproxy.jobs.runner import Failure, OnProgress, quiet, spread
from fetchproxy.metadata.metadata_topic import KafkaMetadataLog
from fetchproxy.metadata.topic_based import TopicFollower, metadata_partition
from fetchproxy.model import TopicIdPartition
from fetchproxy.tls.contexts import upstream_context
from fetchproxy.writing.own_archive import state_metadata_topic

Tips = tuple[TopicIdPartition, ...]

RESTORED_SCHEMA = (
    "topic string, partition int, segments int, restored int, unreadable int, not_in_store int, "
    "raised_log_start bigint"
)


@dataclass(frozen=True, slots=True)
class RestoredGroup:
    partitions: tuple[RestoredPartition, ...]
    repairs: tuple[str, ...]
    refusals: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Restored:
    """`frame`: `partitions` as a DataFrame of RESTORED_SCHEMA."""

    partitions: tuple[RestoredPartition, ...]
    repairs: tuple[str, ...]
    refusals: tuple[str, ...]
    frame: Any
    failures: tuple[Failure, ...]


def restore(
    spark: Any,
    config: Config,
    *,
    topic: str | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = quiet,
) -> Restored:
    """Of `topic` (None: of all). Writes only what is missing, so it can be repeated.

    Raises as `verify`, and ClusterError or RemoteStorageError where the metadata topic is away.
    """
    config = for_executors(config)
    tips = in_loop(stored_partitions(config, topic))
    there = in_loop(_metadata_topic(config, create=bool(tips) and not dry_run))
    done = spread(
        spark,
        grouped(tips, config.metadata.topic_partitions),
        partial(restore_group, config, dry_run, there),
        label="restore",
        name=lambda group: ", ".join(map(str, group)),
        size=lambda group: sum(partition.segments for partition in group.partitions),
        on_progress=on_progress,
        log=config.log,
    )
    if topic is None and there and not dry_run and not done.failures:
        in_loop(_state_metadata_topic(config))
    partitions = tuple(sorted((p for g in done.results for p in g.partitions), key=lambda p: p.tip))
    return Restored(
        partitions,
        repairs=tuple(repair for group in done.results for repair in group.repairs),
        refusals=tuple(refusal for group in done.results for refusal in group.refusals),
        frame=spark.createDataFrame([_row(p) for p in partitions], RESTORED_SCHEMA),
        failures=done.failures,
    )


def grouped(tips: Iterable[TopicIdPartition], topic_partitions: int) -> list[Tips]:
    """By the partition of the metadata topic that has their events."""
    groups: dict[int, list[TopicIdPartition]] = {}
    for tip in tips:
        groups.setdefault(metadata_partition(tip, topic_partitions), []).append(tip)
    return [tuple(group) for _, group in sorted(groups.items())]


def restore_group(config: Config, dry_run: bool, topic_is_there: bool, tips: Tips) -> RestoredGroup:
    """Runs on an executor. Raises RemoteStorageError, ClusterError."""

    async def restored() -> RestoredGroup:
        async with AsyncExitStack() as opened:
            archive = await opened.enter_async_context(stored_archive(config))
            repaired = await repair_archive(
                archive.rsm,
                archive.rlmm,
                await metadata_faults(archive.rsm, archive.rlmm, partitions=tips),
                wall_clock_ms=wall_clock_ms,
                dry_run=dry_run,
            )
            follower = None
            if topic_is_there:
                cluster = await opened.enter_async_context(_cluster(config))
                metadata_log = _metadata_log(config, cluster)
                follower = await opened.enter_async_context(
                    TopicFollower(metadata_log, config.metadata)
                )
            done = await restore_archive(
                archive.rlmm,
                follower,
                wall_clock_ms=wall_clock_ms,
                partitions=tips,
                dry_run=dry_run,
            )
        repairs = tuple(map(str, repaired.repairs))
        return RestoredGroup(tuple(done), repairs, tuple(repaired.refusals))

    return asyncio.run(restored())


async def _state_metadata_topic(config: Config) -> None:
    async with stored_archive(config) as archive:
        await state_metadata_topic(archive.rsm, config.metadata.topic_name)


async def _metadata_topic(config: Config, *, create: bool) -> bool:
    """Whether it is there; made here, as executors that do it at once would be in each other's way.

    Raises ConfigError for one with settings that lose events.
    """
    async with _cluster(config) as cluster:
        metadata_log = _metadata_log(config, cluster)
        if create:
            await metadata_log.open()
            return True
        return await metadata_log.exists()


def _cluster(config: Config) -> Cluster:
    return Cluster(config.cluster, tls=upstream_context(config.cluster, config.tls))


def _metadata_log(config: Config, cluster: Cluster) -> KafkaMetadataLog:
    return KafkaMetadataLog(cluster, config.cluster, config.metadata, wall_clock_ms)


def _row(p: RestoredPartition) -> tuple[str, int, int, int, int, int, int | None]:
    place = (p.tip.topic, p.tip.partition)
    return (*place, p.segments, p.restored, p.unreadable, p.not_in_store, p.raised_log_start)
