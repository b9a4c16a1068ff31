"""Runs a command's job in this process or on Spark, shows progress, and sets the exit code.

PySpark is imported only when a job runs on Spark, so other commands do not need it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import structlog
import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from fetchproxy.archive import stored_archive
from fetchproxy.cli import options
from fetchproxy.cli.running import (
    EXIT_FAULTS,
    EXIT_INTERRUPTED,
    EXIT_USER_ERROR,
    run_to_end,
    safe_one_line,
    users_errors,
)
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError, StorageUnavailable
from fetchproxy.jobs.runner import Here, ItemFailure, OnProgress, OnSpark, Runner
from fetchproxy.jobs.runner import Progress as Done
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.remotelog.session import open_session, require_extra

log = structlog.get_logger(__name__)
T = TypeVar("T")

_LOG_EVERY_S = 10.0  # without a terminal for the progress bar


def read_job(context: typer.Context, *needs: str) -> Config:
    """The configuration of a job before it runs. Exit code 2 if a package is missing or the
    command line is wrong. `needs`: packages of the extra that the job needs in this process.
    """
    with users_errors():
        require_extra(*(("pyspark",) if context.params["spark"] else needs))
        config = options.read_logged(context)
        options.spark_settings(context)
        return config


def check_store(config: Config, topics: Iterable[str | None] = ()) -> None:
    """Checks the store before Spark starts, which takes seconds. Exit code 2 if the store does not
    answer, or if the archive lacks one of `topics`. A topic None is not checked.
    """
    run_to_end(_topics_exist(config, [topic for topic in topics if topic is not None]))


async def _topics_exist(config: Config, topics: Iterable[str]) -> bool:
    """Raises RemoteStorageError, ConfigError."""
    max_s = config.store.metadata_read_max_ms / 1000
    async with stored_archive(config) as archive:
        try:
            async with asyncio.timeout(max_s):
                archived_names = {name for name, _ in await archive.storage.objects.list_topics()}
                if not archived_names.issuperset(
                    topics
                ):  # a topic without records is described at least
                    descriptions = await TopicDescriptions(archive.storage.objects).refresh()
                    archived_names |= {description.topic for description in descriptions.values()}
        except TimeoutError:
            raise StorageUnavailable(f"the store has not responded within {max_s:g} s") from None
    for topic in topics:
        if topic not in archived_names:
            raise options.empty_archive_error(config, topic)
    return True


def in_bytes(size: float) -> str:
    return decimal(int(size))


def run_job(
    context: typer.Context,
    config: Config,
    job: Callable[[Runner], T],
    unit: Callable[[float], str] = in_bytes,
) -> T:
    """The result of `job`. SIGINT and SIGTERM end the command with exit code 130; files that the
    job itself cannot read or write, with exit code 2.
    """
    name, spark = context.command.name or "", None
    with users_errors():
        if context.params["spark"]:
            settings = options.spark_settings(context)
            spark = open_session(name, context.params["master"], settings)
            spark.sparkContext.setLogLevel("ERROR")
        with interruptible(), _progress_of(name, unit) as on_progress:
            try:
                if spark is None:
                    return job(Here(on_progress, config.log))
                return job(OnSpark(spark, on_progress, config.log))
            except OSError as error:  # the job's own output; a task's error is its failure
                raise ConfigError(f"{name}: {error}") from error
            except KeyboardInterrupt:
                if spark is not None:
                    spark.sparkContext.cancelAllJobs()
                raise


def run_over(
    context: typer.Context,
    topic: str | None,
    job: Callable[..., T],
    *needs: str,
    unit: Callable[[float], str] = in_bytes,
) -> T:
    """`read_job`, `check_store`, then `run_job` with `job(runner, config, topic=topic)`."""
    config = read_job(context, *needs)
    check_store(config, [topic])
    return run_job(context, config, lambda runner: job(runner, config, topic=topic), unit)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM both raise KeyboardInterrupt in the body. The exit code is then 130."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt),
    }
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def print_not_encrypted(keys: Iterable[str]) -> None:
    """`keys`: of the `.log` objects."""
    for key in keys:
        typer.echo(f"not encrypted: {safe_one_line(key)}")


def end_job(failures: Sequence[ItemFailure], *, faults: bool = False) -> None:
    """Exit code 2 if there are failures, each printed on a line: something else has to change
    first. Otherwise exit code 1 if the archive has faults.
    """
    for failure in failures:
        typer.echo(f"failed: {safe_one_line(str(failure))}", err=True)
    if failures:
        raise typer.Exit(EXIT_USER_ERROR)
    if faults:
        raise typer.Exit(EXIT_FAULTS)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def _progress_of(name: str, unit: Callable[[float], str]) -> Iterator[OnProgress]:
    """Shows progress with the rate: a bar on a terminal, otherwise a log line every 10 seconds."""
    began_at = time.perf_counter()
    console = Console(stderr=True)
    logged_at = began_at
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[size]}"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),  # otherwise results would go to the bar's stderr
    )
    task = bar.add_task(name, total=None, size="")

    def show(done: Done) -> None:
        nonlocal logged_at
        now = time.perf_counter()
        rate = f"{unit(done.size_done)}, {unit(done.size_done / max(now - began_at, 1e-3))}/s"
        bar.update(task, completed=done.items_done + done.in_progress, total=done.items, size=rate)
        if not console.is_terminal and now - logged_at >= _LOG_EVERY_S:
            logged_at = now
            log.info("job_progress", part=name, done=done.items_done, total=done.items, size=rate)

    with bar:
        yield show
