"""`fetchproxy pipeline report`: what the archive holds, as Parquet and as a page with charts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from fetchproxy.cli import options
from fetchproxy.cli.pipeline.spark_run import (
    Master,
    SparkSettings,
    ask_store,
    count,
    read_job,
    run_job,
    say_failures,
)
from fetchproxy.jobs import report as job
from fetchproxy.jobs.runner import OnProgress

Out = Annotated[
    Path,
    typer.Option(
        "--out",
        envvar="FETCHPROXY_REPORT_OUT",
        metavar="FOLDER",
        help="Where report.html goes, and the tables below it.",
    ),
]
Parquet = Annotated[
    str | None,
    typer.Option(
        "--parquet",
        envvar="FETCHPROXY_REPORT_PARQUET",
        metavar="URI",
        help="Where the tables go instead, as Spark names it: a cluster needs a place that all its "
        "executors reach.",
    ),
]


def report(
    context: typer.Context,
    out: Out = Path("archive-report"),
    parquet: Parquet = None,
    store: options.Store = None,
    topic: options.Topic = None,
    master: Master = None,
    spark_settings: SparkSettings = None,
    config_file: options.ConfigFile = None,
    assignments: options.Assignments = None,
) -> None:
    """Bytes, records, segments, age and compression by topic and partition; growth and a forecast.

    Exit code 2 where a partition could not be read; the report has the others.
    """
    config = read_job(context)
    ask_store(config, [topic])

    def work(spark: Any, on_progress: OnProgress) -> job.Reported:
        done = job.report(spark, config, topic=topic, on_progress=on_progress)
        done.write(out, parquet)
        return done

    done = run_job("report", master, spark_settings, work)
    size = sum(one.size_bytes for one, _ in done.figures)
    typer.echo(f"{count(len(done.figures), 'partition')}, {decimal(size)}: {out / 'report.html'}")
    say_failures(done.failures)
