"""Starts processes of fetchproxy as forks of one process that has loaded its modules already.

A start of `python -m fetchproxy` takes 0.7 s of a core before its first line of work, and a run of
the tests has about a thousand. `install()` changes `subprocess.Popen` in this process: commands
`python -m fetchproxy …`, `python -m lab.limited …` and `python …_process.py …`, also behind
`die_with_parent.py`, are forked from a helper that this process starts for its first such command.
Everything else, and commands with an environment that changes how Python itself starts, is started
as always.

The fork is a child of this process in every respect: its pid, signals, exit status, standard files,
session and resource usage are its own. For that, this process is the "subreaper" (prctl(2)) for the
moment in which the helper's child, the parent of the fork, ends. `/proc/PID/cmdline` is the
helper's.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn

_LAUNCHER = str(Path(__file__).with_name("die_with_parent.py"))
_PROJECT = Path(__file__).parents[1]
_MODULES: Final = ("fetchproxy", "lab.limited")
_SCRIPT: Final = "_process.py"  # a script whose name ends so does fetchproxy's work
# An environment that differs in these changes how Python or its libraries start.
_AT_START: Final = ("PYTHON", "LD_", "LC_", "LANG", "MALLOC", "GLIBC", "OPENSSL", "SSL_CERT")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_REQUEST_BYTES_MAX = 1_000_000
_STANDARD_FILES = 3


@dataclass(frozen=True, slots=True)
class _Start:
    """`program`, a module or a script, runs with `arguments`.

    `dies_with`: the kernel ends it with this process.
    """

    program: str
    arguments: list[str]
    dies_with: bool

    @classmethod
    def of(cls, command: Sequence[str]) -> _Start | None:
        """None: the command is none of those that can be forked."""
        words = list(command)
        launched = [sys.executable, "-I", "-S", _LAUNCHER, str(os.getpid())]
        dies_with = words[: len(launched)] == launched
        words = words[len(launched) :] if dies_with else words
        if words[:2] == [sys.executable, "-m"] and len(words) > 2 and words[2] in _MODULES:
            return cls(words[2], words[3:], dies_with)
        if words[:1] == [sys.executable] and len(words) > 1 and words[1].endswith(_SCRIPT):
            return cls(words[1], words[2:], dies_with)
        return None


@functools.cache
def install() -> None:
    """From now on, in this process. Does nothing on systems other than Linux."""
    if sys.platform != "linux":
        return
    helper = _Helper()
    start_as_always = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    names = inspect.signature(start_as_always)

    def execute(popen: subprocess.Popen[Any], *arguments: Any, **named: Any) -> None:
        bound = names.bind(popen, *arguments, **named).arguments
        start = _start_of(bound)
        pid = None if start is None else helper.fork(start, bound)
        if pid is None:
            start_as_always(popen, *arguments, **named)
            return
        popen.pid = pid
        popen._child_created = True  # type: ignore[attr-defined]
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        popen._close_pipe_fds(*(bound[end] for end in ends))  # type: ignore[attr-defined]

    subprocess.Popen._execute_child = execute  # type: ignore[attr-defined]


def _start_of(bound: Mapping[str, Any]) -> _Start | None:
    command, env = bound["args"], bound["env"]
    if isinstance(command, (str, bytes, os.PathLike)) or bound["shell"]:
        return None
    unusual = ("executable", "preexec_fn", "pass_fds", "gid", "gids", "uid")
    if any(bound[name] for name in unusual) or bound["umask"] != -1 or bound["process_group"] != -1:
        return None
    start = _Start.of([os.fspath(word) for word in command])
    # A script has been read by nobody yet, so that it may have other folders on its path.
    free = "PYTHONPATH" if start is not None and start.program.endswith(_SCRIPT) else None
    if env is not None and _at_start(env, free) != _at_start(os.environ, free):
        return None
    return start


def _at_start(env: Mapping[str, str], free: str | None) -> dict[str, str]:
    named = {name: value for name, value in env.items() if name.startswith(_AT_START)}
    return {name: value for name, value in named.items() if name != free}


class _Helper:
    """The process that forks, from this process's side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, start: _Start, bound: Mapping[str, Any]) -> int | None:
        """The new process's pid. None: there is no helper."""
        request = {
            "program": start.program,
            "arguments": start.arguments,
            "dies_with": os.getpid() if start.dies_with else None,
            "cwd": os.fspath(bound["cwd"] or os.getcwd()),
            "env": dict(os.environ if bound["env"] is None else bound["env"]),
            "session": bool(bound["start_new_session"]),
        }
        files = [
            file if file != -1 else number
            for number, file in enumerate((bound["p2cread"], bound["c2pwrite"], bound["errwrite"]))
        ]
        with self._lock:
            connection = self._socket or self._started()
            try:
                socket.send_fds(connection, [json.dumps(request).encode()], files)
                return self._taken_over(connection)
            except OSError:
                return None  # the helper has ended

    def _started(self) -> socket.socket:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # It ends when this process has ended and its end of the socket is closed.
        command = [sys.executable, "-m", "lab.forked_start", str(other.fileno())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[other.fileno()],
            cwd=_PROJECT,
        )
        other.close()
        return self._socket

    def _taken_over(self, connection: socket.socket) -> int | None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            connection.send(b"go")
            pid = connection.recv(32)
        finally:
            _prctl(_PR_SET_CHILD_SUBREAPER, 0)
        return int(pid) if pid else None


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def _serve(connection: socket.socket) -> None:
    """In the helper: forks a process for each request, until the other end is closed."""
    _load()
    while True:
        content, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, _STANDARD_FILES)
        if not content or not connection.recv(2):
            return
        of_fork, ready = os.pipe()
        child = os.fork()
        if child == 0:
            _fork(connection, json.loads(content), files, of_fork, ready)
        for file in (*files, ready):
            os.close(file)
        os.waitpid(child, 0)
        pid = os.read(of_fork, 32)  # when the fork's parent is the tests' process
        os.close(of_fork)
        connection.send(pid)


