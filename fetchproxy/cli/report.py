"""`fetchproxy report`: what the archive holds, as Parquet and as a page with charts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

from fetchproxy.cli import options
from fetchproxy.cli.jobs import count, end_job, run_over
from fetchproxy.config.schema import Config
from fetchproxy.jobs import report as job
from fetchproxy.jobs.runner import Runner

Out = Annotated[
    Path,
    typer.Option(
        envvar="FETCHPROXY_REPORT_OUT",
        metavar="FOLDER",
        help="Where report.html goes, and the tables below it.",
    ),
]
Parquet = Annotated[
    str | None,
    typer.Option(
        envvar="FETCHPROXY_REPORT_PARQUET",
        metavar="URI",
        help="Where the tables go instead: a path or URI. On Spark a URI of its own, of a place "
        "that all executors reach.",
    ),
]


@options.shares("store", spark=True)
def report(
    context: typer.Context,
    out: Out = Path("archive-report"),
    parquet: Parquet = None,
    topic: options.Topic = None,
) -> None:
    """Bytes, records, segments, age and compression by topic and partition; growth and a forecast.

    Exit code 2 where a partition could not be read; the report has the others.
    """

    def work(runner: Runner, config: Config, topic: str | None) -> job.Reported:
        done = job.report(runner, config, topic=topic)
        done.write(out, parquet)
        return done

    done = run_over(context, topic, work, "pyarrow")
    size = sum(one.size_bytes for one in done.figures)
    typer.echo(f"{count(len(done.figures), 'partition')}, {decimal(size)}: {out / 'report.html'}")
    end_job(done.failures)
