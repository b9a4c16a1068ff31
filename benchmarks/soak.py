"""`make soak`: runs a proxy and two archivers on real Kafka and S3 for half an hour.

Retention deletes all the time, the store has an outage, and one archiver is killed. The exit code
is 1 unless memory and open files are flat, the lag is bounded and every record was read.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import report
from benchmarks.process_usage import open_files, resident_mib
from benchmarks.soak_traffic import PARTITIONS, RECORD_BYTES, RECORDS_PER_S, TOPIC, Traffic
from benchmarks.soak_verdict import Disturbance, ProcessLife, Sample, Soaked, Verdict, judge
from lab import limited
from lab.errors import PartFailed, PartMissing
from lab.kafka import KafkaServer
from lab.process import ServerProcess, free_port
from lab.s3 import S3Server

RESULTS = Path(__file__).parent / "results" / "soak.json"
_PROJECT = Path(__file__).parents[1]
_FETCHPROXY = [sys.executable, "-m", "fetchproxy"]
_MIB = 1024 * 1024
_BUCKET = "soak"
_START_S = 60.0
_SAMPLE_S = 5.0
_RETENTION_BYTES = 8 * _MIB
# Segments are cut after 10 s, the newest segment is still open, and a status of the brokers is up
# to 5 s old. The rest is for a machine that also does other work.
LAG_S_MAX = 30.0
# The archiver's retry interval, plus the time to copy the outage's backlog at many times the rate.
RECOVERY_S_MAX = 60.0
# The faults begin at these shares of the time. The second life of the second archiver has to be as
# long as possible, and the last quarter is free of faults.
_KILL_AT, _OUTAGE_AT = 0.25, 0.64
_DOWN_SHARE, _DOWN_S_MAX = 0.06, 120.0  # duration of an outage; a kill takes a third of it

SETTINGS: dict[str, object] = {
    "metadata.manager": "topic",
    "metadata.topic_partitions": 4,
    "metadata.topic_replication_factor": 1,
    "metadata.view_age_max_ms": 5_000,
    "limits.console.refresh_interval_ms": 2_000,
    "limits.console.archive_refresh_interval_ms": 5_000,
    "archive.segment_bytes_max": _MIB,
    "archive.segment_age_max_ms": 10_000,
    "archive.copy_max_ms": 30_000,
    "limits.writing.remote_refresh_interval_ms": 10_000,
    "archive.group_id": "soak-archivers",
    "archive.group_session_timeout_ms": 6_000,
    "archive.remote_log_retention_bytes": _RETENTION_BYTES,
    "archive.local_retention_bytes": 2 * _MIB,
    "limits.writing.retention_check_interval_ms": 2_000,
    "archive.retention_grace_ms": 10_000,
    "archive.retention_step_grace_ms": 0,
    "limits.writing.orphan_check_interval_ms": 20_000,
    "limits.writing.orphan_age_min_ms": 60_000,
    # Smaller than the retained data, so that the caches are full soon and readers need the store.
    "limits.reading.chunk_bytes": 256 * 1024,
    "remote_fetch.chunk_cache_bytes_max": 16 * _MIB,
    "remote_fetch.index_cache_bytes_max": _MIB,
    # A connection pool keeps its peak number of connections as long as there is traffic. With a low
    # limit the peak is reached soon, and growth after it is a leak.
    "store.connections_max": 8,
}  # fmt: skip


class Server:
    """One fetchproxy process that may be killed and restarted. Each life is sampled separately."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, s3: S3Server) -> None:
        self.name = name
        self.lives: list[ProcessLife] = []
        self.killed = False
        self.log = folder / f"{name}.log"
        self._console = f"127.0.0.1:{free_port()}"
        places = {
            "metadata.cache_dir": folder / f"{name}-metadata",
            "archive.local_index_dir": folder / f"{name}-index",
            "archive.spool_dir": folder / f"{name}-spool",
            "archive.group_instance_id": f"soak-{name}",
        }
        for place in (each for each in places.values() if isinstance(each, Path)):
            place.mkdir(parents=True)
        settings = {**SETTINGS, **places}
        whole = [*limited.command(settings), *command, "--console", self._console]
        whole += ["--store", s3.store_url(_BUCKET), "--topics", TOPIC]
        whole += limited.options(settings)
        self._process = ServerProcess(name, whole, self.log, s3.environment, _PROJECT)

    def start(self) -> None:
        self.killed = False
        self._process.start()
        self._process.wait_until(lambda: self._get("/healthz") is not None, _START_S)
        name = f"{self.name} after its restart" if self.lives else self.name
        self.lives.append(ProcessLife(name, [], []))

    def kill(self) -> None:
        self.killed = True
        self._process.kill()

    def stop(self) -> None:
        self._process.stop(60.0)

    @property
    def running(self) -> bool:
        return self._process.running

    def sample(self, at_s: float) -> float:
        """Resident MiB. Raises OSError if the process has just ended."""
        pid, life = self._process.pid, self.lives[-1]
        mib = resident_mib(pid)
        life.resident_mib.append(Sample(at_s, mib))
        life.open_files.append(Sample(at_s, open_files(pid)))
        return mib

    def metric(self, name: str) -> list[float]:
        """The samples of all labels. Empty if the process does not answer."""
        text = self._get("/metrics") or ""
        return [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith((name + " ", name + "{"))
        ]

    def lag_s(self) -> float | None:
        """The largest lag of a partition. None unless the proxy reports all partitions."""
        partitions = json.loads(self._get("/api/status") or "{}").get("partitions", [])
        lags = [each["lag_offsets"] for each in partitions if each["lag_offsets"] is not None]
        return max(lags) / RECORDS_PER_S if len(lags) == PARTITIONS else None

    def defects(self) -> list[str]:
        """Log lines that a sound process never writes, whatever fails around it."""
        complaints = []
        for line in self.log.read_text(errors="replace").splitlines():
            if "Traceback" in line or '"part_failed"' in line or "_crashed" in line:
                complaints.append(f"{self.name} logged: {line[:300]}")
        return complaints[:3]

    def _get(self, path: str) -> str | None:
        try:
            with urllib.request.urlopen(f"http://{self._console}{path}", timeout=10) as response:
                return str(response.read().decode())
        except OSError:
            return None