def _load() -> None:
    """All that the commands import before they know what they have to do."""
    from fetchproxy.cli.main import COMMANDS, loaded

    for command in COMMANDS:
        loaded(command)
    threads = os.listdir("/proc/self/task")
    assert len(threads) == 1, "a fork would lack the other threads"
    gc.freeze()


def _fork(
    connection: socket.socket, request: dict[str, Any], files: list[int], of_fork: int, ready: int
) -> NoReturn:
    """In the helper's child: its own child runs the command. This process ends at once."""
    parent = os.getpid()
    if os.fork() != 0:
        os._exit(0)
    try:
        connection.close()
        os.close(of_fork)
        while os.getppid() == parent:
            os.sched_yield()
        os.write(ready, str(os.getpid()).encode())
        os.close(ready)
        _become(request, files)
    except BaseException:  # noqa: BLE001  # a fork must never return
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    os._exit(1)


def _become(request: dict[str, Any], files: list[int]) -> NoReturn:
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        if file >= _STANDARD_FILES:
            os.close(file)
    if request["session"]:
        os.setsid()
    if request["dies_with"] is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != request["dies_with"]:
            sys.exit("the parent died before the command started")
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    from fetchproxy.cli.main import end_process

    try:
        if request["program"].endswith(_SCRIPT):
            _run_script(request["program"], request["arguments"])
        else:
            _run_module(request["program"], request["arguments"])
    except SystemExit as end:
        end_process(end)
    end_process(SystemExit())


def _run_module(module: str, arguments: list[str]) -> None:
    # As `python -m` has it; with PYTHONSAFEPATH, the folder is not on the path.
    sys.path[:1] = [] if sys.flags.safe_path else [os.getcwd()]
    main = import_module("fetchproxy.__main__" if module == "fetchproxy" else module)
    sys.modules["__main__"] = main
    sys.argv = [str(main.__file__), *arguments]
    main.main()


def _run_script(script: str, arguments: list[str]) -> None:
    more = os.environ.get("PYTHONPATH", "")
    sys.path[:1] = [str(Path(script).resolve().parent), *filter(None, more.split(os.pathsep))]
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
