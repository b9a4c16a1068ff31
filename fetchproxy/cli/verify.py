"""`fetchproxy verify`, `reindex`, `restore`, `merge`: find and repair faults of the archive.

`verify --repair` and `reindex` rebuild index, epochs, transactions and metadata of segments from
their logs. `restore` rebuilds the metadata topic, caches and local indexes from the store. `merge`
makes large segments from small ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated

import typer
from rich.filesize import decimal
from rich.table import Table

from fetchproxy.auditing.reports import RepairReport, VerifyReport, fault_fields
from fetchproxy.auditing.restore import RestoredPartition
from fetchproxy.cli import options
from fetchproxy.cli.console_client import terminal
from fetchproxy.cli.jobs import (
    check_store,
    count,
    end_job,
    print_not_encrypted,
    read_job,
    run_job,
    run_over,
)
from fetchproxy.cli.running import safe_one_line, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.jobs import merge as merge_job
from fetchproxy.jobs import restore as restore_job
from fetchproxy.jobs import verify as job
from fetchproxy.jobs.runner import ItemFailure
from fetchproxy.observability.health import Condition
from fetchproxy.writing.merging import MERGED_BYTES_MAX

Repair = Annotated[
    bool,
    typer.Option(
        "--repair",
        envvar="FETCHPROXY_REPAIR",
        help="Rebuild faulty indexes, epochs, transactions and metadata from the log if "
        "possible; then verify again. No log is changed and no archived record is deleted.",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        envvar="FETCHPROXY_JSON",
        help="Print the report as one JSON object, for programs; not with --repair.",
    ),
]
BytesMax = Annotated[
    int,
    typer.Option(
        envvar="FETCHPROXY_MERGE_BYTES_MAX",
        min=1024,
        help="Maximum bytes of a merged segment. Segments of at most half that size are merged. "
        "Each task needs that much space in archive.spool_dir.",
    ),
]
EncryptPlain = Annotated[
    bool,
    typer.Option(
        "--encrypt-plain",
        help="Also merge and encrypt segments that are not encrypted. Compare them with their "
        "source first.",
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
    """Check that every segment is present, and that its checksums, index and metadata are right.

    The command reads from brokers only with metadata.manager=topic: the metadata topic then says
    which segments should be present. It prints each fault with its place, then notes: offsets that
    are lost or at risk, partitions that are stopped, and segments that are not deleted.

    Exit codes: 0 no faults, even if there are notes; 1 faults (with --repair: faults that remain);
    2 it could not be checked, or the archive is empty, with the reason on stderr; 130 interrupted.
    """
    with users_errors():
        if as_json and repair:
            raise ConfigError("use either --json or --repair")
    config = read_job(context)
    check_store(config)
    result = _run_verify(context, config, topic, (lambda _: None) if as_json else print_fault)
    report = result.report
    nothing = not (
        report.partitions or report.faults or report.published_conditions or result.failures
    )
    if as_json:
        typer.echo(json.dumps(report_json(report, result.failures), indent=1))
    elif not nothing:
        print_summary(report, result.failures)
    if nothing:
        with users_errors():
            raise options.empty_archive_error(config, topic)
    if repair:
        result = _run_repair(context, config, topic, result, dry_run)
    end_job(result.failures, faults=not result.report.clean)


def _run_verify(
    context: typer.Context, config: Config, topic: str | None, on_fault: Callable[[Condition], None]
) -> job.Verified:
    outcome = run_job(
        context,
        config,
        lambda runner: job.verify(runner, config, topic=topic, on_fault=on_fault),
    )
    if outcome.other_manager is not None:
        typer.echo(
            f"fetchproxy: not checked: the {outcome.other_manager}, which keeps this archive's "
            "metadata (metadata.manager)",
            err=True,
        )
    return outcome


def _run_repair(
    context: typer.Context,
    config: Config,
    topic: str | None,
    result: job.Verified,
    dry_run: bool,
) -> job.Verified:
    """The report after the repair, from the same checks, which show whether the repair worked."""
    outcome, uploads_removed = run_job(
        context,
        config,
        lambda runner: job.repair(
            runner,
            config,
            result.report.faults,
            dry_run=dry_run,
            on_result=lambda repaired: print_repaired(repaired, dry_run),
        ),
    )
    if uploads_removed:
        typer.echo(f"removed: {count(uploads_removed, 'unfinished upload')}")
    end_job(outcome.failures)
    if dry_run or not any(partition.repairs for partition in outcome.results):
        return result
    after = _run_verify(context, config, topic, print_fault)
    print_summary(after.report, after.failures)
    return after


def print_repaired(report: RepairReport, dry_run: bool) -> None:
    for repair in report.repairs:
        typer.echo(
            f"{'would be repaired' if dry_run else 'repaired'}: {safe_one_line(str(repair))}"
        )
    for refusal in report.refusals:
        typer.echo(f"not repaired: {safe_one_line(str(refusal))}")


def print_fault(fault: Condition) -> None:
    typer.echo(f"fault: {safe_one_line(fault.where_and_what)}")


def print_summary(report: VerifyReport, failures: Iterable[ItemFailure] = ()) -> None:
    for condition in report.published_conditions:
        typer.echo(str(condition))
    for condition in report.not_known:
        typer.echo(f"not known: {safe_one_line(condition.where_and_what)}")
    print_not_encrypted(report.not_encrypted)
    unfinished, overlapping = report.segments_unfinished, report.segments_overlapping
    plain_count = len(report.not_encrypted)
    typer.echo(
        f"{count(report.segments, 'segment')}, {decimal(report.size_bytes)} in "
        f"{count(report.partitions, 'partition')}"
        f"{f', {unfinished} unfinished' if unfinished else ''}"
        f"{f', {overlapping} copied twice in part' if overlapping else ''}"
        f"{f', {plain_count} not encrypted' if plain_count else ''}: "
        f"{_conclusion(report, failures)}"
    )


def report_json(report: VerifyReport, failures: Iterable[ItemFailure] = ()) -> dict[str, object]:
    """In the result, `failed` lists the parts that could not be checked."""
    failed = [{"what": f.name, "error": f.error, "retriable": f.retriable} for f in failures]
    return {
        "verdict": _conclusion(report, failed),
        "partitions": report.partitions,
        "segments": report.segments,
        "segments_unfinished": report.segments_unfinished,
        "segments_overlapping": report.segments_overlapping,
        "segments_not_encrypted": len(report.not_encrypted),
        "not_encrypted": report.not_encrypted,
        "size_bytes": report.size_bytes,
        "faults": [fault_fields(fault) for fault in report.faults],
        "concerns": [condition.as_json() for condition in report.published_conditions],
        "not_known": [condition.where_and_what for condition in report.not_known],
        "failed": failed,
    }


def _conclusion(report: VerifyReport, failures: Iterable[object]) -> str:
    if report.faults:
        return count(len(report.faults), "fault")
    return "clean as far as is known" if report.not_known or any(failures) else "clean"


@options.shares("store", spark=True)
def reindex(
    context: typer.Context,
    topic: options.Topic = None,
    dry_run: options.DryRun = False,
) -> None:
    """Rebuild indexes, epochs, transactions and metadata that are missing or wrong.

    No log is changed. Exit code 1 if faults remain.
    """
    outcome = run_over(context, topic, partial(job.reindex, dry_run=dry_run))
    for partition in outcome.results:
        print_repaired(partition.repaired, dry_run)
    repair_count = sum(len(partition.repaired.repairs) for partition in outcome.results)
    remaining_faults = [fault for partition in outcome.results for fault in partition.left]
    for fault in remaining_faults:
        print_fault(fault)
    typer.echo(
        f"{count(len(outcome.results), 'partition')}: {count(repair_count, 'object')} "
        f"{'to be ' if dry_run else ''}repaired, {count(len(remaining_faults), 'fault')} left"
    )
    end_job(outcome.failures, faults=bool(remaining_faults))


@options.shares("bootstrap", "store", spark=True)
def restore(
    context: typer.Context,
    topic: options.Topic = None,
    dry_run: options.DryRun = False,
) -> None:
    """Rebuild the metadata topic: add the metadata that the store has and the topic lacks.

    The command first rebuilds lost or unreadable metadata objects from their logs. You can repeat
    it. With --spark, it leaves local indexes to the archivers, which rebuild them. Exit code 1 if
    some segments could not be restored, 2 if a part failed.
    """
    work = partial(
        restore_job.restore,
        dry_run=dry_run,
        on_result=partial(_print_group, dry_run),
    )
    outcome = run_over(context, topic, work, unit=lambda size: f"{size:.0f} segments")
    _print_restored(outcome.results, dry_run)
    end_job(outcome.failures, faults=any(p.unreadable or p.not_in_store for p in outcome.results))


def _print_group(dry_run: bool, group: restore_job.RestoredGroup) -> None:
    print_repaired(group.repaired, dry_run)
    print_not_encrypted(group.not_encrypted)


def _print_restored(restored: Sequence[RestoredPartition], dry_run: bool) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("topic-partition", overflow="fold")
    verb = "to restore" if dry_run else "restored"
    for name in ("segments", verb, "log start", "unreadable", "not in store"):
        table.add_column(name, justify="right")
    for p in restored:
        log_start = "" if p.raised_log_start is None else str(p.raised_log_start)
        counts = [str(n) if n else "" for n in (p.unreadable, p.not_in_store)]
        table.add_row(str(p.tp), str(p.segments), str(p.restored), log_start, *counts)
    terminal().print(table)
    segments = sum(partition.restored for partition in restored)
    noun = "segments that would be restored" if dry_run else "segments restored"
    typer.echo(f"{noun}: {segments}; partitions: {len(restored)}")


@options.shares("store", "bootstrap", spark=True)
def merge(
    context: typer.Context,
    topic: options.Topic = None,
    bytes_max: BytesMax = MERGED_BYTES_MAX,
    dry_run: options.DryRun = False,
    encrypt_plain: EncryptPlain = False,
) -> None:
    """Merge adjacent small segments. Offsets and batches stay the same; readers notice nothing.

    The archiver or a later run deletes the replaced segments when they are old enough. Exit code 1
    if segments were not merged because they are faulty or not encrypted.
    """
    merging = merge_job.MergeOptions(bytes_max, dry_run, encrypt_plain)
    outcome = run_over(context, topic, partial(merge_job.merge, options=merging))
    merged_count = sum(partition.merged for partition in outcome.results)
    replaced_count = sum(partition.replaced for partition in outcome.results)
    size = decimal(sum(partition.size_bytes for partition in outcome.results))
    refusal_reasons = [reason for partition in outcome.results for reason in partition.refused]
    overtaken = sum(partition.overtaken for partition in outcome.results)
    for reason in refusal_reasons:
        typer.echo(f"not merged: {safe_one_line(str(reason))}")
    typer.echo(
        f"{'to be merged' if dry_run else 'merged'}: {count(replaced_count, 'segment')} into "
        f"{merged_count}, {size}{f'; {overtaken} changed meanwhile' if overtaken else ''}"
    )
    end_job(outcome.failures, faults=bool(refusal_reasons))