@dataclass
class Observed:
    """The samples of all but the processes, the disturbances with their times, and the faults."""

    began: float = field(default_factory=time.monotonic)
    lag_s: list[Sample] = field(default_factory=list)
    objects: list[Sample] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def now(self) -> float:
        return time.monotonic() - self.began


class Soak:
    """The parts while they run. `run` returns when the time is over and all work is done."""

    def __init__(self, seconds: float, folder: Path, console: Console) -> None:
        self._seconds = seconds
        self._folder = folder
        self._console = console
        self._store_responses = True

    def run(self) -> Soaked:
        with ExitStack() as stack:
            # The broker's files are small, so that records removed by DeleteRecords really leave
            # the disk.
            quick = {"log.retention.check.interval.ms": "5000", "log.segment.bytes": str(_MIB)}
            kafka = stack.enter_context(KafkaServer(quick, heap="384m"))
            self._s3 = s3 = stack.enter_context(S3Server())
            s3.create_bucket(_BUCKET)
            self._objects = s3.client()
            stack.callback(self._objects.close)
            endless = {
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "file.delete.delay.ms": "1000",
            }
            kafka.create_topic(TOPIC, PARTITIONS, endless)
            listen = f"127.0.0.1:{free_port()}"
            broker = ["--bootstrap", kafka.bootstrap]
            self._proxy = Server("proxy", ["serve", *broker, "--listen", listen], self._folder, s3)
            self._second = Server("archiver", ["archive", *broker], self._folder, s3)
            self._servers = [self._proxy, self._second]
            for server in self._servers:
                stack.callback(server.stop)
                server.start()
            self._traffic = Traffic(listen, int(_RETENTION_BYTES * 0.9))
            self._observed = Observed()
            with self._traffic:
                self._console.print(
                    f"{self._seconds / 60:g} minutes; the logs are in {self._folder}"
                )
                self._work()
                self._come_to_rest()
            for server in self._servers:
                server.stop()
                self._observed.faults += server.defects()
            verified = subprocess.run(
                [*_FETCHPROXY, "verify", "--store", s3.store_url(_BUCKET)],
                env={**os.environ, **s3.environment}, cwd=_PROJECT,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            self._console.print(
                f"verify: {(verified.stdout + verified.stderr).strip()}", markup=False
            )
            return self._soaked(verified.returncode == 0)

    def _work(self) -> None:
        kill_at, outage_at = _KILL_AT * self._seconds, _OUTAGE_AT * self._seconds
        down_s = min(_DOWN_SHARE * self._seconds, _DOWN_S_MAX)
        events: list[tuple[float, Callable[[], None]]] = [
            (kill_at, self._second.kill),
            (kill_at + down_s / 3, self._start_second),
            (outage_at, self._begin_outage),
            (outage_at + down_s / 2, self._s3.kill),
            (outage_at + down_s, self._end_outage),
        ]
        next_line_s = 0.0
        while (now := self._observed.now()) < self._seconds:
            if events and now >= events[0][0]:
                events.pop(0)[1]()
            line = self._sample()
            if now >= next_line_s:
                self._console.print(line, markup=False)
                next_line_s += 60.0
            due = min([now + _SAMPLE_S, self._seconds, *(at_s for at_s, _ in events[:1])])
            time.sleep(max(0.0, due - self._observed.now()))

    def _start_second(self) -> None:
        self._second.start()
        self._note("killing an archiver", _KILL_AT)

    def _begin_outage(self) -> None:
        self._s3.pause()
        self._store_responses = False

    def _end_outage(self) -> None:
        self._s3.start()
        self._store_responses = True
        self._note("an outage of the store", _OUTAGE_AT)

    def _note(self, name: str, share: float) -> None:
        since = share * self._seconds
        self._observed.disturbances.append(Disturbance(name, since, self._observed.now()))

    def _sample(self) -> str:
        """Takes one sample of everything and returns a line about it."""
        at_s, observed, outcome = self._observed.now(), self._observed, self._traffic.outcome
        resident = []
        for server in self._servers:
            if server.running:
                resident.append(f"{server.name} {server.sample(at_s):.0f} MiB")
            elif not server.killed:
                raise PartFailed(f"{server.name} has ended\n{server.log.read_text()[-2000:]}")
        if (lag_s := self._proxy.lag_s()) is not None:
            observed.lag_s.append(Sample(at_s, lag_s))
        lag = f"{observed.lag_s[-1].value:.1f}" if observed.lag_s else "?"
        if self._store_responses:
            observed.objects.append(Sample(at_s, self._count_objects()))
        return (
            f"{at_s / 60:5.1f} min  {', '.join(resident)}  lag {lag} s  "
            f"objects {observed.objects[-1].value:.0f}  produced {sum(outcome.produced)}  "
            f"tail {outcome.tail_read}  passes {outcome.passes}  faults {len(outcome.faults)}"
        )

    def _count_objects(self) -> int:
        pages = self._objects.get_paginator("list_objects_v2").paginate(Bucket=_BUCKET)
        return sum(page["KeyCount"] for page in pages)

    def _come_to_rest(self) -> None:
        self._traffic.stop_producing()
        self._traffic.finish_reading()
        deadline = self._observed.now() + RECOVERY_S_MAX
        while (lag_s := self._proxy.lag_s()) != 0 and self._observed.now() < deadline:
            time.sleep(1.0)
        if lag_s is not None:
            self._observed.lag_s.append(Sample(self._observed.now(), lag_s))
        for name in ("fetchproxy_archive_gaps_total", "fetchproxy_corrupt_chunks_total"):
            for server in self._servers:
                if any(server.metric(name)):
                    self._observed.faults.append(f"{server.name}: {name} is above 0")
        if not any(self._deletions(server) for server in self._servers):
            self._observed.faults.append("retention has deleted nothing")

    def _deletions(self, server: Server) -> float:
        return sum(server.metric("kafka_server_brokertopicmetrics_remotedeleterequests_total"))

    def _soaked(self, verify_clean: bool) -> Soaked:
        observed, outcome = self._observed, self._traffic.outcome
        counts = {
            ("records produced", ""): sum(outcome.produced),
            ("transactions aborted", ""): outcome.aborted,
            ("records read at the tail", ""): outcome.tail_read,
            ("delay of the reader at the tail, at most", "s"): outcome.tail_delay_s_max,
            ("passes over all that is retained", ""): outcome.passes,
            ("records read in them", ""): outcome.archive_read,
            ("times that retention overtook them", ""): outcome.overtaken,
        }
        return Soaked(
            # A life that was cut short on purpose shows only its warm-up.
            lives=[server.lives[-1] for server in self._servers],
            lag_s=observed.lag_s,
            objects=observed.objects,
            disturbances=observed.disturbances,
            verify_clean=verify_clean,
            faults=[*outcome.faults, *observed.faults],
            counts=counts,
        )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="30; flat is judged from 11 on")
    parser.add_argument(
        "--results", type=Path, default=None,
        help=f"JSON; {RESULTS.name} where all could be judged, else none",
    )  # fmt: skip
    parser.add_argument("--folder", type=Path, default=None, help="logs and caches stay here")
    return parser.parse_args(arguments)


