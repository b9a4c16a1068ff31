"""The cache builds each entry once, whole or not at all; servers die with whoever started them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lab import cache
from lab.process import ServerProcess, free_port, free_ports

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FETCHPROXY_LAB_CACHE", str(tmp_path))
    return tmp_path


def test_parallel_callers_build_once(empty_cache: Path) -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        time.sleep(0.05)
        (folder / "file").write_text("x")

    callers = [threading.Thread(target=cache.build_once, args=("p", build)) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(built) == 1
    assert (empty_cache / "p" / "file").read_text() == "x"


def test_a_failed_build_leaves_nothing_and_is_tried_again(empty_cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").mkdir()
        (folder / "half").chmod(0o500)
        raise RuntimeError("no network")

    with pytest.raises(RuntimeError, match="no network"):
        cache.build_once("p", fail)
    assert [path.name for path in empty_cache.iterdir()] == [".p.lock"]
    assert cache.build_once("p", lambda folder: None) == empty_cache / "p"


def test_ports_are_not_handed_out_twice() -> None:
    ports = [free_port() for _ in range(50)]
    first = free_ports(5)
    assert len({*ports, *range(first, first + 5)}) == 55


def test_no_port_is_handed_to_two_processes() -> None:
    """None of the ports is ever bound. Two processes choose at once, then two more."""
    take = (
        "from lab.process import free_port, free_ports\n"
        "ports = [free_port() for _ in range(800)]\n"
        "ports += [first + n for first in [free_ports(7) for _ in range(20)] for n in range(7)]\n"
        "print(*ports, flush=True); input()"
    )
    handed_out: list[int] = []
    with contextlib.ExitStack() as ends:
        for _ in range(2):
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            takers = [
                ends.enter_context(subprocess.Popen([sys.executable, "-c", take], **pipes))
                for _ in range(2)
            ]
            for taker in takers:
                assert taker.stdout is not None
                handed_out += map(int, taker.stdout.readline().split())
        assert len(handed_out) == 4 * (800 + 20 * 7)
        assert len(set(handed_out)) == len(handed_out)


def test_a_server_survives_the_thread_that_started_it(tmp_path: Path) -> None:
    server = ServerProcess("sleeper", SLEEPER, tmp_path / "log")
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    time.sleep(0.2)
    assert server.running
    server.pause()
    server.stop(timeout_s=10)
    assert not server.running


@pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")
def test_a_server_dies_with_a_killed_parent(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from lab.process import ServerProcess\n"
        f"s = ServerProcess('sleeper', {SLEEPER!r}, Path({str(tmp_path / 'log')!r}))\n"
        "s.start(); print(s.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 30
    while _is_alive(pid):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"  # a container's first process may be slow to reap
