"""`python -m benchmarks.archive`: how fast a topic is archived, compared with only reading it.

In each round, a plain consumer reads the topic and throws the records away, and `fetchproxy archive
--once` archives the same topic into a local directory and to an S3 server. They run in turn. The
upload library alone also uploads as many bytes to the S3 server. Topics with other record sizes and
with compressed records are archived and read once each. Last, the archives of many partitions with
one small segment each begin: see `archive_beginnings`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

from rich.console import Console

from benchmarks import archive_beginnings
from benchmarks.drain import STOCK, UNPAUSED
from benchmarks.filling import Shape, fill
from benchmarks.frame import Outcome, Part, Size, child, in_turn
from benchmarks.goals import ARCHIVING
from benchmarks.report import Row, goal_rows, ratios, row
from lab.errors import PartFailed, PartMissing
from lab.kafka import KafkaServer
from lab.s3 import S3Server

MIB = 1024 * 1024
PARTITIONS = 4
CONSUMER = "plain consumer"
CONSUMER_UNPAUSED = "consumer that never pauses"
DIRECTORY = "local directory"
S3 = "S3 server"
BARE = "bare uploads to the S3 server"
_BUCKET = "benchmark"
_SEGMENT_BYTES = 64 * MIB


MAIN = Shape(1024, "none")
OTHERS = (Shape(100, "none"), Shape(64 * 1024, "none"), Shape(1024, "lz4"))


@dataclass(frozen=True, slots=True)
class Run:
    """One reading or archiving of a topic. `mib_max`: peak memory in MiB, for archivers only."""

    mb_per_s: float
    cpu_s_per_gb: float
    mib_max: float | None = None


def _topic(shape: Shape) -> str:
    return f"benchmark-archive-{shape.record_bytes}-{shape.compression}"


Runs = dict[tuple[Shape, str], list[Run]]  # by (topic's shape, contestant); one entry a round


@dataclass(slots=True)
class Bench:
    """The servers, and how each contestant processes a topic once."""

    kafka: KafkaServer
    folder: Path
    s3: S3Server | None
    runs: Runs = field(default_factory=dict)
    _stores: int = 0

    def contestants(self) -> dict[str, Callable[[Shape, int], Run]]:
        ways: dict[str, Callable[[Shape, int], Run]] = {
            CONSUMER: lambda shape, records: self._drain(STOCK, shape, records),
            CONSUMER_UNPAUSED: lambda shape, records: self._drain(UNPAUSED, shape, records),
            DIRECTORY: self._to_directory,
        }
        if self.s3 is not None:
            ways[S3] = self._to_s3
            ways[BARE] = self._bare_uploads
        return ways

    def fill(self, shape: Shape, mib: int) -> int:
        """Writes the topic and returns the number of records."""
        records = mib * MIB // shape.record_bytes
        topic = self.kafka.create_topic(_topic(shape), PARTITIONS)
        fill(self.kafka.bootstrap, topic, PARTITIONS, records, shape)
        return records

    def _drain(self, consumer: str, shape: Shape, records: int) -> Run:
        arguments = (self.kafka.bootstrap, _topic(shape), str(PARTITIONS), str(records))
        return _run(shape, records, child("benchmarks.drain", consumer, *arguments))

    def _to_directory(self, shape: Shape, records: int) -> Run:
        self._stores += 1
        store = self.folder / f"store-{self._stores}"
        try:
            run = self._archive(shape, records, f"file://{store}", {})
            _require_archived(store, shape, records)
            return run
        finally:
            rmtree(store, ignore_errors=True)

    def _to_s3(self, shape: Shape, records: int) -> Run:
        assert self.s3 is not None
        self._stores += 1
        url = self.s3.store_url(_BUCKET, f"store-{self._stores}")
        return self._archive(shape, records, url, self.s3.environment)

    def _bare_uploads(self, shape: Shape, records: int) -> Run:
        """Uploads as many bytes as the topic has, in files as long as segments."""
        assert self.s3 is not None
        self._stores += 1
        file = self.folder / "segment"
        if not file.exists():
            file.write_bytes(os.urandom(_SEGMENT_BYTES))
        count = max(shape.record_bytes * records // _SEGMENT_BYTES, 1)
        arguments = (self.s3.endpoint_url, _BUCKET, f"store-{self._stores}", str(count), str(file))
        took = child("benchmarks.bare_upload", *arguments, environment=self.s3.environment)
        return _run_of(count * _SEGMENT_BYTES, took)

    def _archive(
        self, shape: Shape, records: int, store: str, environment: Mapping[str, str]
    ) -> Run:
        arguments = ["archive", "--once", "--bootstrap", self.kafka.bootstrap, "--store", store]
        arguments += ["--topics", re.escape(_topic(shape)), "--set", "log.level=warning"]
        took = child("benchmarks.archive_run", *arguments, environment=environment)
        return _run(shape, records, took)


def _run(shape: Shape, records: int, took: Mapping[str, float]) -> Run:
    """Counts the bytes of the values, even if they are compressed in transit."""
    return _run_of(shape.record_bytes * records, took)


def _run_of(size_bytes: int, took: Mapping[str, float]) -> Run:
    megabytes = size_bytes / 1e6
    cpu = took["cpu_seconds"] / (megabytes / 1000)
    return Run(megabytes / took["seconds"], cpu, took.get("mib_max"))


def _require_archived(store: Path, shape: Shape, records: int) -> None:
    """Raises PartFailed if bytes are missing: the figure would then stand for less work."""
    if shape.compression == "none":
        stored = sum(log.stat().st_size for log in store.rglob("*.log"))
        bytes_expected = shape.record_bytes * records
        if stored < bytes_expected:
            raise PartFailed(
                f"{stored} bytes of {_topic(shape)} were archived, it has {bytes_expected}"
            )


def rows_of(runs: Runs) -> list[Row]:
    def speeds(shape: Shape, name: str) -> list[float]:
        return [each.mb_per_s for each in runs[shape, name]]

    rows = goal_rows(ARCHIVING, ratios(speeds(MAIN, DIRECTORY), speeds(MAIN, CONSUMER)))
    for shape, name in runs:
        if name in (DIRECTORY, S3):
            for other in (CONSUMER, CONSUMER_UNPAUSED, *([BARE] if name == S3 else [])):
                if (shape, other) in runs and (shape, name, other) != (MAIN, DIRECTORY, CONSUMER):
                    values = ratios(speeds(shape, name), speeds(shape, other))
                    rows.append(row(f"archiving to {name} : {other}, {shape} records", "x", values))
    for shape, name in runs:
        rows.append(row(f"throughput, {name}, {shape} records", "MB/s", speeds(shape, name)))
    for (shape, name), each in runs.items():
        cpu = [run.cpu_s_per_gb for run in each]
        rows.append(row(f"CPU, {name}, {shape} records", "s/GB", cpu))
    for (shape, name), each in runs.items():
        memory = [run.mib_max for run in each if run.mib_max is not None]
        if memory:
            rows.append(row(f"memory at most, {name}, {shape} records", "MiB", memory))
    return rows


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    lacking: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="archive-")))
        kafka = stack.enter_context(KafkaServer(heap="384m"))
        s3: S3Server | None = None
        try:
            s3 = stack.enter_context(S3Server())
            s3.create_bucket(_BUCKET)
        except PartMissing as missing:
            lacking.append(str(missing))
        bench = Bench(kafka, folder, s3)
        _measure(bench, MAIN, options.mib, options.rounds, console)
        for shape in OTHERS:
            _measure(bench, shape, options.others, 1, console)
        rows = rows_of(bench.runs)
        if s3 is not None:
            counts = options.beginnings, options.beginnings_rounds
            beginnings = archive_beginnings.measure(kafka, s3, _BUCKET, folder, *counts, console)
            rows += archive_beginnings.rows_of(beginnings)
    return Outcome(rows, {"partitions": PARTITIONS}, lacking)


def _measure(bench: Bench, shape: Shape, mib: int, rounds: int, console: Console) -> None:
    records = bench.fill(shape, mib)
    contestants = bench.contestants()
    for name in contestants:
        bench.runs[shape, name] = []
    # Round 0 of the first topic warms up.
    for number in range(0 if shape is MAIN else 1, rounds + 1):
        texts = []
        for name in in_turn(tuple(contestants), number):
            run = contestants[name](shape, records)
            texts.append(f"{name} {run.mb_per_s:.0f}")
            if number:
                bench.runs[shape, name].append(run)
        label = f"round {number} of {rounds}" if number else "warm-up"
        console.print(f"{shape} records: {label}\n  MB/s: {', '.join(texts)}")


PART = Part(
    name="archive",
    title="Archiving: medians of the rounds, ratios within a round",
    description=__doc__,
    sizes=(
        Size("rounds", 3, 1, "rounds with records of 1 KiB"),
        Size("mib", 2048, 16, "of records of 1 KiB"),  # so a start, 0.5 s, counts for little
        Size("others", 256, 16, "MiB of records of each other kind"),
        Size("beginnings", 10_000, 200, "partitions of which the archive begins"),
        Size("beginnings-rounds", 1, 1, "rounds with the beginnings of archives"),
    ),
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(PART.main())