def conclusion(verdict: Verdict) -> str:
    lines = [f"failed: {reason}" for reason in verdict.reasons]
    if verdict.unjudged:
        lines.append(f"too short to judge: {'; '.join(verdict.unjudged)}")
    if verdict.passed:
        lines.append("passed" if not verdict.unjudged else "nothing failed of what was judged")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    facts: dict[str, Any] = {
        "benchmark": "soak",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": report.machine(),
        "minutes": options.minutes,
        "bytes_per_s": PARTITIONS * RECORDS_PER_S * RECORD_BYTES,
        "settings": SETTINGS,
    }
    try:
        with tempfile.TemporaryDirectory(prefix="fetchproxy-soak-") as temporary:
            folder = Path(temporary) if options.folder is None else options.folder
            soaked = Soak(options.minutes * 60, folder, console).run()
    except PartMissing as missing:
        console.print(f"cannot soak: {missing}", markup=False)
        return 1
    verdict = judge(soaked, lag_s_max=LAG_S_MAX, recovery_s_max=RECOVERY_S_MAX)
    console.print(
        report.table("Soak: medians of the last quarter, or what the name says", verdict.rows)
    )
    console.print(conclusion(verdict), markup=False)
    results = options.results or (None if verdict.unjudged else RESULTS)
    if results is not None:
        report.write(results, {**facts, "passed": verdict.passed}, verdict.rows)
        console.print(f"written to {results}", markup=False)
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main())
