"""`fetchproxy verify`: reads the whole archive, names every fault, and mends what can be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Annotated, Protocol

import typer
from rich.filesize import decimal

from fetchproxy.auditing.faults import Fault, VerifyReport
from fetchproxy.cli import options
from fetchproxy.cli.jobs import ask_store, count, read_job, run_job, say_failures
from fetchproxy.cli.running import EXIT_FAULTS, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.jobs import verify as job
from fetchproxy.jobs.runner import Failure

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


@options.shares("bootstrap", "store", spark=True)
def verify(
    context: typer.Context,
    topic: options.Topic = None,
    repair: Repair = False,
    dry_run: options.DryRun = False,
    as_json: AsJson = False,
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
    config = read_job(context)
    ask_store(config)
    found = _verified(context, config, topic, silent if as_json else print_fault)
    report = found.report
    nothing = not (report.partitions or report.faults or report.concerns or found.failures)
    if as_json:
        typer.echo(json.dumps(report_json(report, found.failures), indent=1))
    elif not nothing:
        print_summary(report, found.failures)
    if nothing:
        with users_errors():
            raise options.nothing_there(config, topic)
    if repair:
        found = _repaired(context, config, topic, found, dry_run)
    say_failures(found.failures)
    if not found.report.clean:
        raise typer.Exit(EXIT_FAULTS)


def _verified(
    context: typer.Context, config: Config, topic: str | None, on_fault: Callable[[Fault], None]
) -> job.Verified:
    done = run_job(
        context,
        config,
        lambda runner: job.verify(runner, config, topic=topic, on_fault=on_fault),
    )
    if done.not_asked is not None:
        typer.echo(
            f"fetchproxy: not asked: the {done.not_asked}, which rules this archive's metadata "
            "(metadata.manager)",
            err=True,
        )
    return done


def _repaired(
    context: typer.Context,
    config: Config,
    topic: str | None,
    found: job.Verified,
    dry_run: bool,
) -> job.Verified:
    """The report after it: the same checks say whether a repair was one."""
    done, uploads_removed = run_job(
        context,
        config,
        lambda runner: job.repair(
            runner,
            config,
            found.report.faults,
            dry_run=dry_run,
            on_result=lambda repaired: print_repaired(repaired, dry_run=dry_run),
        ),
    )
    if uploads_removed:
        typer.echo(f"removed: {count(uploads_removed, 'unfinished upload')}")
    say_failures(done.failures)
    if dry_run or not any(partition.repairs for partition in done.results):
        return found
    after = _verified(context, config, topic, print_fault)
    print_summary(after.report, after.failures)
    return after


class RepairedPart(Protocol):
    @property
    def repairs(self) -> tuple[str, ...]: ...
    @property
    def refusals(self) -> tuple[str, ...]: ...


def print_repaired(part: RepairedPart, *, dry_run: bool) -> None:
    for repair in part.repairs:
        typer.echo(f"{'would be repaired' if dry_run else 'repaired'}: {repair}")
    for refusal in part.refusals:
        typer.echo(f"not repaired: {refusal}")


def silent(fault: Fault) -> None:
    """The report has it."""


def print_fault(fault: Fault) -> None:
    typer.echo(f"fault: {fault}")


def print_summary(report: VerifyReport, failures: Iterable[Failure] = ()) -> None:
    for concern in report.concerns:
        typer.echo(str(concern))
    for what in report.not_known:
        typer.echo(f"not known: {what}")
    unfinished, overlapping = report.segments_unfinished, report.segments_overlapping
    plain = report.segments_not_encrypted
    typer.echo(
        f"{count(report.segments, 'segment')}, {decimal(report.size_bytes)} in "
        f"{count(report.partitions, 'partition')}"
        f"{f', {unfinished} unfinished' if unfinished else ''}"
        f"{f', {overlapping} copied twice in part' if overlapping else ''}"
        f"{f', {plain} not encrypted' if plain else ''}: "
        f"{_verdict(report, failures)}"
    )


def report_json(report: VerifyReport, failures: Iterable[Failure] = ()) -> dict[str, object]:
    """`failed`: parts of which nothing is known."""
    failed = [asdict(failure) for failure in failures]
    return {
        "verdict": _verdict(report, failed),
        "partitions": report.partitions,
        "segments": report.segments,
        "segments_unfinished": report.segments_unfinished,
        "segments_overlapping": report.segments_overlapping,
        "segments_not_encrypted": report.segments_not_encrypted,
        "size_bytes": report.size_bytes,
        "faults": [asdict(fault) for fault in report.faults],
        "concerns": [concern.as_json() for concern in report.concerns],
        "not_known": [str(what) for what in report.not_known],
        "failed": failed,
    }


def _verdict(report: VerifyReport, failures: Iterable[object]) -> str:
    if report.faults:
        return count(len(report.faults), "fault")
    return "clean as far as is known" if report.not_known or any(failures) else "clean"
