"""`fetchproxy pipeline restore`: the metadata topic from the store alone."""

from __future__ import annotations

import typer
from rich.console import Console

from fetchproxy.cli import options
from fetchproxy.cli.pipeline.spark_run import (
    Master,
    SparkSettings,
    ask_store,
    read_job,
    run_job,
    say_failures,
)
from fetchproxy.cli.restore import print_restored
from fetchproxy.cli.running import EXIT_FAULTS
from fetchproxy.jobs import restore as job


def restore(
    context: typer.Context,
    bootstrap: options.Bootstrap = None,
    store: options.Store = None,
    topic: options.Topic = None,
    dry_run: options.DryRun = False,
    master: Master = None,
    spark_settings: SparkSettings = None,
    config_file: options.ConfigFile = None,
    assignments: options.Assignments = None,
) -> None:
    """Rebuild the metadata topic: what it does not know is written to it, from the store.

    Lost metadata are derived from their logs first. Local indexes are an archiver's own: it makes
    them again. Exit code 1 where segments are left that nothing could be made of.
    """
    config = read_job(context)
    ask_store(config, [topic])
    done = run_job(
        "restore",
        master,
        spark_settings,
        lambda spark, on_progress: job.restore(
            spark, config, topic=topic, dry_run=dry_run, on_progress=on_progress
        ),
        unit=lambda size: f"{size:.0f} segments",
    )
    for repair in done.repairs:
        typer.echo(f"{'would be repaired' if dry_run else 'repaired'}: {repair}")
    for refusal in done.refusals:
        typer.echo(f"not repaired: {refusal}")
    print_restored(list(done.partitions), Console(), dry_run=dry_run)
    say_failures(done.failures)
    if any(partition.unreadable or partition.not_in_store for partition in done.partitions):
        raise typer.Exit(EXIT_FAULTS)
