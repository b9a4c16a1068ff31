"""What the jobs' commands share: the Spark session, progress, and how a job ends.

PySpark is imported only once a job runs, so the rest of the command line needs it not.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, TypeVar

import structlog
import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from fetchproxy.cli import options
from fetchproxy.cli.running import EXIT_INTERRUPTED, EXIT_USER_ERROR, run, users_errors
from fetchproxy.config.schema import Config
from fetchproxy.config.values import mask_text
from fetchproxy.errors import ConfigError, FetchProxyError, StorageUnavailable
from fetchproxy.jobs.runner import Failure, OnProgress
from fetchproxy.jobs.runner import Progress as Done
from fetchproxy.observability.logs import configure_logging
from fetchproxy.remotelog.session import open_session, require_spark
from fetchproxy.storage.remote_storage_manager import open_store

log = structlog.get_logger(__name__)
T = TypeVar("T")
Words = Callable[[str], str]

_LOG_EVERY_S = 10.0  # where no terminal shows a bar
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Master = Annotated[
    str | None,
    typer.Option(
        envvar="FETCHPROXY_SPARK_MASTER",
        metavar="URL",
        help="Spark's master; without it this process is Spark, with all cores. Under "
        "spark-submit: what that was given.",
    ),
]
SparkSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        envvar="FETCHPROXY_SPARK_CONF",
        metavar="KEY=VALUE",
        help="A setting of Spark's; may be repeated.",
    ),
]


def read_job(context: typer.Context) -> Config:
    """The configuration of a job that is about to run; exit code 2 where something is missing, or
    the command line is wrong."""
    with users_errors():
        require_spark()
        config = options.read_config(context)
        options.store_url(config)
        configure_logging(config.log, sys.stderr)
        spark_settings(context.params.get("spark_settings"))
        return config


def ask_store(config: Config, topics: Iterable[str | None] = ()) -> None:
    """Before Spark is started, which takes seconds. Exit code 2 where the store does not answer, or
    the archive has nothing of one of `topics` (None: of all, whatever there is)."""
    if run(_look(config, [topic for topic in topics if topic is not None])) is None:
        raise typer.Exit(EXIT_INTERRUPTED)


async def _look(config: Config, topics: Iterable[str]) -> bool:
    """Raises RemoteStorageError, ConfigError."""
    max_s = config.metadata.metadata_read_max_ms / 1000
    async with open_store(options.store_url(config), config.store) as rsm:
        try:
            async with asyncio.timeout(max_s):
                there = {name for name, _ in await rsm.list_topics()}
        except TimeoutError:
            raise StorageUnavailable(f"the store has not answered within {max_s:g} s") from None
    for topic in topics:
        if topic not in there:
            raise options.nothing_there(config, topic)
    return True


def run_job(
    name: str,
    master: str | None,
    settings: Iterable[str] | None,
    job: Callable[[Any, OnProgress], T],
    unit: Callable[[float], str] = lambda size: decimal(int(size)),
    words: Words = str,
) -> T:
    """What `job(spark, on_progress)` returns; SIGINT and SIGTERM end it with exit code 130.

    `words`: of an error that the user can mend, as this command has them.
    """
    with users_errors(), _said_as(words):
        spark = open_session(name, master, spark_settings(settings))
        spark.sparkContext.setLogLevel("ERROR")
        with _terminated_as_interrupted(), _shown(name, unit) as on_progress:
            try:
                return job(spark, on_progress)
            except KeyboardInterrupt:
                spark.sparkContext.cancelAllJobs()
                raise typer.Exit(EXIT_INTERRUPTED) from None


@contextmanager
def _said_as(words: Words) -> Iterator[None]:
    try:
        yield
    except FetchProxyError as error:
        raise type(error)(words(str(error))) from error


def say_failures(failures: Iterable[Failure], words: Words = str) -> None:
    """One line each; exit code 2 where there are any: something else has to change first."""
    failed = False
    for failure in failures:
        failed = True
        typer.echo(f"failed: {mask_text(words(str(failure)))}", err=True)
    if failed:
        raise typer.Exit(EXIT_USER_ERROR)


def count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def spark_settings(texts: Iterable[str] | None) -> dict[str, str]:
    """Raises ConfigError."""
    found: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--conf {text!r}: expected KEY=VALUE")
        found[key] = value
    return found


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {
        number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _shown(name: str, unit: Callable[[float], str]) -> Iterator[OnProgress]:
    """A bar on a terminal, else a line in the log now and then; both with the rate."""
    began_at = time.perf_counter()
    console = Console(stderr=True)
    logged_at, logged = began_at, -1
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[size]}"),
        console=console,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),
    )
    task = bar.add_task(name, total=None, size="")

    def show(done: Done) -> None:
        nonlocal logged_at, logged
        now = time.perf_counter()
        rate = f"{unit(done.size_done)}, {unit(done.size_done / max(now - began_at, 1e-3))}/s"
        bar.update(task, completed=done.items_done, total=done.items, size=rate)
        if console.is_terminal or done.items_done == logged:
            return
        if now - logged_at >= _LOG_EVERY_S or done.items_done == done.items:
            logged_at, logged = now, done.items_done
            log.info("job_progress", part=name, done=logged, total=done.items, size=rate)

    with bar:
        yield show
