"""The jobs over every byte of an archive: `verify`, the repair of its faults, and `reindex`.

`auditing` decides what is checked and how repairs are derived.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

from fetchproxy.archive import (
    StoredArchive,
    for_executors,
    in_loop,
    open_cluster,
    store_url,
    stored_archive,
    stored_partitions,
    wall_clock_ms,
)
from fetchproxy.auditing.repair import repair_archive
from fetchproxy.auditing.reports import RepairReport, VerifyReport, fault_fields
from fetchproxy.auditing.verify import verify_partition
from fetchproxy.config.schema import Config
from fetchproxy.errors import RemoteStorageError
from fetchproxy.jobs.runner import (
    Done,
    ItemFailure,
    Report,
    Runner,
    StoreWork,
    not_done,
    not_listed,
)
from fetchproxy.metadata.metadata_topic import KafkaMetadataLog
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Condition
from fetchproxy.storage.archive_identity import MIRROR
from fetchproxy.storage.listings import Unlisted
from fetchproxy.storage.stores.retries import each_object_alone
from fetchproxy.writing.archive_health import mirror_in_words, with_published_conditions
from fetchproxy.writing.published_conditions import read_published_conditions

FAULT_SCHEMA = (
    "topic string, partition int, object_key string, byte_position bigint, offset bigint, "
    "what string"
)
ToVerify = tuple[StoredArchive, RemoteLogMetadataManager | None]


@dataclass(frozen=True, slots=True)
class Verified:
    """`faults`: a frame of FAULT_SCHEMA. `failures`: partitions and objects that could not be
    checked.
    `other_manager`: the archive's metadata manager if it differs from `metadata.manager`.
    """

    report: VerifyReport
    faults: Any
    failures: tuple[ItemFailure, ...]
    other_manager: str | None


def verify(
    runner: Runner,
    config: Config,
    *,
    topic: str | None = None,
    on_fault: Callable[[Condition], None] = lambda fault: None,
) -> Verified:
    """Check every segment of `topic` (None: of all topics). Reads all data and writes nothing.
    Raises ConfigError, RemoteStorageError if the archive cannot be listed, PipelineFailed.
    """

    def on_result(report: VerifyReport) -> None:
        for fault in report.faults:
            on_fault(fault)

    tps, unlisted = in_loop(_partitions(config, topic))
    outcome = runner.each(tps, verify_work(config), on_result)
    report, other_manager = in_loop(
        _with_published_conditions(config, topic, merged_report(outcome.results))
    )
    faults = runner.frame(fault_rows(report.faults), FAULT_SCHEMA)
    failures = (*not_listed(unlisted), *outcome.failures, *not_done(report.unread))
    return Verified(report, faults, failures, other_manager)


def verify_work(config: Config) -> StoreWork[ToVerify, TopicIdPartition, VerifyReport]:
    """Fails with RemoteStorageError, ClusterError; the partition is then not checked."""
    open_archive = partial(_to_verify, for_executors(config))
    return StoreWork(
        "verify", open_archive, _verify_partition, size=lambda report: report.size_bytes
    )


@asynccontextmanager
async def _to_verify(config: Config) -> AsyncIterator[ToVerify]:
    """Only reads, so it creates no metadata topic. Raises RemoteStorageError, also if there is no
    such topic; ConfigError, ClusterError.
    """
    async with AsyncExitStack() as stack:
        archive = await stack.enter_async_context(stored_archive(config))
        if config.metadata.manager == "store":
            yield archive, None
            return
        cluster = await stack.enter_async_context(open_cluster(config))
        metadata_log = KafkaMetadataLog(cluster, config.cluster, config.metadata, wall_clock_ms)
        if not await metadata_log.exists():
            raise RemoteStorageError(
                f"there is no metadata topic {config.metadata.topic_name}: rebuild it with "
                "`fetchproxy restore`, or verify with metadata.manager=store"
            )
        metadata_topic = TopicBasedRemoteLogMetadataManager(
            *(metadata_log, archive.storage, config.metadata, wall_clock_ms),
            config.store.metadata_read_max_ms,
        )
        yield archive, await stack.enter_async_context(metadata_topic)


async def _verify_partition(
    archive: ToVerify, tp: TopicIdPartition, on_progress: Report
) -> VerifyReport:
    """Checks the store against its records, and against the metadata topic if there is one."""
    (storage, rlmm), metadata_topic = archive
    return await verify_partition(
        storage, rlmm, tp, metadata_topic=metadata_topic, on_progress=on_progress
    )


async def _partitions(config: Config, topic: str | None) -> tuple[list[TopicIdPartition], Unlisted]:
    """As `stored_partitions`, and the partitions in the metadata topic."""
    stored_tps, unlisted = await stored_partitions(config, topic)
    tps = set(stored_tps)
    async with _to_verify(for_executors(config)) as (_, metadata_topic):
        if metadata_topic is not None:
            every = await metadata_topic.list_partitions()
            tps.update(tp for tp in every if topic is None or tp.topic == topic)
    return sorted(tps), unlisted


async def _with_published_conditions(
    config: Config, topic: str | None, report: VerifyReport
) -> tuple[VerifyReport, str | None]:
    """The report with the archivers' published conditions added, and `Verified.other_manager`."""
    async with stored_archive(config) as archive:
        published = await read_published_conditions(archive.storage.objects)
        identity = await archive.storage.identity.look()
    if identity is not None and identity.is_mirror:
        report.published_conditions.append(mirror_in_words(store_url(config)))
    report.published_conditions = list(
        with_published_conditions(report.published_conditions, published.values(), topic)
    )
    other_manager = identity is not None and identity.manager not in (
        None,
        MIRROR,
        config.metadata.recorded_name,
    )
    return report, str(identity.manager) if identity and other_manager else None


