"""`fetchproxy merge`: adjacent small segments into large ones."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer
from rich.filesize import decimal

from fetchproxy.cli import options
from fetchproxy.cli.jobs import count, end_job, run_over
from fetchproxy.jobs import merge as job
from fetchproxy.writing.merging import MERGED_BYTES_MAX

BytesMax = Annotated[
    int,
    typer.Option(
        envvar="FETCHPROXY_MERGE_BYTES_MAX",
        min=1024,
        help="A merged segment has at most so many bytes; small is what has at most half of that. "
        "Each task needs as much room in archive.spool_dir.",
    ),
]


@options.shares("store", "bootstrap", spark=True)
def merge(
    context: typer.Context,
    topic: options.Topic = None,
    bytes_max: BytesMax = MERGED_BYTES_MAX,
    dry_run: options.DryRun = False,
) -> None:
    """Merge adjacent small segments; offsets and batches stay as they are, readers notice nothing.

    Replaced segments are removed by the archiver, or by a later run, once they are old enough. Exit
    code 1 where segments could not be merged because something is wrong with them.
    """
    merging = job.MergeOptions(bytes_max, dry_run)
    done = run_over(context, topic, partial(job.merge, options=merging))
    merged = sum(partition.merged for partition in done.results)
    replaced = sum(partition.replaced for partition in done.results)
    size = decimal(sum(partition.size_bytes for partition in done.results))
    refused = [reason for partition in done.results for reason in partition.refused]
    overtaken = sum(partition.overtaken for partition in done.results)
    for reason in refused:
        typer.echo(f"not merged: {reason}")
    typer.echo(
        f"{'to be merged' if dry_run else 'merged'}: {count(replaced, 'segment')} into {merged}, "
        f"{size}{f'; {overtaken} changed meanwhile' if overtaken else ''}"
    )
    end_job(done.failures, faults=bool(refused))
