"""The job `reindex`: `fetchproxy verify --repair` with a task for every partition.

Indexes, transactions, epochs and metadata are made again from the logs alone, where they are
missing or wrong; what is derived from what is `remote_log.verification`'s matter.
"""

from __future__ import annotations

import asyncio
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
from fetchproxy.auditing.faults import Fault, VerifyReport
from fetchproxy.auditing.repair import repair_archive
from fetchproxy.auditing.verify import verify_archive
from fetchproxy.config.schema import Config
from fetchproxy.jobs.runner import Failure, OnProgress, quiet, spread
from fetchproxy.jobs.verify import FAULT_SCHEMA, fault_rows
from fetchproxy.model import TopicIdPartition


@dataclass(frozen=True, slots=True)
class ReindexedPartition:
    """`repairs`: what was made again (would be, in a dry run); `left`: faults that remain."""

    tip: TopicIdPartition
    size_bytes: int
    repairs: tuple[str, ...]
    refusals: tuple[str, ...]
    left: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Reindexed:
    """`faults`: those that are left, as a DataFrame of FAULT_SCHEMA."""

    partitions: tuple[ReindexedPartition, ...]
    faults: Any
    failures: tuple[Failure, ...]


def reindex(
    spark: Any,
    config: Config,
    *,
    topic: str | None = None,
    dry_run: bool = False,
    on_progress: OnProgress = quiet,
) -> Reindexed:
    """In every partition of `topic` (None: of all). Raises as `verify`."""
    tips = in_loop(stored_partitions(config, topic))
    done = spread(
        spark,
        tips,
        partial(reindex_partition, for_executors(config), dry_run),
        label="reindex",
        size=lambda partition: partition.size_bytes,
        on_progress=on_progress,
        log=config.log,
    )
    left = fault_rows(fault for partition in done.results for fault in partition.left)
    return Reindexed(done.results, spark.createDataFrame(left, FAULT_SCHEMA), done.failures)


def reindex_partition(config: Config, dry_run: bool, tip: TopicIdPartition) -> ReindexedPartition:
    """Runs on an executor. What is sound is not written. Raises RemoteStorageError."""

    async def reindexed() -> ReindexedPartition:
        async with stored_archive(config) as archive:
            found = await verify_archive(archive.rsm, archive.rlmm, partitions=[tip])
            if found.clean:
                return ReindexedPartition(tip, found.size_bytes, (), (), ())
            done = await repair_archive(
                archive.rsm,
                archive.rlmm,
                found.faults,
                wall_clock_ms=wall_clock_ms,
                dry_run=dry_run,
            )
        repairs = tuple(map(str, done.repairs))
        after = found if dry_run or not repairs else await _verified(config, tip)
        return ReindexedPartition(
            tip, found.size_bytes, repairs, tuple(done.refusals), after.faults
        )

    return asyncio.run(reindexed())


async def _verified(config: Config, tip: TopicIdPartition) -> VerifyReport:
    """The same checks say whether a repair was one, by whoever has not read it before."""
    async with stored_archive(config) as archive:
        return await verify_archive(archive.rsm, archive.rlmm, partitions=[tip])