def merged_report(reports: Iterable[VerifyReport]) -> VerifyReport:
    """One report from reports of different partitions."""
    whole = VerifyReport()
    for report in reports:
        whole.add(report)
    whole.sort()
    return whole


def fault_rows(faults: Iterable[Condition]) -> list[tuple[str | int | None, ...]]:
    return [tuple(fault_fields(fault).values()) for fault in faults]


def repair(
    runner: Runner,
    config: Config,
    faults: Iterable[Condition],
    *,
    dry_run: bool = False,
    on_result: Callable[[RepairReport], None] = lambda repaired: None,
) -> tuple[Done[RepairReport], int]:
    """Returns the repairs and the number of abandoned uploads that were removed. `faults`: those
    that `verify` has just reported. Raises as `verify`, and ArchiveMismatch.
    """
    partitions = [tuple(group) for _, group in groupby(faults, lambda fault: fault.subject)]
    work = StoreWork(
        "repair",
        partial(stored_archive, for_executors(config), writes=True),
        partial(_repair_partition, dry_run),
        name=lambda pair: pair[0].subject,
    )
    outcome = runner.each(partitions, work, on_result)
    return outcome, 0 if dry_run else in_loop(_uploads_removed(config))


async def _repair_partition(
    dry_run: bool, archive: StoredArchive, faults: tuple[Condition, ...], on_progress: Report
) -> RepairReport:
    storage, rlmm = archive
    with each_object_alone():
        return await repair_archive(
            storage, rlmm, faults, wall_clock_ms=wall_clock_ms, dry_run=dry_run
        )


async def _uploads_removed(config: Config) -> int:
    async with stored_archive(config, writes=True) as archive:
        # The age at which an archiver aborts uploads.
        stale_ms = wall_clock_ms() - 2 * config.archive.copy_max_ms
        return await archive.storage.objects.abort_stale_uploads(stale_ms)


@dataclass(frozen=True, slots=True)
class ReindexedPartition:
    """`left`: faults that remain. `unread`: see `VerifyReport`."""

    tp: TopicIdPartition
    size_bytes: int
    repaired: RepairReport
    left: tuple[Condition, ...]
    unread: tuple[Condition, ...]


def reindex(
    runner: Runner, config: Config, *, topic: str | None = None, dry_run: bool = False
) -> Done[ReindexedPartition]:
    """Verify and repair each partition of `topic` (None: of all topics). The frame has the faults
    that remain (FAULT_SCHEMA). Raises as `verify`.
    """
    tps, unlisted = in_loop(stored_partitions(config, topic))
    outcome = runner.each(tps, reindex_work(config, dry_run))
    remaining_faults = fault_rows(
        fault for partition in outcome.results for fault in partition.left
    )
    unread = not_done(condition for partition in outcome.results for condition in partition.unread)
    frame = runner.frame(remaining_faults, FAULT_SCHEMA)
    failures = (*not_listed(unlisted), *outcome.failures, *unread)
    return replace(outcome, failures=failures, frame=frame)


def reindex_work(
    config: Config, dry_run: bool
) -> StoreWork[StoredArchive, TopicIdPartition, ReindexedPartition]:
    """Writes only faulty objects. Fails with RemoteStorageError."""
    config = for_executors(config)
    work = partial(_reindex_partition, config, dry_run)
    open_archive = partial(stored_archive, config, mends=True)
    return StoreWork("reindex", open_archive, work, size=lambda partition: partition.size_bytes)


async def _reindex_partition(
    config: Config, dry_run: bool, archive: StoredArchive, tp: TopicIdPartition, on_progress: Report
) -> ReindexedPartition:
    storage, rlmm = archive
    report = await verify_partition(storage, rlmm, tp, on_progress=on_progress)
    if report.clean:
        unread = tuple(report.unread)
        return ReindexedPartition(tp, report.size_bytes, RepairReport(), (), unread)
    repaired_partition = await _repair_partition(
        dry_run, archive, tuple(report.faults), on_progress
    )
    after = report
    if repaired_partition.repairs and not dry_run:
        # The same checks, with a new manager that has read nothing yet, show if the repair worked.
        async with stored_archive(config) as anew:
            after = await verify_partition(anew.storage, anew.rlmm, tp)
    faults_left, unread = tuple(after.faults), tuple(after.unread)
    return ReindexedPartition(tp, report.size_bytes, repaired_partition, faults_left, unread)
