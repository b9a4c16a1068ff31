"""`fetchproxy pipeline verify`: every byte of the archive, checked by Spark's executors."""

from __future__ import annotations

import typer

from fetchproxy.auditing.faults import VerifyReport
from fetchproxy.cli import options
from fetchproxy.cli.pipeline.spark_run import (
    Master,
    SparkSettings,
    ask_store,
    read_job,
    run_job,
    say_failures,
)
from fetchproxy.cli.running import EXIT_FAULTS, EXIT_INTERRUPTED, run, users_errors
from fetchproxy.cli.verify import print_fault, print_summary, with_concerns
from fetchproxy.config.schema import Config
from fetchproxy.jobs import verify as job
from fetchproxy.storage.remote_storage_manager import open_store


def verify(
    context: typer.Context,
    bootstrap: options.Bootstrap = None,
    store: options.Store = None,
    topic: options.Topic = None,
    master: Master = None,
    spark_settings: SparkSettings = None,
    config_file: options.ConfigFile = None,
    assignments: options.Assignments = None,
) -> None:
    """Check every segment: checksums, continuity, index and metadata against the data.

    Brokers are asked only with metadata.manager=topic. Prints each fault with its place; exit code
    1 if there is any, 2 where a partition could not be read, or there is nothing.
    """
    config = read_job(context)
    ask_store(config)
    done = run_job(
        "verify",
        master,
        spark_settings,
        lambda spark, on_progress: job.verify(spark, config, topic=topic, on_progress=on_progress),
    )
    if not (done.report.partitions or done.failures):
        with users_errors():
            raise options.nothing_there(config, topic)
    for fault in done.report.faults:
        print_fault(fault)
    report = run(_with_concerns(config, topic, done.report))
    if report is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    print_summary(report)
    say_failures(done.failures)
    if not done.report.clean:
        raise typer.Exit(EXIT_FAULTS)


async def _with_concerns(config: Config, topic: str | None, report: VerifyReport) -> VerifyReport:
    async with open_store(options.store_url(config), config.store) as rsm:
        return await with_concerns(rsm, report, topic)
