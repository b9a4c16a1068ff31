"""A worker of `fetchproxy serve --workers N`; its parent runs `python -m fetchproxy.cli.worker`."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys

import structlog
import typer

from fetchproxy.app import Leaving, Limits, run_server
from fetchproxy.cli.main import end_process
from fetchproxy.cli.running import run
from fetchproxy.cli.serve import with_clients_that_fit
from fetchproxy.config.schema import Config
from fetchproxy.config.values import HostPort
from fetchproxy.observability.logs import configure_logging


def main() -> None:
    number, config, create, limits = pickle.load(sys.stdin.buffer)
    configure_logging(config.log, sys.stderr)
    structlog.contextvars.bind_contextvars(worker=number)
    config = with_clients_that_fit(config)
    leaving = Leaving()
    run(_serve(config, create, limits, leaving), leaving.ask)


async def _serve(config: Config, create: bool, limits: Limits, leaving: Leaving) -> None:
    """Serve until the parent says so, or is gone."""
    asyncio.get_running_loop().add_reader(sys.stdin, _end_with_parent)
    await run_server(config, create=create, limits=limits, leaving=leaving, on_ready=_say)


def _end_with_parent() -> None:
    if not os.read(sys.stdin.fileno(), 1):
        asyncio.get_running_loop().remove_reader(sys.stdin)
        os.kill(os.getpid(), signal.SIGTERM)


def _say(console: HostPort | None) -> None:
    """It serves, and has its console there."""
    typer.echo(f"http://{console}" if console else "no console")


if __name__ == "__main__":
    try:
        main()
    except typer.Exit as end:
        end_process(SystemExit(end.exit_code))
    end_process(SystemExit())
