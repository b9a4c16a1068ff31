"""A server process of the lab: its start, log file, readiness, stop, kill and freeze.

This module knows nothing about the server, and it never leaves a process behind.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from lab.errors import PartFailed

_LAUNCHER = Path(__file__).with_name("die_with_parent.py")
# The kernel's death signal follows the *thread* that forked. So one thread that lives as long as
# this process starts every child; a short-lived thread of a caller would end its server with it.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lab-spawner")
_running: set[subprocess.Popen[bytes]] = set()
# The ports are below Linux's ephemeral range (32768-60999). So no outgoing connection takes a
# chosen port before the server binds it, or while a server is down between two starts.
_PORTS = range(20_000, 32_000)
_PORTS_TRIED_MAX = 1_000
_handing_out = threading.Lock()
_handed_out: set[int] = set()


def free_port() -> int:
    """A free loopback TCP port, and no process of this user gets it before this one has ended."""
    return free_ports(1)


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports, for servers that use several in a row."""
    with _handing_out:
        for first in random.SystemRandom().sample(_PORTS, _PORTS_TRIED_MAX):
            ports = range(first, first + count)
            if _handed_out.isdisjoint(ports) and _lock(ports):
                if all(_is_free(port) for port in ports):
                    _handed_out.update(ports)
                    return first
                fcntl.lockf(_locks(), fcntl.LOCK_UN, count, first)
    raise PartFailed(f"no {count} free ports in {_PORTS_TRIED_MAX} places tried of {_PORTS}")


@functools.cache
def _locks() -> int:
    """A file in which each process locks one byte for each port that it was handed.

    A port is chosen long before a server binds it, so to see that it is free is not enough. The
    kernel gives such a lock to one process, never to its children, and takes it back at the end of
    the process. The file must be opened only once: closing it anywhere gives all locks back.
    """
    return os.open(Path("/tmp", f"fetchproxy-lab-ports-{os.getuid()}"), os.O_RDWR | os.O_CREAT)


def _lock(ports: range) -> bool:
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, len(ports), ports.start)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Like servers, use SO_REUSEADDR: a port with old connections in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class ServerProcess:
    """One child process. `start()` may be called again after `stop()` or `kill()`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self._env = {**os.environ, **(env or {})}
        self._cwd = cwd
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The server's own pid (for CPU accounting), not a wrapper's."""
        if self._popen is None:
            raise PartFailed(f"{self.name} is not running")
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        if self.running:
            raise PartFailed(f"{self.name} is already running as process {self.pid}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        launch = [sys.executable, "-I", "-S", str(_LAUNCHER), str(os.getpid()), *self.command]
        with open(self.log, "ab") as output:
            self._popen = _spawner.submit(
                subprocess.Popen,
                launch,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._cwd,
                start_new_session=True,
            ).result()
        _running.add(self._popen)

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Polls `ready`. Raises PartFailed with the log's tail on the process's end or timeout."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.running:
                code = self._popen.poll() if self._popen else None
                raise PartFailed(f"{self.name} ended with status {code}\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise PartFailed(f"{self.name} not ready in {timeout_s} s\n{self.log_tail()}")
            time.sleep(0.05)

    def stop(self, timeout_s: float = 15.0) -> None:
        """SIGTERM, then SIGKILL after `timeout_s`. Does nothing if the process is not running."""
        if self._popen is None:
            return
        if self.running:
            self._popen.send_signal(signal.SIGCONT)  # a frozen process cannot act on SIGTERM
            self._popen.terminate()
            try:
                self._popen.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._popen.kill()
        self._reap()

    def kill(self) -> None:
        """SIGKILL: the server cannot clean up."""
        if self._popen is not None:
            self._popen.kill()
            self._reap()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and the server does not answer.

        Returns when every thread has stopped: on a busy machine threads may run on for a while.
        """
        os.kill(self.pid, signal.SIGSTOP)
        while not all(map(_stands_still, Path(f"/proc/{self.pid}/task").glob("*/stat"))):
            time.sleep(0.001)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self, lines: int = 30) -> str:
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _reap(self) -> None:
        assert self._popen is not None
        self._popen.wait()
        _running.discard(self._popen)
        self._popen = None


def port_responses(port: int) -> bool:
    """Whether something on loopback accepts a connection on `port`."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


@atexit.register
def _kill_what_is_left() -> None:
    for popen in list(_running):
        popen.kill()
        popen.wait()


def _stands_still(stat: Path) -> bool:
    """True also for a thread that has ended. `stat`: /proc/PID/task/TID/stat."""
    try:
        state = stat.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "TtZX"


class StartedServer(ABC):
    """A part that a `with` statement starts and stops. A failed start leaves nothing behind."""

    @abstractmethod
    def start(self) -> None:
        """Returns when the server answers. Raises PartMissing and PartFailed."""

    @abstractmethod
    def stop(self) -> None:
        """Must also work if the part was not started."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class OneProcess(StartedServer):
    """A server in one process.

    `kill()` and `start()` are one kind of outage. `pause()` and `resume()` are another: the kernel
    accepts connections and the server does not answer. Each raises PartFailed before the first
    start.
    """

    _process: ServerProcess | None = None

    @property
    def pid(self) -> int:
        return self._server().pid

    @property
    def running(self) -> bool:
        """True also while it is paused."""
        return self._process is not None and self._process.running

    def kill(self) -> None:
        """SIGKILL: connections are refused from now on."""
        self._server().kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and the server does not answer."""
        self._server().pause()

    def resume(self) -> None:
        self._server().resume()

    def _server(self) -> ServerProcess:
        if self._process is None:
            raise PartFailed(f"{type(self).__name__} has not been started")
        return self._process
