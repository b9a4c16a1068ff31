"""`fetchproxy verify`: reads the whole archive, names every fault, and mends what can be."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
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

from fetchproxy.archive import metadata_topic_to_verify, wall_clock_ms
from fetchproxy.auditing.faults import Fault, RepairReport, VerifyReport
from fetchproxy.auditing.repair import repair_archive
from fetchproxy.auditing.verify import OnFault, verify_archive
from fetchproxy.cli import options
from fetchproxy.cli.running import EXIT_FAULTS, EXIT_INTERRUPTED, run, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.observability.logs import configure_logging
from fetchproxy.storage.attached_topics import open_archive
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager, open_store
from fetchproxy.writing.archive_health import with_stored
from fetchproxy.writing.concerns import read_concerns

Repair = Annotated[
    bool,
    typer.Option(
        "--repair",
        envvar="FETCHPROXY_REPAIR",
        help="Make index, epochs, transactions and metadata again where the log shows what they "
        "were; then verify again. No log is written and nothing is deleted that was archived.",
    ),
]


AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        envvar="FETCHPROXY_JSON",
        help="The report as one JSON object, for programs; without --repair.",
    ),
]


def verify(
    context: typer.Context,
    bootstrap: options.Bootstrap = None,
    store: options.Store = None,
    topic: options.Topic = None,
    repair: Repair = False,
    dry_run: options.DryRun = False,
    as_json: AsJson = False,
    config_file: options.ConfigFile = None,
    assignments: options.Assignments = None,
) -> None:
    """Check every segment: is it there, checksums, index and metadata against the data.

    Brokers are asked only with metadata.manager=topic: then the topic says what should be there.
    Prints each fault with its place, then what else there is to know: what was lost, is at risk, is
    stopped, or is not deleted.

    Exit codes: 0 no faults, whatever else there is to know; 1 faults (left, with --repair); 2 it
    could not be checked, or there is nothing, and stderr says why; 130 interrupted.
    """
    with users_errors():
        if as_json and repair:
            raise ConfigError("give one of --json and --repair")
        config = options.read_config(context)
        options.store_url(config)
        configure_logging(config.log, sys.stderr)
    report = _verified(config, topic, silent if as_json else print_fault)
    nothing = not (report.partitions or report.faults or report.concerns)
    if as_json:
        typer.echo(json.dumps(report_json(report), indent=1))
    elif not nothing:
        print_summary(report)
    if nothing:
        with users_errors():
            raise options.nothing_there(config, topic)
    if repair:
        report = _repaired(config, topic, report, dry_run)
    if not report.clean:
        raise typer.Exit(EXIT_FAULTS)


def _verified(config: Config, topic: str | None, on_fault: OnFault) -> VerifyReport:
    with _progress_bar() as progress:
        task = progress.add_task("verifying", total=None)
        report = run(
            verified(
                config,
                topic,
                lambda done, total: progress.update(task, completed=done, total=total),
                on_fault,
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
    report = _verified(config, topic, print_fault)
    print_summary(report)
    return report


async def verified(
    config: Config,
    topic: str | None,
    on_progress: Callable[[int, int], None],
    on_fault: OnFault,
) -> VerifyReport:
    async with AsyncExitStack() as opened:
        rsm = await opened.enter_async_context(open_store(options.store_url(config), config.store))
        rlmm = await opened.enter_async_context(
            StoreBackedRemoteLogMetadataManager(rsm, config.metadata)
        )
        said = await rsm.identity.look()
        if said is not None and said.manager not in (None, config.metadata.ruling):
            typer.echo(
                f"fetchproxy: not asked: the {said.manager}, which rules this archive's metadata "
                "(metadata.manager)",
                err=True,
            )
        report = await verify_archive(
            rsm,
            rlmm,
            metadata_topic=await opened.enter_async_context(
                metadata_topic_to_verify(config, rsm, wall_clock_ms)
            ),
            topics=None if topic is None else re.compile(re.escape(topic)),
            on_progress=on_progress,
            on_fault=on_fault,
        )
        return await with_concerns(rsm, report, topic)


async def with_concerns(
    rsm: RemoteStorageManager, report: VerifyReport, topic: str | None
) -> VerifyReport:
    """Adds what archivers keep on record in the store."""
    stored = await read_concerns(rsm.concerns)
    return replace(report, concerns=with_stored(report.concerns, stored, topic))


async def _repair(config: Config, found: VerifyReport, dry_run: bool) -> RepairReport:
    rsm = open_archive(config)  # of the configured manager: here is written
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


def silent(fault: Fault) -> None:
    """The report has it."""


def print_fault(fault: Fault) -> None:
    typer.echo(f"fault: {fault}")


def print_summary(report: VerifyReport) -> None:
    for concern in report.concerns:
        typer.echo(str(concern))
    for what in report.not_known:
        typer.echo(f"not known: {what}")
    unfinished, overlapping = report.segments_unfinished, report.segments_overlapping
    typer.echo(
        f"{_count(report.segments, 'segment')}, {decimal(report.size_bytes)} in "
        f"{_count(report.partitions, 'partition')}"
        f"{f', {unfinished} unfinished' if unfinished else ''}"
        f"{f', {overlapping} copied twice in part' if overlapping else ''}: "
        f"{_verdict(report)}"
    )


def report_json(report: VerifyReport) -> dict[str, object]:
    return {
        "verdict": _verdict(report),
        "partitions": report.partitions,
        "segments": report.segments,
        "segments_unfinished": report.segments_unfinished,
        "segments_overlapping": report.segments_overlapping,
        "size_bytes": report.size_bytes,
        "faults": [asdict(fault) for fault in report.faults],
        "concerns": [concern.as_json() for concern in report.concerns],
        "not_known": [str(what) for what in report.not_known],
    }


def _verdict(report: VerifyReport) -> str:
    if report.faults:
        return _count(len(report.faults), "fault")
    return "clean as far as is known" if report.not_known else "clean"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
