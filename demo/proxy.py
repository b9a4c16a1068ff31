"""fetchproxy in the demo: a separate process, started by its command line.

As an operator would, the demo watches it through its console.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.request import urlopen

from demo.archive_store import ArchiveStore
from demo.checks import CheckFailed
from lab import limited
from lab.process import ServerProcess, free_port

# For a demo of a minute: events that take an hour at the defaults must happen within seconds.
_SETTINGS = {
    "archive.segment_bytes_max": 1024 * 1024,  # dozens of segments for 50 MB
    "archive.segment_age_max_ms": 1_000,  # so that the last, unfilled segment is also copied soon
    "limits.writing.rlm_process_interval_ms": 100,
    "limits.writing.rlm_retry_interval_ms": 1_000,
    "limits.console.refresh_interval_ms": 500,  # so that the console's figures follow production
    # Less memory than the archive has bytes, so readers depend on the store, as with years of data.
    "limits.reading.chunk_bytes": 512 * 1024,
    "remote_fetch.chunk_cache_bytes_max": 8 * 1024 * 1024,
    "limits.reading.read_ahead_chunks_max": 2,
    "limits.reading.backoff_max_ms": 1_000,  # limits how long the outage is noticed after its end
}
_FETCHPROXY = [sys.executable, "-m", "fetchproxy"]


class Proxy:
    """`with Proxy(…) as proxy: … proxy.bootstrap`; logs to `folder`/fetchproxy.log."""

    def __init__(self, upstream_bootstrap: str, store: ArchiveStore, folder: Path) -> None:
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.console_url = f"http://127.0.0.1:{free_port()}/"
        self.log = folder / "fetchproxy.log"
        self._store = store
        self.arguments = [
            *("serve", "--bootstrap", upstream_bootstrap, "--store", store.url),
            *("--listen", self.bootstrap, "--archive", r"demo\..*"),
            *("--console", self.console_url.removeprefix("http://").rstrip("/")),
        ]
        whole = {**_SETTINGS, "archive.spool_dir": folder / "spool"}
        command = [*limited.command(whole), *self.arguments, *limited.options(whole)]
        self._process = ServerProcess("fetchproxy", command, self.log, store.environment)

    def status(self) -> Any:
        """The console's /api/status. Raises CheckFailed if the process has ended."""
        try:
            with urlopen(f"{self.console_url}api/status", timeout=10) as response:
                return json.load(response)
        except OSError as error:
            raise CheckFailed("the proxy goes on running", f"its console: {error}") from error

    def partitions(self, topic: str) -> Mapping[int, Any]:
        rows = self.status()["partitions"]
        return {each["partition"]: each for each in rows if each["topic"] == topic}

    def archived_ends(self, topic: str) -> dict[int, int]:
        """By partition: the archive has all offsets from 0 to this one (exclusive)."""
        return {
            partition: each["archived"][0]["last"] + 1 if _starts_at_0(each) else 0
            for partition, each in self.partitions(topic).items()
        }

    def wait_until_archived(self, topic: str, timeout_s: float = 60.0) -> None:
        """Returns when the archive has all of the broker's records. Raises CheckFailed."""
        deadline = time.perf_counter() + timeout_s
        while True:
            lags = [each["lag_offsets"] for each in self.partitions(topic).values()]
            if lags and not any(lag is None or lag > 0 for lag in lags):
                return
            if time.perf_counter() > deadline:
                raise CheckFailed(f"the archiver catches up on {topic}", f"it is {lags} behind")
            time.sleep(0.1)

    def verify(self) -> subprocess.CompletedProcess[str]:
        """Runs `fetchproxy verify`. Its progress bar goes to the terminal, if there is one."""
        return subprocess.run(
            [*_FETCHPROXY, "verify", "--store", self._store.url],
            env=self._process_environment(),
            stdout=subprocess.PIPE,
            stderr=None if sys.stderr.isatty() else subprocess.PIPE,
            text=True,
            check=False,
        )

    def __enter__(self) -> Self:
        try:
            self._process.start()
            self._process.wait_until(self._ready, timeout_s=60.0)
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def _ready(self) -> bool:
        try:
            with urlopen(f"{self.console_url}readyz", timeout=2):
                return True
        except OSError:
            return False

    def _process_environment(self) -> dict[str, str]:
        return {**os.environ, **self._store.environment}


def _starts_at_0(partition: Any) -> bool:
    return bool(partition["archived"]) and partition["archived"][0]["first"] == 0
