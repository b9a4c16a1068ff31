"""`fetchproxy pipeline archive`: one pass of archiving, by all executors at once."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fetchproxy.cli import options
from fetchproxy.cli.pipeline.spark_run import (
    Master,
    SparkSettings,
    count,
    read_job,
    run_job,
    say_failures,
)
from fetchproxy.cli.running import EXIT_USER_ERROR, users_errors
from fetchproxy.jobs import archive as job

DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        envvar="FETCHPROXY_DRY_RUN",
        help="Show what there is to copy, and copy nothing.",
    ),
]


def archive(
    context: typer.Context,
    bootstrap: options.Bootstrap = None,
    store: options.Store = None,
    archive: options.Archive = None,
    create: options.Create = False,
    dry_run: DryRun = False,
    master: Master = None,
    spark_settings: SparkSettings = None,
    config_file: options.ConfigFile = None,
    assignments: options.Assignments = None,
) -> None:
    """Copy topics to the store up to their last stable offsets of now, then end.

    A running archiver may be at the same topics. A run that was ended goes on where it was. Exit
    code 2 where a partition could not be archived, or a topic must not be.
    """
    config = read_job(context)
    if dry_run:
        with users_errors():
            _print_plan(job.plan_archive(config))
        return
    done = run_job(
        "archive",
        master,
        spark_settings,
        lambda spark, on_progress: job.archive(
            spark, config, create=create, on_progress=on_progress
        ),
    )
    segments = sum(partition.segments for partition in done.partitions)
    size = decimal(sum(partition.size_bytes for partition in done.partitions))
    typer.echo(
        f"{count(len(done.partitions), 'partition')} archived: {count(segments, 'segment')}, {size}"
    )
    for topic, reason in done.plan.refused.items():
        typer.echo(f"not archived: {topic}: {reason}", err=True)
    say_failures(done.failures)
    if done.plan.refused:
        raise typer.Exit(EXIT_USER_ERROR)


def _print_plan(plan: job.ArchivePlan) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("topic-partition", overflow="fold")
    for name in ("archive end", "log start", "last stable", "to copy"):
        table.add_column(name, justify="right")
    for p in plan.partitions:
        end = "" if p.archive_end is None else str(p.archive_end)
        numbers = (p.log_start_offset, p.last_stable_offset, p.offsets)
        table.add_row(str(p.tip), end, *map(str, numbers))
    Console().print(table)
    for topic, reason in plan.refused.items():
        typer.echo(f"refused: {topic}: {reason}")
