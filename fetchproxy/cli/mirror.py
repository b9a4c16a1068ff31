"""`fetchproxy mirror`: copies the archive to another store, or moves it there."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.filesize import decimal

from fetchproxy.auditing.mirroring import MirroredPartition, MirrorOptions
from fetchproxy.cli import options
from fetchproxy.cli.jobs import check_store, count, end_job, read_job, run_job
from fetchproxy.cli.running import EXIT_USER_ERROR, safe_one_line, users_errors
from fetchproxy.cli.verify import print_fault
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.jobs import mirror as job

To = Annotated[
    str | None,
    typer.Option(
        envvar="FETCHPROXY_MIRROR_TO",
        metavar="URL",
        help="URL of the destination: an empty place, or an earlier mirror of this archive.",
    ),
]
CutOver = Annotated[
    bool,
    typer.Option(
        "--cut-over",
        help="Copy the rest, then make --to the archive. Stop the archivers first. After that, "
        "no archiver or proxy starts with --from.",
    ),
]
Move = Annotated[
    bool,
    typer.Option(
        "--move",
        help="Like --cut-over. Another run, archive.retention_grace_ms later, deletes at --from "
        "all objects that --to also has, byte for byte.",
    ),
]
Compare = Annotated[
    bool,
    typer.Option(
        "--compare",
        envvar="FETCHPROXY_MIRROR_COMPARE",
        help="Also compare objects that were copied before, byte by byte.",
    ),
]
WithDamaged = Annotated[
    bool,
    typer.Option(
        "--with-damaged",
        envvar="FETCHPROXY_MIRROR_WITH_DAMAGED",
        help="Also copy damaged segments, as they are. They are still printed as faults.",
    ),
]
BytesPerS = Annotated[
    int,
    typer.Option(
        envvar="FETCHPROXY_MIRROR_BYTES_PER_S",
        min=0,
        help="How many bytes per second may be read from --from (with --spark: by each worker); "
        "0: no limit.",
    ),
]


@options.shares("source", spark=True)
def mirror(
    context: typer.Context,
    to: To = None,
    cut_over: CutOver = False,
    move: Move = False,
    compare: Compare = False,
    with_damaged: WithDamaged = False,
    bytes_per_s: BytesPerS = 0,
) -> None:
    """Copy the archive to another store and check the copy; later runs add what is new.

    Readers and archivers keep using --from. The command checks each segment as `verify` does, and
    reads it back from --to. Damaged segments are printed, not copied.

    Exit codes: 0 everything is copied; 1 the archive has faults; 2 something has to be changed
    first, or a part could not be copied; 130 interrupted.
    """
    config = read_job(context)
    with users_errors():
        if to is None:
            raise ConfigError("give --to URL")
    target_url: str = to
    check_store(config)
    options = MirrorOptions(compare, with_damaged, bytes_per_s)
    outcome = run_job(
        context,
        config,
        lambda runner: job.mirror(
            runner, config, target_url, options, cut_over=cut_over or move, on_result=_print_faults
        ),
    )
    _print_mirrored(outcome)
    if outcome.refused is not None:
        why = safe_one_line(outcome.refused)
        typer.echo(f"fetchproxy: the archive stays at --from: {why}", err=True)
    end_job(outcome.failures, faults=outcome.has_faults)
    if outcome.refused is not None:
        raise typer.Exit(EXIT_USER_ERROR)
    if move:
        _delete(context, config, target_url)


def _print_faults(partition: MirroredPartition) -> None:
    for fault in partition.faults:
        print_fault(fault)


def _print_mirrored(outcome: job.Mirrored) -> None:
    partitions = outcome.partitions
    for partition in partitions:
        if partition.source_lost:
            objects = count(len(partition.source_lost), "object")
            typer.echo(f"kept: {partition.tp}: {objects} that only --to has")
    for tp in outcome.not_at_source:
        typer.echo(f"kept: {tp}: --from no longer has it")
    more = {
        "removed": sum(partition.removed for partition in partitions),
        "deleted meanwhile": sum(partition.overtaken for partition in partitions),
    }
    notes = "".join(f"; {number} {noun}" for noun, number in more.items() if number)
    typer.echo(
        f"{count(sum(p.segments for p in partitions), 'segment')}, "
        f"{decimal(sum(p.size_bytes for p in partitions))} in "
        f"{count(len(partitions), 'partition')}: copied {sum(p.copied for p in partitions)}, "
        f"{decimal(sum(p.bytes_copied for p in partitions))}"
        f"{notes}"
    )
    if outcome.cut_over:
        typer.echo("the archive is now at --to: set store.url to that URL everywhere")


def _delete(context: typer.Context, config: Config, to: str) -> None:
    outcome = run_job(context, config, lambda runner: job.delete_moved(runner, config, to))
    if outcome.wait_ms:
        typer.echo(
            f"readers may still use --from: run this again in {outcome.wait_ms / 1000:.0f} s to "
            "delete its objects"
        )
        return
    for partition in outcome.partitions:
        for fault in partition.faults:
            print_fault(fault)
        for place in partition.remaining:
            typer.echo(f"kept: {partition.tp}: {place}: missing or different at --to")
    deleted_objects = sum(partition.objects for partition in outcome.partitions)
    size = decimal(sum(partition.size_bytes for partition in outcome.partitions))
    typer.echo(f"deleted at --from: {count(deleted_objects, 'object')}, {size}")
    end_job(outcome.failures, faults=not outcome.is_complete)
