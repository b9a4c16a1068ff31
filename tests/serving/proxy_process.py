"""`fetchproxy serve` as a user runs it: a process of its own, with its log in a file."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

from lab import limited
from lab.process import ServerProcess, free_port

START_S = 120.0  # slow when other tests run, as the tests have the lowest priority
PROJECT = Path(__file__).parents[2]


class ProxyProcess:
    """A context manager. `settings`: values for `--set section.key=value`, and limits."""

    def __init__(
        self,
        bootstrap: str,
        store: str,
        folder: Path,
        *,
        archive: str | None = None,
        settings: dict[str, object] | None = None,
        port: int = 0,
        config: Path | None = None,
    ) -> None:
        self.port, self.console_port = port or free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        # By the console's port, too: several processes may share the other one.
        self.log = folder / f"fetchproxy-{self.port}-{self.console_port}.log"
        all_settings = settings or {}
        command = [*limited.command(all_settings), "serve", "--bootstrap", bootstrap]
        command += ["--store", store, "--listen", self.bootstrap]
        command += ["--console", f"127.0.0.1:{self.console_port}"]
        if archive is not None:
            command += ["--archive", archive]
        if config is not None:
            command += ["--config", str(config)]
        command += limited.options(all_settings)
        self._process = ServerProcess("fetchproxy", command, self.log, cwd=PROJECT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def start(self) -> None:
        self._process.start()
        self._process.wait_until(self._responses, START_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.running

    def stop(self) -> None:
        self._process.stop()

    def kill(self) -> None:
        self._process.kill()

    def _responses(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.console_port}{path}") as response:
            return response.read().decode()

    def metric(self, name: str, labels: str = "") -> float:
        """The sum of all samples of `name` whose labels contain `labels`."""
        total = 0.0
        for line in self.get("/metrics").splitlines():
            if line.startswith((name + " ", name + "{")) and labels in line:
                total += float(line.rpartition(" ")[2])
        return total

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log's lines of one event, parsed (they are JSON, as the log is not on a terminal)."""
        entries = []
        for line in self.log.read_text().splitlines():
            if line.startswith("{"):
                entry = json.loads(line)
                if entry.get("event") == event:
                    entries.append(entry)
        return entries

    def log_text(self) -> str:
        return self.log.read_text()


def wait_for(what: str, check: Any, timeout_s: float = 60.0) -> None:
    """Poll `check` until it is true; the timeout is generous, since only a hang must fail."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"not in {timeout_s} s: {what}"
        time.sleep(0.05)
