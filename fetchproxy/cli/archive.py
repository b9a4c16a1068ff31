"""`fetchproxy archive`: the archiver without a proxy, or one archiving pass, here or on Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

from fetchproxy.app import load_console, run_archiver
from fetchproxy.cli import options
from fetchproxy.cli.console_client import terminal
from fetchproxy.cli.jobs import count, interruptible, read_job, run_job
from fetchproxy.cli.running import (
    EXIT_USER_ERROR,
    run,
    run_to_end,
    safe_one_line,
    users_errors,
)
from fetchproxy.config.reloading import own_copy
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.jobs import archive as job
from fetchproxy.writing.archive_pass import NotArchived

Once = Annotated[
    bool,
    typer.Option(
        "--once",
        envvar="FETCHPROXY_ONCE",
        help="Copy everything up to the last stable offset, ending with a short segment; then "
        "exit.",
    ),
]


@options.shares("bootstrap", "store", "archive", "console", spark=True)
def archive(
    context: typer.Context,
    once: Once = False,
    dry_run: options.DryRun = False,
    create: options.Create = False,
) -> None:
    """Copy topics to the store, without serving clients. Exits on SIGINT or SIGTERM, and
    reads its settings again on SIGHUP.

    With --once or --spark, the command copies up to the current last stable offsets and then exits.
    An archiver may copy the same topics at the same time. If a run is interrupted, the next run
    continues from there. --dry-run shows what such a run would copy. A partition that fails is
    retried and does not stop the others. At the end, the run lists on stderr the offsets that are
    not archived, with cause and remedy. The exit code is 2 if a partition could not be archived, if
    records were lost before they could be copied (once for each gap), or if a matching topic cannot
    be archived. Records above the last stable offset are also listed, but do not change the exit
    code.
    """
    config = read_job(context)
    with users_errors():
        if config.archive.topics is None:
            raise ConfigError(
                "archive.topics is not set; use --archive REGEX (or FETCHPROXY_ARCHIVE_TOPICS)"
            )
        if context.params["spark"]:
            job.check_source(config)
    if dry_run:
        with users_errors(), interruptible():
            _print_plan(job.plan_archive(config))
    elif context.params["spark"]:
        _archive_on_spark(context, config, create)
    else:
        limits = options.limits(context)
        load_console(config)
        if once:
            _end(*run_to_end(run_archiver(config, once=True, create=create, limits=limits)))
            return
        config = own_copy(config)
        reload_reader = options.reload_reader(context, config)
        work = run_archiver(config, create=create, limits=limits, next_reload=reload_reader.next)
        run(work, read_again=reload_reader.ask)


def _end(
    not_archived: Iterable[NotArchived], refused_topics: Mapping[str, str], failed: bool = False
) -> None:
    """Prints what was not archived. Exit code 2 if something has `failed`, or was refused."""
    for topic, reason in refused_topics.items():
        typer.echo(f"not archived: {topic}: {safe_one_line(reason)}", err=True)
    for gap in not_archived:
        typer.echo(f"not archived: {safe_one_line(str(gap))}", err=True)
        failed = failed or gap.failed
    if failed or refused_topics:
        raise typer.Exit(EXIT_USER_ERROR)


def _archive_on_spark(context: typer.Context, config: Config, create: bool) -> None:
    plan, outcome = run_job(
        context, config, lambda runner: job.archive(runner, config, create=create)
    )
    segments = sum(partition.segments for partition in outcome.results)
    size = decimal(sum(partition.size_bytes for partition in outcome.results))
    typer.echo(
        f"{count(len(outcome.results), 'partition')} archived: {count(segments, 'segment')}, {size}"
    )
    for failure in outcome.failures:
        typer.echo(f"not archived: {safe_one_line(str(failure))}", err=True)
    not_archived = [one for partition in outcome.results for one in partition.not_archived]
    _end(not_archived, plan.refused, failed=bool(outcome.failures))


def _print_plan(plan: job.ArchivePlan) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("topic-partition", overflow="fold")
    for name in ("archive end", "log start", "last stable", "to copy"):
        table.add_column(name, justify="right")
    for p in plan.partitions:
        end = "" if p.archive_end is None else str(p.archive_end)
        numbers = (p.log_start_offset, p.last_stable_offset, p.offsets)
        table.add_row(str(p.tp), end, *map(str, numbers))
    terminal().print(table)
    for topic, reason in plan.refused.items():
        typer.echo(f"refused: {topic}: {safe_one_line(reason)}")
    for failure in plan.failed:
        typer.echo(f"failed: {safe_one_line(str(failure))}", err=True)
    if plan.failed:
        raise typer.Exit(EXIT_USER_ERROR)
