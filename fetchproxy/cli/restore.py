"""`fetchproxy restore`: the metadata topic, caches and local indexes anew, from the store alone."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from fetchproxy.auditing.restore import RestoredPartition
from fetchproxy.cli import options
from fetchproxy.cli.jobs import ask_store, read_job, run_job, say_failures
from fetchproxy.cli.running import EXIT_FAULTS
from fetchproxy.cli.verify import print_repaired
from fetchproxy.jobs import restore as job


@options.shares("bootstrap", "store", spark=True)
def restore(
    context: typer.Context,
    topic: options.Topic = None,
    dry_run: options.DryRun = False,
) -> None:
    """Rebuild the metadata topic from the store: what it does not know is written to it.

    Metadata objects that are lost or unreadable are derived from their logs first. Can be repeated.
    With --spark, local indexes are left to the archivers, which make them again. Exit code 1 where
    segments are left that nothing could be made of, 2 where a part could not be restored.
    """
    config = read_job(context)
    ask_store(config, [topic])
    done = run_job(
        context,
        config,
        lambda runner: job.restore(
            runner,
            config,
            topic=topic,
            dry_run=dry_run,
            on_result=lambda group: print_repaired(group, dry_run=dry_run),
        ),
        unit=lambda size: f"{size:.0f} segments",
    )
    print_restored(list(done.results), Console(), dry_run=dry_run)
    say_failures(done.failures)
    if any(partition.unreadable or partition.not_in_store for partition in done.results):
        raise typer.Exit(EXIT_FAULTS)


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
