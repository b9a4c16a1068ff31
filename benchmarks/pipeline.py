"""`python -m benchmarks.pipeline`: the archive on Spark, next to Spark's Kafka source on a broker.

The same records, plain and zstd, of 100 B and of 1 KiB, are produced to a real broker and archived
to a folder. One Spark session then reads them from both in turn, round after round: all columns,
the value alone, the offset alone; and all of them into Parquet, which the job `backfill` writes by
itself. Broker, store and Spark share the machine's cores and its page cache. Besides: planning a
million segments, and what memory a Python worker has taken. Exit status 0 when the figures could be
taken, whether goals are met or not: a busy machine must not fail a build.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import report
from benchmarks.metadata import write_cache
from benchmarks.report import Row, row
from lab.errors import PartMissing
from lab.kafka import KafkaServer, run_tool
from lab.spark import SPARK_VERSION, kafka_connector, spark_environment

RESULTS = Path(__file__).parent / "results" / "pipeline.json"
_PROJECT = Path(__file__).parents[1]

PARTITIONS = 4
CODECS = ("none", "zstd")  # each has half of the records
PLANNED_PARTITIONS = 10_000

# The goals of reading.
RATIO_MIN = {
    (100, "all"): 2.5,
    (1024, "all"): 1.7,
    (100, "value"): 3.0,
    (100, "offset"): 3.0,
    # Of 1 KiB the value is nearly all there is: leaving out the rest makes little of a difference.
    (1024, "value"): None,
    (1024, "offset"): 3.0,
}
BACKFILL_MIN = {100: 4.0, 1024: 3.0}
PLANNING_S_MAX = 20.0
# Interpreter, pyarrow and numba take some 150 MiB; then ranges, arena and Arrow batches, see
# docs/pipeline.md.
WORKER_MIB_MAX = 400.0


def topic_of(size: int, codec: str) -> str:
    return f"bench-{size}-{codec}"


def payloads(size: int, count: int) -> list[str]:
    """Lines of JSON that compress about as logs and events do, three to one."""
    dice = random.Random(size)
    made = []
    for number in range(count):
        line = (
            f'{{"id":{number},"user":{dice.randrange(10**6)},"page":"/items/{dice.randrange(999)}"'
        )
        while len(line) < size - 20:
            line += f',"f{dice.randrange(9)}":{dice.randrange(10**4)},"state":"delivered"'
        made.append((line + "}" * size)[:size])
    return made


def produce(kafka: KafkaServer, folder: Path, size: int, records: int) -> None:
    file = folder / f"payloads-{size}"
    file.write_text("\n".join(payloads(size, 20_000)))
    for codec in CODECS:
        kafka.create_topic(topic_of(size, codec), PARTITIONS)
        settings = ["batch.size=65536", "linger.ms=50", f"compression.type={codec}"]
        arguments = ["--topic", topic_of(size, codec), "--num-records", str(records // len(CODECS))]
        arguments += ["--payload-file", str(file), "--throughput", "-1"]
        properties = [f"bootstrap.servers={kafka.bootstrap}", "acks=1", *settings]
        run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *arguments,
            "--producer-props",
            *properties,
            timeout_s=1800,
        )


def archive(kafka: KafkaServer, store: Path) -> None:
    store.mkdir()
    command = [sys.executable, "-m", "fetchproxy", "archive", "--once", "--archive", "bench-.*"]
    command += ["--bootstrap", kafka.bootstrap, "--store", store.as_uri()]
    subprocess.run(command, cwd=_PROJECT, check=True, stderr=subprocess.DEVNULL)


def spark_figures(question: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """What benchmarks.pipeline_spark has measured. Raises PartMissing, CalledProcessError."""
    environment = {**os.environ, **spark_environment()}
    environment["PYTHONPATH"] = f"{_PROJECT}:{environment['PYTHONPATH']}"
    asked, answer = folder / "question.json", folder / "answer.json"
    jars = ":".join(map(str, kafka_connector()))
    asked.write_text(json.dumps({**question, "folder": str(folder), "jars": jars}))
    command = [sys.executable, "-m", "benchmarks.pipeline_spark", str(asked), str(answer)]
    with (folder / "spark.log").open("wb") as log:
        done = subprocess.run(command, cwd=_PROJECT, env=environment, stderr=log, check=False)
    if done.returncode != 0:
        sys.stderr.write((folder / "spark.log").read_text(errors="replace")[-3000:])
        done.check_returncode()
    figures: dict[str, Any] = json.loads(answer.read_text())
    return figures


def planning(folder: Path, segments: int, rounds: int) -> dict[str, list[float]]:
    """Seconds, by where metadata come from."""
    partitions = max(1, min(PLANNED_PARTITIONS, segments // 100))
    write_cache(folder, partitions, segments)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.pipeline_planning", str(folder)],
            stdout=subprocess.PIPE,
            check=True,
            cwd=_PROJECT,
        )
        for name, value in json.loads(done.stdout).items():
            found.setdefault(name, []).append(value)
    return found


def rows_of(
    figures: Mapping[str, Any], plans: Mapping[str, list[float]], counts: Mapping[int, int]
) -> list[Row]:
    """Ratios first. `figures` has rounds of seconds by size, columns and source."""
    rows: list[Row] = []
    rates: list[Row] = []
    for (size, columns), goal in RATIO_MIN.items():
        seconds = figures["seconds"][f"{size} {columns}"]
        ratios = [k / r for k, r in zip(seconds["kafka"], seconds["remotelog"], strict=True)]
        what = f"{size} B, {'all columns' if columns == 'all' else columns}"
        rows.append(row(f"{what}: remotelog / Kafka source", "x", ratios, at_least=goal))
        for source, taken in seconds.items():
            rates.append(row(f"{what}: {source}", "rows/s", [counts[size] / s for s in taken]))
    for size, count in counts.items():
        seconds = figures["backfills"][str(size)]
        ratios = [k / b for k, b in zip(seconds["kafka"], seconds["backfill"], strict=True)]
        what = f"{size} B to Parquet"
        rows.append(
            row(f"{what}: backfill / Kafka source", "x", ratios, at_least=BACKFILL_MIN[size])
        )
        for source, taken in seconds.items():
            rates.append(row(f"{what}: {source}", "rows/s", [count / each for each in taken]))
    memory = figures["worker_mib"]
    return [
        *rows,
        *rates,
        row("planning: segments", "", plans["segments"]),
        row("planning, cache files to tasks", "s", plans["planning_s"], at_most=PLANNING_S_MAX),
        # On a machine that has nothing else to do it is the time on the wall, too.
        row("planning, time of one core", "s", plans["planning_cpu_s"]),
        row("planning: tasks, pickled for Spark", "s", plans["pickling_s"]),
        row("planning: memory", "MiB", plans["memory_mib"]),
        row("a Python worker's memory, at its most", "MiB", memory, at_most=WORKER_MIB_MAX),
    ]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: the figures mean little")
    sizes = (
        ("rounds", 5, 1),
        ("records-100", 10_000_000, 20_000),
        ("records-1024", 1_500_000, 5_000),
        ("segments", 1_000_000, 1_000),
    )
    for name, full, quick in sizes:
        text = f"{full}; with --quick {quick}"
        parser.add_argument(f"--{name}", type=int, default=None, help=text)
    parser.add_argument(
        "--results", type=Path, default=None, help=f"JSON; {RESULTS.name}, with --quick none"
    )
    options = parser.parse_args(arguments)
    for name, full, quick in sizes:
        if getattr(options, name.replace("-", "_")) is None:
            setattr(options, name.replace("-", "_"), quick if options.quick else full)
    if options.results is None and not options.quick:
        options.results = RESULTS
    return options


def measure(options: argparse.Namespace, console: Console) -> list[Row]:
    counts = {100: options.records_100, 1024: options.records_1024}
    with tempfile.TemporaryDirectory(prefix="fetchproxy-pipeline-") as name:
        folder = Path(name)
        plans = planning(folder / "metadata", options.segments, options.rounds)
        console.print(f"planned {options.segments} segments")
        with KafkaServer() as kafka:
            for size, count in counts.items():
                produce(kafka, folder, size, count)
                console.print(f"produced {count} records of {size} B")
            archive(kafka, folder / "store")
            console.print("archived them")
            question = {
                "bootstrap": kafka.bootstrap,
                "store": (folder / "store").as_uri(),
                "rounds": options.rounds,
                "topics": {size: [topic_of(size, codec) for codec in CODECS] for size in counts},
                "counts": counts,
            }
            figures = spark_figures(question, folder)
    return rows_of(figures, plans, counts)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    machine = report.machine()  # before the benchmark's own load
    try:
        rows = measure(options, console)
    except PartMissing as missing:
        console.print(f"pipeline cannot be measured here: {missing}", markup=False)
        return 1
    console.print(report.table("The archive on Spark: medians of the rounds", rows))
    if options.results is not None:
        facts = {
            "benchmark": "pipeline",
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine,
            "spark": SPARK_VERSION,
            "rounds": options.rounds,
            "records_100": options.records_100,
            "records_1024": options.records_1024,
            "codecs": list(CODECS),
        }
        report.write(options.results, facts, rows)
        console.print(f"written to {options.results}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
