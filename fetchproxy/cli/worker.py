"""A worker of `fetchproxy serve --workers N`; its parent runs `python -m fetchproxy.cli.worker`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import structlog
import typer

from fetchproxy.app import Leaving, Limits, load_console, run_server
from fetchproxy.cli.main import end_process
from fetchproxy.cli.running import run
from fetchproxy.cli.serve import with_clients_that_fit
from fetchproxy.config.reloading import Reload
from fetchproxy.config.schema import Config
from fetchproxy.config.values import HostPort
from fetchproxy.observability.logs import configure_logging
from fetchproxy.workers.messages import read_message, take_messages


def main() -> None:
    number, config, create, limits = read_message(sys.stdin.fileno())
    configure_logging(config.log, sys.stderr)
    structlog.contextvars.bind_contextvars(worker=number)
    config = with_clients_that_fit(config)
    load_console(config)
    leaving = Leaving()
    run(_serve(config, create, limits, leaving), leaving.ask)


class _FromParent(asyncio.Protocol):
    """The parent's messages after the first one. Their end tells that the parent is gone."""

    def __init__(self) -> None:
        self._received = bytearray()
        self.reloads: asyncio.Queue[Reload] = asyncio.Queue()

    def data_received(self, data: bytes) -> None:
        self._received += data
        for reload in take_messages(self._received):
            self.reloads.put_nowait(reload)

    def eof_received(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


async def _serve(config: Config, create: bool, limits: Limits, leaving: Leaving) -> None:
    """Serve until the parent says so, or is gone."""
    connect = asyncio.get_running_loop().connect_read_pipe
    transport, parent = await connect(_FromParent, sys.stdin)
    reload = parent.reloads.get
    try:
        await run_server(
            config,
            create=create,
            limits=limits,
            leaving=leaving,
            next_reload=reload,
            on_ready=_announce_serving,
        )
    finally:
        transport.close()


def _announce_serving(console: HostPort | None) -> None:
    """It serves, and has its console there."""
    typer.echo(f"http://{console}" if console else "no console")


if __name__ == "__main__":
    try:
        main()
    except typer.Exit as end:
        end_process(SystemExit(end.exit_code))
    end_process(SystemExit())
