"""A server takes as many open files as it may, whatever its user's shell is set to."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fetchproxy.runtime.loop import raise_open_files_max

ROOT = Path(__file__).parents[2]
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
LOW = 300


Limits = tuple[int, int]


@pytest.mark.parametrize(
    ("hard", "clients"), [(4096, 2048), (40_000, None), (resource.RLIM_INFINITY, None)]
)
def test_the_soft_limit_goes_up_to_the_hard_one(
    hard: int, clients: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Limits] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: taken.append(wanted))
    with capture_logs() as logged:
        assert raise_open_files_max(20_000) == hard
    assert taken == [(hard, hard)]
    assert [each["clients"] for each in logged] == ([] if clients is None else [clients])


def test_a_system_that_refuses_leaves_the_limit_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, wanted: Limits) -> None:
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
