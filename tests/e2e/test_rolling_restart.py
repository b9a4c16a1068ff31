"""One process after the other takes the ports, and clients notice nothing: each reads and writes
every record once, in order, and shows no error. So it is with one process and with workers, and so
is a kill: clients connect again.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from archived_topics import SETTINGS
from clients_under_load import FindPart, under_load
from held_reader import collected_here as collected_here
from proxy_process import ProxyProcess, wait_for

from lab.kafka import KafkaServer
from lab.process import free_ports

pytestmark = [
    pytest.mark.kafka,
    # kafka-python leaves its socket to the garbage collector when a connection is refused.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("collected_here"),
]


class Restart(Protocol):
    def __call__(self, end: str, count: int, interval_s: float, workers: int = 1) -> None: ...


class Restarts:
    """Processes that have the same ports, one after the other."""

    def __init__(
        self, bootstrap: str, store: str, folder: Path, archive: str, workers: int
    ) -> None:
        self._port = free_ports(1 + 2)  # the lab's broker has node id 1
        self._workers = workers
        self._start = lambda: ProxyProcess(
            bootstrap,
            store,
            folder,
            archive=archive,
            settings={
                **SETTINGS,
                "gateway.share_ports": True,
                "archive.group_id": f"{archive}-archivers",
                "process.workers": workers,
            },
            port=self._port,
        )
        self.now = self._started()

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    def _started(self) -> ProxyProcess:
        process = self._start()
        process.start()
        wait_for("ready", lambda: is_ready(process, self._workers))
        return process

    def again(self) -> None:
        """As docs/operate/upgrade.md says."""
        before, self.now = self.now, self._started()
        before.stop()
        drained = before.logged("drained")
        assert [entry["connections_cut"] for entry in drained] == [0] * self._workers
        assert not before.logged("session_crashed") + before.logged("part_failed")

    def killed(self) -> None:
        before, self.now = self.now, self._started()
        before.kill()

    def worker_killed(self) -> None:
        """Its parent starts it again. One worker after the other."""
        starts = self.now.logged("worker_started")
        os.kill(starts[-self._workers]["pid"], signal.SIGKILL)
        after = len(starts) + 1
        wait_for("a start", lambda: len(self.now.logged("worker_started")) == after)
        wait_for("all workers", lambda: is_ready(self.now, self._workers))


def is_ready(process: ProxyProcess, workers: int) -> bool:
    """All workers serve."""
    try:
        state = json.loads(process.get("/readyz"))
    except (urllib.error.HTTPError, urllib.error.URLError, ConnectionError):
        return False
    return int(state.get("workers", 1)) == workers


@pytest.fixture
def restart(kafka_server: KafkaServer, tmp_path: Path, find_part: FindPart) -> Restart:
    """`restart("again", 100, 0.8)`: so often, while clients read, and write with this pause (s)."""

    def run(end: str, count: int, interval_s: float, workers: int = 1) -> None:
        topic = f"rolling-{end.replace('_', '-')}-{count}-{workers}"

        @contextmanager
        def served(store: str) -> Iterator[Restarts]:
            processes = Restarts(kafka_server.bootstrap, store, tmp_path, topic, workers)
            try:
                yield processes
            finally:
                processes.now.stop()

        kills = end != "again"
        load = under_load(kafka_server, tmp_path, find_part, topic, served, interval_s, kills)
        with load as processes:
            for _ in range(count):
                getattr(processes, end)()

    return run


def test_a_few_restarts(restart: Restart) -> None:
    restart("again", 3, interval_s=0.02)


@pytest.mark.slow
def test_a_hundred_restarts(restart: Restart) -> None:
    restart("again", 100, interval_s=0.8)


@pytest.mark.slow
def test_thirty_kills(restart: Restart) -> None:
    """No client loses a record, and an idempotent producer writes none twice."""
    restart("killed", 30, interval_s=0.2)


@pytest.mark.slow
def test_a_hundred_restarts_of_two_workers(restart: Restart) -> None:
    restart("again", 100, interval_s=0.8, workers=2)


@pytest.mark.slow
def test_thirty_kills_of_a_worker(restart: Restart) -> None:
    restart("worker_killed", 30, interval_s=0.2, workers=2)
