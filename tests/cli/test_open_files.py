"""A server takes as many open files as it may, whatever its user's shell is set to."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fetchproxy.runtime.open_files import raise_open_files_max
from lab.process import free_port

ROOT = Path(__file__).parents[2]
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
LOW = 300


Limits = tuple[int, int]


@pytest.mark.parametrize(
    ("hard", "clients"), [(4096, 1664), (41_000, None), (resource.RLIM_INFINITY, None)]
)
def test_the_soft_limit_goes_up_to_the_hard_one(
    hard: int, clients: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Limits] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: taken.append(limits))
    with capture_logs() as logged:
        assert raise_open_files_max(20_000) == hard
    assert taken == [(hard, hard)]
    assert [each["clients"] for each in logged] == ([] if clients is None else [clients])


def test_a_system_that_refuses_leaves_the_limit_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, limits: Limits) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1 << 40))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    with capture_logs() as logged:
        assert raise_open_files_max(20_000) == 256
    assert [each["event"] for each in logged] == ["open_files_max_not_raised"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits are read from /proc")
@pytest.mark.skipif(HARD <= LOW, reason="the hard limit is as low as the one to be raised")
def test_serve_raises_its_limit(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    command = [sys.executable, "-m", "fetchproxy", "serve", "--store", store]
    command += ["--listen", "127.0.0.1:0", "--bootstrap", "127.0.0.1:1"]
    # No `preexec_fn`, which can deadlock where a process has threads.
    few_files = ["sh", "-c", f'ulimit -S -n {LOW}; exec "$@"', "sh"]
    process = subprocess.Popen(
        [*few_files, *command, "--set", "log.format=json"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        events = (json.loads(line)["event"] for line in process.stderr)
        assert "gateway_listening" in events
        lines = Path(f"/proc/{process.pid}/limits").read_text().splitlines()
        (line,) = (each for each in lines if each.startswith("Max open files"))
        assert line.split()[3] == str(HARD)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.skipif(HARD <= LOW, reason="the hard limit is as low as the one to be set")
def test_clients_leave_files_for_all_else(tmp_path: Path) -> None:
    """With as many clients as the system lets connect, the console has a file for its own."""
    console = free_port()
    command = [sys.executable, "-m", "fetchproxy", "serve", "--set", "log.format=json"]
    command += ["--store", (tmp_path / "store").as_uri(), "--bootstrap", "127.0.0.1:1"]
    command += ["--listen", "127.0.0.1:0", "--console", f"127.0.0.1:{console}"]
    few_files = ["sh", "-c", f'ulimit -n {LOW}; exec "$@"', "sh"]
    process = subprocess.Popen([*few_files, *command], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    clients: list[socket.socket] = []
    try:
        assert process.stderr is not None
        lines = (json.loads(line) for line in process.stderr)
        listening = next(line for line in lines if line["event"] == "gateway_listening")
        gateway = listening["host"], listening["port"]
        for _ in range(LOW + 50):
            clients.append(socket.create_connection(gateway))
        with urllib.request.urlopen(f"http://127.0.0.1:{console}/healthz", timeout=60) as response:
            assert response.status == 200
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < LOW
    finally:
        for client in clients:
            client.close()
        process.kill()
        process.communicate()
