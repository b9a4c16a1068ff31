"""Runs a command on the event loop. Signals end it cleanly; a user's error prints one line.

Exit codes: 0 done (a server also after SIGINT or SIGTERM), 1 the command found faults, 2 something
has to be changed first by the user or in the environment, 130 interrupted before the end. Bugs
keep their traceback.
"""

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import structlog
import typer

from fetchproxy.config.values import harmless, mask_text
from fetchproxy.errors import FetchProxyError, leaves
from fetchproxy.runtime.timed_loop import TimedEventLoop

log = structlog.get_logger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_FAULTS = 1
EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130

T = TypeVar("T")


# Options of the data source that error messages mention.
_OF_SOURCE = re.compile(
    r"\b(failOnDataLoss=false|corruptBatches=skip|startingOffsetsByTimestampStrategy=latest"
    r"|maxUnpackedBytes=[0-9]+)\b"
)
# asyncio's own clock stands still while a machine is suspended. An archiver would then keep using
# its lease and the deadlines of its copies, although other archivers have taken over since.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # CLOCK_BOOTTIME on Linux
_elapsed = partial(time.clock_gettime, _CLOCK)


def safe_one_line(text: str) -> str:
    """The message on one line, harmless to a terminal, with secrets masked and data source options
    in command line form.
    """
    return harmless(mask_text(_OF_SOURCE.sub(r"--option \g<0>", text)))


@contextmanager
def users_errors() -> Iterator[None]:
    """Turns an error that the user can correct into one line on stderr and exit code 2."""
    try:
        yield
    except Exception as error:
        messages = [str(leaf) or type(leaf).__name__ for leaf in leaves(error)]
        if not all(_is_users(leaf) for leaf in leaves(error)):
            raise
        line = " ".join("; ".join(dict.fromkeys(messages)).split())
        typer.echo(f"fetchproxy: {safe_one_line(line)}", err=True)
        raise typer.Exit(EXIT_USER_ERROR) from error


def run(
    work: Coroutine[None, None, T],
    ask: Callable[[], bool] | None = None,
    read_again: Callable[[], None] | None = None,
) -> T | None:
    """The result of `work`. None: a signal cancelled `work`, which has closed its resources.

    `ask`: at a signal, asks `work` to end by itself. If that cannot be (False), or at the next
    signal, `work` is cancelled. `read_again` is called at SIGHUP.
    """

    def new_loop() -> TimedEventLoop:
        return TimedEventLoop(time.perf_counter, time.thread_time, _elapsed)

    with users_errors(), asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(_until_signal(work, ask, read_again))


def run_to_end(work: Coroutine[None, None, T]) -> T:
    """Like `run`, but a signal ends the command with exit code 130."""
    result = run(work)
    if result is None:
        raise typer.Exit(EXIT_INTERRUPTED)
    return result


async def _until_signal(
    work: Coroutine[None, None, T],
    ask: Callable[[], bool] | None,
    read_again: Callable[[], None] | None,
) -> T | None:
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(work)
        task.add_done_callback(lambda _: _forget_signals(loop))

        def stop(number: signal.Signals) -> None:
            log.info("stopping", signal=number.name)
            if ask is not None and ask():
                return
            _forget_signals(loop)  # so the next signal ends the process at once
            task.cancel()

        for number in _SIGNALS:
            loop.add_signal_handler(number, stop, number)
        if read_again is not None:
            loop.add_signal_handler(signal.SIGHUP, read_again)
    return None if task.cancelled() else task.result()


def _forget_signals(loop: asyncio.AbstractEventLoop) -> None:
    for number in _SIGNALS:
        loop.remove_signal_handler(number)
    if loop.remove_signal_handler(signal.SIGHUP):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it asks for no end: while it ends, neither


def _is_users(error: BaseException) -> bool:
    """True: an error of configuration, store, stored data or brokers."""
    return isinstance(error, FetchProxyError)
