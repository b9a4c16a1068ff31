"""fetchproxy's processes: the archiver beside the cluster, then the commands of the runbook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lab.errors import PartFailed
from lab.process import ServerProcess, free_port

_PROJECT = Path(__file__).parents[1]
_FETCHPROXY = [sys.executable, "-m", "fetchproxy"]
_START_MAX_S = 120.0
_LOOK_INTERVAL_S = 0.1
_LOOK_MAX_S = 5.0


class ShownPoint(NamedTuple):
    """`at`: up to when all records are safe (monotonic, s), as shown at `looked_at`. `records`:
    how many would be lost.
    """

    looked_at: float
    at: float
    records: int


class Archiver:
    """`fetchproxy archive` with a journal. `settings`: for --set."""

    def __init__(
        self, bootstrap: str, store: Path, folder: Path, settings: Mapping[str, object]
    ) -> None:
        self._console = f"http://127.0.0.1:{free_port()}"
        command = [*_FETCHPROXY, "archive", "--bootstrap", bootstrap, "--store", store.as_uri()]
        command += ["--topics", "drill-.*", "--create"]
        command += ["--console", self._console.removeprefix("http://")]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        self._process = ServerProcess("archiver", command, folder / "archiver.log", cwd=_PROJECT)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        self._process.start()
        self._process.wait_until(lambda: self._get("/readyz") is not None, _START_MAX_S)

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._process.stop()

    def recovery_point(self) -> ShownPoint | None:
        """As the console shows it. None: it does not respond, or does not know it yet."""
        looked_at = time.monotonic()
        raw = self._get("/api/status?rows_max=0")
        point = None if raw is None else json.loads(raw)["recovery_point"]
        if point is None or point["age_ms"] is None:
            return None
        return ShownPoint(looked_at, looked_at - point["age_ms"] / 1000, point["records"])

    def metric(self, name: str) -> float:
        """The sum over all series. Raises PartFailed if the archiver does not respond."""
        text = self._get("/metrics")
        if text is None:
            raise PartFailed("the archiver's console does not respond")
        rows = (line.rpartition(" ") for line in text.splitlines())
        return sum(float(value) for key, _, value in rows if key.partition("{")[0] == name)

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(self._console + path, timeout=_LOOK_MAX_S) as response:
                return str(response.read().decode())
        except (OSError, urllib.error.HTTPError):
            return None


class Watch:
    """Looks at the shown recovery point until it is stopped. `last`: the newest one."""

    def __init__(self, archiver: Archiver) -> None:
        self.points: list[ShownPoint] = []
        self._archiver = archiver
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def last_before(self, at: float) -> ShownPoint | None:
        """The newest one that was looked at before (monotonic, s)."""
        return max((one for one in self.points if one.looked_at < at), default=None)

    def _look(self) -> None:
        while not self._stopping.wait(_LOOK_INTERVAL_S):
            point = self._archiver.recovery_point()
            if point is not None:
                self.points.append(point)


class Command(NamedTuple):
    exit_code: int
    seconds: float
    output: str
    errors: str

    def document(self) -> Any:
        """Raises PartFailed if it printed no JSON."""
        try:
            return json.loads(self.output)
        except ValueError:
            raise PartFailed(f"no JSON: {self.output[-500:]}{self.errors[-2000:]}") from None


def run(
    words: Sequence[str], folder: Path, on_line: Callable[[str], None] = lambda line: None
) -> Command:
    """One command of fetchproxy. `on_line`: gets each line of its standard error."""
    began_at = time.monotonic()
    process = subprocess.Popen(
        [*_FETCHPROXY, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_PROJECT), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    output: list[str] = []
    reader = threading.Thread(target=lambda out: output.append(out.read()), args=[process.stdout])
    reader.start()
    errors = []
    for line in process.stderr:
        errors.append(line)
        on_line(line.strip())
    reader.join()
    return Command(process.wait(), time.monotonic() - began_at, output[0], "".join(errors))


@contextmanager
def archive_only(store: Path, folder: Path) -> Iterator[str]:
    """A node without brokers on the archive. Its bootstrap address."""
    port, console = free_port(), f"127.0.0.1:{free_port()}"
    command = [*_FETCHPROXY, "serve", "--archive-only", "--store", store.as_uri()]
    command += ["--listen", f"127.0.0.1:{port}", "--console", console]
    process = ServerProcess("archive-only", command, folder / "archive-only.log", cwd=_PROJECT)

    def is_ready() -> bool:
        try:
            with urllib.request.urlopen(f"http://{console}/readyz", timeout=_LOOK_MAX_S):
                return True
        except OSError:
            return False

    process.start()
    try:
        process.wait_until(is_ready, _START_MAX_S)
        yield f"127.0.0.1:{port}"
    finally:
        process.stop()
