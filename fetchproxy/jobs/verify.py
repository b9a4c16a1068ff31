"""The job `verify`: `fetchproxy verify` with a task for every partition.

What is checked is decided by `remote_log.verification`; here it is spread and put together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fetchproxy.archive import (
    for_executors,
    in_loop,
    metadata_topic_to_verify,
    stored_archive,
    stored_partitions,
    wall_clock_ms,
)
from fetchproxy.auditing.faults import Fault, VerifyReport
from fetchproxy.auditing.verify import verify_archive
from fetchproxy.config.schema import Config
from fetchproxy.jobs.runner import Failure, OnProgress, quiet, spread
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import in_order

FAULT_SCHEMA = (
    "topic string, partition int, object_key string, byte_position bigint, offset bigint, "
    "what string"
)


@dataclass(frozen=True, slots=True)
class Verified:
    """`faults`: a DataFrame of FAULT_SCHEMA; `failures`: partitions of which nothing is known."""

    report: VerifyReport
    faults: Any
    failures: tuple[Failure, ...]


def verify(
    spark: Any, config: Config, *, topic: str | None = None, on_progress: OnProgress = quiet
) -> Verified:
    """Check every segment of `topic` (None: of all): reads the whole archive, writes nothing.

    Raises ConfigError, RemoteStorageError where the archive cannot be listed, PipelineFailed.
    """
    tips = in_loop(_partitions(config, topic))
    done = spread(
        spark,
        tips,
        partial(verify_partition, for_executors(config)),
        label="verify",
        size=lambda report: report.size_bytes,
        on_progress=on_progress,
        log=config.log,
    )
    report = together(done.results)
    return Verified(
        report, spark.createDataFrame(fault_rows(report.faults), FAULT_SCHEMA), done.failures
    )


def verify_partition(config: Config, tip: TopicIdPartition) -> VerifyReport:
    """Runs on an executor: what is in the store against what is on record there, and against the
    metadata topic where there is one.

    Raises RemoteStorageError, ClusterError: then nothing is known of the partition.
    """

    async def verified() -> VerifyReport:
        async with (
            stored_archive(config) as archive,
            metadata_topic_to_verify(config, archive.rsm, wall_clock_ms) as metadata_topic,
        ):
            return await verify_archive(
                archive.rsm, archive.rlmm, partitions=[tip], metadata_topic=metadata_topic
            )

    return asyncio.run(verified())


async def _partitions(config: Config, topic: str | None) -> list[TopicIdPartition]:
    """Also those of which the store has nothing any more, but the metadata topic has."""
    found = set(await stored_partitions(config, topic))
    async with (
        stored_archive(config) as archive,
        metadata_topic_to_verify(for_executors(config), archive.rsm, wall_clock_ms) as in_topic,
    ):
        if in_topic is not None:
            every = await in_topic.list_partitions()
            found.update(tip for tip in every if topic is None or tip.topic == topic)
    return sorted(found)


def together(reports: Iterable[VerifyReport]) -> VerifyReport:
    """One report of several that have no partition in common."""
    every = list(reports)
    return VerifyReport(
        partitions=sum(report.partitions for report in every),
        segments=sum(report.segments for report in every),
        segments_unfinished=sum(report.segments_unfinished for report in every),
        size_bytes=sum(report.size_bytes for report in every),
        gaps=tuple(sorted(gap for report in every for gap in report.gaps)),
        faults=tuple(fault for report in every for fault in report.faults),
        orphans=tuple(sorted(orphan for report in every for orphan in report.orphans)),
        segments_overlapping=sum(report.segments_overlapping for report in every),
        not_known=tuple(sorted(what for report in every for what in report.not_known)),
        concerns=in_order(found for report in every for found in report.concerns),
    )


def fault_rows(
    faults: Iterable[Fault],
) -> list[tuple[str, int, str, int | None, int | None, str]]:
    return [(f.topic, f.partition, f.object_key, f.byte_position, f.offset, f.what) for f in faults]
