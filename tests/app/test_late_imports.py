"""The event loop of a process loads no HTTP library: that holds it for 0.15 s."""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from proxy_process import PROJECT

from lab.mock_cluster import MockCluster
from lab.process import ServerProcess, free_port

# Python runs it at the start of every process, workers included.
TELLS_LATE_IMPORTS = """
import asyncio, builtins, sys, threading

_import = builtins.__import__

def _watched(name, *rest, **more):
    before = "aiohttp" in sys.modules
    module = _import(name, *rest, **more)
    here = threading.current_thread() is threading.main_thread()
    if here and not before and "aiohttp" in sys.modules and asyncio._get_running_loop():
        print(f"LATE {name}", file=sys.stderr, flush=True)
    return module

builtins.__import__ = _watched
print("WATCHED", file=sys.stderr, flush=True)
"""


class Watched:
    """A command of fetchproxy in front of `cluster`. Its environment differs from that of the
    tests, so it is not forked from a process that has loaded everything.
    """

    def __init__(self, cluster: MockCluster, folder: Path, *words: str) -> None:
        (folder / "sitecustomize.py").write_text(TELLS_LATE_IMPORTS)
        (folder / "store").mkdir()
        self.console_port = free_port()
        command = [sys.executable, "-m", "fetchproxy", *words, "--bootstrap", cluster.bootstrap]
        command += ["--store", (folder / "store").as_uri()]
        command += ["--console", f"127.0.0.1:{self.console_port}"]
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        environment = {"PYTHONPATH": path}
        log = folder / "process.log"
        self._process = ServerProcess("watched", command, log, env=environment, cwd=PROJECT)

    def log_of(self, expected: str) -> str:
        """When its console says `expected` in its metrics."""
        self._process.start()
        try:
            self._process.wait_until(lambda: expected in self._metrics(), 120.0)
        finally:
            self._process.stop()
        return self._process.log.read_text()

    def _metrics(self) -> str:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.console_port}/metrics"
            ) as response:
                text: str = response.read().decode()
        except (urllib.error.URLError, ConnectionError):
            return ""
        return text


@pytest.mark.parametrize(
    ("words", "expected", "processes"),
    [
        (["serve", "--listen", "127.0.0.1:0"], "fetchproxy_", 1),
        (["serve", "--listen", "127.0.0.1:0", "--workers", "2"], 'worker="1"', 3),
        (["archive", "--archive", "none"], "fetchproxy_", 1),
    ],
    ids=["serve", "workers", "archive"],
)
def test_no_http_library_is_loaded_late(
    mock_cluster: MockCluster, tmp_path: Path, words: list[str], expected: str, processes: int
) -> None:
    log = Watched(mock_cluster, tmp_path, *words).log_of(expected)
    assert log.count("WATCHED\n") == processes
    assert "LATE" not in log
