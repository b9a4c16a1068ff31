"""`fetchproxy restore`: the metadata topic, caches and local indexes anew, from the store alone."""

from __future__ import annotations

import re
import sys
from contextlib import AsyncExitStack

import typer
from rich.console import Console
from rich.table import Table

from fetchproxy.archive import wall_clock_ms
from fetchproxy.auditing.repair import repair_archive
from fetchproxy.auditing.restore import RestoredPartition, restore_archive
from fetchproxy.auditing.verify import metadata_faults
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cli import options
from fetchproxy.cli.running import EXIT_FAULTS, EXIT_INTERRUPTED, run, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.metadata.metadata_topic import KafkaMetadataLog
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicFollower
from fetchproxy.observability.logs import configure_logging
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager, open_store
from fetchproxy.tls.contexts import upstream_context
from fetchproxy.writing.index_refresh import LocalIndexRefresher, open_local_indexes
from fetchproxy.writing.own_archive import state_metadata_topic


def restore(
    context: typer.Context,
    bootstrap: options.Bootstrap = None,
    store: options.Store = None,
    topic: options.Topic = None,
    dry_run: options.DryRun = False,
    config_file: options.ConfigFile = None,
    assignments: options.Assignments = None,
) -> None:
    """Rebuild the metadata topic from the store: what it does not know is written to it.

    Metadata objects that are lost or unreadable are derived from their logs first. Can be repeated.
    Exit code 1 where segments are left that nothing could be made of.
    """
    with users_errors():
        config = options.read_config(context)
        options.store_url(config)
        configure_logging(config.log, sys.stderr)
    restored = run(_restore(config, topic, dry_run))
    if restored is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    print_restored(restored, Console(), dry_run=dry_run)
    if any(partition.unreadable or partition.not_in_store for partition in restored):
        raise typer.Exit(EXIT_FAULTS)


async def _restore(config: Config, topic: str | None, dry_run: bool) -> list[RestoredPartition]:
    topics = None if topic is None else re.compile(re.escape(topic))
    async with AsyncExitStack() as opened:
        rsm = await opened.enter_async_context(open_store(options.store_url(config), config.store))
        stored = await opened.enter_async_context(
            StoreBackedRemoteLogMetadataManager(rsm, config.metadata)
        )
        await _find_lost_metadata(rsm, stored, topics, dry_run)
        cluster = await opened.enter_async_context(
            Cluster(config.cluster, tls=upstream_context(config.cluster, config.tls))
        )
        metadata_log = KafkaMetadataLog(cluster, config.cluster, config.metadata, wall_clock_ms)
        follower = None
        if not dry_run or await metadata_log.exists():
            follower = await opened.enter_async_context(
                TopicFollower(metadata_log, config.metadata)
            )
        restored = await restore_archive(
            stored, follower, wall_clock_ms=wall_clock_ms, topics=topics, dry_run=dry_run
        )
        if not dry_run:
            if topic is None:
                await state_metadata_topic(rsm, config.metadata.topic_name)
            await _refresh_local_indexes(config, rsm, stored, restored)
        return restored


async def _find_lost_metadata(
    rsm: RemoteStorageManager,
    stored: StoreBackedRemoteLogMetadataManager,
    topics: re.Pattern[str] | None,
    dry_run: bool,
) -> None:
    report = await repair_archive(
        rsm,
        stored,
        await metadata_faults(rsm, stored, topics),
        wall_clock_ms=wall_clock_ms,
        dry_run=dry_run,
        on_repair=lambda repair: typer.echo(
            f"{'would be repaired' if dry_run else 'repaired'}: {repair}"
        ),
    )
    for refusal in report.refusals:
        typer.echo(f"not repaired: {refusal}")


async def _refresh_local_indexes(
    config: Config,
    rsm: RemoteStorageManager,
    stored: StoreBackedRemoteLogMetadataManager,
    restored: list[RestoredPartition],
) -> None:
    async with open_local_indexes(config.archive, rsm) as local_indexes:
        if local_indexes is None:
            return
        refresher = LocalIndexRefresher(local_indexes, rsm)
        for partition in restored:
            view = stored.view(partition.tip)
            while view is not None and await refresher.refresh(partition.tip, view):
                pass


def print_restored(restored: list[RestoredPartition], console: Console, *, dry_run: bool) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("topic-partition", overflow="fold")
    done = "to restore" if dry_run else "restored"
    for name in ("segments", done, "log start", "unreadable", "not in store"):
        table.add_column(name, justify="right")
    for p in restored:
        log_start = "" if p.raised_log_start is None else str(p.raised_log_start)
        counts = [str(n) if n else "" for n in (p.unreadable, p.not_in_store)]
        table.add_row(str(p.tip), str(p.segments), str(p.restored), log_start, *counts)
    console.print(table)
    segments = sum(partition.restored for partition in restored)
    what = "segments that would be restored" if dry_run else "segments restored"
    typer.echo(f"{what}: {segments}; partitions: {len(restored)}")
