"""`fetchproxy verify`: reads the whole archive, names every fault, and mends what can be."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fetchproxy.app import wall_clock_ms
from fetchproxy.cli import options
from fetchproxy.cli.running import EXIT_FAULTS, EXIT_INTERRUPTED, run, users_errors
from fetchproxy.config.sections import Config
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.observability.logs import configure_logging
from fetchproxy.remote_log.verification.repair import repair_archive
from fetchproxy.remote_log.verification.verify import verify_archive
from fetchproxy.remote_log.verification.verify_report import Fault, RepairReport, VerifyReport
from fetchproxy.storage.open import open_store

Repair = Annotated[
    bool,
    typer.Option(
        "--repair",
        envvar="FETCHPROXY_REPAIR",
        help="Make index, epochs, transactions and metadata again where the log shows what they "
        "were; then verify again. No log is written and nothing is deleted that was archived.",
    ),
]


def verify(
    context: typer.Context,
    store: options.Store = None,
    topic: options.Topic = None,
    repair: Repair = False,
    dry_run: options.DryRun = False,
    config_file: options.ConfigFile = None,
    assignments: options.Assignments = None,
) -> None:
    """Check every segment: checksums, continuity, index and metadata against the data.

    Prints each fault with its place; exit code 1 if there is any (left, with --repair).
    """
    with users_errors():
        config = options.read_config(context)
        options.store_url(config)
        configure_logging(config.log, sys.stderr)
    report = _verified(config, topic)
    print_summary(report)
    if repair:
        report = _repaired(config, topic, report, dry_run)
    if not report.clean:
        raise typer.Exit(EXIT_FAULTS)


def _verified(config: Config, topic: str | None) -> VerifyReport:
    with _progress_bar() as progress:
        task = progress.add_task("verifying", total=None)
        report = run(
            _verify(
                config,
                topic,
                lambda done, total: progress.update(task, completed=done, total=total),
            )
        )
    if report is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    return report


def _repaired(
    config: Config, topic: str | None, found: VerifyReport, dry_run: bool
) -> VerifyReport:
    """The report after it: the same checks say whether a repair was one."""
    done = run(_repair(config, found, dry_run))
    if done is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    for refusal in done.refusals:
        typer.echo(f"not repaired: {refusal}")
    if dry_run or not done.repairs:
        return found
    report = _verified(config, topic)
    print_summary(report)
    return report


async def _verify(
    config: Config, topic: str | None, on_progress: Callable[[int, int], None]
) -> VerifyReport:
    rsm = open_store(options.store_url(config), config.store)
    async with rsm, StoreBackedRemoteLogMetadataManager(rsm, config.metadata) as rlmm:
        return await verify_archive(
            rsm,
            rlmm,
            topics=None if topic is None else re.compile(re.escape(topic)),
            on_progress=on_progress,
            on_fault=print_fault,
        )


async def _repair(config: Config, found: VerifyReport, dry_run: bool) -> RepairReport:
    rsm = open_store(options.store_url(config), config.store)
    async with rsm, StoreBackedRemoteLogMetadataManager(rsm, config.metadata) as rlmm:
        report = await repair_archive(
            rsm,
            rlmm,
            found.faults,
            wall_clock_ms=wall_clock_ms,
            dry_run=dry_run,
            on_repair=lambda repair: typer.echo(
                f"{'would be repaired' if dry_run else 'repaired'}: {repair}"
            ),
        )
        if not dry_run:
            # As old as an archiver lets them become.
            stale_ms = wall_clock_ms() - 2 * config.archive.copy_max_ms
            aborted = await rsm.abort_stale_uploads(stale_ms)
            if aborted:
                typer.echo(f"removed: {_count(aborted, 'unfinished upload')}")
        return report


def _progress_bar() -> Progress:
    """On stderr, so that stdout has the faults alone; silent where stderr is no terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # else the faults would go to the bar's stderr
    )


def print_fault(fault: Fault) -> None:
    typer.echo(f"fault: {fault}")


def print_summary(report: VerifyReport) -> None:
    for gap in report.gaps:
        typer.echo(
            f"recorded gap: {gap.topic}-{gap.partition}: offsets {gap.first_offset} to "
            f"{gap.last_offset} were lost before they could be copied"
        )
    unfinished, overlapping = report.segments_unfinished, report.segments_overlapping
    typer.echo(
        f"{_count(report.segments, 'segment')}, {decimal(report.size_bytes)} in "
        f"{_count(report.partitions, 'partition')}"
        f"{f', {unfinished} unfinished' if unfinished else ''}"
        f"{f', {overlapping} copied twice in part' if overlapping else ''}: "
        f"{_count(len(report.faults), 'fault') if report.faults else 'clean'}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
