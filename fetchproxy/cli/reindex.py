"""`fetchproxy reindex`: indexes and metadata from the logs alone."""

from __future__ import annotations

import typer

from fetchproxy.cli import options
from fetchproxy.cli.jobs import ask_store, count, read_job, run_job, say_failures
from fetchproxy.cli.running import EXIT_FAULTS
from fetchproxy.cli.verify import print_fault, print_repaired
from fetchproxy.jobs import verify as job


@options.shares("store", spark=True)
def reindex(
    context: typer.Context,
    topic: options.Topic = None,
    dry_run: options.DryRun = False,
) -> None:
    """Make index, epochs, transactions and metadata again where they are missing or wrong.

    No log is written. Exit code 1 where faults are left.
    """
    config = read_job(context)
    ask_store(config, [topic])
    done = run_job(
        context, config, lambda runner: job.reindex(runner, config, topic=topic, dry_run=dry_run)
    )
    repairs = [repair for partition in done.results for repair in partition.repairs]
    for partition in done.results:
        print_repaired(partition, dry_run=dry_run)
    left = [fault for partition in done.results for fault in partition.left]
    for fault in left:
        print_fault(fault)
    typer.echo(
        f"{count(len(done.results), 'partition')}: {count(len(repairs), 'object')} "
        f"{'to be ' if dry_run else ''}repaired, {count(len(left), 'fault')} left"
    )
    say_failures(done.failures)
    if left:
        raise typer.Exit(EXIT_FAULTS)
