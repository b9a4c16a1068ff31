"""The parent: starts the workers, starts those again that end, and ends them all.

A worker gets its configuration through its standard input, which stays open: its end tells the
worker that the parent is gone, however it has ended. Through its standard output it says where its
console listens, once. Its log goes where the parent's goes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace

import structlog

from fetchproxy.app import Limits
from fetchproxy.config.document import masked_values
from fetchproxy.config.reloading import Reload, take
from fetchproxy.config.schema import Config
from fetchproxy.config.values import parse_host_port
from fetchproxy.errors import ConfigError
from fetchproxy.observability.logs import configure_logging
from fetchproxy.observability.metrics import REGISTRY, WORKER_RESTARTS
from fetchproxy.reloads import NextReload
from fetchproxy.workers.console import WorkersConsole
from fetchproxy.workers.messages import as_message
from fetchproxy.workers.shares import ARCHIVES, config_of_worker
from fetchproxy.workers.supervision import Supervision

log = structlog.get_logger(__name__)

_COMMAND = (sys.executable, "-m", "fetchproxy.cli.worker")


class Workers:
    """The worker processes: `run` starts and restarts them until `ask`. `create`: see `OwnArchive`.
    Settings that change without a restart are changed in `config`.
    """

    def __init__(
        self, config: Config, *, create: bool, limits: Limits, next_reload: NextReload
    ) -> None:
        self._config, self._create, self._limits = config, create, limits
        self._next_reload = next_reload
        self._last_reload: Reload | None = None
        self._count = config.process.workers
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._consoles: dict[int, str] = {}  # URLs, by number
        self._leaving = asyncio.Event()
        self._unusable = False

    def ask(self) -> bool:
        """Let all workers drain, then end. See `fetchproxy.cli.running.run`."""
        if self._leaving.is_set():
            return False
        self._stop_workers()
        return True

    async def run(self) -> None:
        """Raises ConfigError if the ports are taken, or no worker can start."""
        with _bound_port(self._config) as port:
            async with self._console() as console, asyncio.TaskGroup() as tasks:
                following = tasks.create_task(self._follow_settings(console, port), name="settings")
                async with asyncio.TaskGroup() as workers:
                    for number in range(self._count):
                        workers.create_task(
                            self._keep_running(number, port), name=f"worker-{number}"
                        )
                following.cancel()
        if self._unusable:
            raise ConfigError("a worker could not start: the reason is above")

    def _console(self) -> AbstractAsyncContextManager[WorkersConsole | None]:
        if self._config.console.listen is None:
            return nullcontext()
        return WorkersConsole(
            self._config.console,
            self._consoles,
            REGISTRY,
            self._leaving.is_set,
            lambda: masked_values(self._config),
        )

    async def _follow_settings(self, console: WorkersConsole | None, port: int) -> None:
        """Each worker takes what its parent has taken, and tells of it."""
        while True:
            reload = await self._next_reload()
            if console is not None:
                reload = await console.read_token(reload)
            self._last_reload = reload
            if not reload.fault:
                take(self._config, reload.config)
                configure_logging(self._config.log, sys.stderr)
            for number, process in self._processes.items():
                if process.returncode is None and process.stdin is not None:
                    process.stdin.write(self._reload_message(number, port))

    def _reload_message(self, number: int, port: int) -> bytes:
        """The last reload, for a worker."""
        if self._last_reload is None:
            return b""
        config = config_of_worker(self._last_reload.config, number, port)
        return as_message(replace(self._last_reload, config=config))

    def _stop_workers(self) -> None:
        self._leaving.set()
        for process in self._processes.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)

    async def _keep_running(self, number: int, port: int) -> None:
        """Run a worker, again and again, until all leave."""
        supervision = Supervision()
        clock = asyncio.get_running_loop().time
        while not self._leaving.is_set():
            supervision.started(clock())
            exit_code = await self._run_one(number, port, supervision)
            if self._leaving.is_set():
                return
            pause_s = supervision.pause_after(exit_code, clock())
            if pause_s is None:
                self._unusable = True
                self._stop_workers()
                return
            WORKER_RESTARTS.inc()
            log.error(
                "worker_ended",
                worker=number,
                exit_code=exit_code,
                starts_again_in_s=pause_s,
                hint="if it happens again, look for the reason in the worker's log lines above",
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._leaving.wait()

    def _start_message(self, number: int, port: int) -> bytes:
        """With the settings in force, and what is to be told of those that are not."""
        config = config_of_worker(self._config, number, port)
        creates = self._create and number == ARCHIVES
        return as_message((number, config, creates, self._limits)) + self._reload_message(
            number, port
        )

    async def _run_one(self, number: int, port: int, supervision: Supervision) -> int:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C is for the parent, which passes it on
        )
        assert process.stdin is not None
        assert process.stdout is not None
        self._processes[number] = process
        log.info("worker_started", worker=number, pid=process.pid)
        if self._leaving.is_set():
            process.send_signal(signal.SIGTERM)
        try:
            with suppress(ConnectionError):  # it has ended already
                process.stdin.write(self._start_message(number, port))
                await process.stdin.drain()
            if line := (await process.stdout.readline()).decode().strip():
                supervision.serves()
                if line.startswith("http"):
                    self._consoles[number] = line
            return await process.wait()
        finally:
            self._consoles.pop(number, None)
            if process.returncode is None:  # the parent was cancelled: it ends at once
                process.kill()
                await process.wait()


@contextmanager
def _bound_port(config: Config) -> Iterator[int]:
    """The port of `gateway.listen`, which stays bound, so that no other program takes it while a
    worker is started again. Raises ConfigError if another program has it.
    """
    address = parse_host_port(config.gateway.listen)
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        if not config.gateway.share_ports:
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address.host, address.port))
        with socket.socket(family) as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            holder.bind((address.host, address.port))
            yield holder.getsockname()[1]
    except OSError as error:
        raise ConfigError(
            f"gateway.listen = {address}: cannot listen there: {error.strerror}"
        ) from error
