"""Jobs as a user runs them, here and on the lab's Spark. Not a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest
from fetchproxy_command import Ended, fetchproxy
from made_batches import CODECS, Record, made_batch
from written_archive import TP, WrittenArchive

from fetchproxy.model import TopicIdPartition
from lab.errors import PartMissing
from lab.parts import PARTS, is_cached
from lab.spark import spark_environment

PROJECT = Path(__file__).parents[2]
# As the default, but for the cores: tests share them with others.
TWO_CORES = ["--master", "local[2,4]", "--conf", "spark.driver.memory=512m"]
TWO_CORES += ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1"]
TWO_CORES += ["--conf", "spark.driver.host=127.0.0.1"]
ENDS_S = 1_500.0  # of a machine that has much else to do


def environment() -> dict[str, str]:
    """Raises PartMissing where setting Spark up would take minutes."""
    if not is_cached(PARTS["spark"]):
        raise PartMissing("spark", "it is not set up", "Run `python -m lab setup spark`.")
    variables = spark_environment()
    path = os.pathsep.join([str(PROJECT), variables.pop("PYTHONPATH")])
    return {**os.environ, **variables, "PYTHONPATH": path, "FETCHPROXY_LOG_LEVEL": "warning"}


@dataclass(frozen=True)
class Runs:
    """Where the work of a command is done."""

    options: tuple[str, ...]

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ended(*arguments, *self.options)

    def running(self, *arguments: str) -> AbstractContextManager[Running]:
        return running(*arguments, *self.options)


HERE = Runs(())
ON_SPARK = Runs(("--spark", *TWO_CORES))
BOTH = [pytest.param(HERE, id="here"), pytest.param(ON_SPARK, id="on Spark")]


def ended(*arguments: str) -> Ended:
    return fetchproxy(*arguments, environment=environment())


class Running:
    """A job in a session of its own. It writes to files: pipes would wait for whoever inherits
    them, and be full for those that nobody reads."""

    def __init__(self, arguments: tuple[str, ...], out: IO[str], err: IO[str]) -> None:
        self._out, self._err = out, err
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fetchproxy", *arguments],
            cwd=PROJECT,
            env=environment(),
            stdout=out,
            stderr=err,
            text=True,
            start_new_session=True,
        )

    def wait_until(self, condition: Callable[[], object]) -> None:
        ends_at = time.monotonic() + ENDS_S
        while not condition():
            assert self._process.poll() is None, f"it has ended: {self.error()}"
            assert time.monotonic() < ends_at, self.error()
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL to driver, JVM and workers."""
        while processes_left := [pid for pid in of_session(self._process.pid) if not is_ended(pid)]:
            for pid in processes_left:
                send(pid, signal.SIGKILL)
            time.sleep(0.02)
        self._process.wait(ENDS_S)

    def interrupt(self, number: signal.Signals) -> None:
        """As an operator does, or whoever stops a service."""
        send(self._process.pid, number)

    def workers(self) -> list[int]:
        """Processes that do the work of tasks."""
        every = of_session(self._process.pid)
        return [pid for pid in every if "pyspark.daemon" in command_of(pid)]

    def kill_workers(self) -> int:
        """SIGKILL to the Python workers alone; how many there were."""
        return sum(send(pid, signal.SIGKILL) for pid in self.workers())

    def ended(self) -> int:
        """Its exit code, once it has one."""
        return self._process.wait(ENDS_S)

    def output(self) -> str:
        self._out.seek(0)
        return self._out.read()

    def error(self) -> str:
        self._err.seek(0)
        return self._err.read()


@contextmanager
def running(*arguments: str) -> Iterator[Running]:
    """Nothing is left of it at the end."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        job = Running(arguments, out, err)
        try:
            yield job
        finally:
            job.kill()


def of_session(session: int) -> list[int]:
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(fields[3]) == session:
            pids.append(int(stat.parent.name))
    return pids


def is_ended(pid: int) -> bool:
    """Also one that nobody has waited for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def small_segments(folder: Path, partitions: int = 2, segments: int = 30) -> WrittenArchive:
    """Of 100 records each, an hour between two records."""
    made = WrittenArchive(folder)
    for partition in range(partitions):
        tp = TopicIdPartition(TP.topic_id, TP.topic, partition)
        for base in range(0, 100 * segments, 100):
            made.add([_batch(at) for at in range(base, base + 100, 10)], tp=tp)
    return made


def _batch(base: int) -> bytes:
    records = [
        Record(b"k%d" % offset, b"v" * 100, 1_700_000_000_000 + offset * 3_600_000)
        for offset in range(base, base + 10)
    ]
    batch = bytearray(made_batch(base, records, codec=CODECS[base // 10 % 5]))
    batch[12:16] = bytes(4)  # leader epoch 0, which metadata state and a broker would have set
    return bytes(batch)
